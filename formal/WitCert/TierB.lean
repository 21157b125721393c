import WitCert.Instance

/-!
# What a served request is promised, over ℝ

The compositions for keys served from dithered codes. `r` and `s` hold what the request is, `m` what the kernel computed in outcome `k` of
the dither; the conclusions speak of the share of outcomes in which some cell's total variation exceeds its reported meter.

What a kernel must discharge, by name: `h_round` (codes are nearest integers, up to the slack), `h_noclip` (no code is clipped), `h_inj` and
`h_coord` (every channel of a token has a dither of its own), `h_arith` (the error of the logit arithmetic), `h_radius`, `h_bound` (the
bounds that enter the meter are at least radius plus bias plus arithmetic), `h_acert`, `h_max` (the reported accumulators are rounded up),
`h_cap` (the soft-cap is 1-Lipschitz). The caller chooses the budget in `h_delta`. In `tierB_adaptive_sound`, `h_fresh` replaces the
independence of the queries.
-/

open Finset

namespace WitCert

/-- The non-adaptive guarantee: over all outcomes of the dither, the share of those in which the total variation between exact and served
attention exceeds the reported meter in any cell of the request is at most `δ_req`. Queries, keys and scales do not depend on the dither. -/
theorem tierB_request_sound (r : Core.Request ℝ) (m : Core.Served ℝ) {δ_req : ℝ}
    (radius : ℕ → ℕ → ℕ → ℕ → ℝ) (ell : ℕ → ℕ → ℕ → ℝ)
    (h_tokens : ∀ l h t, r.Cell l h t → 0 < r.tokens l h t)
    (h_sm : 0 ≤ r.smScale)
    (h_scale : ∀ l g i c, r.Seen l g i → c < r.dim → 0 ≤ r.scale l g i c)
    (h_round : ∀ l g i c j, r.Seen l g i → c < r.dim → j < 2 ^ r.bits → r.outlier l g c = false → 0 < r.scale l g i c →
      |(r.code l g i c j : ℝ) - (r.key l g i c / r.scale l g i c + Core.grid (2 ^ r.bits) j)| ≤ 1 / 2 + r.slack)
    (h_slack : 0 ≤ r.slack ∧ 2 * ((2 ^ r.bits : ℕ) : ℝ) * r.slack < 1)
    (h_noclip : ∀ l g i c, r.Seen l g i → c < r.dim → r.outlier l g c = false →
      |r.key l g i c| ≤ ((r.limit : ℝ) - 1 / 2) * r.scale l g i c)
    (h_coord : ∀ l g i c, r.Seen l g i → c < r.dim → r.coord l g i c < r.coords)
    (h_inj : ∀ l g i c c', r.Seen l g i → c < r.dim → c' < r.dim → r.coord l g i c = r.coord l g i c' → c = c')
    (h_cap : ∀ x y, |r.cap x - r.cap y| ≤ |x - y|)
    (h_arith : ∀ k l h t i, k < Core.outcomes r.bits r.coords → r.Cell l h t → i < r.tokens l h t →
      |m.logit k l h t i - r.cap (r.servedDot k l h t i)| ≤ m.arith k l h t i)
    (h_budget : 0 ≤ δ_req)
    (h_delta : ∀ l h t, r.Cell l h t →
      2 * (r.tokens l h t : ℝ) * Real.exp (-ell l h t) ≤ δ_req / ((r.layers * r.heads * r.steps : ℕ) : ℝ))
    (h_radius : ∀ l h t i, r.Cell l h t → i < r.tokens l h t →
      0 ≤ radius l h t i ∧ 2 * r.varSq l h t i * ell l h t ≤ radius l h t i ^ 2)
    (h_bound : ∀ k l h t i, k < Core.outcomes r.bits r.coords → r.Cell l h t → i < r.tokens l h t →
      radius l h t i + r.bias l h t i + m.arith k l h t i ≤ m.bound k l h t i)
    (h_acert : ∀ k l h t A, k < Core.outcomes r.bits r.coords → r.Cell l h t → m.A_hat k l h t = some A →
      ∑ i ∈ range (r.tokens l h t), r.servedWeights m k l h t i * Real.exp (m.bound k l h t i) ≤ A)
    (h_max : ∀ k l h t C, k < Core.outcomes r.bits r.coords → r.Cell l h t → m.C_hat k l h t = some C →
      ∀ i, i < r.tokens l h t → m.bound k l h t i ≤ C) :
    Core.share (fun k => ∃ l h t, r.Cell l h t ∧ m.cellMeter k l h t < r.cellTV m k l h t) (Core.outcomes r.bits r.coords)
      ≤ δ_req :=
  Core.tierB_request_sound r m radius ell h_tokens h_sm h_scale
    (fun l g i c j h1 h2 h3 h4 h5 => by rw [core_abs]; exact h_round l g i c j h1 h2 h3 h4 h5) h_slack
    (fun l g i c h1 h2 h3 => by rw [core_abs]; exact h_noclip l g i c h1 h2 h3) h_coord h_inj
    (fun x y => by rw [core_abs, core_abs]; exact h_cap x y)
    (fun k l h t i h1 h2 h3 => by rw [core_abs]; exact h_arith k l h t i h1 h2 h3) h_budget h_delta h_radius h_bound
    (fun k l h t A h1 h2 h3 => by rw [core_acert]; exact h_acert k l h t A h1 h2 h3) h_max

