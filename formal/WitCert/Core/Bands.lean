import WitCert.Core.LogitDefs
import WitCert.Core.Weights
/-!
# Logit bounds from stored band norms

The error of a logit is the dot product of the query with the residual of a key. Cauchy–Schwarz band by band bounds it by the
norms of the bands of the query and of the residual, and the latter are what the witness stores. `band` maps each channel
`i < d` to its band, a number below `B`; it may be any map.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]
variable {d B : Nat} {band : Nat → Nat}

/-- A band's sum of squares is nonnegative. -/
theorem bandSq_nonneg (x : Nat → R) (band : Nat → Nat) (b d : Nat) : 0 ≤ bandSq x band b d :=
  sumIf_nonneg fun _ _ _ => OrderedRing.sq_nonneg

/-- Cauchy–Schwarz by bands on absolute values, with upper bounds `nq b`, `nr b` of the band norms. -/
theorem sum_abs_mul_le_bands {q r nq nr : Nat → R} (h_band : ∀ i, i < d → band i < B)
    (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_nr : ∀ b, b < B → 0 ≤ nr b)
    (h_nq_sq : ∀ b, b < B → bandSq q band b d ≤ nq b ^ 2) (h_nr_sq : ∀ b, b < B → bandSq r band b d ≤ nr b ^ 2) :
    sum (fun i => abs (q i * r i)) d ≤ sum (fun b => nq b * nr b) B := by
  rw [← sum_sumIf band (fun i => abs (q i * r i)) B d h_band]
  refine sum_le fun b hb => le_of_mul_self_le (OrderedRing.mul_nonneg (h_nq b hb) (h_nr b hb)) ?_
  have h1 := cauchy (fun i => if band i = b then abs (q i) else 0) (fun i => if band i = b then abs (r i) else 0) d
  have e1 : sum (fun i => (if band i = b then abs (q i) else 0) * (if band i = b then abs (r i) else 0)) d
      = sumIf (fun i => band i = b) (fun i => abs (q i * r i)) d := sum_congr fun i _ => by
    by_cases hi : band i = b
    · simp only [if_pos hi, abs_mul]
    · simp only [if_neg hi]; grind
  have e2 : ∀ x : Nat → R, sum (fun i => (if band i = b then abs (x i) else 0) * (if band i = b then abs (x i) else 0)) d
      = bandSq x band b d := fun x => sum_congr fun i _ => by
    by_cases hi : band i = b
    · simp only [if_pos hi, ← abs_mul, abs_of_nonneg (mul_self_nonneg _)]; grind
    · simp only [if_neg hi]; grind
  rw [e1, e2, e2] at h1
  have h2 := mul_le_mul' (h_nq_sq b hb) (h_nr_sq b hb) (bandSq_nonneg r band b d) OrderedRing.sq_nonneg
  grind

/-- A dot product is at most the sum of the absolute values of its terms. -/
theorem abs_dot_le (q r : Nat → R) (d : Nat) : abs (dot q r d) ≤ sum (fun i => abs (q i * r i)) d :=
  abs_sum_le _ _

/-- A dot product with a difference is the difference of the dot products. -/
theorem dot_sub (q x y : Nat → R) (d : Nat) : dot q (fun i => x i - y i) d = dot q x d - dot q y d := by
  unfold dot
  rw [← sum_sub]
  exact sum_congr fun i _ => by grind

/-- Cauchy–Schwarz by bands with over-estimates: `|q · r| ≤ Σ_b nq_b nr_b` when `nq_b`, `nr_b` are at least the band norms. -/
theorem band_cauchy_schwarz_upper {q r nq nr : Nat → R} (h_band : ∀ i, i < d → band i < B)
    (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_nr : ∀ b, b < B → 0 ≤ nr b)
    (h_nq_sq : ∀ b, b < B → bandSq q band b d ≤ nq b ^ 2) (h_nr_sq : ∀ b, b < B → bandSq r band b d ≤ nr b ^ 2) :
    abs (dot q r d) ≤ sum (fun b => nq b * nr b) B :=
  Std.le_trans (abs_dot_le q r d) (sum_abs_mul_le_bands h_band h_nq h_nr h_nq_sq h_nr_sq)

