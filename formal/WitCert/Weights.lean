import Mathlib.Data.Real.Basic
import Mathlib.Algebra.Order.BigOperators.Ring.Finset
import Mathlib.Tactic.Linarith
import Mathlib.Tactic.Ring
import Mathlib.Tactic.Positivity

/-!
# Total variation of a reweighted distribution (no exponential)

`pt` is a distribution on a finite type, `w` a positive weight with `(y t)⁻¹ ≤ w t ≤ y t`, and `p` is `pt` reweighted by `w`
and normalised. Everything that the certificate needs about total variation is proved here from the numbers
`A = ∑ pt * y`; the files on `Real.exp` only put `w t = exp (-ε t)` and `y t = exp (c t)`.

* `exists_tv_split`: total variation is the excess of mass on one set `S`, with complement `T`.
* `weights_split`: the one inequality about `S` and `T` from which all bounds follow.
* `sharp_scalar_small`, `sharp_scalar`, `tanh_scalar`: the real-number inequalities at the end of each proof.
-/

open Finset

namespace WitCert

variable {ι : Type*} [Fintype ι]

/-- Total variation of two finite families: half the L1 distance. -/
noncomputable def tv (p q : ι → ℝ) : ℝ := (∑ t, |p t - q t|) / 2

/-- Total variation is nonnegative. -/
theorem tv_nonneg (p q : ι → ℝ) : 0 ≤ tv p q :=
  div_nonneg (sum_nonneg fun _ _ => abs_nonneg _) two_pos.le

/-- With equal total mass, total variation is the excess of `p` over `q` on one set `S`
(`T` is its complement, described by what it does to sums). -/
theorem exists_tv_split (p q : ι → ℝ) (h : ∑ t, p t = ∑ t, q t) :
    ∃ S T : Finset ι, (∀ f : ι → ℝ, ∑ t ∈ S, f t + ∑ t ∈ T, f t = ∑ t, f t) ∧
      tv p q = ∑ t ∈ S, p t - ∑ t ∈ S, q t := by
  classical
  let S : Finset ι := univ.filter (fun t => q t ≤ p t)
  let T : Finset ι := univ.filter (fun t => ¬ q t ≤ p t)
  have hST : ∀ f : ι → ℝ, ∑ t ∈ S, f t + ∑ t ∈ T, f t = ∑ t, f t :=
    fun f => sum_filter_add_sum_filter_not univ (fun t => q t ≤ p t) f
  refine ⟨S, T, hST, ?_⟩
  have e1 : ∑ t ∈ S, |p t - q t| = ∑ t ∈ S, p t - ∑ t ∈ S, q t := by
    rw [← sum_sub_distrib]
    refine sum_congr rfl fun t ht => ?_
    exact abs_of_nonneg (sub_nonneg.2 (mem_filter.1 ht).2)
  have e2 : ∑ t ∈ T, |p t - q t| = ∑ t ∈ T, q t - ∑ t ∈ T, p t := by
    rw [← sum_sub_distrib]
    refine sum_congr rfl fun t ht => ?_
    have h1 : p t < q t := not_le.1 (mem_filter.1 ht).2
    rw [abs_of_neg (sub_neg.2 h1), neg_sub]
  have e := hST (fun t => |p t - q t|)
  have ep := hST p
  have eq := hST q
  unfold tv
  linarith

/-- Two distributions differ by at most 1 in total variation. -/
theorem tv_le_one (p q : ι → ℝ) (hp : ∀ t, 0 ≤ p t) (hq : ∀ t, 0 ≤ q t)
    (hp1 : ∑ t, p t = 1) (hq1 : ∑ t, q t = 1) : tv p q ≤ 1 := by
  have h : ∑ t, |p t - q t| ≤ ∑ t, (p t + q t) := sum_le_sum fun t _ => by
    rw [abs_le]
    constructor <;> linarith [hp t, hq t]
  rw [sum_add_distrib, hp1, hq1] at h
  unfold tv
  linarith

/-! ### the reweighted distribution -/

