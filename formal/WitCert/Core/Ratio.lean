import WitCert.Core.LogitDefs
import WitCert.Core.Weights
/-!
# From the computed accumulator to the true one

The kernel computes `A` as a quotient of two sums of positive terms. If every term is computed with relative error at most `δ₁` and
every sum of computed terms with relative error at most `δ₂`, the computed quotient times a constant is at least the true one.
The constant depends on `δ₁` and `δ₂` only, so it is fixed when the kernel is launched.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]
variable {n : Nat}

/-- A computed sum of nonnegative terms lies within `(1 ± δ₁)(1 ± δ₂)` of the true sum: `x t` are the true terms, `x' t` the computed
ones with relative error at most `δ₁`, and `X'` is their computed sum, with relative error at most `δ₂`. -/
theorem sum_envelope {x x' : Nat → R} {X' δ₁ δ₂ : R} (h_delta_two : 0 ≤ δ₂ ∧ δ₂ ≤ 1)
    (h_term : ∀ t, t < n → abs (x' t - x t) ≤ δ₁ * x t) (h_sum : abs (X' - sum x' n) ≤ δ₂ * sum x' n) :
    (1 - δ₁) * (1 - δ₂) * sum x n ≤ X' ∧ X' ≤ (1 + δ₁) * (1 + δ₂) * sum x n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h1 : (1 - δ₁) * sum x n ≤ sum x' n := by
    rw [← sum_mul]
    exact sum_le fun t ht => by have := le_of_abs_le (h_term t ht); grind
  have h2 : sum x' n ≤ (1 + δ₁) * sum x n := by
    rw [← sum_mul]
    exact sum_le fun t ht => by have := le_of_abs_le (h_term t ht); grind
  have h3 := le_of_abs_le h_sum
  have h4 := OrderedRing.mul_le_mul_of_nonneg_right h1 (show 0 ≤ 1 - δ₂ by grind)
  have h5 := OrderedRing.mul_le_mul_of_nonneg_right h2 (show 0 ≤ 1 + δ₂ by grind)
  exact ⟨by grind, by grind⟩

/-- The computed quotient of two sums of positive terms, times `(1 + δ)/(1 - δ)`, is at least the true quotient. Terms have relative
error at most `δ₁`, sums at most `δ₂`, and `δ₁ + δ₂ + δ₁ δ₂ ≤ δ < 1`. -/
theorem ratio_envelope {num den num' den' : Nat → R} {N' D' δ₁ δ₂ δ : R}
    (h_delta_one : 0 ≤ δ₁) (h_delta_two : 0 ≤ δ₂) (h_delta : δ₁ + δ₂ + δ₁ * δ₂ ≤ δ) (h_delta_lt : δ < 1)
    (h_num : ∀ t, t < n → 0 ≤ num t) (h_den : 0 < sum den n)
    (h_num_term : ∀ t, t < n → abs (num' t - num t) ≤ δ₁ * num t)
    (h_den_term : ∀ t, t < n → abs (den' t - den t) ≤ δ₁ * den t)
    (h_num_sum : abs (N' - sum num' n) ≤ δ₂ * sum num' n)
    (h_den_sum : abs (D' - sum den' n) ≤ δ₂ * sum den' n) :
    0 < D' ∧ sum num n / sum den n ≤ N' / D' * ((1 + δ) / (1 - δ)) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h12 := OrderedRing.mul_nonneg h_delta_one h_delta_two
  obtain ⟨hN, -⟩ := sum_envelope ⟨h_delta_two, by grind⟩ h_num_term h_num_sum
  obtain ⟨hD1, hD2⟩ := sum_envelope ⟨h_delta_two, by grind⟩ h_den_term h_den_sum
  have hN0 : 0 ≤ sum num n := sum_nonneg h_num
  generalize sum num n = N at *
  generalize sum den n = D at *
  have k1 : 1 - δ ≤ (1 - δ₁) * (1 - δ₂) := by grind
  have k2 : (1 + δ₁) * (1 + δ₂) ≤ 1 + δ := by grind
  have hN' : (1 - δ) * N ≤ N' := by
    have := OrderedRing.mul_le_mul_of_nonneg_right k1 hN0
    grind
  have hD' : D' ≤ (1 + δ) * D := by
    have := OrderedRing.mul_le_mul_of_nonneg_right k2 (show 0 ≤ D by grind)
    grind
  have hD'0 : 0 < D' := by
    have m1 := OrderedRing.mul_le_mul_of_nonneg_right k1 (show 0 ≤ D by grind)
    have m2 := OrderedRing.mul_pos (show 0 < 1 - δ by grind) h_den
    grind
  refine ⟨hD'0, ?_⟩
  apply div_le_of_le_mul h_den
  -- multiply out: N · D' (1 - δ) ≤ N' (1 + δ) D
  have m1 := OrderedRing.mul_le_mul_of_nonneg_left hD' hN0
  have m2 := OrderedRing.mul_le_mul_of_nonneg_right hN' (OrderedRing.mul_nonneg (show 0 ≤ 1 + δ by grind) (show 0 ≤ D by grind))
  have m3 := OrderedRing.mul_le_mul_of_nonneg_right m1 (show 0 ≤ 1 - δ by grind)
  have hpos := OrderedRing.mul_pos hD'0 (show 0 < 1 - δ by grind)
  apply le_of_mul_le_mul_right (c := D' * (1 - δ)) _ hpos
  have e1 := div_mul_self N' hD'0
  have e2 := div_mul_self (1 + δ) (show 0 < 1 - δ by grind)
  have e3 : N' / D' * ((1 + δ) / (1 - δ)) * D * (D' * (1 - δ)) = N' / D' * D' * ((1 + δ) / (1 - δ) * (1 - δ)) * D := by grind
  rw [e3, e1, e2]
  grind

/-! ### attention weights -/

variable [Exp R]

/-- Sums of exponentials of logits are positive. -/
theorem sum_exp_pos (l : Nat → R) (h_tokens : 0 < n) : 0 < sum (fun t => exp (l t)) n := by
  have h1 := term_le_sum (f := fun t => exp (l t)) (fun t _ => by have := exp_pos (l t); grind) h_tokens
  have h2 := exp_pos (l 0)
  grind

/-- Softmax weights are nonnegative. -/
theorem softmax_nonneg (l : Nat → R) (h_tokens : 0 < n) (t : Nat) : 0 ≤ softmax l n t :=
  div_nonneg (by have := exp_pos (l t); grind) (sum_exp_pos l h_tokens)

/-- Softmax weights sum to 1. -/
theorem softmax_sum_one (l : Nat → R) (h_tokens : 0 < n) : sum (softmax l n) n = 1 := by
  have h1 := mul_inv_self (sum_exp_pos l h_tokens)
  have e : sum (softmax l n) n = sum (fun t => exp (l t)) n * (sum (fun t => exp (l t)) n)⁻¹ := by
    rw [← sum_mul_right]
    exact sum_congr fun t _ => Field.div_eq_mul_inv _ _
  rw [e, h1]

/-- Exact attention is served attention reweighted by `exp (-ε)` and normalised, where `ε` is the difference of the logits. -/
theorem softmax_exact (l l_hat : Nat → R) (h_tokens : 0 < n) (t : Nat) :
    softmax l n t = softmax l_hat n t * exp (-(l_hat t - l t)) / znorm (softmax l_hat n) (fun s => l_hat s - l s) n := by
  have h1 := sum_exp_pos l h_tokens
  have h2 := sum_exp_pos l_hat h_tokens
  have e : ∀ s, softmax l_hat n s * exp (-(l_hat s - l s)) = exp (l s) * (sum (fun t => exp (l_hat t)) n)⁻¹ := fun s => by
    have h3 : exp (l s) = exp (l_hat s) * exp (-(l_hat s - l s)) := by
      rw [← exp_add, show l_hat s + -(l_hat s - l s) = l s by grind]
    rw [h3]; unfold softmax; grind
  have ez : znorm (softmax l_hat n) (fun s => l_hat s - l s) n
      = sum (fun t => exp (l t)) n * (sum (fun t => exp (l_hat t)) n)⁻¹ := by
    unfold znorm
    rw [← sum_mul_right]
    exact sum_congr fun s _ => e s
  rw [e, ez]
  unfold softmax
  have h5 := inv_pos h2
  generalize (sum (fun t => exp (l_hat t)) n)⁻¹ = w at *
  generalize sum (fun t => exp (l t)) n = D at *
  generalize exp (l t) = x at *
  have h6 := mul_inv_self (OrderedRing.mul_pos h1 h5)
  have h7 := mul_inv_self h1
  grind

/-- The accumulator of softmax weights is a quotient of two sums of positive terms, as the kernel computes it. -/
theorem acert_softmax (l c : Nat → R) (n : Nat) :
    acert (softmax l n) c n = sum (fun t => exp (l t) * exp (c t)) n / sum (fun t => exp (l t)) n := by
  unfold acert softmax
  rw [Field.div_eq_mul_inv, ← sum_mul_right]
  exact sum_congr fun t _ => by grind

/-- The computed accumulator, times `(1 + δ)/(1 - δ)`, is at least the true `A` of the served attention. -/
theorem acert_envelope {l c num' den' : Nat → R} {N' D' δ₁ δ₂ δ : R} (h_tokens : 0 < n)
    (h_delta_one : 0 ≤ δ₁) (h_delta_two : 0 ≤ δ₂) (h_delta : δ₁ + δ₂ + δ₁ * δ₂ ≤ δ) (h_delta_lt : δ < 1)
    (h_num_term : ∀ t, t < n → abs (num' t - exp (l t) * exp (c t)) ≤ δ₁ * (exp (l t) * exp (c t)))
    (h_den_term : ∀ t, t < n → abs (den' t - exp (l t)) ≤ δ₁ * exp (l t))
    (h_num_sum : abs (N' - sum num' n) ≤ δ₂ * sum num' n)
    (h_den_sum : abs (D' - sum den' n) ≤ δ₂ * sum den' n) :
    acert (softmax l n) c n ≤ N' / D' * ((1 + δ) / (1 - δ)) := by
  rw [acert_softmax]
  exact (ratio_envelope (num := fun t => exp (l t) * exp (c t)) (den := fun t => exp (l t)) h_delta_one h_delta_two h_delta h_delta_lt
    (fun t _ => by have := OrderedRing.mul_pos (exp_pos (l t)) (exp_pos (c t)); grind) (sum_exp_pos l h_tokens)
    h_num_term h_den_term h_num_sum h_den_sum).2

end WitCert.Core
