import WitCert.Core.Defs
import WitCert.Core.GridLaw
import WitCert.Core.GridMoments
import WitCert.Core.Ru16Defs

/-!
# The definitions, run on rational numbers

Everything that a kernel computes for the dither, the scales and the meter, as functions that Lean can run, with small runs that the
kernel of Lean checks (`example ... := by decide +kernel`; change a number and it fails). The dither's grid, average and residual are
the definitions of the theorems themselves, at the rational numbers; where a definition of the theorems cannot be run (it decides an
order on an abstract field), the executable twin is proved equal to it.
-/
open Lean.Grind

namespace WitCert.Core
set_option linter.unusedSectionVars false
attribute [local instance] Semiring.natCast Ring.intCast

/-! ### Rounding, and the dithered round trip -/

/-- A rational number rounded to a nearest integer, ties to even: the rounding of the kernels. -/
def roundHalfEven (y : Rat) : Int :=
  if y - y.floor < 1 / 2 then y.floor
  else if 1 / 2 < y - y.floor then y.floor + 1
  else if y.floor % 2 = 0 then y.floor else y.floor + 1

/-- The code of a key entry `x` with scale `s` when its dither has index `j`: `x/s + ξ` rounded. -/
def ditherCode (n : Nat) (x s : Rat) (j : Nat) : Int := roundHalfEven (x / s + grid n j)

/-- Rounding half to even gives an integer within 1/2. -/
theorem roundHalfEven_close (y : Rat) : abs ((roundHalfEven y : Rat) - y) ≤ 1 / 2 := by
  have h1 : (y.floor : Rat) ≤ y := Rat.floor_le y
  have h2 : y < ((y.floor + 1 : Int) : Rat) := Rat.lt_floor_add_one y
  rw [Ring.intCast_add, Ring.intCast_one] at h2
  have h3 : ∀ f : Int, ((f + 1 : Int) : Rat) = (f : Rat) + 1 := fun f => by rw [Ring.intCast_add, Ring.intCast_one]
  have h4 : (y - @Int.cast Rat Rat.instIntCast y.floor : Rat) = y - (y.floor : Rat) := rfl
  unfold roundHalfEven
  rw [h4]
  generalize y.floor = f at *
  split
  · apply abs_le <;> grind
  · split
    · rw [h3]; apply abs_le <;> grind
    · split
      · apply abs_le <;> grind
      · rw [h3]; apply abs_le <;> grind

/-- The law of the dithered residual holds for the executable round trip. -/
theorem ditherCode_law {n : Nat} (h_pos : 0 < n) {x s : Rat} (h_scale : 0 < s) :
    (∃ (t : Nat) (θ : Rat), t < n ∧ abs θ ≤ 1 / (2 * (n : Rat)) ∧
      ∀ j, j < n → residual n x s (ditherCode n x s j) j = s * (grid n (cyclicShift n t j) + θ)) ∧
    ∀ j, j < n → abs (residual n x s (ditherCode n x s j) j) ≤ s / 2 :=
  grid_dither_law h_pos (ditherCode n x s) h_scale fun _ _ => roundHalfEven_close _

-- Ties go to the even neighbour.
example : roundHalfEven (5 / 2) = 2 ∧ roundHalfEven (7 / 2) = 4 ∧ roundHalfEven (-5 / 2) = -2 ∧ roundHalfEven (-5 / 3) = -2 := by
  decide +kernel

-- The 8-bit grid runs from -255/512 to 255/512, with mean 0 and variance (1 - 1/65536)/12.
example : (grid 256 0 : Rat) = -255 / 512 ∧ (grid 256 255 : Rat) = 255 / 512 := by decide +kernel
example : average (fun j => (grid 256 j : Rat)) 256 = 0 := by decide +kernel
example : average (fun j => (grid 256 j : Rat) * grid 256 j) 256 = (1 - 1 / 65536) / 12 := by decide +kernel

-- An outcome is a number; its digits in base 256 are the dithers of the coordinates.
example : draw 256 0x7f03ff 0 = 0xff ∧ draw 256 0x7f03ff 1 = 0x03 ∧ draw 256 0x7f03ff 2 = 0x7f := by decide

-- The key entry 3/10 with scale 1/8, under all 256 dithers: its code is 2 or 3, and its residual over the scale runs over the grid,
-- shifted cyclically by 153 and moved by -1/640, less than half a cell, 1/512.
example : ∀ j, j < 256 → ditherCode 256 (3 / 10) (1 / 8) j = (if j < 154 then 2 else 3) := by decide +kernel
example : ∀ j, j < 256 → residual 256 (3 / 10 : Rat) (1 / 8) (ditherCode 256 (3 / 10) (1 / 8) j) j
    = 1 / 8 * (grid 256 (cyclicShift 256 153 j) + -1 / 640) := by decide +kernel

