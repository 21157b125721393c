import WitCert.Core.MergeDefs
import WitCert.Core.Weights
/-!
# Merging the parts of a split cache

The average over all tokens is the mass-weighted average of the parts' averages, so the accumulators merge with the log-sum-exp
weights that the output is merged with; the maximum of the per-token bounds merges by maximum. If the bound is constant on
blocks, the accumulator needs the mass of each block only.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]
variable {n m : Nat} {r f : Nat → R} {part : Nat → Nat}

/-- A part of mass 0 contributes nothing, whatever its average is. -/
theorem massOn_mul_avgOn (h_nonneg : ∀ t, t < n → 0 ≤ r t) (s : Nat) :
    massOn r part s n * avgOn r f part s n = sumIf (fun t => part t = s) (fun t => r t * f t) n := by
  unfold avgOn
  by_cases h : massOn r part s n = 0
  · have h0 : ∀ t, t < n → part t = s → r t = 0 := fun t ht hs => by
      have h1 := term_le_sum (f := fun t => if part t = s then r t else 0) (n := n)
        (fun i hi => by
          by_cases hP : part i = s
          · simp only [if_pos hP]; exact h_nonneg i hi
          · simp only [if_neg hP]; grind) ht
      simp only [if_pos hs] at h1
      have h2 := h_nonneg t ht
      unfold massOn sumIf at h
      grind
    rw [h, sumIf_eq_zero fun t ht hs => by rw [h0 t ht hs]; grind]
    grind
  · generalize massOn r part s n = M at *
    have h1 := Field.mul_inv_cancel h
    rw [Field.div_eq_mul_inv]
    grind

/-- The masses of the parts sum to the mass of all tokens. -/
theorem sum_massOn (r : Nat → R) (h_part : ∀ t, t < n → part t < m) : sum (fun s => massOn r part s n) m = sum r n :=
  sum_sumIf part r m n h_part

/-- The average of any quantity over all tokens is the mass-weighted average of its averages over the parts of a partition. -/
theorem lse_merge (h_nonneg : ∀ t, t < n → 0 ≤ r t) (h_part : ∀ t, t < n → part t < m) :
    sum (fun t => r t * f t) n / sum r n
      = sum (fun s => massOn r part s n * avgOn r f part s n) m / sum (fun s => massOn r part s n) m := by
  rw [sum_massOn r h_part, ← sum_sumIf part (fun t => r t * f t) m n h_part]
  rw [sum_congr (f := fun s => sumIf (fun t => part t = s) (fun t => r t * f t) n)
    fun s _ => (massOn_mul_avgOn (f := f) h_nonneg s).symm]

/-- The accumulator `A` of all tokens is merged from the accumulators of the parts; `pt` is `r` normalised. -/
theorem acert_merge [Exp R] {pt c : Nat → R} (h_nonneg : ∀ t, t < n → 0 ≤ r t) (h_part : ∀ t, t < n → part t < m)
    (h_norm : ∀ t, t < n → pt t = r t / sum r n) :
    acert pt c n = sum (fun s => massOn r part s n * avgOn r (fun t => exp (c t)) part s n) m
      / sum (fun s => massOn r part s n) m := by
  rw [← lse_merge h_nonneg h_part]
  unfold acert
  rw [Field.div_eq_mul_inv, ← sum_mul_right]
  exact sum_congr fun t ht => by rw [h_norm t ht]; grind

