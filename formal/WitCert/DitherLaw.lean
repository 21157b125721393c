import Mathlib.Algebra.Order.Round
import Mathlib.MeasureTheory.Integral.IntervalIntegral.Periodic
import Mathlib.Tactic.Linarith
import Mathlib.Tactic.Ring

/-!
# The law of the subtractively dithered residual, continuous form

A key entry `x` with scale `s` is stored as `round (x/s + ξ)` and served as `s (round (x/s + ξ) - ξ)`. If the dither `ξ` is uniform on
`[-1/2, 1/2]`, the residual divided by `s` is uniform on `[-1/2, 1/2]`, whatever `x` is: every function of it has the same mean as the same
function of a uniform variable. Functions need not be measurable: both integrals are then 0 by convention. The finite form, on which the
kernels rest, is `WitCert.Core.grid_dither_law`.
-/

open MeasureTheory

namespace WitCert

/-- The residual of dithered rounding is at most 1/2 in absolute value, for every dither. -/
theorem subtractive_dither_bound (y ξ : ℝ) : |(round (y + ξ) : ℝ) - ξ - y| ≤ 1 / 2 := by
  have e : (round (y + ξ) : ℝ) - ξ - y = -(y + ξ - (round (y + ξ) : ℝ)) := by ring
  rw [e, abs_neg]
  exact abs_sub_round (y + ξ)

/-- Subtractive dither: over a dither `ξ` that is uniform on `[-1/2, 1/2]`, every function of the residual `round (y + ξ) - ξ - y` has the
mean that it has over a uniform variable on `[-1/2, 1/2]`: the residual is uniform, whatever `y` is. -/
theorem subtractive_dither_law {E : Type*} [NormedAddCommGroup E] [NormedSpace ℝ E] (f : ℝ → E) (y : ℝ) :
    ∫ ξ in (-(1 / 2) : ℝ)..(1 / 2), f ((round (y + ξ) : ℝ) - ξ - y) = ∫ v in (-(1 / 2) : ℝ)..(1 / 2), f v := by
  have hper : Function.Periodic (fun z : ℝ => f ((round z : ℝ) - z)) 1 := fun z => by
    have e : (round (z + 1) : ℝ) - (z + 1) = (round z : ℝ) - z := by
      rw [round_add_one, Int.cast_add, Int.cast_one]
      ring
    show f ((round (z + 1) : ℝ) - (z + 1)) = f ((round z : ℝ) - z)
    rw [e]
  have h1 : ∫ ξ in (-(1 / 2) : ℝ)..(1 / 2), f ((round (y + ξ) : ℝ) - ξ - y)
      = ∫ ξ in (-(1 / 2) : ℝ)..(1 / 2), f ((round (y + ξ) : ℝ) - (y + ξ)) :=
    intervalIntegral.integral_congr fun ξ _ => by
      have e : (round (y + ξ) : ℝ) - ξ - y = (round (y + ξ) : ℝ) - (y + ξ) := by ring
      show f ((round (y + ξ) : ℝ) - ξ - y) = f ((round (y + ξ) : ℝ) - (y + ξ))
      rw [e]
  have h2 : ∫ ξ in (-(1 / 2) : ℝ)..(1 / 2), f ((round (y + ξ) : ℝ) - (y + ξ))
      = ∫ z in (y + -(1 / 2))..(y + 1 / 2), f ((round z : ℝ) - z) :=
    intervalIntegral.integral_comp_add_left (fun z : ℝ => f ((round z : ℝ) - z)) y
  have h3 : ∫ z in (y + -(1 / 2))..(y + -(1 / 2) + 1), f ((round z : ℝ) - z)
      = ∫ z in (-(1 / 2) : ℝ)..(-(1 / 2) + 1), f ((round z : ℝ) - z) :=
    hper.intervalIntegral_add_eq (y + -(1 / 2)) (-(1 / 2))
  have e1 : y + -(1 / 2) + 1 = y + 1 / 2 := by ring
  have e2 : (-(1 / 2) : ℝ) + 1 = 1 / 2 := by norm_num
  rw [e1, e2] at h3
  have h4 : ∫ z in (-(1 / 2) : ℝ)..(1 / 2), f ((round z : ℝ) - z) = ∫ z in (-(1 / 2) : ℝ)..(1 / 2), f (-z) := by
    refine intervalIntegral.integral_congr_ae ?_
    filter_upwards [(Set.countable_singleton (1 / 2 : ℝ)).ae_notMem volume] with z hz hz'
    have hz1 : z ≠ 1 / 2 := fun h => hz (Set.mem_singleton_iff.2 h)
    rw [Set.uIoc_of_le (by norm_num : (-(1 / 2) : ℝ) ≤ 1 / 2)] at hz'
    have hr : round z = 0 := round_eq_zero_iff.2 ⟨hz'.1.le, lt_of_le_of_ne hz'.2 hz1⟩
    rw [hr, Int.cast_zero, zero_sub]
  have h5 : ∫ z in (-(1 / 2) : ℝ)..(1 / 2), f (-z) = ∫ z in (-(1 / 2) : ℝ)..(- -(1 / 2)), f z :=
    intervalIntegral.integral_comp_neg f
  rw [neg_neg] at h5
  rw [h1, h2, h3, h4, h5]

/-- The same for an entry `x` with scale `s`: the residual `s (round (x/s + ξ) - ξ) - x` is distributed as `s v`, where `v` is uniform on
`[-1/2, 1/2]`. -/
theorem subtractive_dither_law_scaled {E : Type*} [NormedAddCommGroup E] [NormedSpace ℝ E] (f : ℝ → E) (x : ℝ) {s : ℝ}
    (h_scale : s ≠ 0) :
    ∫ ξ in (-(1 / 2) : ℝ)..(1 / 2), f (s * ((round (x / s + ξ) : ℝ) - ξ) - x)
      = ∫ v in (-(1 / 2) : ℝ)..(1 / 2), f (s * v) := by
  have h : ∫ ξ in (-(1 / 2) : ℝ)..(1 / 2), f (s * ((round (x / s + ξ) : ℝ) - ξ - x / s))
      = ∫ v in (-(1 / 2) : ℝ)..(1 / 2), f (s * v) := subtractive_dither_law (fun v => f (s * v)) (x / s)
  rw [← h]
  refine intervalIntegral.integral_congr fun ξ _ => ?_
  have e1 : s * (x / s) = x := mul_div_cancel₀ _ h_scale
  have e2 : s * ((round (x / s + ξ) : ℝ) - ξ - x / s) = s * ((round (x / s + ξ) : ℝ) - ξ) - s * (x / s) := by ring
  show f (s * ((round (x / s + ξ) : ℝ) - ξ) - x) = f (s * ((round (x / s + ξ) : ℝ) - ξ - x / s))
  rw [e2, e1]

end WitCert
