"""KVQuant: 4-bit keys per channel and values per token, with the largest values kept apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.schemes.grid import asymmetric, exact_step, serve, work_dtype
from witcert.schemes.registry import register
from witcert.schemes.types import Served, Site

__all__ = ["KVQuant"]


@dataclass(frozen=True)
class KVQuant:
    """Dense-and-sparse quantization: per vector, the top share of values is exact and the rest spans the levels.

    Parameters
    ----------
    bits : width of a dense code.
    outliers : share of each vector that is kept, rounded up to a whole number of values.

    A vector is one channel over all tokens (keys) or one token over all channels (values). Its outliers are the values
    farthest from its median. Two simplifications against the paper: levels are uniform instead of fitted, and the range
    of a key channel comes from the tensor itself instead of a calibration set. Keys are taken as they are given, that
    is after RoPE. A vector with a value that is not finite is NaN.
    """

    bits: int = 4
    outliers: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise InputError(f"bits={self.bits!r} is outside 1..8")
        if not 0.0 <= self.outliers < 1.0:
            raise InputError(f"outliers={self.outliers!r} is outside [0, 1)")

    def __call__(self, x: Tensor, site: Site) -> Served:
        work = x.to(work_dtype(x))
        dim = -2 if site.side == "k" else -1
        finite = work.isfinite().all(dim, keepdim=True)
        safe = torch.where(finite, work, 0.0)
        keep = self._outliers(safe, dim)
        low = safe.masked_fill(keep, math.inf).amin(dim, keepdim=True)
        high = safe.masked_fill(keep, -math.inf).amax(dim, keepdim=True)
        dense = low <= high  # false where every value of the vector is an outlier
        low, high = torch.where(dense, low, 0.0), torch.where(dense, high, 0.0)
        x_hat, step = asymmetric(safe.masked_fill(keep, 0.0).clamp(low, high), low, high, 2**self.bits)
        x_hat, step = torch.where(keep, work, x_hat), torch.where(keep, exact_step(work), step)
        return serve(x, torch.where(finite, x_hat, math.nan), torch.where(finite, step, math.inf))

    def _outliers(self, x: Tensor, dim: int) -> Tensor:
        count = math.ceil(self.outliers * x.shape[dim])
        far = (x - x.median(dim, keepdim=True).values).abs().topk(count, dim).indices
        return torch.zeros_like(x, dtype=torch.bool).scatter(dim, far, True)

    def bytes_per_token(self, head_dim: int, side: str = "k") -> float:
        # An outlier is a 16-bit value with a 16-bit index; a key channel's two constants are shared by all tokens.
        return head_dim * (self.bits / 8 + 4 * self.outliers) + (4 if side == "v" else 0)


register(
    "kvquant_4bit",
    summary="4-bit asymmetric: keys per channel, values per token; the top 1 % kept exactly",
    source="Hooper et al., KVQuant, 2024",
    per_token=False,
)(KVQuant())
