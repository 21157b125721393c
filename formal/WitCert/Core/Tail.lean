import WitCert.Core.GridMgf

/-!
# Tails of sums of independent dithers

`weighted_sum_mgf`: over all outcomes, the average of `exp (λ Σ a_c g_c)` is at most `exp (λ² V / 2)` with `V = Σ a_c² / 12`, if the
dithers `g_c` belong to different coordinates. `two_sided_tail`: hence the share of outcomes with `|Σ a_c g_c| > u` is at most
`2 exp (-u² / (2V))`. The forms that end in `_perm` let every channel see its grid through a permutation of the indices, as
residuals do (`grid_dither_law`).
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The variance proxy `Σ a_c² / 12` of a weighted sum of `d` independent dithers. -/
def varianceProxy {R : Type u} [Field R] (a : Nat → R) (d : Nat) : R := sum (fun c => a c * a c) d / 12

/-- A variance proxy is nonnegative. -/
theorem varianceProxy_nonneg (a : Nat → R) (d : Nat) : 0 ≤ varianceProxy a d := by
  have h := sum_nonneg (n := d) fun c _ => mul_self_nonneg (a c)
  have h01 := OrderedRing.zero_lt_one (R := R)
  exact div_nonneg h (by grind)

/-- If the variance proxy is 0, so is every weight. -/
theorem weight_eq_zero {a : Nat → R} {d : Nat} (h_zero : varianceProxy a d = 0) {c : Nat} (hc : c < d) : a c = 0 := by
  have h1 := term_le_sum (fun c _ => mul_self_nonneg (a c)) hc
  have h2 : sum (fun c => a c * a c) d = 0 := by unfold varianceProxy at h_zero; grind
  have h3 := mul_self_nonneg (a c)
  have h4 : a c * a c = 0 := by grind
  grind

variable [Exp R]

/-- Proxies of independent terms add up: if `exp (λ h_c)` is on average at most `exp (λ² v_c / 2)` for every channel, then the sum
over channels that look at different coordinates has `exp (λ Σ h_c)` on average at most `exp (λ² Σ v_c / 2)`. -/
theorem independent_sum_mgf (h : Nat → Nat → R) (v : Nat → R) (l : R) {n m d : Nat} (coord : Nat → Nat) (h_pos : 0 < n)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_mgf : ∀ c, c < d → average (fun j => exp (l * h c j)) n ≤ exp (l * l * v c / 2)) :
    average (fun k => exp (l * sum (fun c => h c (draw n k (coord c))) d)) (n ^ m) ≤ exp (l * l * sum v d / 2) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have e1 : ∀ k, exp (l * sum (fun c => h c (draw n k (coord c))) d)
      = prod (fun c => (fun j => exp (l * h c j)) (draw n k (coord c))) d := fun k => by
    rw [← sum_mul, exp_sum]
  have e2 : exp (l * l * sum v d / 2) = prod (fun c => exp (l * l * v c / 2)) d := by
    rw [← exp_sum, show l * l * sum v d / 2 = l * l / 2 * sum v d by grind, ← sum_mul]
    congr 1
    exact sum_congr fun c _ => by grind
  rw [average_congr fun k _ => e1 k, average_prod_draw (fun c j => exp (l * h c j)) coord h_pos h_coord h_inj, e2]
  refine prod_le (fun c _ => ?_) h_mgf
  have h0 : average (fun _ => (0 : R)) n ≤ average (fun j => exp (l * h c j)) n :=
    average_le fun j _ => by have := exp_pos (l * h c j); grind
  rw [average_eq_zero fun _ _ => rfl] at h0
  exact h0

/-- The share of outcomes in which a quantity exceeds `u` is at most `exp (λ² V / 2 - λ u)`, for every `λ ≥ 0`, if the average of
`exp (λ X)` is at most `exp (λ² V / 2)` (finite Markov inequality). -/
theorem one_sided_tail (X : Nat → R) (N : Nat) {l u V : R} (h_nonneg : 0 ≤ l)
    (h_mgf : average (fun k => exp (l * X k)) N ≤ exp (l * l * V / 2)) :
    share (fun k => u < X k) N ≤ exp (l * l * V / 2 - l * u) := by
  have h1 : share (fun k => u < X k) N ≤ average (fun k => exp (-(l * u)) * exp (l * X k)) N :=
    share_le_average (fun k _ => by
        have := OrderedRing.mul_pos (exp_pos (-(l * u))) (exp_pos (l * X k)); grind)
      (fun k _ hk => by
        rw [← exp_add]
        have := OrderedRing.mul_le_mul_of_nonneg_left (show u ≤ X k by grind) h_nonneg
        exact one_le_exp (by grind))
  rw [average_mul] at h1
  have h2 := OrderedRing.mul_le_mul_of_nonneg_left h_mgf (show 0 ≤ exp (-(l * u)) by have := exp_pos (-(l * u)); grind)
  rw [← exp_add, show -(l * u) + l * l * V / 2 = l * l * V / 2 - l * u by grind] at h2
  grind

