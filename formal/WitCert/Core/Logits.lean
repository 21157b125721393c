import WitCert.Core.Ratio
import WitCert.Core.Meter
import WitCert.Core.Bands
/-!
# From quantized keys to the meter

The hypotheses of `meter_sound` are about attention weights; here they are discharged from the logits. `tierA_sound` starts from exact and
quantized keys, the dot products that the kernel computed, and the stored witnesses, and ends at the meter.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-! ### transformations of logits -/

/-- A soft-cap, or any other map of the logits that is 1-Lipschitz, keeps a bound on the logit error. -/
theorem softcap_lipschitz {cap : R → R} {l l_hat c : R} (h_lipschitz : ∀ x y : R, abs (cap x - cap y) ≤ abs (x - y))
    (h_bound : abs (l_hat - l) ≤ c) : abs (cap l_hat - cap l) ≤ c :=
  Std.le_trans (h_lipschitz l_hat l) h_bound

/-- The softmax scale multiplies a bound on the error of a dot product. -/
theorem scale_bound {sm x x_hat u : R} (h_scale : 0 ≤ sm) (h_bound : abs (x_hat - x) ≤ u) :
    abs (sm * x_hat - sm * x) ≤ sm * u := by
  rw [show sm * x_hat - sm * x = sm * (x_hat - x) by grind, abs_mul, abs_of_nonneg h_scale]
  exact OrderedRing.mul_le_mul_of_nonneg_left h_bound h_scale

/-- An attention sink is one more token, `n`, whose logit `z` is exact: its bound is 0, and every other bound stays as it is. -/
theorem sink_extend {n : Nat} {l l_hat c : Nat → R} (z : R) (h_bound : ∀ t, t < n → abs (l_hat t - l t) ≤ c t) :
    ∀ t, t < n + 1 →
      abs ((if t < n then l_hat t else z) - (if t < n then l t else z)) ≤ if t < n then c t else 0 := by
  intro t _
  by_cases h : t < n
  · simp only [if_pos h]; exact h_bound t h
  · simp only [if_neg h]
    rw [show z - z = 0 by grind, abs_zero]; grind

variable [Exp R] {n : Nat}

/-- The meter bounds the total variation between exact and served attention when every logit error is within its bound: `l` are the exact
logits, `l_hat` the served ones, `A_hat` at least the accumulator, `C_hat` at least every bound. -/
theorem logit_meter_sound {l l_hat c : Nat → R} {A_hat C_hat : R} (h_tokens : 0 < n)
    (h_bound : ∀ t, t < n → abs (l_hat t - l t) ≤ c t)
    (h_acert : acert (softmax l_hat n) c n ≤ A_hat) (h_max : ∀ t, t < n → c t ≤ C_hat) :
    tv (softmax l n) (softmax l_hat n) n ≤ meter A_hat C_hat :=
  meter_sound_upper (ε := fun t => l_hat t - l t) (fun t _ => softmax_nonneg l_hat h_tokens t)
    (softmax_sum_one l_hat h_tokens) h_bound h_acert h_max (fun t _ => softmax_exact l l_hat h_tokens t)

/-- The same with an attention sink: total variation over the tokens and the sink is at most the meter, whose accumulator counts the sink
with bound 0. -/
theorem sink_meter_sound {l l_hat c : Nat → R} {A_hat C_hat : R} (z : R) (h_nonneg_max : 0 ≤ C_hat)
    (h_bound : ∀ t, t < n → abs (l_hat t - l t) ≤ c t)
    (h_acert : acert (softmax (fun t => if t < n then l_hat t else z) (n + 1)) (fun t => if t < n then c t else 0) (n + 1) ≤ A_hat)
    (h_max : ∀ t, t < n → c t ≤ C_hat) :
    tv (softmax (fun t => if t < n then l t else z) (n + 1)) (softmax (fun t => if t < n then l_hat t else z) (n + 1)) (n + 1)
      ≤ meter A_hat C_hat :=
  logit_meter_sound (by omega) (sink_extend z h_bound) h_acert fun t _ => by
    by_cases h : t < n
    · simp only [if_pos h]; exact h_max t h
    · simp only [if_neg h]; exact h_nonneg_max

