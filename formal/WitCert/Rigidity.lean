import Mathlib.Analysis.Complex.Basic
import Mathlib.Analysis.Complex.Exponential
import Mathlib.Data.Fintype.Card
import Mathlib.Tactic.LinearCombination

/-!
# Rigidity: a sketch that commutes with the rotary embedding selects frequencies

A head's channels are paired to complex coordinates, one for each frequency. The rotary embedding multiplies coordinate `j` by `w j`, of
absolute value 1. A real-linear compression `S` of keys can be queried by relative position only if rotating before it is the same as
rotating after it, by some `u c` in each output coordinate. `rigidity`: if the `w j` are distinct and no two of them multiply to 1, every
output coordinate of `S` is a complex multiple of one input coordinate, or of its conjugate (the pair with its orientation flipped).
So there is no static equivariant compression but to drop whole pairs (`rigidity_dropped`), and those that are kept keep their logits only
with factors of absolute value 1 (`rigidity_logit`). One position suffices: nothing is assumed of the others.
-/

open ComplexConjugate

namespace WitCert

/-- A real-linear map of the complex plane is `x ↦ a x + b conj x`. -/
theorem real_linear_eq {T : ℂ → ℂ} (hadd : ∀ x y : ℂ, T (x + y) = T x + T y)
    (hsmul : ∀ (r : ℝ) (x : ℂ), T (r • x) = r • T x) (x : ℂ) :
    T x = (T 1 - Complex.I * T Complex.I) / 2 * x + (T 1 + Complex.I * T Complex.I) / 2 * conj x := by
  have hx : x = x.re • (1 : ℂ) + x.im • Complex.I := by
    rw [Complex.real_smul, Complex.real_smul, mul_one, Complex.re_add_im]
  have h1 : T x = (x.re : ℂ) * T 1 + (x.im : ℂ) * T Complex.I := by
    calc T x = T (x.re • (1 : ℂ) + x.im • Complex.I) := congrArg T hx
      _ = x.re • T 1 + x.im • T Complex.I := by rw [hadd, hsmul, hsmul]
      _ = (x.re : ℂ) * T 1 + (x.im : ℂ) * T Complex.I := by rw [Complex.real_smul, Complex.real_smul]
  have hc : conj x = (x.re : ℂ) - (x.im : ℂ) * Complex.I := by
    have h := congrArg (starRingEnd ℂ) (Complex.re_add_im x)
    rw [map_add, map_mul, Complex.conj_ofReal, Complex.conj_ofReal, Complex.conj_I, mul_neg] at h
    rw [← h, sub_eq_add_neg]
  rw [h1, hc]
  linear_combination ((T 1 - Complex.I * T Complex.I) / 2) * Complex.re_add_im x
    + ((x.im : ℂ) * T Complex.I) * Complex.I_mul_I

/-- If `x ↦ a x + b conj x` turns a factor `w` of its argument into a factor `u`, then `a = 0` or `w = u`, and `b = 0` or `conj w = u`. -/
theorem intertwine {T : ℂ → ℂ} {a b w u : ℂ} (hT : ∀ x, T x = a * x + b * conj x) (hw : ∀ x, T (w * x) = u * T x) :
    a * (w - u) = 0 ∧ b * (conj w - u) = 0 := by
  have c1 : conj (w * 1) = conj w := by rw [mul_one]
  have c2 : conj (w * Complex.I) = -(conj w * Complex.I) := by rw [map_mul, Complex.conj_I, mul_neg]
  have c3 : conj (1 : ℂ) = 1 := map_one _
  have e1 := hw 1
  rw [hT (w * 1), hT 1, c1, c3] at e1
  have e2 := hw Complex.I
  rw [hT (w * Complex.I), hT Complex.I, c2, Complex.conj_I] at e2
  constructor
  · linear_combination (1 / 2) * e1 - (Complex.I / 2) * e2
      + ((a * w - b * conj w - u * (a - b)) / 2) * Complex.I_mul_I
  · linear_combination (1 / 2) * e1 + (Complex.I / 2) * e2
      - ((a * w - b * conj w - u * (a - b)) / 2) * Complex.I_mul_I

variable {ι κ : Type*} [Fintype ι] [DecidableEq ι]