/-- With log-sum-exp values, `massOn = exp (lse s)`, the merge may subtract any `M` from all of them, such as the largest. -/
theorem lse_merge_exp [Exp R] {lse : Nat → R} (M : R) (h_nonneg : ∀ t, t < n → 0 ≤ r t)
    (h_part : ∀ t, t < n → part t < m) (h_lse : ∀ s, s < m → massOn r part s n = exp (lse s)) :
    sum (fun t => r t * f t) n / sum r n
      = sum (fun s => exp (lse s - M) * avgOn r f part s n) m / sum (fun s => exp (lse s - M)) m := by
  have h1 : ∀ s, s < m → massOn r part s n = exp M * exp (lse s - M) := fun s hs => by
    rw [h_lse s hs, ← exp_add, show M + (lse s - M) = lse s by grind]
  have h2 := exp_pos M
  have h3 := Field.mul_inv_cancel (show exp M ≠ 0 by grind)
  rw [lse_merge h_nonneg h_part,
    sum_congr (f := fun s => massOn r part s n * avgOn r f part s n)
      (g := fun s => exp M * (exp (lse s - M) * avgOn r f part s n)) fun s hs => by simp only [h1 s hs]; grind,
    sum_congr (f := fun s => massOn r part s n) (g := fun s => exp M * exp (lse s - M)) h1, sum_mul, sum_mul]
  generalize sum (fun s => exp (lse s - M) * avgOn r f part s n) m = N
  generalize sum (fun s => exp (lse s - M)) m = D
  generalize exp M = x at *
  by_cases hD : D = 0
  · subst hD; grind
  · have h4 := Field.mul_inv_cancel hD
    have h5 : x * D ≠ 0 := by grind
    have h6 := Field.mul_inv_cancel h5
    grind

/-- If the bound is constant on blocks, the accumulator is the sum over blocks of mass times `exp` of the block's bound. -/
theorem blockwise_eq_perToken [Exp R] {pt c : Nat → R} {block : Nat → Nat} {cb : Nat → R}
    (h_block : ∀ t, t < n → block t < m) (h_const : ∀ t, t < n → c t = cb (block t)) :
    acert pt c n = sum (fun b => massOn pt block b n * exp (cb b)) m := by
  unfold acert massOn
  rw [← sum_sumIf block (fun t => pt t * exp (c t)) m n h_block]
  refine sum_congr fun b _ => ?_
  rw [← sumIf_mul_right]
  exact sumIf_congr fun t ht hb => by rw [h_const t ht, hb]

/-! ### the maximum -/

/-- Every term is at most the running maximum. -/
theorem le_maxOver {i : Nat} (f : Nat → R) (hi : i < n) : f i ≤ maxOver f n := by
  induction n with
  | zero => omega
  | succ n ih =>
    have h1 := le_maximum_left (maxOver f n) (f n)
    have h2 := le_maximum_right (maxOver f n) (f n)
    rw [maxOver]
    by_cases h : i = n
    · subst h; exact h2
    · exact Std.le_trans (ih (by omega)) h1

/-- The running maximum is nonnegative. -/
theorem maxOver_nonneg (f : Nat → R) (n : Nat) : 0 ≤ maxOver f n := by
  induction n with
  | zero => rw [maxOver]; grind
  | succ n ih => rw [maxOver]; exact Std.le_trans ih (le_maximum_left _ _)

/-- The running maximum is the least nonnegative number that bounds every term. -/
theorem maxOver_le {a : R} (h_nonneg : 0 ≤ a) (h_le : ∀ i, i < n → f i ≤ a) : maxOver f n ≤ a := by
  induction n with
  | zero => rw [maxOver]; exact h_nonneg
  | succ n ih => rw [maxOver]; exact maximum_le (ih fun i hi => h_le i (by omega)) (h_le n (by omega))

/-- The maximum of the per-token bounds is merged from the maxima of the parts by maximum. -/
theorem cmax_merge {c : Nat → R} (h_part : ∀ t, t < n → part t < m) :
    maxOver c n = maxOver (fun s => maxOn c part s n) m := by
  apply Std.le_antisymm
  · refine maxOver_le (maxOver_nonneg _ _) fun t ht => ?_
    have h1 := le_maxOver (fun i => if part i = part t then c i else 0) ht
    simp only [if_true] at h1
    exact Std.le_trans h1 (le_maxOver (fun s => maxOn c part s n) (h_part t ht))
  · refine maxOver_le (maxOver_nonneg _ _) fun s _ => maxOver_le (maxOver_nonneg _ _) fun t ht => ?_
    by_cases h : part t = s
    · simp only [if_pos h]; exact le_maxOver c ht
    · simp only [if_neg h]; exact maxOver_nonneg _ _

end WitCert.Core
