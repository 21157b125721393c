/-!
# Growth of the factorial

`6ⁿ · n! ≤ (2n + 1)!`: the comparison of coefficients behind `sinh x ≤ x · exp (x²/6)`, whose two sides are the power series
with the coefficients `1/(2n + 1)!` and `1/(6ⁿ · n!)`. (`sinh_le` itself is proved without power series, in `CoshSinh`.)
-/

namespace WitCert.Core

/-- The factorial, `n! = 1 · 2 ⋯ n`. -/
def factorial : Nat → Nat
  | 0 => 1
  | n + 1 => (n + 1) * factorial n

/-- For every `n`, the number `6ⁿ · n!` is at most `(2n + 1)!`. -/
theorem factorial_growth (n : Nat) : 6 ^ n * factorial n ≤ factorial (2 * n + 1) := by
  induction n with
  | zero => decide
  | succ n ih =>
    have h : factorial (2 * (n + 1) + 1) = (2 * n + 3) * ((2 * n + 2) * factorial (2 * n + 1)) := rfl
    have h6 : 6 * (n + 1) ≤ (2 * n + 3) * (2 * n + 2) := by grind
    have hm := Nat.mul_le_mul h6 ih
    rw [h, Nat.pow_succ, show factorial (n + 1) = (n + 1) * factorial n from rfl]
    grind

end WitCert.Core
