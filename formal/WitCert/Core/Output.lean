import WitCert.Core.LogitDefs
import WitCert.Core.Weights
/-!
# The bound on the output

The output of attention is the weighted average of the value vectors. A vector is a family of coordinates `κ → R`, for any index
type `κ`; `N` is any function on vectors that satisfies the triangle inequality and is absolutely homogeneous (a seminorm).
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]
variable {κ : Type v} {n : Nat}

/-- A seminorm of a weighted sum of vectors is at most the weighted sum of the seminorms. -/
theorem seminorm_output_le {N : (κ → R) → R} (h_triangle : ∀ x y : κ → R, N (fun i => x i + y i) ≤ N x + N y)
    (h_homogeneous : ∀ (a : R) (x : κ → R), N (fun i => a * x i) = abs a * N x) (p : Nat → R) (v : Nat → κ → R) (n : Nat) :
    N (output p v n) ≤ sum (fun t => abs (p t) * N (v t)) n := by
  induction n with
  | zero =>
    have h := h_homogeneous 0 (fun _ => 0)
    rw [show (fun i : κ => (0 : R) * (fun _ => 0) i) = output p v 0 from funext fun i => by show (0 : R) * 0 = 0; grind, abs_zero] at h
    rw [h, sum_zero]
    grind
  | succ n ih =>
    have h1 := h_triangle (output p v n) (fun i => p n * v n i)
    rw [h_homogeneous] at h1
    rw [sum_succ]
    show N (fun i => output p v n i + p n * v n i) ≤ _
    grind

/-- The error of the output is at most `2 TV max_t ‖v_t - v₀‖ + Σ_t pt_t ρ_t`, for any fixed vector `v₀`: `p`, `v` are the exact
weights and values, `pt`, `v_hat` the served ones, `V` bounds `‖v_t - v₀‖`, and `ρ_t` bounds the error of value `t`. -/
theorem output_bound {N : (κ → R) → R} {p pt ρ : Nat → R} {v v_hat : Nat → κ → R} (v₀ : κ → R) {V : R}
    (h_triangle : ∀ x y : κ → R, N (fun i => x i + y i) ≤ N x + N y)
    (h_homogeneous : ∀ (a : R) (x : κ → R), N (fun i => a * x i) = abs a * N x)
    (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_eq : sum p n = sum pt n)
    (h_value : ∀ t, t < n → N (fun i => v t i - v₀ i) ≤ V)
    (h_value_error : ∀ t, t < n → N (fun i => v_hat t i - v t i) ≤ ρ t) :
    N (fun i => output p v n i - output pt v_hat n i) ≤ 2 * tv p pt n * V + sum (fun t => pt t * ρ t) n := by
  have e : (fun i => output p v n i - output pt v_hat n i)
      = fun i => output (fun t => p t - pt t) (fun t i => v t i - v₀ i) n i
        + output (fun t => -pt t) (fun t i => v_hat t i - v t i) n i := funext fun i => by
    have h1 : sum (fun t => (p t - pt t) * v₀ i) n = 0 := by
      rw [sum_mul_right, sum_sub, h_sum_eq]; grind
    have h2 : output (fun t => p t - pt t) (fun t i => v t i - v₀ i) n i
        = sum (fun t => (p t - pt t) * v t i) n - sum (fun t => (p t - pt t) * v₀ i) n := by
      rw [← sum_sub]
      exact sum_congr fun t _ => by grind
    rw [h2, h1]
    unfold output
    rw [show ∀ a : R, a - 0 = a by grind, ← sum_add, ← sum_sub]
    exact sum_congr fun t _ => by grind
  rw [e]
  have h1 := h_triangle (output (fun t => p t - pt t) (fun t i => v t i - v₀ i) n)
    (output (fun t => -pt t) (fun t i => v_hat t i - v t i) n)
  have h2 := seminorm_output_le h_triangle h_homogeneous (fun t => p t - pt t) (fun t i => v t i - v₀ i) n
  have h3 := seminorm_output_le h_triangle h_homogeneous (fun t => -pt t) (fun t i => v_hat t i - v t i) n
  have h4 : sum (fun t => abs (p t - pt t) * N (fun i => v t i - v₀ i)) n ≤ 2 * tv p pt n * V := by
    have h5 : 2 * tv p pt n * V = sum (fun t => abs (p t - pt t) * V) n := by
      rw [sum_mul_right]; unfold tv; grind
    rw [h5]
    exact sum_le fun t ht => OrderedRing.mul_le_mul_of_nonneg_left (h_value t ht) (abs_nonneg _)
  have h5 : sum (fun t => abs (-pt t) * N (fun i => v_hat t i - v t i)) n ≤ sum (fun t => pt t * ρ t) n := sum_le fun t ht => by
    rw [abs_neg, abs_of_nonneg (h_nonneg t ht)]
    exact OrderedRing.mul_le_mul_of_nonneg_left (h_value_error t ht) (h_nonneg t ht)
  grind

/-- The error of one coordinate of the output: `|y_i - ŷ_i| ≤ 2 TV max_t |v_t,i - a| + Σ_t pt_t ρ_t` for any fixed number `a`. -/
theorem output_bound_coordinate {p pt ρ v v_hat : Nat → R} (a : R) {V : R}
    (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_eq : sum p n = sum pt n)
    (h_value : ∀ t, t < n → abs (v t - a) ≤ V) (h_value_error : ∀ t, t < n → abs (v_hat t - v t) ≤ ρ t) :
    abs (sum (fun t => p t * v t) n - sum (fun t => pt t * v_hat t) n) ≤ 2 * tv p pt n * V + sum (fun t => pt t * ρ t) n :=
  output_bound (κ := Unit) (N := fun x => abs (x ())) (v := fun t _ => v t) (v_hat := fun t _ => v_hat t) (fun _ => a)
    (fun _ _ => abs_add_le _ _) (fun _ _ => abs_mul _ _) h_nonneg h_sum_eq h_value h_value_error

end WitCert.Core
