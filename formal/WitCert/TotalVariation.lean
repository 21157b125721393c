import Mathlib.Analysis.Complex.Trigonometric
import WitCert.Defs

/-!
# Total variation from per-token bounds, over `Real.exp`

Common hypotheses: `pt` is a distribution (`h_nonneg`, `h_sum_one`), `|ε t| ≤ c t` (`h_bound`), and `p t = pt t * exp (-ε t) / znorm pt ε` (`h_exact`)
is the exact distribution.
-/

namespace WitCert

variable {ι : Type*} [Fintype ι]

/-- Total variation is at most `(A² - 1)/2`. -/
theorem tv_le_eform (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    tv p pt ≤ (acert pt c ^ 2 - 1) / 2 :=
  weights_eform pt (fun t => Real.exp (-ε t)) (fun t => Real.exp (c t)) p h_nonneg h_sum_one
    (fun t => Real.exp_pos (c t)) (fun t => exp_neg_le_of_abs_le (h_bound t)) (fun t => exp_le_of_abs_le (h_bound t)) h_exact

/-- If `A ≤ 2`, total variation is at most `1 - 1/A`. -/
theorem tv_le_sharp_small (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) (h_small : acert pt c ≤ 2) :
    tv p pt ≤ 1 - 1 / acert pt c :=
  weights_sharp_small pt (fun t => Real.exp (-ε t)) (fun t => Real.exp (c t)) p h_nonneg h_sum_one
    (fun t => Real.exp_pos (c t)) (fun t => exp_neg_le_of_abs_le (h_bound t)) (fun t => exp_le_of_abs_le (h_bound t)) h_exact h_small

/-- Always, total variation is at most `A²/(A² + 4)`. -/
theorem tv_le_sharp_always (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    tv p pt ≤ acert pt c ^ 2 / (acert pt c ^ 2 + 4) :=
  weights_sharp pt (fun t => Real.exp (-ε t)) (fun t => Real.exp (c t)) p h_nonneg h_sum_one
    (fun t => Real.exp_pos (c t)) (fun t => exp_neg_le_of_abs_le (h_bound t)) (fun t => exp_le_of_abs_le (h_bound t)) h_exact

/-- The sharp bound, both parts. -/
theorem tv_le_sharp (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    (acert pt c ≤ 2 → tv p pt ≤ 1 - 1 / acert pt c) ∧
      tv p pt ≤ acert pt c ^ 2 / (acert pt c ^ 2 + 4) :=
  ⟨tv_le_sharp_small pt ε c p h_nonneg h_sum_one h_bound h_exact, tv_le_sharp_always pt ε c p h_nonneg h_sum_one h_bound h_exact⟩

/-- The two-sided bound `1 - A⁻/A`. -/
theorem tv_le_one_sub_ratio (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    tv p pt ≤ 1 - acertNeg pt c / acert pt c := by
  rw [acertNeg_eq]
  exact weights_one_sub_ratio pt (fun t => Real.exp (-ε t)) (fun t => Real.exp (c t)) p h_nonneg h_sum_one
    (fun t => Real.exp_pos (c t)) (fun t => exp_neg_le_of_abs_le (h_bound t)) (fun t => exp_le_of_abs_le (h_bound t)) h_exact

/-- If every `c t ≤ C`, total variation is at most `(exp C - 1)/(exp C + 1)`. -/
theorem tv_le_tanh_half (pt ε c p : ι → ℝ) (C : ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_max : ∀ t, c t ≤ C)
    (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    tv p pt ≤ (Real.exp C - 1) / (Real.exp C + 1) := by
  have hεC : ∀ t, |ε t| ≤ C := fun t => (h_bound t).trans (h_max t)
  have hne : ∑ t, pt t ≠ 0 := by rw [h_sum_one]; exact one_ne_zero
  obtain ⟨t0, _, _⟩ := Finset.exists_ne_zero_of_sum_ne_zero hne
  have hC0 : 0 ≤ C := (abs_nonneg _).trans (hεC t0)
  exact weights_tanh pt (fun t => Real.exp (-ε t)) p (Real.exp C) h_nonneg h_sum_one (Real.one_le_exp hC0)
    (fun t => exp_neg_le_of_abs_le (hεC t)) (fun t => exp_le_of_abs_le (hεC t)) h_exact

/-- The half-angle form. -/
theorem exp_sub_div_eq_tanh_half (C : ℝ) : (Real.exp C - 1) / (Real.exp C + 1) = Real.tanh (C / 2) := by
  have h1 : Real.exp C = Real.exp (C / 2) * Real.exp (C / 2) := by rw [← Real.exp_add, add_halves]
  have h2 : Real.exp (C / 2) * Real.exp (-(C / 2)) = 1 := by rw [← Real.exp_add, add_neg_cancel, Real.exp_zero]
  have h3 := Real.exp_pos (C / 2)
  have h4 := Real.exp_pos (-(C / 2))
  rw [Real.tanh_eq, div_eq_div_iff (add_pos (Real.exp_pos C) one_pos).ne' (add_pos h3 h4).ne', h1]
  generalize Real.exp (C / 2) = u at *
  generalize Real.exp (-(C / 2)) = v at *
  have e1 : u * u * v = u := by rw [mul_assoc, h2, mul_one]
  linarith

/-- If every `c t ≤ C`, total variation is at most `tanh (C/2)`. -/
theorem tv_le_tanh (pt ε c p : ι → ℝ) (C : ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_max : ∀ t, c t ≤ C)
    (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) : tv p pt ≤ Real.tanh (C / 2) := by
  rw [← exp_sub_div_eq_tanh_half]
  exact tv_le_tanh_half pt ε c p C h_nonneg h_sum_one h_bound h_max h_exact

/-- The rival published form is `tanh C`; it is weaker. -/
theorem tv_le_tanh_rival (pt ε c p : ι → ℝ) (C : ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_max : ∀ t, c t ≤ C)
    (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) : tv p pt ≤ Real.tanh C := by
  have hne : ∑ t, pt t ≠ 0 := by rw [h_sum_one]; exact one_ne_zero
  obtain ⟨t0, _, _⟩ := Finset.exists_ne_zero_of_sum_ne_zero hne
  have hC0 : 0 ≤ C := (abs_nonneg _).trans ((h_bound t0).trans (h_max t0))
  have hE := Real.one_le_exp hC0
  refine (tv_le_tanh_half pt ε c p C h_nonneg h_sum_one h_bound h_max h_exact).trans ?_
  have h2 : Real.tanh C = Real.tanh (2 * C / 2) := by rw [mul_div_cancel_left₀ C two_ne_zero]
  rw [h2, ← exp_sub_div_eq_tanh_half, two_mul, Real.exp_add]
  generalize Real.exp C = E at hE ⊢
  have hE0 : 0 ≤ E := by linarith
  have hEE : 0 ≤ E * E := mul_nonneg hE0 hE0
  rw [div_le_div_iff₀ (by linarith) (by linarith)]
  have h3 := mul_nonneg (sub_nonneg.2 hE) hE0
  linarith

/-- The two-sided bound; it is weaker than `1 - A⁻/A`. -/
theorem tv_le_two_sided (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    tv p pt ≤ (acert pt c / acertNeg pt c - acertNeg pt c / acert pt c) / 2 := by
  have hx : 0 < acert pt c := weighted_pos pt _ h_nonneg h_sum_one fun t => Real.exp_pos (c t)
  have hy : 0 < acertNeg pt c := weighted_pos pt _ h_nonneg h_sum_one fun t => Real.exp_pos (-c t)
  have h := tv_le_one_sub_ratio pt ε c p h_nonneg h_sum_one h_bound h_exact
  have h2 : 2 ≤ acert pt c / acertNeg pt c + acertNeg pt c / acert pt c := by
    rw [div_add_div _ _ hy.ne' hx.ne', le_div_iff₀ (mul_pos hy hx)]
    have := sq_nonneg (acert pt c - acertNeg pt c)
    linarith
  linarith

end WitCert
