"""The constants with which a float32 kernel stays above the real witness (``docs/error-budget.md``, section W)."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import torch

from witcert.errors import InputError

__all__ = ["write_factors"]

UNIT = Fraction(1, 2**24)
"""Unit roundoff of float32, round to nearest."""
SQRT = Fraction(1, 2**22)
"""Relative error of ``tl.sqrt`` (sqrt.approx.f32) on normal numbers: assumption SQRT, measured on every float32."""
UNDERFLOW = Fraction(1, 2**30)
"""Pays for squares that underflow: at most 16 * 2^-63 in a norm, against a witness of at least 2^-26."""


def _up32(x: Fraction) -> float:
    """The least float32 that is at least x > 0."""
    y = torch.tensor(float(x), dtype=torch.float32)
    while Fraction(y.item()) < x:
        y = torch.nextafter(y, torch.tensor(math.inf))
    return y.item()


@lru_cache(maxsize=256, typed=True)
def write_factors(channels: int, gamma: float, served_error: Fraction = Fraction(0)) -> tuple[float, float]:
    """Float32 factors (F, G) with ``F * |r_b| + G * |k_hat_b|`` computed in float32 above the real witness.

    channels: number of channels of a band. gamma: dot-product constant of the read kernel. served_error: relative error
    per channel of the k_hat that the residual was taken of, against the k_hat that is meant.

    The computed norm of n channels is at least (1 - u)^((n + 2)/2) (1 - SQRT) times the true one: one rounding of the
    difference (twice in its square), one of the square and n - 1 of the sum, in any order, under the root; then the
    root. Product and final sum round once each. (1 - t)^-1 <= 1 + 2 t for the total t <= 1/2 of all these.
    """
    if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not 0 <= gamma < 1:
        raise InputError(f"gamma={gamma!r} is not a number in 0..1")
    lost = (Fraction(channels + 2, 2) + 2) * UNIT + SQRT
    slack = (1 + 2 * lost) * (1 + UNDERFLOW)
    residual = _up32((1 + Fraction(1, 2**20)) * slack)
    total = Fraction(gamma) + served_error * (1 + Fraction(1, 2**19))
    return residual, _up32(total * slack) if total else 0.0
