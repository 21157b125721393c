import WitCert.Core.Defs
import WitCert.Core.SharpScalar
/-!
# Reweighting a distribution

`pt` is a distribution on the tokens `t < n`, `w t` a weight with `v t ≤ w t ≤ y t` and `v t * y t = 1`, and `p t = pt t * w t / Z`
with `Z = Σ pt * w`. In the application `w t = exp (-ε t)`, `y t = exp (c t)` and `v t = exp (-c t)`; here there is no
exponential. `weights_split` is the one inequality that all sharp bounds on total variation start from.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- Total variation is nonnegative. -/
theorem tv_nonneg (p q : Nat → R) (n : Nat) : 0 ≤ tv p q n := by
  have h := sum_nonneg (f := fun t => abs (p t - q t)) (n := n) fun t _ => abs_nonneg _
  unfold tv
  grind

/-- Two distributions differ by at most 1 in total variation. -/
theorem tv_le_one (p q : Nat → R) (n : Nat)
    (h_nonneg_p : ∀ t, t < n → 0 ≤ p t) (h_sum_one_p : sum p n = 1)
    (h_nonneg_q : ∀ t, t < n → 0 ≤ q t) (h_sum_one_q : sum q n = 1) : tv p q n ≤ 1 := by
  have h : sum (fun t => abs (p t - q t)) n ≤ sum (fun t => p t + q t) n := sum_le fun t ht => by
    have h1 := h_nonneg_p t ht
    have h2 := h_nonneg_q t ht
    exact abs_le (by grind) (by grind)
  rw [sum_add, h_sum_one_p, h_sum_one_q] at h
  unfold tv
  grind

/-- With equal total mass, total variation is the mass that `q` has more than `p` on one set of tokens. -/
theorem exists_tv_split (p q : Nat → R) (n : Nat) (h : sum p n = sum q n) :
    ∃ (P : Nat → Prop) (_ : DecidablePred P), tv p q n = sumIf P q n - sumIf P p n := by
  have d : ∀ t, Decidable (q t ≤ p t) := fun _ => Classical.propDecidable _
  refine ⟨fun t => ¬ q t ≤ p t, fun _ => instDecidableNot, ?_⟩
  have h1 : ∀ f : Nat → R, sumIf (fun t => q t ≤ p t) f n + sumIf (fun t => ¬ q t ≤ p t) f n = sum f n :=
    fun f => sumIf_add_not _ f n
  have e2 : sumIf (fun t => q t ≤ p t) (fun t => abs (p t - q t)) n
      = sumIf (fun t => q t ≤ p t) p n - sumIf (fun t => q t ≤ p t) q n := by
    rw [← sumIf_sub]
    exact sumIf_congr fun t _ ht => abs_of_nonneg (by grind)
  have e3 : sumIf (fun t => ¬ q t ≤ p t) (fun t => abs (p t - q t)) n
      = sumIf (fun t => ¬ q t ≤ p t) q n - sumIf (fun t => ¬ q t ≤ p t) p n := by
    rw [← sumIf_sub]
    refine sumIf_congr fun t _ ht => ?_
    rw [abs_of_nonpos (by grind)]; grind
  have f1 := h1 (fun t => abs (p t - q t))
  have f2 := h1 p
  have f3 := h1 q
  unfold tv
  grind

/-- What is assumed of the weights: `v ≤ w ≤ y`, `v * y = 1`, and `p` is `pt` reweighted by `w` and normalised. -/
structure Reweighted (pt w v y p : Nat → R) (n : Nat) : Prop where
  /-- The served weights are nonnegative. -/
  nonneg : ∀ t, t < n → 0 ≤ pt t
  /-- The served weights sum to 1. -/
  sum_one : sum pt n = 1
  /-- The upper ends of the weight ranges are positive. -/
  pos : ∀ t, t < n → 0 < y t
  /-- The lower end of a weight range is the inverse of the upper end. -/
  inv : ∀ t, t < n → v t * y t = 1
  /-- The weights are at least the lower ends. -/
  lower : ∀ t, t < n → v t ≤ w t
  /-- The weights are at most the upper ends. -/
  upper : ∀ t, t < n → w t ≤ y t
  /-- The exact weights are the served ones, reweighted and normalised. -/
  exact : ∀ t, t < n → p t = pt t * w t / sum (fun s => pt s * w s) n

