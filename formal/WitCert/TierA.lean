import WitCert.Meter
import WitCert.Ratio

/-!
# From quantized keys to the meter, over ℝ

`tierA_sound`: with a stored witness for every token and band, the reported meter bounds total variation, for every query, adaptive or
not. What a kernel must discharge: `h_witness` (the stored value covers the residual and the arithmetic), `h_query_sq` (the query's band norms
are rounded up), `h_arith` (the dot-product constant `γ`), `h_token_bound`, `h_acert`, `h_max` (roundings go up), `h_lipschitz` (the soft-cap).
-/

open Finset

namespace WitCert

/-- Core's softmax. -/
theorem core_softmax (l : ℕ → ℝ) (n t : ℕ) : Core.softmax l n t = Real.exp (l t) / ∑ s ∈ range n, Real.exp (l s) := by
  show Real.exp (l t) / Core.sum (fun s => Real.exp (l s)) n = Real.exp (l t) / ∑ s ∈ range n, Real.exp (l s)
  rw [core_sum]

/-- Tier A, from quantized keys to the meter: total variation between exact and served attention is at most the reported meter, for every
query. Exact keys `k t`, served keys `k_hat t`, query `q`, on `d` channels in `B` bands; the kernel computed the dot products
`computed t`; `cap` is a 1-Lipschitz soft-cap, or nothing. -/
theorem tierA_sound {n d B : ℕ} {band : ℕ → ℕ} {q : ℕ → ℝ} {k k_hat nr nk w : ℕ → ℕ → ℝ} {wq computed c : ℕ → ℝ}
    {γ sm A_hat C_hat : ℝ} {cap : ℝ → ℝ}
    (h_tokens : 0 < n) (h_band : ∀ i, i < d → band i < B) (h_gamma : 0 ≤ γ) (h_scale : 0 ≤ sm)
    (h_lipschitz : ∀ x y : ℝ, |cap x - cap y| ≤ |x - y|)
    (h_query : ∀ b, b < B → 0 ≤ wq b)
    (h_query_sq : ∀ b, b < B → ∑ i ∈ range d, (if band i = b then q i ^ 2 else 0) ≤ wq b ^ 2)
    (h_residual : ∀ t, t < n → ∀ b, b < B →
      0 ≤ nr t b ∧ ∑ i ∈ range d, (if band i = b then (k_hat t i - k t i) ^ 2 else 0) ≤ nr t b ^ 2)
    (h_key : ∀ t, t < n → ∀ b, b < B → 0 ≤ nk t b ∧ ∑ i ∈ range d, (if band i = b then k_hat t i ^ 2 else 0) ≤ nk t b ^ 2)
    (h_witness : ∀ t, t < n → ∀ b, b < B → nr t b + γ * nk t b ≤ w t b)
    (h_arith : ∀ t, t < n → |computed t - ∑ i ∈ range d, q i * k_hat t i| ≤ γ * ∑ i ∈ range d, |q i * k_hat t i|)
    (h_token_bound : ∀ t, t < n → sm * ∑ b ∈ range B, wq b * w t b ≤ c t)
    (h_acert : ∑ t ∈ range n, Core.softmax (fun t => cap (sm * computed t)) n t * Real.exp (c t) ≤ A_hat)
    (h_max : ∀ t, t < n → c t ≤ C_hat) :
    (∑ t ∈ range n, |Core.softmax (fun t => cap (sm * ∑ i ∈ range d, q i * k t i)) n t
        - Core.softmax (fun t => cap (sm * computed t)) n t|) / 2 ≤ meter A_hat C_hat := by
  have h := Core.tierA_sound (n := n) (d := d) (B := B) (band := band) (q := q) (k := k) (k_hat := k_hat) (nr := nr) (nk := nk)
    (w := w) (wq := wq) (computed := computed) (c := c) (γ := γ) (sm := sm) (A_hat := A_hat) (C_hat := C_hat) (cap := cap)
    h_tokens h_band h_gamma h_scale (fun x y => by rw [core_abs, core_abs]; exact h_lipschitz x y) h_query
    (fun b hb => by rw [core_bandSq]; exact h_query_sq b hb)
    (fun t ht b hb => ⟨(h_residual t ht b hb).1, by rw [core_bandSq]; exact (h_residual t ht b hb).2⟩)
    (fun t ht b hb => ⟨(h_key t ht b hb).1, by rw [core_bandSq]; exact (h_key t ht b hb).2⟩) h_witness
    (fun t ht => by rw [core_abs, core_dot, core_sum]; simp only [core_abs]; exact h_arith t ht)
    (fun t ht => by rw [core_sum]; exact h_token_bound t ht) (by rw [core_acert]; exact h_acert) h_max
  rw [core_tv, core_meter] at h
  simp only [core_dot] at h
  exact h

end WitCert
