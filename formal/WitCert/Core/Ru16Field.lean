import WitCert.Core.Ru16
import WitCert.Core.Cast
/-!
# Rounding up to binary16, as numbers of the field

The bridge from the integer model to witnesses: a stored binary16 value, `u` units of `2⁻²⁴`, is at least every number that is at most the
fraction `a / b` it was rounded from.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The order of natural numbers is kept in an ordered field. -/
theorem natCast_le {a b : Nat} (h_le : a ≤ b) : (a : R) ≤ (b : R) := by
  obtain ⟨k, rfl⟩ := Nat.exists_eq_add_of_le h_le
  have h := OrderedRing.natCast_nonneg (R := R) (a := k)
  rw [Semiring.natCast_add]
  grind

/-- A stored witness is at least the number it was rounded from: if `x ≤ a / b` and `a / b` rounded up to binary16 is `u` units of
`2⁻²⁴`, then `x ≤ u / 2²⁴`. -/
theorem ru16_ge_field {a b u : Nat} {x : R} (h_pos : 0 < b) (h_finite : ru16 a b = some u) (h_le : x ≤ (a : R) / (b : R)) :
    x ≤ (u : R) / 2 ^ 24 := by
  have h1 : ((a * 2 ^ 24 : Nat) : R) ≤ ((u * b : Nat) : R) := natCast_le (ru16_ge h_pos h_finite)
  rw [Semiring.natCast_mul, Semiring.natCast_mul, natCast_two_pow] at h1
  exact Std.le_trans h_le (div_le_div_of_cross (natCast_pos h_pos) (pow_two_pos 24) h1)

end WitCert.Core
