"""FP8 E4M3: without a scale, as serving engines start by default, and with one scale per token and KV head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.schemes.grid import serve, work_dtype
from witcert.schemes.registry import register
from witcert.schemes.types import Served

__all__ = ["E4M3_MAX", "Fp8Raw", "Fp8Scaled", "round_e4m3"]

E4M3_MAX = 448.0
_LEAST_EXPONENT = -6  # of a normal number; subnormals are multiples of 2^-9
_LEAST_SCALE = 2.0**-100


def _spacing(x: Tensor) -> Tensor:
    """Distance between E4M3 numbers in the binade of x (float32 or float64, |x| <= 448)."""
    exponent = torch.frexp(x.abs()).exponent - 1
    exponent = torch.where(x == 0, _LEAST_EXPONENT, exponent.clamp(_LEAST_EXPONENT, 8))
    return torch.ldexp(torch.ones_like(x), exponent - 3)


def round_e4m3(x: Tensor) -> Tensor:
    """Round to the nearest E4M3 number, ties to even, saturating at +-448; NaN stays NaN. x is float32 or float64.

    Written out, because what a cast to ``torch.float8_e4m3fn`` does beyond 448 differs between versions and devices
    (NaN or 448); where the cast saturates, the two agree. Scaling by a power of two is exact, so the only rounding is
    the one that is meant, also for float64.
    """
    inside = x.clamp(-E4M3_MAX, E4M3_MAX)
    spacing = _spacing(torch.where(inside.isfinite(), inside, 0.0))
    return torch.where(x.isnan(), math.nan, (inside / spacing).round() * spacing)


@dataclass(frozen=True)
class Fp8Raw:
    """E4M3 with scale 1, saturating: what engines do with an fp8 cache when no scale is calibrated.

    Out-of-range values become +-448, infinities too; NaN stays NaN. No step: a saturated code can hide any magnitude,
    so what is stored does not bound the residual. The witness, taken at write time, does.
    """

    def __call__(self, x: Tensor) -> Served:
        return serve(x, round_e4m3(x.to(work_dtype(x))), None)

    def bytes_per_token(self, head_dim: int) -> float:
        return float(head_dim)


@dataclass(frozen=True)
class Fp8Scaled:
    """E4M3 with one float32 scale ``s = amax / 448`` per token and KV head.

    Where amax > 0 the scale is at least 2^-100, so that it is normal and products with it do not underflow. With
    ``y = fl(x/s)``, q = E4M3(y) and D the spacing of E4M3 at q: y errs by at most 2^-24 |y| <= 2^-20 D, saturation
    takes at most 448 * 2^-22 (where D = 32), and the product s * q errs by 2^-24 s |q| <= 2^-20 s D. So ``|x_hat - x|
    <= s D * (1/2 + 2^-17)``; the step is s * D * (1 + 2^-14).
    """

    def __call__(self, x: Tensor) -> Served:
        work = x.to(work_dtype(x))
        amax = work.abs().amax(-1, keepdim=True)
        scale = torch.where(amax > 0, (amax / E4M3_MAX).clamp_min(_LEAST_SCALE), amax)
        scale = torch.where(amax.isfinite(), scale, math.nan)
        code = round_e4m3(work / torch.where(scale > 0, scale, 1.0))
        step = _spacing(code.nan_to_num(0.0)) * (scale * (1.0 + 2.0**-14))
        good = scale.isfinite()
        top = torch.finfo(work.dtype).max  # s * 448 can exceed amax by a rounding, and then the dtype
        wide = torch.where(good, (code * scale).clamp(-top, top), math.nan)
        return serve(x, wide, torch.where(good, step, math.inf))

    def bytes_per_token(self, head_dim: int) -> float:
        return head_dim + 4.0


register(
    "fp8_e4m3_raw",
    summary="FP8 E4M3, scale 1, saturating at 448",
    source="fp8 KV cache of vLLM and SGLang, uncalibrated",
    capturable=True,
)(Fp8Raw())
register(
    "fp8_e4m3_scaled",
    summary="FP8 E4M3, one scale per token and KV head",
    source="per-token-head fp8 KV cache of vLLM",
    capturable=True,
)(Fp8Scaled())