/-- Rigidity: a real-linear sketch `S` that commutes with the rotary embedding is a selection of frequencies with complex factors. Here
`w j` is the rotation of frequency `j` at one position, `u c` the rotation of output coordinate `c`. -/
theorem rigidity [Nonempty ι] (S : (ι → ℂ) →ₗ[ℝ] (κ → ℂ)) (w : ι → ℂ) (u : κ → ℂ)
    (h_unit : ∀ j, w j * conj (w j) = 1) (h_distinct : Function.Injective w) (h_no_mirror : ∀ i j, w i * w j ≠ 1)
    (h_equivariant : ∀ (z : ι → ℂ) (c : κ), S (fun j => w j * z j) c = u c * S z c) (c : κ) :
    ∃ (j : ι) (α : ℂ), (∀ z : ι → ℂ, S z c = α * z j) ∨ ∀ z : ι → ℂ, S z c = α * conj (z j) := by
  -- what `S` does to one input coordinate
  obtain ⟨T, hTdef⟩ : ∃ T : ι → ℂ → ℂ, ∀ j x, T j x = S (Pi.single j x) c := ⟨fun j x => S (Pi.single j x) c, fun _ _ => rfl⟩
  have hadd : ∀ (j : ι) (x y : ℂ), T j (x + y) = T j x + T j y := fun j x y => by
    have e : (Pi.single j (x + y) : ι → ℂ) = Pi.single j x + Pi.single j y := funext fun i => by
      by_cases h : i = j
      · subst h
        rw [Pi.add_apply, Pi.single_eq_same, Pi.single_eq_same, Pi.single_eq_same]
      · rw [Pi.add_apply, Pi.single_eq_of_ne h, Pi.single_eq_of_ne h, Pi.single_eq_of_ne h, add_zero]
    rw [hTdef, hTdef, hTdef, e, map_add, Pi.add_apply]
  have hsmul : ∀ (j : ι) (r : ℝ) (x : ℂ), T j (r • x) = r • T j x := fun j r x => by
    have e : (Pi.single j (r • x) : ι → ℂ) = r • (Pi.single j x : ι → ℂ) := funext fun i => by
      by_cases h : i = j
      · subst h
        rw [Pi.smul_apply, Pi.single_eq_same, Pi.single_eq_same]
      · rw [Pi.smul_apply, Pi.single_eq_of_ne h, Pi.single_eq_of_ne h, smul_zero]
    rw [hTdef, hTdef, e, map_smul, Pi.smul_apply]
  have hrot : ∀ (j : ι) (x : ℂ), T j (w j * x) = u c * T j x := fun j x => by
    have e : (fun i => w i * (Pi.single j x : ι → ℂ) i) = Pi.single j (w j * x) := funext fun i => by
      by_cases h : i = j
      · subst h
        rw [Pi.single_eq_same, Pi.single_eq_same]
      · rw [Pi.single_eq_of_ne h, Pi.single_eq_of_ne h, mul_zero]
    rw [hTdef, hTdef, ← e]
    exact h_equivariant (Pi.single j x) c
  have hsum : ∀ z : ι → ℂ, S z c = ∑ j, T j (z j) := fun z => by
    calc S z c = S (∑ j, Pi.single j (z j)) c := by rw [Finset.univ_sum_single]
      _ = (∑ j, S (Pi.single j (z j))) c := by rw [map_sum]
      _ = ∑ j, S (Pi.single j (z j)) c := Finset.sum_apply c _ _
      _ = ∑ j, T j (z j) := Finset.sum_congr rfl fun j _ => (hTdef j (z j)).symm
  -- its two coefficients
  obtain ⟨a, ha⟩ : ∃ a : ι → ℂ, ∀ j, a j = (T j 1 - Complex.I * T j Complex.I) / 2 :=
    ⟨fun j => (T j 1 - Complex.I * T j Complex.I) / 2, fun _ => rfl⟩
  obtain ⟨b, hb⟩ : ∃ b : ι → ℂ, ∀ j, b j = (T j 1 + Complex.I * T j Complex.I) / 2 :=
    ⟨fun j => (T j 1 + Complex.I * T j Complex.I) / 2, fun _ => rfl⟩
  have hT : ∀ (j : ι) (x : ℂ), T j x = a j * x + b j * conj x := fun j x => by
    rw [ha, hb]
    exact real_linear_eq (hadd j) (hsmul j) x
  have hA : ∀ j, a j ≠ 0 → w j = u c := fun j h =>
    sub_eq_zero.1 ((mul_eq_zero.1 (intertwine (hT j) (hrot j)).1).resolve_left h)
  have hB : ∀ j, b j ≠ 0 → conj (w j) = u c := fun j h =>
    sub_eq_zero.1 ((mul_eq_zero.1 (intertwine (hT j) (hrot j)).2).resolve_left h)
  -- two frequencies cannot both have nonzero coefficients
  have hAA : ∀ i j, a i ≠ 0 → a j ≠ 0 → i = j := fun i j h1 h2 => h_distinct ((hA i h1).trans (hA j h2).symm)
  have hAB : ∀ i j, a i ≠ 0 → b j ≠ 0 → False := fun i j h1 h2 => by
    have h3 : w i = conj (w j) := (hA i h1).trans (hB j h2).symm
    exact h_no_mirror j i (by rw [h3]; exact h_unit j)
  have hBB : ∀ i j, b i ≠ 0 → b j ≠ 0 → i = j := fun i j h1 h2 => by
    have h3 : conj (w i) = conj (w j) := (hB i h1).trans (hB j h2).symm
    have h4 := congrArg (starRingEnd ℂ) h3
    rw [Complex.conj_conj, Complex.conj_conj] at h4
    exact h_distinct h4
  by_cases hexA : ∃ j, a j ≠ 0
  · obtain ⟨j, hj⟩ := hexA
    have hb0 : ∀ i, b i = 0 := fun i => by
      by_contra h
      exact hAB j i hj h
    refine ⟨j, a j, Or.inl fun z => ?_⟩
    rw [hsum z, Finset.sum_eq_single j]
    · rw [hT, hb0, zero_mul, add_zero]
    · intro i _ hij
      have hai : a i = 0 := by
        by_contra h
        exact hij (hAA i j h hj)
      rw [hT, hai, hb0, zero_mul, zero_mul, add_zero]
    · intro h
      exact absurd (Finset.mem_univ j) h
  · have ha0 : ∀ i, a i = 0 := fun i => by
      by_contra h
      exact hexA ⟨i, h⟩
    by_cases hexB : ∃ j, b j ≠ 0
    · obtain ⟨j, hj⟩ := hexB
      refine ⟨j, b j, Or.inr fun z => ?_⟩
      rw [hsum z, Finset.sum_eq_single j]
      · rw [hT, ha0, zero_mul, zero_add]
      · intro i _ hij
        have hbi : b i = 0 := by
          by_contra h
          exact hij (hBB i j h hj)
        rw [hT, ha0, hbi, zero_mul, zero_mul, add_zero]
      · intro h
        exact absurd (Finset.mem_univ j) h
    · have hb0 : ∀ i, b i = 0 := fun i => by
        by_contra h
        exact hexB ⟨i, h⟩
      refine ⟨Classical.arbitrary ι, 0, Or.inl fun z => ?_⟩
      rw [hsum z, zero_mul]
      exact Finset.sum_eq_zero fun i _ => by rw [hT, ha0, hb0, zero_mul, zero_mul, add_zero]

