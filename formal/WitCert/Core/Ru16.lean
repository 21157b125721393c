import WitCert.Core.Ru16Defs
/-!
# Rounding up to binary16

`ru16 a b` is the least binary16 number that is at least `a / b` (`ru16_ge`, `ru16_isHalf`, `ru16_le_of_isHalf`, `ru16_lt_next`), it is +∞
exactly when `a / b > 65504` (`ru16_overflow`), and it keeps binary16 numbers (`ru16_of_isHalf`). The bit patterns below `0x7C00`
are in order the nonnegative finite binary16 numbers (`isHalf_iff_code`, `halfValue_lt`).
-/
namespace WitCert.Core

/-! ### rounded division -/

/-- A rounded-up quotient is at least the quotient. -/
theorem le_ceilDiv_mul (a b : Nat) (h_pos : 0 < b) : a ≤ ceilDiv a b * b := by
  have h := @Nat.lt_div_mul_add (a + b - 1) b h_pos
  unfold ceilDiv
  omega

/-- A rounded-up quotient is the least integer that is at least the quotient. -/
theorem ceilDiv_le_iff (a b k : Nat) (h_pos : 0 < b) : ceilDiv a b ≤ k ↔ a ≤ k * b := by
  constructor
  · intro h
    exact Nat.le_trans (le_ceilDiv_mul a b h_pos) (Nat.mul_le_mul_right b h)
  · intro h
    unfold ceilDiv
    apply Nat.le_of_lt_succ
    rw [Nat.div_lt_iff_lt_mul h_pos, Nat.succ_mul]
    omega

/-- Division by 1 rounds nothing. -/
theorem ceilDiv_one (u : Nat) : ceilDiv u 1 = u := by
  unfold ceilDiv; omega

/-! ### keeping 11 bits -/

/-- Keeping 11 bits rounds up. -/
theorem le_up11 (u : Nat) : u ≤ up11 u := le_ceilDiv_mul _ _ (Nat.two_pow_pos _)

/-- The result of keeping 11 bits of a number in range is a binary16 number. -/
theorem isHalf_up11 (u : Nat) (h_range : u ≤ halfMax) : IsHalf (up11 u) := by
  unfold up11
  by_cases h0 : u < 2 ^ 11
  · have h1 : u.log2 - 10 = 0 := by
      by_cases hz : u = 0
      · subst hz; decide
      · have := (Nat.log2_lt hz).2 h0; omega
    rw [h1]
    exact ⟨u, 0, h0, by omega, by rw [Nat.pow_zero, ceilDiv_one]⟩
  · have hz : u ≠ 0 := by omega
    have hlo := Nat.log2_self_le hz
    have hhi := @Nat.lt_log2_self u
    have hL : 11 ≤ u.log2 := by
      apply Classical.byContradiction; intro hn
      have := Nat.pow_le_pow_right (n := 2) (by decide) (show u.log2 + 1 ≤ 11 by omega)
      omega
    have hL2 : u.log2 < 40 := (Nat.log2_lt hz).2 (by unfold halfMax at h_range; omega)
    generalize u.log2 = L at *
    obtain ⟨e, rfl⟩ : ∃ e, L = e + 10 := ⟨L - 10, by omega⟩
    rw [show e + 10 - 10 = e by omega]
    have hpe := Nat.two_pow_pos e
    have hk : ceilDiv u (2 ^ e) ≤ 2 ^ 11 := by
      rw [ceilDiv_le_iff _ _ _ hpe, ← Nat.pow_add, show 11 + e = e + 10 + 1 by omega]
      omega
    by_cases hlt : ceilDiv u (2 ^ e) < 2 ^ 11
    · exact ⟨_, e, hlt, by omega, rfl⟩
    · have heq : ceilDiv u (2 ^ e) = 2 ^ 11 := by omega
      have he : e ≠ 29 := by
        intro h29; subst h29
        have := (ceilDiv_le_iff u (2 ^ 29) 2047 hpe).2 (by unfold halfMax at h_range; omega)
        omega
      refine ⟨2 ^ 10, e + 1, by decide, by omega, ?_⟩
      rw [heq, Nat.pow_succ 2 e]; omega

