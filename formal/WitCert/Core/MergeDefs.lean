import WitCert.Core.Defs
/-!
# Definitions: splits and blocks of tokens

Split-KV kernels treat the cache in parts. `part t` says to which part token `t` belongs, `r t ≥ 0` is its unnormalised weight.
`massOn` and `avgOn` are what one part reports; `maxOver` is a running maximum.
-/
open Lean.Grind

namespace WitCert.Core

variable {R : Type u} [Field R]

/-- The mass of part `s`: the sum of the unnormalised weights of its tokens. -/
def massOn (r : Nat → R) (part : Nat → Nat) (s n : Nat) : R := sumIf (fun t => part t = s) r n

/-- The average of `f` over part `s`, weighted by `r`. -/
def avgOn (r f : Nat → R) (part : Nat → Nat) (s n : Nat) : R :=
  sumIf (fun t => part t = s) (fun t => r t * f t) n / massOn r part s n

/-- The running maximum of `f` on the indices `i < n`, starting from 0. -/
noncomputable def maxOver [LE R] (f : Nat → R) : Nat → R
  | 0 => 0
  | n + 1 => maximum (maxOver f n) (f n)

/-- The maximum of `c` over the tokens of part `s`. -/
noncomputable def maxOn [LE R] (c : Nat → R) (part : Nat → Nat) (s n : Nat) : R :=
  maxOver (fun t => if part t = s then c t else 0) n

end WitCert.Core
