"""What extend computes, in float64 PyTorch, one row at a time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert import bounds
from witcert.kernels.decode.launch import Meter, PagePart
from witcert.kernels.decode.reference import _bounds, served_keys, served_values
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = ["Row", "extend_reference"]


@dataclass(frozen=True)
class Row:
    """One query position and head: output [d], lse, served weights p [T], and c [T] and meter of each reading.

    T: the visible tokens of the prefix (of one part: those of its pages), then those of the chunk, then the sink. first: how
    many of the prefix are hidden by the window.
    """

    out: Tensor
    lse: Tensor
    p: Tensor
    bounds: tuple[Tensor, ...]
    meters: tuple[Tensor, ...]
    first: int


def extend_reference(
    q: Tensor, k: Tensor | None, v: Tensor | None, store: ExactStore | PackedStore, table: PageTable, lens: Tensor, *,
    scale: float, meter: Meter | None = None, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, part: PagePart | None = None, own: bool = True,
    only: Collection[tuple[int, int, int]] | None = None,
) -> dict[tuple[int, int, int], Row]:  # fmt: skip
    """Every row (sequence, position, query head) inside its chunk; c is 0 on the chunk's own tokens and on the sink.

    Arguments as in :func:`witcert.kernels.extend.extend`; only: the rows to compute, or None for all.
    """
    group = q.shape[2] // store.kv_heads
    rows: dict[tuple[int, int, int], Row] = {}
    for b in range(table.batch):
        slots = table.slots(b)
        prefix_k, prefix_v = served_keys(store, slots), served_values(store, slots)
        for i in range(int(lens[b])):
            heads = [h for h in range(q.shape[2]) if only is None or (b, i, h) in only]
            if not heads:
                continue
            start = 0 if window is None else max(0, len(slots) + i + 1 - window)  # position of the first visible token
            at = torch.arange(min(start, len(slots)), len(slots), device=slots.device)
            since = max(0, start - len(slots))
            for h in heads:
                wide, head = q[b, i, h].double(), h // group
                mine = at if part is None else at[part.parts[b, head, at // table.page_size] == part.index]
                keys, values, seen = prefix_k[mine], prefix_v[mine], slots[mine]
                if own and k is not None and v is not None:
                    keys = torch.cat((keys, k[b, since : i + 1].double()))
                    values = torch.cat((values, v[b, since : i + 1].double()))
                logit = keys[:, head] @ wide * scale
                logit = logit if softcap is None else softcap * torch.tanh(logit / softcap)
                logit = logit if sinks is None else torch.cat((logit, sinks[h : h + 1].double()))
                found: list[Tensor] = []
                if meter is not None:
                    prefix = _bounds(wide, store, seen, head, scale, meter)
                    found = [torch.cat((x, x.new_zeros(len(logit) - len(x)))) for x in prefix]
                p = torch.softmax(logit, 0)
                meters = []
                for c in found:
                    if not len(p):  # nothing is seen
                        meters.append(torch.zeros((), dtype=torch.float64))
                        continue
                    if bool(p.isnan().any()):
                        meters.append(torch.ones((), dtype=torch.float64))
                        continue
                    sums = bounds.accumulate(p, c)
                    meters.append(bounds.meter(sums.log_a, sums.c_max))
                out = p[: len(keys)] @ values[:, head]
                rows[b, i, h] = Row(out, torch.logsumexp(logit, 0), p, tuple(found), tuple(meters), start)
    return rows
