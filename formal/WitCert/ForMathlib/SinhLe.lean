import Mathlib.Analysis.Complex.Trigonometric
import Mathlib.Data.Real.Archimedean
import Mathlib.Tactic.Linarith
import Mathlib.Tactic.Ring
import Mathlib.Tactic.Positivity

/-!
# `sinh x ≤ x * exp (x ^ 2 / 6)`

The hyperbolic sine of a nonnegative number, divided by it, is at most the exponential of a sixth of its square: the
moment-generating function of the uniform distribution is at most that of the Gaussian with the same variance. Mathlib has the companion
`Real.cosh_le_exp_half_sq`.

Only `e (x + y) = e x * e y`, `x + 1 ≤ e x` and the Archimedean property are used: both inequalities hold for small arguments and are
doubled up by `cosh 2z ≤ (cosh z) ^ 4` and `sinh 2z = 2 * sinh z * cosh z`.
-/

namespace ForMathlib

/-- What is used of the exponential. -/
structure IsExp (e : ℝ → ℝ) : Prop where
  add : ∀ x y, e (x + y) = e x * e y
  add_one_le : ∀ x, x + 1 ≤ e x

namespace IsExp

variable {e : ℝ → ℝ}

/-- The exponential of 0 is 1. -/
theorem zero (h : IsExp e) : e 0 = 1 := by
  have h1 := h.add 0 0
  rw [add_zero] at h1
  have h2 := h.add_one_le 0
  have h3 : 0 < e 0 := by linarith
  exact mul_left_cancel₀ h3.ne' (by rw [← h1, mul_one])

/-- The exponentials of `x` and `-x` are inverse to each other. -/
theorem mul_neg_self (h : IsExp e) (x : ℝ) : e x * e (-x) = 1 := by
  rw [← h.add, add_neg_cancel, h.zero]

/-- Exponentials are positive. -/
theorem pos (h : IsExp e) (x : ℝ) : 0 < e x := by
  have h1 := h.add (x / 2) (x / 2)
  rw [add_halves] at h1
  have h2 := h.mul_neg_self x
  have h3 : e x ≠ 0 := fun h0 => by
    rw [h0, zero_mul] at h2
    exact zero_ne_one h2
  have h4 : 0 ≤ e x := by
    rw [h1]
    exact mul_self_nonneg _
  exact lt_of_le_of_ne h4 (Ne.symm h3)

/-- The exponential is monotone. -/
theorem mono (h : IsExp e) {x y : ℝ} (hxy : x ≤ y) : e x ≤ e y := by
  have h1 : e y = e x * e (y - x) := by rw [← h.add, add_sub_cancel]
  have h2 := h.add_one_le (y - x)
  rw [h1]
  exact le_mul_of_one_le_right (h.pos x).le (by linarith)

/-- The exponential of `2x` is the square of the exponential of `x`. -/
theorem two_mul (h : IsExp e) (x : ℝ) : e (2 * x) = e x ^ 2 := by
  rw [_root_.two_mul, h.add, sq]

/-- The exponential of `4x` is the fourth power of the exponential of `x`. -/
theorem four_mul (h : IsExp e) (x : ℝ) : e (4 * x) = e x ^ 4 := by
  rw [show 4 * x = 2 * (2 * x) by ring, h.two_mul, h.two_mul]
  ring

/-- The hyperbolic cosine that belongs to `e`. -/
noncomputable def ch (e : ℝ → ℝ) (x : ℝ) : ℝ := (e x + e (-x)) / 2

/-- The hyperbolic sine that belongs to `e`. -/
noncomputable def sh (e : ℝ → ℝ) (x : ℝ) : ℝ := (e x - e (-x)) / 2

/-- The hyperbolic cosine is even. -/
theorem ch_neg (e : ℝ → ℝ) (x : ℝ) : ch e (-x) = ch e x := by
  unfold ch
  rw [neg_neg, add_comm]

/-- The hyperbolic cosine is positive. -/
theorem ch_pos (h : IsExp e) (x : ℝ) : 0 < ch e x := by
  have h1 := h.pos x
  have h2 := h.pos (-x)
  unfold ch
  linarith

