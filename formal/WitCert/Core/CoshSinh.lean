import WitCert.Core.Exp
import WitCert.Core.Cast

/-!
# `cosh x ≤ exp (x²/2)` and `sinh x ≤ x · exp (x²/6)`

Both follow from `exp (x + y) = exp x · exp y`, `1 + x ≤ exp x` and the Archimedean property alone: they hold for small
arguments and are doubled up, by `cosh 2z ≤ (cosh z)⁴` and `sinh 2z = 2 · sinh z · cosh z`. No power series is needed.
`cosh_le_exp_half_sq` is the only analysis on which the tail bounds of the dither rest.
-/

open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R]

/-- The hyperbolic cosine, `(exp x + exp (-x)) / 2`. -/
def cosh (x : R) : R := (exp x + exp (-x)) / 2

/-- The hyperbolic sine, `(exp x - exp (-x)) / 2`. -/
def sinh (x : R) : R := (exp x - exp (-x)) / 2

/-! ### Addition formulas -/

/-- The exponential of `2x` is the square of the exponential of `x`. -/
theorem exp_two_mul (x : R) : exp (2 * x) = exp x * exp x := by
  rw [← exp_add, show x + x = 2 * x by grind]

/-- The exponential of `4x` is the fourth power of the exponential of `x`. -/
theorem exp_four_mul (x : R) : exp (4 * x) = (exp x * exp x) * (exp x * exp x) := by
  rw [show (4 : R) * x = 2 * (2 * x) by grind, exp_two_mul, exp_two_mul]

/-- The hyperbolic cosine is even. -/
theorem cosh_neg (x : R) : cosh (-x) = cosh x := by
  unfold cosh; rw [show - -x = x by grind]; grind

/-- The hyperbolic cosine is positive. -/
theorem cosh_pos (x : R) : 0 < cosh x := by
  have h1 := exp_pos x
  have h2 := exp_pos (-x)
  unfold cosh; grind

/-- The squares of the hyperbolic cosine and sine differ by 1. -/
theorem cosh_sq_sub_sinh_sq (x : R) : cosh x * cosh x - sinh x * sinh x = 1 := by
  have h := exp_mul_neg x
  unfold cosh sinh
  generalize exp x = a at *
  generalize exp (-x) = b at *
  grind

/-- The hyperbolic cosine of a doubled argument is `2 cosh² - 1`. -/
theorem cosh_two_mul (z : R) : cosh (2 * z) = 2 * (cosh z * cosh z) - 1 := by
  have h := exp_mul_neg z
  unfold cosh
  rw [show -(2 * z) = 2 * -z by grind, exp_two_mul, exp_two_mul]
  generalize exp z = a at *
  generalize exp (-z) = b at *
  grind

/-- The hyperbolic sine of a doubled argument is `2 sinh cosh`. -/
theorem sinh_two_mul (z : R) : sinh (2 * z) = 2 * sinh z * cosh z := by
  unfold cosh sinh
  rw [show -(2 * z) = 2 * -z by grind, exp_two_mul, exp_two_mul]
  grind

/-- The hyperbolic sine of a nonnegative number is nonnegative. -/
theorem sinh_nonneg {y : R} (h_nonneg : 0 ≤ y) : 0 ≤ sinh y := by
  have h := exp_mono (show -y ≤ y by grind)
  unfold sinh; grind

/-! ### Small arguments -/

/-- For `y ≤ 1/2`, the hyperbolic sine of `y` is at most `y (1 + y)`. -/
theorem sinh_small {y : R} (hy2 : y ≤ 1 / 2) : sinh y ≤ y * (1 + y) := by
  have h1 := one_add_le_exp (-y)
  have h2 := exp_mul_neg y
  have h3 : exp y * (1 - y) ≤ 1 := by
    have := OrderedRing.mul_le_mul_of_nonneg_left h1 (show 0 ≤ exp y by have := exp_pos y; grind)
    grind
  have h5 : 1 ≤ (1 + y + 2 * (y * y)) * (1 - y) := by
    have := OrderedRing.mul_nonneg (mul_self_nonneg y) (show 0 ≤ 1 - 2 * y by grind)
    grind
  have h7 : exp y ≤ 1 + y + 2 * (y * y) := by
    apply Classical.byContradiction; intro hn
    have := OrderedRing.mul_lt_mul_of_pos_left (show 1 + y + 2 * (y * y) < exp y by grind) (show 0 < 1 - y by grind)
    grind
  unfold sinh; grind

