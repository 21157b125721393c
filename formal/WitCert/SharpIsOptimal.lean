import Mathlib.Analysis.SpecialFunctions.Log.Basic
import WitCert.SharpOptimalExp

/-!
# The sharp bound is optimal

No smaller function of the accumulator `A` alone bounds total variation: two tokens come arbitrarily close to the sharp bound.
-/

namespace WitCert

/-- For every `A > 1` and `η > 0` some instance with accumulator `A` comes within `η` of the sharp bound. -/
theorem sharp_is_optimal {A η : ℝ} (hA : 1 < A) (hη : 0 < η) :
    ∃ pt ε c p : Bool → ℝ, (∀ t, 0 ≤ pt t) ∧ ∑ t, pt t = 1 ∧ (∀ t, |ε t| ≤ c t) ∧
      (∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) ∧ acert pt c = A ∧
      (if A ≤ 2 then 1 - 1 / A else A ^ 2 / (A ^ 2 + 4)) - η ≤ tv p pt :=
  sharp_is_optimal_of_log (fun x hx => ⟨Real.log x, Real.exp_log hx⟩) hA hη

end WitCert