/-- The squares of the hyperbolic cosine and sine differ by 1. -/
theorem ch_sq_sub (h : IsExp e) (x : ℝ) : ch e x ^ 2 - sh e x ^ 2 = 1 := by
  have h1 := h.mul_neg_self x
  unfold ch sh
  linarith

/-- The hyperbolic cosine of a doubled argument. -/
theorem ch_two (h : IsExp e) (z : ℝ) : ch e (2 * z) = 2 * ch e z ^ 2 - 1 := by
  have h1 := h.mul_neg_self z
  unfold ch
  rw [show -(2 * z) = 2 * -z by ring, h.two_mul, h.two_mul]
  linarith

/-- The hyperbolic sine of a doubled argument. -/
theorem sh_two (h : IsExp e) (z : ℝ) : sh e (2 * z) = 2 * sh e z * ch e z := by
  unfold ch sh
  rw [show -(2 * z) = 2 * -z by ring, h.two_mul, h.two_mul]
  ring

/-- Doubling of the cosine: from `cosh z ≤ e s` follows `cosh 2z ≤ e 4s`. -/
theorem ch_double (h : IsExp e) {z s : ℝ} (hz : ch e z ≤ e s) : ch e (2 * z) ≤ e (4 * s) := by
  have h1 : ch e z ^ 4 ≤ e s ^ 4 := pow_le_pow_left₀ (h.ch_pos z).le hz 4
  have h2 := sq_nonneg (ch e z ^ 2 - 1)
  rw [h.four_mul, h.ch_two]
  linarith

/-- Repeated doubling of the cosine. -/
theorem ch_double_pow (h : IsExp e) {z s : ℝ} (hz : ch e z ≤ e s) (n : ℕ) :
    ch e (2 ^ n * z) ≤ e (4 ^ n * s) := by
  induction n with
  | zero => simpa using hz
  | succ n ih =>
    have h1 := h.ch_double ih
    rw [show (2 : ℝ) ^ (n + 1) * z = 2 * (2 ^ n * z) by ring,
      show (4 : ℝ) ^ (n + 1) * s = 4 * (4 ^ n * s) by ring]
    exact h1

/-- The hyperbolic sine of a nonnegative number is nonnegative. -/
theorem sh_nonneg (h : IsExp e) {y : ℝ} (hy : 0 ≤ y) : 0 ≤ sh e y := by
  have h1 := h.mono (show -y ≤ y by linarith)
  unfold sh
  linarith

/-- A first bound for small arguments. -/
theorem sh_small (h : IsExp e) {y : ℝ} (_hy : 0 ≤ y) (hy2 : y ≤ 1 / 2) : sh e y ≤ y * (1 + y) := by
  have h1 := h.add_one_le (-y)
  have h2 := h.mul_neg_self y
  have h3 : e y * (1 - y) ≤ 1 := by
    have h4 := mul_le_mul_of_nonneg_left h1 (h.pos y).le
    linarith
  have h5 : 1 ≤ (1 + y + 2 * y ^ 2) * (1 - y) := by
    have h6 := mul_nonneg (sq_nonneg y) (show 0 ≤ 1 - 2 * y by linarith)
    linarith
  have h7 : e y ≤ 1 + y + 2 * y ^ 2 :=
    le_of_mul_le_mul_right (h3.trans h5) (show 0 < 1 - y by linarith)
  unfold sh
  linarith

/-- A bound on the hyperbolic cosine for small arguments. -/
theorem ch_small (h : IsExp e) {y : ℝ} (hy : 0 ≤ y) (hy2 : y ≤ 1 / 2) :
    ch e (2 * y) ≤ e (2 * (y * (1 + y)) ^ 2) := by
  have h1 := pow_le_pow_left₀ (h.sh_nonneg hy) (h.sh_small hy hy2) 2
  have h2 := h.ch_sq_sub y
  have h3 := h.add_one_le (2 * (y * (1 + y)) ^ 2)
  rw [h.ch_two]
  linarith

