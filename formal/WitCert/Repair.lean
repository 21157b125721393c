import Mathlib.Analysis.Normed.Group.Basic
import Mathlib.Data.Fintype.BigOperators
import Mathlib.Tactic.Abel
import WitCert.TotalVariation

/-!
# Making tokens exact, and the bound on the output

Paging in the tokens of `J` sets their logit error to zero. The attention that is then used is `pagedIn`,
its bound `pagedBound`.
-/

open Finset

namespace WitCert

variable {ι : Type*} [Fintype ι] [DecidableEq ι]

/-- The weight that replaces `pt t`: `exp (-ε t)` on `J`, 1 elsewhere. -/
noncomputable def pageWeight (ε : ι → ℝ) (J : Finset ι) (t : ι) : ℝ := if t ∈ J then Real.exp (-ε t) else 1

/-- The distribution after paging in `J`. -/
noncomputable def pagedIn (pt ε : ι → ℝ) (J : Finset ι) (t : ι) : ℝ :=
  pt t * pageWeight ε J t / ∑ s, pt s * pageWeight ε J s

/-- The per-token bound after paging in `J`. -/
noncomputable def pagedBound (c : ι → ℝ) (J : Finset ι) (t : ι) : ℝ := if t ∈ J then 0 else c t

/-- Splitting a sum over `J` and its complement. -/
theorem sum_ite_mem_compl (J : Finset ι) (f g : ι → ℝ) :
    ∑ t, (if t ∈ J then f t else g t) = ∑ t ∈ J, f t + ∑ t ∈ Jᶜ, g t := by
  rw [← sum_add_sum_compl J]
  congr 1
  · exact sum_congr rfl fun t ht => if_pos ht
  · exact sum_congr rfl fun t ht => if_neg (mem_compl.1 ht)

/-- The sum that normalises attention after paging in, split into the block and the rest. -/
theorem sum_pageWeight (pt ε : ι → ℝ) (J : Finset ι) :
    ∑ t, pt t * pageWeight ε J t = ∑ t ∈ J, pt t * Real.exp (-ε t) + ∑ t ∈ Jᶜ, pt t := by
  rw [← sum_ite_mem_compl]
  refine sum_congr rfl fun t _ => ?_
  unfold pageWeight
  split_ifs <;> simp

/-- The accumulator after paging in, exactly. -/
theorem acert_pagedIn (pt ε c : ι → ℝ) (J : Finset ι) :
    acert (pagedIn pt ε J) (pagedBound c J)
      = (∑ t ∈ J, pt t * Real.exp (-ε t) + ∑ t ∈ Jᶜ, pt t * Real.exp (c t))
        / (∑ t ∈ J, pt t * Real.exp (-ε t) + ∑ t ∈ Jᶜ, pt t) := by
  rw [← sum_pageWeight]
  unfold acert pagedIn
  generalize ∑ t, pt t * pageWeight ε J t = Z
  rw [← sum_ite_mem_compl, div_eq_mul_inv, sum_mul]
  refine sum_congr rfl fun t _ => ?_
  unfold pageWeight pagedBound
  by_cases h : t ∈ J
  · simp only [if_pos h, Real.exp_zero, mul_one, div_eq_mul_inv]
  · simp only [if_neg h, mul_one, div_eq_mul_inv]
    ring

/-- `(N + x)/(M + x)` decreases in `x` when `M ≤ N`. -/
theorem shifted_ratio_anti {N M x y : ℝ} (hNM : M ≤ N) (hyx : y ≤ x) (hy : 0 < M + y) :
    (x + N) / (x + M) ≤ (N + y) / (M + y) := by
  have hx : 0 < x + M := by linarith
  rw [div_le_div_iff₀ hx hy]
  have h := mul_nonneg (sub_nonneg.2 hNM) (sub_nonneg.2 hyx)
  linarith

/-- Bound on the accumulator after paging in `J`, from quantities known before. -/
theorem page_in_bound (pt ε c : ι → ℝ) (J : Finset ι) (h_nonneg : ∀ t, 0 ≤ pt t) (h_bound : ∀ t, |ε t| ≤ c t)
    (h_pos_den : 0 < ∑ t ∈ Jᶜ, pt t + ∑ t ∈ J, pt t * Real.exp (-c t)) :
    acert (pagedIn pt ε J) (pagedBound c J)
      ≤ (∑ t ∈ Jᶜ, pt t * Real.exp (c t) + ∑ t ∈ J, pt t * Real.exp (-c t))
        / (∑ t ∈ Jᶜ, pt t + ∑ t ∈ J, pt t * Real.exp (-c t)) := by
  rw [acert_pagedIn]
  refine shifted_ratio_anti (sum_le_sum fun t _ => ?_) (sum_le_sum fun t _ => ?_) h_pos_den
  · exact le_mul_of_one_le_right (h_nonneg t) (Real.one_le_exp ((abs_nonneg _).trans (h_bound t)))
  · exact mul_le_mul_of_nonneg_left (Real.exp_le_exp.2 (neg_le_neg (abs_le.1 (h_bound t)).2)) (h_nonneg t)