namespace Reweighted
variable {pt w v y p : Nat → R} {n : Nat}

/-- The lower weights are positive. -/
theorem lower_pos (H : Reweighted pt w v y p n) {t : Nat} (ht : t < n) : 0 < v t := by
  have h1 := H.inv t ht
  have h2 := H.pos t ht
  have h01 := OrderedRing.zero_lt_one (R := R)
  apply Classical.byContradiction
  intro hn
  have h3 := OrderedRing.mul_le_mul_of_nonneg_right (show v t ≤ 0 by grind) (show 0 ≤ y t by grind)
  grind

/-- The upper weights are at least 1. -/
theorem one_le (H : Reweighted pt w v y p n) {t : Nat} (ht : t < n) : 1 ≤ y t := by
  have h1 := H.inv t ht
  have h2 := H.pos t ht
  have h3 := H.lower t ht
  have h4 := H.upper t ht
  have h01 := OrderedRing.zero_lt_one (R := R)
  refine le_of_mul_self_le (by grind) ?_
  have h5 := OrderedRing.mul_le_mul_of_nonneg_right (show v t ≤ y t by grind) (show 0 ≤ y t by grind)
  grind

/-- `A ≥ 1`. -/
theorem one_le_acc (H : Reweighted pt w v y p n) : 1 ≤ sum (fun t => pt t * y t) n := by
  rw [← H.sum_one]
  refine sum_le fun t ht => ?_
  have h := OrderedRing.mul_le_mul_of_nonneg_left (H.one_le ht) (H.nonneg t ht)
  grind

/-- `A⁻ ≤ Z`. -/
theorem acc_neg_le (H : Reweighted pt w v y p n) : sum (fun t => pt t * v t) n ≤ sum (fun t => pt t * w t) n :=
  sum_le fun t ht => OrderedRing.mul_le_mul_of_nonneg_left (H.lower t ht) (H.nonneg t ht)

/-- `Z ≤ A`. -/
theorem le_acc (H : Reweighted pt w v y p n) : sum (fun t => pt t * w t) n ≤ sum (fun t => pt t * y t) n :=
  sum_le fun t ht => OrderedRing.mul_le_mul_of_nonneg_left (H.upper t ht) (H.nonneg t ht)

end Reweighted

/-- Cauchy–Schwarz in the form used here: `(Σ m)² ≤ (Σ m/y)(Σ m*y)` for nonnegative masses `m`. -/
theorem sq_mass_le (m v y : Nat → R) (n : Nat) (hm : ∀ t, t < n → 0 ≤ m t) (hy : ∀ t, t < n → 1 ≤ y t)
    (hv : ∀ t, t < n → v t * y t = 1) :
    sum m n * sum m n ≤ sum (fun t => m t * v t) n * sum (fun t => m t * y t) n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hb : 0 ≤ sum m n := sum_nonneg hm
  have hbV : sum m n ≤ sum (fun t => m t * y t) n := sum_le fun t ht => by
    have h := OrderedRing.mul_le_mul_of_nonneg_left (hy t ht) (hm t ht)
    grind
  generalize hV : sum (fun t => m t * y t) n = V at *
  generalize hB : sum m n = b at *
  -- Σ m y (V v - b)² = V² Σ m v - 2 V b Σ m + b² Σ m y
  have h : 0 ≤ sum (fun t => V * V * (m t * v t) + (-(2 * V * b) * m t + b * b * (m t * y t))) n :=
    sum_nonneg fun t ht => by
      have h1 := OrderedRing.mul_nonneg (OrderedRing.mul_nonneg (hm t ht) (show 0 ≤ y t by have := hy t ht; grind))
        (mul_self_nonneg (V * v t - b))
      have h2 := hv t ht
      generalize y t = y' at *
      generalize v t = v' at *
      have h3 : m t * y' * ((V * v' - b) * (V * v' - b))
          = V * V * (m t * v') + (-(2 * V * b) * m t + b * b * (m t * y')) := by grind
      rw [h3] at h1
      exact h1
  rw [sum_add, sum_add, sum_mul, sum_mul, sum_mul, hV, hB] at h
  generalize sum (fun t => m t * v t) n = D at *
  by_cases hV0 : V = 0
  · have hb0 : b = 0 := by grind
    subst hV0; subst hb0
    grind
  · apply le_of_mul_le_mul_right (c := V) _ (by grind)
    grind

