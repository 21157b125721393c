import WitCert.Core.Order
/-!
# Finite sums, indexed by `i < n`

`sum f n = f 0 + ... + f (n - 1)`. Tokens, channels and bands are all counted by natural numbers below a bound, so this one sum
serves everywhere. `sumIf P f n` is the part of the sum on the indices that satisfy `P`: a split of the cache, a band of
channels, a block of tokens.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The sum `f 0 + ... + f (n - 1)`. -/
def sum {R : Type u} [Field R] (f : Nat → R) : Nat → R
  | 0 => 0
  | n + 1 => sum f n + f n

/-- An empty sum is 0. -/
theorem sum_zero (f : Nat → R) : sum f 0 = 0 := rfl

/-- The last term of a sum may be split off. -/
theorem sum_succ (f : Nat → R) (n : Nat) : sum f (n + 1) = sum f n + f n := rfl

/-- Sums with equal terms are equal. -/
theorem sum_congr {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → f i = g i) : sum f n = sum g n := by
  induction n with
  | zero => rfl
  | succ n ih => rw [sum_succ, sum_succ, ih (fun i hi => h i (by omega)), h n (by omega)]

/-- The sum of termwise sums is the sum of the sums. -/
theorem sum_add (f g : Nat → R) (n : Nat) : sum (fun i => f i + g i) n = sum f n + sum g n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih => simp only [sum_succ, ih]; grind

/-- The sum of termwise differences is the difference of the sums. -/
theorem sum_sub (f g : Nat → R) (n : Nat) : sum (fun i => f i - g i) n = sum f n - sum g n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih => simp only [sum_succ, ih]; grind

/-- A constant factor on the left comes out of a sum. -/
theorem sum_mul (c : R) (f : Nat → R) (n : Nat) : sum (fun i => c * f i) n = c * sum f n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih => simp only [sum_succ, ih]; grind

/-- A constant factor on the right comes out of a sum. -/
theorem sum_mul_right (f : Nat → R) (c : R) (n : Nat) : sum (fun i => f i * c) n = sum f n * c := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih => simp only [sum_succ, ih]; grind

/-- A sum of zeros is 0. -/
theorem sum_eq_zero {f : Nat → R} {n : Nat} (h : ∀ i, i < n → f i = 0) : sum f n = 0 := by
  induction n with
  | zero => rfl
  | succ n ih => rw [sum_succ, ih (fun i hi => h i (by omega)), h n (by omega)]; grind

/-- Sums are monotone in their terms. -/
theorem sum_le {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → f i ≤ g i) : sum f n ≤ sum g n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih =>
    have h1 := ih (fun i hi => h i (by omega))
    have h2 := h n (by omega)
    simp only [sum_succ]; grind

/-- A sum of nonnegative terms is nonnegative. -/
theorem sum_nonneg {f : Nat → R} {n : Nat} (h : ∀ i, i < n → 0 ≤ f i) : 0 ≤ sum f n := by
  induction n with
  | zero => simp only [sum_zero]; grind
  | succ n ih =>
    have h1 := ih (fun i hi => h i (by omega))
    have h2 := h n (by omega)
    simp only [sum_succ]; grind

/-- A term of a sum of nonnegative terms is at most the sum. -/
theorem term_le_sum {f : Nat → R} {n : Nat} (h : ∀ i, i < n → 0 ≤ f i) {i : Nat} (hi : i < n) : f i ≤ sum f n := by
  induction n with
  | zero => omega
  | succ n ih =>
    have h1 := sum_nonneg (f := f) (n := n) fun j hj => h j (by omega)
    have h2 := h n (by omega)
    rw [sum_succ]
    by_cases hin : i = n
    · subst hin; grind
    · have h3 := ih (fun j hj => h j (by omega)) (by omega)
      grind

/-- Two finite sums may be exchanged. -/
theorem sum_comm (f : Nat → Nat → R) (m n : Nat) :
    sum (fun i => sum (fun j => f i j) n) m = sum (fun j => sum (fun i => f i j) m) n := by
  induction m with
  | zero => simp only [sum_zero]; exact (sum_eq_zero fun _ _ => rfl).symm
  | succ m ih => simp only [sum_succ, ih, sum_add]

/-! ### sums over the indices that satisfy a condition -/

/-- The sum of `f i` over the `i < n` with `P i`. -/
def sumIf {R : Type u} [Field R] (P : Nat → Prop) [DecidablePred P] (f : Nat → R) (n : Nat) : R :=
  sum (fun i => if P i then f i else 0) n

