import WitCert.Core.Abs
import WitCert.Core.Cast
import WitCert.Core.Grid
import WitCert.Core.SumOrder

/-!
# The law of the dithered residual

`grid_dither_law`: as the dither runs over its grid, the residual divided by the scale runs over the same grid, shifted
cyclically and moved by a fixed `θ` of at most half a cell. Ties are harmless, whichever way they are broken: the `n` numbers
`x/s + ξ` differ by multiples of `1/n`, so at most one of them lies halfway between two integers, and its residual is one end or
the other of the cell. For the same reason a small error in the sum `x/s + ξ` is harmless (`grid_dither_law_slack`), so the law
holds for a kernel that computes in floating point.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- Finitely many integers have a least one. -/
private theorem exists_min (f : Nat → Int) {n : Nat} (h_pos : 0 < n) : ∃ i, i < n ∧ ∀ j, j < n → f i ≤ f j := by
  induction n with
  | zero => omega
  | succ n ih =>
    rcases Nat.eq_zero_or_pos n with rfl | hn
    · exact ⟨0, by omega, fun j hj => by obtain rfl : j = 0 := by omega
                                         exact Int.le_refl _⟩
    · obtain ⟨i, hi, h⟩ := ih hn
      rcases Int.le_total (f i) (f n) with h1 | h1
      · exact ⟨i, by omega, fun j hj => by
          rcases Nat.lt_or_ge j n with h2 | h2
          · exact h j h2
          · obtain rfl : j = n := by omega
            exact h1⟩
      · exact ⟨n, by omega, fun j hj => by
          rcases Nat.lt_or_ge j n with h2 | h2
          · exact Int.le_trans h1 (h j h2)
          · obtain rfl : j = n := by omega
            exact Int.le_refl _⟩

/-- Integers `n rⱼ - j`, `j < n`, that spread over less than `n + 1` are a cyclic shift of `n` consecutive ones. -/
private theorem window {n : Nat} (r : Nat → Int) {t j : Nat} (ht : t < n) (hj : j < n)
    (h_min : (n : Int) * r t - t ≤ n * r j - j) (h_max : (n : Int) * r j - j < n * r t - t + (n + 1)) :
    (n : Int) * r j - j = n * r t - t + (cyclicShift n t j : Nat) := by
  rcases Nat.lt_trichotomy t j with h | h | h
  · rw [cyclicShift_of_lt hj h]
    generalize r j = a at *
    generalize r t = b at *
    obtain rfl : a = b + 1 := by
      rcases Int.lt_trichotomy a (b + 1) with h1 | h1 | h1
      · have := Int.mul_le_mul_of_nonneg_left (show a ≤ b by omega) (show (0 : Int) ≤ n by omega); omega
      · exact h1
      · have := Int.mul_le_mul_of_nonneg_left (show b + 2 ≤ a by omega) (show (0 : Int) ≤ n by omega)
        have e : (n : Int) * (b + 2) = n * b + n * 2 := by grind
        omega
    have e : (n : Int) * (b + 1) = n * b + n := by grind
    omega
  · subst h
    rw [cyclicShift_of_le ht (Nat.le_refl _)]; omega
  · rw [cyclicShift_of_le ht (by omega)]
    generalize r j = a at *
    generalize r t = b at *
    obtain rfl : a = b := by
      rcases Int.lt_trichotomy a b with h1 | h1 | h1
      · have := Int.mul_le_mul_of_nonneg_left (show a + 1 ≤ b by omega) (show (0 : Int) ≤ n by omega)
        have e : (n : Int) * (a + 1) = n * a + n := by grind
        omega
      · exact h1
      · have := Int.mul_le_mul_of_nonneg_left (show b + 1 ≤ a by omega) (show (0 : Int) ≤ n by omega)
        have e : (n : Int) * (b + 1) = n * b + n := by grind
        omega
    omega

