import WitCert.Core.Outcomes
import WitCert.Core.Product
import WitCert.Core.Cast
import WitCert.Core.SumOrder

/-!
# Rules for averages and shares, and independence of the coordinates

`average_prod`: over all outcomes, the average of a product of functions of different coordinates is the product of their
averages. `average_prod_draw` is the form that the rest uses: channel `c` looks at coordinate `coord c`, and different channels
look at different coordinates.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-! ### averages -/

/-- Averages of equal functions are equal. -/
theorem average_congr {f g : Nat → R} {n : Nat} (h : ∀ k, k < n → f k = g k) : average f n = average g n := by
  unfold average; rw [sum_congr h]

/-- Averages are monotone. -/
theorem average_le {f g : Nat → R} {n : Nat} (h : ∀ k, k < n → f k ≤ g k) : average f n ≤ average g n := by
  unfold average
  rcases Nat.eq_zero_or_pos n with h0 | h0
  · subst h0; rw [sum_zero, sum_zero]; grind
  · apply div_le_of_le_mul (natCast_pos h0)
    rw [div_mul_self _ (natCast_pos h0)]
    exact sum_le h

/-- The average of a sum of two functions is the sum of their averages. -/
theorem average_add (f g : Nat → R) (n : Nat) : average (fun k => f k + g k) n = average f n + average g n := by
  unfold average; rw [sum_add]; grind

/-- A constant factor on the left comes out of an average. -/
theorem average_mul (c : R) (f : Nat → R) (n : Nat) : average (fun k => c * f k) n = c * average f n := by
  unfold average; rw [sum_mul]; grind

/-- A constant factor on the right comes out of an average. -/
theorem average_mul_right (f : Nat → R) (c : R) (n : Nat) : average (fun k => f k * c) n = average f n * c := by
  unfold average; rw [sum_mul_right]; grind

/-- The average of zero is zero. -/
theorem average_eq_zero {f : Nat → R} {n : Nat} (h : ∀ k, k < n → f k = 0) : average f n = 0 := by
  unfold average; rw [sum_eq_zero h]; grind

/-- The average of a constant over at least one outcome is that constant. -/
theorem average_const (c : R) {n : Nat} (h_pos : 0 < n) : average (fun _ => c) n = c := by
  unfold average
  have h : ∀ m : Nat, sum (fun _ => c) m = (m : R) * c := fun m => by
    induction m with
    | zero => rw [sum_zero, Semiring.natCast_zero]; grind
    | succ m ih => rw [sum_succ, ih, Semiring.natCast_succ]; grind
  have h1 := mul_inv_self (natCast_pos (R := R) h_pos)
  rw [h, Field.div_eq_mul_inv, CommSemiring.mul_comm (n : R), Semiring.mul_assoc, h1, Semiring.mul_one]

/-- Averages commute with finite sums. -/
theorem average_sum (f : Nat → Nat → R) (m n : Nat) :
    average (fun k => sum (fun i => f i k) m) n = sum (fun i => average (f i) n) m := by
  unfold average
  rw [sum_comm (fun k i => f i k)]
  simp only [Field.div_eq_mul_inv]
  rw [sum_mul_right]

/-! ### shares -/

/-- A share is at most the average of every nonnegative function that is at least 1 where the event happens (Markov). -/
theorem share_le_average {E : Nat → Prop} {f : Nat → R} {n : Nat} (h_nonneg : ∀ k, k < n → 0 ≤ f k)
    (h_one : ∀ k, k < n → E k → 1 ≤ f k) : share E n ≤ average f n :=
  average_le fun k hk => by
    by_cases hE : E k
    · rw [if_pos hE]; exact h_one k hk hE
    · rw [if_neg hE]; exact h_nonneg k hk

/-- A smaller event has a smaller share. -/
theorem share_mono {E F : Nat → Prop} {n : Nat} (h : ∀ k, k < n → E k → F k) : (share E n : R) ≤ share F n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  refine average_le fun k hk => ?_
  by_cases hE : E k
  · rw [if_pos hE, if_pos (h k hk hE)]; grind
  · rw [if_neg hE]; split <;> grind

/-- An impossible event has share 0. -/
theorem share_eq_zero {E : Nat → Prop} {n : Nat} (h : ∀ k, k < n → ¬ E k) : (share E n : R) = 0 :=
  average_eq_zero fun k hk => if_neg (h k hk)

/-! ### outcomes as digits -/

/-- A coordinate's value is below the base. -/
theorem draw_lt {n : Nat} (h_pos : 0 < n) (k c : Nat) : draw n k c < n := Nat.mod_lt _ h_pos

/-- A digit beyond the lower ones does not change them. -/
theorem draw_add_low (n : Nat) {m c : Nat} (hc : c < m) (hn : 0 < n) (k j : Nat) :
    draw n (k + n ^ m * j) c = draw n k c := by
  unfold draw
  obtain ⟨e, rfl⟩ : ∃ e, m = c + (e + 1) := ⟨m - c - 1, by omega⟩
  have h1 : k + n ^ (c + (e + 1)) * j = k + n ^ c * (n * (n ^ e * j)) := by
    rw [Nat.pow_add, Nat.pow_succ]; grind
  rw [h1, Nat.add_mul_div_left _ _ (Nat.pow_pos hn), Nat.add_mul_mod_self_left]

/-- The top digit is read off. -/
theorem draw_add_top (n : Nat) {m k j : Nat} (hk : k < n ^ m) (hj : j < n) : draw n (k + n ^ m * j) m = j := by
  unfold draw
  have hpos : 0 < n ^ m := by omega
  rw [Nat.add_mul_div_left _ _ hpos, Nat.div_eq_of_lt hk, Nat.zero_add, Nat.mod_eq_of_lt hj]

