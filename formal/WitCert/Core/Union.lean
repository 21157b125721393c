import WitCert.Core.Average

/-!
# The union bound over a request

A request has `L · H · T` cells (layer, query head, decode step), each with its tokens. If the bound of every single token fails in a
small share of outcomes, some bound of the request fails in at most the sum of these shares. No independence is used, so cells may
share dither coordinates, as the query heads that read one KV head do.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The share of outcomes in which at least one of `n` events happens is at most the sum of their shares. -/
theorem share_exists_le (E : Nat → Nat → Prop) (n N : Nat) :
    (share (fun k => ∃ i, i < n ∧ E i k) N : R) ≤ sum (fun i => share (E i) N) n := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  unfold share
  rw [← average_sum]
  refine average_le fun k _ => ?_
  have h_nonneg : ∀ i, i < n → 0 ≤ (open Classical in if E i k then (1 : R) else 0) := fun i _ => by split <;> grind
  by_cases h : ∃ i, i < n ∧ E i k
  · obtain ⟨i, hi, hE⟩ := h
    have h1 := term_le_sum h_nonneg hi
    rw [if_pos hE] at h1
    rw [if_pos ⟨i, hi, hE⟩]
    exact h1
  · rw [if_neg h]
    exact sum_nonneg h_nonneg

/-- If each of `n` events happens in a share of at most `δ` of the outcomes, some of them happens in at most the share `n δ`. -/
theorem share_exists_le_mul {E : Nat → Nat → Prop} {n N : Nat} {δ : R} (h : ∀ i, i < n → share (E i) N ≤ δ) :
    share (fun k => ∃ i, i < n ∧ E i k) N ≤ (n : R) * δ := by
  refine Std.le_trans (share_exists_le E n N) (Std.le_trans (sum_le h) ?_)
  have e : ∀ m : Nat, sum (fun _ => δ) m = (m : R) * δ := fun m => by
    induction m with
    | zero => rw [sum_zero, Semiring.natCast_zero]; grind
    | succ m ih => rw [sum_succ, ih, Semiring.natCast_succ]; grind
  rw [e]; grind

/-- A budget divided by a positive number of shares multiplies back. -/
theorem natCast_mul_div {n : Nat} (h_pos : 0 < n) (δ : R) : (n : R) * (δ / (n : R)) = δ := by
  rw [CommSemiring.mul_comm, div_mul_self δ (natCast_pos h_pos)]

/-- The failure budget of a request, split over its cells and their tokens: if the bound of each token fails in at most the share
`δ_loc / S` of outcomes, where `δ_loc = δ_req / (L · H · T)` and `S` is the number of tokens of the cell, then some bound of the
request fails in at most the share `δ_req`. -/
theorem request_union {L H T N : Nat} {δ_req : R} (tokens : Nat → Nat → Nat → Nat) (E : Nat → Nat → Nat → Nat → Nat → Prop)
    (h_budget : 0 ≤ δ_req)
    (h_token : ∀ l h t i, l < L → h < H → t < T → i < tokens l h t →
      share (E l h t i) N ≤ δ_req / ((L * H * T : Nat) : R) / (tokens l h t : R)) :
    share (fun k => ∃ l, l < L ∧ ∃ h, h < H ∧ ∃ t, t < T ∧ ∃ i, i < tokens l h t ∧ E l h t i k) N ≤ δ_req := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  rcases Nat.eq_zero_or_pos (L * H * T) with h0 | h0
  · rw [share_eq_zero fun k _ => ?_]
    · exact h_budget
    · rintro ⟨l, hl, h, hh, t, ht, -⟩
      have := Nat.mul_pos (Nat.mul_pos (show 0 < L by omega) (show 0 < H by omega)) (show 0 < T by omega)
      omega
  · have hδ : 0 ≤ δ_req / ((L * H * T : Nat) : R) := div_nonneg h_budget (natCast_pos h0)
    have h_sum := natCast_mul_div h0 δ_req
    generalize δ_req / ((L * H * T : Nat) : R) = δ_loc at *
    have h1 := share_exists_le_mul (E := fun l k => ∃ h, h < H ∧ ∃ t, t < T ∧ ∃ i, i < tokens l h t ∧ E l h t i k) (n := L) (N := N)
      (δ := (H : R) * ((T : R) * δ_loc)) fun l hl =>
      share_exists_le_mul fun h hh => share_exists_le_mul fun t ht => by
        rcases Nat.eq_zero_or_pos (tokens l h t) with hS | hS
        · rw [share_eq_zero fun k _ => ?_]
          · exact hδ
          · rintro ⟨i, hi, -⟩; omega
        · have h2 := share_exists_le_mul (E := fun i => E l h t i) fun i hi => h_token l h t i hl hh ht hi
          rw [natCast_mul_div hS] at h2
          exact h2
    rw [Semiring.natCast_mul, Semiring.natCast_mul] at h_sum
    grind

end WitCert.Core
