import Mathlib.Algebra.BigOperators.Fin
import Mathlib.Analysis.Complex.Trigonometric
import Mathlib.Data.Real.Archimedean
import Mathlib.Tactic.Linarith
import WitCert.Core

/-!
# The Core layer at the real numbers

Core is written over an abstract ordered field with an exponential, by classes of Lean's own library. Here ℝ is shown to be such a field,
and Core's vocabulary is translated: its sums are `Finset` sums, its absolute value is `|·|`, its exponential is `Real.exp`, its averages
are means over `Finset.range`, and its shares are proportions of outcomes. Every Core theorem holds on ℝ by these.
-/

open Finset

namespace WitCert

/-! ### ℝ has every class that Core asks for -/

/-- The exponential of ℝ. -/
noncomputable instance : Core.Exp ℝ where
  exp := Real.exp
  exp_add := Real.exp_add
  one_add_le_exp x := by rw [add_comm]; exact Real.add_one_le_exp x

/-- Core's cast of natural numbers is the usual one. -/
theorem core_natCast (n : ℕ) : @Nat.cast ℝ Lean.Grind.Semiring.natCast n = (n : ℝ) := by
  induction n with
  | zero => exact (Lean.Grind.Semiring.natCast_zero (α := ℝ)).trans Nat.cast_zero.symm
  | succ n ih =>
    have h : @Nat.cast ℝ Lean.Grind.Semiring.natCast (n + 1) = @Nat.cast ℝ Lean.Grind.Semiring.natCast n + 1 :=
      Lean.Grind.Semiring.natCast_succ n
    rw [h, ih, Nat.cast_succ]

/-- ℝ is Archimedean. -/
instance : Core.Archimedean ℝ where
  exists_nat_ge x := by
    obtain ⟨n, hn⟩ := _root_.exists_nat_ge x
    exact ⟨n, hn.trans (core_natCast n).ge⟩

/-! ### the dictionary -/

/-- Core's exponential is `Real.exp`. -/
theorem core_exp (x : ℝ) : Core.Exp.exp x = Real.exp x := rfl

/-- Core's sums are sums over `Finset.range`. -/
theorem core_sum (f : ℕ → ℝ) (n : ℕ) : Core.sum f n = ∑ i ∈ range n, f i := by
  induction n with
  | zero => rfl
  | succ n ih => rw [Core.sum_succ, sum_range_succ, ih]

/-- A sum over `Fin n` as Core writes it. -/
theorem core_sum_fin {n : ℕ} (f : Fin n → ℝ) : Core.sum (fun i => if h : i < n then f ⟨i, h⟩ else 0) n = ∑ i, f i := by
  rw [core_sum, Finset.sum_range]
  exact Finset.sum_congr rfl fun i _ => dif_pos i.2

/-- Core's absolute value is the usual one. -/
theorem core_abs (x : ℝ) : Core.abs x = |x| := by
  unfold Core.abs
  split
  · next h => exact (abs_of_nonneg h).symm
  · next h => exact (abs_of_neg (not_le.1 h)).symm

/-- Core's smaller of two numbers is the usual minimum. -/
theorem core_minimum (x y : ℝ) : Core.minimum x y = min x y := by
  unfold Core.minimum
  split
  · next h => exact (min_eq_left h).symm
  · next h => exact (min_eq_right (not_le.1 h).le).symm

/-- Core's larger of two numbers is the usual maximum. -/
theorem core_maximum (x y : ℝ) : Core.maximum x y = max x y := by
  unfold Core.maximum
  split
  · next h => exact (max_eq_right h).symm
  · next h => exact (max_eq_left (not_le.1 h).le).symm

/-- Core's total variation. -/
theorem core_tv (p q : ℕ → ℝ) (n : ℕ) : Core.tv p q n = (∑ t ∈ range n, |p t - q t|) / 2 := by
  show Core.sum (fun t => Core.abs (p t - q t)) n / 2 = (∑ t ∈ range n, |p t - q t|) / 2
  rw [core_sum]
  simp only [core_abs]

/-- Core's normaliser. -/
theorem core_znorm (pt ε : ℕ → ℝ) (n : ℕ) : Core.znorm pt ε n = ∑ t ∈ range n, pt t * Real.exp (-ε t) :=
  core_sum _ n

/-- Core's accumulator `A`. -/
theorem core_acert (pt c : ℕ → ℝ) (n : ℕ) : Core.acert pt c n = ∑ t ∈ range n, pt t * Real.exp (c t) :=
  core_sum _ n

/-- Core's accumulator `A⁻`. -/
theorem core_acertNeg (pt c : ℕ → ℝ) (n : ℕ) : Core.acertNeg pt c n = ∑ t ∈ range n, pt t * Real.exp (-c t) :=
  core_sum _ n

/-- Core's half-angle bound is `tanh (C/2)`, as a quotient of exponentials. -/
theorem core_tanhHalf (C : ℝ) : Core.tanhHalf C = (Real.exp C - 1) / (Real.exp C + 1) := rfl

/-- Core's dot product. -/
theorem core_dot (x y : ℕ → ℝ) (d : ℕ) : Core.dot x y d = ∑ i ∈ range d, x i * y i := core_sum _ d

/-- Core's averages are means over the outcomes. -/
theorem core_average (f : ℕ → ℝ) (n : ℕ) : Core.average f n = (∑ k ∈ range n, f k) / (n : ℝ) := by
  show Core.sum f n / @Nat.cast ℝ Lean.Grind.Semiring.natCast n = (∑ k ∈ range n, f k) / (n : ℝ)
  rw [core_sum, core_natCast]

open Classical in
/-- The number of outcomes in which an event happens, as a sum. -/
theorem sum_indicator (E : ℕ → Prop) (n : ℕ) :
    ∑ k ∈ range n, (if E k then (1 : ℝ) else 0) = (((range n).filter (fun k => E k)).card : ℝ) := by
  rw [card_filter, Nat.cast_sum]
  refine sum_congr rfl fun k _ => ?_
  by_cases h : E k
  · rw [if_pos h, if_pos h, Nat.cast_one]
  · rw [if_neg h, if_neg h, Nat.cast_zero]

open Classical in
/-- Core's shares are proportions: the number of outcomes in which the event happens, divided by their number. -/
theorem core_share (E : ℕ → Prop) (n : ℕ) :
    (Core.share E n : ℝ) = (((range n).filter (fun k => E k)).card : ℝ) / (n : ℝ) := by
  have h : (Core.share E n : ℝ) = (∑ k ∈ range n, (if E k then (1 : ℝ) else 0)) / (n : ℝ) := core_average _ n
  rw [h, sum_indicator]

end WitCert