/-- If codes lie within `1/2 + η` of `y + ξ`, with `2 η` less than a cell, the differences are the grid, shifted and moved. -/
private theorem grid_shift {n : Nat} (h_pos : 0 < n) (y η : R) (code : Nat → Int) (h_slack : 2 * (n : R) * η < 1)
    (h_round : ∀ j, j < n → abs ((code j : R) - (y + grid n j)) ≤ 1 / 2 + η) :
    ∃ (t : Nat) (θ : R), t < n ∧ abs θ ≤ 1 / (2 * (n : R)) + η ∧
      ∀ j, j < n → (code j : R) - grid n j - y = grid n (cyclicShift n t j) + θ := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  obtain ⟨t, ht, h_min⟩ := exists_min (fun j => (n : Int) * code j - j) h_pos
  have hN := natCast_pos (R := R) h_pos
  -- everything times 2n
  have hgrid : ∀ j : Nat, 2 * (n : R) * (grid n j : R) = 2 * (j : R) + 1 - (n : R) := fun j => by
    unfold grid
    rw [CommSemiring.mul_comm (2 * (n : R)), div_mul_self _ (by grind)]
  have hround : ∀ j, j < n →
      2 * (n : R) * (code j : R) - (2 * (j : R) + 1 - (n : R)) - 2 * (n : R) * y ≤ (n : R) + 2 * (n : R) * η ∧
      -((n : R) + 2 * (n : R) * η) ≤ 2 * (n : R) * (code j : R) - (2 * (j : R) + 1 - (n : R)) - 2 * (n : R) * y := fun j hj => by
    have h := le_of_abs_le (h_round j hj)
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left h.1 (show 0 ≤ 2 * (n : R) by grind)
    have h2 := OrderedRing.mul_le_mul_of_nonneg_left h.2.1 (show 0 ≤ 2 * (n : R) by grind)
    have h3 := hgrid j
    generalize (grid n j : R) = g at *
    constructor <;> grind
  have hcast : ∀ j : Nat, (((n : Int) * code j - (j : Int) : Int) : R) = (n : R) * (code j : R) - (j : R) := fun j => by
    rw [Ring.intCast_sub, Ring.intCast_mul, Ring.intCast_natCast, Ring.intCast_natCast]
  have hwin : ∀ j : Nat, j < n →
      (n : R) * (code j : R) - (j : R) = (n : R) * (code t : R) - (t : R) + (cyclicShift n t j : R) := fun j hj => by
    have h_max : (n : Int) * code j - j < n * code t - t + (n + 1) := by
      apply OrderedRing.lt_of_intCast_lt_intCast (R := R)
      rw [Ring.intCast_add, hcast, hcast, Ring.intCast_add, Ring.intCast_natCast, Ring.intCast_one]
      have h1 := hround j hj
      have h2 := hround t ht
      grind
    have h := window code ht hj (h_min j hj) h_max
    have h' := congrArg (fun z : Int => (z : R)) h
    simp only [hcast, Ring.intCast_add, Ring.intCast_natCast] at h'
    exact h'
  have hw := mul_inv_self (show 0 < 2 * (n : R) by grind)
  refine ⟨t, (code t : R) - grid n t - y - grid n 0, ht, ?_, ?_⟩
  · -- the least and the greatest of the shifted grid lie within the cell
    have hlast : cyclicShift n t (cyclicShift n t (n - 1)) = n - 1 := cyclicShift_cyclicShift ht (by omega)
    have h1 := hround _ (cyclicShift_lt h_pos t (n - 1))
    have h2 := hwin _ (cyclicShift_lt h_pos t (n - 1))
    have h3 := hround t ht
    rw [hlast] at h2
    have h4 : ((n - 1 : Nat) : R) = (n : R) - 1 := by
      obtain ⟨m, rfl⟩ : ∃ m, n = m + 1 := ⟨n - 1, by omega⟩
      rw [Semiring.natCast_succ, Nat.add_sub_cancel]; grind
    have h5 := hgrid t
    have h6 := hgrid 0
    rw [Semiring.natCast_zero] at h6
    have e : 1 / (2 * (n : R)) + η = (1 + 2 * (n : R) * η) / (2 * (n : R)) := by grind
    rw [e]
    apply abs_le
    · apply le_div_of_mul_le (by grind)
      grind
    · apply le_div_of_mul_le (by grind)
      grind
  · intro j hj
    have h1 := hwin j hj
    have h2 := hgrid j
    have h3 := hgrid t
    have h4 := hgrid 0
    have h5 := hgrid (cyclicShift n t j)
    rw [Semiring.natCast_zero] at h4
    have key : 2 * (n : R) * ((code j : R) - grid n j - y)
        = 2 * (n : R) * (grid n (cyclicShift n t j) + ((code t : R) - grid n t - y - grid n 0)) := by grind
    clear h1 h2 h3 h4 h5 hround hcast hwin hgrid
    generalize (code j : R) - grid n j - y = u at *
    generalize grid n (cyclicShift n t j) + ((code t : R) - grid n t - y - grid n 0) = v at *
    generalize (2 * (n : R))⁻¹ = w at *
    generalize 2 * (n : R) = N at *
    grind

/-- The residual of an entry with a positive scale, in terms of its code. -/
theorem residual_of_pos {n : Nat} {x s : R} (h_scale : 0 < s) (code : Int) (j : Nat) :
    residual n x s code j = s * ((code : R) - grid n j - x / s) := by
  unfold residual dequantize
  have h := div_mul_self x h_scale
  grind