/-- A distribution has positive mass under a positive weight. -/
theorem weighted_pos (pt w : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1) (hw : ∀ t, 0 < w t) :
    0 < ∑ t, pt t * w t := by
  have h1 : ∑ t, pt t ≠ 0 := by rw [h_sum_one]; exact one_ne_zero
  obtain ⟨t, _, ht⟩ := exists_ne_zero_of_sum_ne_zero h1
  refine sum_pos' (fun i _ => mul_nonneg (h_nonneg i) (hw i).le) ⟨t, mem_univ t, ?_⟩
  exact mul_pos (lt_of_le_of_ne (h_nonneg t) (Ne.symm ht)) (hw t)

/-- The mass that the reweighted distribution gives to a set. -/
theorem sum_tilt (pt w p : ι → ℝ) (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) (S : Finset ι) :
    ∑ t ∈ S, p t = (∑ t ∈ S, pt t * w t) * (∑ s, pt s * w s)⁻¹ := by
  rw [sum_mul]
  exact sum_congr rfl fun t _ => by rw [h_exact t, div_eq_mul_inv]

/-- The reweighted distribution sums to 1. -/
theorem sum_tilt_univ (pt w p : ι → ℝ) (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s)
    (hZ : 0 < ∑ s, pt s * w s) : ∑ t, p t = 1 := by
  rw [sum_tilt pt w p h_exact univ]
  exact mul_inv_cancel₀ hZ.ne'

/-- If some number lies between `1/y` and `y`, then `y` is at least 1. -/
theorem one_le_of_inv_le {y w : ℝ} (h_pos : 0 < y) (h1 : y⁻¹ ≤ w) (h2 : w ≤ y) : 1 ≤ y := by
  by_contra hn
  have hlt : y < 1 := not_le.1 hn
  have h3 : y * y⁻¹ = 1 := mul_inv_cancel₀ h_pos.ne'
  have h4 : y * y⁻¹ ≤ y * y := mul_le_mul_of_nonneg_left (h1.trans h2) h_pos.le
  nlinarith

/-- The one inequality about the set `S` where `p` exceeds `pt` and its complement `T`:
with `s = p(T)`, total variation is `pt(T) - s`, and `(1 - s) ∑_T pt/y ≤ s ∑_S pt*y`. -/
theorem weights_split (pt w y p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) :
    ∃ (S T : Finset ι) (s : ℝ), (∀ f : ι → ℝ, ∑ t ∈ S, f t + ∑ t ∈ T, f t = ∑ t, f t) ∧
      0 ≤ s ∧ s ≤ 1 ∧ tv p pt = ∑ t ∈ T, pt t - s ∧
      (1 - s) * ∑ t ∈ T, pt t * (y t)⁻¹ ≤ s * ∑ t ∈ S, pt t * y t := by
  have hw : ∀ t, 0 < w t := fun t => lt_of_lt_of_le (inv_pos.2 (h_pos t)) (h_lower t)
  have hZ := weighted_pos pt w h_nonneg h_sum_one hw
  have hp1 := sum_tilt_univ pt w p h_exact hZ
  obtain ⟨S, T, hST, htv⟩ := exists_tv_split p pt (by rw [hp1, h_sum_one])
  have hS := sum_tilt pt w p h_exact S
  have hT := sum_tilt pt w p h_exact T
  have hP0 : 0 ≤ ∑ t ∈ S, pt t * w t := sum_nonneg fun t _ => mul_nonneg (h_nonneg t) (hw t).le
  have hQ0 : 0 ≤ ∑ t ∈ T, pt t * w t := sum_nonneg fun t _ => mul_nonneg (h_nonneg t) (hw t).le
  have hPU : ∑ t ∈ S, pt t * w t ≤ ∑ t ∈ S, pt t * y t :=
    sum_le_sum fun t _ => mul_le_mul_of_nonneg_left (h_upper t) (h_nonneg t)
  have hDQ : ∑ t ∈ T, pt t * (y t)⁻¹ ≤ ∑ t ∈ T, pt t * w t :=
    sum_le_sum fun t _ => mul_le_mul_of_nonneg_left (h_lower t) (h_nonneg t)
  have hZi : 0 < (∑ s, pt s * w s)⁻¹ := inv_pos.2 hZ
  have e1 := hST p
  have e2 := hST pt
  have hs0 : 0 ≤ ∑ t ∈ T, p t := by rw [hT]; exact mul_nonneg hQ0 hZi.le
  have hs1 : 0 ≤ ∑ t ∈ S, p t := by rw [hS]; exact mul_nonneg hP0 hZi.le
  refine ⟨S, T, ∑ t ∈ T, p t, hST, hs0, by linarith, by linarith, ?_⟩
  have e3 : 1 - ∑ t ∈ T, p t = ∑ t ∈ S, p t := by linarith
  rw [e3]
  calc (∑ t ∈ S, p t) * ∑ t ∈ T, pt t * (y t)⁻¹
      ≤ (∑ t ∈ S, p t) * ∑ t ∈ T, pt t * w t := mul_le_mul_of_nonneg_left hDQ hs1
    _ = (∑ t ∈ T, p t) * ∑ t ∈ S, pt t * w t := by rw [hS, hT]; ring
    _ ≤ (∑ t ∈ T, p t) * ∑ t ∈ S, pt t * y t := mul_le_mul_of_nonneg_left hPU hs0

