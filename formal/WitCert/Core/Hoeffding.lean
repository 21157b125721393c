import WitCert.Core.CoshSinh

/-!
# Hoeffding's inequality for one variable, without calculus

`hoeffding_two_point`: a variable that is 1 with probability `p` and 0 otherwise satisfies
`1 - p + p · exp h ≤ exp (p h + h²/8)` for `h ≥ 0`. The proof walks from 0 to `h` in `n` equal steps, at each of which the probability
is replaced by the tilted one, and lets `n` grow. `exp_chord`: the exponential lies below its chords. Together they bound the average
of `exp (l X)` for every `X` with values between 0 and a bound, by its mean alone; `adaptive_radius` rests on that.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R]

/-- The exponential lies below its chord from 0 to `h`: `exp (θ h) ≤ 1 - θ + θ · exp h` for `θ` between 0 and 1. -/
theorem exp_chord {θ : R} (h : R) (h_nonneg : 0 ≤ θ) (h_le_one : θ ≤ 1) : exp (θ * h) ≤ 1 - θ + θ * exp h := by
  have h0 : exp (θ * h) * (1 - θ * h) ≤ 1 := by
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left (one_add_le_exp (-(θ * h)))
      (show 0 ≤ exp (θ * h) by have := exp_pos (θ * h); grind)
    rw [exp_mul_neg] at h1
    grind
  have h2 : exp (θ * h) * (1 + (h - θ * h)) ≤ exp h := by
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left (one_add_le_exp (h - θ * h))
      (show 0 ≤ exp (θ * h) by have := exp_pos (θ * h); grind)
    rw [← exp_add, show θ * h + (h - θ * h) = h by grind] at h1
    exact h1
  have k0 := OrderedRing.mul_le_mul_of_nonneg_left h0 (show 0 ≤ 1 - θ by grind)
  have k2 := OrderedRing.mul_le_mul_of_nonneg_left h2 h_nonneg
  generalize exp (θ * h) = E at *
  have e : (1 - θ) * (E * (1 - θ * h)) + θ * (E * (1 + (h - θ * h))) = E := by grind
  grind

/-- `n` steps of length `η`: with `u = exp η - 1`, `1 - p + p · exp (n η) ≤ exp (n u p + (n u)²/8)`. -/
private theorem hoeffding_steps {η : R} (h_eta : 0 ≤ η) (n : Nat) :
    ∀ p : R, 0 ≤ p → p ≤ 1 → 1 - p + p * exp ((n : R) * η)
      ≤ exp ((n : R) * (exp η - 1) * p + (n : R) * (exp η - 1) * ((n : R) * (exp η - 1)) / 8) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  induction n with
  | zero =>
    intro p h_nonneg h_le_one
    rw [Semiring.natCast_zero, show (0 : R) * η = 0 by grind, exp_zero,
      show (0 : R) * (exp η - 1) * p + 0 * (exp η - 1) * (0 * (exp η - 1)) / 8 = 0 by grind, exp_zero]
    grind
  | succ n ih =>
    intro p h_nonneg h_le_one
    have hu : 0 ≤ exp η - 1 := by have := one_le_exp h_eta; grind
    have hn := OrderedRing.natCast_nonneg (R := R) (a := n)
    have eE : exp ((n + 1 : Nat) * η) = exp ((n : R) * η) * exp η := by
      rw [← exp_add, Semiring.natCast_succ]; congr 1; grind
    rw [eE, Semiring.natCast_succ]
    have h1 := one_add_le_exp ((exp η - 1) * p)
    generalize hw : exp η - 1 = u at *
    have hη : exp η = 1 + u := by grind
    rw [hη]
    have hpu := OrderedRing.mul_nonneg h_nonneg hu
    have hB : 0 < 1 + p * u := by grind
    have hBi := mul_inv_self hB
    -- the tilted probability
    have hdiv := div_mul_self (p * (1 + u)) hB
    have ht0 : 0 ≤ p * (1 + u) / (1 + p * u) := div_nonneg (by grind) hB
    have ht1 : p * (1 + u) / (1 + p * u) ≤ 1 := div_le_of_le_mul hB (by grind)
    have ht2 : p * (1 + u) / (1 + p * u) ≤ p + u / 4 := by
      apply div_le_of_le_mul hB
      have k1 := OrderedRing.mul_nonneg hu (mul_self_nonneg (p - 1 / 2))
      have k2 := OrderedRing.mul_nonneg hpu hu
      grind
    have h2 := ih (p * (1 + u) / (1 + p * u)) ht0 ht1
    generalize p * (1 + u) / (1 + p * u) = t at *
    have hE := exp_pos ((n : R) * η)
    generalize exp ((n : R) * η) = E at *
    have h3 : 1 - p + p * (E * (1 + u)) = (1 + p * u) * (1 - t + t * E) := by grind
    rw [h3]
    have htE := OrderedRing.mul_nonneg ht0 (show 0 ≤ E by grind)
    have h4 := mul_le_mul' (show 1 + p * u ≤ exp (u * p) by grind) h2 (by grind)
      (show 0 ≤ exp (u * p) by have := exp_pos (u * p); grind)
    rw [← exp_add] at h4
    refine Std.le_trans h4 (exp_mono ?_)
    have h5 := OrderedRing.mul_le_mul_of_nonneg_left ht2 (OrderedRing.mul_nonneg hn hu)
    have h6 := mul_self_nonneg u
    generalize (n : R) = N at *
    grind

