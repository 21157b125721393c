import WitCert.Core.GridLaw
import WitCert.Core.Tail

/-!
# The logit error of one token

`dithered_dot_tail`: a dot product of fixed weights with the residuals of one token exceeds its radius plus the bias in a share of
at most `2 exp (-ℓ)` of the outcomes. `adaptive_radius_det`: with radius `√(3d) ς` it never does.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- Residual entries `s_c ρ_c` with `|ρ_c| ≤ 1/2` move a dot product by at most the square root of `3 d ς²`, `ς² = Σ q_c² s_c² / 12`,
for every query and with no probability at all. -/
theorem adaptive_radius_det (q s ρ : Nat → R) (d : Nat) (h_half : ∀ c, c < d → abs (ρ c) ≤ 1 / 2) :
    sum (fun c => q c * s c * ρ c) d ^ 2 ≤ 3 * (d : R) * (sum (fun c => q c ^ 2 * s c ^ 2) d / 12) := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have h1 := cauchy (fun c => q c * s c) ρ d
  have h2 : sum (fun c => ρ c * ρ c) d ≤ (d : R) * (1 / 4) := by
    have h3 : ∀ c, c < d → ρ c * ρ c ≤ 1 / 4 := fun c hc => by
      have h4 := le_of_abs_le (h_half c hc)
      have h5 := OrderedRing.mul_nonneg (show 0 ≤ 1 / 2 - ρ c by grind) (show 0 ≤ 1 / 2 + ρ c by grind)
      grind
    refine Std.le_trans (sum_le h3) ?_
    have e : ∀ m : Nat, sum (fun _ => (1 / 4 : R)) m = (m : R) * (1 / 4) := fun m => by
      induction m with
      | zero => rw [sum_zero, Semiring.natCast_zero]; grind
      | succ m ih => rw [sum_succ, ih, Semiring.natCast_succ]; grind
    rw [e]; grind
  have h3 := sum_nonneg (n := d) fun c _ => mul_self_nonneg (q c * s c)
  have h4 := OrderedRing.mul_le_mul_of_nonneg_left h2 h3
  have e : sum (fun c => q c ^ 2 * s c ^ 2) d = sum (fun c => q c * s c * (q c * s c)) d := sum_congr fun c _ => by grind
  rw [e]
  grind

variable [Exp R] [Archimedean R]

/-- The logit error of one token: if, as the dither of channel `c` runs over its grid, the residual entry `e c` runs over `s (g + θ)`
with `|θ| ≤ τ` (`grid_dither_law`), then the share of outcomes in which `|Σ w_c e_c|` exceeds `radius + Σ |w_c| s_c τ` is at most
`2 exp (-ℓ)`, where `radius² ≥ 2 ℓ Σ w_c² s_c² / 12`. -/
theorem dithered_dot_tail (b : Nat) (w s : Nat → R) (e : Nat → Nat → R) {τ radius ell : R} {m d : Nat} (coord : Nat → Nat)
    (h_nonneg : 0 ≤ radius) (h_radius : 2 * varianceProxy (fun c => w c * s c) d * ell ≤ radius * radius)
    (h_scale : ∀ c, c < d → 0 ≤ s c)
    (h_law : ∀ c, c < d → ∃ (t : Nat) (θ : R), t < 2 ^ b ∧ abs θ ≤ τ ∧
      ∀ j, j < 2 ^ b → e c j = s c * (grid (2 ^ b) (cyclicShift (2 ^ b) t j) + θ))
    (h_coord : ∀ c, c < d → coord c < m)
    (h_inj : ∀ c c', c < d → c' < d → coord c = coord c' → c = c') :
    share (fun k => radius + sum (fun c => abs (w c) * s c) d * τ < abs (sum (fun c => w c * e c (draw (2 ^ b) k (coord c))) d))
      (outcomes b m) ≤ 2 * exp (-ell) := by
  have h_choice : ∀ c, ∃ p : Nat × R, c < d → p.1 < 2 ^ b ∧ abs p.2 ≤ τ ∧
      ∀ j, j < 2 ^ b → e c j = s c * (grid (2 ^ b) (cyclicShift (2 ^ b) p.1 j) + p.2) := fun c => by
    by_cases hc : c < d
    · obtain ⟨t, θ, h⟩ := h_law c hc
      exact ⟨(t, θ), fun _ => h⟩
    · exact ⟨(0, 0), fun h => absurd h hc⟩
  obtain ⟨p, hp⟩ := Classical.axiomOfChoice h_choice
  refine Std.le_trans (share_mono fun k _ hk => ?_)
    (two_sided_tail_radius_perm b (fun c => w c * s c) coord (fun c => cyclicShift (2 ^ b) (p c).1) h_nonneg h_radius h_coord h_inj
      fun c hc => permutes_cyclicShift (hp c hc).1)
  -- the bias takes care of θ
  have h1 : sum (fun c => w c * e c (draw (2 ^ b) k (coord c))) d
      = sum (fun c => w c * s c * grid (2 ^ b) (cyclicShift (2 ^ b) (p c).1 (draw (2 ^ b) k (coord c)))) d
        + sum (fun c => w c * s c * (p c).2) d := by
    rw [← sum_add]
    refine sum_congr fun c hc => ?_
    rw [(hp c hc).2.2 _ (draw_lt (Nat.two_pow_pos b) _ _)]; grind
  have h2 : abs (sum (fun c => w c * s c * (p c).2) d) ≤ sum (fun c => abs (w c) * s c) d * τ := by
    refine Std.le_trans (abs_sum_le _ _) ?_
    rw [← sum_mul_right]
    refine sum_le fun c hc => ?_
    rw [abs_mul, abs_mul, abs_of_nonneg (h_scale c hc)]
    exact OrderedRing.mul_le_mul_of_nonneg_left (hp c hc).2.1 (OrderedRing.mul_nonneg (abs_nonneg _) (h_scale c hc))
  rw [h1] at hk
  have h3 := abs_add_le (sum (fun c => w c * s c * grid (2 ^ b) (cyclicShift (2 ^ b) (p c).1 (draw (2 ^ b) k (coord c)))) d)
    (sum (fun c => w c * s c * (p c).2) d)
  grind

end WitCert.Core