/-- For `0 ≤ y ≤ 1/2`, the hyperbolic cosine of `2y` is at most `exp (2 (y (1 + y))²)`. -/
theorem cosh_small {y : R} (hy : 0 ≤ y) (hy2 : y ≤ 1 / 2) :
    cosh (2 * y) ≤ exp (2 * ((y * (1 + y)) * (y * (1 + y)))) := by
  have h0 := sinh_nonneg hy
  have h1 := sinh_small hy2
  have h1' := mul_le_mul' h1 h1 h0 (show 0 ≤ y * (1 + y) by grind)
  have h2 := cosh_sq_sub_sinh_sq y
  have h3 := one_add_le_exp (2 * ((y * (1 + y)) * (y * (1 + y))))
  rw [cosh_two_mul]
  grind

/-! ### Doubling -/

/-- If `cosh z ≤ exp s`, then `cosh 2z ≤ exp 4s`. -/
theorem cosh_double {z s : R} (hz : cosh z ≤ exp s) : cosh (2 * z) ≤ exp (4 * s) := by
  have h0 := cosh_pos z
  have h1 := mul_le_mul' hz hz (by grind) (show 0 ≤ exp s by have := exp_pos s; grind)
  have h2 := mul_le_mul' h1 h1 (mul_self_nonneg _) (mul_self_nonneg (exp s))
  have h3 := mul_self_nonneg (cosh z * cosh z - 1)
  rw [exp_four_mul, cosh_two_mul]
  grind

/-- If `cosh z ≤ exp s`, then `cosh (2ⁿ z) ≤ exp (4ⁿ s)`. -/
theorem cosh_double_pow {z s : R} (hz : cosh z ≤ exp s) (n : Nat) : cosh (2 ^ n * z) ≤ exp (4 ^ n * s) := by
  induction n with
  | zero => rw [Semiring.pow_zero, Semiring.pow_zero, Semiring.one_mul, Semiring.one_mul]; exact hz
  | succ n ih =>
    have h1 := cosh_double ih
    rw [show (2 : R) ^ (n + 1) * z = 2 * (2 ^ n * z) by grind, show (4 : R) ^ (n + 1) * s = 4 * (4 ^ n * s) by grind]
    exact h1

/-- A factor `exp t` with arbitrarily small `t > 0` may be dropped. -/
theorem le_of_forall_le_mul_exp {a b : R} (hb : 0 ≤ b) (hab : ∀ t : R, 0 < t → a ≤ b * exp t) : a ≤ b := by
  apply Classical.byContradiction; intro hn
  have h01 := OrderedRing.zero_lt_one (R := R)
  have ha : 0 < a := by grind
  have hw := mul_inv_self ha
  have hw0 := inv_pos ha
  generalize a⁻¹ = w at *
  obtain ⟨t, ht, h1, h2⟩ : ∃ t : R, 0 < t ∧ a * t = (a - b) / 2 ∧ t < 1 := by
    have h1 := OrderedRing.mul_pos (show 0 < a - b by grind) hw0
    have h2 := OrderedRing.mul_nonneg hb (show 0 ≤ w by grind)
    exact ⟨(a - b) * w / 2, by grind, by grind, by grind⟩
  have h3 := hab t ht
  have h4 := one_add_le_exp (-t)
  have h5 := exp_mul_neg t
  have h6 : exp t * (1 - t) ≤ 1 := by
    have := OrderedRing.mul_le_mul_of_nonneg_left h4 (show 0 ≤ exp t by have := exp_pos t; grind)
    grind
  have h7 := OrderedRing.mul_le_mul_of_nonneg_right h3 (show 0 ≤ 1 - t by grind)
  have h8 := OrderedRing.mul_le_mul_of_nonneg_left h6 hb
  generalize exp t = e at *
  grind

