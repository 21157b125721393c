/-!
# Definitions: rounding up to binary16

An exact integer model of IEEE 754 binary16 (half precision) rounding toward +∞, for nonnegative numbers. Values are counted in units
of `2⁻²⁴`, the least positive binary16 number, so every finite nonnegative binary16 number is a natural number here: it is `m * 2^e`
with a significand `m < 2¹¹` and `e ≤ 29`. The input is an exact fraction `a / b`.
-/
namespace WitCert.Core

/-- The largest finite binary16 number, 65504, in units of `2⁻²⁴`. -/
def halfMax : Nat := 65504 * 2 ^ 24

/-- `u` units are a finite nonnegative binary16 number. -/
def IsHalf (u : Nat) : Prop := ∃ m e, m < 2 ^ 11 ∧ e ≤ 29 ∧ u = m * 2 ^ e

/-- The value, in units of `2⁻²⁴`, of a nonnegative finite binary16 number from its 16-bit pattern `code < 0x7C00`: five bits of exponent
above ten bits of significand. -/
def halfValue (code : Nat) : Nat :=
  if code < 1024 then code else (1024 + code % 1024) * 2 ^ (code / 1024 - 1)

/-- The least integer that is at least `a / b`. -/
def ceilDiv (a b : Nat) : Nat := (a + b - 1) / b

/-- `u` with its 11 leading bits kept, rounded up. -/
def up11 (u : Nat) : Nat := ceilDiv u (2 ^ (u.log2 - 10)) * 2 ^ (u.log2 - 10)

/-- The fraction `a / b` rounded up to binary16, in units of `2⁻²⁴`; `none` is +∞. -/
def ru16 (a b : Nat) : Option Nat :=
  let u := up11 (ceilDiv (a * 2 ^ 24) b)
  if u ≤ halfMax then some u else none

end WitCert.Core