variable [Archimedean R]

/-- A weighted sum of independent dithers, each seen through a permutation of its grid, is sub-Gaussian with proxy `Σ a_c² / 12`. -/
theorem weighted_sum_mgf_perm (b : Nat) (a : Nat → R) (l : R) {m d : Nat} (coord : Nat → Nat) (perm : Nat → Nat → Nat)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_perm : ∀ c, c < d → Permutes (2 ^ b) (perm c)) :
    average (fun k => exp (l * sum (fun c => a c * grid (2 ^ b) (perm c (draw (2 ^ b) k (coord c)))) d))
      (outcomes b m) ≤ exp (l * l * varianceProxy a d / 2) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h := independent_sum_mgf (n := 2 ^ b) (m := m) (d := d)
    (fun c j => a c * grid (2 ^ b) (perm c j)) (fun c => a c * a c / 12) l coord
    (Nat.two_pow_pos b) h_coord h_inj fun c hc => by
      have e : ∀ j, l * (a c * grid (2 ^ b) (perm c j))
          = l * a c * grid (2 ^ b) (perm c j) := fun j => by grind
      rw [average_congr fun j _ => by rw [e j]]
      have h2 := grid_mgf b (l * a c)
      have h3 : average (fun j => exp (l * a c * grid (2 ^ b) (perm c j))) (2 ^ b)
          = average (fun j => exp (l * a c * grid (2 ^ b) j)) (2 ^ b) := by
        unfold average
        rw [sum_perm (fun j => exp (l * a c * grid (2 ^ b) j)) (h_perm c hc)]
      rw [h3]
      refine Std.le_trans h2 (exp_mono ?_)
      have h4 : 0 < 1 / (4 : R) ^ b := div_pos h01 (by
        have := OrderedRing.mul_pos (pow_two_pos (R := R) b) (pow_two_pos b); rw [four_pow_eq]; exact this)
      have h5 := OrderedRing.mul_nonneg (mul_self_nonneg (l * a c)) (show 0 ≤ 1 / (4 : R) ^ b by grind)
      generalize 1 / (4 : R) ^ b = q at *
      grind
  have e : sum (fun c => a c * a c / 12) d = varianceProxy a d := by
    unfold varianceProxy
    simp only [Field.div_eq_mul_inv]
    rw [sum_mul_right]
  rw [e] at h
  exact h

/-- The two-sided tail of a weighted sum of independent dithers, each seen through a permutation of its grid: the share of outcomes in
which `|Σ a_c g_c|` exceeds `u` is at most `2 exp (-u² / (2V))`, where `V = Σ a_c² / 12` is positive. -/
theorem two_sided_tail_perm (b : Nat) (a : Nat → R) {u : R} {m d : Nat} (coord : Nat → Nat) (perm : Nat → Nat → Nat)
    (h_nonneg : 0 ≤ u) (h_variance : 0 < varianceProxy a d)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_perm : ∀ c, c < d → Permutes (2 ^ b) (perm c)) :
    share (fun k => u < abs (sum (fun c => a c * grid (2 ^ b) (perm c (draw (2 ^ b) k (coord c)))) d))
      (outcomes b m) ≤ 2 * exp (-(u * u / (2 * varianceProxy a d))) := by
  have hmgf := fun l => weighted_sum_mgf_perm b a l coord perm h_coord h_inj h_perm
  generalize hX : (fun k => sum (fun c => a c * grid (2 ^ b) (perm c (draw (2 ^ b) k (coord c)))) d) = X
  have hXk : ∀ k, sum (fun c => a c * grid (2 ^ b) (perm c (draw (2 ^ b) k (coord c)))) d = X k :=
    fun k => congrFun hX k
  simp only [hXk] at hmgf ⊢
  generalize varianceProxy a d = V at *
  generalize outcomes b m = N at *
  have hl : 0 ≤ u / V := div_nonneg h_nonneg h_variance
  have hlV := div_mul_self u h_variance
  -- the optimal λ is u / V
  have e : u / V * (u / V) * V / 2 - u / V * u = -(u * u / (2 * V)) := by
    have e1 : u / V * (u / V) * V = u / V * u := by rw [Semiring.mul_assoc, hlV]
    rw [e1]; grind
  have h1 := one_sided_tail X N (u := u) hl (hmgf (u / V))
  have h2 := one_sided_tail (fun k => -X k) N (u := u) (V := V) hl (by
    have h3 := hmgf (-(u / V))
    rw [show -(u / V) * -(u / V) = u / V * (u / V) by grind] at h3
    rw [average_congr fun k _ => by rw [show u / V * -X k = -(u / V) * X k by grind]]
    exact h3)
  rw [e] at h1 h2
  have h4 : (share (fun k => u < abs (X k)) N : R) ≤ share (fun k => u < X k) N + share (fun k => u < -X k) N := by
    unfold share
    rw [← average_add]
    refine average_le fun k _ => ?_
    have h01 := OrderedRing.zero_lt_one (R := R)
    have := abs_le (x := X k) (b := u)
    grind
  grind

