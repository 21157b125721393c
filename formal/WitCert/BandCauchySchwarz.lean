import Mathlib.Data.Real.Sqrt
import Mathlib.Analysis.Complex.Trigonometric
import Mathlib.Algebra.Order.BigOperators.Ring.Finset
import Mathlib.Tactic.Linarith
import Mathlib.Tactic.Ring
import Mathlib.Tactic.Positivity

/-!
# Logit bounds: Cauchy–Schwarz by bands, rotations, half steps, scaled Cauchy–Schwarz

Coordinates are a finite type `ι`, and `band : ι → β` says to which band a coordinate belongs.
-/

open Finset

namespace WitCert

variable {ι β : Type*} [Fintype ι] [Fintype β] [DecidableEq β]

/-- Banded Cauchy–Schwarz with nonnegative numbers `nq b`, `nr b` whose squares are at least the band sums.
(So stored upper bounds of the norms may be used.) -/
theorem band_cauchy_schwarz_of_le (q r : ι → ℝ) (band : ι → β) (nq nr : β → ℝ)
    (h_nq : ∀ b, 0 ≤ nq b) (h_nr : ∀ b, 0 ≤ nr b)
    (hq : ∀ b, ∑ i ∈ univ.filter (fun i => band i = b), q i ^ 2 ≤ nq b ^ 2)
    (hr : ∀ b, ∑ i ∈ univ.filter (fun i => band i = b), r i ^ 2 ≤ nr b ^ 2) :
    |∑ i, q i * r i| ≤ ∑ b, nq b * nr b := by
  have h1 : ∑ i, q i * r i = ∑ b, ∑ i ∈ univ.filter (fun i => band i = b), q i * r i :=
    (sum_fiberwise univ band fun i => q i * r i).symm
  rw [h1]
  refine (abs_sum_le_sum_abs _ _).trans (sum_le_sum fun b _ => ?_)
  refine abs_le_of_sq_le_sq ?_ (mul_nonneg (h_nq b) (h_nr b))
  calc (∑ i ∈ univ.filter (fun i => band i = b), q i * r i) ^ 2
      ≤ (∑ i ∈ univ.filter (fun i => band i = b), q i ^ 2) *
          ∑ i ∈ univ.filter (fun i => band i = b), r i ^ 2 := sum_mul_sq_le_sq_mul_sq _ q r
    _ ≤ nq b ^ 2 * nr b ^ 2 :=
        mul_le_mul (hq b) (hr b) (sum_nonneg fun i _ => sq_nonneg _) (sq_nonneg _)
    _ = (nq b * nr b) ^ 2 := by ring

/-- Banded Cauchy–Schwarz: `|q·r| ≤ ∑_b ‖q_b‖ ‖r_b‖`. -/
theorem band_cauchy_schwarz (q r : ι → ℝ) (band : ι → β) :
    |∑ i, q i * r i| ≤ ∑ b, √(∑ i ∈ univ.filter (fun i => band i = b), q i ^ 2) *
      √(∑ i ∈ univ.filter (fun i => band i = b), r i ^ 2) := by
  have h0 : ∀ (f : ι → ℝ) (b : β), 0 ≤ ∑ i ∈ univ.filter (fun i => band i = b), f i ^ 2 :=
    fun f b => sum_nonneg fun i _ => sq_nonneg _
  exact band_cauchy_schwarz_of_le q r band _ _ (fun b => Real.sqrt_nonneg _) (fun b => Real.sqrt_nonneg _)
    (fun b => (Real.sq_sqrt (h0 q b)).ge) (fun b => (Real.sq_sqrt (h0 r b)).ge)

/-- A stored witness `w b` at least the true band norm may be used in its place. -/
theorem witness_mono (q r : ι → ℝ) (band : ι → β) (w : β → ℝ)
    (hw : ∀ b, √(∑ i ∈ univ.filter (fun i => band i = b), r i ^ 2) ≤ w b) :
    |∑ i, q i * r i| ≤ ∑ b, √(∑ i ∈ univ.filter (fun i => band i = b), q i ^ 2) * w b :=
  (band_cauchy_schwarz q r band).trans
    (sum_le_sum fun b _ => mul_le_mul_of_nonneg_left (hw b) (Real.sqrt_nonneg _))

/-! ### rotations -/

omit [Fintype β] in
/-- A direct sum of plane rotations that stay inside bands keeps the sum of squares of each band.
`x k`, `y k` are the two coordinates of pair `k`; `c k`, `s k` the cosine and sine of its angle. -/
theorem rope_band_unitary {κ : Type*} [Fintype κ] (x y c s : κ → ℝ) (band : κ → β)
    (h_unit : ∀ k, c k ^ 2 + s k ^ 2 = 1) (b : β) :
    ∑ k ∈ univ.filter (fun k => band k = b), ((x k * c k - y k * s k) ^ 2 + (x k * s k + y k * c k) ^ 2)
      = ∑ k ∈ univ.filter (fun k => band k = b), (x k ^ 2 + y k ^ 2) := by
  refine sum_congr rfl fun k _ => ?_
  have h : (x k * c k - y k * s k) ^ 2 + (x k * s k + y k * c k) ^ 2
      = (c k ^ 2 + s k ^ 2) * (x k ^ 2 + y k ^ 2) := by ring
  rw [h, h_unit k, one_mul]

