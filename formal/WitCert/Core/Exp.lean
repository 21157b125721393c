import WitCert.Core.Abs
/-!
# The exponential

All that Core assumes of the exponential is `exp (x + y) = exp x * exp y` and `1 + x ≤ exp x`. Everything else that is used
(`exp 0 = 1`, positivity, monotonicity) follows and is proved here. `Real.exp` satisfies both.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- An exponential on an ordered field: the functional equation, and the tangent at 0 as a lower bound. -/
class Exp (R : Type u) [Field R] [LE R] where
  /-- The exponential function. -/
  exp : R → R
  /-- The functional equation. -/
  exp_add : ∀ x y : R, exp (x + y) = exp x * exp y
  /-- The tangent at 0 lies below. -/
  one_add_le_exp : ∀ x : R, 1 + x ≤ exp x

export Exp (exp exp_add one_add_le_exp)

section
attribute [local instance] Semiring.natCast

/-- The Archimedean property: every element is at most some natural number. Only the inequalities on `cosh` and `sinh` need it. -/
class Archimedean (R : Type u) [Field R] [LE R] : Prop where
  /-- Every element is at most some natural number. -/
  exists_nat_ge : ∀ x : R, ∃ n : Nat, x ≤ (n : R)

end

variable [Exp R]

/-- The exponential of 0 is 1. -/
theorem exp_zero : exp (0 : R) = 1 := by
  have h := exp_add (0 : R) 0
  have h1 := one_add_le_exp (0 : R)
  rw [show (0 : R) + 0 = 0 by grind] at h
  have h2 : exp (0 : R) ≠ 0 := by
    have h0 := OrderedRing.zero_lt_one (R := R)
    grind
  grind

/-- The exponential of `-x` is the inverse of the exponential of `x`, as a product. -/
theorem exp_mul_neg (x : R) : exp x * exp (-x) = 1 := by
  rw [← exp_add, show x + -x = 0 by grind, exp_zero]

/-- Exponentials are positive. -/
theorem exp_pos (x : R) : 0 < exp x := by
  have h := exp_add (x / 2) (x / 2)
  rw [show x / 2 + x / 2 = x by grind] at h
  have h1 := mul_self_nonneg (exp (x / 2))
  have h2 := exp_mul_neg x
  have h3 : exp x ≠ 0 := by
    intro h0
    rw [h0] at h2
    have h4 := Field.zero_ne_one (α := R)
    grind
  grind

/-- The exponential is monotone. -/
theorem exp_mono {x y : R} (h : x ≤ y) : exp x ≤ exp y := by
  have h1 : exp y = exp x * exp (y - x) := by rw [← exp_add, show x + (y - x) = y by grind]
  have h2 := one_add_le_exp (y - x)
  have h3 := OrderedRing.mul_le_mul_of_nonneg_left (show (1 : R) ≤ exp (y - x) by grind)
    (show 0 ≤ exp x by have := exp_pos x; grind)
  grind

/-- The exponential of a nonnegative number is at least 1. -/
theorem one_le_exp {x : R} (h : 0 ≤ x) : 1 ≤ exp x := by
  have := one_add_le_exp x
  grind

/-- The exponential of a positive number is more than 1. -/
theorem one_lt_exp {x : R} (h : 0 < x) : 1 < exp x := by
  have := one_add_le_exp x
  grind

/-- An error within `c` moves a weight `exp (-ε)` up by at most `exp c`. -/
theorem exp_neg_le_of_abs_le {e c : R} (h : abs e ≤ c) : exp (-e) ≤ exp c :=
  exp_mono (le_of_abs_le h).2.1

/-- An error within `c` moves a weight `exp (-ε)` down by at most `exp (-c)`. -/
theorem exp_neg_ge_of_abs_le {e c : R} (h : abs e ≤ c) : exp (-c) ≤ exp (-e) :=
  exp_mono (by have := le_of_abs_le h; grind)

end WitCert.Core
