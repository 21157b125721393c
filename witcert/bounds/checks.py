"""What the bounds accept: each check raises ``InputError`` naming the argument, the first offending value and the
range."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from witcert.bounds.rounding import exact, pairwise_sum
from witcert.errors import InputError

SUM_TOLERANCE = 1e-4
"""How far a distribution's float sum may be from 1; what is left is divided out exactly (see ``accumulate``)."""

_FLOATS = (torch.float32, torch.float64)
_NARROW = (torch.float16, torch.bfloat16)


def is_float(name: str, x: Tensor, *, narrow: bool = False) -> None:
    """``x`` is a float32 or float64 tensor (with ``narrow``: or a half-precision one)."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} is a {type(x).__name__}; a torch.Tensor is expected")
    if x.dtype not in (_FLOATS + _NARROW if narrow else _FLOATS):
        half = ", or a half-precision type," if narrow else ""
        raise InputError(f"{name} has dtype {x.dtype}; float32 or float64{half} is expected")


def reject(name: str, x: Tensor, bad: Tensor, accepted: str) -> None:
    """Raise for the first element of ``x`` at which ``bad`` is set."""
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        place = f"{list(index)}" if index else ""
        raise InputError(f"{name}{place}={x[index].item()!r} is outside {accepted}")


def nonnegative(name: str, x: Tensor, *, infinite: bool = True, nan: bool = False, narrow: bool = False) -> None:
    """Every element is at least 0; ``infinite`` lets +inf pass (no claim), ``nan`` lets NaN pass (treated as no
    claim)."""
    is_float(name, x, narrow=narrow)
    bad = x < 0
    if not nan:
        bad = bad | torch.isnan(x)
    if not infinite:
        bad = bad | torch.isinf(x)
    reject(name, x, bad, "[0, inf]" if infinite else "[0, inf)")


def finite(name: str, x: Tensor, *, narrow: bool = False) -> None:
    """Every element is a finite number."""
    is_float(name, x, narrow=narrow)
    reject(name, x, ~torch.isfinite(x), "(-inf, inf)")


def distribution(name: str, p: Tensor) -> None:
    """The last dimension of ``p`` is a probability distribution, its sum within ``SUM_TOLERANCE`` of 1."""
    is_float(name, p)
    if p.dim() == 0 or p.shape[-1] == 0:
        raise InputError(f"{name} has shape {list(p.shape)}; at least one token is expected in the last dimension")
    reject(name, p, ~((p >= 0) & (p <= 1.0 + SUM_TOLERANCE)), "[0, 1]")
    total = pairwise_sum(exact(p))
    reject(f"sum of {name}", total, (total - 1.0).abs() > SUM_TOLERANCE, f"1 +- {SUM_TOLERANCE}")


def same_tokens(names: str, *tensors: Tensor) -> None:
    """All tensors have the same last dimension and leading dimensions that broadcast."""
    shapes = ", ".join(str(list(t.shape)) for t in tensors)
    if len({t.shape[-1:] for t in tensors}) != 1:
        raise InputError(f"{names} have shapes {shapes}; the last dimension must be the same")
    try:
        np.broadcast_shapes(*(t.shape for t in tensors))
    except ValueError as error:
        raise InputError(f"{names} have shapes {shapes}; they do not broadcast") from error


def positive_scale(scale: float) -> float:
    """The softmax scale is a finite positive number."""
    if not (isinstance(scale, (int, float)) and math.isfinite(scale) and scale > 0):
        raise InputError(f"scale={scale!r} is outside (0, inf)")
    return float(scale)


def at_least_one(name: str, n: int) -> int:
    """A count: an integer of at least 1."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"{name}={n!r} is outside {{1, 2, 3, ...}}")
    return n


def probability(name: str, x: float, *, zero: bool = False) -> float:
    """A failure probability in (0, 1), or [0, 1) with ``zero``."""
    if not (isinstance(x, (int, float)) and 0.0 <= x < 1.0 and (zero or x > 0.0)):
        raise InputError(f"{name}={x!r} is outside {'[' if zero else '('}0, 1)")
    return float(x)
