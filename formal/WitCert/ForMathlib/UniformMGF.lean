import Mathlib.Analysis.SpecialFunctions.Integrals.Basic
import Mathlib.Probability.Distributions.Uniform
import Mathlib.Probability.Moments.SubGaussian
import WitCert.ForMathlib.SinhLe

/-!
# The moment-generating function of the uniform distribution on `[-a, a]`

It is `sinh (t a) / (t a)`, and at most `exp (t² a² / 6)`: the uniform distribution is sub-Gaussian with its own variance, `a² / 3`, as
parameter.
-/

open MeasureTheory ProbabilityTheory
open scoped ENNReal NNReal

namespace ForMathlib

/-- The integral of `exp (t x)` over `[-a, a]`. -/
theorem integral_exp_mul_symm {t : ℝ} (ht : t ≠ 0) (a : ℝ) :
    ∫ x in (-a)..a, Real.exp (t * x) = 2 * Real.sinh (t * a) / t := by
  have h : ∫ x in (-a)..a, Real.exp (t * x) = t⁻¹ • ∫ x in (t * -a)..(t * a), Real.exp x :=
    intervalIntegral.integral_comp_mul_left Real.exp ht
  have h2 : ∫ x in (t * -a)..(t * a), Real.exp x = Real.exp (t * a) - Real.exp (t * -a) := integral_exp
  rw [h, h2, smul_eq_mul, Real.sinh_eq, mul_neg]
  ring

/-- The average of `exp (t x)` over `[-a, a]` is at most `exp (t² a² / 6)`. -/
theorem average_exp_mul_le {a : ℝ} (ha : 0 < a) (t : ℝ) :
    (2 * a)⁻¹ * ∫ x in (-a)..a, Real.exp (t * x) ≤ Real.exp (t ^ 2 * a ^ 2 / 6) := by
  have hpos : 0 < 2 * a := mul_pos two_pos ha
  have main : ∀ t : ℝ, 0 < t →
      (2 * a)⁻¹ * ∫ x in (-a)..a, Real.exp (t * x) ≤ Real.exp (t ^ 2 * a ^ 2 / 6) := by
    intro t ht
    have h := Real.sinh_le_mul_exp_sq_div_six (mul_nonneg ht.le ha.le)
    have e : (t * a) ^ 2 / 6 = t ^ 2 * a ^ 2 / 6 := by ring
    rw [e] at h
    have key : 2 * Real.sinh (t * a) / t ≤ 2 * a * Real.exp (t ^ 2 * a ^ 2 / 6) := by
      rw [div_le_iff₀ ht]
      linarith
    rw [integral_exp_mul_symm ht.ne']
    calc (2 * a)⁻¹ * (2 * Real.sinh (t * a) / t)
        ≤ (2 * a)⁻¹ * (2 * a * Real.exp (t ^ 2 * a ^ 2 / 6)) :=
          mul_le_mul_of_nonneg_left key (inv_pos.2 hpos).le
      _ = Real.exp (t ^ 2 * a ^ 2 / 6) := by rw [← mul_assoc, inv_mul_cancel₀ hpos.ne', one_mul]
  rcases lt_trichotomy t 0 with ht | ht | ht
  · have h := main (-t) (neg_pos.2 ht)
    have h1 : ∫ x in (-a)..a, Real.exp (t * -x) = ∫ x in (-a)..(- -a), Real.exp (t * x) :=
      intervalIntegral.integral_comp_neg fun x => Real.exp (t * x)
    have h2 : ∫ x in (-a)..a, Real.exp (-t * x) = ∫ x in (-a)..a, Real.exp (t * -x) :=
      intervalIntegral.integral_congr fun x _ => by
        show Real.exp (-t * x) = Real.exp (t * -x)
        rw [neg_mul, mul_neg]
    rw [neg_neg] at h1
    rw [h2, h1, neg_sq] at h
    exact h
  · have h1 : ∫ x in (-a)..a, Real.exp (t * x) = ∫ _x in (-a)..a, (1 : ℝ) :=
      intervalIntegral.integral_congr fun x _ => by
        show Real.exp (t * x) = 1
        rw [ht, zero_mul, Real.exp_zero]
    have h2 : ∫ _x in (-a)..a, (1 : ℝ) = (a - -a) • (1 : ℝ) := intervalIntegral.integral_const 1
    have h3 : (a - -a) • (1 : ℝ) = 2 * a := by
      rw [smul_eq_mul]
      ring
    rw [h1, h2, h3, inv_mul_cancel₀ hpos.ne']
    exact Real.one_le_exp (div_nonneg (mul_nonneg (sq_nonneg t) (sq_nonneg a)) (by norm_num))
  · exact main t ht

/-- A random variable that is uniform on `[-a, a]` is sub-Gaussian with its variance, `a² / 3`, as parameter. -/
theorem hasSubgaussianMGF_of_isUniform {Ω : Type*} {mΩ : MeasurableSpace Ω} {μ : Measure Ω} {X : Ω → ℝ} {a : ℝ} (ha : 0 < a)
    (hX : pdf.IsUniform X (Set.Icc (-a) a) μ) :
    HasSubgaussianMGF X ⟨a ^ 2 / 3, div_nonneg (sq_nonneg a) (by norm_num)⟩ μ := by
  have hpos : 0 < 2 * a := mul_pos two_pos ha
  have hle : -a ≤ a := by linarith
  have hvol : volume (Set.Icc (-a) a) = ENNReal.ofReal (2 * a) := by
    have e : a - -a = 2 * a := by ring
    rw [Real.volume_Icc, e]
  have hns : volume (Set.Icc (-a) a) ≠ 0 := by
    rw [hvol]
    exact (ENNReal.ofReal_pos.2 hpos).ne'
  have hnt : volume (Set.Icc (-a) a) ≠ ∞ := by
    rw [hvol]
    exact ENNReal.ofReal_ne_top
  have hXm : AEMeasurable X μ := hX.aemeasurable hns hnt
  haveI : IsProbabilityMeasure μ := hX.isProbabilityMeasure hns hnt
  have hmem : ∀ᵐ ω ∂μ, X ω ∈ Set.Icc (-a) a := by
    rw [ae_iff]
    show μ (X ⁻¹' (Set.Icc (-a) a)ᶜ) = 0
    rw [hX.measure_preimage hns hnt measurableSet_Icc.compl, Set.inter_compl_self, measure_empty, ENNReal.zero_div]
  refine ⟨fun t => integrable_exp_mul_of_mem_Icc hXm hmem, fun t => ?_⟩
  have hmap : Measure.map X μ = (volume (Set.Icc (-a) a))⁻¹ • volume.restrict (Set.Icc (-a) a) := hX
  have h1 : mgf X μ t = (2 * a)⁻¹ * ∫ x in (-a)..a, Real.exp (t * x) := by
    rw [← mgf_id_map hXm, hmap]
    show ∫ x, Real.exp (t * x) ∂((volume (Set.Icc (-a) a))⁻¹ • volume.restrict (Set.Icc (-a) a)) = _
    rw [integral_smul_measure, hvol, ENNReal.toReal_inv, ENNReal.toReal_ofReal hpos.le, smul_eq_mul,
      integral_Icc_eq_integral_Ioc, ← intervalIntegral.integral_of_le hle]
  have h2 := average_exp_mul_le ha t
  have e : t ^ 2 * a ^ 2 / 6 = a ^ 2 / 3 * t ^ 2 / 2 := by ring
  rw [← h1, e] at h2
  exact h2

end ForMathlib
