import WitCert.Core.Exp

/-!
# Finite products, indexed by `i < n`
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The product `f 0 ⋯ f (n - 1)`. -/
def prod {R : Type u} [Field R] (f : Nat → R) : Nat → R
  | 0 => 1
  | n + 1 => prod f n * f n

/-- An empty product is 1. -/
theorem prod_zero (f : Nat → R) : prod f 0 = 1 := rfl

/-- The last factor of a product may be split off. -/
theorem prod_succ (f : Nat → R) (n : Nat) : prod f (n + 1) = prod f n * f n := rfl

/-- Products with equal factors are equal. -/
theorem prod_congr {f g : Nat → R} {n : Nat} (h : ∀ i, i < n → f i = g i) : prod f n = prod g n := by
  induction n with
  | zero => rfl
  | succ n ih => rw [prod_succ, prod_succ, ih (fun i hi => h i (by omega)), h n (by omega)]

/-- A product of ones is 1. -/
theorem prod_eq_one {f : Nat → R} {n : Nat} (h : ∀ i, i < n → f i = 1) : prod f n = 1 := by
  induction n with
  | zero => rfl
  | succ n ih => rw [prod_succ, ih (fun i hi => h i (by omega)), h n (by omega), Semiring.mul_one]

/-- The product of factorwise products is the product of the products. -/
theorem prod_mul (f g : Nat → R) (n : Nat) : prod (fun i => f i * g i) n = prod f n * prod g n := by
  induction n with
  | zero => simp only [prod_zero]; grind
  | succ n ih => simp only [prod_succ, ih]; grind

/-- Two finite products may be exchanged. -/
theorem prod_comm (f : Nat → Nat → R) (m n : Nat) :
    prod (fun i => prod (fun j => f i j) n) m = prod (fun j => prod (fun i => f i j) m) n := by
  induction m with
  | zero => simp only [prod_zero]; exact (prod_eq_one fun _ _ => rfl).symm
  | succ m ih => simp only [prod_succ, ih, prod_mul]

/-- A single index picks its factor out of a product. -/
theorem prod_single (x : R) (j n : Nat) : prod (fun i => if j = i then x else 1) n = if j < n then x else 1 := by
  induction n with
  | zero => rfl
  | succ n ih =>
    rw [prod_succ, ih]
    by_cases h1 : j < n
    · rw [if_pos h1, if_neg (by omega), if_pos (by omega), Semiring.mul_one]
    · by_cases h2 : j = n
      · rw [if_neg h1, if_pos h2, if_pos (by omega), Semiring.one_mul]
      · rw [if_neg h1, if_neg h2, if_neg (by omega), Semiring.one_mul]

/-- A product of nonnegative factors is nonnegative. -/
theorem prod_nonneg {f : Nat → R} {n : Nat} (h : ∀ i, i < n → 0 ≤ f i) : 0 ≤ prod f n := by
  induction n with
  | zero => have := OrderedRing.zero_lt_one (R := R); rw [prod_zero]; grind
  | succ n ih => exact OrderedRing.mul_nonneg (ih fun i hi => h i (by omega)) (h n (by omega))

/-- Products of nonnegative factors are monotone in their factors. -/
theorem prod_le {f g : Nat → R} {n : Nat} (h_nonneg : ∀ i, i < n → 0 ≤ f i) (h : ∀ i, i < n → f i ≤ g i) :
    prod f n ≤ prod g n := by
  induction n with
  | zero => rw [prod_zero, prod_zero]; grind
  | succ n ih =>
    have h1 := ih (fun i hi => h_nonneg i (by omega)) (fun i hi => h i (by omega))
    have h2 := prod_nonneg fun i (hi : i < n) => h_nonneg i (by omega)
    exact mul_le_mul' h1 (h n (by omega)) (h_nonneg n (by omega)) (by grind)

/-- The exponential of a sum is the product of the exponentials. -/
theorem exp_sum [Exp R] (f : Nat → R) (n : Nat) : exp (sum f n) = prod (fun i => exp (f i)) n := by
  induction n with
  | zero => exact exp_zero
  | succ n ih => rw [sum_succ, prod_succ, exp_add, ih]

end WitCert.Core
