"""Identity and round-to-nearest: per token and KV head, symmetric, one scale for each group of 32 channels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.schemes.grid import GROUP, STEP, channel_scale, exact_step, poison, serve, work_dtype
from witcert.schemes.registry import register
from witcert.schemes.types import Served

__all__ = ["Identity", "RoundToNearest"]


@dataclass(frozen=True)
class Identity:
    """Keeps the 16-bit cache as it is: the reference against which every other scheme is read.

    The step is 0 on every channel that is finite. Bytes are those of a 16-bit cache.
    """

    def __call__(self, x: Tensor) -> Served:
        return Served(x, exact_step(x))

    def bytes_per_token(self, head_dim: int) -> float:
        return 2.0 * head_dim


@dataclass(frozen=True)
class RoundToNearest:
    """Symmetric round-to-nearest integers, one fp16 scale per token, KV head and group of 32 channels.

    Parameters
    ----------
    bits : width of a code; codes are -(2^(bits-1) - 1) to 2^(bits-1) - 1, so two bits have three levels.
    group : channels that share a scale; the last group of a head may be smaller.

    With ``s = RU16(amax / qmax)`` and n = round(x / s), no code is clipped: s >= amax/qmax * (1 - 2^-24), hence
    |fl(x/s)| < qmax + 1/2. ``x_hat = s * n`` is exact in float32 (11 + 7 bits).
    """

    bits: int = 8
    group: int = GROUP

    def __call__(self, x: Tensor) -> Served:
        work = x.to(work_dtype(x))
        scale = channel_scale(work, float(2 ** (self.bits - 1) - 1), self.group)
        code = (work / torch.where(scale > 0, scale, 1.0)).round()
        return serve(x, *poison(code * scale, scale * STEP, scale))

    def bytes_per_token(self, head_dim: int) -> float:
        return head_dim * self.bits / 8 + 2 * -(-head_dim // self.group)


register("identity", summary="16-bit cache, nothing quantized", source="reference", capturable=True)(Identity())
register(
    "rtn_int8",
    summary="8-bit symmetric round-to-nearest, per token, groups of 32 channels",
    source="int8 KV cache of serving engines",
    capturable=True,
)(RoundToNearest(8))
register(
    "rtn_int4",
    summary="4-bit symmetric round-to-nearest, per token, groups of 32 channels",
    source="int4 KV cache of serving engines",
    capturable=True,
)(RoundToNearest(4))
register(
    "rtn_int2",
    summary="2-bit symmetric round-to-nearest (three levels), per token, groups of 32 channels",
    source="the coarse end of round-to-nearest",
    capturable=True,
)(RoundToNearest(2))
