import WitCert.Core.RepairDefs
import WitCert.Core.LogitDefs
import WitCert.Core.Meter
/-!
# Making tokens exact

Paging in the tokens of a block `J` makes their logits exact. That changes the served distribution, so the accumulator must be
recomputed; `page_in_bound` bounds the new one from quantities known before. Keeping the old distribution and only taking the
block's excess off the accumulator can be too small: `page_in_naive_unsound`.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- A key that is served exactly has logit error at most 0, so 0 is a valid bound for its token. -/
theorem repair_residual_zero {q k k_hat : Nat → R} {d : Nat} (h_exact_key : ∀ i, i < d → k_hat i = k i) :
    abs (dot q k_hat d - dot q k d) ≤ 0 := by
  have h : dot q k_hat d = dot q k d := sum_congr fun i hi => by rw [h_exact_key i hi]
  rw [h, show dot q k d - dot q k d = 0 by grind, abs_zero]
  grind

variable [Exp R]
variable {n : Nat} {pt ε c p : Nat → R}

/-- If no token has an error, 0 is a valid bound for every token and total variation is 0. -/
theorem repair_exact (h_sum_one : sum pt n = 1) (h_repaired : ∀ t, t < n → ε t = 0)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    (∀ t, t < n → abs (ε t) ≤ 0) ∧ tv p pt n = 0 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have e : ∀ t, t < n → pt t * exp (-ε t) = pt t := fun t ht => by
    rw [h_repaired t ht, show -(0 : R) = 0 by grind, exp_zero]; grind
  have hz : znorm pt ε n = 1 := by rw [← h_sum_one]; exact sum_congr e
  refine ⟨fun t ht => by rw [h_repaired t ht, abs_zero]; grind, ?_⟩
  have h0 : sum (fun t => abs (p t - pt t)) n = 0 := sum_eq_zero fun t ht => by
    have h1 := mul_inv_self (show (0 : R) < 1 by grind)
    rw [h_exact t ht, e t ht, hz, show pt t / 1 - pt t = 0 by grind, abs_zero]
  unfold tv
  rw [h0]
  grind

variable (J : Nat → Prop) [DecidablePred J]

/-- Page weights are positive. -/
theorem pageWeight_pos (ε : Nat → R) (t : Nat) : 0 < pageWeight ε J t := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h := exp_pos (-ε t)
  unfold pageWeight
  split <;> grind

/-- The sum that normalises attention after paging in, split into the block and the rest. -/
theorem sum_pageWeight (pt ε : Nat → R) (n : Nat) : sum (fun t => pt t * pageWeight ε J t) n
    = sumIf J (fun t => pt t * exp (-ε t)) n + sumIf (fun t => ¬ J t) pt n := by
  rw [← sumIf_add_not J]
  congr 1
  · exact sumIf_congr fun t _ h => by unfold pageWeight; rw [if_pos h]
  · exact sumIf_congr fun t _ h => by unfold pageWeight; rw [if_neg h]; grind

/-- The accumulator after paging in, exactly. -/
theorem acert_pagedIn (pt ε c : Nat → R) (n : Nat) : acert (pagedIn pt ε J n) (pagedBound c J) n
    = (sumIf J (fun t => pt t * exp (-ε t)) n + sumIf (fun t => ¬ J t) (fun t => pt t * exp (c t)) n)
      / (sumIf J (fun t => pt t * exp (-ε t)) n + sumIf (fun t => ¬ J t) pt n) := by
  rw [← sum_pageWeight]
  unfold acert pagedIn
  generalize sum (fun t => pt t * pageWeight ε J t) n = Z
  rw [← sumIf_add_not J, Field.div_eq_mul_inv, Semiring.right_distrib, ← sumIf_mul_right, ← sumIf_mul_right]
  congr 1
  · refine sumIf_congr fun t _ h => ?_
    unfold pageWeight pagedBound
    rw [if_pos h, if_pos h, exp_zero]; grind
  · refine sumIf_congr fun t _ h => ?_
    unfold pageWeight pagedBound
    rw [if_neg h, if_neg h]; grind

