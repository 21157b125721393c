import WitCert.Core.TotalVariation
/-!
# A plausible bound that is false

If the per-token bounds all agree, shifting every logit by the same amount changes nothing, so one may hope for a bound on total
variation by the dispersion of the `c t`. But `|ε t| ≤ c t` leaves the signs of the errors free, and with opposite signs the
distribution moves although the `c t` agree. `dispersion_bound_unsound` refutes the formula on two tokens.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R] [Exp R]

/-- The plausible bound: `exp (2 c_max) / 2 · (E|c - c̄| + c̄ (exp c_max - 1))`, where `E` and `c̄` are averages under `pt`. -/
noncomputable def dispersionBound (pt c : Nat → R) (c_max : R) (n : Nat) : R :=
  exp (2 * c_max) / 2 * (sum (fun t => pt t * abs (c t - sum (fun s => pt s * c s) n)) n
    + sum (fun t => pt t * c t) n * (exp c_max - 1))

/-- A sum over two indices. -/
theorem sum_two (f : Nat → R) : sum f 2 = f 0 + f 1 := by
  show 0 + f 0 + f 1 = f 0 + f 1
  grind

/-- Numeric bounds on the exponential of 1/10, as `11/10 ≤ e ≤ 10/9`. -/
theorem exp_tenth_bounds : (11 : R) / 10 ≤ exp (1 / 10) ∧ exp (1 / 10 : R) ≤ 10 / 9 := by
  have h1 := one_add_le_exp (1 / 10 : R)
  have h2 := one_add_le_exp (-(1 / 10) : R)
  have h3 := exp_mul_neg (1 / 10 : R)
  have h4 := exp_pos (1 / 10 : R)
  have h5 := OrderedRing.mul_le_mul_of_nonneg_left h2 (show 0 ≤ exp (1 / 10 : R) by grind)
  exact ⟨by grind, by grind⟩

/-- On the two tokens of the counterexample, the true total variation is more than six times the dispersion formula:
`pt = (1/2, 1/2)`, `c = (1/10, 1/10)`, `ε = (1/10, -1/10)`. -/
theorem dispersion_counterexample (p : Nat → R)
    (h_exact : ∀ t, t < 2 → p t = (1 / 2) * exp (-(if t = 0 then 1 / 10 else -(1 / 10)))
      / znorm (fun _ => (1 / 2 : R)) (fun t => if t = 0 then 1 / 10 else -(1 / 10)) 2) :
    6 * dispersionBound (fun _ => (1 / 2 : R)) (fun _ => 1 / 10) (1 / 10) 2 < tv p (fun _ => 1 / 2) 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have p0 := h_exact 0 (by omega)
  have p1 := h_exact 1 (by omega)
  unfold znorm at p0 p1
  unfold tv dispersionBound
  simp only [sum_two, if_pos, Nat.one_ne_zero, if_false] at p0 p1 ⊢
  have e0 : (1 / 10 : R) - (1 / 2 * (1 / 10) + 1 / 2 * (1 / 10)) = 0 := by grind
  have e1 : -(-(1 / 10 : R)) = 1 / 10 := by grind
  have e2 : (2 * (1 / 10) : R) = 1 / 10 + 1 / 10 := by grind
  rw [e1] at p0 p1
  rw [e0, abs_zero, e2, exp_add]
  obtain ⟨b1, b2⟩ := exp_tenth_bounds (R := R)
  have hy := exp_mul_neg (1 / 10 : R)
  have ha := le_abs_self (p 1 - 1 / 2)
  have hb := neg_le_abs (p 0 - 1 / 2)
  generalize abs (p 0 - 1 / 2) = a0 at *
  generalize abs (p 1 - 1 / 2) = a1 at *
  generalize exp (1 / 10 : R) = x at *
  generalize exp (-(1 / 10) : R) = y at *
  generalize p 0 = u at *
  generalize p 1 = v at *
  have hxx : (11 / 10) * (11 / 10) ≤ x * x := mul_self_le (by grind) b1
  have hy0 : (9 : R) / 10 ≤ y := by
    apply le_of_mul_le_mul_right (c := x) _ (by grind)
    grind
  -- `u = y / (x + y)`, `v = x / (x + y)`
  have hs : 0 < 1 / 2 * y + 1 / 2 * x := by grind
  have hu : u * (1 / 2 * y + 1 / 2 * x) = 1 / 2 * y := by rw [p0]; exact div_mul_self _ hs
  have hv : v * (1 / 2 * y + 1 / 2 * x) = 1 / 2 * x := by rw [p1]; exact div_mul_self _ hs
  have huv : (v - u) * (x + y) = x - y := by grind
  -- the difference is at least 21/221
  have hxy : y * (121 / 100) ≤ x := by
    apply le_of_mul_le_mul_right (c := x) _ (by grind)
    grind
  have hd : (21 : R) / 221 ≤ v - u := by
    apply le_of_mul_le_mul_right (c := x + y) _ (by grind)
    grind
  -- the formula is at most 1/2 (100/81) (1/10) (1/9)
  have hx2 : x * x ≤ 100 / 81 := by
    have := mul_self_le (show 0 ≤ x by grind) b2
    grind
  have hm := mul_le_mul' hx2 (show x - 1 ≤ 1 / 9 by grind) (by grind) (by grind)
  grind