/-- When every weight is 0 (variance proxy 0), no outcome has `|Σ a_c g_c| > u`, for any `u ≥ 0`. -/
theorem two_sided_tail_zero_perm (b : Nat) (a : Nat → R) {u : R} {m d : Nat} (coord : Nat → Nat) (perm : Nat → Nat → Nat)
    (h_nonneg : 0 ≤ u) (h_variance : varianceProxy a d = 0) :
    share (fun k => u < abs (sum (fun c => a c * grid (2 ^ b) (perm c (draw (2 ^ b) k (coord c)))) d))
      (outcomes b m) = (0 : R) :=
  share_eq_zero fun k _ => by
    rw [sum_eq_zero fun c hc => by rw [weight_eq_zero h_variance hc]; grind, abs_zero]
    grind

/-- The tail at a stated confidence: if `u ≥ 0` and `u² ≥ 2 V ℓ`, where `V = Σ a_c² / 12`, then the share of outcomes in which
`|Σ a_c g_c|`, each dither seen through a permutation of its grid, exceeds `u` is at most `2 exp (-ℓ)`. -/
theorem two_sided_tail_radius_perm (b : Nat) (a : Nat → R) {u ell : R} {m d : Nat} (coord : Nat → Nat) (perm : Nat → Nat → Nat)
    (h_nonneg : 0 ≤ u) (h_radius : 2 * varianceProxy a d * ell ≤ u * u)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c')
    (h_perm : ∀ c, c < d → Permutes (2 ^ b) (perm c)) :
    share (fun k => u < abs (sum (fun c => a c * grid (2 ^ b) (perm c (draw (2 ^ b) k (coord c)))) d))
      (outcomes b m) ≤ 2 * exp (-ell) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h0 := varianceProxy_nonneg a d
  by_cases hV : 0 < varianceProxy a d
  · have h := two_sided_tail_perm b a coord perm h_nonneg hV h_coord h_inj h_perm
    have h1 : ell ≤ u * u / (2 * varianceProxy a d) := le_div_of_mul_le (by grind) (by grind)
    have h2 := exp_mono (show -(u * u / (2 * varianceProxy a d)) ≤ -ell by grind)
    grind
  · rw [two_sided_tail_zero_perm b a coord perm h_nonneg (by grind)]
    have := exp_pos (-ell)
    grind

/-- A weighted sum of independent dithers is sub-Gaussian with proxy `V = Σ a_c² / 12`: over all outcomes, the average of
`exp (λ Σ a_c g_c)` is at most `exp (λ² V / 2)`, if different channels use different coordinates. -/
theorem weighted_sum_mgf (b : Nat) (a : Nat → R) (l : R) {m d : Nat} (coord : Nat → Nat)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    average (fun k => exp (l * sum (fun c => a c * dither b coord k c) d)) (outcomes b m)
      ≤ exp (l * l * varianceProxy a d / 2) :=
  weighted_sum_mgf_perm b a l coord (fun _ j => j) h_coord h_inj fun _ _ => permutes_id _

/-- The two-sided tail of a weighted sum of independent dithers: the share of outcomes in which `|Σ a_c g_c|` exceeds `u` is at most
`2 exp (-u² / (2V))`, where `V = Σ a_c² / 12` is positive and different channels use different coordinates. -/
theorem two_sided_tail (b : Nat) (a : Nat → R) {u : R} {m d : Nat} (coord : Nat → Nat)
    (h_nonneg : 0 ≤ u) (h_variance : 0 < varianceProxy a d)
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    share (fun k => u < abs (sum (fun c => a c * dither b coord k c) d)) (outcomes b m)
      ≤ 2 * exp (-(u * u / (2 * varianceProxy a d))) :=
  two_sided_tail_perm b a coord (fun _ j => j) h_nonneg h_variance h_coord h_inj fun _ _ => permutes_id _

/-- The two-sided tail when every weight is 0 (`V = 0`): no outcome has `|Σ a_c g_c|` above `u`, for any `u ≥ 0`. -/
theorem two_sided_tail_zero (b : Nat) (a : Nat → R) {u : R} {m d : Nat} (coord : Nat → Nat)
    (h_nonneg : 0 ≤ u) (h_variance : varianceProxy a d = 0) :
    share (fun k => u < abs (sum (fun c => a c * dither b coord k c) d)) (outcomes b m) = (0 : R) :=
  two_sided_tail_zero_perm b a coord (fun _ j => j) h_nonneg h_variance

end WitCert.Core
