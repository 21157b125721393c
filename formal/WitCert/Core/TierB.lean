import WitCert.Core.Meter
import WitCert.Core.Ratio
import WitCert.Core.Request
import WitCert.Core.TokenTail
import WitCert.Core.Union

/-!
# What a request that is served from dithered codes is promised

`tierB_request_sound`: over all outcomes of the dither, outside a share `δ_req`, every cell of the request has total variation at most
the reported meter. This is the non-adaptive guarantee: queries, keys and scales do not depend on the dither.

`tierB_adaptive_det_sound`: with the larger radius `√(3d) ς` the same holds in every outcome, for every query, adaptive or not.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The step of an entry is nonnegative if the scales are. -/
theorem step_nonneg (r : Request R) {l g i c : Nat} (h_scale : 0 ≤ r.scale l g i c) : 0 ≤ r.step l g i c := by
  unfold Request.step; split <;> grind

/-- The law of one served key entry: its error runs over `s (g + θ)`. -/
theorem entry_law (r : Request R) {l g i c : Nat} (h_scale : 0 ≤ r.scale l g i c)
    (h_round : ∀ j, j < 2 ^ r.bits → r.outlier l g c = false → 0 < r.scale l g i c →
      abs ((r.code l g i c j : R) - (r.key l g i c / r.scale l g i c + grid (2 ^ r.bits) j)) ≤ 1 / 2 + r.slack)
    (h_slack : 0 ≤ r.slack ∧ 2 * ((2 ^ r.bits : Nat) : R) * r.slack < 1)
    (h_noclip : r.outlier l g c = false → abs (r.key l g i c) ≤ ((r.limit : R) - 1 / 2) * r.scale l g i c) :
    ∃ (t : Nat) (θ : R), t < 2 ^ r.bits ∧ abs θ ≤ 1 / (2 * ((2 ^ r.bits : Nat) : R)) + r.slack ∧
      ∀ j, j < 2 ^ r.bits →
        (if r.outlier l g c then r.key l g i c
          else dequantize (2 ^ r.bits) (r.scale l g i c) (clip r.limit (r.code l g i c j)) j) - r.key l g i c
        = r.step l g i c * (grid (2 ^ r.bits) (cyclicShift (2 ^ r.bits) t j) + θ) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hn := Nat.two_pow_pos r.bits
  have h_trivial : abs (0 : R) ≤ 1 / (2 * ((2 ^ r.bits : Nat) : R)) + r.slack := by
    have := div_pos h01 (show 0 < 2 * ((2 ^ r.bits : Nat) : R) by have := natCast_pos (R := R) hn; grind)
    rw [abs_zero]; grind
  unfold Request.step
  cases hout : r.outlier l g c with
  | true =>
    refine ⟨0, 0, hn, h_trivial, fun j _ => ?_⟩
    simp only [if_true]
    grind
  | false =>
    simp only [Bool.false_eq_true, if_false]
    by_cases hs : 0 < r.scale l g i c
    · have h_round' := fun j hj => h_round j hj hout hs
      obtain ⟨t, θ, ht, hθ, h⟩ := grid_dither_law_slack hn (r.code l g i c) hs h_slack.2 h_round'
      refine ⟨t, θ, ht, hθ, fun j hj => ?_⟩
      rw [clip_eq_self hj _ hs h_slack.2 (h_noclip hout) (h_round' j hj)]
      exact h j hj
    · have hs0 : r.scale l g i c = 0 := by grind
      have h0 := h_noclip hout
      rw [hs0] at h0
      refine ⟨0, 0, hn, h_trivial, fun j _ => ?_⟩
      have h1 := residual_of_scale_zero (n := 2 ^ r.bits) (clip r.limit (r.code l g i c j)) j h0
      unfold residual at h1
      rw [hs0, h1]; grind

/-- The served scaled dot product minus the exact one, as a sum over channels of entry errors. -/
theorem servedDot_sub (r : Request R) (k l h t i : Nat) :
    r.servedDot k l h t i - r.exactDot l h t i
      = sum (fun c => r.smScale * r.query l h t c * (r.servedKey k l (r.kvHead h) (r.slot l h t i) c
          - r.key l (r.kvHead h) (r.slot l h t i) c)) r.dim := by
  unfold Request.servedDot Request.exactDot
  rw [← sum_mul, ← sum_mul, ← sum_sub]
  exact sum_congr fun c _ => by grind

variable [Exp R]

/-- A cell whose logit errors are within its bounds has total variation at most its meter. -/
theorem cell_sound (r : Request R) (m : Served R) {k l h t : Nat} (h_tokens : 0 < r.tokens l h t)
    (h_error : ∀ i, i < r.tokens l h t → abs (m.logit k l h t i - r.cap (r.exactDot l h t i)) ≤ m.bound k l h t i)
    (h_acert : ∀ A, m.A_hat k l h t = some A → acert (r.servedWeights m k l h t) (m.bound k l h t) (r.tokens l h t) ≤ A)
    (h_max : ∀ C, m.C_hat k l h t = some C → ∀ i, i < r.tokens l h t → m.bound k l h t i ≤ C) :
    r.cellTV m k l h t ≤ m.cellMeter k l h t :=
  meter_sound_option (pt := r.servedWeights m k l h t) (p := r.exactWeights l h t)
    (ε := fun i => m.logit k l h t i - r.cap (r.exactDot l h t i)) (c := m.bound k l h t)
    (fun i _ => softmax_nonneg _ h_tokens i) (softmax_sum_one _ h_tokens) h_error h_acert h_max
    fun i _ => softmax_exact _ _ h_tokens i

/-- The errors of a token's logit: of the dot product, which the cap does not increase, and of the arithmetic. -/
theorem logit_error (r : Request R) (m : Served R) {k l h t i : Nat} {u : R}
    (h_cap : ∀ x y, abs (r.cap x - r.cap y) ≤ abs (x - y))
    (h_arith : abs (m.logit k l h t i - r.cap (r.servedDot k l h t i)) ≤ m.arith k l h t i)
    (h_bound : u + m.arith k l h t i ≤ m.bound k l h t i)
    (h_dot : abs (r.servedDot k l h t i - r.exactDot l h t i) ≤ u) :
    abs (m.logit k l h t i - r.cap (r.exactDot l h t i)) ≤ m.bound k l h t i := by
  have h1 := h_cap (r.servedDot k l h t i) (r.exactDot l h t i)
  have h2 := abs_add_le (m.logit k l h t i - r.cap (r.servedDot k l h t i))
    (r.cap (r.servedDot k l h t i) - r.cap (r.exactDot l h t i))
  have e : m.logit k l h t i - r.cap (r.servedDot k l h t i) + (r.cap (r.servedDot k l h t i) - r.cap (r.exactDot l h t i))
      = m.logit k l h t i - r.cap (r.exactDot l h t i) := by grind
  rw [e] at h2
  grind

/-- The deterministic guarantee for keys served from dithered codes: with the radius `√(3d) ς` in its bounds, the meter is at least the
total variation in every outcome of the dither and for every query, so also for queries that depend on the dither: `r` may be
chosen after the outcome `k` is known. -/
theorem tierB_adaptive_det_sound (r : Request R) (m : Served R) (radius : Nat → Nat → Nat → Nat → R) (k : Nat)
    (h_tokens : ∀ l h t, r.Cell l h t → 0 < r.tokens l h t)
    (h_scale : ∀ l g i c, r.Seen l g i → c < r.dim → 0 ≤ r.scale l g i c)
    (h_round : ∀ l g i c j, r.Seen l g i → c < r.dim → j < 2 ^ r.bits → r.outlier l g c = false → 0 < r.scale l g i c →
      abs ((r.code l g i c j : R) - (r.key l g i c / r.scale l g i c + grid (2 ^ r.bits) j)) ≤ 1 / 2 + r.slack)
    (h_slack : 0 ≤ r.slack ∧ 2 * ((2 ^ r.bits : Nat) : R) * r.slack < 1)
    (h_noclip : ∀ l g i c, r.Seen l g i → c < r.dim → r.outlier l g c = false →
      abs (r.key l g i c) ≤ ((r.limit : R) - 1 / 2) * r.scale l g i c)
    (h_cap : ∀ x y, abs (r.cap x - r.cap y) ≤ abs (x - y))
    (h_arith : ∀ l h t i, r.Cell l h t → i < r.tokens l h t →
      abs (m.logit k l h t i - r.cap (r.servedDot k l h t i)) ≤ m.arith k l h t i)
    (h_radius : ∀ l h t i, r.Cell l h t → i < r.tokens l h t → 0 ≤ radius l h t i ∧
      3 * (r.dim : R) * (1 + 2 * r.slack) ^ 2 * r.varSq l h t i ≤ radius l h t i ^ 2)
    (h_bound : ∀ l h t i, r.Cell l h t → i < r.tokens l h t → radius l h t i + m.arith k l h t i ≤ m.bound k l h t i)
    (h_acert : ∀ l h t A, r.Cell l h t → m.A_hat k l h t = some A →
      acert (r.servedWeights m k l h t) (m.bound k l h t) (r.tokens l h t) ≤ A)
    (h_max : ∀ l h t C, r.Cell l h t → m.C_hat k l h t = some C → ∀ i, i < r.tokens l h t → m.bound k l h t i ≤ C) :
    ∀ l h t, r.Cell l h t → r.cellTV m k l h t ≤ m.cellMeter k l h t := by
  intro l h t hcell
  refine cell_sound r m (h_tokens l h t hcell) (fun i hi => ?_) (fun A => h_acert l h t A hcell) (fun C => h_max l h t C hcell)
  refine logit_error r m h_cap (h_arith l h t i hcell hi) (h_bound l h t i hcell hi) ?_
  have hseen : r.Seen l (r.kvHead h) (r.slot l h t i) := ⟨h, t, i, hcell, hi, rfl, rfl⟩
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hn := Nat.two_pow_pos r.bits
  have hη : 0 < 1 + 2 * r.slack := by grind
  have hw := mul_inv_self hη
  have hw0 := inv_pos hη
  obtain ⟨hr0, hr⟩ := h_radius l h t i hcell hi
  -- each entry error is the step times something of absolute value at most 1/2 + slack
  have h_entry : ∀ c, ∃ ρ : R, c < r.dim → abs ρ ≤ 1 / 2 ∧
      r.servedKey k l (r.kvHead h) (r.slot l h t i) c - r.key l (r.kvHead h) (r.slot l h t i) c
        = r.step l (r.kvHead h) (r.slot l h t i) c * (ρ * (1 + 2 * r.slack)) := fun c => by
    by_cases hc : c < r.dim
    · generalize r.kvHead h = g at *
      generalize r.slot l h t i = i' at *
      have hj := draw_lt hn k (r.coord l g i' c)
      unfold Request.servedKey Request.step
      dsimp only
      generalize draw (2 ^ r.bits) k (r.coord l g i' c) = j at *
      have h_zero : abs (0 : R) ≤ 1 / 2 := by rw [abs_zero]; grind
      cases hout : r.outlier l g c with
      | true => exact ⟨0, fun _ => ⟨h_zero, by simp only [if_true]; grind⟩⟩
      | false =>
        simp only [Bool.false_eq_true, if_false]
        have h0 := h_noclip l g i' c hseen hc hout
        by_cases hs : 0 < r.scale l g i' c
        · have h1 := h_round l g i' c j hseen hc hj hout hs
          have h2 := residual_of_pos (n := 2 ^ r.bits) (x := r.key l g i' c) hs (r.code l g i' c j) j
          refine ⟨((r.code l g i' c j : R) - grid (2 ^ r.bits) j - r.key l g i' c / r.scale l g i' c) * (1 + 2 * r.slack)⁻¹,
            fun _ => ⟨?_, ?_⟩⟩
          · rw [abs_mul, abs_of_nonneg (show 0 ≤ (1 + 2 * r.slack)⁻¹ by grind)]
            rw [show (r.code l g i' c j : R) - (r.key l g i' c / r.scale l g i' c + grid (2 ^ r.bits) j)
              = (r.code l g i' c j : R) - grid (2 ^ r.bits) j - r.key l g i' c / r.scale l g i' c by grind] at h1
            have h3 := OrderedRing.mul_le_mul_of_nonneg_right h1 (show 0 ≤ (1 + 2 * r.slack)⁻¹ by grind)
            grind
          · rw [clip_eq_self hj _ hs h_slack.2 h0 h1]
            unfold residual at h2
            rw [h2, Semiring.mul_assoc, CommSemiring.mul_comm (1 + 2 * r.slack)⁻¹, hw, Semiring.mul_one]
        · have hs0 : r.scale l g i' c = 0 := by have := h_scale l g i' c hseen hc; grind
          rw [hs0] at h0
          have h1 := residual_of_scale_zero (n := 2 ^ r.bits) (clip r.limit (r.code l g i' c j)) j h0
          unfold residual at h1
          exact ⟨0, fun _ => ⟨h_zero, by rw [hs0, h1]; grind⟩⟩
    · exact ⟨0, fun h => absurd h hc⟩
  obtain ⟨ρ, hρ⟩ := Classical.axiomOfChoice h_entry
  have h1 := adaptive_radius_det (fun c => r.smScale * r.query l h t c) (r.step l (r.kvHead h) (r.slot l h t i)) ρ r.dim
    fun c hc => (hρ c hc).1
  have e1 : r.servedDot k l h t i - r.exactDot l h t i
      = (1 + 2 * r.slack) * sum (fun c => r.smScale * r.query l h t c * r.step l (r.kvHead h) (r.slot l h t i) c * ρ c) r.dim := by
    rw [servedDot_sub, ← sum_mul]
    refine sum_congr fun c hc => ?_
    rw [(hρ c hc).2]; grind
  have e2 : sum (fun c => (r.smScale * r.query l h t c) ^ 2 * r.step l (r.kvHead h) (r.slot l h t i) c ^ 2) r.dim / 12
      = r.varSq l h t i := by
    unfold Request.varSq
    rw [← sum_mul]
    congr 1
    exact sum_congr fun c _ => by grind
  rw [e2] at h1
  apply abs_le_of_mul_self_le hr0
  rw [e1]
  have h2 := OrderedRing.mul_le_mul_of_nonneg_left h1 (mul_self_nonneg (1 + 2 * r.slack))
  grind

variable [Archimedean R]

/-- The share of outcomes in which the dot product of one token errs by more than its radius and its bias is at most `2 exp (-ℓ)`. -/
theorem token_tail (r : Request R) {l h t i : Nat} {radius ell : R}
    (h_sm : 0 ≤ r.smScale)
    (h_scale : ∀ c, c < r.dim → 0 ≤ r.scale l (r.kvHead h) (r.slot l h t i) c)
    (h_round : ∀ c j, c < r.dim → j < 2 ^ r.bits → r.outlier l (r.kvHead h) c = false →
      0 < r.scale l (r.kvHead h) (r.slot l h t i) c →
      abs ((r.code l (r.kvHead h) (r.slot l h t i) c j : R) - (r.key l (r.kvHead h) (r.slot l h t i) c
        / r.scale l (r.kvHead h) (r.slot l h t i) c + grid (2 ^ r.bits) j)) ≤ 1 / 2 + r.slack)
    (h_slack : 0 ≤ r.slack ∧ 2 * ((2 ^ r.bits : Nat) : R) * r.slack < 1)
    (h_noclip : ∀ c, c < r.dim → r.outlier l (r.kvHead h) c = false →
      abs (r.key l (r.kvHead h) (r.slot l h t i) c) ≤ ((r.limit : R) - 1 / 2) * r.scale l (r.kvHead h) (r.slot l h t i) c)
    (h_coord : ∀ c, c < r.dim → r.coord l (r.kvHead h) (r.slot l h t i) c < r.coords)
    (h_inj : ∀ c c', c < r.dim → c' < r.dim →
      r.coord l (r.kvHead h) (r.slot l h t i) c = r.coord l (r.kvHead h) (r.slot l h t i) c' → c = c')
    (h_radius : 0 ≤ radius ∧ 2 * r.varSq l h t i * ell ≤ radius ^ 2) :
    share (fun k => radius + r.bias l h t i < abs (r.servedDot k l h t i - r.exactDot l h t i)) (outcomes r.bits r.coords)
      ≤ 2 * exp (-ell) := by
  have ev : varianceProxy (fun c => r.smScale * r.query l h t c * r.step l (r.kvHead h) (r.slot l h t i) c) r.dim
      = r.varSq l h t i := by
    unfold varianceProxy Request.varSq
    rw [← sum_mul]
    congr 1
    exact sum_congr fun c _ => by grind
  have eb : sum (fun c => abs (r.smScale * r.query l h t c) * r.step l (r.kvHead h) (r.slot l h t i) c) r.dim
      * (1 / (2 * ((2 ^ r.bits : Nat) : R)) + r.slack) = r.bias l h t i := by
    unfold Request.bias
    congr 1
    rw [← sum_mul]
    exact sum_congr fun c _ => by rw [abs_mul, abs_of_nonneg h_sm, Semiring.mul_assoc]
  have h := dithered_dot_tail r.bits (fun c => r.smScale * r.query l h t c) (r.step l (r.kvHead h) (r.slot l h t i))
    (fun c j => (if r.outlier l (r.kvHead h) c then r.key l (r.kvHead h) (r.slot l h t i) c
      else dequantize (2 ^ r.bits) (r.scale l (r.kvHead h) (r.slot l h t i) c)
        (clip r.limit (r.code l (r.kvHead h) (r.slot l h t i) c j)) j) - r.key l (r.kvHead h) (r.slot l h t i) c)
    (τ := 1 / (2 * ((2 ^ r.bits : Nat) : R)) + r.slack) (radius := radius) (ell := ell) (r.coord l (r.kvHead h) (r.slot l h t i))
    h_radius.1 (by rw [ev]; have := h_radius.2; grind)
    (fun c hc => step_nonneg r (h_scale c hc))
    (fun c hc => entry_law r (h_scale c hc) (fun j hj => h_round c j hc hj) h_slack (h_noclip c hc))
    h_coord h_inj
  rw [eb] at h
  simp only [servedDot_sub]
  exact h

/-- What a request served from dithered codes is promised: over all outcomes of the dither, the share of those in which the total
variation between exact and served attention exceeds the reported meter in any cell (layer, query head, step) of the request is at
most `δ_req`.

Fixed before the dither, so independent of it: everything in `r`, in particular queries, keys and scales. Different channels of one
token have different dithers (`h_inj`); cells may share dithers. The meter is computed from bounds `u` on the logit errors, each at
least a radius plus a bias plus the error of the arithmetic (`h_bound`). The radius is at least `√(2 ς² ℓ)` (`h_radius`), where `ς²` is
`varSq` and `ℓ` is at least `log (2 S / δ_loc)` (`h_delta`), with `S` the number of tokens of the cell and `δ_loc = δ_req / (L H T)`. -/
theorem tierB_request_sound (r : Request R) (m : Served R) {δ_req : R}
    (radius : Nat → Nat → Nat → Nat → R) (ell : Nat → Nat → Nat → R)
    (h_tokens : ∀ l h t, r.Cell l h t → 0 < r.tokens l h t)
    (h_sm : 0 ≤ r.smScale)
    (h_scale : ∀ l g i c, r.Seen l g i → c < r.dim → 0 ≤ r.scale l g i c)
    (h_round : ∀ l g i c j, r.Seen l g i → c < r.dim → j < 2 ^ r.bits → r.outlier l g c = false → 0 < r.scale l g i c →
      abs ((r.code l g i c j : R) - (r.key l g i c / r.scale l g i c + grid (2 ^ r.bits) j)) ≤ 1 / 2 + r.slack)
    (h_slack : 0 ≤ r.slack ∧ 2 * ((2 ^ r.bits : Nat) : R) * r.slack < 1)
    (h_noclip : ∀ l g i c, r.Seen l g i → c < r.dim → r.outlier l g c = false →
      abs (r.key l g i c) ≤ ((r.limit : R) - 1 / 2) * r.scale l g i c)
    (h_coord : ∀ l g i c, r.Seen l g i → c < r.dim → r.coord l g i c < r.coords)
    (h_inj : ∀ l g i c c', r.Seen l g i → c < r.dim → c' < r.dim → r.coord l g i c = r.coord l g i c' → c = c')
    (h_cap : ∀ x y, abs (r.cap x - r.cap y) ≤ abs (x - y))
    (h_arith : ∀ k l h t i, k < outcomes r.bits r.coords → r.Cell l h t → i < r.tokens l h t →
      abs (m.logit k l h t i - r.cap (r.servedDot k l h t i)) ≤ m.arith k l h t i)
    (h_budget : 0 ≤ δ_req)
    (h_delta : ∀ l h t, r.Cell l h t →
      2 * (r.tokens l h t : R) * exp (-ell l h t) ≤ δ_req / ((r.layers * r.heads * r.steps : Nat) : R))
    (h_radius : ∀ l h t i, r.Cell l h t → i < r.tokens l h t →
      0 ≤ radius l h t i ∧ 2 * r.varSq l h t i * ell l h t ≤ radius l h t i ^ 2)
    (h_bound : ∀ k l h t i, k < outcomes r.bits r.coords → r.Cell l h t → i < r.tokens l h t →
      radius l h t i + r.bias l h t i + m.arith k l h t i ≤ m.bound k l h t i)
    (h_acert : ∀ k l h t A, k < outcomes r.bits r.coords → r.Cell l h t → m.A_hat k l h t = some A →
      acert (r.servedWeights m k l h t) (m.bound k l h t) (r.tokens l h t) ≤ A)
    (h_max : ∀ k l h t C, k < outcomes r.bits r.coords → r.Cell l h t → m.C_hat k l h t = some C →
      ∀ i, i < r.tokens l h t → m.bound k l h t i ≤ C) :
    share (fun k => ∃ l h t, r.Cell l h t ∧ m.cellMeter k l h t < r.cellTV m k l h t) (outcomes r.bits r.coords) ≤ δ_req := by
  have h_union := request_union (L := r.layers) (H := r.heads) (T := r.steps) (N := outcomes r.bits r.coords) r.tokens
    (fun l h t i k => radius l h t i + r.bias l h t i < abs (r.servedDot k l h t i - r.exactDot l h t i)) h_budget
    fun l h t i hl hh ht hi => by
      have hcell : r.Cell l h t := ⟨hl, hh, ht⟩
      have hseen : r.Seen l (r.kvHead h) (r.slot l h t i) := ⟨h, t, i, hcell, hi, rfl, rfl⟩
      have h1 := token_tail r h_sm (h_scale _ _ _ · hseen) (fun c j hc hj => h_round _ _ _ c j hseen hc hj) h_slack
        (h_noclip _ _ _ · hseen) (h_coord _ _ _ · hseen) (h_inj _ _ _ · · hseen) (h_radius l h t i hcell hi)
      have h2 := h_delta l h t hcell
      refine Std.le_trans h1 (le_div_of_mul_le (natCast_pos (by omega)) ?_)
      grind
  refine Std.le_trans (share_mono fun k hkN hk => ?_) h_union
  obtain ⟨l, h, t, hcell, hk⟩ := hk
  refine ⟨l, hcell.1, h, hcell.2.1, t, hcell.2.2, ?_⟩
  apply Classical.byContradiction
  intro hn
  have h1 := cell_sound r m (h_tokens l h t hcell) (fun i hi => ?_)
    (fun A => h_acert k l h t A hkN hcell) (fun C => h_max k l h t C hkN hcell)
  · grind
  · refine logit_error r m h_cap (h_arith k l h t i hkN hcell hi) (h_bound k l h t i hkN hcell hi) ?_
    have h3 : ¬ (radius l h t i + r.bias l h t i < abs (r.servedDot k l h t i - r.exactDot l h t i)) := fun h4 => hn ⟨i, hi, h4⟩
    grind

end WitCert.Core
