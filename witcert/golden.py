"""Every bound again, one number at a time, to 50 digits: the mathematics as it is written, for reading and for
checking.

Lists of numbers in, one mpmath number out. Nothing is shared with :mod:`witcert.bounds`: no log domain, no
rearrangement, no allowance. Arithmetic carries ``GUARD`` more digits than the 50 that are promised, so that
differences such as 1 - 1/A keep 50 correct digits as long as A - 1 exceeds 1e-50. Floats are taken as the exact
binary fractions that they are.

Throughout, p is the served attention, eps the logit errors (served minus exact), c bounds with |eps_t| <= c_t.
Weights that do not sum to exactly 1, as floats never do, are divided by their sum first.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath

DIGITS = 50
GUARD = 50

mp = mpmath.MPContext()
mp.dps = DIGITS + GUARD

Number = Any
"""An int, float, Fraction or mpmath number."""

Numbers = Sequence[Number]


def number(x: Number) -> Number:
    """The exact value of x as an mpmath number (fractions to working precision)."""
    return mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else mp.mpf(x)


def normalized(p: Numbers) -> list[Number]:
    """p divided by its sum."""
    total = mp.fsum(number(x) for x in p)
    return [number(x) / total for x in p]


def average(p: Numbers, values: Numbers) -> Number:
    """Sum of p_t x_t, for p that sums to 1."""
    return mp.fsum(a * b for a, b in zip(p, values, strict=True))


# ---- what is bounded


def exact_attention(p: Numbers, eps: Numbers) -> list[Number]:
    """The attention without the errors: proportional to p_t e^-eps_t."""
    return normalized([a * mp.exp(-number(e)) for a, e in zip(normalized(p), eps, strict=True)])


def total_variation(p: Numbers, q: Numbers) -> Number:
    """Half the sum of |p_t - q_t|."""
    return mp.fsum(abs(a - b) for a, b in zip(normalized(p), normalized(q), strict=True)) / 2


def total_variation_of_errors(p: Numbers, eps: Numbers) -> Number:
    """The total variation that the logit errors cause."""
    return total_variation(exact_attention(p, eps), p)


def worst_case_tv(p: Numbers, c: Numbers) -> Number:
    """The largest total variation with |eps_t| <= c_t: the largest over all sign patterns of eps_t = +-c_t."""
    signs = product((-1, 1), repeat=len(p))
    return max(total_variation_of_errors(p, [s * number(x) for s, x in zip(row, c, strict=True)]) for row in signs)


# ---- accumulators


def acert(p: Numbers, c: Numbers) -> Number:
    """A = sum p_t e^c_t."""
    return average(normalized(p), [mp.exp(number(x)) for x in c])


def acert_neg(p: Numbers, c: Numbers) -> Number:
    """A- = sum p_t e^-c_t."""
    return average(normalized(p), [mp.exp(-number(x)) for x in c])


def c_max(c: Numbers) -> Number:
    """C = max c_t."""
    return max(number(x) for x in c)


def lse_merge(lse: Numbers, values: Numbers) -> Number:
    """``lse_merge``: the average of per-split averages with weights e^lse."""
    return average(normalized([mp.exp(number(x)) for x in lse]), [number(v) for v in values])


def page_in_bound(p: Numbers, c: Numbers, repaired: Sequence[bool]) -> Number:
    """``page_in_bound``: A after the repaired tokens became exact is at most (N + y) / (M + y)."""
    p, c = normalized(p), [number(x) for x in c]
    tokens = list(zip(p, c, repaired, strict=True))
    n = mp.fsum(a * mp.exp(x) for a, x, gone in tokens if not gone)
    m = mp.fsum(a for a, _, gone in tokens if not gone)
    y = mp.fsum(a * mp.exp(-x) for a, x, gone in tokens if gone)
    return (n + y) / (m + y)


# ---- bounds on the total variation


def eform(p: Numbers, c: Numbers) -> Number:
    """``tv_le_eform``: (A^2 - 1) / 2."""
    return (acert(p, c) ** 2 - 1) / 2


def sharp(p: Numbers, c: Numbers) -> Number:
    """``tv_le_sharp``: 1 - 1/A if A <= 2, else A^2 / (A^2 + 4)."""
    a = acert(p, c)
    return 1 - 1 / a if a <= 2 else a**2 / (a**2 + 4)


def tanh_half(c: Numbers) -> Number:
    """``tv_le_tanh_half``: (e^C - 1) / (e^C + 1) = tanh(C / 2)."""
    e = mp.exp(c_max(c))
    return (e - 1) / (e + 1)


def tanh_rival(c: Numbers) -> Number:
    """``tv_le_tanh_rival``: tanh(C)."""
    return mp.tanh(c_max(c))


def one_sub_ratio(p: Numbers, c: Numbers) -> Number:
    """``tv_le_one_sub_ratio``: 1 - A- / A."""
    return 1 - acert_neg(p, c) / acert(p, c)


def two_sided(p: Numbers, c: Numbers) -> Number:
    """``tv_le_two_sided``: (A / A- - A- / A) / 2."""
    ratio = acert(p, c) / acert_neg(p, c)
    return (ratio - 1 / ratio) / 2


def retention(p: Numbers, c: Numbers) -> Number:
    """``tv_le_retention``: half the average of min(A e^c - 1, max(e^c / A- - 1, 1 - e^-c / A))."""
    a, a_neg = acert(p, c), acert_neg(p, c)
    grown = [mp.exp(number(x)) for x in c]
    return average(normalized(p), [min(a * g - 1, max(g / a_neg - 1, 1 - 1 / (g * a))) for g in grown]) / 2


def meter(p: Numbers, c: Numbers) -> Number:
    """``meter_sound``: the smaller of ``sharp`` and ``tanh_half``."""
    return min(sharp(p, c), tanh_half(c))


def dispersion_unsound(p: Numbers, c: Numbers) -> Number:
    """``dispersion_bound_unsound``: e^2C (E|c - c_bar| + c_bar (e^C - 1)) / 2, which is not a bound."""
    p, c = normalized(p), [number(x) for x in c]
    mean, top = average(p, c), c_max(c)
    spread = average(p, [abs(x - mean) for x in c])
    return mp.exp(2 * top) * (spread + mean * (mp.exp(top) - 1)) / 2


# ---- bounds on one logit error


def dot(a: Numbers, b: Numbers) -> Number:
    """Sum of a_i b_i."""
    return mp.fsum(number(x) * number(y) for x, y in zip(a, b, strict=True))


def norm(x: Numbers) -> Number:
    """Euclidean norm."""
    return mp.sqrt(dot(x, x))


def band_bound(q_norms: Numbers, w: Numbers, scale: Number) -> Number:
    """``band_cauchy_schwarz``: scale times the sum of |q_b| w_b."""
    return number(scale) * dot(q_norms, w)


def half_step(q: Numbers, step: Numbers, scale: Number) -> Number:
    """``half_step``: half of scale times the sum of |q_c| s_c."""
    return number(scale) * dot([abs(number(x)) for x in q], step) / 2


def scaled_cs(q: Numbers, r: Numbers, step: Numbers, scale: Number) -> Number:
    """``scaled_cs``: scale |q s| |r / s|, channels with r_c = 0 leaving the second norm."""
    weighted = [number(a) * number(s) for a, s in zip(q, step, strict=True)]
    relative = [number(x) / number(s) for x, s in zip(r, step, strict=True) if x != 0]
    return number(scale) * norm(weighted) * norm(relative)


def proxy(q: Numbers, step: Numbers, scale: Number) -> Number:
    """``weighted_sum_mgf``: V = scale^2 sum q_c^2 s_c^2 / 12."""
    weighted = [number(a) * number(s) for a, s in zip(q, step, strict=True)]
    return number(scale) ** 2 * dot(weighted, weighted) / 12


def dither_bias(q: Numbers, step: Numbers, scale: Number, levels: int) -> Number:
    """``grid_dither_law``: scale times the sum of |q_c| s_c / (2 n)."""
    return half_step(q, step, scale) / levels


def subgaussian_radius(
    q: Numbers, step: Numbers, scale: Number, *, tokens: int, delta_loc: Number, levels: int = 256
) -> Number:
    """``two_sided_tail`` over ``tokens`` errors: sqrt(2 V log(2 S / delta_loc)) + bias."""
    v = proxy(q, step, scale)
    return mp.sqrt(2 * v * mp.log(2 * tokens / number(delta_loc))) + dither_bias(q, step, scale, levels)


def adaptive_radius(q: Numbers, step: Numbers, scale: Number, *, delta: Number, levels: int = 256) -> Number:
    """``adaptive_radius``: kappa sqrt(V) + bias, kappa^2 = min(d + sqrt(9 d log(1/delta) / 2), 3 d); delta = 0: 3 d."""
    d = len(q)
    kappa_sq = number(3 * d)
    if delta > 0:
        kappa_sq = min(kappa_sq, d + mp.sqrt(9 * d * mp.log(1 / number(delta)) / 2))
    return mp.sqrt(kappa_sq * proxy(q, step, scale)) + dither_bias(q, step, scale, levels)


# ---- attention output


def output_bound(tv: Number, v_radius: Number, p: Numbers, rho: Numbers) -> Number:
    """``output_bound``: 2 TV max|v_t - v0| + sum p_t rho_t."""
    return 2 * number(tv) * number(v_radius) + average(normalized(p), [number(x) for x in rho])
