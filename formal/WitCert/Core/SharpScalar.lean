import WitCert.Core.Order
/-!
# The three maximisations behind the total-variation bounds

Total variation is `b - s`, where `b` is the served mass and `s` the exact mass of the tokens on which served attention is larger.
Each lemma bounds `b - s` from one inequality that links `b`, `s` and the accumulator. Numbers only: no sums, no exponential.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false

variable {R : Type u} [Field R] [LE R] [LT R] [Std.LawfulOrderLT R] [Std.IsLinearOrder R] [OrderedRing R]

/-- The key estimate for `A = 1 + d ≤ 2`: `U V ≤ d + a b` where `U ≥ a` and `V ≥ b` have sum `1 + d`. -/
theorem sharp_scalar_prod {a b d x z : R} (hab : a + b = 1) (ha : 0 ≤ a) (hb : 0 ≤ b) (hx : 0 ≤ x) (hz : 0 ≤ z)
    (hxz : x + z = d) (hd : d ≤ 1) : (a + x) * (b + z) ≤ d + a * b := by
  have h1 := OrderedRing.mul_le_mul_of_nonneg_left (show z ≤ 1 by grind) hx
  have h2 := OrderedRing.mul_le_mul_of_nonneg_right (show x ≤ 1 by grind) hz
  have h3 := OrderedRing.mul_le_mul_of_nonneg_left h1 ha
  have h4 := OrderedRing.mul_le_mul_of_nonneg_left h2 hb
  have h5 : a = 1 - b := by grind
  subst h5
  grind

/-- The maximisation for `A ≤ 2`, with `A = 1 + d`: `(b - s)(1 + d) ≤ d`. -/
theorem sharp_scalar_small {a b s d U V : R} (hab : a + b = 1) (ha : 0 ≤ a) (hb : 0 ≤ b) (hs : 0 ≤ s)
    (hU : a ≤ U) (hV : b ≤ V) (hA : U + V = 1 + d) (hd : d ≤ 1)
    (h : (1 - s) * (b * b) ≤ s * (U * V)) : (b - s) * (1 + d) ≤ d := by
  have hd0 : 0 ≤ d := by grind
  have hUV := sharp_scalar_prod (x := U - a) (z := V - b) hab ha hb (by grind) (by grind) (d := d) (by grind) hd
  rw [show a + (U - a) = U by grind, show b + (V - b) = V by grind] at hUV
  have hbd : b * b ≤ s * (b + d) := by
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left hUV hs
    have h5 : a = 1 - b := by grind
    subst h5
    grind
  by_cases h0 : b + d = 0
  · have hb0 : b = 0 := by grind
    have hd0' : d = 0 := by grind
    subst hb0; subst hd0'
    grind
  · have h0' : 0 < b + d := by grind
    have h1 : (b - s) * (b + d) ≤ b * d := by grind
    have h2 := OrderedRing.mul_le_mul_of_nonneg_right h1 (show 0 ≤ 1 + d by grind)
    have h3 := OrderedRing.mul_nonneg (OrderedRing.mul_nonneg hd0 hd0) (show 0 ≤ 1 - b by grind)
    apply le_of_mul_le_mul_right (c := b + d) _ h0'
    grind

/-- The maximisation with no condition on `A`, from `U V ≤ X`: `(b - s)(X + 1) ≤ X`. -/
theorem sharp_scalar {b s X : R} (hb : 0 ≤ b) (hb1 : b ≤ 1) (hs : 0 ≤ s) (hX : 0 ≤ X)
    (h : (1 - s) * (b * b) ≤ s * X) : (b - s) * (X + 1) ≤ X := by
  have hbb := mul_self_nonneg b
  by_cases h0 : X + b * b = 0
  · have hX0 : X = 0 := by grind
    have hb0 : b ≤ 0 := le_of_mul_self_le (by grind) (by grind)
    have hb0' : b = 0 := by grind
    subst hX0; subst hb0'
    grind
  · have h0' : 0 < X + b * b := by grind
    have h1 : (b - s) * (X + b * b) ≤ b * (X + b * b) - b * b := by grind
    have h2 := OrderedRing.mul_le_mul_of_nonneg_right h1 (show 0 ≤ X + 1 by grind)
    have h3 : 0 ≤ X * X - X * b + X * (b * b) + b * b := by
      have h4 := mul_self_nonneg (X - b)
      have h5 := OrderedRing.mul_nonneg hX hb
      have h6 := OrderedRing.mul_nonneg hX hbb
      grind
    have h4 := OrderedRing.mul_nonneg (show 0 ≤ 1 - b by grind) h3
    apply le_of_mul_le_mul_right (c := X + b * b) _ h0'
    grind

/-- The maximisation for weights in `[1/E, E]`: `(b - s)(E + 1) ≤ E - 1`. -/
theorem tanh_scalar {a b s E : R} (hab : a + b = 1) (ha : 0 ≤ a) (hE : 1 ≤ E)
    (h : (1 - s) * b ≤ s * (a * (E * E))) : (b - s) * (E + 1) ≤ E - 1 := by
  have h01 := OrderedRing.zero_lt_one (R := R)
  have hE2 : 1 * 1 ≤ E * E := mul_self_le (by grind) hE
  have hM : 0 < a * (E * E) + b := by
    have h1 := OrderedRing.mul_le_mul_of_nonneg_left hE2 ha
    grind
  have h5 : a = 1 - b := by grind
  subst h5
  have h1 : (b - s) * ((1 - b) * (E * E) + b) ≤ b * ((1 - b) * (E * E) + b) - b := by grind
  have h2 := OrderedRing.mul_le_mul_of_nonneg_right h1 (show 0 ≤ E + 1 by grind)
  have h3 := OrderedRing.mul_nonneg (show 0 ≤ E - 1 by grind) (mul_self_nonneg ((1 - b) * E - b))
  have h4 : (E - 1) * ((1 - b) * (E * E) + b) - (b * ((1 - b) * (E * E) + b) - b) * (E + 1)
      = (E - 1) * (((1 - b) * E - b) * ((1 - b) * E - b)) := by grind
  apply le_of_mul_le_mul_right (c := (1 - b) * (E * E) + b) _ hM
  grind

end WitCert.Core
