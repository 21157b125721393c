import WitCert.Core.Grid
import WitCert.Core.Average
import WitCert.Core.CoshSinh

/-!
# The dither grid as a sum of fair signs, and its moment-generating function

`grid_eq_signs`: the grid value of index `j` is `Σ ± 2^-(k+1)` over the `b` bits of `j`. Hence the average of `exp (λ g)` is a
product of hyperbolic cosines (`grid_mgf_eq`), and at most `exp (λ² (1 - 4^-b) / 24)` (`grid_mgf`): the proxy is the variance
(`grid_variance`).
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- One more bit halves the cells of the grid: index `2i + t` lies a quarter of the old cell from the old value of index `i`. -/
private theorem grid_step (b i t : Nat) :
    (grid (2 ^ (b + 1)) (2 * i + t) : R) = grid (2 ^ b) i + (2 * (t : R) - 1) / 2 ^ (b + 2) := by
  have h0 := pow_two_pos (R := R) b
  unfold grid
  rw [natCast_two_pow, natCast_two_pow, Semiring.natCast_add, Semiring.natCast_mul, Semiring.pow_succ, Semiring.pow_succ,
    Semiring.pow_succ]
  have e : ((2 : Nat) : R) = 2 := by grind
  rw [e]
  generalize (2 : R) ^ b = P at *
  grind

/-- The bits of `j / 2` are those of `j` above the lowest. -/
private theorem sign_half (j i : Nat) : (sign (j / 2) i : R) = sign j (i + 1) := by
  have e : j / 2 / 2 ^ i = j / 2 ^ (i + 1) := by rw [Nat.pow_succ, Nat.mul_comm, Nat.div_div_eq_div_mul]
  unfold sign
  simp only [e]

/-- The grid value of index `j` is a sum of signed powers of two: `Σ_{k=1}^{b} ± 2^-(k+1)`, where the signs are the bits of `j`, the
most significant first. -/
theorem grid_eq_signs (b j : Nat) (h_index : j < 2 ^ b) :
    (grid (2 ^ b) j : R) = sum (fun i => (sign j (b - 1 - i) : R) / 2 ^ (i + 2)) b := by
  induction b generalizing j with
  | zero =>
    rw [Nat.pow_zero] at *
    obtain rfl : j = 0 := by omega
    rw [sum_zero]; unfold grid
    rw [Semiring.natCast_zero, Semiring.natCast_one]; grind
  | succ b ih =>
    have h1 := ih (j / 2) (by rw [Nat.pow_succ] at h_index; omega)
    have h2 := grid_step (R := R) b (j / 2) (j % 2)
    rw [Nat.div_add_mod] at h2
    rw [h2, h1, sum_succ]
    congr 1
    · refine sum_congr fun i hi => ?_
      have e : b + 1 - 1 - i = (b - 1 - i) + 1 := by omega
      rw [e, sign_half]
    · have e : b + 1 - 1 - b = 0 := by omega
      rw [e]
      congr 1
      unfold sign
      rcases Nat.mod_two_eq_zero_or_one j with h | h
      · rw [h, if_neg (by rw [Nat.pow_zero, Nat.div_one]; omega), Semiring.natCast_zero]; grind
      · rw [h, if_pos (by rw [Nat.pow_zero, Nat.div_one]; exact h), Semiring.natCast_one]; grind

variable [Exp R]

/-- The average of `exp (λ g)` over the grid of a `b`-bit dither is the product of the hyperbolic cosines of `λ 2^-(k+1)`,
`k = 1, ..., b`. -/
theorem grid_mgf_eq (b : Nat) (l : R) :
    average (fun j => exp (l * grid (2 ^ b) j)) (2 ^ b) = prod (fun i => cosh (l / 2 ^ (i + 2))) b := by
  induction b with
  | zero =>
    rw [Nat.pow_zero, prod_zero, average_congr (g := fun _ => 1) fun j hj => ?_, average_const _ (by decide)]
    obtain rfl : j = 0 := by omega
    unfold grid
    rw [Semiring.natCast_zero, Semiring.natCast_one, show l * ((2 * 0 + 1 - 1) / (2 * 1)) = 0 by grind, exp_zero]
  | succ b ih =>
    rw [Nat.pow_succ, Nat.mul_comm, average_blocks, prod_succ, ← ih, ← average_mul_right]
    refine average_congr fun i hi => ?_
    have h : ∀ t, (exp (l * grid (2 * 2 ^ b) (t + 2 * i)) : R)
        = exp (l * grid (2 ^ b) i) * exp (l * ((2 * (t : R) - 1) / 2 ^ (b + 2))) :=
      fun t => by
        have h2 := grid_step (R := R) b i t
        rw [Nat.pow_succ, Nat.mul_comm _ 2] at h2
        rw [Nat.add_comm t, h2, ← exp_add]
        congr 1; grind
    rw [average_congr fun t _ => h t, average_mul]
    congr 1
    unfold average cosh
    rw [sum_succ, sum_succ, sum_zero, Semiring.natCast_zero, Semiring.natCast_one]
    rw [show l * ((2 * 0 - 1) / 2 ^ (b + 2)) = -(l / 2 ^ (b + 2)) by grind,
      show l * ((2 * 1 - 1) / 2 ^ (b + 2)) = l / 2 ^ (b + 2) by grind]
    have e : ((2 : Nat) : R) = 2 := by grind
    rw [e]; grind

variable [Archimedean R]

/-- The average of `exp (λ g)` over the grid of a `b`-bit dither is at most `exp (λ² (1 - 4^-b) / 24)`: the dither is sub-Gaussian
with its own variance, `(1 - 4^-b) / 12`, as proxy. -/
theorem grid_mgf (b : Nat) (l : R) :
    average (fun j => exp (l * grid (2 ^ b) j)) (2 ^ b) ≤ exp (l * l * (1 - 1 / 4 ^ b) / 24) := by
  rw [grid_mgf_eq]
  induction b with
  | zero =>
    rw [prod_zero, Semiring.pow_zero, show l * l * (1 - 1 / 1) / 24 = 0 by grind, exp_zero]; grind
  | succ b ih =>
    have h1 := cosh_le_exp_half_sq (l / 2 ^ (b + 2))
    have h2 := mul_le_mul' ih h1 (by have := cosh_pos (l / 2 ^ (b + 2)); grind)
      (by have := exp_pos (l * l * (1 - 1 / 4 ^ b) / 24); grind)
    rw [← exp_add] at h2
    rw [prod_succ]
    have e : l * l * (1 - 1 / 4 ^ b) / 24 + l / 2 ^ (b + 2) * (l / 2 ^ (b + 2)) / 2 = l * l * (1 - 1 / 4 ^ (b + 1)) / 24 := by
      rw [four_pow_eq, four_pow_eq, Semiring.pow_succ, Semiring.pow_succ]
      have h0 := pow_two_pos (R := R) b
      generalize (2 : R) ^ b = P at *
      grind
    rw [e] at h2
    exact h2

end WitCert.Core