/-- No binary16 number lies between a number and the result of keeping its 11 leading bits. -/
theorem up11_le (u v : Nat) (h_half : IsHalf v) (h_le : u ≤ v) : up11 u ≤ v := by
  obtain ⟨m, e, hm, _, rfl⟩ := h_half
  unfold up11
  by_cases hz : u = 0
  · subst hz; simp [ceilDiv]
  have hlo := Nat.log2_self_le hz
  -- v = m 2^e ≥ u ≥ 2^L and m < 2^11, so e ≥ L - 10 and v is a multiple of 2^(L-10)
  have hLe : u.log2 - 10 ≤ e := by
    apply Classical.byContradiction; intro hn
    have h1 : e + 11 ≤ u.log2 := by omega
    have h2 := Nat.pow_le_pow_right (n := 2) (by decide) h1
    have h3 := Nat.mul_lt_mul_of_pos_right hm (Nat.two_pow_pos e)
    rw [← Nat.pow_add, Nat.add_comm 11 e] at h3
    omega
  generalize u.log2 - 10 = k at *
  obtain ⟨d, rfl⟩ : ∃ d, e = k + d := ⟨e - k, by omega⟩
  have hpk := Nat.two_pow_pos k
  have h5 : m * 2 ^ (k + d) = m * 2 ^ d * 2 ^ k := by rw [Nat.pow_add]; grind
  rw [h5] at h_le ⊢
  exact Nat.mul_le_mul_right _ ((ceilDiv_le_iff _ _ _ hpk).2 h_le)

/-! ### binary16 numbers -/

/-- Binary16 numbers are at most 65504. -/
theorem IsHalf.le_max {u : Nat} (h_half : IsHalf u) : u ≤ halfMax := by
  obtain ⟨m, e, hm, he, rfl⟩ := h_half
  have h1 := Nat.mul_le_mul (show m ≤ 2047 by omega) (Nat.pow_le_pow_right (n := 2) (by decide) he)
  unfold halfMax
  omega

/-- The largest finite binary16 number is one. -/
theorem isHalf_max : IsHalf halfMax := ⟨2047, 29, by decide, by decide, by decide⟩

/-- The nonnegative finite binary16 numbers are the values of the bit patterns below `0x7C00`. -/
theorem isHalf_iff_code (u : Nat) : IsHalf u ↔ ∃ code, code < 0x7C00 ∧ halfValue code = u := by
  constructor
  · rintro ⟨m, e, hm, he, rfl⟩
    by_cases h0 : m * 2 ^ e < 1024
    · exact ⟨m * 2 ^ e, by omega, if_pos h0⟩
    · have hz : m * 2 ^ e ≠ 0 := by omega
      have hlo := Nat.log2_self_le hz
      have hhi := @Nat.lt_log2_self (m * 2 ^ e)
      have hpe := Nat.two_pow_pos e
      have hL : 10 ≤ (m * 2 ^ e).log2 := by
        apply Classical.byContradiction; intro hn
        have := Nat.pow_le_pow_right (n := 2) (by decide) (show (m * 2 ^ e).log2 + 1 ≤ 10 by omega)
        omega
      have hLe : (m * 2 ^ e).log2 ≤ e + 10 := by
        apply Classical.byContradiction; intro hn
        have h2 := Nat.pow_le_pow_right (n := 2) (by decide) (show e + 11 ≤ (m * 2 ^ e).log2 by omega)
        have h3 := Nat.mul_lt_mul_of_pos_right hm hpe
        rw [← Nat.pow_add, Nat.add_comm 11 e] at h3
        omega
      generalize (m * 2 ^ e).log2 = L at *
      obtain ⟨k, rfl⟩ : ∃ k, L = k + 10 := ⟨L - 10, by omega⟩
      obtain ⟨j, rfl⟩ : ∃ j, e = k + j := ⟨e - k, by omega⟩
      have hpk := Nat.two_pow_pos k
      have h5 : m * 2 ^ (k + j) = m * 2 ^ j * 2 ^ k := by rw [Nat.pow_add]; grind
      rw [h5] at hlo hhi ⊢
      generalize m * 2 ^ j = s at *
      have hs1 : 1024 ≤ s := by
        have h6 : 2 ^ 10 * 2 ^ k ≤ s * 2 ^ k := by rw [← Nat.pow_add, Nat.add_comm 10 k]; exact hlo
        exact Nat.le_of_mul_le_mul_right h6 hpk
      have hs2 : s < 2048 := by
        have h6 : s * 2 ^ k < 2 ^ 11 * 2 ^ k := by rw [← Nat.pow_add, Nat.add_comm 11 k]; exact hhi
        exact Nat.lt_of_mul_lt_mul_right h6
      refine ⟨(k + 1) * 1024 + (s - 1024), by omega, ?_⟩
      unfold halfValue
      rw [if_neg (by omega), show 1024 + ((k + 1) * 1024 + (s - 1024)) % 1024 = s by omega,
        show ((k + 1) * 1024 + (s - 1024)) / 1024 - 1 = k by omega]
  · rintro ⟨code, hc, rfl⟩
    unfold halfValue
    by_cases h : code < 1024
    · rw [if_pos h]; exact ⟨code, 0, by omega, by omega, by omega⟩
    · rw [if_neg h]; exact ⟨_, _, by omega, by omega, rfl⟩

