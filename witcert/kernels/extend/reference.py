"""What extend computes, in float64 PyTorch, one row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert import bounds
from witcert.kernels.decode import BandMeter, HalfStepMeter
from witcert.kernels.decode.reference import _bounds, served_keys, served_values
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = ["Row", "extend_reference"]


@dataclass(frozen=True)
class Row:
    """One query position and head: output [d], lse, served weights p [T] (prefix, then chunk), c [T] and the meter."""

    out: Tensor
    lse: Tensor
    p: Tensor
    c: Tensor
    meter: Tensor


def extend_reference(
    q: Tensor, k: Tensor, v: Tensor, store: ExactStore | PackedStore, table: PageTable, lens: Tensor, *, scale: float,
    meter: BandMeter | HalfStepMeter | None = None,
) -> dict[tuple[int, int, int], Row]:  # fmt: skip
    """Every row (sequence, position, query head) inside its chunk; c is 0 on the chunk's own tokens."""
    group = q.shape[2] // store.kv_heads
    rows: dict[tuple[int, int, int], Row] = {}
    for b in range(table.batch):
        slots = table.slots(b)
        prefix_k, prefix_v = served_keys(store, slots), served_values(store, slots)
        for i in range(int(lens[b])):
            keys = torch.cat((prefix_k, k[b, : i + 1].double()))
            values = torch.cat((prefix_v, v[b, : i + 1].double()))
            for h in range(q.shape[2]):
                wide, head = q[b, i, h].double(), h // group
                logit = keys[:, head] @ wide * scale
                c = torch.zeros_like(logit)
                if meter is not None and len(slots):
                    c[: len(slots)] = _bounds(wide, store, slots, head, scale, meter)[0]
                p = torch.softmax(logit, 0)
                value = torch.ones((), dtype=torch.float64)
                if not bool(p.isnan().any()):
                    sums = bounds.accumulate(p, c)
                    value = bounds.meter(sums.log_a, sums.c_max)
                rows[b, i, h] = Row(p @ values[:, head], torch.logsumexp(logit, 0), p, c, value)
    return rows
