import WitCert.Core.Sum
/-! (a) the e-form bound on total variation, over an abstract ordered field with an exponential. -/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- What is used of the exponential. -/
class Exp (R : Type u) [Field R] [LE R] where
  exp : R → R
  exp_add : ∀ x y : R, exp (x + y) = exp x * exp y
  one_add_le_exp : ∀ x : R, 1 + x ≤ exp x

open Exp (exp exp_add one_add_le_exp)

variable [Exp R]

theorem exp_zero : exp (0 : R) = 1 := by
  have h := exp_add (0 : R) 0
  have h1 := one_add_le_exp (0 : R)
  rw [show (0 : R) + 0 = 0 by grind] at h
  have h2 : exp (0 : R) ≠ 0 := by
    have h0 := OrderedRing.zero_lt_one (R := R)
    grind
  grind

theorem exp_mul_neg (x : R) : exp x * exp (-x) = 1 := by
  rw [← exp_add, show x + -x = 0 by grind, exp_zero]

theorem exp_pos (x : R) : 0 < exp x := by
  have h := exp_add (x / 2) (x / 2)
  rw [show x / 2 + x / 2 = x by grind] at h
  have h1 := mul_self_nonneg (exp (x / 2))
  have h2 := exp_mul_neg x
  have h3 : exp x ≠ 0 := by
    intro h0
    rw [h0] at h2
    have h4 := Field.zero_ne_one (α := R)
    grind
  grind

theorem exp_mono {x y : R} (h : x ≤ y) : exp x ≤ exp y := by
  have h1 : exp y = exp x * exp (y - x) := by rw [← exp_add, show x + (y - x) = y by grind]
  have h2 := one_add_le_exp (y - x)
  have h3 := OrderedRing.mul_le_mul_of_nonneg_left (show (1 : R) ≤ exp (y - x) by grind)
    (show 0 ≤ exp x by have := exp_pos x; grind)
  grind

/-- absolute value -/
noncomputable def abs {R : Type u} [Field R] [LE R] (x : R) : R := open Classical in if 0 ≤ x then x else -x

theorem abs_le {x b : R} (h1 : x ≤ b) (h2 : -x ≤ b) : abs x ≤ b := by
  unfold abs; split <;> assumption

theorem le_of_abs_le {x b : R} (h : abs x ≤ b) : x ≤ b ∧ -x ≤ b ∧ 0 ≤ b := by
  unfold abs at h; split at h <;> grind

/-- 2 ≤ u + x when u, x > 0 and u x ≥ 1 -/
theorem two_le_add {u x : R} (hu : 0 < u) (hx : 0 < x) (h : 1 ≤ u * x) : 2 ≤ u + x := by
  have h1 := mul_self_nonneg (u - x)
  apply le_of_mul_self_le
  · grind
  · grind

theorem mul_le_mul' {a b c d : R} (h1 : a ≤ b) (h2 : c ≤ d) (hc : 0 ≤ c) (hb : 0 ≤ b) : a * c ≤ b * d := by
  have h3 := OrderedRing.mul_le_mul_of_nonneg_right h1 hc
  have h4 := OrderedRing.mul_le_mul_of_nonneg_left h2 hb
  grind

