import WitCert.ForMathlib.SinhLe

/-!
# `cosh x ≤ exp (x²/2)` and `sinh x ≤ x exp (x²/6)`

The only analysis on which the tail bounds of the dither rest, for the functions of Mathlib.
-/

namespace WitCert

/-- The hyperbolic cosine of `x` is at most `exp (x²/2)`. -/
theorem cosh_le_exp_half_sq (x : ℝ) : Real.cosh x ≤ Real.exp (x ^ 2 / 2) := by
  rw [Real.cosh_eq]
  exact ForMathlib.isExp_exp.ch_le x

/-- The hyperbolic sine of a nonnegative number `x` is at most `x exp (x²/6)`. -/
theorem sinh_le {x : ℝ} (h_nonneg : 0 ≤ x) : Real.sinh x ≤ x * Real.exp (x ^ 2 / 6) := Real.sinh_le_mul_exp_sq_div_six h_nonneg

end WitCert
