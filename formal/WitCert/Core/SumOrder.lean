import WitCert.Core.Sum

/-!
# Finite sums in another order

A sum may be cut into two, cut into blocks, and permuted; cyclic shifts are the permutations that the dither makes.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- A sum over `a + b` indices is the sum over the first `a` plus the sum over the `b` after them. -/
theorem sum_append (f : Nat → R) (a b : Nat) : sum f (a + b) = sum f a + sum (fun k => f (a + k)) b := by
  induction b with
  | zero => rw [Nat.add_zero, sum_zero]; grind
  | succ b ih => rw [← Nat.add_assoc, sum_succ, sum_succ, ih]; grind

/-- A sum over `m * n` indices, in `n` blocks of `m`. -/
theorem sum_blocks (f : Nat → R) (m n : Nat) : sum f (m * n) = sum (fun j => sum (fun k => f (k + m * j)) m) n := by
  induction n with
  | zero => rfl
  | succ n ih =>
    rw [Nat.mul_succ, sum_append, ih, sum_succ]
    congr 1
    exact sum_congr fun k _ => by rw [Nat.add_comm]

/-- `perm` permutes the indices `0, ..., n - 1`: it maps them to themselves and has an inverse there. -/
def Permutes (n : Nat) (perm : Nat → Nat) : Prop :=
  ∃ inv : Nat → Nat, ∀ j, j < n → perm j < n ∧ inv j < n ∧ inv (perm j) = j ∧ perm (inv j) = j

/-- Doing nothing permutes the indices. -/
theorem permutes_id (n : Nat) : Permutes n fun j => j := ⟨fun j => j, fun _ hj => ⟨hj, hj, rfl, rfl⟩⟩

/-- A single index picks its term out of a sum. -/
theorem sum_pick (f : Nat → R) (j n : Nat) : sum (fun i => if j = i then f i else 0) n = if j < n then f j else 0 := by
  induction n with
  | zero => rfl
  | succ n ih =>
    rw [sum_succ, ih]
    by_cases h1 : j < n
    · rw [if_pos h1, if_neg (by omega), if_pos (by omega)]; grind
    · by_cases h2 : j = n
      · subst h2
        rw [if_neg h1, if_pos rfl, if_pos (by omega)]; grind
      · rw [if_neg h1, if_neg h2, if_neg (by omega)]; grind

/-- A permutation of the indices does not change a sum. -/
theorem sum_perm (f : Nat → R) {n : Nat} {perm : Nat → Nat} (h_perm : Permutes n perm) :
    sum (fun j => f (perm j)) n = sum f n := by
  obtain ⟨inv, h⟩ := h_perm
  have h1 : ∀ j, j < n → f (perm j) = sum (fun i => if perm j = i then f i else 0) n := fun j hj => by
    rw [sum_pick, if_pos (h j hj).1]
  rw [sum_congr h1, sum_comm]
  refine sum_congr fun i hi => ?_
  have h2 : ∀ j, j < n → (if perm j = i then f i else 0) = if inv i = j then f i else 0 := fun j hj => by
    by_cases hji : perm j = i
    · rw [if_pos hji, if_pos (by rw [← hji]; exact (h j hj).2.2.1)]
    · rw [if_neg hji, if_neg fun e => hji (by rw [← e]; exact (h i hi).2.2.2)]
  rw [sum_congr h2, sum_pick (fun _ => f i), if_pos (h i hi).2.1]

/-- The indices `0, ..., n - 1` run through backwards, starting from `t` and going round: `t, t - 1, ..., 0, n - 1, ..., t + 1`. -/
def cyclicShift (n t j : Nat) : Nat := (t + (n - j)) % n

/-- A cyclic shift stays among the indices. -/
theorem cyclicShift_lt {n : Nat} (h_pos : 0 < n) (t j : Nat) : cyclicShift n t j < n := Nat.mod_lt _ h_pos

/-- A cyclic shift, up to the point where it goes round. -/
theorem cyclicShift_of_le {n t j : Nat} (ht : t < n) (h : j ≤ t) : cyclicShift n t j = t - j := by
  unfold cyclicShift
  rw [show t + (n - j) = t - j + n by omega, Nat.add_mod_right, Nat.mod_eq_of_lt (by omega)]

/-- A cyclic shift, after the point where it goes round. -/
theorem cyclicShift_of_lt {n t j : Nat} (hj : j < n) (h : t < j) : cyclicShift n t j = t + (n - j) := by
  unfold cyclicShift
  rw [Nat.mod_eq_of_lt (by omega)]

/-- A cyclic shift is its own inverse. -/
theorem cyclicShift_cyclicShift {n t j : Nat} (ht : t < n) (hj : j < n) : cyclicShift n t (cyclicShift n t j) = j := by
  rcases Nat.lt_or_ge t j with h | h
  · rw [cyclicShift_of_lt hj h, cyclicShift_of_lt (by omega) (by omega)]; omega
  · rw [cyclicShift_of_le ht h, cyclicShift_of_le ht (by omega)]; omega

/-- A cyclic shift permutes the indices. -/
theorem permutes_cyclicShift {n t : Nat} (ht : t < n) : Permutes n (cyclicShift n t) :=
  ⟨cyclicShift n t, fun j hj => ⟨cyclicShift_lt (by omega) t j, cyclicShift_lt (by omega) t j,
    cyclicShift_cyclicShift ht hj, cyclicShift_cyclicShift ht hj⟩⟩

end WitCert.Core
