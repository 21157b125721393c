"""Directed rounding: how a number computed in floating point stays a bound on the real number.

Model. All arithmetic is IEEE binary64, round to nearest, gradual underflow; u = 2^-53. A basic operation (+ - * /
sqrt) returns the exact result times (1 + t), |t| <= u. A library function (exp, expm1, log, log1p, tanh) is *assumed*
to be within 4 units in the last place, i.e. a factor (1 + t) with |t| <= 8u (``LIBRARY``);
``tests/bounds/test_rounding.py`` measures the installed library at 50 digits and fails above one half of that.
float32 (and half) inputs are converted exactly.

Counting. A chain of such factors with n units in total gives x_hat = x (1 + t), |t| <= n u / (1 - n u). Therefore

    x <= x_hat (1 + n u / (1 - 2 n u))      and      x >= x_hat (1 - n u).

:func:`up` multiplies by 1 + 2k u with 2k >= n + 2, an exactly representable factor; the two spare units pay for
rounding the product and for the quadratic term while n < 2^25. :func:`down` is its mirror image.

Sums. :func:`pairwise_sum` fixes the order of summation itself (a balanced tree), so that T nonnegative terms cost
ceil(log2 T) units, on every device and whatever the library's own sum does.

Underflow. A product of two positive numbers may be lost below 2^-1074, and 2^22 such losses are smaller than ``TINY``
= 2^-1000, which :func:`up` adds to every result that is positive in the reals. A result that is exactly 0 (nothing
was quantized) stays 0.

Results are returned in the dtype of the inputs, rounded toward the safe side once more (:func:`round_up`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LIBRARY = 8
"""Units of u allowed per library function (4 ulp)."""

TINY = 2.0**-1000
"""Absolute allowance for underflow."""


def depth(terms: int) -> int:
    """Units of u that :func:`pairwise_sum` of this many nonnegative terms may cost: ceil(log2 terms)."""
    return max(terms - 1, 0).bit_length()


def pairwise_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension by a balanced binary tree: [..., T] -> [...]."""
    size = 1 << depth(x.shape[-1])
    if size != x.shape[-1]:
        x = functional.pad(x, (0, size - x.shape[-1]))
    while size > 1:
        size //= 2
        x = x[..., :size] + x[..., size:]
    return x[..., 0]


def up(x: Tensor, units: int, alive: Tensor | None = None) -> Tensor:
    """An upper bound on the real number that nonnegative ``x`` approximates within ``units`` roundings.

    x: float64. alive: where the real number is positive (default: where ``x`` is).
    """
    y = x * (1.0 + (units // 2 + 2) * 2.0**-52)
    return torch.where(x > 0 if alive is None else alive, y + TINY, y)


def down(x: Tensor, units: int) -> Tensor:
    """A lower bound on the real number that nonnegative ``x`` approximates within ``units`` roundings (at least 0)."""
    return (x * (1.0 - (units // 2 + 2) * 2.0**-52) - TINY).clamp_min(0.0)


def exact(x: Tensor) -> Tensor:
    """The same numbers in float64, outside any gradient graph."""
    return x.detach().to(torch.float64)


def broadcast(*tensors: Tensor) -> list[Tensor]:
    """The tensors expanded to their common shape."""
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    return [t.expand(shape) for t in tensors]


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is float64, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def round_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of ``dtype`` that is at least ``x`` (NaN stays NaN)."""
    y = x.to(dtype)
    return torch.where(y.to(x.dtype) < x, torch.nextafter(y, torch.full_like(y, torch.inf)), y)


def round_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of ``dtype`` that is at most ``x`` (NaN stays NaN)."""
    y = x.to(dtype)
    return torch.where(y.to(x.dtype) > x, torch.nextafter(y, torch.full_like(y, -torch.inf)), y)


def as_bound(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Report a bound on a total variation: NaN claims nothing, nothing exceeds 1, rounded up to ``dtype``."""
    return round_up(torch.where(torch.isnan(x), 1.0, x).clamp_max(1.0), dtype)
