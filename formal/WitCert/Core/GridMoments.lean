import WitCert.Core.Average
import WitCert.Core.Grid

/-!
# Mean and variance of the dither grid

The grid of `n` values has mean 0 and variance `(1 - 1/n²) / 12`. So the variance proxy of `grid_mgf` is the variance, and
`12 g²`, which lies between 0 and 3, has mean at most 1.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The dither grid has mean 0. -/
theorem grid_mean {n : Nat} (h_pos : 0 < n) : average (fun j => (grid n j : R)) n = 0 := by
  have hN := natCast_pos (R := R) h_pos
  have h : ∀ m : Nat, sum (fun j => (grid n j : R)) m = (m : R) * ((m : R) - (n : R)) / (2 * (n : R)) := fun m => by
    induction m with
    | zero => rw [sum_zero, Semiring.natCast_zero]; grind
    | succ m ih => rw [sum_succ, ih, Semiring.natCast_succ]; unfold grid; grind
  unfold average
  rw [h]; grind

/-- The dither grid has variance `(1 - 1/n²) / 12`, that of the continuous uniform dither less a 12th of the square of a cell. -/
theorem grid_variance {n : Nat} (h_pos : 0 < n) :
    average (fun j => (grid n j : R) * grid n j) n = (1 - 1 / ((n : R) * (n : R))) / 12 := by
  have hN := natCast_pos (R := R) h_pos
  have h : ∀ m : Nat, sum (fun j => (grid n j : R) * grid n j) m
      = ((m : R) * (4 * (m : R) * (m : R) - 1) / 3 - 2 * (n : R) * (m : R) * (m : R) + (m : R) * (n : R) * (n : R))
        / (4 * (n : R) * (n : R)) := fun m => by
    induction m with
    | zero => rw [sum_zero, Semiring.natCast_zero]; grind
    | succ m ih => rw [sum_succ, ih, Semiring.natCast_succ]; unfold grid; grind
  unfold average
  rw [h]; grind

end WitCert.Core