/-- The deterministic guarantee: with the radius `√(3d) ς` in its bounds, the meter is at least the total variation in every outcome `k` of
the dither and for every query: `r` may be chosen after the outcome is known. -/
theorem tierB_adaptive_det_sound (r : Core.Request ℝ) (m : Core.Served ℝ) (radius : ℕ → ℕ → ℕ → ℕ → ℝ) (k : ℕ)
    (h_tokens : ∀ l h t, r.Cell l h t → 0 < r.tokens l h t)
    (h_scale : ∀ l g i c, r.Seen l g i → c < r.dim → 0 ≤ r.scale l g i c)
    (h_round : ∀ l g i c j, r.Seen l g i → c < r.dim → j < 2 ^ r.bits → r.outlier l g c = false → 0 < r.scale l g i c →
      |(r.code l g i c j : ℝ) - (r.key l g i c / r.scale l g i c + Core.grid (2 ^ r.bits) j)| ≤ 1 / 2 + r.slack)
    (h_slack : 0 ≤ r.slack ∧ 2 * ((2 ^ r.bits : ℕ) : ℝ) * r.slack < 1)
    (h_noclip : ∀ l g i c, r.Seen l g i → c < r.dim → r.outlier l g c = false →
      |r.key l g i c| ≤ ((r.limit : ℝ) - 1 / 2) * r.scale l g i c)
    (h_cap : ∀ x y, |r.cap x - r.cap y| ≤ |x - y|)
    (h_arith : ∀ l h t i, r.Cell l h t → i < r.tokens l h t →
      |m.logit k l h t i - r.cap (r.servedDot k l h t i)| ≤ m.arith k l h t i)
    (h_radius : ∀ l h t i, r.Cell l h t → i < r.tokens l h t → 0 ≤ radius l h t i ∧
      3 * (r.dim : ℝ) * (1 + 2 * r.slack) ^ 2 * r.varSq l h t i ≤ radius l h t i ^ 2)
    (h_bound : ∀ l h t i, r.Cell l h t → i < r.tokens l h t → radius l h t i + m.arith k l h t i ≤ m.bound k l h t i)
    (h_acert : ∀ l h t A, r.Cell l h t → m.A_hat k l h t = some A →
      ∑ i ∈ range (r.tokens l h t), r.servedWeights m k l h t i * Real.exp (m.bound k l h t i) ≤ A)
    (h_max : ∀ l h t C, r.Cell l h t → m.C_hat k l h t = some C → ∀ i, i < r.tokens l h t → m.bound k l h t i ≤ C) :
    ∀ l h t, r.Cell l h t → r.cellTV m k l h t ≤ m.cellMeter k l h t :=
  Core.tierB_adaptive_det_sound r m radius k h_tokens h_scale
    (fun l g i c j h1 h2 h3 h4 h5 => by rw [core_abs]; exact h_round l g i c j h1 h2 h3 h4 h5) h_slack
    (fun l g i c h1 h2 h3 => by rw [core_abs]; exact h_noclip l g i c h1 h2 h3)
    (fun x y => by rw [core_abs, core_abs]; exact h_cap x y)
    (fun l h t i h1 h2 => by rw [core_abs]; exact h_arith l h t i h1 h2) h_radius h_bound
    (fun l h t A h1 h2 => by rw [core_acert]; exact h_acert l h t A h1 h2) h_max