/-- The dispersion bound is false: on two tokens with `pt = (1/2, 1/2)`, `c = (1/10, 1/10)`, `ε = (1/10, -1/10)`, all hypotheses of the
sound bounds hold and total variation exceeds it. -/
theorem dispersion_bound_unsound :
    ∃ pt ε c p : Nat → R, (pt 0 = 1 / 2 ∧ pt 1 = 1 / 2) ∧ (c 0 = 1 / 10 ∧ c 1 = 1 / 10) ∧ (ε 0 = 1 / 10 ∧ ε 1 = -(1 / 10)) ∧
      (∀ t, t < 2 → 0 ≤ pt t) ∧ sum pt 2 = 1 ∧ (∀ t, t < 2 → abs (ε t) ≤ c t) ∧
      (∀ t, t < 2 → p t = pt t * exp (-ε t) / znorm pt ε 2) ∧ dispersionBound pt c (1 / 10) 2 < tv p pt 2 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h2 := dispersion_counterexample (R := R) _ (fun _ _ => rfl)
  have h3 : 0 ≤ dispersionBound (fun _ => (1 / 2 : R)) (fun _ => 1 / 10) (1 / 10) 2 := by
    unfold dispersionBound
    have e1 := exp_pos (2 * (1 / 10) : R)
    have e2 := exp_tenth_bounds (R := R)
    refine OrderedRing.mul_nonneg (by grind) ?_
    simp only [sum_two]
    have a1 := abs_nonneg (1 / 10 - (1 / 2 * (1 / 10) + 1 / 2 * (1 / 10)) : R)
    have a2 := OrderedRing.mul_nonneg (show (0 : R) ≤ 1 / 2 * (1 / 10) + 1 / 2 * (1 / 10) by grind)
      (show 0 ≤ exp (1 / 10 : R) - 1 by grind)
    grind
  refine ⟨fun _ => 1 / 2, fun t => if t = 0 then 1 / 10 else -(1 / 10), fun _ => 1 / 10,
    fun t => (1 / 2) * exp (-(if t = 0 then 1 / 10 else -(1 / 10)))
      / znorm (fun _ => (1 / 2 : R)) (fun t => if t = 0 then 1 / 10 else -(1 / 10)) 2,
    ⟨rfl, rfl⟩, ⟨rfl, rfl⟩, ⟨rfl, rfl⟩, fun _ _ => by grind, by rw [sum_two]; grind, fun t _ => ?_, fun _ _ => rfl, by grind⟩
  show abs (if t = 0 then (1 / 10 : R) else -(1 / 10)) ≤ 1 / 10
  by_cases ht : t = 0
  · rw [if_pos ht]; exact abs_le (by grind) (by grind)
  · rw [if_neg ht]; exact abs_le (by grind) (by grind)

end WitCert.Core