/-- A factor `e t` with arbitrarily small `t > 0` may be dropped. -/
theorem le_of_forall_le_mul (h : IsExp e) {a b : ℝ} (hb : 0 ≤ b) (hab : ∀ t, 0 < t → a ≤ b * e t) : a ≤ b := by
  by_contra hn
  have hlt : b < a := not_le.1 hn
  have ha : 0 < a := by linarith
  obtain ⟨t, ht0, ht1, hta⟩ : ∃ t : ℝ, 0 < t ∧ t < 1 ∧ a * t ≤ (a - b) / 2 := by
    refine ⟨(a - b) / 2 / a, div_pos (by linarith) ha, ?_, ?_⟩
    · rw [div_lt_one ha]
      linarith
    · rw [mul_div_cancel₀ _ ha.ne']
  have h1 := hab t ht0
  have h2 := h.add_one_le (-t)
  have h3 := h.mul_neg_self t
  have h4 : e t * (1 - t) ≤ 1 := by
    have h5 := mul_le_mul_of_nonneg_left h2 (h.pos t).le
    linarith
  have h5 := mul_le_mul_of_nonneg_right h1 (show 0 ≤ 1 - t by linarith)
  have h6 := mul_le_mul_of_nonneg_left h4 hb
  linarith

/-- Halving `x` often enough makes it as small as wanted: `x = 2ⁿ (2 y)` with `y ≤ 1/2` and `K y ≤ t`. -/
theorem exists_small (x K t : ℝ) (hx : 0 ≤ x) (hK : 0 ≤ K) (ht : 0 < t) :
    ∃ (n : ℕ) (y : ℝ), 0 ≤ y ∧ y ≤ 1 / 2 ∧ K * y ≤ t ∧ x = 2 ^ n * (2 * y) := by
  obtain ⟨n, hn⟩ := pow_unbounded_of_one_lt (x + K * x / t) (one_lt_two : (1 : ℝ) < 2)
  have hP : (0 : ℝ) < 2 ^ n := by positivity
  have h0 : 0 ≤ K * x / t := by positivity
  refine ⟨n, x / (2 * 2 ^ n), by positivity, ?_, ?_, ?_⟩
  · rw [div_le_iff₀ (by positivity)]
    linarith
  · rw [← mul_div_assoc, div_le_iff₀ (by positivity)]
    have h1 : K * x / t ≤ 2 ^ n := by linarith
    rw [div_le_iff₀ ht] at h1
    have h2 : 0 ≤ 2 ^ n * t := by positivity
    linarith
  · rw [show 2 ^ n * (2 * (x / (2 * 2 ^ n))) = x / (2 * 2 ^ n) * (2 * 2 ^ n) by ring,
      div_mul_cancel₀ _ (by positivity : (2 : ℝ) * 2 ^ n ≠ 0)]

/-- `cosh x ≤ exp (x²/2)`. -/
theorem ch_le (h : IsExp e) (x : ℝ) : ch e x ≤ e (x ^ 2 / 2) := by
  have main : ∀ x : ℝ, 0 ≤ x → ch e x ≤ e (x ^ 2 / 2) := fun x hx => by
    refine h.le_of_forall_le_mul (h.pos _).le fun t ht => ?_
    obtain ⟨n, y, hy0, hy1, hyt, hxy⟩ := exists_small x (3 * x ^ 2 / 2) t hx (by positivity) ht
    have h1 := h.ch_double_pow (h.ch_small hy0 hy1) n
    rw [← hxy] at h1
    refine h1.trans ?_
    rw [← h.add]
    refine h.mono ?_
    -- 4ⁿ · 2 (y (1 + y))² = x²/2 · (1 + y)² ≤ x²/2 · (1 + 3 y)
    have e1 : (4 : ℝ) ^ n * (2 * (y * (1 + y)) ^ 2) = (2 ^ n * (2 * y)) ^ 2 / 2 * (1 + y) ^ 2 := by
      have e2 : (4 : ℝ) ^ n = 2 ^ n * 2 ^ n := by rw [← mul_pow]; norm_num
      rw [e2]
      ring
    rw [e1, ← hxy]
    have h2 : (1 + y) ^ 2 ≤ 1 + 3 * y := by nlinarith
    have h3 := mul_le_mul_of_nonneg_left h2 (show 0 ≤ x ^ 2 / 2 by positivity)
    linarith
  rcases le_total 0 x with hx | hx
  · exact main x hx
  · have h1 := main (-x) (by linarith)
    rw [ch_neg, neg_sq] at h1
    exact h1

/-- Doubling of the sine. -/
theorem sh_double_pow (h : IsExp e) {y s : ℝ} (hy : 0 ≤ y) (hs : sh e y ≤ y * e s) (n : ℕ) :
    sh e (2 ^ n * y) ≤ 2 ^ n * y * e (s + y ^ 2 * (4 ^ n - 1) / 6) := by
  induction n with
  | zero => simpa using hs
  | succ n ih =>
    have h0 : 0 ≤ 2 ^ n * y := by positivity
    have h1 := h.ch_le (2 ^ n * y)
    have h2 : sh e (2 ^ n * y) * ch e (2 ^ n * y)
        ≤ 2 ^ n * y * e (s + y ^ 2 * (4 ^ n - 1) / 6) * e ((2 ^ n * y) ^ 2 / 2) :=
      mul_le_mul ih h1 (h.ch_pos _).le (mul_nonneg h0 (h.pos _).le)
    have h3 : e (s + y ^ 2 * (4 ^ n - 1) / 6) * e ((2 ^ n * y) ^ 2 / 2) = e (s + y ^ 2 * (4 ^ (n + 1) - 1) / 6) := by
      rw [← h.add]
      congr 1
      have e2 : (4 : ℝ) ^ n = 2 ^ n * 2 ^ n := by rw [← mul_pow]; norm_num
      rw [pow_succ (4 : ℝ) n, e2]
      ring
    rw [mul_assoc, h3] at h2
    rw [show (2 : ℝ) ^ (n + 1) * y = 2 * (2 ^ n * y) by ring, h.sh_two]
    linarith

/-- `sinh x ≤ x exp (x²/6)` for `x ≥ 0`. -/
theorem sh_le (h : IsExp e) {x : ℝ} (hx : 0 ≤ x) : sh e x ≤ x * e (x ^ 2 / 6) := by
  refine h.le_of_forall_le_mul (mul_nonneg hx (h.pos _).le) fun t ht => ?_
  obtain ⟨n, y, hy0, hy1, hyt, hxy⟩ := exists_small x 1 t hx zero_le_one ht
  have h1 : sh e y ≤ y * e y := (h.sh_small hy0 hy1).trans
    (mul_le_mul_of_nonneg_left (by have := h.add_one_le y; linarith) hy0)
  have h2 := h.sh_double_pow hy0 h1 (n + 1)
  have e1 : (2 : ℝ) ^ (n + 1) * y = x := by rw [hxy]; ring
  rw [e1] at h2
  refine h2.trans ?_
  rw [mul_assoc, ← h.add]
  refine mul_le_mul_of_nonneg_left (h.mono ?_) hx
  have e2 : y ^ 2 * (4 : ℝ) ^ (n + 1) = x ^ 2 := by
    rw [← e1, show (4 : ℝ) = 2 * 2 by norm_num, mul_pow]
    ring
  have h3 := sq_nonneg y
  linarith

end IsExp

/-- The exponential of ℝ has the two properties. -/
theorem isExp_exp : IsExp Real.exp := ⟨Real.exp_add, Real.add_one_le_exp⟩

end ForMathlib

/-- The hyperbolic sine of a nonnegative number `x` is at most `x * exp (x ^ 2 / 6)`. -/
theorem Real.sinh_le_mul_exp_sq_div_six {x : ℝ} (hx : 0 ≤ x) : Real.sinh x ≤ x * Real.exp (x ^ 2 / 6) := by
  rw [Real.sinh_eq]
  exact ForMathlib.isExp_exp.sh_le hx
