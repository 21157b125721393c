import WitCert.Core.TotalVariation
/-!
# Bounds that use both accumulators, and weaker published forms

`A⁻ = acertNeg pt c n` is a second accumulator. With it: total variation is at most `1 - A⁻/A`, the two-sided form
`(A/A⁻ - A⁻/A)/2`, and a bound that keeps one term per token. The published `tanh C` is here as a corollary of the half-angle form.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R]
variable {n : Nat} {pt ε c p : Nat → R}

/-- Total variation is at most `1 - A⁻/A`. -/
theorem tv_le_one_sub_ratio (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ 1 - acertNeg pt c n / acert pt c n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have H := reweighted_of_bound h_nonneg h_sum_one h_bound h_exact
  have hA1 := one_le_acert h_nonneg h_sum_one h_bound
  have hZ : 0 < znorm pt ε n := znorm_pos h_nonneg h_sum_one
  have hZA : znorm pt ε n ≤ acert pt c n := H.le_acc
  have hp1 := exact_sum_one h_nonneg h_sum_one h_exact
  have hAinv := inv_pos (show 0 < acert pt c n by grind)
  have hAinv1 : (acert pt c n)⁻¹ ≤ 1 := by
    have h1 := mul_inv_self (show 0 < acert pt c n by grind)
    have h2 := OrderedRing.mul_le_mul_of_nonneg_right hA1 (show 0 ≤ (acert pt c n)⁻¹ by grind)
    grind
  have hZinv := inv_anti hZ hZA
  obtain ⟨T, dT, htv⟩ := exists_tv_split p pt n (by rw [hp1, h_sum_one])
  -- both `p` and `pt` are at least `pt / (A exp c)`
  have h1 : ∀ t, t < n → pt t * exp (-c t) * (acert pt c n)⁻¹ ≤ pt t := fun t ht => by
    have hv : exp (-c t) ≤ 1 := by
      rw [← exp_zero (R := R)]
      exact exp_mono (by have := (le_of_abs_le (h_bound t ht)).2.2; grind)
    have h2 := mul_le_mul' hv hAinv1 (by grind) (by grind)
    have h3 := OrderedRing.mul_le_mul_of_nonneg_left h2 (h_nonneg t ht)
    grind
  have h2 : ∀ t, t < n → pt t * exp (-c t) * (acert pt c n)⁻¹ ≤ p t := fun t ht => by
    rw [h_exact t ht, Field.div_eq_mul_inv]
    have hw := exp_pos (-ε t)
    exact mul_le_mul' (OrderedRing.mul_le_mul_of_nonneg_left (H.lower t ht) (h_nonneg t ht)) hZinv (by grind)
      (OrderedRing.mul_nonneg (h_nonneg t ht) (by grind))
  have h3 : sumIf (fun t => ¬ T t) (fun t => pt t * exp (-c t) * (acert pt c n)⁻¹) n ≤ sumIf (fun t => ¬ T t) pt n :=
    sumIf_le fun t ht _ => h1 t ht
  have h4 : sumIf T (fun t => pt t * exp (-c t) * (acert pt c n)⁻¹) n ≤ sumIf T p n :=
    sumIf_le fun t ht _ => h2 t ht
  have h5 := sumIf_add_not T (fun t => pt t * exp (-c t) * (acert pt c n)⁻¹) n
  have h6 := sumIf_add_not T pt n
  rw [sum_mul_right] at h5
  rw [htv, Field.div_eq_mul_inv]
  unfold acertNeg
  grind

/-- The two-sided form: total variation is at most `(A/A⁻ - A⁻/A)/2`. It is weaker than `1 - A⁻/A`. -/
theorem tv_le_two_sided (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ (acert pt c n / acertNeg pt c n - acertNeg pt c n / acert pt c n) / 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hA1 := one_le_acert h_nonneg h_sum_one h_bound
  have hA : 0 < acert pt c n := by grind
  have hD := acertNeg_pos (c := c) h_nonneg h_sum_one
  have h := tv_le_one_sub_ratio h_nonneg h_sum_one h_bound h_exact
  have h2 : 2 ≤ acert pt c n / acertNeg pt c n + acertNeg pt c n / acert pt c n := by
    apply two_le_add (div_pos hA hD) (div_pos hD hA)
    have h3 := mul_inv_self hA
    have h4 := mul_inv_self hD
    have h5 : acert pt c n / acertNeg pt c n * (acertNeg pt c n / acert pt c n) = 1 := by grind
    grind
  grind

/-- The accumulators satisfy `A · A⁻ ≥ 1`. -/
theorem one_le_acert_mul_acertNeg (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) : 1 ≤ acert pt c n * acertNeg pt c n := by
  have h := sq_mass_le pt (fun t => exp (-c t)) (fun t => exp (c t)) n h_nonneg
    (fun t ht => one_le_exp (le_of_abs_le (h_bound t ht)).2.2)
    (fun t _ => by rw [CommSemiring.mul_comm]; exact exp_mul_neg (c t))
  rw [h_sum_one] at h
  unfold acert acertNeg
  grind

/-- The per-token form: total variation is at most half the `pt`-average of the largest possible relative change of each weight,
`min (A exp c - 1) (max (exp c/A⁻ - 1) (1 - exp (-c)/A))`. -/
theorem tv_le_retention (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ sum (fun t => pt t * minimum (acert pt c n * exp (c t) - 1)
      (maximum (exp (c t) / acertNeg pt c n - 1) (1 - exp (-c t) / acert pt c n))) n / 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have H := reweighted_of_bound h_nonneg h_sum_one h_bound h_exact
  have hA1 := one_le_acert h_nonneg h_sum_one h_bound
  have hZ : 0 < znorm pt ε n := znorm_pos h_nonneg h_sum_one
  have hZA : znorm pt ε n ≤ acert pt c n := H.le_acc
  have hDZ : acertNeg pt c n ≤ znorm pt ε n := H.acc_neg_le
  have hD := acertNeg_pos (c := c) h_nonneg h_sum_one
  have hAD := one_le_acert_mul_acertNeg h_nonneg h_sum_one h_bound
  have hi1 := inv_anti hZ hZA
  have hi2 := inv_anti hD hDZ
  have hA0 := inv_pos (show 0 < acert pt c n by grind)
  have hD0 := inv_pos hD
  have hZ0 := inv_pos hZ
  have hDA : (acertNeg pt c n)⁻¹ ≤ acert pt c n := by
    have h1 := mul_inv_self hD
    have h2 := OrderedRing.mul_le_mul_of_nonneg_right hAD (show 0 ≤ (acertNeg pt c n)⁻¹ by grind)
    rw [Semiring.mul_assoc, h1, Semiring.mul_one] at h2
    grind
  have h : sum (fun t => abs (p t - pt t)) n ≤ sum (fun t => pt t * minimum (acert pt c n * exp (c t) - 1)
      (maximum (exp (c t) / acertNeg pt c n - 1) (1 - exp (-c t) / acert pt c n))) n := sum_le fun t ht => by
    have e1 : p t - pt t = pt t * (exp (-ε t) * (znorm pt ε n)⁻¹ - 1) := by
      rw [h_exact t ht]; grind
    rw [e1, abs_mul, abs_of_nonneg (h_nonneg t ht)]
    refine OrderedRing.mul_le_mul_of_nonneg_left ?_ (h_nonneg t ht)
    have hv := exp_pos (-c t)
    have hw := exp_pos (-ε t)
    have hy := exp_pos (c t)
    have hvw : exp (-c t) ≤ exp (-ε t) := H.lower t ht
    have hwy : exp (-ε t) ≤ exp (c t) := H.upper t ht
    have hyv := exp_mul_neg (c t)
    -- the weight changes by a factor between `exp (-c)/A` and `exp c/A⁻`
    have k1 : exp (-ε t) * (znorm pt ε n)⁻¹ ≤ exp (c t) * (acertNeg pt c n)⁻¹ :=
      mul_le_mul' hwy hi2 (by grind) (by grind)
    have k2 : exp (-c t) * (acert pt c n)⁻¹ ≤ exp (-ε t) * (znorm pt ε n)⁻¹ :=
      mul_le_mul' hvw hi1 (by grind) (by grind)
    have k3 := OrderedRing.mul_le_mul_of_nonneg_left hDA (show 0 ≤ exp (c t) by grind)
    have k4 : 2 ≤ acert pt c n * exp (c t) + exp (-c t) * (acert pt c n)⁻¹ := by
      apply two_le_add (OrderedRing.mul_pos (by grind) hy) (OrderedRing.mul_pos hv hA0)
      have h1 := mul_inv_self (show 0 < acert pt c n by grind)
      have h2 : acert pt c n * exp (c t) * (exp (-c t) * (acert pt c n)⁻¹)
          = acert pt c n * (acert pt c n)⁻¹ * (exp (c t) * exp (-c t)) := by grind
      rw [h2, h1, hyv]
      grind
    apply le_minimum
    · exact abs_le (by grind) (by grind)
    · have m1 := le_maximum_left (exp (c t) / acertNeg pt c n - 1) (1 - exp (-c t) / acert pt c n)
      have m2 := le_maximum_right (exp (c t) / acertNeg pt c n - 1) (1 - exp (-c t) / acert pt c n)
      rw [Field.div_eq_mul_inv, Field.div_eq_mul_inv] at m1 m2 ⊢
      exact abs_le (by grind) (by grind)
  unfold tv
  grind

/-- The published rival form: total variation is at most `tanh C = (exp (2C) - 1)/(exp (2C) + 1)`. It is about twice as loose as
the half-angle form. -/
theorem tv_le_tanh_rival {C : R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) (h_max : ∀ t, t < n → c t ≤ C)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ (exp (2 * C) - 1) / (exp (2 * C) + 1) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hn : 0 < n := by
    cases n with
    | zero => rw [sum_zero] at h_sum_one; grind
    | succ m => omega
  have hC : 0 ≤ C := by
    have h1 := (le_of_abs_le (h_bound 0 hn)).2.2
    have h2 := h_max 0 hn
    grind
  have h1 := tv_le_tanh_half h_nonneg h_sum_one h_bound h_max h_exact
  have h2 := exp_mono (show C ≤ 2 * C by grind)
  have h3 := exp_pos C
  have h4 := exp_pos (2 * C)
  refine Std.le_trans h1 ?_
  unfold tanhHalf
  apply div_le_div_of_cross <;> grind

end WitCert.Core