-- A tie, with 4 bits: with x/s = 1/32, the last dither puts x/s + ξ halfway between 0 and 1. Rounded to 0 (half to even), θ is one end
-- of its range; rounded to 1 (half up), θ is the other end and the shift differs by one. The law holds either way.
example : (1 / 32 : Rat) + grid 16 15 = 1 / 2 := by decide +kernel
example : ∀ j, j < 16 → residual 16 (1 / 32 : Rat) 1 (ditherCode 16 (1 / 32) 1 j) j
    = 1 * (grid 16 (cyclicShift 16 15 j) + -1 / 32) := by decide +kernel
example : ∀ j, j < 16 → residual 16 (1 / 32 : Rat) 1 (if j = 15 then 1 else 0) j
    = 1 * (grid 16 (cyclicShift 16 14 j) + 1 / 32) := by decide +kernel

-- Codes are limited to ±127.
example : clip 127 128 = 127 ∧ clip 127 (-200) = -127 ∧ clip 127 5 = 5 := by decide

/-! ### Rounding up to binary16, in units of 2⁻²⁴ -/

-- 1/3 rounds up to 1366 · 2⁻¹², 1 and 65504 are kept, the least fraction above 1 rounds up to 1 + 2⁻¹⁰, and 65504.5 overflows.
example : ru16 1 3 = some (1366 * 2 ^ 12) ∧ ru16 1 1 = some (2 ^ 24) ∧ ru16 65504 1 = some halfMax := by decide +kernel
example : ru16 (2 ^ 40 + 1) (2 ^ 40) = some (2 ^ 24 + 2 ^ 14) ∧ ru16 131009 2 = none := by decide +kernel

/-! ### Total variation and the meter -/

/-- The absolute value of a rational number. -/
def absRat (x : Rat) : Rat := if 0 ≤ x then x else -x

/-- Total variation of rational distributions. -/
def tvRat (p q : Nat → Rat) (n : Nat) : Rat := sum (fun t => absRat (p t - q t)) n / 2

/-- The sharp bound of a rational accumulator. -/
def sharpRat (A : Rat) : Rat := if A ≤ 2 then 1 - 1 / A else A ^ 2 / (A ^ 2 + 4)

/-- The half-angle bound as a function of `E = exp C`. -/
def tanhHalfRat (E : Rat) : Rat := (E - 1) / (E + 1)

/-- The meter as a function of `A` and `E = exp C`. -/
def meterRat (A E : Rat) : Rat := if sharpRat A ≤ tanhHalfRat E then sharpRat A else tanhHalfRat E

/-- The executable total variation is the one of the theorems. -/
theorem tvRat_eq (p q : Nat → Rat) (n : Nat) : tvRat p q n = tv p q n := by
  have h : ∀ x : Rat, absRat x = abs x := fun x => by
    unfold absRat abs
    by_cases hx : 0 ≤ x
    · rw [if_pos hx, if_pos hx]
    · rw [if_neg hx, if_neg hx]
  unfold tvRat tv
  rw [sum_congr fun t _ => h (p t - q t)]

/-- The executable sharp bound is the one of the theorems. -/
theorem sharpRat_eq (A : Rat) : sharpRat A = sharp A := by
  unfold sharpRat sharp
  by_cases hA : A ≤ 2
  · rw [if_pos hA, if_pos hA]
  · rw [if_neg hA, if_neg hA]

/-- The executable meter is the smaller of the two bounds, as in the theorems. -/
theorem meterRat_eq (A E : Rat) : meterRat A E = minimum (sharp A) ((E - 1) / (E + 1)) := by
  unfold meterRat minimum
  rw [sharpRat_eq]
  unfold tanhHalfRat
  by_cases h : sharp A ≤ (E - 1) / (E + 1)
  · rw [if_pos h, if_pos h]
  · rw [if_neg h, if_neg h]

-- Two tokens of weight 1/2 whose logits err by log 2 in opposite directions: exact attention is (1/5, 4/5), total variation is 3/10,
-- and the meter reports 1/3, from A = 2 and exp C = 2. The e-form bound (A² - 1)/2 would say 3/2.
example : tvRat (fun t => if t = 0 then 1 / 5 else 4 / 5) (fun _ => 1 / 2) 2 = 3 / 10 := by decide +kernel
example : sharpRat 2 = 1 / 2 ∧ tanhHalfRat 2 = 1 / 3 ∧ meterRat 2 2 = 1 / 3 := by decide +kernel

-- The sharp bound is continuous at A = 2 and stays below 1 for large A.
example : sharpRat (2001 / 1000) = 4004001 / 8004001 ∧ sharpRat 1000 = 250000 / 250001 := by decide +kernel

end WitCert.Core