/-- Consecutive bit patterns have increasing values. -/
theorem halfValue_lt_succ (code : Nat) : halfValue code < halfValue (code + 1) := by
  unfold halfValue
  by_cases h1 : code + 1 < 1024
  · rw [if_pos (by omega), if_pos h1]; omega
  · by_cases h2 : code < 1024
    · obtain rfl : code = 1023 := by omega
      decide
    · rw [if_neg h2, if_neg h1]
      by_cases h3 : code % 1024 = 1023
      · obtain ⟨k, hk⟩ : ∃ k, code / 1024 = k + 1 := ⟨code / 1024 - 1, by omega⟩
        rw [show (code + 1) % 1024 = 0 by omega, show (code + 1) / 1024 - 1 = k + 1 by omega, hk, h3,
          show k + 1 - 1 = k by omega, Nat.pow_succ]
        have := Nat.two_pow_pos k
        omega
      · rw [show (code + 1) % 1024 = code % 1024 + 1 by omega, show (code + 1) / 1024 = code / 1024 by omega]
        exact Nat.mul_lt_mul_of_pos_right (by omega) (Nat.two_pow_pos _)

/-- Bit patterns of binary16 numbers are ordered as their values are. -/
theorem halfValue_lt {c c' : Nat} (h_lt : c < c') : halfValue c < halfValue c' := by
  induction c' with
  | zero => omega
  | succ d ih =>
    have h := halfValue_lt_succ d
    by_cases hcd : c = d
    · subst hcd; exact h
    · exact Nat.lt_trans (ih (by omega)) h

/-! ### the rounding -/

/-- Rounding up is never below: the result of `ru16 a b`, if finite, is at least `a / b`. -/
theorem ru16_ge {a b u : Nat} (h_pos : 0 < b) (h_finite : ru16 a b = some u) : a * 2 ^ 24 ≤ u * b := by
  unfold ru16 at h_finite
  simp only [Option.ite_none_right_eq_some, Option.some.injEq] at h_finite
  rw [← h_finite.2]
  exact Nat.le_trans (le_ceilDiv_mul _ _ h_pos) (Nat.mul_le_mul_right b (le_up11 _))

/-- The result of rounding up, if finite, is a binary16 number. -/
theorem ru16_isHalf {a b u : Nat} (h_finite : ru16 a b = some u) : IsHalf u := by
  unfold ru16 at h_finite
  simp only [Option.ite_none_right_eq_some, Option.some.injEq] at h_finite
  obtain ⟨h1, rfl⟩ := h_finite
  exact isHalf_up11 _ (Nat.le_trans (le_up11 _) h1)