/-- In a group that is zero throughout, the scale is 0 and so is every residual: an unclipped entry with scale 0 is 0. -/
theorem residual_of_scale_zero {n : Nat} {x q : R} (code : Int) (j : Nat) (h_noclip : abs x ≤ q * 0) :
    residual n x 0 code j = 0 := by
  have h := le_of_abs_le h_noclip
  unfold residual dequantize
  grind

/-- A residual is at most `s (1/2 + η)` in absolute value, where `η` is the slack of the rounding: half the scale if it is exact. -/
theorem residual_le {n : Nat} {x s η : R} (code : Int) (j : Nat) (h_scale : 0 < s)
    (h_round : abs ((code : R) - (x / s + grid n j)) ≤ 1 / 2 + η) :
    abs (residual n x s code j) ≤ s * (1 / 2 + η) := by
  rw [residual_of_pos h_scale, abs_mul, abs_of_nonneg (show 0 ≤ s by grind),
    show (code : R) - grid n j - x / s = (code : R) - (x / s + grid n j) by grind]
  exact OrderedRing.mul_le_mul_of_nonneg_left h_round (show 0 ≤ s by grind)

/-- The law of the dithered residual survives a rounding slack: if every code lies within `1/2 + η` of `x/s + ξ`, where `2η` is
less than the grid's cell `1/n`, then, as `ξ` runs over the grid, the residual runs over `s (g + θ)`, where `g` runs over the
grid (cyclically shifted) and `θ`, at most `1/(2n) + η`, does not depend on `ξ`. -/
theorem grid_dither_law_slack {n : Nat} (h_pos : 0 < n) {x s η : R} (code : Nat → Int) (h_scale : 0 < s)
    (h_slack : 2 * (n : R) * η < 1)
    (h_round : ∀ j, j < n → abs ((code j : R) - (x / s + grid n j)) ≤ 1 / 2 + η) :
    ∃ (t : Nat) (θ : R), t < n ∧ abs θ ≤ 1 / (2 * (n : R)) + η ∧
      ∀ j, j < n → residual n x s (code j) j = s * (grid n (cyclicShift n t j) + θ) := by
  obtain ⟨t, θ, ht, hθ, h⟩ := grid_shift h_pos (x / s) η code h_slack h_round
  exact ⟨t, θ, ht, hθ, fun j hj => by rw [residual_of_pos h_scale, h j hj]⟩