omit [DecidableEq ι] in
/-- If nothing is left to repair, the distributions agree. -/
theorem repair_exact (pt ε p : ι → ℝ) (h_sum_one : ∑ t, pt t = 1) (h_repaired : ∀ t, ε t = 0)
    (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) : tv p pt = 0 := by
  have h1 : ∀ t, pt t * Real.exp (-ε t) = pt t := fun t => by rw [h_repaired t, neg_zero, Real.exp_zero, mul_one]
  have hz : znorm pt ε = 1 := by
    unfold znorm
    rw [← h_sum_one]
    exact sum_congr rfl fun t _ => h1 t
  have h2 : ∀ t, |p t - pt t| = 0 := fun t => by rw [h_exact t, h1 t, hz, div_one, sub_self, abs_zero]
  unfold tv
  rw [sum_eq_zero fun t _ => h2 t, zero_div]

/-- The update of the accumulator by `A - mass * (exp u - 1)`, with `pt` kept fixed, can be too small:
two tokens of mass 1/2 with the same bound `u > 0`, the first paged in, its error being `u`. -/
theorem page_in_naive_unsound (u : ℝ) (h_pos : 0 < u) :
    acert (fun _ : Bool => (1 / 2 : ℝ)) (fun _ => u) - 1 / 2 * (Real.exp u - 1)
      < acert (pagedIn (fun _ : Bool => (1 / 2 : ℝ)) (fun _ => u) {true}) (pagedBound (fun _ => u) {true}) := by
  have hc : ({true} : Finset Bool)ᶜ = {false} := by decide
  rw [acert_pagedIn, hc, sum_singleton, sum_singleton, sum_singleton]
  unfold acert
  rw [Fintype.sum_bool]
  have h1 : 1 < Real.exp u := Real.one_lt_exp_iff.2 h_pos
  have h2 : Real.exp u * Real.exp (-u) = 1 := by rw [← Real.exp_add, add_neg_cancel, Real.exp_zero]
  have h3 := Real.exp_pos (-u)
  generalize Real.exp u = x at *
  generalize Real.exp (-u) = y at *
  have h_pos_den : 0 < 1 / 2 * y + 1 / 2 := by linarith
  rw [lt_div_iff₀ h_pos_den]
  have h4 : 0 < (x - 1) * (1 - y) := by
    have hy : y < 1 := by nlinarith
    exact mul_pos (by linarith) (by linarith)
  nlinarith

/-- A scalar sum times a vector. (Also `Finset.sum_smul` of Mathlib.Algebra.Module.BigOperators.) -/
theorem sum_smul_const {κ E : Type*} [AddCommGroup E] [Module ℝ E] (S : Finset κ) (f : κ → ℝ) (x : E) :
    ∑ t ∈ S, f t • x = (∑ t ∈ S, f t) • x := by
  classical
  induction S using Finset.induction_on with
  | empty => rw [sum_empty, sum_empty, zero_smul]
  | insert a S ha ih => rw [sum_insert ha, sum_insert ha, add_smul, ih]

omit [DecidableEq ι] in
/-- The error of the output, for any real vector space with a norm (the hypothesis `hsmul` is `norm_smul`).
`v'` are the values used, `v0` any fixed vector. -/
theorem output_bound_of_norm {E : Type*} [SeminormedAddCommGroup E] [Module ℝ E]
    (hsmul : ∀ (a : ℝ) (x : E), ‖a • x‖ = |a| * ‖x‖) (p pt : ι → ℝ) (v v' : ι → E) (v0 : E) (ρ : ι → ℝ) (B : ℝ)
    (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_eq : ∑ t, p t = ∑ t, pt t) (h_value : ∀ t, ‖v t - v0‖ ≤ B)
    (h_value_error : ∀ t, ‖v t - v' t‖ ≤ ρ t) :
    ‖∑ t, p t • v t - ∑ t, pt t • v' t‖ ≤ 2 * tv p pt * B + ∑ t, pt t * ρ t := by
  have h0 : ∑ t, (p t - pt t) • v0 = 0 := by
    rw [sum_smul_const, sum_sub_distrib, h_sum_eq, sub_self, zero_smul]
  have e : ∑ t, p t • v t - ∑ t, pt t • v' t
      = ∑ t, (p t - pt t) • (v t - v0) + ∑ t, pt t • (v t - v' t) := by
    have h1 : ∑ t, (p t - pt t) • (v t - v0) = ∑ t, p t • v t - ∑ t, pt t • v t - ∑ t, (p t - pt t) • v0 := by
      rw [← sum_sub_distrib, ← sum_sub_distrib]
      exact sum_congr rfl fun t _ => by rw [smul_sub, sub_smul]
    have h2 : ∑ t, pt t • (v t - v' t) = ∑ t, pt t • v t - ∑ t, pt t • v' t := by
      rw [← sum_sub_distrib]
      exact sum_congr rfl fun t _ => smul_sub _ _ _
    rw [h1, h2, h0]
    abel
  rw [e]
  have h3 : ‖∑ t, (p t - pt t) • (v t - v0)‖ ≤ 2 * tv p pt * B := by
    refine (norm_sum_le _ _).trans ?_
    have h4 : 2 * tv p pt * B = ∑ t, |p t - pt t| * B := by
      unfold tv
      rw [← sum_mul]
      ring
    rw [h4]
    exact sum_le_sum fun t _ => by
      rw [hsmul]
      exact mul_le_mul_of_nonneg_left (h_value t) (abs_nonneg _)
  have h5 : ‖∑ t, pt t • (v t - v' t)‖ ≤ ∑ t, pt t * ρ t := by
    refine (norm_sum_le _ _).trans (sum_le_sum fun t _ => ?_)
    rw [hsmul, abs_of_nonneg (h_nonneg t)]
    exact mul_le_mul_of_nonneg_left (h_value_error t) (h_nonneg t)
  exact (norm_add_le _ _).trans (add_le_add h3 h5)

end WitCert
