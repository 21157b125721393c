"""What a gate at some threshold would page in for recorded queries, from the served weights and the per-token bounds.

For one KV head and query the pages are taken in decreasing contribution ``sum p (e^c - 1)`` until the meter that
``page_in_bound`` predicts is at most tau for every query head of the group; as the gate does it, but for all prefixes of
the order at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert import bounds
from witcert.budget import Budget
from witcert.errors import InputError
from witcert.guarantees import Labelled
from witcert.meter import SOFTMAX, Cells, ExactAttention
from witcert.schemes import Served

__all__ = ["PAGE", "LayerTraffic", "layer_traffic"]

PAGE = 16
_FLOOR = 2.0**-30  # what the arithmetic of a read leaves on exact tokens, and to spare (SOFTMAX is 2^-34)


@dataclass(frozen=True, eq=False)
class LayerTraffic:
    """One layer under one scheme.

    Parameters
    ----------
    tv : true total variation [Hq, Q]; meter : the reading that decides, with its guarantee, values [Hq, Q].
    violations : cells in which a proved reading is below the truth (NaN counts).
    pages : per threshold, pages of one KV head that the whole request needs (each paged in once), int64 [taus, Hkv].
    step_pages : per threshold, pages that the queries need one by one, without remembering repairs, int64 [taus, Hkv].
    heads_fired : per threshold, (KV head, query) above it, int64 [taus, Hkv].
    total_pages : pages of one KV head that the queries see.
    """

    tv: Tensor
    meter: Labelled
    violations: int
    pages: Tensor
    step_pages: Tensor
    heads_fired: Tensor
    total_pages: int


def _blocks(x: Tensor, value: float = 0.0) -> Tensor:
    """[..., T] as [..., pages, PAGE], the last page filled up."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % PAGE), value=value)
    return padded.reshape(*x.shape[:-1], -1, PAGE)


def _prefix_meters(p: Tensor, c: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted meter after each number of pages, [Hkv, Q, G, pages + 1], and the pages' order, [Hkv, Q, pages].

    p, c : served weights and bounds [Hkv, G, Q, T], 0 where a token is out of sight; rest : the sink's weight [Hkv, G, Q].
    """
    p, c = p.transpose(1, 2), c.transpose(1, 2)  # [Hkv, Q, G, T]
    mass, up = _blocks(p).sum(-1), _blocks(p * torch.exp(c)).sum(-1)
    down, c_max = _blocks(p * torch.exp(-c)).sum(-1), _blocks(c).amax(-1)
    worth = (up - mass).nan_to_num(nan=torch.inf, posinf=torch.inf).amax(2)  # [Hkv, Q, pages]
    order = worth.argsort(dim=-1, descending=True, stable=True)
    index = order[:, :, None].expand_as(mass)
    mass, up, down, c_max = (x.gather(-1, index) for x in (mass, up, down, c_max))

    def outside(x: Tensor) -> Tensor:  # sums over what is left after each prefix: added from the end, so that nothing cancels
        return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (0, 1))

    sink = rest.transpose(1, 2)[..., None]
    y = torch.nn.functional.pad(down.cumsum(-1), (1, 0))
    ratio = (outside(up) + sink + y) / (outside(mass) + sink + y)
    left = torch.nn.functional.pad(c_max.flip(-1).cummax(-1).values.flip(-1), (0, 1), value=0.0)
    log_a = ratio.log().clamp(min=0.0) + _FLOOR
    return bounds.meter(log_a.nan_to_num(nan=torch.inf), left + SOFTMAX), order


def _reading(cells: Cells, guarantee: str) -> Labelled:
    """The strongest statement of that label: the last one, which is the smaller number."""
    found = [m for m in cells.meters if m.label == guarantee]
    if not found:
        raise InputError(f"guarantee={guarantee!r}: the scheme has no such reading, only {cells.meters[0].label}")
    return found[-1]


def layer_traffic(
    side: ExactAttention, served: Served, budget: Budget, taus: tuple[float, ...], guarantee: str = "proved"
) -> LayerTraffic:
    """Meter a layer's recorded queries under served keys, and count what a gate at each threshold would page in."""
    cells = side.cells(served, budget)
    meter = _reading(cells, guarantee)
    b = side.token_bounds(served, budget)
    c = b.nonadaptive if guarantee == "proved-nonadaptive" else b.proved_delta if b.proved_delta is not None else b.proved
    assert c is not None
    tokens = side.k.shape[1]
    hkv, group, queries = c.shape[:3]
    p = cells.p_tilde[..., :tokens]
    rest = cells.p_tilde[..., tokens:].sum(-1)
    prefix, order = _prefix_meters(p, c.masked_fill(~side.visible, 0.0), rest)
    value = torch.as_tensor(meter.value).view(hkv, group, queries).transpose(1, 2)  # [Hkv, Q, G]
    rank = torch.arange(order.shape[-1], device=order.device)
    pages, steps, fired = [], [], []
    for tau in taus:
        above = ~(value <= tau).all(-1)  # [Hkv, Q]
        done = (prefix[..., 1:] <= tau).all(2)  # [Hkv, Q, pages]: after 1, 2, ... pages
        needed = torch.where(done.any(-1), done.int().argmax(-1) + 1, order.shape[-1])
        seen = (side.visible.any(0).sum() + PAGE - 1) // PAGE
        needed = torch.where(above, torch.minimum(needed, seen), 0)
        chosen = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, rank < needed[..., None])
        pages.append(chosen.any(1).sum(-1))
        steps.append(needed.sum(-1))
        fired.append(above.sum(-1))
    violations = sum(
        int((~(torch.as_tensor(m.value) >= cells.tv)).sum()) for m in cells.meters if m.label == "proved"
    )
    return LayerTraffic(
        cells.tv.cpu(), meter.map(Tensor.cpu), violations, torch.stack(pages).cpu(), torch.stack(steps).cpu(),
        torch.stack(fired).cpu(), -(-tokens // PAGE),
    )  # fmt: skip
