"""What paging in would do to the meter, from sums over blocks of tokens alone (``page_in_bound``).

For the served weights p and bounds c of one cell, each block j of tokens is known by its mass ``sum p``, its ``up`` =
``sum p e^c`` and a lower bound ``down`` of ``sum p e^-c`` (by Cauchy-Schwarz ``mass^2 / up`` is one). With the blocks of J made
exact, up to a bound r on what the arithmetic of the read still costs there,

    A' <= max((N + y e^r) / (M + y), e^r),   N = sum of up outside J,   M = 1 - mass of J,   y = sum of down in J,

and C' is the largest c outside J, or r. The theorem is the case r = 0; for r > 0, the new weights of J add up to some x >= y
and ``(N + x e^r)/(M + x)`` is monotone in x, with limit e^r.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["BlockSums", "Plan", "plan", "predicted_meter"]

MARGIN = 2.0**-8
"""Relative, on the excess A' - 1: sums come from float32 kernels and a float32 LSE."""


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums of some query heads over blocks of tokens, float64 [..., G, blocks], as shares of the mass of the whole cell.

    rest_mass, rest_up : what is in no block (a sink, tokens that are exact already), [..., G]; rest_c : its largest c,
    [..., G]. An absent block, at the end, has mass, up and down 0 and c -inf.
    """

    mass: Tensor
    up: Tensor
    down: Tensor
    c_max: Tensor
    rest_mass: Tensor
    rest_up: Tensor
    rest_c: Tensor

    def __post_init__(self) -> None:
        shape = self.mass.shape
        if self.mass.ndim < 2 or any(x.shape != shape for x in (self.up, self.down, self.c_max)):
            raise InputError(f"mass, up, down and c_max are not all [..., G, blocks]; mass has shape {tuple(shape)}")
        if any(x.shape != shape[:-1] for x in (self.rest_mass, self.rest_up, self.rest_c)):
            raise InputError(f"rest_mass, rest_up and rest_c are not all {tuple(shape[:-1])}")

    @property
    def contribution(self) -> Tensor:
        """``sum p (e^c - 1)`` of each block, NaN as +inf, [..., G, blocks]."""
        return (self.up - self.mass).nan_to_num(nan=torch.inf, posinf=torch.inf)


def predicted_meter(sums: BlockSums, chosen: Tensor, residual_c: Tensor) -> Tensor:
    """Upper bound on the meter of each head once the chosen blocks are exact, [G, K] for sums [G, blocks], chosen bool
    [K, blocks].

    residual_c [G]: bound on the logit error that is left on exact tokens (arithmetic of the read kernel).
    """
    inside = chosen.to(torch.float64).T  # [blocks, K]
    outside = 1.0 - inside

    def total(x: Tensor, mask: Tensor) -> Tensor:
        # 0 * inf would be NaN: what is masked out is not there.
        return (x[:, :, None] * mask[None] if bool(x.isfinite().all())
                else torch.where(mask[None] > 0, x[:, :, None], 0.0)).sum(1)  # fmt: skip

    n = total(sums.up, outside) + sums.rest_up[:, None]
    m = (total(sums.mass, outside) + sums.rest_mass[:, None]).clamp(min=0.0)
    y = total(sums.down, inside)
    r = residual_c[:, None].exp()
    ratio = torch.maximum((n + y * r) / (m + y), r)
    ratio = 1.0 + (ratio - 1.0).clamp(min=0.0) * (1.0 + MARGIN)
    remaining = torch.where(chosen.T[None], residual_c[:, None, None], sums.c_max[:, :, None])
    c = torch.maximum(remaining.amax(1) if remaining.shape[1] else sums.rest_c[:, None], sums.rest_c[:, None])
    return _meter(ratio, c * (1.0 + 2.0**-20))


@dataclass(frozen=True, eq=False)
class Plan:
    """Blocks to page in, bool [..., blocks], and the meter that is predicted for each head, [..., G]."""

    blocks: Tensor
    predicted: Tensor


def _scan(x: Tensor, join: Callable[[Tensor, int], Tensor], none: float) -> Tensor:
    """Running join along the last axis, from its end, sixteen at a time: in an order that the length alone decides.

    join : sum or amax of an axis; none : what it leaves as it is. What torch has for sums (cumsum) is not deterministic on a
    GPU.
    """
    step, length = 1, x.shape[-1]
    while step < length:
        far = torch.nn.functional.pad(x, (0, 15 * step), value=none)
        x = join(far.unfold(-1, 15 * step + 1, 1)[..., ::step], -1)  # [..., length, 16]
        step *= 16
    return x


def _meter(a: Tensor, c: Tensor) -> Tensor:
    """``bounds.meter`` of A >= 1 and C without its checks, which wait for the device; NaN is 1."""
    sharp = torch.where(a <= 2.0, 1.0 - 1.0 / a, 1.0 / (1.0 + 4.0 / (a * a)))
    return torch.minimum(sharp, torch.tanh(0.5 * c)).nan_to_num(nan=1.0)  # minimum: NaN stays


def _prefixes(sums: BlockSums, order: Tensor, residual_c: Tensor) -> Tensor:
    """:func:`predicted_meter` once the first 0, 1, ... blocks of the order are exact, all at once: [..., G, blocks + 1]."""
    none = torch.zeros_like(sums.rest_mass)[..., None]
    index = order[..., None, :].expand_as(sums.mass)
    up, mass, down, c_max = (x.gather(-1, index) for x in (sums.up, sums.mass, sums.down, sums.c_max))
    outside_up, outside_mass, inside = _scan(torch.stack((up, mass, down.flip(-1))), torch.sum, 0.0)
    n = torch.cat((outside_up, none), -1) + sums.rest_up[..., None]
    m = (torch.cat((outside_mass, none), -1) + sums.rest_mass[..., None]).clamp(min=0.0)
    y = torch.cat((none, inside.flip(-1)), -1)
    r = residual_c[..., None].exp()
    ratio = torch.maximum((n + y * r) / (m + y), r)
    ratio = 1.0 + (ratio - 1.0).clamp(min=0.0) * (1.0 + MARGIN)
    # NaN stays in a maximum
    rest = sums.rest_c[..., None]
    left = torch.cat((_scan(torch.maximum(c_max, rest), torch.amax, -torch.inf), rest), -1)
    first = torch.arange(left.shape[-1], device=left.device) > 0
    repaired = torch.where(first, residual_c[..., None], -torch.inf)
    return _meter(ratio, torch.maximum(left, repaired) * (1.0 + 2.0**-20))


def plan(sums: BlockSums, tau: float, residual_c: Tensor) -> Plan:
    """The fewest blocks, in decreasing contribution, after which every head is predicted to be at most tau.

    Each group [G, blocks] by itself. Contributions of several heads are compared by their largest. If no choice is predicted
    to do, all blocks are chosen. Makes launches only on a GPU, where it is part of a CUDA graph.
    """
    blocks = sums.mass.shape[-1]
    worth = sums.contribution.amax(-2) if sums.mass.shape[-2] else sums.contribution.sum(-2)  # [..., blocks]
    order = worth.argsort(dim=-1, descending=True, stable=True)
    every = _prefixes(sums, order, residual_c)  # [..., G, blocks + 1]
    enough = (every <= tau).all(-2)  # [..., blocks + 1]
    count = torch.where(enough.any(-1), enough.int().argmax(-1), blocks)[..., None]  # [..., 1]
    predicted = every.gather(-1, count[..., None].expand(*every.shape[:-1], 1))[..., 0]
    first = torch.arange(blocks, device=order.device) < count  # of the order, [..., blocks]
    return Plan(torch.zeros_like(first).scatter(-1, order, first), predicted)
