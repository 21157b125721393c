import WitCert.Core.Defs
import WitCert.Core.Grid
import WitCert.Core.LogitDefs

/-!
# A request served from dithered codes: definitions

What `tierB_request_sound` speaks of. A request has layers `l`, query heads `h` and decode steps `t`; a **cell** is one `(l, h, t)`.
Query head `h` reads KV head `kvHead h`, and the cell sees `tokens l h t` stored tokens, the `i`-th of which is number `slot l h t i`
in the store of its KV head (so paging, prefix sharing and sliding windows are covered). Channels are numbered `c < dim`.

`Request` holds what is fixed before the dither is drawn: queries, keys and scales in particular **do not depend on the dither**,
since no outcome `k` occurs in it. `Served` holds what the kernel computed in each outcome `k`.
-/
open Lean.Grind

namespace WitCert.Core
attribute [local instance] Semiring.natCast Ring.intCast

/-- What is fixed before the dither of a request is drawn. -/
structure Request (R : Type u) where
  /-- The number of layers, `L`. -/
  layers : Nat
  /-- The number of query heads, `H`. -/
  heads : Nat
  /-- The number of decode steps, `T`. -/
  steps : Nat
  /-- The number of channels of a head, `d`. -/
  dim : Nat
  /-- The number of bits of a dither, `b`. -/
  bits : Nat
  /-- The number of dithers that are drawn in all. -/
  coords : Nat
  /-- The largest code, `Q` (127 for 8-bit codes). -/
  limit : Nat
  /-- The number of tokens that a cell sees. -/
  tokens : Nat → Nat → Nat → Nat
  /-- The KV head that a query head reads. -/
  kvHead : Nat → Nat
  /-- Which stored token is the `i`-th that a cell sees. -/
  slot : Nat → Nat → Nat → Nat → Nat
  /-- The softmax scale, `sm`. -/
  smScale : R
  /-- The query of a cell, by channel. -/
  query : Nat → Nat → Nat → Nat → R
  /-- The exact key of a stored token, by layer, KV head, stored token and channel. -/
  key : Nat → Nat → Nat → Nat → R
  /-- Whether a channel of a layer and KV head is an outlier channel, whose keys are kept exactly. -/
  outlier : Nat → Nat → Nat → Bool
  /-- The stored scale of a key entry. -/
  scale : Nat → Nat → Nat → Nat → R
  /-- The code that the kernel computes for a key entry when its dither has index `j`, before it is limited to `±Q`. -/
  code : Nat → Nat → Nat → Nat → Nat → Int
  /-- How far the computed code may be from a nearest integer to `x/s + ξ`, beyond 1/2: 0 for exact arithmetic. -/
  slack : R
  /-- Which of the drawn dithers belongs to a key entry. -/
  coord : Nat → Nat → Nat → Nat → Nat
  /-- What is applied to scaled dot products to give logits: a soft-cap, or nothing. -/
  cap : R → R

/-- What the kernel computes in outcome `k` of the dither, by cell. -/
structure Served (R : Type u) where
  /-- The logit of the `i`-th token that the cell sees. -/
  logit : Nat → Nat → Nat → Nat → Nat → R
  /-- A bound on the error of that logit against exact arithmetic on the served keys. -/
  arith : Nat → Nat → Nat → Nat → Nat → R
  /-- The bound `u` on the logit error of the `i`-th token that enters the meter. -/
  bound : Nat → Nat → Nat → Nat → Nat → R
  /-- The reported accumulator `A`, if there is one. -/
  A_hat : Nat → Nat → Nat → Nat → Option R
  /-- The reported maximum `C`, if there is one. -/
  C_hat : Nat → Nat → Nat → Nat → Option R

namespace Request

/-- `(l, h, t)` is a cell of the request. -/
def Cell {R : Type u} (r : Request R) (l h t : Nat) : Prop := l < r.layers ∧ h < r.heads ∧ t < r.steps

/-- Some cell of the request sees token `i` stored for layer `l` and KV head `g`. -/
def Seen {R : Type u} (r : Request R) (l g i : Nat) : Prop :=
  ∃ h t n, r.Cell l h t ∧ n < r.tokens l h t ∧ g = r.kvHead h ∧ i = r.slot l h t n

section
variable {R : Type u} [Field R] (r : Request R)

/-- The quantization step of a key entry: its scale, or 0 in an outlier channel, which is kept exactly. -/
def step (l g i c : Nat) : R := if r.outlier l g c then 0 else r.scale l g i c

/-- The key entry that is served in outcome `k`: `s (code - ξ)`, the code limited to `±Q`, or the exact one in an outlier channel. -/
def servedKey (k l g i c : Nat) : R :=
  let j := draw (2 ^ r.bits) k (r.coord l g i c)
  if r.outlier l g c then r.key l g i c
  else dequantize (2 ^ r.bits) (r.scale l g i c) (clip r.limit (r.code l g i c j)) j

/-- The exact scaled dot product of a cell's query with the key of its `i`-th token, `sm Σ q k`. -/
def exactDot (l h t i : Nat) : R :=
  r.smScale * sum (fun c => r.query l h t c * r.key l (r.kvHead h) (r.slot l h t i) c) r.dim

/-- The scaled dot product with the served key in outcome `k`, in exact arithmetic. -/
def servedDot (k l h t i : Nat) : R :=
  r.smScale * sum (fun c => r.query l h t c * r.servedKey k l (r.kvHead h) (r.slot l h t i) c) r.dim

/-- The variance proxy of the logit error of a token, `ς² = sm² Σ q² s² / 12`, over the channels that are not outliers. -/
def varSq (l h t i : Nat) : R :=
  r.smScale ^ 2 * sum (fun c => r.query l h t c ^ 2 * r.step l (r.kvHead h) (r.slot l h t i) c ^ 2) r.dim / 12

/-- The part of a logit error that the dither does not average out, `sm Σ |q| s (1/(2n) + slack)` with `n = 2^b`. -/
noncomputable def bias [LE R] (l h t i : Nat) : R :=
  r.smScale * sum (fun c => abs (r.query l h t c) * r.step l (r.kvHead h) (r.slot l h t i) c) r.dim
    * (1 / (2 * ((2 ^ r.bits : Nat) : R)) + r.slack)

/-- Exact attention of a cell: the softmax of the exact logits. -/
def exactWeights [LE R] [Exp R] (l h t : Nat) : Nat → R :=
  softmax (fun i => r.cap (r.exactDot l h t i)) (r.tokens l h t)

/-- Served attention of a cell in outcome `k`: the softmax of the kernel's logits. -/
def servedWeights [LE R] [Exp R] (m : Served R) (k l h t : Nat) : Nat → R :=
  softmax (m.logit k l h t) (r.tokens l h t)

/-- The total variation between exact and served attention of a cell in outcome `k`. -/
noncomputable def cellTV [LE R] [Exp R] (m : Served R) (k l h t : Nat) : R :=
  tv (r.exactWeights l h t) (r.servedWeights m k l h t) (r.tokens l h t)

end
end Request

/-- The meter that is reported for a cell in outcome `k`. -/
noncomputable def Served.cellMeter {R : Type u} [Field R] [LE R] [Exp R] (m : Served R) (k l h t : Nat) : R :=
  meterOf (m.A_hat k l h t) (m.C_hat k l h t)

end WitCert.Core
