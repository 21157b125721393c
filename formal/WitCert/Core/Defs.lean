import WitCert.Core.Exp
/-!
# Definitions: total variation, the accumulators, the meter

What the theorems are about. One cell of attention has tokens `t < n`; `pt t` is the weight that the served attention gave to token
`t`, `ε t` the error of its served logit, `c t` a bound on `|ε t|`, and `p t` the weight that exact attention gives.
-/
open Lean.Grind

namespace WitCert.Core

variable {R : Type u} [Field R] [LE R]

/-- Total variation of `p` and `q` on the tokens `t < n`: half the sum of the absolute differences. -/
noncomputable def tv (p q : Nat → R) (n : Nat) : R := sum (fun t => abs (p t - q t)) n / 2

/-- The normaliser of exact attention relative to served attention: `Z = Σ pt · exp (-ε)`. -/
def znorm [Exp R] (pt ε : Nat → R) (n : Nat) : R := sum (fun t => pt t * exp (-ε t)) n

/-- The accumulator `A = Σ pt · exp c`. -/
def acert [Exp R] (pt c : Nat → R) (n : Nat) : R := sum (fun t => pt t * exp (c t)) n

/-- The accumulator `A⁻ = Σ pt · exp (-c)`. -/
def acertNeg [Exp R] (pt c : Nat → R) (n : Nat) : R := sum (fun t => pt t * exp (-c t)) n

open Classical in
/-- The sharp bound as a function of `A`: `1 - 1/A` up to `A = 2`, and `A²/(A² + 4)` from there on. -/
noncomputable def sharp (A : R) : R := if A ≤ 2 then 1 - 1 / A else A ^ 2 / (A ^ 2 + 4)

/-- The hyperbolic tangent of half the angle: `tanh (C/2) = (exp C - 1)/(exp C + 1)`. -/
def tanhHalf [Exp R] (C : R) : R := (exp C - 1) / (exp C + 1)

/-- The reported meter: the smaller of the sharp bound of `A` and the half-angle bound of `C`. -/
noncomputable def meter [Exp R] (A C : R) : R := minimum (sharp A) (tanhHalf C)

/-- The reported meter when an accumulator may be missing (`none`: not computed, or overflowed). With neither, it says 1. -/
noncomputable def meterOf [Exp R] : Option R → Option R → R
  | some A, some C => meter A C
  | some A, none => sharp A
  | none, some C => tanhHalf C
  | none, none => 1

end WitCert.Core
