"""The constants by which extend rounds its bounds up; docs/error-budget/extend.md derives each of them.

u = 2^-24 is one rounding of float32. What is assumed of the hardware is what decode assumes (EXP2, SQRT, MMA).
"""

from __future__ import annotations

import math

from witcert.kernels.decode.budget import (
    BAND,
    MMA_STEP,
    TINY,
    cap_slack,
    dot_gamma,
    kappa,
    subgaussian_factor,
)
from witcert.schemes.dither_int8 import EXCESS, LEVELS
from witcert.schemes.grid import STEP

__all__ = [
    "BIAS",
    "HALF",
    "LOST_NORM",
    "LOST_OUTLIER",
    "bound_factor",
    "packed_gamma",
    "radius_factors",
    "self_gamma",
    "slack",
    "tiny_keys",
]

NORMS = 1.0 + 2.0**-14
"""On a product of two computed norms: (d + 8) roundings of nonnegative terms each, halved by the root, d <= 256."""

LOST_NORM = 2.0**-59
"""Added to a computed norm: at most 256 squares of numbers below 2^-63 may have underflowed."""

LOST_OUTLIER = 2.0**-25 * (1.0 + 2.0**-10)
"""Per unit of |q_c| of an outlier channel: what float16 loses of a bfloat16 key below 2^-14, and the sum's roundings."""

HALF = 0.5 * STEP * BAND
"""On sum_c |q_c| s_c for half a step: BAND pays for at most 31 + 8 additions, factor, product and the exponent's rounding."""

BIAS = (0.5 / LEVELS + 2.0**-18 + EXCESS) * BAND
"""On sum_c |q_c| s_c for the dither: grid off centre (1/512 + 2^-18), excess of the scheme; BAND as for HALF."""


def bound_factor() -> float:
    """On sum_b |q_b| w_b: matrix instructions, product, the exponent's rounding."""
    return BAND


def packed_gamma(head_dim: int, bits: int) -> float:
    """Arithmetic of a logit from packed keys, relative to scale * |q| |k_hat|, twice (see ``dot_gamma``).

    k_hat is computed in float32 (one rounding with dither) and split into a high and a low half of ``bits`` significant
    bits each, rounded to nearest: what is left is at most 2^-2 bits of it, and 2^-19 where it exceeds float16 by less than
    1 %. Two dot products follow, accumulated into one another, of which the sums of magnitudes exceed |q| |k_hat| by
    less than 1 part in 100.
    """
    u = 2.0**-24
    left = 2.0**-19 if bits == 11 else 2.0 ** (-2 * bits)
    once = 2 * head_dim / 16 * MMA_STEP * 1.01 + left + 8 * u
    return 2.0 * once * NORMS


def tiny_keys(head_dim: int) -> float:
    """Absolute error of a key of fp16 halves, whose low half has units of 2^-24: norm of d channels, twice."""
    return 2.0 * 2.0**-24 * math.sqrt(head_dim) * NORMS


def self_gamma(head_dim: int) -> float:
    """Arithmetic of a logit from the exact keys of the chunk, relative to scale * |q| |k|."""
    return dot_gamma(head_dim) * NORMS


def radius_factors(channels: int, tokens: int, delta_loc: float, delta_token: float) -> tuple[float, float]:
    """What multiplies sm sqrt(sum q^2 s^2): non-adaptive, adaptive. RADIUS of decode pays for the arithmetic."""
    return subgaussian_factor(tokens, delta_loc), kappa(channels, delta_token)


def slack(factor: float, cap: float | None, dithered: bool) -> float:
    """Added to every bound, in units of log 2: what flushes to zero, and the soft cap.

    dithered: squares below 2^-126 under a radius may flush. 256 of them with scales below 2^16 are 2^-43 of the root, which
    is multiplied by at most 12 (kappa or the sub-Gaussian factor): below 2^-39 in units of q k.
    """
    flushed = TINY * (1.0 + factor) + (2.0**-36 * factor if dithered else 0.0)
    return (flushed + (0.0 if cap is None else cap_slack(cap))) * (1.0 + 2.0**-20)