/-- A partial sum of products is a full sum with masked first factors. -/
theorem sumIf_eq_mask (P : Nat → Prop) [DecidablePred P] (f g : Nat → R) (n : Nat) :
    sumIf P (fun t => f t * g t) n = sum (fun t => (if P t then f t else 0) * g t) n := by
  unfold sumIf
  refine sum_congr fun t _ => ?_
  by_cases h : P t
  · rw [if_pos h, if_pos h]
  · rw [if_neg h, if_neg h]; grind

/-- A distribution has positive mass under positive weights. -/
theorem weighted_pos (pt w : Nat → R) (n : Nat) (h_nonneg : ∀ t, t < n → 0 ≤ pt t) (h_sum_one : sum pt n = 1)
    (h_pos : ∀ t, t < n → 0 < w t) : 0 < sum (fun t => pt t * w t) n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h0 : 0 ≤ sum (fun t => pt t * w t) n := sum_nonneg fun t ht =>
    OrderedRing.mul_nonneg (h_nonneg t ht) (by have := h_pos t ht; grind)
  apply Classical.byContradiction
  intro hn
  have hz : sum (fun t => pt t * w t) n = 0 := by grind
  have h2 : sum pt n = 0 := sum_eq_zero fun t ht => by
    have h3 : pt t * w t ≤ sum (fun t => pt t * w t) n := term_le_sum (f := fun t => pt t * w t)
      (fun s hs => OrderedRing.mul_nonneg (h_nonneg s hs) (by have := h_pos s hs; grind)) ht
    have h4 := h_nonneg t ht
    have h5 := h_pos t ht
    apply Classical.byContradiction
    intro h6
    have h7 := OrderedRing.mul_pos (show 0 < pt t by grind) h5
    grind
  grind

/-- The reweighted distribution sums to 1. -/
theorem Reweighted.sum_eq_one {pt w v y p : Nat → R} {n : Nat} (H : Reweighted pt w v y p n) : sum p n = 1 := by
  have hZ : 0 < sum (fun t => pt t * w t) n := weighted_pos pt w n H.nonneg H.sum_one fun t ht => by
    have h1 := H.lower_pos ht
    have h2 := H.lower t ht
    grind
  rw [sum_congr H.exact]
  generalize hZe : sum (fun t => pt t * w t) n = Z at *
  have h1 : sum (fun t => pt t * w t / Z) n = sum (fun t => pt t * w t) n * Z⁻¹ := by
    rw [← sum_mul_right]
    exact sum_congr fun t _ => Field.div_eq_mul_inv _ _
  rw [h1, hZe]
  exact mul_inv_self hZ