/-- The result is the least: if a binary16 number `v` is at least `a / b`, the result is finite and at most `v`. -/
theorem ru16_le_of_isHalf {a b v : Nat} (h_pos : 0 < b) (h_half : IsHalf v) (h_ge : a * 2 ^ 24 ≤ v * b) :
    ∃ u, ru16 a b = some u ∧ u ≤ v := by
  have h1 := up11_le _ v h_half ((ceilDiv_le_iff _ _ _ h_pos).2 h_ge)
  refine ⟨_, ?_, h1⟩
  unfold ru16
  exact if_pos (Nat.le_trans h1 h_half.le_max)

/-- No binary16 number lies between the input and the result: every smaller binary16 number is below the input. -/
theorem ru16_lt_next {a b u v : Nat} (h_pos : 0 < b) (h_finite : ru16 a b = some u) (h_half : IsHalf v) (h_lt : v < u) :
    v * b < a * 2 ^ 24 := by
  apply Classical.byContradiction
  intro hn
  obtain ⟨u', h1, h2⟩ := ru16_le_of_isHalf h_pos h_half (show a * 2 ^ 24 ≤ v * b by omega)
  rw [h_finite, Option.some.injEq] at h1
  omega

/-- The bit pattern below that of the result is below the input. -/
theorem ru16_pred_lt {a b code : Nat} (h_pos : 0 < b) (h_code : code + 1 < 0x7C00)
    (h_finite : ru16 a b = some (halfValue (code + 1))) : halfValue code * b < a * 2 ^ 24 :=
  ru16_lt_next h_pos h_finite ((isHalf_iff_code _).2 ⟨code, by omega, rfl⟩) (halfValue_lt_succ code)

/-- Rounding up overflows to +∞ exactly when the input exceeds 65504, the largest finite binary16 number. -/
theorem ru16_overflow {a b : Nat} (h_pos : 0 < b) : ru16 a b = none ↔ 65504 * b < a := by
  constructor
  · intro h
    apply Classical.byContradiction
    intro hn
    obtain ⟨u, h1, -⟩ := ru16_le_of_isHalf (a := a) h_pos isHalf_max (by unfold halfMax; omega)
    rw [h] at h1
    exact absurd h1 (by simp)
  · intro h
    cases hu : ru16 a b with
    | none => rfl
    | some u =>
      have h1 := ru16_ge h_pos hu
      have h2 := Nat.mul_le_mul_right b (ru16_isHalf hu).le_max
      unfold halfMax at h2
      omega

/-- Rounding up keeps binary16 numbers. -/
theorem ru16_of_isHalf {u : Nat} (h_half : IsHalf u) : ru16 u (2 ^ 24) = some u := by
  obtain ⟨v, h1, h2⟩ := ru16_le_of_isHalf (Nat.two_pow_pos 24) h_half (Nat.le_refl _)
  have h3 := ru16_ge (Nat.two_pow_pos 24) h1
  have h4 : u ≤ v := Nat.le_of_mul_le_mul_right h3 (Nat.two_pow_pos 24)
  rw [h1, show v = u by omega]

/-- Rounding up is monotone: a smaller input that is given has a result that is at most the larger one's. -/
theorem ru16_mono {a b a' b' u' : Nat} (h_pos : 0 < b) (h_pos' : 0 < b') (h_le : a * b' ≤ a' * b)
    (h_finite : ru16 a' b' = some u') : ∃ u, ru16 a b = some u ∧ u ≤ u' := by
  apply ru16_le_of_isHalf h_pos (ru16_isHalf h_finite)
  have h1 := ru16_ge h_pos' h_finite
  apply Nat.le_of_mul_le_mul_right (c := b') _ h_pos'
  have h2 := Nat.mul_le_mul_right (2 ^ 24) h_le
  have h3 := Nat.mul_le_mul_right b h1
  grind

end WitCert.Core
