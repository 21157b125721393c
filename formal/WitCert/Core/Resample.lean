import WitCert.Core.Average

/-!
# Drawing one coordinate again

`redraw n k a j` is the outcome `k` with its coordinate `a` replaced by `j`. Averaging over all outcomes is the same as averaging over all
outcomes and then over what one coordinate is redrawn to (`average_redraw`). This serves where independence is not between fixed
functions: in free-running decoding a stored key depends on the dithers of earlier tokens, and only its own dither is fresh
(`average_prod_fresh_le`).
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The outcome `k` with coordinate `a` replaced by `j`. -/
def redraw (n k a j : Nat) : Nat := k % n ^ a + n ^ a * (j + n * (k / n ^ (a + 1)))

/-- A redrawn coordinate has the new value. -/
theorem draw_redraw_self {n j : Nat} (k a : Nat) (hj : j < n) : draw n (redraw n k a j) a = j := by
  unfold draw redraw
  have hpos : 0 < n ^ a := Nat.pow_pos (by omega)
  rw [Nat.add_mul_div_left _ _ hpos, Nat.div_eq_of_lt (Nat.mod_lt _ hpos), Nat.zero_add, Nat.add_mul_mod_self_left,
    Nat.mod_eq_of_lt hj]

/-- The other coordinates keep their values. -/
theorem draw_redraw_of_ne {n j a c : Nat} (k : Nat) (hj : j < n) (h_ne : c ≠ a) : draw n (redraw n k a j) c = draw n k c := by
  have hn : 0 < n := by omega
  rcases Nat.lt_or_ge c a with h | h
  · have h1 : draw n (k % n ^ a + n ^ a * (k / n ^ a)) c = draw n (k % n ^ a) c := draw_add_low n h hn _ _
    rw [Nat.mod_add_div] at h1
    unfold redraw
    rw [draw_add_low n h hn, h1]
  · obtain ⟨e, rfl⟩ : ∃ e, c = a + 1 + e := ⟨c - a - 1, by omega⟩
    have hp : 0 < n ^ (a + 1) := Nat.pow_pos hn
    have h1 : redraw n k a j / n ^ (a + 1) = k / n ^ (a + 1) := by
      have h2 : redraw n k a j = k % n ^ a + n ^ a * j + n ^ (a + 1) * (k / n ^ (a + 1)) := by
        unfold redraw
        rw [Nat.pow_succ, Nat.mul_add, Nat.mul_assoc, Nat.add_assoc]
      have h3 : k % n ^ a + n ^ a * j < n ^ (a + 1) := by
        have h4 := Nat.mod_lt k (Nat.pow_pos (n := a) hn)
        have h5 := Nat.mul_le_mul_left (n ^ a) (show j + 1 ≤ n by omega)
        rw [Nat.mul_add, Nat.mul_one] at h5
        rw [Nat.pow_succ]
        omega
      rw [h2, Nat.add_mul_div_left _ _ hp, Nat.div_eq_of_lt h3, Nat.zero_add]
    unfold draw
    rw [Nat.pow_add, ← Nat.div_div_eq_div_mul, ← Nat.div_div_eq_div_mul, h1]

/-- Two averages may be exchanged. -/
theorem average_comm (f : Nat → Nat → R) (m n : Nat) :
    average (fun i => average (fun j => f i j) n) m = average (fun j => average (fun i => f i j) m) n := by
  unfold average
  simp only [Field.div_eq_mul_inv]
  rw [sum_mul_right, sum_mul_right, sum_comm, Semiring.mul_assoc, Semiring.mul_assoc, CommSemiring.mul_comm ((n : R)⁻¹)]