/-- An average over `m * n` outcomes is the average over `n` blocks of the average over the `m` outcomes of each. -/
theorem average_blocks (f : Nat → R) (m n : Nat) :
    average f (m * n) = average (fun j => average (fun k => f (k + m * j)) m) n := by
  rcases Nat.eq_zero_or_pos m with rfl | hm
  · rw [Nat.zero_mul, average_eq_zero fun k hk => by omega]
    exact (average_eq_zero fun j _ => average_eq_zero fun k hk => by omega).symm
  rcases Nat.eq_zero_or_pos n with rfl | hn
  · rfl
  unfold average
  have h1 := mul_inv_self (natCast_pos (R := R) hm)
  have h2 := mul_inv_self (natCast_pos (R := R) hn)
  have h3 := mul_inv_self (natCast_pos (R := R) (Nat.mul_pos hm hn))
  simp only [Field.div_eq_mul_inv]
  rw [sum_mul_right, sum_blocks, Semiring.natCast_mul]
  rw [Semiring.natCast_mul] at h3
  have h4 : ((m : R) * (n : R))⁻¹ = (m : R)⁻¹ * (n : R)⁻¹ := by
    generalize ((m : R) * (n : R))⁻¹ = z at *
    generalize (m : R)⁻¹ = x at *
    generalize (n : R)⁻¹ = y at *
    generalize (m : R) = M at *
    generalize (n : R) = N at *
    have e : z = z * (M * x) * (N * y) := by rw [h1, h2]; grind
    have e2 : z * (M * x) * (N * y) = (M * N * z) * (x * y) := by grind
    rw [e, e2, h3, Semiring.one_mul]
  rw [h4, Semiring.mul_assoc]

/-- Independence: over all outcomes, the average of a product of functions of different coordinates is the product of their
averages. -/
theorem average_prod (f : Nat → Nat → R) {n : Nat} (h_pos : 0 < n) (m : Nat) :
    average (fun k => prod (fun c => f c (draw n k c)) m) (n ^ m) = prod (fun c => average (f c) n) m := by
  induction m with
  | zero => exact average_const _ (by rw [Nat.pow_zero]; decide)
  | succ m ih =>
    rw [Nat.pow_succ, average_blocks, prod_succ, ← ih]
    rw [← average_mul]
    refine average_congr fun j hj => ?_
    rw [← average_mul_right]
    refine average_congr fun k hk => ?_
    rw [prod_succ, draw_add_top n hk hj]
    rw [prod_congr fun c hc => by rw [draw_add_low n hc h_pos]]

/-- Independence, when channel `c` looks at coordinate `coord c`: if different channels look at different coordinates, the
average of the product over the channels is the product of the averages. -/
theorem average_prod_draw (f : Nat → Nat → R) {n m d : Nat} (coord : Nat → Nat) (h_pos : 0 < n)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    average (fun k => prod (fun c => f c (draw n k (coord c))) d) (n ^ m) = prod (fun c => average (f c) n) d := by
  -- regroup the product by coordinates
  let F : Nat → Nat → R := fun i j => prod (fun c => if coord c = i then f c j else 1) d
  have h1 : ∀ k, prod (fun c => f c (draw n k (coord c))) d = prod (fun i => F i (draw n k i)) m := fun k => by
    show _ = prod (fun i => prod (fun c => if coord c = i then f c (draw n k i) else 1) d) m
    rw [prod_comm]
    refine prod_congr fun c hc => ?_
    rw [prod_congr (g := fun i => if coord c = i then f c (draw n k (coord c)) else 1) fun i _ => by
      show (if coord c = i then _ else (1 : R)) = if coord c = i then _ else 1
      by_cases h : coord c = i
      · rw [if_pos h, if_pos h, h]
      · rw [if_neg h, if_neg h]]
    rw [prod_single, if_pos (h_coord c hc)]
  rw [average_congr fun k _ => h1 k, average_prod F h_pos]
  -- a coordinate belongs to one channel at most
  have h2 : ∀ i, average (F i) n = prod (fun c => if coord c = i then average (f c) n else 1) d := fun i => by
    by_cases h : ∃ c, c < d ∧ coord c = i
    · obtain ⟨c, hc, hci⟩ := h
      have h3 : ∀ g : Nat → R, prod (fun c' => if coord c' = i then g c' else 1) d = g c := fun g => by
        rw [prod_congr (g := fun c' => if c = c' then g c else 1) fun c' hc' => by
          show (if coord c' = i then _ else (1 : R)) = if c = c' then _ else 1
          by_cases h : coord c' = i
          · have : c = c' := h_inj c c' hc hc' (by omega)
            subst this
            rw [if_pos h, if_pos rfl]
          · rw [if_neg h, if_neg fun (e : c = c') => h (e ▸ hci)]]
        rw [prod_single, if_pos hc]
      rw [h3]
      refine average_congr fun j _ => ?_
      exact h3 fun c => f c j
    · have h3 : ∀ g : Nat → R, prod (fun c' => if coord c' = i then g c' else 1) d = 1 := fun g =>
        prod_eq_one fun c' hc' => if_neg fun e => h ⟨c', hc', e⟩
      rw [h3]
      refine (average_congr fun j _ => ?_).trans (average_const 1 h_pos)
      exact h3 fun c => f c j
  rw [prod_congr fun i _ => h2 i, prod_comm]
  refine prod_congr fun c hc => ?_
  rw [prod_single, if_pos (h_coord c hc)]

end WitCert.Core
