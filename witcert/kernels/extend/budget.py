"""The constants by which extend rounds its bounds up (``docs/error-budget.md``, section E)."""

from __future__ import annotations

import math

from witcert.kernels.decode.budget import BAND, MMA_STEP, dot_gamma

__all__ = ["COLUMNS", "bound_factor", "packed_gamma", "self_gamma", "tiny_keys"]

COLUMNS = 16
"""Terms of the dot product that makes a bound: band norms, or magnitudes of 16 runs of query channels."""

NORMS = 1.0 + 2.0**-14
"""On a product of two computed norms: (d + 8) roundings of nonnegative terms each, halved by the root, d <= 256."""


def bound_factor(half_step: bool) -> float:
    """On sum_j q_j w_j: the matrix instructions and products, and for a half-step 1/2 and STEP = 1 + 2^-14 of the scheme."""
    return 0.5 * (1.0 + 2.0**-14) * (1.0 + 2.0**-16) * BAND if half_step else BAND


def packed_gamma(head_dim: int, bits: int) -> float:
    """Arithmetic of a logit from packed keys, relative to scale * |q| |k_hat|, twice (see ``dot_gamma``).

    k_hat is computed in float32 (one rounding with dither) and split into a high and a low half of ``bits`` significant
    bits each, rounded to nearest: what is left is at most 2^-2 bits of it. Two dot products follow, accumulated into one
    another, of which the sums of magnitudes exceed |q| |k_hat| by less than 1 part in 100.
    """
    u = 2.0**-24
    once = 2 * head_dim / 16 * MMA_STEP * 1.01 + 2.0 ** (-2 * bits) + 8 * u
    return 2.0 * once * NORMS


def tiny_keys(head_dim: int) -> float:
    """Absolute error of a key of fp16 halves, whose low half has units of 2^-24: norm of d channels, twice."""
    return 2.0 * 2.0**-24 * math.sqrt(head_dim) * NORMS


def self_gamma(head_dim: int) -> float:
    """Arithmetic of a logit from the exact keys of the chunk, relative to scale * |q| |k|."""
    return dot_gamma(head_dim) * NORMS