/-- Averaging over all outcomes is averaging over all outcomes with one coordinate drawn again. -/
theorem average_redraw (F : Nat → R) {n m a : Nat} (h_pos : 0 < n) (ha : a < m) :
    average F (n ^ m) = average (fun k => average (fun j => F (redraw n k a j)) n) (n ^ m) := by
  obtain ⟨e, rfl⟩ : ∃ e, m = a + 1 + e := ⟨m - a - 1, by omega⟩
  have hp : 0 < n ^ a := Nat.pow_pos h_pos
  rw [Nat.pow_add, Nat.pow_succ, average_blocks, average_blocks]
  refine average_congr fun h _ => ?_
  rw [average_blocks, average_blocks]
  have h1 : ∀ j i, j < n → i < n ^ a → ∀ j', redraw n (i + n ^ a * j + n ^ a * n * h) a j' = i + n ^ a * j' + n ^ a * n * h :=
    fun j i hj hi j' => by
      have h2 : (i + n ^ a * j + n ^ a * n * h) % n ^ a = i := by
        rw [Nat.mul_assoc, Nat.add_assoc, ← Nat.mul_add, Nat.add_mul_mod_self_left, Nat.mod_eq_of_lt hi]
      have h3 : (i + n ^ a * j + n ^ a * n * h) / n ^ (a + 1) = h := by
        have h4 : i + n ^ a * j < n ^ a * n := by
          have h5 := Nat.mul_le_mul_left (n ^ a) (show j + 1 ≤ n by omega)
          rw [Nat.mul_add, Nat.mul_one] at h5
          omega
        rw [Nat.pow_succ, Nat.add_mul_div_left _ _ (Nat.mul_pos hp h_pos), Nat.div_eq_of_lt h4, Nat.zero_add]
      unfold redraw
      rw [h2, h3, Nat.mul_add, Nat.mul_assoc, Nat.add_assoc]
  have h2 : ∀ j, j < n → average (fun i => average (fun j' => F (redraw n (i + n ^ a * j + n ^ a * n * h) a j')) n) (n ^ a)
      = average (fun j' => average (fun i => F (i + n ^ a * j' + n ^ a * n * h)) (n ^ a)) n := fun j hj => by
    rw [average_comm]
    exact average_congr fun j' _ => average_congr fun i hi => by rw [h1 j i hj hi j']
  rw [average_congr h2, average_const _ h_pos]

/-- The average of a product over the channels of one token, when the factor of a channel may also depend on the coordinates that do not
belong to the token: if for every outcome the average of each factor over its own draw is at most `B c`, the average of the product is
at most the product of the `B c`. -/
theorem average_prod_fresh_le (F : Nat → Nat → Nat → R) (B : Nat → R) (coord : Nat → Nat) {n m d : Nat} (h_pos : 0 < n)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_nonneg : ∀ c k j, c < d → 0 ≤ F c k j)
    (h_fresh : ∀ c c' k j j', c < d → c' < d → j' < n → F c (redraw n k (coord c') j') j = F c k j)
    (h_average : ∀ c k, c < d → average (F c k) n ≤ B c) :
    average (fun k => prod (fun c => F c k (draw n k (coord c))) d) (n ^ m) ≤ prod B d := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  induction d with
  | zero =>
    rw [prod_zero, average_congr (g := fun _ => 1) fun k _ => prod_zero _, average_const _ (Nat.pow_pos h_pos)]
    grind
  | succ d ih =>
    have ih' := ih (fun c hc => h_coord c (by omega)) (fun c c' hc hc' => h_inj c c' (by omega) (by omega))
      (fun c k j hc => h_nonneg c k j (by omega)) (fun c c' k j j' hc hc' => h_fresh c c' k j j' (by omega) (by omega))
      (fun c k hc => h_average c k (by omega))
    rw [average_redraw _ h_pos (h_coord d (by omega)), prod_succ]
    have h0 : ∀ k, 0 ≤ prod (fun c => F c k (draw n k (coord c))) d := fun k =>
      prod_nonneg fun c hc => h_nonneg c k _ (by omega)
    have hB : 0 ≤ B d := by
      have h1 : average (fun _ => (0 : R)) n ≤ average (F d 0) n := average_le fun j _ => h_nonneg d 0 j (by omega)
      rw [average_eq_zero fun _ _ => rfl] at h1
      exact Std.le_trans h1 (h_average d 0 (by omega))
    have h1 : ∀ k j, j < n → prod (fun c => F c (redraw n k (coord d) j) (draw n (redraw n k (coord d) j) (coord c))) (d + 1)
        = prod (fun c => F c k (draw n k (coord c))) d * F d k j := fun k j hj => by
      rw [prod_succ, draw_redraw_self k _ hj, h_fresh d d k j j (by omega) (by omega) hj]
      congr 1
      refine prod_congr fun c hc => ?_
      rw [h_fresh c d k _ j (by omega) (by omega) hj,
        draw_redraw_of_ne k hj fun e => by have := h_inj c d (by omega) (by omega) e; omega]
    have h2 : ∀ k, average (fun j => prod (fun c => F c (redraw n k (coord d) j) (draw n (redraw n k (coord d) j) (coord c))) (d + 1)) n
        ≤ prod (fun c => F c k (draw n k (coord c))) d * B d := fun k => by
      rw [average_congr fun j hj => h1 k j hj, average_mul]
      exact OrderedRing.mul_le_mul_of_nonneg_left (h_average d k (by omega)) (h0 k)
    refine Std.le_trans (average_le fun k _ => h2 k) ?_
    rw [average_mul_right]
    exact OrderedRing.mul_le_mul_of_nonneg_right ih' hB

end WitCert.Core