variable [Archimedean R]

/-- Halving `x` often enough makes it as small as wanted: `x = 2ⁿ · 2y` with `y ≤ 1/2` and `K · y ≤ t`. -/
theorem exists_small {x K t : R} (hx : 0 ≤ x) (hK : 0 ≤ K) (ht : 0 < t) :
    ∃ (n : Nat) (y : R), 0 ≤ y ∧ y ≤ 1 / 2 ∧ K * y ≤ t ∧ x = 2 ^ n * (2 * y) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hv0 := inv_pos ht
  have hv := mul_inv_self ht
  generalize t⁻¹ = v at *
  obtain ⟨n, hn⟩ := Archimedean.exists_nat_ge (x + K * x * v)
  have hn2 : x + K * x * v ≤ 2 ^ n := by have := natCast_le_two_pow (R := R) n; grind
  have hw0 := inv_pos (pow_two_pos (R := R) n)
  have hw := mul_inv_self (pow_two_pos (R := R) n)
  generalize ((2 : R) ^ n)⁻¹ = w at *
  generalize hP : (2 : R) ^ n = P at *
  have h1 : 0 ≤ x * w := OrderedRing.mul_nonneg hx (by grind)
  have hKx : 0 ≤ K * x := OrderedRing.mul_nonneg hK hx
  have hKxv : 0 ≤ K * x * v := OrderedRing.mul_nonneg hKx (by grind)
  refine ⟨n, x * w / 2, by grind, ?_, ?_, ?_⟩
  · have := OrderedRing.mul_le_mul_of_nonneg_right (show x ≤ P by grind) (show 0 ≤ w by grind)
    grind
  · -- K x ≤ t P, from K x v ≤ P
    have h2 := OrderedRing.mul_le_mul_of_nonneg_left (show K * x * v ≤ P by grind) (show 0 ≤ t by grind)
    have h3 : K * x ≤ t * P := by
      have e : t * (K * x * v) = K * x * (t * v) := by grind
      rw [e, hv, Semiring.mul_one] at h2; exact h2
    have h4 := OrderedRing.mul_le_mul_of_nonneg_right h3 (show 0 ≤ w by grind)
    have e : t * P * w = t := by rw [Semiring.mul_assoc, hw, Semiring.mul_one]
    have h5 : 0 ≤ K * (x * w) := OrderedRing.mul_nonneg hK h1
    rw [e] at h4
    grind
  · rw [hP]
    have e : P * (2 * (x * w / 2)) = x * (P * w) := by grind
    rw [e, hw, Semiring.mul_one]

/-- The hyperbolic cosine of `x` is at most `exp (x²/2)`. -/
theorem cosh_le_exp_half_sq (x : R) : cosh x ≤ exp (x * x / 2) := by
  have main : ∀ x : R, 0 ≤ x → cosh x ≤ exp (x * x / 2) := fun x hx => by
    refine le_of_forall_le_mul_exp (by have := exp_pos (x * x / 2); grind) fun t ht => ?_
    obtain ⟨n, y, hy0, hy1, hyt, hxy⟩ := exists_small hx (K := 3 * (x * x) / 2) (by have := mul_self_nonneg x; grind) ht
    have h1 := cosh_double_pow (cosh_small hy0 hy1) n
    rw [← hxy, four_pow_eq] at h1
    rw [← exp_add]
    have h2 : (1 + y) * (1 + y) ≤ 1 + 3 * y := by
      have := OrderedRing.mul_le_mul_of_nonneg_left hy1 hy0
      grind
    have h3 := OrderedRing.mul_le_mul_of_nonneg_left h2 (show 0 ≤ x * x / 2 by have := mul_self_nonneg x; grind)
    have e1 : (2 ^ n * 2 ^ n : R) * (2 * ((y * (1 + y)) * (y * (1 + y)))) = x * x / 2 * ((1 + y) * (1 + y)) := by
      rw [hxy]; grind
    rw [e1] at h1
    have h4 := exp_mono (show x * x / 2 * ((1 + y) * (1 + y)) ≤ x * x / 2 + t by grind)
    grind
  have h01 := OrderedRing.zero_lt_one (R := R)
  by_cases hx : 0 ≤ x
  · exact main x hx
  · have h1 := main (-x) (by grind)
    rw [cosh_neg, show -x * -x = x * x by grind] at h1
    exact h1