/-- The inequality that the sharp bounds start from. Let `T` be the tokens on which `pt` exceeds `p`, `a` and `b` the masses that `pt`
gives to the other tokens and to `T`, `s` the mass that `p` gives to `T`. Then total variation is `b - s`, and
`(1 - s) Σ_T pt/y ≤ s U`, where `U` is the part of `A` outside `T` and `V` the part in `T`. -/
theorem weights_split {pt w v y p : Nat → R} {n : Nat} (H : Reweighted pt w v y p n) :
    ∃ (T : Nat → Prop) (_ : DecidablePred T) (s : R), 0 ≤ s ∧ s ≤ 1 ∧ tv p pt n = sumIf T pt n - s ∧
      (1 - s) * sumIf T (fun t => pt t * v t) n ≤ s * sumIf (fun t => ¬ T t) (fun t => pt t * y t) n := by
  have hw : ∀ t, t < n → 0 < w t := fun t ht => by
    have h1 := H.lower_pos ht
    have h2 := H.lower t ht
    grind
  have hZ : 0 < sum (fun t => pt t * w t) n := weighted_pos pt w n H.nonneg H.sum_one hw
  have hp1 := H.sum_eq_one
  obtain ⟨T, dT, hT⟩ := exists_tv_split p pt n (by rw [hp1, H.sum_one])
  have hQ0 : 0 ≤ sumIf T (fun t => pt t * w t) n := sumIf_nonneg fun t ht _ =>
    OrderedRing.mul_nonneg (H.nonneg t ht) (by have := hw t ht; grind)
  have hP0 : 0 ≤ sumIf (fun t => ¬ T t) (fun t => pt t * w t) n := sumIf_nonneg fun t ht _ =>
    OrderedRing.mul_nonneg (H.nonneg t ht) (by have := hw t ht; grind)
  have hDQ : sumIf T (fun t => pt t * v t) n ≤ sumIf T (fun t => pt t * w t) n :=
    sumIf_le fun t ht _ => OrderedRing.mul_le_mul_of_nonneg_left (H.lower t ht) (H.nonneg t ht)
  have hPU : sumIf (fun t => ¬ T t) (fun t => pt t * w t) n ≤ sumIf (fun t => ¬ T t) (fun t => pt t * y t) n :=
    sumIf_le fun t ht _ => OrderedRing.mul_le_mul_of_nonneg_left (H.upper t ht) (H.nonneg t ht)
  have hsplit := sumIf_add_not T p n
  have hZi := inv_pos hZ
  have eT : sumIf T p n = sumIf T (fun t => pt t * w t) n * (sum (fun t => pt t * w t) n)⁻¹ := by
    rw [← sumIf_mul_right]
    exact sumIf_congr fun t ht _ => by rw [H.exact t ht, Field.div_eq_mul_inv]
  have eS : sumIf (fun t => ¬ T t) p n
      = sumIf (fun t => ¬ T t) (fun t => pt t * w t) n * (sum (fun t => pt t * w t) n)⁻¹ := by
    rw [← sumIf_mul_right]
    exact sumIf_congr fun t ht _ => by rw [H.exact t ht, Field.div_eq_mul_inv]
  have hs0 : 0 ≤ sumIf T p n := by rw [eT]; exact OrderedRing.mul_nonneg hQ0 (by grind)
  have hs1 : 0 ≤ sumIf (fun t => ¬ T t) p n := by rw [eS]; exact OrderedRing.mul_nonneg hP0 (by grind)
  refine ⟨T, dT, sumIf T p n, hs0, by grind, hT, ?_⟩
  have e3 : 1 - sumIf T p n = sumIf (fun t => ¬ T t) p n := by grind
  rw [e3]
  have k1 := OrderedRing.mul_le_mul_of_nonneg_left hDQ hs1
  have k2 := OrderedRing.mul_le_mul_of_nonneg_left hPU hs0
  have k3 : sumIf (fun t => ¬ T t) p n * sumIf T (fun t => pt t * w t) n
      = sumIf T p n * sumIf (fun t => ¬ T t) (fun t => pt t * w t) n := by
    rw [eS, eT]
    grind
  grind

end WitCert.Core
