/-! Finite sums over an abstract ordered field, indexed by `i < n`. -/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- `sum f n = f 0 + ... + f (n-1)`. -/
def sum {R : Type u} [Field R] (f : Nat → R) : Nat → R
  | 0 => 0
  | n + 1 => sum f n + f n

theorem sum_zero (f : Nat → R) : sum f 0 = 0 := rfl
theorem sum_succ (f : Nat → R) (n : Nat) : sum f (n + 1) = sum f n + f n := rfl

theorem sum_congr {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → f i = g i) : sum f n = sum g n := by
  induction n with
  | zero => rfl
  | succ n ih => rw [sum_succ, sum_succ, ih (fun i hi => h i (by omega)), h n (by omega)]

theorem sum_add (f g : Nat → R) (n : Nat) : sum (fun i => f i + g i) n = sum f n + sum g n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih => simp only [sum_succ, ih]; grind

theorem sum_mul (c : R) (f : Nat → R) (n : Nat) : sum (fun i => c * f i) n = c * sum f n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih => simp only [sum_succ, ih]; grind

theorem sum_le {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → f i ≤ g i) : sum f n ≤ sum g n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih =>
    have h1 := ih (fun i hi => h i (by omega))
    have h2 := h n (by omega)
    simp only [sum_succ]; grind

/-! ### small order facts, proved once -/

theorem mul_self_nonneg (x : R) : 0 ≤ x * x := by
  have h := OrderedRing.sq_nonneg (a := x)
  grind

theorem le_of_mul_self_le {u v : R} (hv : 0 ≤ v) (h : u * u ≤ v * v) : u ≤ v := by
  apply Classical.byContradiction
  intro hn
  have h1 : v < u := by grind
  have h2 := OrderedRing.mul_lt_mul_of_pos_left h1 (show (0 : R) < u by grind)
  have h3 := OrderedRing.mul_le_mul_of_nonneg_right (show v ≤ u by grind) hv
  grind

theorem sum_nonneg {f : Nat → R} {n : Nat} (h : ∀ i, i < n → 0 ≤ f i) : 0 ≤ sum f n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih =>
    have h1 := ih (fun i hi => h i (by omega))
    have h2 := h n (by omega)
    simp only [sum_succ]; grind

/-! ### (b) a rotation preserves the norm of a pair -/

theorem rot (x y c s : R) (h : c * c + s * s = 1) :
    (x * c - y * s) * (x * c - y * s) + (x * s + y * c) * (x * s + y * c) = x * x + y * y := by
  grind

/-! ### (c) Cauchy-Schwarz -/

theorem cauchy (a b : Nat → R) (n : Nat) :
    sum (fun i => a i * b i) n * sum (fun i => a i * b i) n
      ≤ sum (fun i => a i * a i) n * sum (fun i => b i * b i) n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih =>
    simp only [sum_succ]
    have hA : 0 ≤ sum (fun i => a i * a i) n := sum_nonneg (fun i _ => mul_self_nonneg _)
    have hB : 0 ≤ sum (fun i => b i * b i) n := sum_nonneg (fun i _ => mul_self_nonneg _)
    generalize sum (fun i => a i * b i) n = P at *
    generalize sum (fun i => a i * a i) n = A at *
    generalize sum (fun i => b i * b i) n = B at *
    generalize a n = x at *
    generalize b n = y at *
    -- the cross term: 2 P x y ≤ A y² + B x²
    have hx := mul_self_nonneg x
    have hy := mul_self_nonneg y
    have h1 : 0 ≤ A * (y * y) := OrderedRing.mul_nonneg hA hy
    have h2 : 0 ≤ B * (x * x) := OrderedRing.mul_nonneg hB hx
    have h3 : (2 * P * (x * y)) * (2 * P * (x * y))
        ≤ (A * (y * y) + B * (x * x)) * (A * (y * y) + B * (x * x)) := by
      have h4 := OrderedRing.mul_le_mul_of_nonneg_right ih (mul_self_nonneg (x * y))
      have h5 := mul_self_nonneg (A * (y * y) - B * (x * x))
      grind
    have h6 := le_of_mul_self_le (by grind) h3
    grind

end WitCert.Core