section SumIf
variable (P : Nat → Prop) [DecidablePred P]

/-- A sum is its part where `P` holds plus its part where `P` fails. -/
theorem sumIf_add_not (f : Nat → R) (n : Nat) : sumIf P f n + sumIf (fun i => ¬ P i) f n = sum f n := by
  unfold sumIf
  rw [← sum_add]
  refine sum_congr fun i _ => ?_
  by_cases h : P i
  · rw [if_pos h, if_neg (by simpa using h)]; grind
  · rw [if_neg h, if_pos h]; grind

variable {P}

/-- Partial sums with equal terms are equal. -/
theorem sumIf_congr {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → P i → f i = g i) : sumIf P f n = sumIf P g n := by
  refine sum_congr fun i hi => ?_
  by_cases hP : P i
  · rw [if_pos hP, if_pos hP, h i hi hP]
  · rw [if_neg hP, if_neg hP]

/-- Partial sums are monotone in their terms. -/
theorem sumIf_le {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → P i → f i ≤ g i) : sumIf P f n ≤ sumIf P g n := by
  refine sum_le fun i hi => ?_
  by_cases hP : P i
  · rw [if_pos hP, if_pos hP]; exact h i hi hP
  · rw [if_neg hP, if_neg hP]; grind

/-- A partial sum of nonnegative terms is nonnegative. -/
theorem sumIf_nonneg {f : Nat → R} {n : Nat} (h : ∀ i, i < n → P i → 0 ≤ f i) : 0 ≤ sumIf P f n := by
  refine sum_nonneg fun i hi => ?_
  by_cases hP : P i
  · rw [if_pos hP]; exact h i hi hP
  · rw [if_neg hP]; grind

/-- A partial sum of zeros is 0. -/
theorem sumIf_eq_zero {f : Nat → R} {n : Nat} (h : ∀ i, i < n → P i → f i = 0) : sumIf P f n = 0 := by
  refine sum_eq_zero fun i hi => ?_
  by_cases hP : P i
  · rw [if_pos hP, h i hi hP]
  · rw [if_neg hP]

/-- A partial sum of termwise differences is the difference of the partial sums. -/
theorem sumIf_sub (f g : Nat → R) (n : Nat) : sumIf P (fun i => f i - g i) n = sumIf P f n - sumIf P g n := by
  unfold sumIf
  rw [← sum_sub]
  refine sum_congr fun i _ => ?_
  by_cases hP : P i <;> simp only [if_pos, if_neg, hP, not_false_eq_true] <;> grind

/-- A constant factor on the left comes out of a partial sum. -/
theorem sumIf_mul (c : R) (f : Nat → R) (n : Nat) : sumIf P (fun i => c * f i) n = c * sumIf P f n := by
  unfold sumIf
  rw [← sum_mul]
  refine sum_congr fun i _ => ?_
  by_cases hP : P i <;> simp only [if_pos, if_neg, hP, not_false_eq_true] <;> grind

/-- A constant factor on the right comes out of a partial sum. -/
theorem sumIf_mul_right (f : Nat → R) (c : R) (n : Nat) : sumIf P (fun i => f i * c) n = sumIf P f n * c := by
  rw [CommSemiring.mul_comm, ← sumIf_mul]
  exact sumIf_congr fun i _ _ => CommSemiring.mul_comm _ _

end SumIf

/-- A single index picks its term out of a sum. -/
private theorem sum_single (x : R) (j n : Nat) : sum (fun i => if j = i then x else 0) n = if j < n then x else 0 := by
  induction n with
  | zero => rfl
  | succ n ih =>
    rw [sum_succ, ih]
    by_cases h1 : j < n
    · rw [if_pos h1, if_neg (by omega), if_pos (by omega)]; grind
    · by_cases h2 : j = n
      · rw [if_neg h1, if_pos h2, if_pos (by omega)]; grind
      · rw [if_neg h1, if_neg h2, if_neg (by omega)]; grind

/-- Summing over the parts of a partition gives the whole sum: `part i < m` says to which of the `m` parts `i` belongs. -/
theorem sum_sumIf (part : Nat → Nat) (f : Nat → R) (m n : Nat) (h_part : ∀ i, i < n → part i < m) :
    sum (fun s => sumIf (fun i => part i = s) f n) m = sum f n := by
  unfold sumIf
  rw [sum_comm]
  refine sum_congr fun i hi => ?_
  rw [sum_single, if_pos (h_part i hi)]

/-! ### Cauchy–Schwarz -/

/-- Cauchy–Schwarz for finite sums, in squared form. -/
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
