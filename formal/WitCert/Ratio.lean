import WitCert.Instance

/-!
# Rounding: computed sums and dot products, over ℝ

`ratio_envelope`: the computed quotient of two sums of positive terms, inflated by a constant, is at least the true quotient, so the
reported accumulator is an upper bound on the real one. `arith_fold`: rounding of a dot product is paid for at write time, in the witness.
-/

open Finset

namespace WitCert

/-- The computed quotient of two sums of positive terms, times `(1 + δ)/(1 - δ)`, is at least the true quotient. Terms have relative
error at most `δ₁`, sums at most `δ₂`, and `δ₁ + δ₂ + δ₁ δ₂ ≤ δ < 1`. -/
theorem ratio_envelope {n : ℕ} {num den num' den' : ℕ → ℝ} {N' D' δ₁ δ₂ δ : ℝ}
    (h_delta_one : 0 ≤ δ₁) (h_delta_two : 0 ≤ δ₂) (h_delta : δ₁ + δ₂ + δ₁ * δ₂ ≤ δ) (h_delta_lt : δ < 1)
    (h_num : ∀ t, t < n → 0 ≤ num t) (h_den : 0 < ∑ t ∈ range n, den t)
    (h_num_term : ∀ t, t < n → |num' t - num t| ≤ δ₁ * num t)
    (h_den_term : ∀ t, t < n → |den' t - den t| ≤ δ₁ * den t)
    (h_num_sum : |N' - ∑ t ∈ range n, num' t| ≤ δ₂ * ∑ t ∈ range n, num' t)
    (h_den_sum : |D' - ∑ t ∈ range n, den' t| ≤ δ₂ * ∑ t ∈ range n, den' t) :
    0 < D' ∧ (∑ t ∈ range n, num t) / (∑ t ∈ range n, den t) ≤ N' / D' * ((1 + δ) / (1 - δ)) := by
  have h := Core.ratio_envelope (n := n) (num := num) (den := den) (num' := num') (den' := den') (N' := N') (D' := D')
    h_delta_one h_delta_two h_delta h_delta_lt h_num (by rw [core_sum]; exact h_den)
    (fun t ht => by rw [core_abs]; exact h_num_term t ht) (fun t ht => by rw [core_abs]; exact h_den_term t ht)
    (by rw [core_abs, core_sum]; exact h_num_sum) (by rw [core_abs, core_sum]; exact h_den_sum)
  rw [core_sum, core_sum] at h
  exact h

/-- The computed accumulator, times `(1 + δ)/(1 - δ)`, is at least the true `A` of the served attention, whose logits are `l`. -/
theorem acert_envelope {n : ℕ} {l c num' den' : ℕ → ℝ} {N' D' δ₁ δ₂ δ : ℝ} (h_tokens : 0 < n)
    (h_delta_one : 0 ≤ δ₁) (h_delta_two : 0 ≤ δ₂) (h_delta : δ₁ + δ₂ + δ₁ * δ₂ ≤ δ) (h_delta_lt : δ < 1)
    (h_num_term : ∀ t, t < n → |num' t - Real.exp (l t) * Real.exp (c t)| ≤ δ₁ * (Real.exp (l t) * Real.exp (c t)))
    (h_den_term : ∀ t, t < n → |den' t - Real.exp (l t)| ≤ δ₁ * Real.exp (l t))
    (h_num_sum : |N' - ∑ t ∈ range n, num' t| ≤ δ₂ * ∑ t ∈ range n, num' t)
    (h_den_sum : |D' - ∑ t ∈ range n, den' t| ≤ δ₂ * ∑ t ∈ range n, den' t) :
    ∑ t ∈ range n, Real.exp (l t) / (∑ s ∈ range n, Real.exp (l s)) * Real.exp (c t) ≤ N' / D' * ((1 + δ) / (1 - δ)) := by
  have h := Core.acert_envelope (n := n) (l := l) (c := c) (num' := num') (den' := den') (N' := N') (D' := D') h_tokens
    h_delta_one h_delta_two h_delta h_delta_lt
    (fun t ht => by rw [core_abs]; exact h_num_term t ht) (fun t ht => by rw [core_abs]; exact h_den_term t ht)
    (by rw [core_abs, core_sum]; exact h_num_sum) (by rw [core_abs, core_sum]; exact h_den_sum)
  rw [core_acert] at h
  unfold Core.softmax at h
  simp only [core_sum, core_exp] at h
  exact h

/-- Core's band sums of squares. -/
theorem core_bandSq (x : ℕ → ℝ) (band : ℕ → ℕ) (b d : ℕ) :
    Core.bandSq x band b d = ∑ i ∈ range d, (if band i = b then x i ^ 2 else 0) := core_sum _ d

/-- Rounding of the dot product is paid at write time: if the computed value is within `γ Σ|q_c k̂_c|` of `q · k̂`, then the bound with
`w_b + γ ‖k̂_b‖` in place of `w_b` covers the residual and the arithmetic. -/
theorem arith_fold {d B : ℕ} {band : ℕ → ℕ} {q k k_hat nq w nk : ℕ → ℝ} {γ computed : ℝ} (h_band : ∀ i, i < d → band i < B)
    (h_gamma : 0 ≤ γ) (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_w : ∀ b, b < B → 0 ≤ w b) (h_nk : ∀ b, b < B → 0 ≤ nk b)
    (h_nq_sq : ∀ b, b < B → ∑ i ∈ range d, (if band i = b then q i ^ 2 else 0) ≤ nq b ^ 2)
    (h_w_sq : ∀ b, b < B → ∑ i ∈ range d, (if band i = b then (k_hat i - k i) ^ 2 else 0) ≤ w b ^ 2)
    (h_nk_sq : ∀ b, b < B → ∑ i ∈ range d, (if band i = b then k_hat i ^ 2 else 0) ≤ nk b ^ 2)
    (h_arith : |computed - ∑ i ∈ range d, q i * k_hat i| ≤ γ * ∑ i ∈ range d, |q i * k_hat i|) :
    |computed - ∑ i ∈ range d, q i * k i| ≤ ∑ b ∈ range B, nq b * (w b + γ * nk b) := by
  have h := Core.arith_fold (q := q) (k := k) (k_hat := k_hat) (nq := nq) (w := w) (nk := nk) (computed := computed)
    h_band h_gamma h_nq h_w h_nk (fun b hb => by rw [core_bandSq]; exact h_nq_sq b hb)
    (fun b hb => by rw [core_bandSq]; exact h_w_sq b hb) (fun b hb => by rw [core_bandSq]; exact h_nk_sq b hb)
    (by rw [core_abs, core_dot, core_sum]; simp only [core_abs]; exact h_arith)
  rw [core_abs, core_dot, core_sum] at h
  exact h

end WitCert
