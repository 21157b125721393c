import Mathlib.Analysis.Complex.Exponential
import WitCert.Defs
import WitCert.SharpOptimal

/-!
# The sharp bound is optimal, with exponentials

The hypothesis `hlog` (positive numbers are exponentials) is `fun x hx => ⟨Real.log x, Real.exp_log hx⟩`, see
`WitCert.SharpIsOptimal`.
-/

namespace WitCert

/-- From weights to exponentials. -/
theorem exists_exp_of_weights (hlog : ∀ x : ℝ, 0 < x → ∃ u, Real.exp u = x) {A v : ℝ}
    (h : ∃ pt w y : Bool → ℝ, (∀ t, 0 ≤ pt t) ∧ ∑ t, pt t = 1 ∧ (∀ t, 0 < w t) ∧ (∀ t, 1 ≤ y t) ∧
      (∀ t, (y t)⁻¹ ≤ w t) ∧ (∀ t, w t ≤ y t) ∧ ∑ t, pt t * y t = A ∧
      v ≤ tv (fun t => pt t * w t / ∑ s, pt s * w s) pt) :
    ∃ pt ε c p : Bool → ℝ, (∀ t, 0 ≤ pt t) ∧ ∑ t, pt t = 1 ∧ (∀ t, |ε t| ≤ c t) ∧
      (∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) ∧ acert pt c = A ∧ v ≤ tv p pt := by
  obtain ⟨pt, w, y, hpt, hsum, hw, hy, h1, h2, hA, htv⟩ := h
  choose lw hlw using fun t => hlog (w t) (hw t)
  choose ly hly using fun t => hlog (y t) (lt_of_lt_of_le one_pos (hy t))
  have hn : ∀ t, Real.exp (-(-lw t)) = w t := fun t => by rw [neg_neg, hlw t]
  refine ⟨pt, fun t => -lw t, ly, fun t => pt t * w t / ∑ s, pt s * w s, hpt, hsum, fun t => ?_, fun t => ?_, ?_, htv⟩
  · rw [abs_le]
    constructor
    · show -ly t ≤ -lw t
      have h3 : lw t ≤ ly t := Real.exp_le_exp.1 (by rw [hlw, hly]; exact h2 t)
      linarith
    · show -lw t ≤ ly t
      have h3 : -ly t ≤ lw t := Real.exp_le_exp.1 (by rw [Real.exp_neg, hlw, hly]; exact h1 t)
      linarith
  · unfold znorm
    simp only [hn]
  · unfold acert
    simp only [hly]
    exact hA

/-- For every `A > 1` and `η > 0` some instance with accumulator `A` comes within `η` of the sharp bound. -/
theorem sharp_is_optimal_of_log (hlog : ∀ x : ℝ, 0 < x → ∃ u, Real.exp u = x) {A η : ℝ} (hA : 1 < A) (hη : 0 < η) :
    ∃ pt ε c p : Bool → ℝ, (∀ t, 0 ≤ pt t) ∧ ∑ t, pt t = 1 ∧ (∀ t, |ε t| ≤ c t) ∧
      (∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) ∧ acert pt c = A ∧
      (if A ≤ 2 then 1 - 1 / A else A ^ 2 / (A ^ 2 + 4)) - η ≤ tv p pt := by
  apply exists_exp_of_weights hlog
  split_ifs with h2
  · exact weights_sharp_small_optimal hA hη
  · exact weights_sharp_optimal (not_le.1 h2).le hη

end WitCert
