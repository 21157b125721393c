import WitCert.Core.Bands
/-!
# Rotary embeddings keep band norms

A rotary embedding turns pairs of channels. If both channels of every pair lie in one band, the norm of every band stays the same,
so a witness that was computed before the rotation serves after it. The general statement takes the layout of the pairs as a
hypothesis on sums; the half-split and the adjacent layout satisfy it.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- A rotation keeps the sum of squares of a pair. -/
theorem rot (x y c s : R) (h_unit : c * c + s * s = 1) :
    (x * c - y * s) * (x * c - y * s) + (x * s + y * c) * (x * s + y * c) = x * x + y * y := by
  grind

/-- Rotating pairs of channels inside bands keeps the norm of every band. Pair `k < h` consists of the channels `fst k` and `snd k`;
`h_layout` says that these are all channels, each once. -/
theorem rope_band_unitary {d h : Nat} {fst snd band : Nat → Nat} {x y cs sn : Nat → R} (b : Nat)
    (h_layout : ∀ f : Nat → R, sum f d = sum (fun k => f (fst k) + f (snd k)) h)
    (h_band : ∀ k, k < h → band (fst k) = band (snd k))
    (h_unit : ∀ k, k < h → cs k ^ 2 + sn k ^ 2 = 1)
    (h_fst : ∀ k, k < h → y (fst k) = x (fst k) * cs k - x (snd k) * sn k)
    (h_snd : ∀ k, k < h → y (snd k) = x (fst k) * sn k + x (snd k) * cs k) :
    bandSq y band b d = bandSq x band b d := by
  unfold bandSq sumIf
  rw [h_layout, h_layout]
  refine sum_congr fun k hk => ?_
  have h1 := h_band k hk
  have h2 := h_unit k hk
  have h3 := rot (x (fst k)) (x (snd k)) (cs k) (sn k) (by grind)
  simp only [h_fst k hk, h_snd k hk, h1]
  by_cases hb : band (snd k) = b
  · simp only [if_pos hb]; grind
  · simp only [if_neg hb]

/-- In the half-split layout every channel below `2 h` is in exactly one pair. -/
theorem sum_half_split (f : Nat → R) (h : Nat) : sum f (2 * h) = sum (fun k => f k + f (k + h)) h := by
  have key : ∀ m, sum f (h + m) = sum f h + sum (fun k => f (k + h)) m := fun m => by
    induction m with
    | zero => rw [sum_zero, Nat.add_zero]; grind
    | succ m ih => rw [← Nat.add_assoc, sum_succ, ih, sum_succ, Nat.add_comm h m]; grind
  rw [sum_add, show 2 * h = h + h by omega, key]

/-- In the adjacent layout every channel below `2 h` is in exactly one pair. -/
theorem sum_adjacent (f : Nat → R) (h : Nat) : sum f (2 * h) = sum (fun k => f (2 * k) + f (2 * k + 1)) h := by
  induction h with
  | zero => rfl
  | succ h ih => rw [show 2 * (h + 1) = 2 * h + 1 + 1 by omega, sum_succ, sum_succ, sum_succ, ih]; grind

/-- In the half-split layout, a rotary embedding keeps every band norm if channels `k` and `k + h` share their band. -/
theorem rope_band_unitary_half_split {h : Nat} {band : Nat → Nat} {cs sn : Nat → R} (x : Nat → R) (b : Nat)
    (h_band : ∀ k, k < h → band k = band (k + h)) (h_unit : ∀ k, k < h → cs k ^ 2 + sn k ^ 2 = 1) :
    bandSq (ropeHalfSplit h cs sn x) band b (2 * h) = bandSq x band b (2 * h) := by
  refine rope_band_unitary (fst := fun k => k) (snd := fun k => k + h) b (fun f => sum_half_split f h) h_band h_unit ?_ ?_
  · intro k hk
    show (if k < h then _ else _) = _
    rw [if_pos hk]
  · intro k hk
    show (if k + h < h then _ else _) = _
    rw [if_neg (by omega), Nat.add_sub_cancel]

/-- In the adjacent layout, a rotary embedding keeps every band norm if channels `2 k` and `2 k + 1` share their band. -/
theorem rope_band_unitary_adjacent {h : Nat} {band : Nat → Nat} {cs sn : Nat → R} (x : Nat → R) (b : Nat)
    (h_band : ∀ k, k < h → band (2 * k) = band (2 * k + 1)) (h_unit : ∀ k, k < h → cs k ^ 2 + sn k ^ 2 = 1) :
    bandSq (ropeAdjacent cs sn x) band b (2 * h) = bandSq x band b (2 * h) := by
  refine rope_band_unitary (fst := fun k => 2 * k) (snd := fun k => 2 * k + 1) b (fun f => sum_adjacent f h) h_band h_unit ?_ ?_
  · intro k hk
    show (if 2 * k % 2 = 0 then _ else _) = _
    rw [if_pos (by omega), show 2 * k / 2 = k by omega]
  · intro k hk
    show (if (2 * k + 1) % 2 = 0 then _ else _) = _
    rw [if_neg (by omega), show (2 * k + 1) / 2 = k by omega, Nat.add_sub_cancel]

/-- A witness from before the rotation serves after it (half-split layout): the residual of the rotated keys has the band norms of
the residual of the keys. -/
theorem rope_residual_half_split {h : Nat} {band : Nat → Nat} {cs sn : Nat → R} (k_hat k : Nat → R) (b : Nat)
    (h_band : ∀ j, j < h → band j = band (j + h)) (h_unit : ∀ j, j < h → cs j ^ 2 + sn j ^ 2 = 1) :
    bandSq (fun i => ropeHalfSplit h cs sn k_hat i - ropeHalfSplit h cs sn k i) band b (2 * h)
      = bandSq (fun i => k_hat i - k i) band b (2 * h) := by
  rw [← rope_band_unitary_half_split (fun i => k_hat i - k i) b h_band h_unit]
  refine sumIf_congr fun i _ _ => ?_
  unfold ropeHalfSplit
  by_cases hi : i < h
  · simp only [if_pos hi]; grind
  · simp only [if_neg hi]; grind

/-- A witness from before the rotation serves after it (adjacent layout): the residual of the rotated keys has the band norms of the
residual of the keys. -/
theorem rope_residual_adjacent {h : Nat} {band : Nat → Nat} {cs sn : Nat → R} (k_hat k : Nat → R) (b : Nat)
    (h_band : ∀ j, j < h → band (2 * j) = band (2 * j + 1)) (h_unit : ∀ j, j < h → cs j ^ 2 + sn j ^ 2 = 1) :
    bandSq (fun i => ropeAdjacent cs sn k_hat i - ropeAdjacent cs sn k i) band b (2 * h)
      = bandSq (fun i => k_hat i - k i) band b (2 * h) := by
  rw [← rope_band_unitary_adjacent (fun i => k_hat i - k i) b h_band h_unit]
  refine sumIf_congr fun i _ _ => ?_
  unfold ropeAdjacent
  by_cases hi : i % 2 = 0
  · simp only [if_pos hi]; grind
  · simp only [if_neg hi]; grind

end WitCert.Core
