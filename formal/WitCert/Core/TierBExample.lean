import WitCert.Core.TierB

/-!
# A small request, and what it is promised

How `tierB_request_sound` is used, and that its hypotheses can be met: one layer, two query heads that read one KV head (and so share
dithers), one step, two tokens of two channels with keys `(0, 0)` and `(1, 1)`, scale 1, query `(1, 1)`, 8-bit dithers. Some meter is below the
total variation in at most a share `8 exp (-12)` of the outcomes, about 5 in 100 000.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R] [Archimedean R]

/-- The request of the example. -/
def exampleRequest (R : Type u) [Field R] : Request R where
  layers := 1
  heads := 2
  steps := 1
  dim := 2
  bits := 8
  coords := 4
  limit := 127
  tokens := fun _ _ _ => 2
  kvHead := fun _ => 0
  slot := fun _ _ _ i => i
  smScale := 1
  query := fun _ _ _ _ => 1
  key := fun _ _ i _ => (i : R)
  outlier := fun _ _ _ => false
  scale := fun _ _ _ _ => 1
  code := fun _ _ i _ _ => (i : Int)
  slack := 0
  coord := fun _ _ i c => 2 * i + c
  cap := fun x => x

/-- The kernel of the example computes in exact arithmetic, takes radius 2, and reports the exact accumulators. -/
noncomputable def exampleServed (R : Type u) [Field R] [LE R] [Exp R] : Served R where
  logit := (exampleRequest R).servedDot
  arith := fun _ _ _ _ _ => 0
  bound := fun _ l h t i => 2 + (exampleRequest R).bias l h t i
  A_hat := fun k l h t =>
    some (acert (softmax ((exampleRequest R).servedDot k l h t) 2) (fun i => 2 + (exampleRequest R).bias l h t i) 2)
  C_hat := fun _ l h t => some (2 + (exampleRequest R).bias l h t 0)

example : share (fun k => ∃ l h t, (exampleRequest R).Cell l h t ∧
      (exampleServed R).cellMeter k l h t < (exampleRequest R).cellTV (exampleServed R) k l h t)
    (outcomes 8 4) ≤ 8 * exp (-(12 : R)) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have seen : ∀ {l g i}, (exampleRequest R).Seen l g i → i < 2 := by
    rintro l g i ⟨h, t, n, -, hn, -, hi⟩
    have hn' : n < 2 := hn
    have hi' : i = n := hi
    omega
  refine tierB_request_sound (exampleRequest R) (exampleServed R) (fun _ _ _ _ => 2) (fun _ _ _ => 12)
    ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_ ?_
  · intro l h t _; show 0 < 2; decide
  · show (0 : R) ≤ 1; grind
  · intro l g i c _ _; show (0 : R) ≤ 1; grind
  · -- a code is the key itself, so it misses `x/s + ξ` by `ξ`
    intro l g i c j _ _ hj _ _
    show abs (((i : Int) : R) - ((i : R) / 1 + grid (2 ^ 8) j)) ≤ 1 / 2 + 0
    have h := abs_grid_le (R := R) (n := 2 ^ 8) hj
    have hn := natCast_pos (R := R) (Nat.two_pow_pos 8)
    have hn2 := div_pos h01 (show 0 < 2 * ((2 ^ 8 : Nat) : R) by grind)
    rw [Ring.intCast_natCast, show (i : R) - ((i : R) / 1 + grid (2 ^ 8) j) = -grid (2 ^ 8) j by grind, abs_neg]
    grind
  · exact ⟨by show (0 : R) ≤ 0; grind, by show 2 * ((2 ^ 8 : Nat) : R) * 0 < 1; grind⟩
  · intro l g i c h_seen _ _
    show abs ((i : Nat) : R) ≤ (((127 : Nat) : R) - 1 / 2) * 1
    have hi := seen h_seen
    have h1 := OrderedRing.natCast_le_natCast_of_le (R := R) _ _ (show i ≤ 126 by omega)
    have e : ((127 : Nat) : R) = ((126 : Nat) : R) + 1 := Semiring.natCast_succ 126
    rw [abs_of_nonneg OrderedRing.natCast_nonneg, e]
    grind
  · intro l g i c h_seen hc
    have hi := seen h_seen
    have hc' : c < 2 := hc
    show 2 * i + c < 4
    omega
  · intro l g i c c' _ _ _ h
    have h' : 2 * i + c = 2 * i + c' := h
    omega
  · intro x y; show abs (x - y) ≤ abs (x - y); grind
  · intro k l h t i _ _ _
    show abs ((exampleRequest R).servedDot k l h t i - (exampleRequest R).servedDot k l h t i) ≤ 0
    rw [show (exampleRequest R).servedDot k l h t i - (exampleRequest R).servedDot k l h t i = 0 by grind, abs_zero]; grind
  · have := exp_pos (-(12 : R)); grind
  · intro l h t _
    show 2 * ((2 : Nat) : R) * exp (-(12 : R)) ≤ 8 * exp (-(12 : R)) / ((1 * 2 * 1 : Nat) : R)
    grind
  · intro l h t i _ _
    refine ⟨by grind, ?_⟩
    show 2 * (1 ^ 2 * sum (fun c => (1 : R) ^ 2 * 1 ^ 2) 2 / 12) * 12 ≤ 2 ^ 2
    rw [sum_succ, sum_succ, sum_zero]; grind
  · intro k l h t i _ _ _
    show 2 + (exampleRequest R).bias l h t i + 0 ≤ 2 + (exampleRequest R).bias l h t i
    grind
  · intro k l h t A _ _ hA
    obtain rfl := Option.some.inj hA
    exact Std.le_refl _
  · intro k l h t C _ _ hC i _
    obtain rfl := Option.some.inj hC
    exact Std.le_refl _

end WitCert.Core
