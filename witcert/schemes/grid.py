"""What the integer grids of several schemes share: stored scales, steps with their rounding allowance, final rounding.

Working precision is float32 (float64 for float64 input); u = 2^-24 below is its unit roundoff at worst.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from witcert.schemes.types import Served
from witcert.witness import ru16

__all__ = [
    "GROUP",
    "STEP",
    "asymmetric",
    "channel_scale",
    "exact_step",
    "poison",
    "serve",
    "stored_scale",
    "work_dtype",
]

GROUP = 32
LEAST_SCALE = 2.0**-24  # least positive float16

# Factor from a stored scale s to a step. Every scheme that uses it quantizes with |fl(x/s)| < 128, so the division errs
# by at most 2^-18, and so do an addition of a dither and the product s * n relative to s (where they round at all):
# |x_hat - x| <= s * (1/2 + 2^-18 + 2^-18 + 2^-17) = s/2 * (1 + 2^-15). fl(s * (1 + 2^-14)) is more than that.
STEP = 1.0 + 2.0**-14


def work_dtype(x: Tensor) -> torch.dtype:
    """Precision in which a scheme computes: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def stored_scale(amax: Tensor, divisor: float) -> Tensor:
    """The scale that the cache stores, RU16(amax / divisor), in the dtype of amax.

    Where amax > 0 it is at least the least positive float16, also when amax / divisor underflows before it is rounded,
    so that 0 always means that the whole group is 0. Not finite where amax is not, or where it exceeds float16.
    """
    # a tensor, not a scalar: on CUDA PyTorch divides by a scalar through its reciprocal, which may round differently
    scale = ru16(amax / torch.full_like(amax, divisor)).to(amax.dtype)
    return torch.where(amax > 0, scale.clamp_min(LEAST_SCALE), scale)


def channel_scale(x: Tensor, divisor: float, group: int = GROUP, keep: Tensor | None = None) -> Tensor:
    """Symmetric scale of each channel: per row, one for each group of that many channels (the last may be smaller).

    x [..., d] in working precision; keep, a boolean [d], marks channels that do not count (they are stored exactly).
    """
    magnitude = x.abs() if keep is None else x.abs().masked_fill(keep, 0.0)
    parts = torch.split(magnitude, group, dim=-1)
    return torch.cat([stored_scale(part.amax(-1, keepdim=True), divisor).expand_as(part) for part in parts], -1)


def asymmetric(x: Tensor, low: Tensor, high: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Quantize x to that many levels from low to high (which broadcast against it): x_hat and its step.

    The cache stores base = low rounded down to fp16 and scale = RU16((high - base) / (levels - 1)), so no value between
    low and high is clipped and the extremes need no exception. The difference x - base and its quotient by the scale
    err by 2^-24 * levels * scale each, at most 2^-15 * scale in all (levels <= 256); ``base + scale * code`` rounds
    once, by 2^-24 |x_hat|. The step pays for all of it.
    """
    base = -ru16(-low).to(x.dtype)
    scale = stored_scale(high - base, float(levels - 1))
    good = base.isfinite() & scale.isfinite()
    base, scale = torch.where(good, base, 0.0), torch.where(good, scale, math.inf).expand_as(x)
    code = ((x - base) / torch.where(scale > 0, scale, 1.0)).round()
    x_hat = base + code * scale
    step = torch.where(scale > 0, scale * (1.0 + 2.0**-13) + x_hat.abs() * 2.0**-22, 0.0)
    return poison(x_hat, step, scale)


def exact_step(x: Tensor) -> Tensor:
    """The step of channels that are stored exactly: 0, or +inf where x is not finite."""
    return torch.zeros_like(x, dtype=work_dtype(x)).masked_fill(~x.isfinite(), math.inf)


def poison(x_hat: Tensor, step: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """NaN in place of x_hat, and +inf in place of its step, wherever the scale is not finite."""
    good = scale.isfinite()
    return torch.where(good, x_hat, math.nan), torch.where(good, step, math.inf)


def serve(
    x: Tensor, wide: Tensor, step: Tensor | None, levels: int | None = None, excess: Tensor | None = None
) -> Served:
    """Round the working-precision result to the dtype of x, and widen step and excess by what that costs.

    The difference of a float32 and its rounding to a half type is exact in float32, and known to a reader of the cache.
    A finite value beyond the largest of the half type becomes that largest, which is nearer to x.
    """
    if x.dtype == wide.dtype:
        return Served(wide, step, levels, excess)
    top = torch.finfo(x.dtype).max
    out = torch.where(wide.isfinite(), wide.clamp(-top, top), wide).to(x.dtype)
    if step is None:
        return Served(out)
    lost = torch.where(wide.isfinite(), (out.to(wide.dtype) - wide).abs(), 0.0)
    up = 1.0 + 2.0**-20  # more than the two roundings of the sum below
    step = torch.where(lost > 0, (step + 2.0 * lost) * up, step)
    if excess is not None:
        excess = torch.where(lost > 0, (excess + lost) * up, excess)
    return Served(out, step, levels, excess)
