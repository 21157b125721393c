import WitCert.Core.Abs

/-!
# Averages over finitely many equally likely outcomes

The dither of a request is finitely many fair bits, so its probability space is finite and all outcomes are equally likely.
An outcome is a number `k < n ^ m`: its `m` digits in base `n` are the values of `m` coordinates (`draw`), each running over
`0, ..., n - 1` independently of the others. Expectation is `average`, probability is `share`. These definitions are all of the
probability theory that Core uses.
-/
open Lean.Grind

namespace WitCert.Core
attribute [local instance] Semiring.natCast

/-- The average of `f 0, ..., f (n - 1)`: the expectation of `f` when the `n` outcomes are equally likely. -/
def average {R : Type u} [Field R] (f : Nat → R) (n : Nat) : R := sum f n / (n : R)

open Classical in
/-- The share of the `n` outcomes `0, ..., n - 1` in which `E` happens: its probability when they are equally likely. -/
noncomputable def share {R : Type u} [Field R] (E : Nat → Prop) (n : Nat) : R := average (fun k => if E k then 1 else 0) n

/-- The value of coordinate `c` in outcome `k`: digit `c` of `k` in base `n`, a number below `n`. -/
def draw (n k c : Nat) : Nat := k / n ^ c % n

/-- The number of outcomes when `m` coordinates of `b` fair bits each are drawn. -/
def outcomes (b m : Nat) : Nat := (2 ^ b) ^ m

end WitCert.Core