/-! ### tier A -/

/-- One stored value covers residual and arithmetic: if `w_b` is at least `‖r_b‖ + γ ‖k̂_b‖` in every band and the computed dot product is
within `γ Σ|q_c k̂_c|` of `q · k̂`, the computed value is within `Σ_b wq_b w_b` of the exact `q · k`. -/
theorem witness_covers {d B : Nat} {band : Nat → Nat} {q k k_hat nr nk wq w : Nat → R} {γ computed : R}
    (h_band : ∀ i, i < d → band i < B) (h_gamma : 0 ≤ γ)
    (h_query : ∀ b, b < B → 0 ≤ wq b) (h_query_sq : ∀ b, b < B → bandSq q band b d ≤ wq b ^ 2)
    (h_nr : ∀ b, b < B → 0 ≤ nr b) (h_nr_sq : ∀ b, b < B → bandSq (fun i => k_hat i - k i) band b d ≤ nr b ^ 2)
    (h_nk : ∀ b, b < B → 0 ≤ nk b) (h_nk_sq : ∀ b, b < B → bandSq k_hat band b d ≤ nk b ^ 2)
    (h_witness : ∀ b, b < B → nr b + γ * nk b ≤ w b)
    (h_arith : abs (computed - dot q k_hat d) ≤ γ * sum (fun i => abs (q i * k_hat i)) d) :
    abs (computed - dot q k d) ≤ sum (fun b => wq b * w b) B := by
  have h1 := arith_fold h_band h_gamma h_query h_nr h_nk h_query_sq h_nr_sq h_nk_sq h_arith
  exact Std.le_trans h1 (sum_le fun b hb => OrderedRing.mul_le_mul_of_nonneg_left (h_witness b hb) (h_query b hb))

/-- Tier A, from quantized keys to the meter: total variation between exact and served attention is at most the reported meter, for every
query. Exact keys `k t`, served keys `k_hat t`, query `q`, on `d` channels in `B` bands; the kernel computed the dot products
`computed t`, each within `γ Σ|q_c k̂_c|`; it applies the softmax scale `sm` and a 1-Lipschitz cap (the identity if there is none).
The stored witness `w t b` is at least `‖k̂ - k‖ + γ ‖k̂‖` in every band, `wq b` is at least the norm of the query's band, the
reported accumulators are at least those of the bounds `c t ≥ sm Σ_b wq_b w_tb`. -/
theorem tierA_sound {d B : Nat} {band : Nat → Nat} {q : Nat → R} {k k_hat nr nk w : Nat → Nat → R} {wq computed c : Nat → R}
    {γ sm A_hat C_hat : R} {cap : R → R}
    (h_tokens : 0 < n) (h_band : ∀ i, i < d → band i < B) (h_gamma : 0 ≤ γ) (h_scale : 0 ≤ sm)
    (h_lipschitz : ∀ x y : R, abs (cap x - cap y) ≤ abs (x - y))
    (h_query : ∀ b, b < B → 0 ≤ wq b) (h_query_sq : ∀ b, b < B → bandSq q band b d ≤ wq b ^ 2)
    (h_residual : ∀ t, t < n → ∀ b, b < B → 0 ≤ nr t b ∧ bandSq (fun i => k_hat t i - k t i) band b d ≤ nr t b ^ 2)
    (h_key : ∀ t, t < n → ∀ b, b < B → 0 ≤ nk t b ∧ bandSq (k_hat t) band b d ≤ nk t b ^ 2)
    (h_witness : ∀ t, t < n → ∀ b, b < B → nr t b + γ * nk t b ≤ w t b)
    (h_arith : ∀ t, t < n → abs (computed t - dot q (k_hat t) d) ≤ γ * sum (fun i => abs (q i * k_hat t i)) d)
    (h_token_bound : ∀ t, t < n → sm * sum (fun b => wq b * w t b) B ≤ c t)
    (h_acert : acert (softmax (fun t => cap (sm * computed t)) n) c n ≤ A_hat) (h_max : ∀ t, t < n → c t ≤ C_hat) :
    tv (softmax (fun t => cap (sm * dot q (k t) d)) n) (softmax (fun t => cap (sm * computed t)) n) n ≤ meter A_hat C_hat := by
  refine logit_meter_sound h_tokens (fun t ht => ?_) h_acert h_max
  refine softcap_lipschitz h_lipschitz (Std.le_trans (scale_bound h_scale ?_) (h_token_bound t ht))
  exact witness_covers h_band h_gamma h_query h_query_sq (fun b hb => (h_residual t ht b hb).1)
    (fun b hb => (h_residual t ht b hb).2) (fun b hb => (h_key t ht b hb).1) (fun b hb => (h_key t ht b hb).2)
    (h_witness t ht) (h_arith t ht)