/-- Let q be a distribution on i < n, ε within c, p q-weighted by exp (-ε) and normalised.
Then the total variation of p and q is at most (A² - 1) / 2 where A = Σ q exp c. -/
theorem tv_bound (n : Nat) (q ε c : Nat → R)
    (hq : ∀ i, i < n → 0 ≤ q i) (hq1 : sum q n = 1) (hε : ∀ i, i < n → abs (ε i) ≤ c i) :
    let Z := sum (fun i => q i * exp (-ε i)) n
    let A := sum (fun i => q i * exp (c i)) n
    sum (fun i => abs (q i * exp (-ε i) / Z - q i)) n / 2 ≤ (A * A - 1) / 2 := by
  intro Z A
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hZA : Z ≤ A := sum_le fun i hi =>
    OrderedRing.mul_le_mul_of_nonneg_left (exp_mono (le_of_abs_le (hε i hi)).2.1) (hq i hi)
  have hA1 : 1 ≤ A := by
    have h : sum q n ≤ A := sum_le fun i hi => by
      have h1 := exp_mono (le_of_abs_le (hε i hi)).2.2
      rw [exp_zero] at h1
      have h2 := OrderedRing.mul_le_mul_of_nonneg_left h1 (hq i hi)
      grind
    grind
  -- A² Z ≥ 2A - A, termwise from (exp c - A)² ≥ 0
  have hAAZ : 2 * A - A ≤ A * A * Z := by
    have h : sum (fun i => 2 * A * q i + (-1) * (q i * exp (c i))) n
        ≤ sum (fun i => A * A * (q i * exp (-ε i))) n := sum_le fun i hi => by
      have hc := le_of_abs_le (hε i hi)
      have h1 : exp (-c i) ≤ exp (-ε i) := exp_mono (by grind)
      have h2 := exp_mul_neg (c i)
      have h3 := exp_pos (c i)
      have h4 := exp_pos (-c i)
      have h5 := mul_self_nonneg (exp (c i) - A)
      have h6 := OrderedRing.mul_le_mul_of_nonneg_left h1 (mul_self_nonneg A)
      -- multiply h5 by exp (-c)
      have h7 := OrderedRing.mul_nonneg h5 (show 0 ≤ exp (-c i) by grind)
      have h8 : 2 * A - exp (c i) ≤ A * A * exp (-ε i) := by
        generalize exp (c i) = y at *
        generalize exp (-c i) = y' at *
        generalize exp (-ε i) = z at *
        have h9 : (y - A) * (y - A) * y' = y + A * A * y' - 2 * A := by grind
        grind
      have h9 := OrderedRing.mul_le_mul_of_nonneg_left h8 (hq i hi)
      grind
    rw [sum_add, sum_mul, sum_mul, sum_mul, hq1] at h
    grind
  have hAZ : 1 ≤ A * Z := by
    apply Classical.byContradiction; intro hn
    have h1 := OrderedRing.mul_lt_mul_of_pos_left (show A * Z < 1 by grind) (show 0 < A by grind)
    grind
  have hZ0 : 0 < Z := by
    apply Classical.byContradiction; intro hn
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left (show Z ≤ 0 by grind) (show 0 ≤ A by grind)
    grind
  have hZw : Z * Z⁻¹ = 1 := Field.mul_inv_cancel (by grind)
  have hw0 : 0 < Z⁻¹ := by
    apply Classical.byContradiction; intro hn
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left (show Z⁻¹ ≤ 0 by grind) (show 0 ≤ Z by grind)
    grind
  have hwA : Z⁻¹ ≤ A := by
    have h1 := OrderedRing.mul_le_mul_of_nonneg_right hAZ (show 0 ≤ Z⁻¹ by grind)
    have h2 : A * Z * Z⁻¹ = A := by rw [Semiring.mul_assoc, hZw, Semiring.mul_one]
    rw [h2, Semiring.one_mul] at h1
    exact h1
  have hAw : 1 ≤ A * Z⁻¹ := by
    have h1 := OrderedRing.mul_le_mul_of_nonneg_right hZA (show 0 ≤ Z⁻¹ by grind)
    grind
  -- each term
  have hterm : sum (fun i => abs (q i * exp (-ε i) / Z - q i)) n
      ≤ sum (fun i => A * (q i * exp (c i)) + (-1) * q i) n := sum_le fun i hi => by
    have hc := le_of_abs_le (hε i hi)
    have h1 : exp (-ε i) ≤ exp (c i) := exp_mono hc.2.1
    have h2 : exp (-c i) ≤ exp (-ε i) := exp_mono (by grind)
    have h3 := exp_mul_neg (c i)
    have h4 := exp_pos (c i)
    have h5 := exp_pos (-ε i)
    have hqi := hq i hi
    rw [Field.div_eq_mul_inv]
    generalize exp (c i) = y at *
    generalize exp (-c i) = y' at *
    generalize exp (-ε i) = z at *
    generalize Z⁻¹ = w at *
    have hzw : z * w ≤ y * A := mul_le_mul' h1 hwA (by grind) (by grind)
    have hzy : 1 ≤ z * y := by
      have := OrderedRing.mul_le_mul_of_nonneg_right h2 (show 0 ≤ y by grind)
      grind
    have hp : 1 ≤ (z * w) * (y * A) := by
      have := mul_le_mul' hzy hAw (show 0 ≤ (1 : R) by grind) (show 0 ≤ z * y by grind)
      grind
    have h2' := two_le_add (OrderedRing.mul_pos h5 hw0) (OrderedRing.mul_pos h4 (show 0 < A by grind)) hp
    apply abs_le
    · have := OrderedRing.mul_le_mul_of_nonneg_left hzw hqi
      grind
    · have := OrderedRing.mul_le_mul_of_nonneg_left h2' hqi
      grind
  rw [sum_add, sum_mul, sum_mul, hq1] at hterm
  grind

end WitCert.Core
