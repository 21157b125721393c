import WitCert.Core.Defs
/-!
# Definitions: dot products, bands, rotations, softmax, output

A key or query is a family of channels `i < d`. `band i` says to which band channel `i` belongs. Norms of bands are not defined
by a square root, which an ordered field may lack: theorems speak of numbers whose square is `bandSq`.
-/
open Lean.Grind

namespace WitCert.Core

variable {R : Type u} [Field R]

/-- The dot product of `x` and `y` on the channels `i < d`. -/
def dot (x y : Nat → R) (d : Nat) : R := sum (fun i => x i * y i) d

/-- The sum of the squares of the channels of `x` that lie in band `b`: the square of the norm of that band. -/
def bandSq (x : Nat → R) (band : Nat → Nat) (b d : Nat) : R := sumIf (fun i => band i = b) (fun i => x i ^ 2) d

/-- The softmax of the logits `l` on the tokens `t < n`. -/
def softmax [LE R] [Exp R] (l : Nat → R) (n t : Nat) : R := exp (l t) / sum (fun s => exp (l s)) n

/-- A rotary embedding in the half-split layout: channel `k < h` is paired with channel `k + h`, and pair `k` is turned by the angle
with cosine `cs k` and sine `sn k`. -/
def ropeHalfSplit (h : Nat) (cs sn x : Nat → R) (i : Nat) : R :=
  if i < h then x i * cs i - x (i + h) * sn i else x (i - h) * sn (i - h) + x i * cs (i - h)

/-- A rotary embedding in the adjacent layout: channel `2 k` is paired with channel `2 k + 1`. -/
def ropeAdjacent (cs sn x : Nat → R) (i : Nat) : R :=
  if i % 2 = 0 then x i * cs (i / 2) - x (i + 1) * sn (i / 2) else x (i - 1) * sn (i / 2) + x i * cs (i / 2)

/-- The output of attention with weights `p` and values `v`: in coordinate `i`, `Σ_t p t * v t i`. -/
def output {κ : Type v} (p : Nat → R) (v : Nat → κ → R) (n : Nat) (i : κ) : R := sum (fun t => p t * v t i) n

end WitCert.Core