/-- Tier A with the accumulator as the kernel computes it: `N'` and `D'` are the computed sums of the computed terms, and the reported
accumulator is at least their quotient times the launch constant `(1 + δ)/(1 - δ)` of `ratio_envelope`. -/
theorem tierA_sound_computed {d B : Nat} {band : Nat → Nat} {q : Nat → R} {k k_hat nr nk w : Nat → Nat → R} {wq computed c : Nat → R}
    {num' den' : Nat → R} {γ sm N' D' δ₁ δ₂ δ A_hat C_hat : R} {cap : R → R}
    (h_tokens : 0 < n) (h_band : ∀ i, i < d → band i < B) (h_gamma : 0 ≤ γ) (h_scale : 0 ≤ sm)
    (h_lipschitz : ∀ x y : R, abs (cap x - cap y) ≤ abs (x - y))
    (h_query : ∀ b, b < B → 0 ≤ wq b) (h_query_sq : ∀ b, b < B → bandSq q band b d ≤ wq b ^ 2)
    (h_residual : ∀ t, t < n → ∀ b, b < B → 0 ≤ nr t b ∧ bandSq (fun i => k_hat t i - k t i) band b d ≤ nr t b ^ 2)
    (h_key : ∀ t, t < n → ∀ b, b < B → 0 ≤ nk t b ∧ bandSq (k_hat t) band b d ≤ nk t b ^ 2)
    (h_witness : ∀ t, t < n → ∀ b, b < B → nr t b + γ * nk t b ≤ w t b)
    (h_arith : ∀ t, t < n → abs (computed t - dot q (k_hat t) d) ≤ γ * sum (fun i => abs (q i * k_hat t i)) d)
    (h_token_bound : ∀ t, t < n → sm * sum (fun b => wq b * w t b) B ≤ c t)
    (h_delta_one : 0 ≤ δ₁) (h_delta_two : 0 ≤ δ₂) (h_delta : δ₁ + δ₂ + δ₁ * δ₂ ≤ δ) (h_delta_lt : δ < 1)
    (h_num_term : ∀ t, t < n → abs (num' t - exp (cap (sm * computed t)) * exp (c t))
      ≤ δ₁ * (exp (cap (sm * computed t)) * exp (c t)))
    (h_den_term : ∀ t, t < n → abs (den' t - exp (cap (sm * computed t))) ≤ δ₁ * exp (cap (sm * computed t)))
    (h_num_sum : abs (N' - sum num' n) ≤ δ₂ * sum num' n) (h_den_sum : abs (D' - sum den' n) ≤ δ₂ * sum den' n)
    (h_reported : N' / D' * ((1 + δ) / (1 - δ)) ≤ A_hat) (h_max : ∀ t, t < n → c t ≤ C_hat) :
    tv (softmax (fun t => cap (sm * dot q (k t) d)) n) (softmax (fun t => cap (sm * computed t)) n) n ≤ meter A_hat C_hat :=
  tierA_sound h_tokens h_band h_gamma h_scale h_lipschitz h_query h_query_sq h_residual h_key h_witness h_arith h_token_bound
    (Std.le_trans (acert_envelope h_tokens h_delta_one h_delta_two h_delta h_delta_lt h_num_term h_den_term h_num_sum h_den_sum)
      h_reported) h_max

end WitCert.Core
