import WitCert.Core.AdaptiveRadius
import WitCert.Core.TierB

/-!
# What free-running decoding from dithered codes is promised

In free-running decoding the next token is computed from served attention, so queries, and the keys that are stored later, depend on
the dithers that were drawn before. `Generation` describes a request in which everything that the model computes may depend on
the outcome `k`. One thing is required: **the dither of a stored token is fresh**, that is, its key, scales and codes do not
change when only its own dithers are drawn again (`h_fresh`).

`tierB_adaptive_sound`: outside a share `δ_req` of the outcomes, every cell has total variation at most the reported meter. The budget
is divided over layers, KV heads and stored tokens only: the radius `κ ς`, `κ² = d + √(9 d ℓ / 2)`, holds for all queries at once.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

/-- A request in free-running decoding. What the first group of fields holds is fixed; the rest is computed in outcome `k` of the dither,
the first argument. The fields mean what those of `Request` mean. -/
structure Generation (R : Type u) where
  /-- The number of layers, `L`. -/
  layers : Nat
  /-- The number of query heads, `H`. -/
  heads : Nat
  /-- The number of KV heads, `H_kv`. -/
  kvHeads : Nat
  /-- The largest number of decode steps, `T`. -/
  steps : Nat
  /-- The number of tokens that are ever stored for a layer and KV head, `S`. -/
  stored : Nat
  /-- The number of channels of a head, `d`. -/
  dim : Nat
  /-- The number of bits of a dither, `b`. -/
  bits : Nat
  /-- The number of dithers that are drawn in all. -/
  coords : Nat
  /-- The largest code, `Q` (127 for 8-bit codes). -/
  limit : Nat
  /-- The KV head that a query head reads. -/
  kvHead : Nat → Nat
  /-- The softmax scale, `sm`. -/
  smScale : R
  /-- Whether a channel of a layer and KV head is an outlier channel, whose keys are kept exactly. -/
  outlier : Nat → Nat → Nat → Bool
  /-- How far the computed code may be from a nearest integer to `x/s + ξ`, beyond 1/2: 0 for exact arithmetic. -/
  slack : R
  /-- Which of the drawn dithers belongs to a key entry, by layer, KV head, stored token and channel. -/
  coord : Nat → Nat → Nat → Nat → Nat
  /-- What is applied to scaled dot products to give logits: a soft-cap, or nothing. -/
  cap : R → R
  /-- The number of tokens that a cell sees. -/
  tokens : Nat → Nat → Nat → Nat → Nat
  /-- Which stored token is the `i`-th that a cell sees. -/
  slot : Nat → Nat → Nat → Nat → Nat → Nat
  /-- The query of a cell, by channel. -/
  query : Nat → Nat → Nat → Nat → Nat → R
  /-- The exact key of a stored token, by layer, KV head, stored token and channel. -/
  key : Nat → Nat → Nat → Nat → Nat → R
  /-- The stored scale of a key entry. -/
  scale : Nat → Nat → Nat → Nat → Nat → R
  /-- The code that the kernel computes for a key entry when its dither has index `j`, before it is limited to `±Q`. -/
  code : Nat → Nat → Nat → Nat → Nat → Nat → Int

/-- What the request has become in outcome `k`. -/
def Generation.at {R : Type u} (s : Generation R) (k : Nat) : Request R where
  layers := s.layers
  heads := s.heads
  steps := s.steps
  dim := s.dim
  bits := s.bits
  coords := s.coords
  limit := s.limit
  tokens := s.tokens k
  kvHead := s.kvHead
  slot := s.slot k
  smScale := s.smScale
  query := s.query k
  key := s.key k
  outlier := s.outlier
  scale := s.scale k
  code := s.code k
  slack := s.slack
  coord := s.coord
  cap := s.cap