variable [Archimedean R]

/-- Hoeffding's inequality for two points: `1 - p + p · exp h ≤ exp (p h + h²/8)` for `0 ≤ p ≤ 1` and `h ≥ 0`. -/
theorem hoeffding_two_point {p h : R} (h_nonneg : 0 ≤ p) (h_le_one : p ≤ 1) (h_arg : 0 ≤ h) :
    1 - p + p * exp h ≤ exp (p * h + h * h / 8) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  refine le_of_forall_le_mul_exp (by have := exp_pos (p * h + h * h / 8); grind) fun t ht => ?_
  have hhh := mul_self_nonneg h
  obtain ⟨n, y, hy0, hy1, hyt, hxy⟩ := exists_small (x := h) (K := 2 * h + h * h) (t := t) h_arg (by grind) ht
  have h1 := hoeffding_steps hy0 (2 * 2 ^ n) p h_nonneg h_le_one
  rw [Semiring.natCast_mul, natCast_two_pow, show ((2 : Nat) : R) = 2 by grind] at h1
  have e : 2 * 2 ^ n * y = h := by rw [hxy]; grind
  rw [e] at h1
  refine Std.le_trans h1 ?_
  rw [← exp_add]
  apply exp_mono
  -- `exp y - 1 ≤ y (1 + 2 y)`
  have hu : exp y - 1 ≤ y * (1 + 2 * y) := by
    have k1 := one_add_le_exp (-y)
    have k2 := exp_mul_neg y
    have k3 : exp y * (1 - y) ≤ 1 := by
      have := OrderedRing.mul_le_mul_of_nonneg_left k1 (show 0 ≤ exp y by have := exp_pos y; grind)
      grind
    apply le_of_mul_le_mul_right (c := 1 - y) _ (by grind)
    have k4 := OrderedRing.mul_nonneg (mul_self_nonneg y) (show 0 ≤ 1 - 2 * y by grind)
    grind
  have hu0 : 0 ≤ exp y - 1 := by have := one_le_exp hy0; grind
  have hP := pow_two_pos (R := R) n
  have hm : 2 * 2 ^ n * (exp y - 1) ≤ h * (1 + 2 * y) := by
    have k := OrderedRing.mul_le_mul_of_nonneg_left hu (show 0 ≤ 2 * (2 : R) ^ n by grind)
    have e2 : 2 * 2 ^ n * (y * (1 + 2 * y)) = h * (1 + 2 * y) := by rw [← e]; grind
    grind
  have hm0 := OrderedRing.mul_nonneg (show 0 ≤ 2 * (2 : R) ^ n by grind) hu0
  generalize 2 * 2 ^ n * (exp y - 1) = M at *
  have k1 := OrderedRing.mul_le_mul_of_nonneg_right hm h_nonneg
  have k2 := mul_self_le hm0 hm
  have k3 := OrderedRing.mul_nonneg h_arg hy0
  have k4 := OrderedRing.mul_le_mul_of_nonneg_left h_le_one k3
  have k5 := OrderedRing.mul_nonneg hhh hy0
  have k6 := OrderedRing.mul_le_mul_of_nonneg_left hy1 k5
  grind

/-- If `0 ≤ X ≤ K` on average at most `μ`, with `μ ≤ K`, then `exp (l X)` is on average at most `exp (l μ + l² K²/8)`, for `l ≥ 0`:
stated for the chord that bounds `exp (l X)`. -/
theorem hoeffding_chord {K μ l : R} (h_pos : 0 < K) (h_nonneg : 0 ≤ μ) (h_le : μ ≤ K) (h_arg : 0 ≤ l) :
    1 - μ / K + μ / K * exp (l * K) ≤ exp (l * μ + l * l * (K * K) / 8) := by
  have h1 := hoeffding_two_point (p := μ / K) (h := l * K) (div_nonneg h_nonneg h_pos)
    (div_le_of_le_mul h_pos (by grind)) (OrderedRing.mul_nonneg h_arg (by grind))
  have e := div_mul_self μ h_pos
  have e2 : μ / K * (l * K) + l * K * (l * K) / 8 = l * μ + l * l * (K * K) / 8 := by
    have e3 : μ / K * (l * K) = l * (μ / K * K) := by grind
    rw [e3, e]; grind
  rw [e2] at h1
  exact h1

end WitCert.Core