/-- Cauchy–Schwarz by bands: a dot product is at most the sum over bands of the products of the band norms. -/
theorem band_cauchy_schwarz {q r nq nr : Nat → R} (h_band : ∀ i, i < d → band i < B)
    (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_nr : ∀ b, b < B → 0 ≤ nr b)
    (h_nq_sq : ∀ b, b < B → nq b ^ 2 = bandSq q band b d) (h_nr_sq : ∀ b, b < B → nr b ^ 2 = bandSq r band b d) :
    abs (dot q r d) ≤ sum (fun b => nq b * nr b) B :=
  band_cauchy_schwarz_upper h_band h_nq h_nr (fun b hb => by have := h_nq_sq b hb; grind)
    (fun b hb => by have := h_nr_sq b hb; grind)

/-- Stored values that are at least the true band norms may be used in their place, for the query and for the residual. -/
theorem witness_mono {q r nq nr wq w : Nat → R} (h_band : ∀ i, i < d → band i < B)
    (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_nr : ∀ b, b < B → 0 ≤ nr b)
    (h_nq_sq : ∀ b, b < B → nq b ^ 2 = bandSq q band b d) (h_nr_sq : ∀ b, b < B → nr b ^ 2 = bandSq r band b d)
    (h_query : ∀ b, b < B → nq b ≤ wq b) (h_witness : ∀ b, b < B → nr b ≤ w b) :
    abs (dot q r d) ≤ sum (fun b => wq b * w b) B := by
  refine Std.le_trans (band_cauchy_schwarz h_band h_nq h_nr h_nq_sq h_nr_sq) (sum_le fun b hb => ?_)
  have h1 := h_nq b hb
  have h2 := h_query b hb
  exact mul_le_mul' h2 (h_witness b hb) (h_nr b hb) (by grind)

