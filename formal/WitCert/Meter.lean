import WitCert.Instance
import WitCert.TotalVariation

/-!
# The reported meter, over `Real.exp`

The kernel reports `meter A_hat C_hat`, the smaller of the sharp bound of an over-estimate `A_hat` of the accumulator and of
`tanh (C_hat / 2)`, where `C_hat` is at least every per-token bound. What a kernel must discharge: `h_nonneg`, `h_sum_one` (the weights
are a softmax), `h_bound` (every logit error is within its bound), `h_acert`, `h_max` (roundings go up); `h_exact` defines exact
attention.
-/

namespace WitCert

/-- The sharp bound as a function of `A`: `1 - 1/A` up to `A = 2`, and `A²/(A² + 4)` from there on. -/
noncomputable def sharp (A : ℝ) : ℝ := if A ≤ 2 then 1 - 1 / A else A ^ 2 / (A ^ 2 + 4)

/-- The reported meter: the smaller of the sharp bound of `A` and `tanh (C/2)`. -/
noncomputable def meter (A C : ℝ) : ℝ := min (sharp A) (Real.tanh (C / 2))

/-- Core's sharp bound is the same function. -/
theorem core_sharp (A : ℝ) : Core.sharp A = sharp A := by
  unfold Core.sharp sharp
  by_cases h : A ≤ 2
  · exact (if_pos h).trans (if_pos h).symm
  · exact (if_neg h).trans (if_neg h).symm

/-- Core's half-angle bound is `tanh (C/2)`. -/
theorem core_tanhHalf_eq (C : ℝ) : Core.tanhHalf C = Real.tanh (C / 2) := by
  rw [core_tanhHalf]
  exact exp_sub_div_eq_tanh_half C

/-- Core's meter is the same function. -/
theorem core_meter (A C : ℝ) : Core.meter A C = meter A C := by
  unfold Core.meter meter
  rw [core_minimum, core_sharp, core_tanhHalf_eq]

/-- The sharp bound grows with `A`. -/
theorem sharp_mono {A B : ℝ} (h_pos : 0 < A) (h_le : A ≤ B) : sharp A ≤ sharp B := by
  have h := Core.sharp_mono h_pos h_le
  rw [core_sharp, core_sharp] at h
  exact h

/-- The sharp bound is less than 1 for every positive `A`: it never becomes vacuous. -/
theorem sharp_lt_one {A : ℝ} (h_pos : 0 < A) : sharp A < 1 := by
  have h := Core.sharp_lt_one h_pos
  rw [core_sharp] at h
  exact h

/-- The sharp bound is never larger than the e-form bound `(A² - 1)/2`. -/
theorem sharp_le_eform {A : ℝ} (h_one : 1 ≤ A) : sharp A ≤ (A ^ 2 - 1) / 2 := by
  have h := Core.sharp_le_eform h_one
  rw [core_sharp] at h
  exact h

/-- The half-angle bound grows with `C`. -/
theorem tanh_half_mono {C D : ℝ} (h_le : C ≤ D) : Real.tanh (C / 2) ≤ Real.tanh (D / 2) := by
  have h := Core.tanhHalf_mono h_le
  rw [core_tanhHalf_eq, core_tanhHalf_eq] at h
  exact h

/-- The meter grows with both accumulators, so rounding them up keeps it sound. -/
theorem meter_mono {A A' C C' : ℝ} (h_pos : 0 < A) (h_le_A : A ≤ A') (h_le_C : C ≤ C') : meter A C ≤ meter A' C' :=
  min_le_min (sharp_mono h_pos h_le_A) (tanh_half_mono h_le_C)

variable {ι : Type*} [Fintype ι]

/-- Total variation is at most the sharp bound of `A`. -/
theorem tv_le_sharp_acert (pt ε c p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) :
    tv p pt ≤ sharp (acert pt c) := by
  unfold sharp
  split_ifs with h
  · exact tv_le_sharp_small pt ε c p h_nonneg h_sum_one h_bound h_exact h
  · exact tv_le_sharp_always pt ε c p h_nonneg h_sum_one h_bound h_exact

/-- The reported meter bounds total variation: with exact `A` and any `C ≥ c t`, it is at most `min (sharp A) (tanh (C/2))`. -/
theorem meter_sound (pt ε c p : ι → ℝ) (C : ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_max : ∀ t, c t ≤ C)
    (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) : tv p pt ≤ meter (acert pt c) C :=
  le_min (tv_le_sharp_acert pt ε c p h_nonneg h_sum_one h_bound h_exact)
    (tv_le_tanh pt ε c p C h_nonneg h_sum_one h_bound h_max h_exact)

/-- The meter of over-estimates bounds total variation: `A_hat` at least `A`, and `C_hat` at least every per-token bound. -/
theorem meter_sound_upper (pt ε c p : ι → ℝ) (A_hat C_hat : ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_bound : ∀ t, |ε t| ≤ c t) (h_acert : acert pt c ≤ A_hat) (h_max : ∀ t, c t ≤ C_hat)
    (h_exact : ∀ t, p t = pt t * Real.exp (-ε t) / znorm pt ε) : tv p pt ≤ meter A_hat C_hat := by
  have h1 : 1 ≤ acert pt c := one_le_acert pt c h_nonneg h_sum_one fun t => (abs_nonneg (ε t)).trans (h_bound t)
  exact (meter_sound pt ε c p C_hat h_nonneg h_sum_one h_bound h_max h_exact).trans
    (meter_mono (lt_of_lt_of_le one_pos h1) h_acert le_rfl)

/-- The per-token form: total variation is at most half the `pt`-average of the largest possible relative change of each weight. Tokens
are numbered `t < n`. -/
theorem tv_le_retention {n : ℕ} (pt ε c p : ℕ → ℝ) (h_nonneg : ∀ t, t < n → 0 ≤ pt t)
    (h_sum_one : ∑ t ∈ Finset.range n, pt t = 1) (h_bound : ∀ t, t < n → |ε t| ≤ c t)
    (h_exact : ∀ t, t < n → p t = pt t * Real.exp (-ε t) / ∑ s ∈ Finset.range n, pt s * Real.exp (-ε s)) :
    (∑ t ∈ Finset.range n, |p t - pt t|) / 2
      ≤ (∑ t ∈ Finset.range n, pt t * min ((∑ s ∈ Finset.range n, pt s * Real.exp (c s)) * Real.exp (c t) - 1)
          (max (Real.exp (c t) / (∑ s ∈ Finset.range n, pt s * Real.exp (-c s)) - 1)
            (1 - Real.exp (-c t) / ∑ s ∈ Finset.range n, pt s * Real.exp (c s)))) / 2 := by
  have h := Core.tv_le_retention (pt := pt) (ε := ε) (c := c) (p := p) (n := n) h_nonneg
    (by rw [core_sum]; exact h_sum_one) (fun t ht => by rw [core_abs]; exact h_bound t ht)
    (fun t ht => by rw [core_znorm]; exact h_exact t ht)
  rw [core_tv, core_sum] at h
  simp only [core_minimum, core_maximum, core_acert, core_acertNeg, core_exp] at h
  exact h

end WitCert