/-- The quotient `(N + x)/(M + x)` decreases in `x` when `M ≤ N`. -/
theorem shifted_ratio_anti {N M x y : R} (h_le : M ≤ N) (h_yx : y ≤ x) (h_pos : 0 < M + y) :
    (x + N) / (x + M) ≤ (N + y) / (M + y) := by
  apply div_le_div_of_cross (by grind) h_pos
  have h := OrderedRing.mul_nonneg (show 0 ≤ N - M by grind) (show 0 ≤ x - y by grind)
  grind

/-- The bound on the accumulator after the block `J` is made exact: with `N = Σ_{t∉J} pt exp c`, `M = 1 - Σ_J pt` and
`y = Σ_J pt exp (-c)`, all known before, the new accumulator is at most `(N + y)/(M + y)`. -/
theorem page_in_bound (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) :
    acert (pagedIn pt ε J n) (pagedBound c J) n
      ≤ (sumIf (fun t => ¬ J t) (fun t => pt t * exp (c t)) n + sumIf J (fun t => pt t * exp (-c t)) n)
        / (1 - sumIf J pt n + sumIf J (fun t => pt t * exp (-c t)) n) := by
  have h1 := sumIf_add_not J pt n
  have hM : 1 - sumIf J pt n = sumIf (fun t => ¬ J t) pt n := by grind
  rw [acert_pagedIn, hM]
  apply shifted_ratio_anti
  · exact sumIf_le fun t ht _ => by
      have h2 := OrderedRing.mul_le_mul_of_nonneg_left (one_le_exp (le_of_abs_le (h_bound t ht)).2.2) (h_nonneg t ht)
      grind
  · exact sumIf_le fun t ht _ => OrderedRing.mul_le_mul_of_nonneg_left (exp_neg_ge_of_abs_le (h_bound t ht)) (h_nonneg t ht)
  · have h2 := weighted_pos pt (pageWeight c J) n h_nonneg h_sum_one fun t _ => pageWeight_pos J c t
    rw [sum_pageWeight] at h2
    grind

/-- After paging in, attention is a distribution again. -/
theorem pagedIn_nonneg (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1) :
    ∀ t, t < n → 0 ≤ pagedIn pt ε J n t := fun t ht => by
  have h := pageWeight_pos J ε t
  exact div_nonneg (OrderedRing.mul_nonneg (h_nonneg t ht) (by grind))
    (weighted_pos pt _ n h_nonneg h_sum_one fun s _ => pageWeight_pos J ε s)

/-- After paging in, attention sums to 1. -/
theorem pagedIn_sum_one (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1) :
    sum (pagedIn pt ε J n) n = 1 := by
  have hZ := weighted_pos pt _ n h_nonneg h_sum_one fun s _ => pageWeight_pos J ε s
  have h := mul_inv_self hZ
  have e : sum (pagedIn pt ε J n) n = sum (fun t => pt t * pageWeight ε J t) n * (sum (fun t => pt t * pageWeight ε J t) n)⁻¹ := by
    rw [← sum_mul_right]
    exact sum_congr fun t _ => Field.div_eq_mul_inv _ _
  rw [e, h]

