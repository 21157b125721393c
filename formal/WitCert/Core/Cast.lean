import WitCert.Core.Order

/-!
# Natural numbers and powers of two in an ordered field
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- A positive natural number is positive in every ordered field. -/
theorem natCast_pos {n : Nat} (h : 0 < n) : (0 : R) < (n : R) := by
  obtain ⟨m, rfl⟩ : ∃ m, n = m + 1 := ⟨n - 1, by omega⟩
  have h1 := OrderedRing.zero_lt_one (R := R)
  have h2 := OrderedRing.natCast_nonneg (R := R) (a := m)
  rw [Semiring.natCast_succ]; grind

/-- A power of two is the same in the natural numbers and in the field. -/
theorem natCast_two_pow (b : Nat) : ((2 ^ b : Nat) : R) = 2 ^ b := by
  induction b with
  | zero => rw [Nat.pow_zero, Semiring.pow_zero]; exact Semiring.natCast_one
  | succ b ih => rw [Nat.pow_succ, Semiring.pow_succ, Semiring.natCast_mul, ih]; grind

/-- Powers of two are positive. -/
theorem pow_two_pos (n : Nat) : (0 : R) < 2 ^ n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  induction n with
  | zero => rw [Semiring.pow_zero]; exact h01
  | succ n ih => rw [Semiring.pow_succ]; grind

/-- A power of four is the square of the same power of two. -/
theorem four_pow_eq (n : Nat) : (4 : R) ^ n = 2 ^ n * 2 ^ n := by
  induction n with
  | zero => rw [Semiring.pow_zero, Semiring.pow_zero]; grind
  | succ n ih => rw [Semiring.pow_succ, Semiring.pow_succ, ih]; grind

/-- A natural number `n` is at most `2ⁿ`. -/
theorem natCast_le_two_pow (n : Nat) : (n : R) ≤ 2 ^ n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  induction n with
  | zero => rw [Semiring.natCast_zero, Semiring.pow_zero]; grind
  | succ n ih =>
    have h1 : (1 : R) ≤ 2 ^ n := by
      clear ih
      induction n with
      | zero => rw [Semiring.pow_zero]; grind
      | succ n ih => rw [Semiring.pow_succ]; grind
    rw [Semiring.natCast_succ, Semiring.pow_succ]; grind

end WitCert.Core