omit [Fintype ι] in
/-- Cauchy–Schwarz on `T`: `pt(T)² ≤ (∑_T pt/y) (∑_T pt*y)`. -/
theorem sq_mass_le (pt y : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_pos : ∀ t, 0 < y t) (T : Finset ι) :
    (∑ t ∈ T, pt t) ^ 2 ≤ (∑ t ∈ T, pt t * (y t)⁻¹) * ∑ t ∈ T, pt t * y t := by
  refine sum_sq_le_sum_mul_sum_of_sq_eq_mul T
    (fun t _ => mul_nonneg (h_nonneg t) (inv_pos.2 (h_pos t)).le) (fun t _ => mul_nonneg (h_nonneg t) (h_pos t).le) ?_
  intro t _
  have h : (y t)⁻¹ * y t = 1 := inv_mul_cancel₀ (h_pos t).ne'
  calc pt t ^ 2 = pt t * pt t * 1 := by ring
    _ = pt t * pt t * ((y t)⁻¹ * y t) := by rw [h]
    _ = pt t * (y t)⁻¹ * (pt t * y t) := by ring

/-! ### real-number inequalities -/

/-- The maximisation for `A ≤ 2`, with `A = 1 + d`. The key is `U V ≤ d + a b`. -/
theorem sharp_scalar_small {a b s d U V : ℝ} (hab : a + b = 1) (ha : 0 ≤ a) (hb : 0 ≤ b) (hs : 0 ≤ s)
    (hU : a ≤ U) (hV : b ≤ V) (hA : U + V = 1 + d) (hd : d ≤ 1)
    (h : (1 - s) * b ^ 2 ≤ s * (U * V)) : (b - s) * (1 + d) ≤ d := by
  have hd0 : 0 ≤ d := by linarith
  -- U = a + x, V = b + z, x + z = d
  obtain ⟨x, rfl⟩ : ∃ x, U = a + x := ⟨U - a, by ring⟩
  obtain ⟨z, rfl⟩ : ∃ z, V = b + z := ⟨V - b, by ring⟩
  have hx : 0 ≤ x := by linarith
  have hz : 0 ≤ z := by linarith
  have hxz : x + z = d := by linarith
  have hUV : (a + x) * (b + z) ≤ d + a * b := by
    -- d + a b - (a + x)(b + z) = x a + z b - x z, and x z ≤ x a + z b since a + b = 1, x, z ≤ 1
    have h1 : x * z ≤ x := by nlinarith
    have h2 : x * z ≤ z := by nlinarith
    have h3 : a * (x * z) ≤ a * x := mul_le_mul_of_nonneg_left h1 ha
    have h4 : b * (x * z) ≤ b * z := mul_le_mul_of_nonneg_left h2 hb
    have h5 : a = 1 - b := by linarith
    rw [h5] at h3 ⊢
    rw [← hxz]
    linarith
  have hbd : b ^ 2 ≤ s * (b + d) := by
    have h1 : s * ((a + x) * (b + z)) ≤ s * (d + a * b) := mul_le_mul_of_nonneg_left hUV hs
    have h2 : a * b = b - b ^ 2 := by
      have : a = 1 - b := by linarith
      rw [this]; ring
    rw [h2] at h1
    nlinarith
  rcases (add_nonneg hb hd0).eq_or_lt with h0 | h0
  · have hb0 : b = 0 := by linarith
    have hd0' : d = 0 := by linarith
    rw [hb0, hd0']
    linarith
  · have hb1 : b ≤ 1 := by linarith
    have h1 : (b - s) * (b + d) ≤ b * d := by nlinarith
    have h2 : (b - s) * (b + d) * (1 + d) ≤ b * d * (1 + d) := mul_le_mul_of_nonneg_right h1 (by linarith)
    have h3 : b * d * (1 + d) ≤ d * (b + d) := by nlinarith [mul_nonneg (mul_nonneg hd0 hd0) (sub_nonneg.2 hb1)]
    have h4 : (b - s) * (1 + d) * (b + d) ≤ d * (b + d) := by linarith
    exact le_of_mul_le_mul_right h4 h0

/-- The maximisation with no condition on `A`: from `U V ≤ X`. -/
theorem sharp_scalar {b s X : ℝ} (hb : 0 ≤ b) (hb1 : b ≤ 1) (hs : 0 ≤ s) (hX : 0 ≤ X)
    (h : (1 - s) * b ^ 2 ≤ s * X) : (b - s) * (X + 1) ≤ X := by
  have hM0 : 0 ≤ X + b ^ 2 := add_nonneg hX (sq_nonneg b)
  rcases hM0.eq_or_lt with h0 | h0
  · have hb2 := sq_nonneg b
    have hX0 : X = 0 := by linarith
    have hb0 : b ^ 2 = 0 := by linarith
    have hb0' : b = 0 := by
      rcases hb.eq_or_lt with h1 | h1
      · exact h1.symm
      · exact absurd hb0 (by positivity)
    rw [hX0, hb0']
    linarith
  · have h1 : (b - s) * (X + b ^ 2) ≤ b * (X + b ^ 2) - b ^ 2 := by linarith
    have h2 : (b - s) * (X + b ^ 2) * (X + 1) ≤ (b * (X + b ^ 2) - b ^ 2) * (X + 1) :=
      mul_le_mul_of_nonneg_right h1 (by linarith)
    have h3 : 0 ≤ X ^ 2 - X * b + X * b ^ 2 + b ^ 2 := by
      have h4 := sq_nonneg (X - b)
      have h5 := mul_nonneg hX hb
      have h6 := mul_nonneg hX (sq_nonneg b)
      linarith
    have h4 := mul_nonneg (sub_nonneg.2 hb1) h3
    have h5 : X * (X + b ^ 2) - (b * (X + b ^ 2) - b ^ 2) * (X + 1)
        = (1 - b) * (X ^ 2 - X * b + X * b ^ 2 + b ^ 2) := by ring
    have h6 : (b - s) * (X + 1) * (X + b ^ 2) ≤ X * (X + b ^ 2) := by linarith
    exact le_of_mul_le_mul_right h6 h0

/-- The maximisation for a uniform weight range `[1/E, E]`. -/
theorem tanh_scalar {a b s E : ℝ} (hab : a + b = 1) (ha : 0 ≤ a) (hE : 1 ≤ E)
    (h : (1 - s) * b ≤ s * (a * E ^ 2)) : (b - s) * (E + 1) ≤ E - 1 := by
  have hE2 : 1 ≤ E ^ 2 := one_le_pow₀ hE
  have hM : 0 < a * E ^ 2 + b := by
    have h1 : a * 1 ≤ a * E ^ 2 := mul_le_mul_of_nonneg_left hE2 ha
    linarith
  obtain rfl : a = 1 - b := by linarith
  have h1 : (b - s) * ((1 - b) * E ^ 2 + b) ≤ b * ((1 - b) * E ^ 2 + b) - b := by linarith
  have h2 := mul_le_mul_of_nonneg_right h1 (show 0 ≤ E + 1 by linarith)
  have h3 := mul_nonneg (sub_nonneg.2 hE) (sq_nonneg ((1 - b) * E - b))
  have h4 : (E - 1) * ((1 - b) * E ^ 2 + b) - (b * ((1 - b) * E ^ 2 + b) - b) * (E + 1)
      = (E - 1) * ((1 - b) * E - b) ^ 2 := by ring
  have h5 : (b - s) * (E + 1) * ((1 - b) * E ^ 2 + b) ≤ (E - 1) * ((1 - b) * E ^ 2 + b) := by linarith
  exact le_of_mul_le_mul_right h5 hM

/-! ### bounds in terms of the weights -/

/-- What the two sharp bounds share: masses `a, b`, sums `U, V` with `U + V = A`, and the inequality. -/
theorem weights_sharp_core (pt w y p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) :
    ∃ a b s U V : ℝ, a + b = 1 ∧ 0 ≤ a ∧ 0 ≤ b ∧ 0 ≤ s ∧ a ≤ U ∧ b ≤ V ∧ U + V = ∑ t, pt t * y t ∧
      tv p pt = b - s ∧ (1 - s) * b ^ 2 ≤ s * (U * V) := by
  obtain ⟨S, T, s, hST, hs0, hs1, htv, hmain⟩ := weights_split pt w y p h_nonneg h_sum_one h_pos h_lower h_upper h_exact
  have hy1 : ∀ t, 1 ≤ y t := fun t => one_le_of_inv_le (h_pos t) (h_lower t) (h_upper t)
  have hle : ∀ R : Finset ι, ∑ t ∈ R, pt t ≤ ∑ t ∈ R, pt t * y t := fun R =>
    sum_le_sum fun t _ => le_mul_of_one_le_right (h_nonneg t) (hy1 t)
  have hV0 : 0 ≤ ∑ t ∈ T, pt t * y t := sum_nonneg fun t _ => mul_nonneg (h_nonneg t) (h_pos t).le
  have hcs := sq_mass_le pt y h_nonneg h_pos T
  refine ⟨∑ t ∈ S, pt t, ∑ t ∈ T, pt t, s, ∑ t ∈ S, pt t * y t, ∑ t ∈ T, pt t * y t,
    by rw [hST, h_sum_one], sum_nonneg fun t _ => h_nonneg t, sum_nonneg fun t _ => h_nonneg t, hs0, hle S, hle T,
    hST _, htv, ?_⟩
  calc (1 - s) * (∑ t ∈ T, pt t) ^ 2
      ≤ (1 - s) * ((∑ t ∈ T, pt t * (y t)⁻¹) * ∑ t ∈ T, pt t * y t) :=
        mul_le_mul_of_nonneg_left hcs (by linarith)
    _ = ((1 - s) * ∑ t ∈ T, pt t * (y t)⁻¹) * ∑ t ∈ T, pt t * y t := by ring
    _ ≤ (s * ∑ t ∈ S, pt t * y t) * ∑ t ∈ T, pt t * y t := mul_le_mul_of_nonneg_right hmain hV0
    _ = s * ((∑ t ∈ S, pt t * y t) * ∑ t ∈ T, pt t * y t) := by ring

/-- The accumulator `∑ pt * y` is at least 1. -/
theorem one_le_weights_sum (pt w y : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t) : 1 ≤ ∑ t, pt t * y t := by
  rw [← h_sum_one]
  exact sum_le_sum fun t _ => le_mul_of_one_le_right (h_nonneg t) (one_le_of_inv_le (h_pos t) (h_lower t) (h_upper t))

/-- The sharp bound for `A ≤ 2`: total variation is at most `1 - 1/A`. -/
theorem weights_sharp_small (pt w y p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) (hA : ∑ t, pt t * y t ≤ 2) :
    tv p pt ≤ 1 - 1 / ∑ t, pt t * y t := by
  have hA1 := one_le_weights_sum pt w y h_nonneg h_sum_one h_pos h_lower h_upper
  obtain ⟨a, b, s, U, V, hab, ha, hb, hs, hU, hV, hUV, htv, h⟩ :=
    weights_sharp_core pt w y p h_nonneg h_sum_one h_pos h_lower h_upper h_exact
  have h1 := sharp_scalar_small (d := U + V - 1) hab ha hb hs hU hV (by ring) (by linarith) h
  rw [← hUV] at hA1 ⊢
  have hApos : 0 < U + V := by linarith
  rw [htv, one_sub_div hApos.ne', le_div_iff₀ hApos]
  have e : 1 + (U + V - 1) = U + V := by ring
  rw [e] at h1
  exact h1

/-- The sharp bound with no condition on `A`: total variation is at most `A²/(A² + 4)`. -/
theorem weights_sharp (pt w y p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) :
    tv p pt ≤ (∑ t, pt t * y t) ^ 2 / ((∑ t, pt t * y t) ^ 2 + 4) := by
  obtain ⟨a, b, s, U, V, hab, ha, hb, hs, hU, hV, hUV, htv, h⟩ :=
    weights_sharp_core pt w y p h_nonneg h_sum_one h_pos h_lower h_upper h_exact
  rw [← hUV]
  have hX : U * V ≤ (U + V) ^ 2 / 4 := by
    have := sq_nonneg (U - V)
    linarith
  have h1 : (1 - s) * b ^ 2 ≤ s * ((U + V) ^ 2 / 4) := h.trans (mul_le_mul_of_nonneg_left hX hs)
  have h2 := sharp_scalar hb (by linarith) hs (by positivity) h1
  have hpos : 0 < (U + V) ^ 2 + 4 := by positivity
  rw [htv, le_div_iff₀ hpos]
  linarith

/-- The e-form bound: total variation is at most `(A² - 1)/2`; it follows from the sharp bounds. -/
theorem weights_eform (pt w y p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) :
    tv p pt ≤ ((∑ t, pt t * y t) ^ 2 - 1) / 2 := by
  have hA1 := one_le_weights_sum pt w y h_nonneg h_sum_one h_pos h_lower h_upper
  rcases le_total (∑ t, pt t * y t) 2 with hA | hA
  · refine (weights_sharp_small pt w y p h_nonneg h_sum_one h_pos h_lower h_upper h_exact hA).trans ?_
    generalize ∑ t, pt t * y t = A at hA1 hA ⊢
    have hApos : 0 < A := by linarith
    rw [one_sub_div hApos.ne', div_le_iff₀ hApos]
    nlinarith [mul_nonneg (sub_nonneg.2 hA1) (sub_nonneg.2 hA1), mul_nonneg (mul_nonneg (sub_nonneg.2 hA1) (sub_nonneg.2 hA1)) hApos.le]
  · refine (weights_sharp pt w y p h_nonneg h_sum_one h_pos h_lower h_upper h_exact).trans ?_
    generalize ∑ t, pt t * y t = A at hA1 hA ⊢
    have hA2 : 4 ≤ A ^ 2 := by nlinarith
    have hpos : 0 < A ^ 2 + 4 := by positivity
    rw [div_le_iff₀ hpos]
    nlinarith [mul_nonneg (sub_nonneg.2 hA2) (sub_nonneg.2 hA2)]

/-- The two-sided bound: total variation is at most `1 - A⁻/A`. -/
theorem weights_one_sub_ratio (pt w y p : ι → ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (h_pos : ∀ t, 0 < y t) (h_lower : ∀ t, (y t)⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ y t)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) :
    tv p pt ≤ 1 - (∑ t, pt t * (y t)⁻¹) / ∑ t, pt t * y t := by
  have hw : ∀ t, 0 < w t := fun t => lt_of_lt_of_le (inv_pos.2 (h_pos t)) (h_lower t)
  have hZ := weighted_pos pt w h_nonneg h_sum_one hw
  have hA1 := one_le_weights_sum pt w y h_nonneg h_sum_one h_pos h_lower h_upper
  have hp1 := sum_tilt_univ pt w p h_exact hZ
  have hZA : ∑ t, pt t * w t ≤ ∑ t, pt t * y t :=
    sum_le_sum fun t _ => mul_le_mul_of_nonneg_left (h_upper t) (h_nonneg t)
  obtain ⟨S, T, hST, htv⟩ := exists_tv_split p pt (by rw [hp1, h_sum_one])
  generalize hAdef : ∑ t, pt t * y t = A at hA1 hZA ⊢
  have hApos : 0 < A := by linarith
  -- both `p` and `pt` are at least `pt / (y A)`
  have h1 : ∀ t, pt t * (y t)⁻¹ * A⁻¹ ≤ pt t := fun t => by
    have hyt := one_le_of_inv_le (h_pos t) (h_lower t) (h_upper t)
    have h2 : (y t)⁻¹ * A⁻¹ ≤ 1 := mul_le_one₀ (inv_le_one_of_one_le₀ hyt) (inv_pos.2 hApos).le
      (inv_le_one_of_one_le₀ hA1)
    calc pt t * (y t)⁻¹ * A⁻¹ = pt t * ((y t)⁻¹ * A⁻¹) := by ring
      _ ≤ pt t * 1 := mul_le_mul_of_nonneg_left h2 (h_nonneg t)
      _ = pt t := mul_one _
  have h3 : ∀ t, pt t * (y t)⁻¹ * A⁻¹ ≤ p t := fun t => by
    rw [h_exact t, div_eq_mul_inv]
    exact mul_le_mul (mul_le_mul_of_nonneg_left (h_lower t) (h_nonneg t)) (inv_anti₀ hZ hZA)
      (inv_pos.2 hApos).le (mul_nonneg (h_nonneg t) (hw t).le)
  have h4 : ∑ t ∈ S, pt t * (y t)⁻¹ * A⁻¹ ≤ ∑ t ∈ S, pt t := sum_le_sum fun t _ => h1 t
  have h5 : ∑ t ∈ T, pt t * (y t)⁻¹ * A⁻¹ ≤ ∑ t ∈ T, p t := sum_le_sum fun t _ => h3 t
  have h6 := hST (fun t => pt t * (y t)⁻¹ * A⁻¹)
  have h7 := hST p
  have h8 : ∑ t, pt t * (y t)⁻¹ * A⁻¹ = (∑ t, pt t * (y t)⁻¹) / A := by
    rw [div_eq_mul_inv, sum_mul]
  rw [htv, ← h8]
  linarith

/-- The uniform bound: if every weight lies in `[1/E, E]`, total variation is at most `(E - 1)/(E + 1)`. -/
theorem weights_tanh (pt w p : ι → ℝ) (E : ℝ) (h_nonneg : ∀ t, 0 ≤ pt t) (h_sum_one : ∑ t, pt t = 1)
    (hE : 1 ≤ E) (h_lower : ∀ t, E⁻¹ ≤ w t) (h_upper : ∀ t, w t ≤ E)
    (h_exact : ∀ t, p t = pt t * w t / ∑ s, pt s * w s) : tv p pt ≤ (E - 1) / (E + 1) := by
  have hE0 : 0 < E := by linarith
  obtain ⟨S, T, s, hST, hs0, hs1, htv, hmain⟩ :=
    weights_split pt w (fun _ => E) p h_nonneg h_sum_one (fun _ => hE0) h_lower h_upper h_exact
  simp only [← sum_mul] at hmain
  have hab : ∑ t ∈ S, pt t + ∑ t ∈ T, pt t = 1 := by rw [hST, h_sum_one]
  have ha : 0 ≤ ∑ t ∈ S, pt t := sum_nonneg fun t _ => h_nonneg t
  rw [htv]
  generalize ∑ t ∈ S, pt t = a at hab ha hmain ⊢
  generalize ∑ t ∈ T, pt t = b at hab hmain ⊢
  have h1 : (1 - s) * b ≤ s * (a * E ^ 2) := by
    have h2 := mul_le_mul_of_nonneg_right hmain hE0.le
    have h3 : (1 - s) * (b * E⁻¹) * E = (1 - s) * b := by
      rw [mul_assoc, mul_assoc, inv_mul_cancel₀ hE0.ne', mul_one]
    rw [h3] at h2
    calc (1 - s) * b ≤ s * (a * E) * E := h2
      _ = s * (a * E ^ 2) := by ring
  rw [le_div_iff₀ (by linarith : 0 < E + 1)]
  exact tanh_scalar hab ha hE h1

end WitCert
