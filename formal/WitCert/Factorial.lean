import Mathlib.Data.Nat.Factorial.Basic
import WitCert.Core

/-!
# Growth of factorials, for the factorial of Mathlib

`6ⁿ n! ≤ (2n + 1)!`: termwise, it says that the power series of `sinh x / x` is at most that of `exp (x²/6)`.
-/

namespace WitCert

/-- Core's factorial is the usual one. -/
theorem core_factorial (n : ℕ) : Core.factorial n = n.factorial := by
  induction n with
  | zero => rfl
  | succ n ih =>
    show (n + 1) * Core.factorial n = (n + 1).factorial
    rw [ih, Nat.factorial_succ]

/-- For every `n`, the number `6ⁿ · n!` is at most `(2n + 1)!`. -/
theorem factorial_growth (n : ℕ) : 6 ^ n * n.factorial ≤ (2 * n + 1).factorial := by
  have h := Core.factorial_growth n
  rw [core_factorial, core_factorial] at h
  exact h

end WitCert
