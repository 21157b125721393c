import WitCert.Instance

/-!
# A plausible bound that is false, over `Real.exp`

The formula `exp (2 c_max) / 2 * (E|c - c̄| + c̄ (exp c_max - 1))` does not bound total variation: two tokens refute it.
-/

open Finset

namespace WitCert

/-- The dispersion bound is false: on two tokens with `pt = (1/2, 1/2)`, `c = (1/10, 1/10)`, `ε = (1/10, -1/10)`, all hypotheses of the
sound bounds hold and total variation exceeds it. -/
theorem dispersion_bound_unsound :
    ∃ pt ε c p : ℕ → ℝ, (pt 0 = 1 / 2 ∧ pt 1 = 1 / 2) ∧ (c 0 = 1 / 10 ∧ c 1 = 1 / 10) ∧ (ε 0 = 1 / 10 ∧ ε 1 = -(1 / 10)) ∧
      (∀ t, t < 2 → 0 ≤ pt t) ∧ ∑ t ∈ range 2, pt t = 1 ∧ (∀ t, t < 2 → |ε t| ≤ c t) ∧
      (∀ t, t < 2 → p t = pt t * Real.exp (-ε t) / ∑ s ∈ range 2, pt s * Real.exp (-ε s)) ∧
      Real.exp (2 * (1 / 10)) / 2 * (∑ t ∈ range 2, pt t * |c t - ∑ s ∈ range 2, pt s * c s|
          + (∑ t ∈ range 2, pt t * c t) * (Real.exp (1 / 10) - 1))
        < (∑ t ∈ range 2, |p t - pt t|) / 2 := by
  obtain ⟨pt, ε, c, p, h1, h2, h3, h4, h5, h6, h7, h8⟩ := Core.dispersion_bound_unsound (R := ℝ)
  rw [core_sum] at h5
  rw [core_tv] at h8
  unfold Core.dispersionBound at h8
  simp only [core_sum, core_abs, core_exp] at h8
  refine ⟨pt, ε, c, p, h1, h2, h3, h4, h5, fun t ht => ?_, fun t ht => ?_, h8⟩
  · have h := h6 t ht
    rw [core_abs] at h
    exact h
  · have h := h7 t ht
    rw [core_znorm] at h
    exact h

end WitCert