/-- The dither of a stored token is fresh: its key, scales and codes do not change when only one of its own dithers is drawn again. -/
def Generation.Fresh {R : Type u} (s : Generation R) (l g i : Nat) : Prop :=
  ∀ k c c' j, c < s.dim → c' < s.dim → j < 2 ^ s.bits →
    s.key (redraw (2 ^ s.bits) k (s.coord l g i c') j) l g i c = s.key k l g i c ∧
    s.scale (redraw (2 ^ s.bits) k (s.coord l g i c') j) l g i c = s.scale k l g i c ∧
    s.code (redraw (2 ^ s.bits) k (s.coord l g i c') j) l g i c = s.code k l g i c

/-- A stored token: its layer, its KV head and its number. -/
def Generation.Stored {R : Type u} (s : Generation R) (l g i : Nat) : Prop := l < s.layers ∧ g < s.kvHeads ∧ i < s.stored

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- One stored token: outside a share `exp (-ℓ)` of the outcomes, its served key is within the radius for every weight vector at once. -/
theorem stored_token_tail [Exp R] [Archimedean R] (s : Generation R) {l g i : Nat} {w ell : R}
    (h_scale : ∀ k c, c < s.dim → 0 ≤ s.scale k l g i c)
    (h_round : ∀ k c j, c < s.dim → j < 2 ^ s.bits → s.outlier l g c = false → 0 < s.scale k l g i c →
      abs ((s.code k l g i c j : R) - (s.key k l g i c / s.scale k l g i c + grid (2 ^ s.bits) j)) ≤ 1 / 2 + s.slack)
    (h_slack : 0 ≤ s.slack ∧ 2 * ((2 ^ s.bits : Nat) : R) * s.slack < 1)
    (h_noclip : ∀ k c, c < s.dim → s.outlier l g c = false →
      abs (s.key k l g i c) ≤ ((s.limit : R) - 1 / 2) * s.scale k l g i c)
    (h_coord : ∀ c, c < s.dim → s.coord l g i c < s.coords)
    (h_inj : ∀ c c', c < s.dim → c' < s.dim → s.coord l g i c = s.coord l g i c' → c = c')
    (h_fresh : s.Fresh l g i)
    (h_radius : 0 ≤ w ∧ 9 * (s.dim : R) * ell / 2 ≤ w ^ 2) :
    share (fun k => ∃ (a : Nat → R) (radius : R), 0 ≤ radius ∧
        ((s.dim : R) + w) * (sum (fun c => a c ^ 2 * (s.at k).step l g i c ^ 2) s.dim / 12) ≤ radius ^ 2 ∧
        radius + sum (fun c => abs (a c) * (s.at k).step l g i c) s.dim * (1 / (2 * ((2 ^ s.bits : Nat) : R)) + s.slack)
          < abs (sum (fun c => a c * ((s.at k).servedKey k l g i c - s.key k l g i c)) s.dim))
      (outcomes s.bits s.coords) ≤ exp (-ell) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hn := Nat.two_pow_pos s.bits
  -- the law of an entry, chosen as a function of what is stored for it
  have h_choice : ∀ D : Bool × R × R × (Nat → Int), ∃ p : Nat × R,
      (∃ k c, c < s.dim ∧ D = (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)) →
      p.1 < 2 ^ s.bits ∧ abs p.2 ≤ 1 / (2 * ((2 ^ s.bits : Nat) : R)) + s.slack ∧
      ∀ j, j < 2 ^ s.bits → (if D.1 then D.2.1 else dequantize (2 ^ s.bits) D.2.2.1 (clip s.limit (D.2.2.2 j)) j) - D.2.1
        = (if D.1 then 0 else D.2.2.1) * (grid (2 ^ s.bits) (cyclicShift (2 ^ s.bits) p.1 j) + p.2) := fun D => by
    by_cases hD : ∃ k c, c < s.dim ∧ D = (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)
    · obtain ⟨k, c, hc, rfl⟩ := hD
      obtain ⟨t, θ, h⟩ := entry_law (s.at k) (l := l) (g := g) (i := i) (c := c) (h_scale k c hc)
        (fun j hj => h_round k c j hc hj) h_slack (h_noclip k c hc)
      exact ⟨(t, θ), fun _ => h⟩
    · exact ⟨(0, 0), fun h => absurd h hD⟩
  obtain ⟨p, hp⟩ := Classical.axiomOfChoice h_choice
  have hp' := fun k c (hc : c < s.dim) =>
    hp (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c) ⟨k, c, hc, rfl⟩
  have h := fresh_energy_tail (R := R)
    (fun k c => (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).1) (s.coord l g i)
    (n := 2 ^ s.bits) (m := s.coords) (d := s.dim) (w := w) (ell := ell) hn h_coord h_inj (fun k c hc => (hp' k c hc).1)
    (fun c c' k j hc hc' hj => by
      obtain ⟨e1, e2, e3⟩ := h_fresh k c c' j hc hc' hj
      simp only [e1, e2, e3])
    h_radius
  refine Std.le_trans (share_mono fun k _ hk => ?_) h
  obtain ⟨a, radius, hr0, hr, hk⟩ := hk
  apply Classical.byContradiction
  intro hE
  generalize hg : (fun c => (grid (2 ^ s.bits) (cyclicShift (2 ^ s.bits)
    (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).1 (draw (2 ^ s.bits) k (s.coord l g i c))) : R)) = G at *
  have hGc : ∀ c, (grid (2 ^ s.bits) (cyclicShift (2 ^ s.bits)
    (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).1 (draw (2 ^ s.bits) k (s.coord l g i c))) : R) = G c :=
    fun c => congrFun hg c
  simp only [hGc] at hE
  have h1 := radius_of_energy a ((s.at k).step l g i) G (w := w) (d := s.dim) (by grind)
  have h2 : abs (sum (fun c => a c * (s.at k).step l g i c * G c) s.dim) ≤ radius :=
    abs_le_of_mul_self_le hr0 (by grind)
  -- the bias takes care of θ
  have h3 : sum (fun c => a c * ((s.at k).servedKey k l g i c - s.key k l g i c)) s.dim
      = sum (fun c => a c * (s.at k).step l g i c * G c) s.dim
        + sum (fun c => a c * (s.at k).step l g i c
          * (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).2) s.dim := by
    rw [← sum_add]
    refine sum_congr fun c hc => ?_
    have h4 := (hp' k c hc).2.2 (draw (2 ^ s.bits) k (s.coord l g i c)) (draw_lt hn _ _)
    rw [hGc c] at h4
    have h5 : (s.at k).servedKey k l g i c - s.key k l g i c = (s.at k).step l g i c
      * (G c + (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).2) := h4
    rw [h5]; grind
  have h4 : abs (sum (fun c => a c * (s.at k).step l g i c
      * (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).2) s.dim)
      ≤ sum (fun c => abs (a c) * (s.at k).step l g i c) s.dim * (1 / (2 * ((2 ^ s.bits : Nat) : R)) + s.slack) := by
    refine Std.le_trans (abs_sum_le _ _) ?_
    rw [← sum_mul_right]
    refine sum_le fun c hc => ?_
    have h5 := step_nonneg (s.at k) (l := l) (g := g) (i := i) (c := c) (h_scale k c hc)
    rw [abs_mul, abs_mul, abs_of_nonneg h5]
    exact OrderedRing.mul_le_mul_of_nonneg_left (hp' k c hc).2.1 (OrderedRing.mul_nonneg (abs_nonneg _) h5)
  rw [h3] at hk
  have h5 := abs_add_le (sum (fun c => a c * (s.at k).step l g i c * G c) s.dim)
    (sum (fun c => a c * (s.at k).step l g i c * (p (s.outlier l g c, s.key k l g i c, s.scale k l g i c, s.code k l g i c)).2) s.dim)
  grind

private theorem sq_mul_sq (x y z : R) : (x * y) ^ 2 * z ^ 2 = x ^ 2 * (y ^ 2 * z ^ 2) := by grind

/-- What free-running decoding from dithered codes is promised: over all outcomes of the dither, the share of those in which the total
variation between exact and served attention exceeds the reported meter in any cell (layer, query head, step) is at most `δ_req`.

Queries, keys, scales and which tokens a cell sees may depend on the dither; only the dither of each stored token must be fresh
(`h_fresh`). The meter is computed from bounds on the logit errors, each at least a radius plus a bias plus the error of the arithmetic
(`h_bound`). The radius is at least `κ ς` (`h_radius`), where `ς²` is `varSq`, `κ² = d + w`, `w² ≥ 9 d ℓ / 2` (`h_kappa`), and `exp (-ℓ)` is at
most `δ_req / (L H_kv S)` (`h_delta`). -/
theorem tierB_adaptive_sound [Exp R] [Archimedean R] (s : Generation R) (m : Served R) {δ_req w ell : R}
    (radius : Nat → Nat → Nat → Nat → Nat → R)
    (h_tokens : ∀ k l h t, (s.at k).Cell l h t → 0 < s.tokens k l h t)
    (h_seen : ∀ k l h t i, (s.at k).Cell l h t → i < s.tokens k l h t → s.Stored l (s.kvHead h) (s.slot k l h t i))
    (h_sm : 0 ≤ s.smScale)
    (h_scale : ∀ k l g i c, s.Stored l g i → c < s.dim → 0 ≤ s.scale k l g i c)
    (h_round : ∀ k l g i c j, s.Stored l g i → c < s.dim → j < 2 ^ s.bits → s.outlier l g c = false → 0 < s.scale k l g i c →
      abs ((s.code k l g i c j : R) - (s.key k l g i c / s.scale k l g i c + grid (2 ^ s.bits) j)) ≤ 1 / 2 + s.slack)
    (h_slack : 0 ≤ s.slack ∧ 2 * ((2 ^ s.bits : Nat) : R) * s.slack < 1)
    (h_noclip : ∀ k l g i c, s.Stored l g i → c < s.dim → s.outlier l g c = false →
      abs (s.key k l g i c) ≤ ((s.limit : R) - 1 / 2) * s.scale k l g i c)
    (h_coord : ∀ l g i c, s.Stored l g i → c < s.dim → s.coord l g i c < s.coords)
    (h_inj : ∀ l g i c c', s.Stored l g i → c < s.dim → c' < s.dim → s.coord l g i c = s.coord l g i c' → c = c')
    (h_fresh : ∀ l g i, s.Stored l g i → s.Fresh l g i)
    (h_cap : ∀ x y, abs (s.cap x - s.cap y) ≤ abs (x - y))
    (h_arith : ∀ k l h t i, k < outcomes s.bits s.coords → (s.at k).Cell l h t → i < s.tokens k l h t →
      abs (m.logit k l h t i - s.cap ((s.at k).servedDot k l h t i)) ≤ m.arith k l h t i)
    (h_delta : ((s.layers * s.kvHeads * s.stored : Nat) : R) * exp (-ell) ≤ δ_req)
    (h_kappa : 0 ≤ w ∧ 9 * (s.dim : R) * ell / 2 ≤ w ^ 2)
    (h_radius : ∀ k l h t i, k < outcomes s.bits s.coords → (s.at k).Cell l h t → i < s.tokens k l h t →
      0 ≤ radius k l h t i ∧ ((s.dim : R) + w) * (s.at k).varSq l h t i ≤ radius k l h t i ^ 2)
    (h_bound : ∀ k l h t i, k < outcomes s.bits s.coords → (s.at k).Cell l h t → i < s.tokens k l h t →
      radius k l h t i + (s.at k).bias l h t i + m.arith k l h t i ≤ m.bound k l h t i)
    (h_acert : ∀ k l h t A, k < outcomes s.bits s.coords → (s.at k).Cell l h t → m.A_hat k l h t = some A →
      acert ((s.at k).servedWeights m k l h t) (m.bound k l h t) (s.tokens k l h t) ≤ A)
    (h_max : ∀ k l h t C, k < outcomes s.bits s.coords → (s.at k).Cell l h t → m.C_hat k l h t = some C →
      ∀ i, i < s.tokens k l h t → m.bound k l h t i ≤ C) :
    share (fun k => ∃ l h t, (s.at k).Cell l h t ∧ m.cellMeter k l h t < (s.at k).cellTV m k l h t)
      (outcomes s.bits s.coords) ≤ δ_req := by
  let bad := fun (l g i k : Nat) => ∃ (a : Nat → R) (radius : R), 0 ≤ radius ∧
        ((s.dim : R) + w) * (sum (fun c => a c ^ 2 * (s.at k).step l g i c ^ 2) s.dim / 12) ≤ radius ^ 2 ∧
        radius + sum (fun c => abs (a c) * (s.at k).step l g i c) s.dim * (1 / (2 * ((2 ^ s.bits : Nat) : R)) + s.slack)
          < abs (sum (fun c => a c * ((s.at k).servedKey k l g i c - s.key k l g i c)) s.dim)
  have h_union : share (fun k => ∃ l, l < s.layers ∧ ∃ g, g < s.kvHeads ∧ ∃ i, i < s.stored ∧ bad l g i k)
      (outcomes s.bits s.coords) ≤ δ_req := by
    refine Std.le_trans (share_exists_le_mul (E := fun l k => ∃ g, g < s.kvHeads ∧ ∃ i, i < s.stored ∧ bad l g i k)
      (δ := (s.kvHeads : R) * ((s.stored : R) * exp (-ell))) fun l hl =>
      share_exists_le_mul fun g hg => share_exists_le_mul fun i hi => ?_) ?_
    · have hS : s.Stored l g i := ⟨hl, hg, hi⟩
      exact stored_token_tail s (fun k c => h_scale k l g i c hS) (fun k c j => h_round k l g i c j hS) h_slack
        (fun k c => h_noclip k l g i c hS) (fun c => h_coord l g i c hS) (fun c c' => h_inj l g i c c' hS) (h_fresh l g i hS) h_kappa
    · rw [Semiring.natCast_mul, Semiring.natCast_mul, Semiring.mul_assoc, Semiring.mul_assoc] at h_delta
      exact h_delta
  refine Std.le_trans (share_mono fun k hkN hk => ?_) h_union
  obtain ⟨l, h, t, hcell, hk⟩ := hk
  apply Classical.byContradiction
  intro hn
  have h1 := cell_sound (s.at k) m (h_tokens k l h t hcell) (fun i hi => ?_)
    (fun A => h_acert k l h t A hkN hcell) (fun C => h_max k l h t C hkN hcell)
  · exact Std.not_le.2 hk h1
  · refine logit_error (s.at k) m h_cap (h_arith k l h t i hkN hcell hi) (h_bound k l h t i hkN hcell hi) ?_
    apply Classical.byContradiction
    intro hbad
    have hS := h_seen k l h t i hcell hi
    refine hn ⟨l, hS.1, s.kvHead h, hS.2.1, s.slot k l h t i, hS.2.2, fun c => s.smScale * s.query k l h t c, radius k l h t i,
      (h_radius k l h t i hkN hcell hi).1, ?_, ?_⟩
    · have h2 := (h_radius k l h t i hkN hcell hi).2
      have e : sum (fun c => (s.smScale * s.query k l h t c) ^ 2 * (s.at k).step l (s.kvHead h) (s.slot k l h t i) c ^ 2) s.dim / 12
          = (s.at k).varSq l h t i := by
        unfold Request.varSq
        rw [← sum_mul]
        congr 1
        exact sum_congr fun c _ => sq_mul_sq _ _ _
      rw [e]
      exact h2
    · have e : sum (fun c => abs (s.smScale * s.query k l h t c) * (s.at k).step l (s.kvHead h) (s.slot k l h t i) c) s.dim
          * (1 / (2 * ((2 ^ s.bits : Nat) : R)) + s.slack) = (s.at k).bias l h t i := by
        unfold Request.bias
        show _ = s.smScale * _ * (1 / (2 * ((2 ^ s.bits : Nat) : R)) + s.slack)
        congr 1
        rw [← sum_mul]
        exact sum_congr fun c _ => by rw [abs_mul, abs_of_nonneg h_sm, Semiring.mul_assoc]; rfl
      have e2 := servedDot_sub (s.at k) k l h t i
      rw [e]
      rw [e2] at hbad
      exact Std.not_le.1 hbad

end WitCert.Core
