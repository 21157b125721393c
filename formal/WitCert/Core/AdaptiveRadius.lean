import WitCert.Core.GridLaw
import WitCert.Core.GridMoments
import WitCert.Core.Hoeffding
import WitCert.Core.Resample
import WitCert.Core.Tail

/-!
# One radius for all queries

`adaptive_radius`: outside a small share of the outcomes of a token's dither, `(Σ q_c s_c g_c)² ≤ κ² Σ q_c² s_c² / 12` holds **for every
query `q` at once**, with `κ² = d + w` and `w² ≥ 9 d ℓ / 2`, where the share is `exp (-ℓ)`. The event is on the dither alone
(`Σ 12 g_c² ≤ d + w`: Hoeffding's inequality for terms between 0 and 3 with mean at most 1), and Cauchy–Schwarz does the rest. So the
query may depend on the dither, as it does in free-running decoding. The form `fresh_energy_tail` lets the token's key, and so the
cyclic shift through which a residual sees the grid, depend on the dithers of other tokens.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- Twelve times the square of a grid value lies between 0 and 3. -/
theorem grid_energy_le {n j : Nat} (hj : j < n) : 12 * (grid n j * grid n j : R) ≤ 3 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hN := natCast_pos (R := R) (show 0 < n by omega)
  have h1 := le_of_abs_le (abs_grid_le (R := R) hj)
  have h2 : 0 < 1 / (2 * (n : R)) := div_pos h01 (by grind)
  have h3 := OrderedRing.mul_nonneg (show 0 ≤ 1 / 2 - (grid n j : R) by grind) (show 0 ≤ 1 / 2 + (grid n j : R) by grind)
  grind

/-- The grid is symmetric: read backwards, its values change sign. -/
theorem grid_reflect_sq {n j : Nat} (hj : j < n) :
    (grid n (cyclicShift n (n - 1) j) * grid n (cyclicShift n (n - 1) j) : R) = grid n j * grid n j := by
  rw [cyclicShift_of_le (by omega) (by omega)]
  obtain ⟨i, rfl⟩ : ∃ i, n = j + i + 1 := ⟨n - j - 1, by omega⟩
  rw [show j + i + 1 - 1 - j = i by omega]
  unfold grid
  rw [Semiring.natCast_succ, Semiring.natCast_add]
  grind

/-- Twelve times the square of a grid value is on average at most 1. -/
theorem grid_energy_mean {n : Nat} (h_pos : 0 < n) : average (fun j => 12 * (grid n j * grid n j : R)) n ≤ 1 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hN := natCast_pos (R := R) h_pos
  have h1 : 0 < 1 / ((n : R) * (n : R)) := div_pos h01 (OrderedRing.mul_pos hN hN)
  rw [average_mul, grid_variance h_pos]
  grind

/-- Cauchy–Schwarz on good dithers: if `Σ 12 g_c² ≤ d + w`, then `(Σ q_c s_c g_c)² ≤ (d + w) Σ q_c² s_c² / 12` for every query. -/
theorem radius_of_energy (q s g : Nat → R) {w : R} {d : Nat} (h_energy : sum (fun c => 12 * (g c * g c)) d ≤ (d : R) + w) :
    sum (fun c => q c * s c * g c) d ^ 2 ≤ ((d : R) + w) * (sum (fun c => q c ^ 2 * s c ^ 2) d / 12) := by
  have h1 := cauchy (fun c => q c * s c) g d
  have h2 := sum_nonneg (n := d) fun c _ => mul_self_nonneg (q c * s c)
  rw [sum_mul] at h_energy
  have h3 := OrderedRing.mul_le_mul_of_nonneg_left h_energy h2
  have e : sum (fun c => q c ^ 2 * s c ^ 2) d = sum (fun c => q c * s c * (q c * s c)) d := sum_congr fun c _ => by grind
  rw [e]
  grind

variable [Exp R] [Archimedean R]

/-- The average of `exp (l · 12 g²)` over the grid is at most `exp (l + 9 l²/8)`, for `l ≥ 0`. -/
theorem grid_energy_mgf {n : Nat} (h_pos : 0 < n) {l : R} (h_nonneg : 0 ≤ l) :
    average (fun j => exp (l * (12 * (grid n j * grid n j : R)))) n ≤ exp (l + 9 * (l * l) / 8) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hE : 1 ≤ exp (l * 3) := one_le_exp (by grind)
  have h1 : average (fun j => exp (l * (12 * (grid n j * grid n j : R)))) n
      ≤ average (fun j => 1 + (exp (l * 3) - 1) / 3 * (12 * (grid n j * grid n j : R))) n := average_le fun j hj => by
    have h2 := grid_energy_le (R := R) hj
    have h3 := mul_self_nonneg (grid n j : R)
    have h4 := exp_chord (θ := 12 * (grid n j * grid n j : R) / 3) (l * 3) (by grind) (by grind)
    rw [show 12 * (grid n j * grid n j : R) / 3 * (l * 3) = l * (12 * (grid n j * grid n j)) by grind] at h4
    grind
  rw [average_add, average_const _ h_pos, average_mul] at h1
  have h2 := OrderedRing.mul_le_mul_of_nonneg_left (grid_energy_mean (R := R) h_pos) (show 0 ≤ (exp (l * 3) - 1) / 3 by grind)
  have h3 := hoeffding_chord (K := 3) (μ := 1) (l := l) (by grind) (by grind) (by grind) h_nonneg
  rw [show l * 1 + l * l * (3 * 3) / 8 = l + 9 * (l * l) / 8 by grind] at h3
  grind

/-- The dither energy of one token: the share of outcomes in which `Σ 12 g_c² > d + w` is at most `exp (-ℓ)`, where `w² ≥ 9 d ℓ / 2`.
Channel `c` sees its grid through a cyclic shift by `shift k c`, which may depend on the outcome, but not on the token's own
dithers. -/
theorem fresh_energy_tail (shift : Nat → Nat → Nat) (coord : Nat → Nat) {n m d : Nat} {w ell : R} (h_pos : 0 < n)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_shift : ∀ k c, c < d → shift k c < n)
    (h_fresh : ∀ c c' k j, c < d → c' < d → j < n → shift (redraw n k (coord c') j) c = shift k c)
    (h_radius : 0 ≤ w ∧ 9 * (d : R) * ell / 2 ≤ w ^ 2) :
    share (fun k => (d : R) + w
        < sum (fun c => 12 * (grid n (cyclicShift n (shift k c) (draw n k (coord c)))
          * grid n (cyclicShift n (shift k c) (draw n k (coord c))))) d) (n ^ m) ≤ exp (-ell) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  rcases Nat.eq_zero_or_pos d with hd | hd
  · subst hd
    rw [share_eq_zero fun k _ => by rw [sum_zero, Semiring.natCast_zero]; grind]
    have := exp_pos (-ell); grind
  have hD := natCast_pos (R := R) hd
  -- the optimal exponent
  have hl : 0 ≤ 4 * w / (9 * (d : R)) := div_nonneg (by grind) (by grind)
  have hlD := div_mul_self (4 * w) (show 0 < 9 * (d : R) by grind)
  generalize 4 * w / (9 * (d : R)) = l at *
  have h1 := average_prod_fresh_le
    (fun c k j => exp (l * (12 * (grid n (cyclicShift n (shift k c) j) * grid n (cyclicShift n (shift k c) j) : R))))
    (fun _ => exp (l + 9 * (l * l) / 8)) coord (n := n) (m := m) (d := d) h_pos h_coord h_inj
    (fun c k j _ => by
      have := exp_pos (l * (12 * (grid n (cyclicShift n (shift k c) j) * grid n (cyclicShift n (shift k c) j) : R))); grind)
    (fun c c' k j j' hc hc' hj' => by simp only [h_fresh c c' k j' hc hc' hj'])
    (fun c k hc => by
      have h2 := grid_energy_mgf (R := R) h_pos hl
      unfold average at h2 ⊢
      rw [sum_perm (fun j => exp (l * (12 * (grid n j * grid n j : R)))) (permutes_cyclicShift (h_shift k c hc))]
      exact h2)
  -- Markov
  have h2 : share (fun k => (d : R) + w
        < sum (fun c => 12 * (grid n (cyclicShift n (shift k c) (draw n k (coord c)))
          * grid n (cyclicShift n (shift k c) (draw n k (coord c))))) d) (n ^ m)
      ≤ average (fun k => exp (-(l * ((d : R) + w)))
        * prod (fun c => exp (l * (12 * (grid n (cyclicShift n (shift k c) (draw n k (coord c)))
          * grid n (cyclicShift n (shift k c) (draw n k (coord c)))) : R))) d) (n ^ m) := by
    refine share_le_average (fun k _ => ?_) (fun k _ hk => ?_)
    · rw [← exp_sum, ← exp_add]
      have := exp_pos (-(l * ((d : R) + w)) + sum (fun c => l * (12 * (grid n (cyclicShift n (shift k c) (draw n k (coord c)))
          * grid n (cyclicShift n (shift k c) (draw n k (coord c)))))) d)
      grind
    · rw [← exp_sum, ← exp_add, sum_mul]
      have := OrderedRing.mul_le_mul_of_nonneg_left (Std.le_of_lt hk) hl
      exact one_le_exp (by grind)
  rw [average_mul] at h2
  have h3 := OrderedRing.mul_le_mul_of_nonneg_left h1 (show 0 ≤ exp (-(l * ((d : R) + w))) by
    have := exp_pos (-(l * ((d : R) + w))); grind)
  have h4 : prod (fun _ => exp (l + 9 * (l * l) / 8)) d = exp ((d : R) * (l + 9 * (l * l) / 8)) := by
    rw [← exp_sum]
    congr 1
    have e : ∀ m : Nat, sum (fun _ => l + 9 * (l * l) / 8) m = (m : R) * (l + 9 * (l * l) / 8) := fun m => by
      induction m with
      | zero => rw [sum_zero, Semiring.natCast_zero]; grind
      | succ m ih => rw [sum_succ, ih, Semiring.natCast_succ]; grind
    exact e d
  rw [h4, ← exp_add] at h3
  refine Std.le_trans h2 (Std.le_trans h3 (exp_mono ?_))
  -- `-l (d + w) + d l + 9 d l²/8 = -l w / 2 = -2 w²/(9 d)`
  have h5 : ell ≤ l * w / 2 := by
    apply le_of_mul_le_mul_right (c := 9 * (d : R)) _ (by grind)
    have e : l * w / 2 * (9 * (d : R)) = l * (9 * (d : R)) * w / 2 := by grind
    rw [e, hlD]
    have := h_radius.2
    grind
  have e : 9 * ((d : R) * (l * l)) / 8 = l * w / 2 := by
    have e1 : 9 * ((d : R) * (l * l)) = l * (9 * (d : R)) * l := by grind
    rw [e1, hlD]; grind
  grind

/-- One radius for all queries: outside a share `exp (-ℓ)` of the outcomes of the dither, `(Σ q_c s_c g_c)² ≤ (d + w) Σ q_c² s_c² / 12` for every
query `q` and all scales `s` at once, where `g_c` is the dither of channel `c` and `w² ≥ 9 d ℓ / 2`: the radius is `κ ς` with
`κ² = d + √(9 d ℓ / 2)` and `ς² = Σ q_c² s_c² / 12`. -/
theorem adaptive_radius (b : Nat) (coord : Nat → Nat) {m d : Nat} {w ell : R}
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_radius : 0 ≤ w ∧ 9 * (d : R) * ell / 2 ≤ w ^ 2) :
    share (fun k => ∃ q s : Nat → R, ((d : R) + w) * (sum (fun c => q c ^ 2 * s c ^ 2) d / 12)
        < sum (fun c => q c * s c * dither b coord k c) d ^ 2) (outcomes b m) ≤ exp (-ell) := by
  have hn := Nat.two_pow_pos b
  have h := fresh_energy_tail (R := R) (fun _ _ => 2 ^ b - 1) coord (n := 2 ^ b) (m := m) (d := d) hn h_coord h_inj
    (fun _ _ _ => show 2 ^ b - 1 < 2 ^ b by omega) (fun _ _ _ _ _ _ _ => rfl) h_radius
  refine Std.le_trans (share_mono fun k _ hk => ?_) h
  obtain ⟨q, s, hk⟩ := hk
  apply Classical.byContradiction
  intro hE
  have e : sum (fun c => 12 * (grid (2 ^ b) (cyclicShift (2 ^ b) (2 ^ b - 1) (draw (2 ^ b) k (coord c)))
      * grid (2 ^ b) (cyclicShift (2 ^ b) (2 ^ b - 1) (draw (2 ^ b) k (coord c))))) d
      = sum (fun c => 12 * (dither b coord k c * dither b coord k c : R)) d :=
    sum_congr fun c _ => by rw [grid_reflect_sq (draw_lt hn k (coord c))]; rfl
  rw [e] at hE
  have h1 := radius_of_energy q s (fun c => dither b coord k c) (show _ ≤ (d : R) + w by grind)
  grind

end WitCert.Core
