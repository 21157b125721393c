import Mathlib.Analysis.SpecialFunctions.Log.Basic
import Mathlib.Data.Real.Sqrt
import WitCert.Instance

/-!
# The finite dither, over ℝ

A `b`-bit dither is uniform on the `2 ^ b` values `Core.grid (2 ^ b) j`. An outcome `k` of a request's dithers is a number below
`Core.outcomes b m`, and channel `c` has the dither `Core.dither b coord k c`. Means are over all outcomes, and `Core.share` is the
proportion of outcomes in which an event happens (`core_share`).
-/

open Finset

namespace WitCert

/-- The mean of `exp (λ g)` over the grid of a `b`-bit dither is at most `exp (λ² (1 - 4^-b) / 24)`: the dither is sub-Gaussian with its
own variance, `(1 - 4^-b) / 12`, as proxy. -/
theorem grid_mgf (b : ℕ) (l : ℝ) :
    (∑ j ∈ range (2 ^ b), Real.exp (l * Core.grid (2 ^ b) j)) / ((2 ^ b : ℕ) : ℝ)
      ≤ Real.exp (l * l * (1 - 1 / 4 ^ b) / 24) := by
  have h := Core.grid_mgf b l
  rw [core_average] at h
  exact h

/-- Weighted sums of independent dithers are sub-Gaussian with proxy `V = Σ a_c² / 12`, if different channels use different coordinates. -/
theorem weighted_sum_mgf (b : ℕ) (a : ℕ → ℝ) (l : ℝ) {m d : ℕ} (coord : ℕ → ℕ) (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    (∑ k ∈ range (Core.outcomes b m), Real.exp (l * ∑ c ∈ range d, a c * Core.dither b coord k c)) / (Core.outcomes b m : ℝ)
      ≤ Real.exp (l * l * ((∑ c ∈ range d, a c * a c) / 12) / 2) := by
  have h := Core.weighted_sum_mgf b a l coord h_coord h_inj
  rw [core_average] at h
  unfold Core.varianceProxy at h
  simp only [core_sum, core_exp] at h
  exact h

/-- The two-sided tail of a weighted sum of independent dithers: the share of outcomes in which `|Σ a_c g_c|` exceeds `u` is at most
`2 exp (-u² / (2V))`, where `V = Σ a_c² / 12` is positive. -/
theorem two_sided_tail (b : ℕ) (a : ℕ → ℝ) {u : ℝ} {m d : ℕ} (coord : ℕ → ℕ) (h_nonneg : 0 ≤ u)
    (h_variance : 0 < (∑ c ∈ range d, a c * a c) / 12) (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    Core.share (fun k => u < |∑ c ∈ range d, a c * Core.dither b coord k c|) (Core.outcomes b m)
      ≤ 2 * Real.exp (-(u * u / (2 * ((∑ c ∈ range d, a c * a c) / 12)))) := by
  have e : Core.varianceProxy a d = (∑ c ∈ range d, a c * a c) / 12 := by
    show Core.sum (fun c => a c * a c) d / 12 = (∑ c ∈ range d, a c * a c) / 12
    rw [core_sum]
  have h := Core.two_sided_tail b a (u := u) (m := m) (d := d) coord h_nonneg (by rw [e]; exact h_variance) h_coord h_inj
  rw [e] at h
  simp only [core_sum, core_abs] at h
  exact h

/-- The law of the dithered residual: as the dither runs over its grid, the residual of an entry `x` with scale `s > 0` is `s (g + θ)`,
where `g` runs over the same grid (cyclically shifted by some `t`), `θ` does not depend on the dither and is at most `1/(2n)`, and the
residual is at most `s/2`. Ties may be broken in any way. -/
theorem grid_dither_law {n : ℕ} (h_pos : 0 < n) {x s : ℝ} (code : ℕ → ℤ) (h_scale : 0 < s)
    (h_round : ∀ j, j < n → |(code j : ℝ) - (x / s + Core.grid n j)| ≤ 1 / 2) :
    (∃ (t : ℕ) (θ : ℝ), t < n ∧ |θ| ≤ 1 / (2 * (n : ℝ)) ∧
      ∀ j, j < n → Core.residual n x s (code j) j = s * (Core.grid n (Core.cyclicShift n t j) + θ)) ∧
    ∀ j, j < n → |Core.residual n x s (code j) j| ≤ s / 2 := by
  have h := Core.grid_dither_law h_pos (x := x) code h_scale (fun j hj => by rw [core_abs]; exact h_round j hj)
  simp only [core_abs] at h
  exact h

/-- Residual entries `s_c ρ_c` with `|ρ_c| ≤ 1/2` move a dot product by at most the square root of `3 d ς²`, `ς² = Σ q_c² s_c² / 12`,
for every query and with no probability at all. -/
theorem adaptive_radius_det (q s ρ : ℕ → ℝ) (d : ℕ) (h_half : ∀ c, c < d → |ρ c| ≤ 1 / 2) :
    (∑ c ∈ range d, q c * s c * ρ c) ^ 2 ≤ 3 * (d : ℝ) * ((∑ c ∈ range d, q c ^ 2 * s c ^ 2) / 12) := by
  have h := Core.adaptive_radius_det q s ρ d (fun c hc => by rw [core_abs]; exact h_half c hc)
  rw [core_sum, core_sum] at h
  exact h

/-- One radius for all queries: outside a share `δ` of the outcomes of the dither,
`|Σ q_c s_c g_c| ≤ κ (Σ q_c² s_c² / 12)^½` for every query `q` and all scales `s` at once, with `κ² = d + √(9 d log(1/δ) / 2)`. -/
theorem adaptive_radius (b : ℕ) (coord : ℕ → ℕ) {m d : ℕ} {δ : ℝ} (h_delta_pos : 0 < δ)
    (h_coord : ∀ c, c < d → coord c < m) (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    Core.share (fun k => ∃ q s : ℕ → ℝ,
        √((d : ℝ) + √(9 * (d : ℝ) * Real.log (1 / δ) / 2)) * √((∑ c ∈ range d, q c ^ 2 * s c ^ 2) / 12)
          < |∑ c ∈ range d, q c * s c * Core.dither b coord k c|) (Core.outcomes b m) ≤ δ := by
  have hsq : ∀ x : ℝ, x ≤ √x ^ 2 := fun x => by
    rcases le_total 0 x with h | h
    · exact (Real.sq_sqrt h).ge
    · exact h.trans (sq_nonneg _)
  have hexp : Real.exp (-Real.log (1 / δ)) = δ := by
    rw [one_div, Real.log_inv, neg_neg, Real.exp_log h_delta_pos]
  have hw0 : 0 ≤ √(9 * (d : ℝ) * Real.log (1 / δ) / 2) := Real.sqrt_nonneg _
  have hw2 : 9 * (d : ℝ) * Real.log (1 / δ) / 2 ≤ √(9 * (d : ℝ) * Real.log (1 / δ) / 2) ^ 2 := hsq _
  generalize √(9 * (d : ℝ) * Real.log (1 / δ) / 2) = w at hw0 hw2 ⊢
  have h := Core.adaptive_radius (R := ℝ) b coord (m := m) (d := d) (w := w) (ell := Real.log (1 / δ)) h_coord h_inj ⟨hw0, hw2⟩
  refine (Core.share_mono fun k _ hk => ?_).trans (h.trans (le_of_eq hexp))
  obtain ⟨q, s, hk⟩ := hk
  have hdw : 0 ≤ (d : ℝ) + w := add_nonneg (Nat.cast_nonneg d) hw0
  have key : ((d : ℝ) + w) * ((∑ c ∈ range d, q c ^ 2 * s c ^ 2) / 12)
      < (∑ c ∈ range d, q c * s c * Core.dither b coord k c) ^ 2 := by
    by_contra hn
    have h1 := Real.abs_le_sqrt (not_lt.1 hn)
    rw [Real.sqrt_mul hdw] at h1
    exact absurd hk (not_lt.2 h1)
  refine ⟨q, s, ?_⟩
  rw [core_sum, core_sum]
  exact key

end WitCert
