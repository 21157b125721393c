import WitCert.Core.TierBAdaptive

/-!
# A small free-running request, and what it is promised

How `tierB_adaptive_sound` is used, and that its hypotheses can be met by a query that is as adaptive as can be: its channels are the very
dithers of the first stored token. One layer, two query heads that read one KV head, one step, two tokens of two channels with keys `(0, 0)`
and `(1, 1)`, scale 1, 8-bit dithers. With radius 1, some meter is below the total variation in at most a share `2 exp (-12)` of the
outcomes, about 1 in 80 000.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R] [Archimedean R]

/-- The free-running request of the example. -/
def exampleGeneration (R : Type u) [Field R] : Generation R where
  layers := 1
  heads := 2
  kvHeads := 1
  steps := 1
  stored := 2
  dim := 2
  bits := 8
  coords := 4
  limit := 127
  kvHead := fun _ => 0
  smScale := 1
  outlier := fun _ _ _ => false
  slack := 0
  coord := fun _ _ i c => 2 * i + c
  cap := fun x => x
  tokens := fun _ _ _ _ => 2
  slot := fun _ _ _ _ i => i
  query := fun k _ _ _ c => dither 8 (fun c => c) k c
  key := fun _ _ _ i _ => (i : R)
  scale := fun _ _ _ _ _ => 1
  code := fun _ _ _ i _ _ => (i : Int)

/-- The kernel of the example computes in exact arithmetic, takes radius 1, and reports the exact accumulators. -/
noncomputable def exampleGenerationServed (R : Type u) [Field R] [LE R] [Exp R] : Served R where
  logit := fun k => ((exampleGeneration R).at k).servedDot k
  arith := fun _ _ _ _ _ => 0
  bound := fun k l h t i => 1 + ((exampleGeneration R).at k).bias l h t i
  A_hat := fun k l h t =>
    some (acert (softmax (((exampleGeneration R).at k).servedDot k l h t) 2)
      (fun i => 1 + ((exampleGeneration R).at k).bias l h t i) 2)
  C_hat := fun k l h t => some (1 + ((exampleGeneration R).at k).bias l h t 0)

example : share (fun k => ∃ l h t, ((exampleGeneration R).at k).Cell l h t ∧
      (exampleGenerationServed R).cellMeter k l h t < ((exampleGeneration R).at k).cellTV (exampleGenerationServed R) k l h t)
    (outcomes 8 4) ≤ 2 * exp (-(12 : R)) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  refine tierB_adaptive_sound (exampleGeneration R) (exampleGenerationServed R) (w := 11) (ell := 12) (fun _ _ _ _ _ => 1)
    ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_
  · intro k l h t _; show 0 < 2; decide
  · rintro k l h t i ⟨hl, -, -⟩ hi
    exact ⟨hl, by show 0 < 1; decide, hi⟩
  · show (0 : R) ≤ 1; grind
  · intro k l g i c _ _; show (0 : R) ≤ 1; grind
  · -- a code is the key itself, so it misses `x/s + ξ` by `ξ`
    intro k l g i c j _ _ hj _ _
    show abs (((i : Int) : R) - ((i : R) / 1 + grid (2 ^ 8) j)) ≤ 1 / 2 + 0
    have h := abs_grid_le (R := R) (n := 2 ^ 8) hj
    have hn := natCast_pos (R := R) (Nat.two_pow_pos 8)
    have hn2 := div_pos h01 (show 0 < 2 * ((2 ^ 8 : Nat) : R) by grind)
    rw [Ring.intCast_natCast, show (i : R) - ((i : R) / 1 + grid (2 ^ 8) j) = -grid (2 ^ 8) j by grind, abs_neg]
    grind
  · exact ⟨by show (0 : R) ≤ 0; grind, by show 2 * ((2 ^ 8 : Nat) : R) * 0 < 1; grind⟩
  · rintro k l g i c ⟨-, -, hi⟩ _ _
    show abs ((i : Nat) : R) ≤ (((127 : Nat) : R) - 1 / 2) * 1
    have hi' : i < 2 := hi
    have h1 := OrderedRing.natCast_le_natCast_of_le (R := R) _ _ (show i ≤ 126 by omega)
    have e : ((127 : Nat) : R) = ((126 : Nat) : R) + 1 := Semiring.natCast_succ 126
    rw [abs_of_nonneg OrderedRing.natCast_nonneg, e]
    grind
  · rintro l g i c ⟨-, -, hi⟩ hc
    have hi' : i < 2 := hi
    have hc' : c < 2 := hc
    show 2 * i + c < 4
    omega
  · intro l g i c c' _ _ _ h
    have h' : 2 * i + c = 2 * i + c' := h
    omega
  · intro l g i _ k c c' j _ _ _
    exact ⟨rfl, rfl, rfl⟩
  · intro x y; show abs (x - y) ≤ abs (x - y); grind
  · intro k l h t i _ _ _
    show abs (((exampleGeneration R).at k).servedDot k l h t i - ((exampleGeneration R).at k).servedDot k l h t i) ≤ 0
    rw [show ((exampleGeneration R).at k).servedDot k l h t i - ((exampleGeneration R).at k).servedDot k l h t i = 0 by grind, abs_zero]
    grind
  · show ((1 * 1 * 2 : Nat) : R) * exp (-(12 : R)) ≤ 2 * exp (-(12 : R))
    grind
  · refine ⟨by grind, ?_⟩
    show 9 * ((2 : Nat) : R) * 12 / 2 ≤ 11 ^ 2
    grind
  · intro k l h t i _ _ _
    refine ⟨by grind, ?_⟩
    show (((2 : Nat) : R) + 11) * (1 ^ 2 * sum (fun c => (dither 8 (fun c => c) k c : R) ^ 2 * 1 ^ 2) 2 / 12) ≤ 1 ^ 2
    have h1 : ∀ c, (dither 8 (fun c => c) k c : R) ^ 2 ≤ 1 / 4 := fun c => by
      have h2 := grid_energy_le (R := R) (draw_lt (Nat.two_pow_pos 8) k c)
      show (grid (2 ^ 8) (draw (2 ^ 8) k c) : R) ^ 2 ≤ 1 / 4
      grind
    have h2 := h1 0
    have h3 := h1 1
    rw [sum_succ, sum_succ, sum_zero]
    grind
  · intro k l h t i _ _ _
    show 1 + ((exampleGeneration R).at k).bias l h t i + 0 ≤ 1 + ((exampleGeneration R).at k).bias l h t i
    grind
  · intro k l h t A _ _ hA
    obtain rfl := Option.some.inj hA
    exact Std.le_refl _
  · intro k l h t C _ _ hC i _
    obtain rfl := Option.some.inj hC
    exact Std.le_refl _

end WitCert.Core