/-- Using a cast query costs one more term: if attention uses `q'` for `q` and `k'` for `k`, the dot product moves by at most
`Σ_b ‖q_b‖ ‖k_b - k'_b‖ + Σ_b ‖q_b - q'_b‖ ‖k'_b‖`. -/
theorem query_cast_term {q q' k k' nq nr ndq nk : Nat → R} (h_band : ∀ i, i < d → band i < B)
    (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_nr : ∀ b, b < B → 0 ≤ nr b)
    (h_ndq : ∀ b, b < B → 0 ≤ ndq b) (h_nk : ∀ b, b < B → 0 ≤ nk b)
    (h_nq_sq : ∀ b, b < B → bandSq q band b d ≤ nq b ^ 2)
    (h_nr_sq : ∀ b, b < B → bandSq (fun i => k i - k' i) band b d ≤ nr b ^ 2)
    (h_ndq_sq : ∀ b, b < B → bandSq (fun i => q i - q' i) band b d ≤ ndq b ^ 2)
    (h_nk_sq : ∀ b, b < B → bandSq k' band b d ≤ nk b ^ 2) :
    abs (dot q k d - dot q' k' d) ≤ sum (fun b => nq b * nr b) B + sum (fun b => ndq b * nk b) B := by
  have h1 := band_cauchy_schwarz_upper h_band h_nq h_nr h_nq_sq h_nr_sq
  have h2 := band_cauchy_schwarz_upper h_band h_ndq h_nk h_ndq_sq h_nk_sq
  have e : dot q k d - dot q' k' d = dot q (fun i => k i - k' i) d + dot (fun i => q i - q' i) k' d := by
    unfold dot
    rw [← sum_sub, ← sum_add]
    exact sum_congr fun i _ => by grind
  rw [e]
  have h3 := abs_add_le (dot q (fun i => k i - k' i) d) (dot (fun i => q i - q' i) k' d)
  grind

/-- Rounding of the dot product is paid at write time: if the computed value is within `γ Σ|q_c k̂_c|` of `q · k̂`, then the bound with
`w_b + γ ‖k̂_b‖` in place of `w_b` covers the residual and the arithmetic. -/
theorem arith_fold {q k k_hat nq w nk : Nat → R} {γ computed : R} (h_band : ∀ i, i < d → band i < B)
    (h_gamma : 0 ≤ γ) (h_nq : ∀ b, b < B → 0 ≤ nq b) (h_w : ∀ b, b < B → 0 ≤ w b) (h_nk : ∀ b, b < B → 0 ≤ nk b)
    (h_nq_sq : ∀ b, b < B → bandSq q band b d ≤ nq b ^ 2)
    (h_w_sq : ∀ b, b < B → bandSq (fun i => k_hat i - k i) band b d ≤ w b ^ 2)
    (h_nk_sq : ∀ b, b < B → bandSq k_hat band b d ≤ nk b ^ 2)
    (h_arith : abs (computed - dot q k_hat d) ≤ γ * sum (fun i => abs (q i * k_hat i)) d) :
    abs (computed - dot q k d) ≤ sum (fun b => nq b * (w b + γ * nk b)) B := by
  have h1 := band_cauchy_schwarz_upper h_band h_nq h_w h_nq_sq h_w_sq
  have h2 := sum_abs_mul_le_bands h_band h_nq h_nk h_nq_sq h_nk_sq
  have h3 := OrderedRing.mul_le_mul_of_nonneg_left h2 h_gamma
  rw [dot_sub] at h1
  have h4 := abs_add_le (computed - dot q k_hat d) (dot q k_hat d - dot q k d)
  rw [show computed - dot q k_hat d + (dot q k_hat d - dot q k d) = computed - dot q k d by grind] at h4
  have e : sum (fun b => nq b * (w b + γ * nk b)) B = sum (fun b => nq b * w b) B + γ * sum (fun b => nq b * nk b) B := by
    rw [← sum_mul, ← sum_add]
    exact sum_congr fun b _ => by grind
  rw [e]
  grind

/-! ### bounds that need no stored norm -/

/-- If every residual is within half a step, the dot product with any query is at most `(1/2) Σ |q_c| s_c`. -/
theorem half_step {q r s : Nat → R} (h_step : ∀ i, i < d → abs (r i) ≤ s i / 2) :
    abs (dot q r d) ≤ sum (fun i => abs (q i) * s i) d / 2 := by
  have h : sum (fun i => abs (q i * r i)) d ≤ sum (fun i => 1 / 2 * (abs (q i) * s i)) d := sum_le fun i hi => by
    rw [abs_mul]
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left (h_step i hi) (abs_nonneg (q i))
    grind
  rw [sum_mul] at h
  have h2 := abs_dot_le q r d
  grind

/-- Scaled Cauchy–Schwarz, squared: `(q · r)² ≤ (Σ q_c² s_c²) (Σ (r_c/s_c)²)`. A scale may be 0 where the residual is 0. -/
theorem scaled_cs {q r s : Nat → R} (h_zero : ∀ i, i < d → s i = 0 → r i = 0) :
    dot q r d ^ 2 ≤ sum (fun i => q i ^ 2 * s i ^ 2) d * sum (fun i => (r i / s i) ^ 2) d := by
  have h := cauchy (fun i => q i * s i) (fun i => r i / s i) d
  have e1 : sum (fun i => q i * s i * (r i / s i)) d = dot q r d := sum_congr fun i hi => by
    by_cases h0 : s i = 0
    · rw [h_zero i hi h0, h0]; grind
    · have h1 := Field.mul_inv_cancel h0
      rw [Field.div_eq_mul_inv]; grind
  have e2 : sum (fun i => q i * s i * (q i * s i)) d = sum (fun i => q i ^ 2 * s i ^ 2) d :=
    sum_congr fun i _ => by grind
  have e3 : sum (fun i => r i / s i * (r i / s i)) d = sum (fun i => (r i / s i) ^ 2) d :=
    sum_congr fun i _ => by grind
  rw [e1, e2, e3] at h
  grind

end WitCert.Core