/-- With fewer output coordinates than frequencies, some frequency is dropped as a whole pair: `S` does not see its coordinate. -/
theorem rigidity_dropped [Nonempty ι] [Fintype κ] (S : (ι → ℂ) →ₗ[ℝ] (κ → ℂ)) (w : ι → ℂ) (u : κ → ℂ)
    (h_unit : ∀ j, w j * conj (w j) = 1) (h_distinct : Function.Injective w) (h_no_mirror : ∀ i j, w i * w j ≠ 1)
    (h_equivariant : ∀ (z : ι → ℂ) (c : κ), S (fun j => w j * z j) c = u c * S z c)
    (h_card : Fintype.card κ < Fintype.card ι) :
    ∃ j : ι, ∀ z z' : ι → ℂ, (∀ i, i ≠ j → z i = z' i) → S z = S z' := by
  choose sel α hsel using rigidity S w u h_unit h_distinct h_no_mirror h_equivariant
  have hns : ¬ Function.Surjective sel := fun h => absurd (Fintype.card_le_of_surjective sel h) (not_le.2 h_card)
  obtain ⟨j, hj⟩ : ∃ j, ∀ c, sel c ≠ j := by
    by_contra h
    exact hns fun j => by
      by_contra h2
      exact h ⟨j, fun c hc => h2 ⟨c, hc⟩⟩
  refine ⟨j, fun z z' hz => funext fun c => ?_⟩
  have e : z (sel c) = z' (sel c) := hz (sel c) (hj c)
  rcases hsel c with h | h
  · rw [h z, h z', e]
  · rw [h z, h z', e]

/-- A kept frequency keeps its part of every logit only if its factor has absolute value 1. -/
theorem rigidity_logit {α : ℂ} (h_logit : ∀ x y : ℂ, (conj (α * x) * (α * y)).re = (conj x * y).re) : Complex.normSq α = 1 := by
  have h1 : (conj α * α).re = 1 := by
    have h0 := h_logit 1 1
    simp only [mul_one, map_one, Complex.one_re] at h0
    exact h0
  rw [← Complex.normSq_eq_conj_mul_self, Complex.ofReal_re] at h1
  exact h1

/-- Rotations by angles `θ j`, as the rotary embedding has them, satisfy `h_unit`. -/
theorem rotation_unit (θ : ℝ) : Complex.exp (θ * Complex.I) * conj (Complex.exp (θ * Complex.I)) = 1 := by
  have h : conj (Complex.exp (θ * Complex.I)) = Complex.exp (-(θ * Complex.I)) := by
    rw [← Complex.exp_conj, map_mul, Complex.conj_ofReal, Complex.conj_I, mul_neg]
  rw [h, ← Complex.exp_add, add_neg_cancel, Complex.exp_zero]

end WitCert
