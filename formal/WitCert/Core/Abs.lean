import WitCert.Core.Sum
/-!
# Absolute values

Lean's own library has no absolute value on an abstract ordered ring; this is it, with the rules that Core uses.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

open Classical in
/-- The absolute value. -/
noncomputable def abs {R : Type u} [Field R] [LE R] (x : R) : R := if 0 ≤ x then x else -x

/-- An absolute value is at most what bounds the number and its negative. -/
theorem abs_le {x b : R} (h1 : x ≤ b) (h2 : -x ≤ b) : abs x ≤ b := by
  unfold abs; split <;> assumption

/-- What bounds an absolute value bounds the number and its negative, and is nonnegative. -/
theorem le_of_abs_le {x b : R} (h : abs x ≤ b) : x ≤ b ∧ -x ≤ b ∧ 0 ≤ b := by
  unfold abs at h; split at h <;> grind

/-- A number is at most its absolute value. -/
theorem le_abs_self (x : R) : x ≤ abs x := by
  unfold abs; split <;> grind

/-- The negative of a number is at most its absolute value. -/
theorem neg_le_abs (x : R) : -x ≤ abs x := by
  unfold abs; split <;> grind

/-- An absolute value is nonnegative. -/
theorem abs_nonneg (x : R) : 0 ≤ abs x := by
  unfold abs; split <;> grind

/-- A nonnegative number is its absolute value. -/
theorem abs_of_nonneg {x : R} (h : 0 ≤ x) : abs x = x := by
  unfold abs; rw [if_pos h]

/-- The absolute value of a number that is not positive is its negative. -/
theorem abs_of_nonpos {x : R} (h : x ≤ 0) : abs x = -x := by
  unfold abs; split <;> grind

/-- The absolute value of 0 is 0. -/
theorem abs_zero : abs (0 : R) = 0 := abs_of_nonneg (by grind)

/-- A number and its negative have the same absolute value. -/
theorem abs_neg (x : R) : abs (-x) = abs x := by
  unfold abs; split <;> split <;> grind

/-- The triangle inequality. -/
theorem abs_add_le (x y : R) : abs (x + y) ≤ abs x + abs y := by
  have h1 := le_abs_self x
  have h2 := le_abs_self y
  have h3 := neg_le_abs x
  have h4 := neg_le_abs y
  exact abs_le (by grind) (by grind)

/-- The absolute value of a product is the product of the absolute values. -/
theorem abs_mul (x y : R) : abs (x * y) = abs x * abs y := by
  rcases Std.le_total (a := (0 : R)) (b := x) with hx | hx <;> rcases Std.le_total (a := (0 : R)) (b := y) with hy | hy
  · rw [abs_of_nonneg hx, abs_of_nonneg hy, abs_of_nonneg (OrderedRing.mul_nonneg hx hy)]
  · have h := OrderedRing.mul_nonneg hx (show 0 ≤ -y by grind)
    rw [abs_of_nonneg hx, abs_of_nonpos hy, abs_of_nonpos (by grind)]; grind
  · have h := OrderedRing.mul_nonneg (show 0 ≤ -x by grind) hy
    rw [abs_of_nonpos hx, abs_of_nonneg hy, abs_of_nonpos (by grind)]; grind
  · have h := OrderedRing.mul_nonneg (show 0 ≤ -x by grind) (show 0 ≤ -y by grind)
    rw [abs_of_nonpos hx, abs_of_nonpos hy, abs_of_nonneg (by grind)]; grind

/-- A number whose square is at most that of a nonnegative `v` has absolute value at most `v`. -/
theorem abs_le_of_mul_self_le {u v : R} (hv : 0 ≤ v) (h : u * u ≤ v * v) : abs u ≤ v :=
  abs_le (le_of_mul_self_le hv h) (le_of_mul_self_le hv (by grind))

/-- The absolute value of a sum is at most the sum of the absolute values. -/
theorem abs_sum_le (f : Nat → R) (n : Nat) : abs (sum f n) ≤ sum (fun i => abs (f i)) n := by
  induction n with
  | zero => simp only [sum_zero, abs_zero]; grind
  | succ n ih =>
    have h := abs_add_le (sum f n) (f n)
    simp only [sum_succ]; grind

end WitCert.Core
