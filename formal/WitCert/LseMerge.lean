import Mathlib.Analysis.Complex.Exponential
import Mathlib.Algebra.Order.BigOperators.Ring.Finset
import WitCert.Defs

/-!
# Merging split-KV partials

`r t ≥ 0` are unnormalised attention weights, `part t` the split that holds token `t`, `f t` any per-token quantity
(for the certificate, `exp (c t)`). `massOn` and `avgOn` are what one split reports.
-/

open Finset

namespace WitCert

variable {ι σ : Type*} [Fintype ι] [Fintype σ] [DecidableEq σ]

/-- Mass of split `s`. -/
noncomputable def massOn (r : ι → ℝ) (part : ι → σ) (s : σ) : ℝ :=
  ∑ t ∈ univ.filter (fun t => part t = s), r t

/-- Weighted average of `f` over split `s`. -/
noncomputable def avgOn (r f : ι → ℝ) (part : ι → σ) (s : σ) : ℝ :=
  (∑ t ∈ univ.filter (fun t => part t = s), r t * f t) / massOn r part s

omit [Fintype σ] in
/-- A split of mass 0 contributes nothing, whatever its average is. -/
theorem massOn_mul_avgOn (r f : ι → ℝ) (part : ι → σ) (h_nonneg : ∀ t, 0 ≤ r t) (s : σ) :
    massOn r part s * avgOn r f part s = ∑ t ∈ univ.filter (fun t => part t = s), r t * f t := by
  by_cases h : massOn r part s = 0
  · have h0 : ∀ t ∈ univ.filter (fun t => part t = s), r t = 0 :=
      (sum_eq_zero_iff_of_nonneg fun t _ => h_nonneg t).1 h
    rw [h, zero_mul]
    exact (sum_eq_zero fun t ht => by rw [h0 t ht, zero_mul]).symm
  · unfold avgOn
    exact mul_div_cancel₀ _ h

/-- The masses of the splits sum to the mass of all tokens. -/
theorem sum_massOn (r : ι → ℝ) (part : ι → σ) : ∑ s, massOn r part s = ∑ t, r t :=
  sum_fiberwise univ part r

/-- The average over all tokens is the mass-weighted average of the splits' averages. -/
theorem lse_merge (r f : ι → ℝ) (part : ι → σ) (h_nonneg : ∀ t, 0 ≤ r t) :
    (∑ t, r t * f t) / ∑ t, r t
      = (∑ s, massOn r part s * avgOn r f part s) / ∑ s, massOn r part s := by
  rw [sum_massOn, ← sum_fiberwise univ part fun t => r t * f t]
  congr 1
  exact sum_congr rfl fun s _ => (massOn_mul_avgOn r f part h_nonneg s).symm

/-- With log-sum-exp values: if `massOn = exp (lse s)`, the merge may subtract any `M` (such as the largest). -/
theorem lse_merge_exp (r f : ι → ℝ) (part : ι → σ) (h_nonneg : ∀ t, 0 ≤ r t) (lse : σ → ℝ) (M : ℝ)
    (h_lse : ∀ s, massOn r part s = Real.exp (lse s)) :
    (∑ t, r t * f t) / ∑ t, r t
      = (∑ s, Real.exp (lse s - M) * avgOn r f part s) / ∑ s, Real.exp (lse s - M) := by
  have h1 : ∀ s, Real.exp (lse s - M) = massOn r part s * Real.exp (-M) := fun s => by
    rw [h_lse, ← Real.exp_add, sub_eq_add_neg]
  have h2 : ∑ s, Real.exp (lse s - M) * avgOn r f part s
      = (∑ s, massOn r part s * avgOn r f part s) * Real.exp (-M) := by
    rw [sum_mul]
    exact sum_congr rfl fun s _ => by rw [h1 s]; ring
  have h3 : ∑ s, Real.exp (lse s - M) = (∑ s, massOn r part s) * Real.exp (-M) := by
    rw [sum_mul]
    exact sum_congr rfl fun s _ => h1 s
  rw [lse_merge r f part h_nonneg, h2, h3, mul_div_mul_right _ _ (Real.exp_pos (-M)).ne']

/-- If the bound is constant on blocks, the accumulator needs only the mass of each block. -/
theorem blockwise_eq_perToken (pt c : ι → ℝ) (block : ι → σ) (cb : σ → ℝ) (h_const : ∀ t, c t = cb (block t)) :
    acert pt c = ∑ b, massOn pt block b * Real.exp (cb b) := by
  unfold acert massOn
  rw [← sum_fiberwise univ block fun t => pt t * Real.exp (c t)]
  refine sum_congr rfl fun b _ => ?_
  rw [sum_mul]
  refine sum_congr rfl fun t ht => ?_
  rw [h_const t, (mem_filter.1 ht).2]

end WitCert
