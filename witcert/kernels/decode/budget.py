"""The constants by which decode rounds its bounds up, each with what it covers; docs/error-budget/decode.md derives them.

Units: u = 2^-24 is one rounding of float32. Three properties of the hardware are assumed, and measured by
``python -m benchmarks.assumptions``: ``ex2.approx`` errs by at most 2^-22 relative (EXP2), ``sqrt.approx`` by at most 2^-22
(SQRT), and a matrix instruction of depth 16 adds with an error of at most 18 * 2^-23 of the sum of the magnitudes (MMA).
"""

from __future__ import annotations

import math

__all__ = ["BAND", "RADIUS", "TINY", "cap_slack", "dot_gamma", "envelope", "kappa", "subgaussian_factor"]

EXP2 = 2.0**-22
SQRT = 2.0**-22
MMA_STEP = 18 * 2.0**-23

LOG2E = 1.4426950408889634
"""log2(e) in double."""

BAND = 1.0 + 2.0**-16
"""On sum_b q_b w_b: one or two matrix instructions on nonnegative terms (2 * 18 * 2^-23 < 2^-17), factor and product."""

RADIUS = 1.0 + 2.0**-16
"""On a radius: energy (d + 9 roundings of nonnegative terms, halved by the root), SQRT, factor, two products."""

TINY = 2.0**-60
"""Added to every bound: what flushes to zero on the way (scales are at least 2^-24, queries matter from 2^-63 on)."""


def dot_gamma(head_dim: int) -> float:
    """The read constant gamma of the exact store, to be folded into the witness (``arith_fold``).

    The logit errs by at most gamma/2 * scale * sum |q_c k_c|: head_dim/16 matrix instructions, the factor and its product.
    Twice that, so that the bound also holds with the weights of the exactly computed logits.
    """
    return 2.0 * (head_dim / 16 * MMA_STEP + 4 * 2.0**-24)


def cap_slack(cap: float) -> float:
    """Added to every bound under a soft cap, in units of log 2: twice the absolute error 2^-19 cap of the computed tanh."""
    return 2.0 * cap * LOG2E * 2.0**-19


def subgaussian_factor(tokens: int, delta_loc: float) -> float:
    """sqrt(2 log(2 S / delta) / 12), rounded up: what multiplies sm sqrt(sum q^2 s^2) (``two_sided_tail``)."""
    return math.sqrt((math.log(2 * tokens) - math.log(delta_loc)) / 6.0) * RADIUS


def kappa(channels: int, delta: float) -> float:
    """kappa / sqrt(12), rounded up, kappa^2 = min(d + sqrt(9 d log(1/delta) / 2), 3 d) (``adaptive_radius``)."""
    square = 3.0 * channels
    if delta > 0.0:
        square = min(square, channels + math.sqrt(4.5 * channels * -math.log(delta)))
    return math.sqrt(square / 12.0) * RADIUS


def envelope(tiles: int, tile: int, splits: int) -> float:
    """(1 + delta) / (1 - delta), rounded up: what the computed A / l is multiplied by (``ratio_envelope``).

    Every summand is nonnegative. A term errs by delta_1: EXP2, and the rounding of the exponent, at most 256 in magnitude
    (a larger one is an underflow or meter 1), in both the subtraction of m and the addition of c. The sums err by delta_2:
    at most tile + tiles + splits + 8 * 4 additions on the way of any summand. Rescaling is by exact powers of two.
    delta = (1 + delta_1) (1 + delta_2) - 1.
    """
    u = 2.0**-24
    term = EXP2 + 2 * 256 * math.log(2.0) * u
    sums = (tile + tiles + splits + 40) * u
    outward = 1.0 + 2.0**-50  # the roundings of this function itself
    delta = (term + sums + term * sums) * outward
    return (1.0 + delta) / (1.0 - delta) * (1.0 + 2.0**-20) * outward
