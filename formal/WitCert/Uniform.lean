import WitCert.ForMathlib.UniformMGF

/-!
# A continuous dither, uniform on `[-a, a]`

Its moment-generating function is at most that of the Gaussian with the same variance. The kernels draw finitely many bits and rest on
`WitCert.Core.grid_mgf`; these are the continuous forms.
-/

open MeasureTheory ProbabilityTheory
open scoped ENNReal NNReal

namespace WitCert

variable {Ω : Type*} {mΩ : MeasurableSpace Ω} {μ : Measure Ω} {X : Ω → ℝ} {a : ℝ}

/-- A dither that is uniform on `[-a, a]` is sub-Gaussian with its variance `a² / 3` as proxy. -/
theorem uniform_hasSubgaussianMGF (h_pos : 0 < a) (h_uniform : pdf.IsUniform X (Set.Icc (-a) a) μ) :
    HasSubgaussianMGF X ⟨a ^ 2 / 3, div_nonneg (sq_nonneg a) (by norm_num)⟩ μ :=
  ForMathlib.hasSubgaussianMGF_of_isUniform h_pos h_uniform

/-- The moment-generating function of a dither that is uniform on `[-a, a]` is at most `exp (λ² a² / 6)`. -/
theorem uniform_mgf (h_pos : 0 < a) (h_uniform : pdf.IsUniform X (Set.Icc (-a) a) μ) (l : ℝ) :
    mgf X μ l ≤ Real.exp (l ^ 2 * a ^ 2 / 6) := by
  have h := (uniform_hasSubgaussianMGF h_pos h_uniform).mgf_le l
  have e : l ^ 2 * a ^ 2 / 6 = a ^ 2 / 3 * l ^ 2 / 2 := by ring
  rw [e]
  exact h

end WitCert
