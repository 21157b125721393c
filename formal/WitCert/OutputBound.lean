import Mathlib.Analysis.Normed.Module.Basic
import WitCert.Repair

/-! # The bound on the output, in a real normed space -/

namespace WitCert

/-- `‖y - ŷ‖ ≤ 2 TV max ‖v t - v0‖ + ∑ pt ρ`, for any fixed `v0`. -/
theorem output_bound {ι : Type*} [Fintype ι] {E : Type*} [SeminormedAddCommGroup E] [NormedSpace ℝ E]
    (p pt : ι → ℝ) (v v' : ι → E) (v0 : E) (ρ : ι → ℝ) (B : ℝ)
    (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_eq : ∑ t, p t = ∑ t, pt t) (h_value : ∀ t, ‖v t - v0‖ ≤ B)
    (h_value_error : ∀ t, ‖v t - v' t‖ ≤ ρ t) :
    ‖∑ t, p t • v t - ∑ t, pt t • v' t‖ ≤ 2 * tv p pt * B + ∑ t, pt t * ρ t :=
  output_bound_of_norm (fun a x => by rw [norm_smul, Real.norm_eq_abs]) p pt v v' v0 ρ B h_nonneg h_sum_eq h_value h_value_error

end WitCert
