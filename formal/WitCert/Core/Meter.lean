import WitCert.Core.TotalVariation
/-!
# The reported meter

The kernel reports `meter Â Ĉ`, the smaller of `sharp Â` and `tanh (Ĉ/2)`, from an accumulator `Â` that is at least the true
`A` and a number `Ĉ` that is at least every per-token bound: all roundings on the way go up. `meter_sound` is the statement for
the exact `A`; `meter_sound_upper` for such over-estimates; `meter_sound_option` for the case that one or both are missing.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-! ### the bounds as functions of the accumulators -/

/-- The value of the sharp bound up to `A = 2`. -/
theorem sharp_of_le {A : R} (h : A ≤ 2) : sharp A = 1 - 1 / A := by
  unfold sharp; rw [if_pos h]

/-- The value of the sharp bound beyond `A = 2`. -/
theorem sharp_of_lt {A : R} (h : 2 < A) : sharp A = A ^ 2 / (A ^ 2 + 4) := by
  unfold sharp; rw [if_neg (by grind)]

/-- The sharp bound grows with `A`. -/
theorem sharp_mono {A B : R} (h_pos : 0 < A) (h_le : A ≤ B) : sharp A ≤ sharp B := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hAA := mul_self_nonneg A
  have hBB := mul_self_nonneg B
  by_cases hB : B ≤ 2
  · rw [sharp_of_le hB, sharp_of_le (show A ≤ 2 by grind)]
    have h := inv_anti h_pos h_le
    grind
  · rw [sharp_of_lt (show 2 < B by grind)]
    by_cases hA : A ≤ 2
    · rw [sharp_of_le hA]
      have h := inv_anti h_pos hA
      have h2 : (2 : R) * 2 ≤ B * B := mul_self_le (by grind) (by grind)
      have h3 : (1 : R) / 2 ≤ B ^ 2 / (B ^ 2 + 4) := le_div_of_mul_le (by grind) (by grind)
      grind
    · rw [sharp_of_lt (show 2 < A by grind)]
      have h := mul_self_le (show 0 ≤ A by grind) h_le
      apply div_le_div_of_cross <;> grind

/-- The sharp bound is nonnegative for `A ≥ 1`. -/
theorem sharp_nonneg {A : R} (h_one : 1 ≤ A) : 0 ≤ sharp A := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h := sharp_mono (show (0 : R) < 1 by grind) h_one
  rw [sharp_of_le (show (1 : R) ≤ 2 by grind)] at h
  have h1 := mul_inv_self (show (0 : R) < 1 by grind)
  grind

/-- The sharp bound is less than 1 for every positive `A`: it never becomes vacuous. -/
theorem sharp_lt_one {A : R} (h_pos : 0 < A) : sharp A < 1 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hAA := mul_self_nonneg A
  by_cases hA : A ≤ 2
  · rw [sharp_of_le hA]
    have h := inv_pos h_pos
    grind
  · rw [sharp_of_lt (show 2 < A by grind)]
    apply div_lt_of_lt_mul <;> grind

/-- The sharp bound is never larger than the e-form bound `(A² - 1)/2`. -/
theorem sharp_le_eform {A : R} (h_one : 1 ≤ A) : sharp A ≤ (A ^ 2 - 1) / 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  by_cases hA : A ≤ 2
  · rw [sharp_of_le hA]
    have h3 := mul_inv_self (show 0 < A by grind)
    have h4 := OrderedRing.mul_nonneg (mul_self_nonneg (A - 1)) (show 0 ≤ A + 2 by grind)
    apply le_of_mul_le_mul_right (c := A) _ (by grind)
    grind
  · rw [sharp_of_lt (show 2 < A by grind)]
    have h3 : (2 : R) * 2 ≤ A * A := mul_self_le (by grind) (by grind)
    have h5 := mul_le_mul' h3 h3 (by grind) (by grind)
    apply div_le_of_le_mul <;> grind

variable [Exp R]

/-- The half-angle bound grows with `C`. -/
theorem tanhHalf_mono {C D : R} (h_le : C ≤ D) : tanhHalf C ≤ tanhHalf D := by
  have h1 := exp_mono h_le
  have h2 := exp_pos C
  unfold tanhHalf
  apply div_le_div_of_cross <;> grind

