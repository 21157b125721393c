"""How a request's failure probability and its thresholds are shared out among the cells that must hold.

A cell is one (layer, query head, decode step). ``request_union``: if each of the L * H * T cells may fail with
probability delta_req / (L * H * T), the request fails with probability at most delta_req. The adaptive meter has one
event per stored token and KV head instead (``adaptive_radius``), which no query and no step can multiply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["Budget"]


def _share(delta: float, parts: int) -> float:
    """The largest float d with parts * d <= delta, in exact arithmetic."""
    share = delta / parts
    if Fraction(share) * parts > Fraction(delta):
        share = math.nextafter(share, 0.0)
    if share <= 0.0:
        raise InputError(f"delta_req={delta!r} shared among {parts} events underflows")
    return share


def _count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r} is not a whole number >= 1")


@dataclass(frozen=True)
class Budget:
    """Failure probability and thresholds of one request.

    Parameters
    ----------
    layers, heads, kv_heads : shape of the model; heads counts query heads and is a multiple of kv_heads.
    steps : decode steps T that the promise covers.
    delta_req : probability, over the dither, that some number of the request is not a bound.
    tau_k : certificate threshold of the total variation (keys).
    tau_v : certificate threshold of the value error, as a share of the value norm.
    """

    layers: int
    heads: int
    kv_heads: int
    steps: int = 256
    delta_req: float = 1e-2
    tau_k: float = 0.2
    tau_v: float = 0.05

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "steps"):
            _count(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise InputError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if not 0.0 < self.delta_req < 1.0:
            raise InputError(f"delta_req={self.delta_req!r} is outside (0, 1)")
        for name in ("tau_k", "tau_v"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(f"{name}={getattr(self, name)!r} is outside (0, 1]")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def cells(self) -> int:
        """Number of (layer, query head, step) of the request."""
        return self.layers * self.heads * self.steps

    @property
    def delta_loc(self) -> float:
        """Failure probability of one cell, rounded down so that the cells never sum to more than delta_req."""
        return _share(self.delta_req, self.cells)

    def delta_token(self, tokens: int) -> float:
        """Failure probability of one token of one cell with that many cached tokens (two-sided)."""
        _count("tokens", tokens)
        return _share(self.delta_req, self.cells * tokens)

    def delta_adaptive(self, tokens: int) -> float:
        """Failure probability of one (layer, KV head, stored token); tokens is the largest number ever stored."""
        _count("tokens", tokens)
        return _share(self.delta_req, self.layers * self.kv_heads * tokens)

    def certified(self, meter: Tensor, value_share: Tensor) -> Tensor:
        """Cells in which keys and values are both within their thresholds; NaN certifies nothing.

        Joint coverage is the mean of this, measured on the cells themselves; it cannot be inferred from the two
        coverages apart.
        """
        # as real numbers: the float32 nearest to a threshold may be above it
        return torch.as_tensor(meter).double().le(self.tau_k) & torch.as_tensor(value_share).double().le(self.tau_v)
