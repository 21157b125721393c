/-!
# Facts about an ordered field

The order facts that the rest of Core uses and that Lean's own library does not state: products of inequalities, inverses,
quotients, and the smaller and larger of two numbers. Everything is over an abstract ordered field, so it holds in `ℝ` and
in the rational numbers alike.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-! ### products -/

/-- A square, written as a product, is nonnegative. -/
theorem mul_self_nonneg (x : R) : 0 ≤ x * x := by
  have h := OrderedRing.sq_nonneg (a := x)
  grind

/-- Numbers compare as their squares do, when the larger is nonnegative. -/
theorem le_of_mul_self_le {u v : R} (hv : 0 ≤ v) (h : u * u ≤ v * v) : u ≤ v := by
  apply Classical.byContradiction
  intro hn
  have h1 : v < u := by grind
  have h2 := OrderedRing.mul_lt_mul_of_pos_left h1 (show (0 : R) < u by grind)
  have h3 := OrderedRing.mul_le_mul_of_nonneg_right (show v ≤ u by grind) hv
  grind

/-- Inequalities between nonnegative numbers may be multiplied. -/
theorem mul_le_mul' {a b c d : R} (h1 : a ≤ b) (h2 : c ≤ d) (hc : 0 ≤ c) (hb : 0 ≤ b) : a * c ≤ b * d := by
  have h3 := OrderedRing.mul_le_mul_of_nonneg_right h1 hc
  have h4 := OrderedRing.mul_le_mul_of_nonneg_left h2 hb
  grind

/-- Squares, written as products, compare as nonnegative numbers do. -/
theorem mul_self_le {a b : R} (ha : 0 ≤ a) (h : a ≤ b) : a * a ≤ b * b :=
  mul_le_mul' h h ha (by grind)

/-- A positive factor on the right may be cancelled. -/
theorem le_of_mul_le_mul_right {a b c : R} (h : a * c ≤ b * c) (hc : 0 < c) : a ≤ b := by
  apply Classical.byContradiction
  intro hn
  have h1 := OrderedRing.mul_lt_mul_of_pos_right (show b < a by grind) hc
  grind

/-- Two positive numbers with product at least 1 have sum at least 2. -/
theorem two_le_add {u x : R} (hu : 0 < u) (hx : 0 < x) (h : 1 ≤ u * x) : 2 ≤ u + x := by
  have h1 := mul_self_nonneg (u - x)
  apply le_of_mul_self_le
  · grind
  · grind

/-! ### inverses and quotients -/

/-- A positive number times its inverse is 1. -/
theorem mul_inv_self {x : R} (h : 0 < x) : x * x⁻¹ = 1 := Field.mul_inv_cancel (by grind)

/-- The inverse of a positive number is positive. -/
theorem inv_pos {x : R} (h : 0 < x) : 0 < x⁻¹ := by
  have h1 := mul_inv_self h
  have h01 := OrderedRing.zero_lt_one (R := R)
  apply Classical.byContradiction
  intro hn
  have h2 := OrderedRing.mul_le_mul_of_nonneg_left (show x⁻¹ ≤ 0 by grind) (show 0 ≤ x by grind)
  grind

/-- Inverses of positive numbers compare the other way. -/
theorem inv_anti {x y : R} (hx : 0 < x) (h : x ≤ y) : y⁻¹ ≤ x⁻¹ := by
  have hy : 0 < y := by grind
  have h1 := mul_inv_self hx
  have h2 := mul_inv_self hy
  have h3 := OrderedRing.mul_pos (inv_pos hx) (inv_pos hy)
  have h4 := OrderedRing.mul_le_mul_of_nonneg_right h (show 0 ≤ x⁻¹ * y⁻¹ by grind)
  rw [← Semiring.mul_assoc, h1, Semiring.one_mul, CommSemiring.mul_comm x⁻¹, ← Semiring.mul_assoc, h2,
    Semiring.one_mul] at h4
  exact h4

/-- A quotient by a positive number times that number is the numerator. -/
theorem div_mul_self (a : R) {b : R} (h : 0 < b) : a / b * b = a := by
  have h1 := mul_inv_self h
  grind

/-- To bound a quotient from above, multiply out. -/
theorem div_le_of_le_mul {a b x : R} (hb : 0 < b) (h : a ≤ x * b) : a / b ≤ x :=
  le_of_mul_le_mul_right (by rw [div_mul_self a hb]; exact h) hb

