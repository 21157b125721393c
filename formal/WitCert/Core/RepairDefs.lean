import WitCert.Core.Defs
/-!
# Definitions: attention after some tokens were made exact

Paging in the tokens `t` with `J t` sets their logit errors to 0: served attention then is `pagedIn`, the errors that remain are
`pagedError`, and `pagedBound` bounds them.
-/
open Lean.Grind

namespace WitCert.Core

variable {R : Type u} [Field R] [LE R]

/-- The factor by which paging in changes the unnormalised weight of token `t`: `exp (-ε t)` on `J`, and 1 elsewhere. -/
def pageWeight [Exp R] (ε : Nat → R) (J : Nat → Prop) [DecidablePred J] (t : Nat) : R := if J t then exp (-ε t) else 1

/-- Served attention after the tokens of `J` were made exact. -/
def pagedIn [Exp R] (pt ε : Nat → R) (J : Nat → Prop) [DecidablePred J] (n t : Nat) : R :=
  pt t * pageWeight ε J t / sum (fun s => pt s * pageWeight ε J s) n

/-- The logit errors after the tokens of `J` were made exact. -/
def pagedError (ε : Nat → R) (J : Nat → Prop) [DecidablePred J] (t : Nat) : R := if J t then 0 else ε t

/-- The per-token bounds after the tokens of `J` were made exact. -/
def pagedBound (c : Nat → R) (J : Nat → Prop) [DecidablePred J] (t : Nat) : R := if J t then 0 else c t

end WitCert.Core