/-- The adaptive guarantee, free-running decoding: over all outcomes of the dither, the share of those in which the total variation
between exact and served attention exceeds the reported meter in any cell is at most `δ_req`. Queries, keys, scales and which tokens a cell
sees may depend on the dither; only the dither of each stored token must be fresh (`h_fresh`). -/
theorem tierB_adaptive_sound (s : Core.Generation ℝ) (m : Core.Served ℝ) {δ_req w ell : ℝ}
    (radius : ℕ → ℕ → ℕ → ℕ → ℕ → ℝ)
    (h_tokens : ∀ k l h t, (s.at k).Cell l h t → 0 < s.tokens k l h t)
    (h_seen : ∀ k l h t i, (s.at k).Cell l h t → i < s.tokens k l h t → s.Stored l (s.kvHead h) (s.slot k l h t i))
    (h_sm : 0 ≤ s.smScale)
    (h_scale : ∀ k l g i c, s.Stored l g i → c < s.dim → 0 ≤ s.scale k l g i c)
    (h_round : ∀ k l g i c j, s.Stored l g i → c < s.dim → j < 2 ^ s.bits → s.outlier l g c = false → 0 < s.scale k l g i c →
      |(s.code k l g i c j : ℝ) - (s.key k l g i c / s.scale k l g i c + Core.grid (2 ^ s.bits) j)| ≤ 1 / 2 + s.slack)
    (h_slack : 0 ≤ s.slack ∧ 2 * ((2 ^ s.bits : ℕ) : ℝ) * s.slack < 1)
    (h_noclip : ∀ k l g i c, s.Stored l g i → c < s.dim → s.outlier l g c = false →
      |s.key k l g i c| ≤ ((s.limit : ℝ) - 1 / 2) * s.scale k l g i c)
    (h_coord : ∀ l g i c, s.Stored l g i → c < s.dim → s.coord l g i c < s.coords)
    (h_inj : ∀ l g i c c', s.Stored l g i → c < s.dim → c' < s.dim → s.coord l g i c = s.coord l g i c' → c = c')
    (h_fresh : ∀ l g i, s.Stored l g i → s.Fresh l g i)
    (h_cap : ∀ x y, |s.cap x - s.cap y| ≤ |x - y|)
    (h_arith : ∀ k l h t i, k < Core.outcomes s.bits s.coords → (s.at k).Cell l h t → i < s.tokens k l h t →
      |m.logit k l h t i - s.cap ((s.at k).servedDot k l h t i)| ≤ m.arith k l h t i)
    (h_delta : ((s.layers * s.kvHeads * s.stored : ℕ) : ℝ) * Real.exp (-ell) ≤ δ_req)
    (h_kappa : 0 ≤ w ∧ 9 * (s.dim : ℝ) * ell / 2 ≤ w ^ 2)
    (h_radius : ∀ k l h t i, k < Core.outcomes s.bits s.coords → (s.at k).Cell l h t → i < s.tokens k l h t →
      0 ≤ radius k l h t i ∧ ((s.dim : ℝ) + w) * (s.at k).varSq l h t i ≤ radius k l h t i ^ 2)
    (h_bound : ∀ k l h t i, k < Core.outcomes s.bits s.coords → (s.at k).Cell l h t → i < s.tokens k l h t →
      radius k l h t i + (s.at k).bias l h t i + m.arith k l h t i ≤ m.bound k l h t i)
    (h_acert : ∀ k l h t A, k < Core.outcomes s.bits s.coords → (s.at k).Cell l h t → m.A_hat k l h t = some A →
      ∑ i ∈ range (s.tokens k l h t), (s.at k).servedWeights m k l h t i * Real.exp (m.bound k l h t i) ≤ A)
    (h_max : ∀ k l h t C, k < Core.outcomes s.bits s.coords → (s.at k).Cell l h t → m.C_hat k l h t = some C →
      ∀ i, i < s.tokens k l h t → m.bound k l h t i ≤ C) :
    Core.share (fun k => ∃ l h t, (s.at k).Cell l h t ∧ m.cellMeter k l h t < (s.at k).cellTV m k l h t)
      (Core.outcomes s.bits s.coords) ≤ δ_req :=
  Core.tierB_adaptive_sound s m (w := w) (ell := ell) radius h_tokens h_seen h_sm h_scale
    (fun k l g i c j h1 h2 h3 h4 h5 => by rw [core_abs]; exact h_round k l g i c j h1 h2 h3 h4 h5) h_slack
    (fun k l g i c h1 h2 h3 => by rw [core_abs]; exact h_noclip k l g i c h1 h2 h3) h_coord h_inj h_fresh
    (fun x y => by rw [core_abs, core_abs]; exact h_cap x y)
    (fun k l h t i h1 h2 h3 => by rw [core_abs]; exact h_arith k l h t i h1 h2 h3) h_delta h_kappa h_radius h_bound
    (fun k l h t A h1 h2 h3 => by rw [core_acert]; exact h_acert k l h t A h1 h2 h3) h_max

end WitCert