/-- The half-angle bound is nonnegative for `C ≥ 0`. -/
theorem tanhHalf_nonneg {C : R} (h_nonneg : 0 ≤ C) : 0 ≤ tanhHalf C := by
  have h1 := one_le_exp h_nonneg
  have h01 := OrderedRing.zero_lt_one (R := R)
  unfold tanhHalf
  apply div_nonneg <;> grind

/-- The half-angle bound is less than 1 for every `C`: it never becomes vacuous. -/
theorem tanhHalf_lt_one (C : R) : tanhHalf C < 1 := by
  have h1 := exp_pos C
  have h01 := OrderedRing.zero_lt_one (R := R)
  unfold tanhHalf
  apply div_lt_of_lt_mul <;> grind

/-- The meter grows with both accumulators, so rounding them up keeps it sound. -/
theorem meter_mono {A A' C C' : R} (h_pos : 0 < A) (h_le_A : A ≤ A') (h_le_C : C ≤ C') : meter A C ≤ meter A' C' :=
  minimum_mono (sharp_mono h_pos h_le_A) (tanhHalf_mono h_le_C)

/-! ### soundness -/

variable {n : Nat} {pt ε c p : Nat → R}

/-- Total variation is at most the sharp bound of `A`. -/
theorem tv_le_sharp_acert (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ sharp (acert pt c n) := by
  by_cases h : acert pt c n ≤ 2
  · rw [sharp_of_le h]
    exact tv_le_sharp_small h_nonneg h_sum_one h_bound h_exact h
  · rw [sharp_of_lt (by grind)]
    exact tv_le_sharp_always h_nonneg h_sum_one h_bound h_exact

/-- The reported meter bounds total variation: with exact `A` and any `C ≥ c t`, it is at most `min (sharp A) (tanh (C/2))`. -/
theorem meter_sound {C : R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) (h_max : ∀ t, t < n → c t ≤ C)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ meter (acert pt c n) C :=
  le_minimum (tv_le_sharp_acert h_nonneg h_sum_one h_bound h_exact)
    (tv_le_tanh_half h_nonneg h_sum_one h_bound h_max h_exact)

/-- Total variation is at most the sharp bound of any over-estimate `A_hat` of `A`. -/
theorem meter_sound_acert {A_hat : R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) (h_acert : acert pt c n ≤ A_hat)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ sharp A_hat := by
  have h1 := one_le_acert h_nonneg h_sum_one h_bound
  have h01 := OrderedRing.zero_lt_one (R := R)
  exact Std.le_trans (tv_le_sharp_acert h_nonneg h_sum_one h_bound h_exact) (sharp_mono (by grind) h_acert)

/-- The meter of over-estimates bounds total variation: `A_hat` at least `A`, and `C_hat` at least every per-token bound. -/
theorem meter_sound_upper {A_hat C_hat : R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) (h_acert : acert pt c n ≤ A_hat) (h_max : ∀ t, t < n → c t ≤ C_hat)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ meter A_hat C_hat :=
  le_minimum (meter_sound_acert h_nonneg h_sum_one h_bound h_acert h_exact)
    (tv_le_tanh_half h_nonneg h_sum_one h_bound h_max h_exact)

/-- The meter is sound whichever accumulators it has: with `A` only, with `C` only, with both, and with neither (then it says 1). -/
theorem meter_sound_option {A_hat C_hat : Option R} (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_bound : ∀ t, t < n → abs (ε t) ≤ c t) (h_acert : ∀ A, A_hat = some A → acert pt c n ≤ A)
    (h_max : ∀ C, C_hat = some C → ∀ t, t < n → c t ≤ C)
    (h_exact : ∀ t, t < n → p t = pt t * exp (-ε t) / znorm pt ε n) :
    tv p pt n ≤ meterOf A_hat C_hat := by
  cases A_hat with
  | none =>
    cases C_hat with
    | none =>
      exact tv_le_one p pt n (exact_nonneg h_nonneg h_sum_one h_exact)
        (exact_sum_one h_nonneg h_sum_one h_exact) h_nonneg h_sum_one
    | some C => exact tv_le_tanh_half h_nonneg h_sum_one h_bound (h_max C rfl) h_exact
  | some A =>
    cases C_hat with
    | none => exact meter_sound_acert h_nonneg h_sum_one h_bound (h_acert A rfl) h_exact
    | some C => exact meter_sound_upper h_nonneg h_sum_one h_bound (h_acert A rfl) (h_max C rfl) h_exact

end WitCert.Core