/-- After paging in, exact attention is the new served attention reweighted by the errors that remain, and these are within
`pagedBound`: the hypotheses of all bounds hold again. -/
theorem page_in_exact (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    (∀ t, t < n → abs (pagedError ε J t) ≤ pagedBound c J t) ∧
      ∀ t, t < n → p t = pagedIn pt ε J n t * exp (-pagedError ε J t) / znorm (pagedIn pt ε J n) (pagedError ε J) n := by
  constructor
  · intro t ht
    unfold pagedError pagedBound
    by_cases h : J t
    · rw [if_pos h, if_pos h, abs_zero]; grind
    · rw [if_neg h, if_neg h]; exact h_bound t ht
  · have hZ := weighted_pos pt _ n h_nonneg h_sum_one fun s _ => pageWeight_pos J ε s
    have hw : ∀ t, pageWeight ε J t * exp (-pagedError ε J t) = exp (-ε t) := fun t => by
      unfold pageWeight pagedError
      by_cases h : J t
      · rw [if_pos h, if_pos h, show -(0 : R) = 0 by grind, exp_zero]; grind
      · rw [if_neg h, if_neg h]; grind
    have e1 : ∀ t, pagedIn pt ε J n t * exp (-pagedError ε J t)
        = pt t * exp (-ε t) * (sum (fun t => pt t * pageWeight ε J t) n)⁻¹ := fun t => by
      rw [← hw t]; unfold pagedIn; grind
    have e2 : znorm (pagedIn pt ε J n) (pagedError ε J) n
        = znorm pt ε n * (sum (fun t => pt t * pageWeight ε J t) n)⁻¹ := by
      unfold znorm
      rw [← sum_mul_right]
      exact sum_congr fun t _ => e1 t
    have hz : 0 < znorm pt ε n := znorm_pos h_nonneg h_sum_one
    intro t ht
    rw [h_exact t ht, e1, e2]
    have hZi := inv_pos hZ
    generalize (sum (fun t => pt t * pageWeight ε J t) n)⁻¹ = w at *
    generalize znorm pt ε n = z at *
    generalize pt t * exp (-ε t) = x at *
    have h3 := div_mul_self x hz
    have h4 := OrderedRing.mul_pos hz hZi
    have h5 := mul_inv_self h4
    grind

/-- After paging in, total variation is at most the sharp bound of `(N + y)/(M + y)`, which is known before paging in. -/
theorem page_in_sound (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p (pagedIn pt ε J n) n
      ≤ sharp ((sumIf (fun t => ¬ J t) (fun t => pt t * exp (c t)) n + sumIf J (fun t => pt t * exp (-c t)) n)
        / (1 - sumIf J pt n + sumIf J (fun t => pt t * exp (-c t)) n)) := by
  obtain ⟨h1, h2⟩ := page_in_exact J h_nonneg h_sum_one h_bound h_exact
  exact meter_sound_acert (pagedIn_nonneg J h_nonneg h_sum_one) (pagedIn_sum_one J h_nonneg h_sum_one) h1
    (page_in_bound J h_nonneg h_sum_one h_bound) h2

/-- Updating the accumulator as `A - mass * (exp u - 1)`, with `pt` kept fixed, can be too small: two tokens of mass 1/2 with the
same bound `u > 0`, the first paged in, its error being `u`. -/
theorem page_in_naive_unsound (u : R) (h_pos : 0 < u) :
    acert (fun _ => (1 / 2 : R)) (fun _ => u) 2 - 1 / 2 * (exp u - 1)
      < acert (pagedIn (fun _ => (1 / 2 : R)) (fun _ => u) (fun t => t = 0) 2) (pagedBound (fun _ => u) (fun t => t = 0)) 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have s2 : ∀ f : Nat → R, sum f 2 = f 0 + f 1 := fun f => by
    show 0 + f 0 + f 1 = f 0 + f 1
    grind
  rw [acert_pagedIn]
  unfold acert sumIf
  simp only [s2, if_pos, Nat.one_ne_zero, if_false, not_true_eq_false, not_false_eq_true]
  have h1 := one_lt_exp h_pos
  have h2 := exp_mul_neg u
  have h3 := exp_pos (-u)
  generalize exp u = x at *
  generalize exp (-u) = y at *
  apply lt_div_of_mul_lt
  · grind
  · have hy : y < 1 := by
      apply Classical.byContradiction
      intro hn
      have h4 := mul_le_mul' (show x ≤ x by grind) (show 1 ≤ y by grind) (by grind) (by grind)
      grind
    have h5 := OrderedRing.mul_pos (show 0 < x - 1 by grind) (show 0 < 1 - y by grind)
    grind

end WitCert.Core