/-- If `sinh y ≤ y exp s`, then the bound doubles up to `sinh (2ⁿ y) ≤ 2ⁿ y exp (s + y² (4ⁿ - 1) / 6)`. -/
theorem sinh_double_pow {y s : R} (hy : 0 ≤ y) (hs : sinh y ≤ y * exp s) (n : Nat) :
    sinh (2 ^ n * y) ≤ 2 ^ n * y * exp (s + y * y * (4 ^ n - 1) / 6) := by
  induction n with
  | zero =>
    rw [Semiring.pow_zero, Semiring.pow_zero, Semiring.one_mul, show s + y * y * (1 - 1) / 6 = s by grind]
    exact hs
  | succ n ih =>
    have h0 : 0 ≤ 2 ^ n * y := OrderedRing.mul_nonneg (by have := pow_two_pos (R := R) n; grind) hy
    have h1 := cosh_le_exp_half_sq (2 ^ n * y)
    have h2 := mul_le_mul' ih h1 (by have := cosh_pos (2 ^ n * y); grind)
      (OrderedRing.mul_nonneg h0 (by have := exp_pos (s + y * y * (4 ^ n - 1) / 6); grind))
    have e4 := four_pow_eq (R := R) n
    have h3 : s + y * y * (4 ^ n - 1) / 6 + 2 ^ n * y * (2 ^ n * y) / 2 = s + y * y * (4 ^ (n + 1) - 1) / 6 := by
      rw [Semiring.pow_succ, e4]; grind
    rw [Semiring.mul_assoc, ← exp_add, h3] at h2
    rw [show (2 : R) ^ (n + 1) * y = 2 * (2 ^ n * y) by grind, sinh_two_mul]
    grind

/-- For `x ≥ 0`, the hyperbolic sine of `x` is at most `x · exp (x²/6)`. -/
theorem sinh_le {x : R} (h_nonneg : 0 ≤ x) : sinh x ≤ x * exp (x * x / 6) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  refine le_of_forall_le_mul_exp
    (OrderedRing.mul_nonneg h_nonneg (by have := exp_pos (x * x / 6); grind)) fun t ht => ?_
  obtain ⟨n, y, hy0, hy1, hyt, hxy⟩ := exists_small h_nonneg (K := 1) (by grind) ht
  have h1 : sinh y ≤ y * exp y := by
    have h2 := sinh_small hy1
    have h3 := OrderedRing.mul_le_mul_of_nonneg_left (one_add_le_exp y) hy0
    grind
  have h2 := sinh_double_pow hy0 h1 (n + 1)
  have e1 : (2 : R) ^ (n + 1) * y = x := by rw [hxy]; grind
  have e2 : y * y * (4 : R) ^ (n + 1) = x * x := by rw [← e1, four_pow_eq]; grind
  rw [e1] at h2
  rw [Semiring.mul_assoc, ← exp_add]
  have h3 := exp_mono (show y + y * y * (4 ^ (n + 1) - 1) / 6 ≤ x * x / 6 + t by
    have := mul_self_nonneg y; grind)
  have h4 := OrderedRing.mul_le_mul_of_nonneg_left h3 h_nonneg
  grind

end WitCert.Core