/-- The law of the dithered residual: an entry `x` is stored as `code j`, the rounding of `x/s + ξ` to a nearest integer, and
served as `s (code j - ξ)`; then, as the dither `ξ = grid n j` runs over its grid, the residual is `s (g + θ)`, where `g` runs over
the same grid (cyclically shifted by some `t`), `θ` does not depend on `ξ` and is at most `1/(2n)`, and the residual is at most
`s/2`. Ties may be broken in any way. -/
theorem grid_dither_law {n : Nat} (h_pos : 0 < n) {x s : R} (code : Nat → Int) (h_scale : 0 < s)
    (h_round : ∀ j, j < n → abs ((code j : R) - (x / s + grid n j)) ≤ 1 / 2) :
    (∃ (t : Nat) (θ : R), t < n ∧ abs θ ≤ 1 / (2 * (n : R)) ∧
      ∀ j, j < n → residual n x s (code j) j = s * (grid n (cyclicShift n t j) + θ)) ∧
    ∀ j, j < n → abs (residual n x s (code j) j) ≤ s / 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h_round' : ∀ j, j < n → abs ((code j : R) - (x / s + grid n j)) ≤ 1 / 2 + 0 := fun j hj => by
    have := h_round j hj; grind
  refine ⟨?_, fun j hj => ?_⟩
  · obtain ⟨t, θ, ht, hθ, h⟩ := grid_dither_law_slack h_pos code h_scale (η := 0) (by grind) h_round'
    exact ⟨t, θ, ht, by grind, h⟩
  · have := residual_le (code j) j h_scale (h_round' j hj)
    grind

/-- On average over the dither, every function of the residual is the same function of `s (g + θ)`, `g` on the grid: the residual of a
dithered entry is distributed as the grid, moved by a fixed `θ` of at most half a cell. -/
theorem grid_dither_average {n : Nat} (h_pos : 0 < n) {x s : R} (code : Nat → Int) (h_scale : 0 < s)
    (h_round : ∀ j, j < n → abs ((code j : R) - (x / s + grid n j)) ≤ 1 / 2) :
    ∃ θ : R, abs θ ≤ 1 / (2 * (n : R)) ∧
      ∀ f : R → R, average (fun j => f (residual n x s (code j) j)) n = average (fun j => f (s * (grid n j + θ))) n := by
  obtain ⟨⟨t, θ, ht, hθ, h⟩, -⟩ := grid_dither_law h_pos code h_scale h_round
  refine ⟨θ, hθ, fun f => ?_⟩
  unfold average
  rw [sum_congr fun j hj => by rw [h j hj], sum_perm (fun j => f (s * (grid n j + θ))) (permutes_cyclicShift ht)]

/-- A grid value is less than 1/2 in absolute value. -/
theorem abs_grid_le {n j : Nat} (hj : j < n) : abs (grid n j : R) ≤ 1 / 2 - 1 / (2 * (n : R)) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hN := natCast_pos (R := R) (show 0 < n by omega)
  have h1 := OrderedRing.natCast_nonneg (R := R) (a := j)
  have h2 := OrderedRing.natCast_le_natCast_of_le (R := R) _ _ (show j + 1 ≤ n by omega)
  rw [Semiring.natCast_succ] at h2
  have h3 := mul_inv_self hN
  have e : 1 / 2 - 1 / (2 * (n : R)) = ((n : R) - 1) / (2 * (n : R)) := by grind
  rw [e]
  unfold grid
  apply abs_le
  · apply div_le_of_le_mul (by grind)
    rw [div_mul_self _ (by grind)]; grind
  · rw [show -((2 * (j : R) + 1 - (n : R)) / (2 * (n : R))) = -(2 * (j : R) + 1 - (n : R)) / (2 * (n : R)) by grind]
    apply div_le_of_le_mul (by grind)
    rw [div_mul_self _ (by grind)]; grind

/-- A scale that is at least `amax / (Q - 1/2)`, where `amax` is at least every entry of the group, leaves no entry to be clipped. -/
theorem noclip_of_scale {Q : Nat} {x s amax : R} (h_limit : 0 < Q) (h_amax : abs x ≤ amax)
    (h_scale : amax / ((Q : R) - 1 / 2) ≤ s) : abs x ≤ ((Q : R) - 1 / 2) * s := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h1 := OrderedRing.natCast_le_natCast_of_le (R := R) _ _ (show 1 ≤ Q by omega)
  rw [Semiring.natCast_one] at h1
  have h2 := le_mul_of_div_le (show 0 < (Q : R) - 1 / 2 by grind) h_scale
  grind

/-- A code that is a nearest integer to a computed `x/s + ξ` which errs by at most `η` lies within `1/2 + η` of the exact one. -/
theorem round_of_computed {y computed η : R} {code : Int} (h_round : abs ((code : R) - computed) ≤ 1 / 2)
    (h_computed : abs (computed - y) ≤ η) : abs ((code : R) - y) ≤ 1 / 2 + η := by
  have h := abs_add_le ((code : R) - computed) (computed - y)
  rw [show (code : R) - computed + (computed - y) = (code : R) - y by grind] at h
  grind

/-- No clipping occurs: a code within `1/2 + η` of `x/s + ξ` is within `-Q, ..., Q` when `|x| ≤ (Q - 1/2) s`. -/
theorem clip_eq_self {n j Q : Nat} (hj : j < n) {x s η : R} (code : Int) (h_scale : 0 < s) (h_slack : 2 * (n : R) * η < 1)
    (h_noclip : abs x ≤ ((Q : R) - 1 / 2) * s)
    (h_round : abs ((code : R) - (x / s + grid n j)) ≤ 1 / 2 + η) : clip Q code = code := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hN := natCast_pos (R := R) (show 0 < n by omega)
  have hg := le_of_abs_le (abs_grid_le (R := R) hj)
  have hr := le_of_abs_le h_round
  have hx := le_of_abs_le h_noclip
  have h1 : x / s ≤ (Q : R) - 1 / 2 := div_le_of_le_mul h_scale hx.1
  have h2 : -((Q : R) - 1 / 2) ≤ x / s := le_div_of_mul_le h_scale (by grind)
  have hη : η < 1 / (2 * (n : R)) := lt_div_of_mul_lt (by grind) (by grind)
  have hinv : (1 : R) / (2 * (n : R)) ≤ 1 / 2 := by
    apply div_le_of_le_mul (by grind)
    have := OrderedRing.natCast_le_natCast_of_le (R := R) _ _ (show 1 ≤ n by omega)
    rw [Semiring.natCast_one] at this; grind
  have hQ1 : code < (Q : Int) + 1 := by
    apply OrderedRing.lt_of_intCast_lt_intCast (R := R)
    rw [Ring.intCast_add, Ring.intCast_natCast, Ring.intCast_one]; grind
  have hQ2 : -(Q : Int) - 1 < code := by
    apply OrderedRing.lt_of_intCast_lt_intCast (R := R)
    rw [Ring.intCast_sub, Ring.intCast_neg, Ring.intCast_natCast, Ring.intCast_one]; grind
  unfold clip
  rw [if_neg (by omega), if_neg (by omega)]

end WitCert.Core
