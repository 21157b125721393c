import WitCert.Core.Weights
/-!
# Total variation from per-token bounds

The common hypotheses: `pt` is a distribution on the tokens `t < n` (`h_nonneg`, `h_sum_one`), the error of every served logit is
within its bound (`h_bound`), and `p` is exact attention, that is `pt` reweighted by `exp (-ε)` and normalised (`h_exact`).
The bounds use `A = acert pt c n`, `A⁻ = acertNeg pt c n`, or a number `C` with `c t ≤ C`.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R]
variable {n : Nat} {pt ε c p : Nat → R}

/-- The hypotheses on a cell, as a statement on weights: `exp (-c) ≤ exp (-ε) ≤ exp c`. -/
theorem reweighted_of_bound (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    Reweighted pt (fun t => exp (-ε t)) (fun t => exp (-c t)) (fun t => exp (c t)) p n where
  nonneg := h_nonneg
  sum_one := h_sum_one
  pos t _ := exp_pos (c t)
  inv t _ := by rw [CommSemiring.mul_comm]; exact exp_mul_neg (c t)
  lower t ht := exp_neg_ge_of_abs_le (h_bound t ht)
  upper t ht := exp_neg_le_of_abs_le (h_bound t ht)
  exact := h_exact

/-- The accumulator `A` is at least 1. -/
theorem one_le_acert (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) : 1 ≤ acert pt c n := by
  rw [← h_sum_one]
  refine sum_le fun t ht => ?_
  have h := OrderedRing.mul_le_mul_of_nonneg_left (one_le_exp (le_of_abs_le (h_bound t ht)).2.2) (h_nonneg t ht)
  grind

/-- The accumulator `A` grows with the per-token bounds. -/
theorem acert_mono {c' : Nat → R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_le : ∀ t, t < n → c t ≤ c' t) :
    acert pt c n ≤ acert pt c' n :=
  sum_le fun t ht => OrderedRing.mul_le_mul_of_nonneg_left (exp_mono (h_le t ht)) (h_nonneg t ht)

/-- The accumulator `A⁻` is positive. -/
theorem acertNeg_pos (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1) : 0 < acertNeg pt c n :=
  weighted_pos pt _ n h_nonneg h_sum_one fun t _ => exp_pos (-c t)

/-- The normaliser of exact attention is positive. -/
theorem znorm_pos (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1) : 0 < znorm pt ε n :=
  weighted_pos pt _ n h_nonneg h_sum_one fun t _ => exp_pos (-ε t)

/-- Exact attention sums to 1. -/
theorem exact_sum_one (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) : sum p n = 1 :=
  (reweighted_of_bound (c := fun t => abs (ε t)) h_nonneg h_sum_one
    (fun t _ => by have := le_abs_self (abs (ε t)); grind) h_exact).sum_eq_one

/-- Exact attention is nonnegative. -/
theorem exact_nonneg (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) : ∀ t, t < n → 0 ≤ p t := by
  intro t ht
  rw [h_exact t ht]
  exact div_nonneg (OrderedRing.mul_nonneg (h_nonneg t ht) (by have := exp_pos (-ε t); grind))
    (znorm_pos h_nonneg h_sum_one)

/-- What the two sharp bounds share: masses `a` and `b`, sums `U` and `V` with `U + V = A`, and one inequality. -/
theorem sharp_core (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    ∃ a b s U V : R, a + b = 1 ∧ 0 ≤ a ∧ 0 ≤ b ∧ 0 ≤ s ∧ a ≤ U ∧ b ≤ V ∧ U + V = acert pt c n ∧
      tv p pt n = b - s ∧ (1 - s) * (b * b) ≤ s * (U * V) := by
  have H := reweighted_of_bound h_nonneg h_sum_one h_bound h_exact
  obtain ⟨T, dT, s, hs0, hs1, htv, hmain⟩ := weights_split H
  have hcs := sq_mass_le (fun t => if T t then pt t else 0) (fun t => exp (-c t)) (fun t => exp (c t)) n
    (fun t ht => by by_cases h : T t <;> simp only [h, if_pos, if_neg, not_false_eq_true] <;> grind) (fun t ht => H.one_le ht) H.inv
  rw [← sumIf_eq_mask T pt, ← sumIf_eq_mask T pt] at hcs
  have e1 := sumIf_add_not T pt n
  have e2 := sumIf_add_not T (fun t => pt t * exp (c t)) n
  have hle : ∀ t, t < n → pt t ≤ pt t * exp (c t) := fun t ht => by
    have h := OrderedRing.mul_le_mul_of_nonneg_left (H.one_le ht) (h_nonneg t ht)
    grind
  have hV : sumIf T pt n ≤ sumIf T (fun t => pt t * exp (c t)) n := sumIf_le fun t ht _ => hle t ht
  have hU : sumIf (fun t => ¬ T t) pt n ≤ sumIf (fun t => ¬ T t) (fun t => pt t * exp (c t)) n :=
    sumIf_le fun t ht _ => hle t ht
  have ha : 0 ≤ sumIf (fun t => ¬ T t) pt n := sumIf_nonneg fun t ht _ => h_nonneg t ht
  have hb : 0 ≤ sumIf T pt n := sumIf_nonneg fun t ht _ => h_nonneg t ht
  refine ⟨_, _, s, _, _, ?_, ha, hb, hs0, hU, hV, ?_, htv, ?_⟩
  · grind
  · rw [acert, ← e2]; grind
  · change sumIf T pt n * sumIf T pt n ≤ _ at hcs
    have k1 := OrderedRing.mul_le_mul_of_nonneg_left hcs (show 0 ≤ 1 - s by grind)
    have k2 := OrderedRing.mul_le_mul_of_nonneg_right hmain
      (show 0 ≤ sumIf T (fun t => pt t * exp (c t)) n by grind)
    grind

/-- The sharp bound for `A ≤ 2`: total variation is at most `1 - 1/A`. -/
theorem tv_le_sharp_small (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) (h_small : acert pt c n ≤ 2) :
    tv p pt n ≤ 1 - 1 / acert pt c n := by
  have hA1 := one_le_acert h_nonneg h_sum_one h_bound
  have h01 := OrderedRing.zero_lt_one (R := R)
  obtain ⟨a, b, s, U, V, hab, ha, hb, hs, hU, hV, hUV, htv, h⟩ := sharp_core h_nonneg h_sum_one h_bound h_exact
  have h1 := sharp_scalar_small (d := U + V - 1) hab ha hb hs hU hV (by grind) (by grind) h
  rw [← hUV] at hA1 ⊢
  have hinv := mul_inv_self (show 0 < U + V by grind)
  rw [htv]
  apply le_of_mul_le_mul_right (c := U + V) _ (by grind)
  generalize U + V = A at *
  grind

/-- The sharp bound with no condition on `A`: total variation is at most `A²/(A² + 4)`. -/
theorem tv_le_sharp_always (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ acert pt c n ^ 2 / (acert pt c n ^ 2 + 4) := by
  obtain ⟨a, b, s, U, V, hab, ha, hb, hs, hU, hV, hUV, htv, h⟩ := sharp_core h_nonneg h_sum_one h_bound h_exact
  rw [← hUV, htv]
  have hX : U * V ≤ (U + V) * (U + V) / 4 := by
    have := mul_self_nonneg (U - V)
    grind
  have h0 := mul_self_nonneg (U + V)
  have h1 := OrderedRing.mul_le_mul_of_nonneg_left hX hs
  have h2 := sharp_scalar (X := (U + V) * (U + V) / 4) hb (by grind) hs (by grind) (by grind)
  apply le_div_of_mul_le
  · grind
  · grind

/-- The sharp bound: total variation is at most `1 - 1/A` when `A ≤ 2`, and always at most `A²/(A² + 4)`. -/
theorem tv_le_sharp (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    (acert pt c n ≤ 2 → tv p pt n ≤ 1 - 1 / acert pt c n) ∧
      tv p pt n ≤ acert pt c n ^ 2 / (acert pt c n ^ 2 + 4) :=
  ⟨tv_le_sharp_small h_nonneg h_sum_one h_bound h_exact, tv_le_sharp_always h_nonneg h_sum_one h_bound h_exact⟩

/-- The e-form bound: total variation is at most `(A² - 1)/2`. It says nothing once `A ≥ √3`; the sharp bound is never larger. -/
theorem tv_le_eform (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ (acert pt c n ^ 2 - 1) / 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hA1 := one_le_acert h_nonneg h_sum_one h_bound
  have h1 := tv_le_sharp_small h_nonneg h_sum_one h_bound h_exact
  have h2 := tv_le_sharp_always h_nonneg h_sum_one h_bound h_exact
  generalize acert pt c n = A at *
  generalize tv p pt n = x at *
  by_cases hA : A ≤ 2
  · refine Std.le_trans (h1 hA) ?_
    have h3 := mul_inv_self (show 0 < A by grind)
    have h4 := OrderedRing.mul_nonneg (mul_self_nonneg (A - 1)) (show 0 ≤ A + 2 by grind)
    apply le_of_mul_le_mul_right (c := A) _ (by grind)
    grind
  · refine Std.le_trans h2 ?_
    have h3 : (2 : R) * 2 ≤ A * A := mul_self_le (by grind) (by grind)
    have h4 := mul_self_nonneg (A * A - 4)
    apply div_le_of_le_mul
    · grind
    · have h5 := mul_le_mul' h3 h3 (by grind) (by grind)
      grind

/-- Total variation is at most `tanh (C/2) = (exp C - 1)/(exp C + 1)`, where `C` bounds all per-token bounds. -/
theorem tv_le_tanh_half {C : R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) (h_max : ∀ t, t < n → c t ≤ C)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ tanhHalf C := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h_boundC : ∀ t, t < n → abs (ε t) ≤ C := fun t ht => Std.le_trans (h_bound t ht) (h_max t ht)
  have H := reweighted_of_bound (c := fun _ => C) h_nonneg h_sum_one h_boundC h_exact
  have hn : 0 < n := by
    cases n with
    | zero => rw [sum_zero] at h_sum_one; grind
    | succ m => omega
  have hE : 1 ≤ exp C := H.one_le hn
  obtain ⟨T, dT, s, hs0, hs1, htv, hmain⟩ := weights_split H
  simp only [sumIf_mul_right] at hmain
  have hab := sumIf_add_not T pt n
  have ha : 0 ≤ sumIf (fun t => ¬ T t) pt n := sumIf_nonneg fun t ht _ => h_nonneg t ht
  have hinv := exp_mul_neg C
  rw [htv]
  unfold tanhHalf
  generalize exp (-C) = v at *
  generalize exp C = E at *
  generalize sumIf T pt n = b at *
  generalize sumIf (fun t => ¬ T t) pt n = a at *
  apply le_div_of_mul_le (by grind)
  apply tanh_scalar (a := a) (by grind) ha hE
  have h1 := OrderedRing.mul_le_mul_of_nonneg_right hmain (show 0 ≤ E by grind)
  have h2 : (1 - s) * (b * v) * E = (1 - s) * b := by
    rw [Semiring.mul_assoc, Semiring.mul_assoc b, CommSemiring.mul_comm v, hinv, Semiring.mul_one]
  grind

end WitCert.Core
