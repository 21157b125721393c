import Mathlib.Analysis.Complex.Exponential
import WitCert.Weights

/-!
# The quantities of a certificate, over `Real.exp`

`pt` is the distribution that the quantized attention used (`p̃`), `ε t` the logit error of token `t`, `c t` a bound on `|ε t|`.
`tv` itself is in `WitCert.Weights`.
-/

namespace WitCert

variable {ι : Type*} [Fintype ι]

/-- Normaliser of the exact distribution relative to `pt`: `∑ pt * exp (-ε)`. -/
noncomputable def znorm (pt ε : ι → ℝ) : ℝ := ∑ t, pt t * Real.exp (-ε t)

/-- The accumulator `A = ∑ pt * exp c`. -/
noncomputable def acert (pt c : ι → ℝ) : ℝ := ∑ t, pt t * Real.exp (c t)

/-- The accumulator `A⁻ = ∑ pt * exp (-c)`. -/
noncomputable def acertNeg (pt c : ι → ℝ) : ℝ := ∑ t, pt t * Real.exp (-c t)

/-- An error within `c` moves a weight `exp (-ε)` down to at least `1 / exp c`. -/
theorem exp_neg_le_of_abs_le {ε c : ℝ} (h : |ε| ≤ c) : (Real.exp c)⁻¹ ≤ Real.exp (-ε) := by
  rw [← Real.exp_neg]
  exact Real.exp_le_exp.2 (neg_le_neg (abs_le.1 h).2)

/-- An error within `c` moves a weight `exp (-ε)` up to at most `exp c`. -/
theorem exp_le_of_abs_le {ε c : ℝ} (h : |ε| ≤ c) : Real.exp (-ε) ≤ Real.exp c :=
  Real.exp_le_exp.2 (neg_le.1 (abs_le.1 h).1)

/-- The accumulator `A⁻` with inverses in place of exponentials of negatives. -/
theorem acertNeg_eq (pt c : ι → ℝ) : acertNeg pt c = ∑ t, pt t * (Real.exp (c t))⁻¹ :=
  Finset.sum_congr rfl fun t _ => by rw [Real.exp_neg]

/-- The normaliser of exact attention is positive. -/
theorem znorm_pos (pt ε : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1) : 0 < znorm pt ε :=
  weighted_pos pt _ h_nonneg h_sum_one fun t => Real.exp_pos (-ε t)

/-- The accumulator `A` is at least 1. -/
theorem one_le_acert (pt c : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1) (h_bound_nonneg : ∀ t, 0 ≤ c t) :
    1 ≤ acert pt c := by
  rw [← h_sum_one]
  exact Finset.sum_le_sum fun t _ => le_mul_of_one_le_right (h_nonneg t) (Real.one_le_exp (h_bound_nonneg t))

/-- The normaliser is at most the accumulator `A`. -/
theorem znorm_le_acert (pt ε c : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_bound : ∀ t, |ε t| ≤ c t) :
    znorm pt ε ≤ acert pt c :=
  Finset.sum_le_sum fun t _ => mul_le_mul_of_nonneg_left (exp_le_of_abs_le (h_bound t)) (h_nonneg t)

/-- The normaliser is at least the accumulator `A⁻`. -/
theorem acertNeg_le_znorm (pt ε c : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_bound : ∀ t, |ε t| ≤ c t) :
    acertNeg pt c ≤ znorm pt ε :=
  Finset.sum_le_sum fun t _ =>
    mul_le_mul_of_nonneg_left (Real.exp_le_exp.2 (neg_le_neg (abs_le.1 (h_bound t)).2)) (h_nonneg t)

end WitCert
