import WitCert.Core.Outcomes

/-!
# The dither grid and dithered rounding: definitions

A `b`-bit dither takes the `n = 2 ^ b` values `ξ = grid n j`, `j < n`: the midpoints of `n` equal cells of `[-1/2, 1/2]`. A key
entry `x` with scale `s` is stored as an integer code near `x/s + ξ` and served as `s (code - ξ)`.
-/
open Lean.Grind

namespace WitCert.Core
attribute [local instance] Semiring.natCast Ring.intCast

/-- The `j`-th of the `n` grid values, `(2j + 1 - n) / (2n)`, for `j < n`: the midpoints of `n` equal cells of `[-1/2, 1/2]`. -/
def grid {R : Type u} [Field R] (n j : Nat) : R := (2 * (j : R) + 1 - (n : R)) / (2 * (n : R))

/-- Bit `i` of `j` as a fair sign: `1` if it is set, `-1` if not. -/
def sign {R : Type u} [Field R] (j i : Nat) : R := if j / 2 ^ i % 2 = 1 then 1 else -1

/-- The dither of channel `c` in outcome `k`, with `b` bits, if the channel uses coordinate `coord c`. -/
def dither {R : Type u} [Field R] (b : Nat) (coord : Nat → Nat) (k c : Nat) : R := grid (2 ^ b) (draw (2 ^ b) k (coord c))

/-- What a stored code with scale `s` is served as, `s (code - ξ)`, where `ξ = grid n j` is the dither it was stored with. -/
def dequantize {R : Type u} [Field R] (n : Nat) (s : R) (code : Int) (j : Nat) : R := s * ((code : R) - grid n j)

/-- The residual of a key entry `x`: what it is served as, minus what it is. -/
def residual {R : Type u} [Field R] (n : Nat) (x s : R) (code : Int) (j : Nat) : R := dequantize n s code j - x

/-- A code limited to the range from `-Q` to `Q` (`Q = 127` for 8-bit codes). -/
def clip (Q : Nat) (code : Int) : Int := if code < -(Q : Int) then -(Q : Int) else if (Q : Int) < code then Q else code

end WitCert.Core