omit [Fintype β] in
/-- The same with angles. -/
theorem rope_band_unitary_angle {κ : Type*} [Fintype κ] (x y θ : κ → ℝ) (band : κ → β) (b : β) :
    ∑ k ∈ univ.filter (fun k => band k = b), ((x k * Real.cos (θ k) - y k * Real.sin (θ k)) ^ 2
        + (x k * Real.sin (θ k) + y k * Real.cos (θ k)) ^ 2)
      = ∑ k ∈ univ.filter (fun k => band k = b), (x k ^ 2 + y k ^ 2) :=
  rope_band_unitary x y (fun k => Real.cos (θ k)) (fun k => Real.sin (θ k)) band
    (fun k => Real.cos_sq_add_sin_sq (θ k)) b

/-- The band norm of the residual of rotated keys is the band norm of the residual before rotation:
a witness stored before the rotation serves after it. -/
theorem rope_residual {κ : Type*} [Fintype κ] (x y x' y' c s : κ → ℝ) (h_unit : ∀ k, c k ^ 2 + s k ^ 2 = 1)
    (S : Finset κ) :
    ∑ k ∈ S, (((x k * c k - y k * s k) - (x' k * c k - y' k * s k)) ^ 2
        + ((x k * s k + y k * c k) - (x' k * s k + y' k * c k)) ^ 2)
      = ∑ k ∈ S, ((x k - x' k) ^ 2 + (y k - y' k) ^ 2) := by
  refine sum_congr rfl fun k _ => ?_
  have h : ((x k * c k - y k * s k) - (x' k * c k - y' k * s k)) ^ 2
      + ((x k * s k + y k * c k) - (x' k * s k + y' k * c k)) ^ 2
      = (c k ^ 2 + s k ^ 2) * ((x k - x' k) ^ 2 + (y k - y' k) ^ 2) := by ring
  rw [h, h_unit k, one_mul]

/-! ### bounds that need no stored norm -/

/-- Half a quantization step per coordinate. -/
theorem half_step (q r s : ι → ℝ) (hr : ∀ i, |r i| ≤ s i / 2) :
    |∑ i, q i * r i| ≤ (∑ i, |q i| * s i) / 2 := by
  have h : ∀ i, |q i * r i| ≤ |q i| * s i * (1 / 2) := fun i => by
    rw [abs_mul]
    have h1 := mul_le_mul_of_nonneg_left (hr i) (abs_nonneg (q i))
    linarith
  refine (abs_sum_le_sum_abs _ _).trans ((sum_le_sum fun i _ => h i).trans (le_of_eq ?_))
  rw [← sum_mul]
  ring

/-- Scaled Cauchy–Schwarz, squared. -/
theorem scaled_cs_sq (q r s : ι → ℝ) (hs : ∀ i, 0 < s i) :
    (∑ i, q i * r i) ^ 2 ≤ (∑ i, q i ^ 2 * s i ^ 2) * ∑ i, (r i / s i) ^ 2 := by
  refine sum_sq_le_sum_mul_sum_of_sq_eq_mul univ (fun i _ => by positivity) (fun i _ => by positivity) ?_
  intro i _
  have h : s i / s i = 1 := div_self (hs i).ne'
  calc (q i * r i) ^ 2 = q i ^ 2 * r i ^ 2 * 1 ^ 2 := by ring
    _ = q i ^ 2 * r i ^ 2 * (s i / s i) ^ 2 := by rw [h]
    _ = q i ^ 2 * s i ^ 2 * (r i / s i) ^ 2 := by ring

/-- Scaled Cauchy–Schwarz. -/
theorem scaled_cs (q r s : ι → ℝ) (hs : ∀ i, 0 < s i) :
    |∑ i, q i * r i| ≤ √(∑ i, q i ^ 2 * s i ^ 2) * √(∑ i, (r i / s i) ^ 2) := by
  have h1 : 0 ≤ ∑ i, q i ^ 2 * s i ^ 2 := sum_nonneg fun i _ => by positivity
  have h2 : 0 ≤ ∑ i, (r i / s i) ^ 2 := sum_nonneg fun i _ => by positivity
  refine abs_le_of_sq_le_sq ?_ (mul_nonneg (Real.sqrt_nonneg _) (Real.sqrt_nonneg _))
  rw [mul_pow, Real.sq_sqrt h1, Real.sq_sqrt h2]
  exact scaled_cs_sq q r s hs

/-- Attention that uses `q'` in place of `q`: one more Cauchy–Schwarz term, against the quantized key. -/
theorem query_cast_term (q q' k k' : ι → ℝ) (band : ι → β) :
    |∑ i, q i * k i - ∑ i, q' i * k' i|
      ≤ ∑ b, √(∑ i ∈ univ.filter (fun i => band i = b), q i ^ 2) *
          √(∑ i ∈ univ.filter (fun i => band i = b), (k i - k' i) ^ 2)
        + ∑ b, √(∑ i ∈ univ.filter (fun i => band i = b), (q i - q' i) ^ 2) *
          √(∑ i ∈ univ.filter (fun i => band i = b), k' i ^ 2) := by
  have h : ∑ i, q i * k i - ∑ i, q' i * k' i
      = ∑ i, q i * (k i - k' i) + ∑ i, (q i - q' i) * k' i := by
    rw [← sum_sub_distrib, ← sum_add_distrib]
    exact sum_congr rfl fun i _ => by ring
  rw [h]
  exact (abs_add_le _ _).trans (add_le_add (band_cauchy_schwarz q (fun i => k i - k' i) band)
    (band_cauchy_schwarz (fun i => q i - q' i) k' band))

end WitCert
