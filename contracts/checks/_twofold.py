"""A scaled dot product against a bound, in pairs of float64: sums and products keep what rounding takes from them.

It decides in bulk what float64 alone cannot: a bound whose case of equality is met exceeds the truth by its own outward
rounding only, a few units of 2^-52.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dot_at_most"]

SPLIT = 2.0**27 + 1

RELATIVE = 2.0**-84
"""Allowance of a sum of n <= 1024 terms relative to that of their magnitudes: (n 2^-53)^2 and n 2^-106, with 2^2 to spare."""

TERMS = 1024


def _sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as the rounded sum and exactly the rest (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    t = SPLIT * a
    high = t - (t - a)
    return high, a - high


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a b as the rounded product and exactly the rest (Dekker), for magnitudes that are 0 or in 2^-450 .. 2^450."""
    p = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def dot_at_most(bound: Tensor, q: Tensor, new: Tensor, old: Tensor, scale: float) -> Tensor:
    """Where scale |q . (new - old)| <= bound for certain; false where it is not so, or is closer than 2^-80 or so tells.

    bound : [n]. q, new, old : [n, d], d <= 256, all float64, of magnitudes 0 or in 2^-200 .. 2^200. scale : a normal number.
    """
    if 4 * q.shape[-1] > TERMS:
        raise ValueError(f"d = {q.shape[-1]}, expected at most {TERMS // 4}")
    terms = torch.cat((*_product(q, new), *_product(q, -old)), -1)
    total, rest = torch.zeros_like(bound), torch.zeros_like(bound)
    for term in terms.unbind(-1):
        total, lost = _sum(total, term)
        rest = rest + lost
    high, low = _product(torch.full_like(total, scale), total)
    low_rest = scale * rest
    allowance = scale * RELATIVE * terms.abs().sum(-1)
    holds = torch.ones_like(bound, dtype=torch.bool)
    for sign in (1.0, -1.0):
        gap, lost = _sum(bound, -sign * high)
        less = lost - sign * low - sign * low_rest
        sizes = gap.abs() + lost.abs() + low.abs() + low_rest.abs()
        holds &= gap + less > allowance + 2.0**-50 * sizes
    return holds