/-- To bound a quotient from below, multiply out. -/
theorem le_div_of_mul_le {a b x : R} (hb : 0 < b) (h : x * b ≤ a) : x ≤ a / b :=
  le_of_mul_le_mul_right (by rw [div_mul_self a hb]; exact h) hb

/-- To bound a quotient strictly from below, multiply out. -/
theorem lt_div_of_mul_lt {a b x : R} (hb : 0 < b) (h : x * b < a) : x < a / b := by
  apply Classical.byContradiction
  intro hn
  have h1 := OrderedRing.mul_le_mul_of_nonneg_right (show a / b ≤ x by grind) (show 0 ≤ b by grind)
  rw [div_mul_self a hb] at h1
  grind

/-- To bound a quotient strictly from above, multiply out. -/
theorem div_lt_of_lt_mul {a b x : R} (hb : 0 < b) (h : a < x * b) : a / b < x := by
  apply Classical.byContradiction
  intro hn
  have h1 := OrderedRing.mul_le_mul_of_nonneg_right (show x ≤ a / b by grind) (show 0 ≤ b by grind)
  rw [div_mul_self a hb] at h1
  grind

/-- A bound on a quotient, multiplied out. -/
theorem le_mul_of_div_le {a b x : R} (hb : 0 < b) (h : a / b ≤ x) : a ≤ x * b := by
  have h1 := OrderedRing.mul_le_mul_of_nonneg_right h (show 0 ≤ b by grind)
  rw [div_mul_self a hb] at h1
  exact h1

/-- Quotients with positive denominators compare as the cross products do. -/
theorem div_le_div_of_cross {a b c d : R} (hb : 0 < b) (hd : 0 < d) (h : a * d ≤ c * b) : a / b ≤ c / d := by
  apply div_le_of_le_mul hb
  apply le_of_mul_le_mul_right (c := d) _ hd
  have h1 := div_mul_self c hd
  have h2 : c / d * b * d = c / d * d * b := by
    rw [Semiring.mul_assoc, CommSemiring.mul_comm b d, ← Semiring.mul_assoc]
  rw [h2, h1]
  exact h

/-- A quotient of nonnegative numbers is nonnegative. -/
theorem div_nonneg {a b : R} (ha : 0 ≤ a) (hb : 0 < b) : 0 ≤ a / b :=
  le_div_of_mul_le hb (by grind)

/-- A quotient of positive numbers is positive. -/
theorem div_pos {a b : R} (ha : 0 < a) (hb : 0 < b) : 0 < a / b :=
  lt_div_of_mul_lt hb (by grind)

/-! ### the smaller and the larger of two numbers -/

open Classical in
/-- The smaller of two numbers. -/
noncomputable def minimum {R : Type u} [LE R] (x y : R) : R := if x ≤ y then x else y

open Classical in
/-- The larger of two numbers. -/
noncomputable def maximum {R : Type u} [LE R] (x y : R) : R := if x ≤ y then y else x

/-- What is at most both numbers is at most the smaller. -/
theorem le_minimum {a x y : R} (hx : a ≤ x) (hy : a ≤ y) : a ≤ minimum x y := by
  unfold minimum; split <;> assumption

/-- The smaller of two numbers is at most the first. -/
theorem minimum_le_left (x y : R) : minimum x y ≤ x := by
  unfold minimum; split <;> grind

/-- The smaller of two numbers is at most the second. -/
theorem minimum_le_right (x y : R) : minimum x y ≤ y := by
  unfold minimum; split <;> grind

/-- The smaller of two numbers grows with both. -/
theorem minimum_mono {x y x' y' : R} (hx : x ≤ x') (hy : y ≤ y') : minimum x y ≤ minimum x' y' := by
  have h1 := minimum_le_left x y
  have h2 := minimum_le_right x y
  exact le_minimum (by grind) (by grind)

/-- What is at least both numbers is at least the larger. -/
theorem maximum_le {a x y : R} (hx : x ≤ a) (hy : y ≤ a) : maximum x y ≤ a := by
  unfold maximum; split <;> assumption

/-- The first of two numbers is at most the larger. -/
theorem le_maximum_left (x y : R) : x ≤ maximum x y := by
  unfold maximum; split <;> grind

/-- The second of two numbers is at most the larger. -/
theorem le_maximum_right (x y : R) : y ≤ maximum x y := by
  unfold maximum; split <;> grind

end WitCert.Core
