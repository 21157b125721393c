"""Several new tokens over a gated pool: repaired pages of their prefixes are read exactly, and every cell is metered.

Up to ``Gate.chunk`` new tokens, what their queries put above tau is repaired before the layer goes on, as in a single step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from witcert.gate.choose import Flags, How, Items, deciding, eager
from witcert.gate.gated import GatedPool
from witcert.kernels.decode import BandMeter, PagePart, Reading
from witcert.kernels.decode.launch import Meter
from witcert.kernels.extend import ExtendOutput
from witcert.kernels.formats import PageTable
from witcert.store import ops

__all__ = ["ChunkAttended", "attend", "extend"]

QUERIES = 8
"""Queries of a sequence, those with the largest meters, for which pages are chosen at a time."""


@dataclass(frozen=True, eq=False)
class ChunkAttended:
    """A chunk after the gate; fields as those of :class:`~witcert.gate.gated.Attended`, readings [batch, C, Hq].

    fired is None where the gate did not look at it.
    """

    output: ExtendOutput
    before: tuple[Reading, ...]
    fired: Tensor | None = None
    pages: int = 0
    bytes: int = 0
    refused: int = 0


def _by_head(x: Tensor, kv_heads: int) -> Tensor:
    """[batch, C, Hq, d] with each KV head as a row of its own, [batch * Hkv, C, G, d]."""
    batch, chunk, _, d = x.shape
    return x.reshape(batch, chunk, kv_heads, -1, d).transpose(1, 2).flatten(0, 1).contiguous()


def _by_row(x: Tensor, kv_heads: int) -> Tensor:
    """The inverse of _by_head, for [batch * Hkv, C, G, ...]."""
    return x.reshape(-1, kv_heads, *x.shape[1:]).transpose(1, 2).flatten(2, 3).contiguous()


def _rows(output: ExtendOutput, kv_heads: int) -> ExtendOutput:
    """What was read with each KV head as a row, [batch, C, Hq, ...]."""

    def shaped(r: Reading) -> Reading:
        meter = r.meter.map(lambda x: _by_row(x, kv_heads))
        return replace(r, meter=meter, log_a=_by_row(r.log_a, kv_heads), c_max=_by_row(r.c_max, kv_heads))

    readings = tuple(shaped(r) for r in output.readings)
    return ExtendOutput(_by_row(output.out, kv_heads), _by_row(output.lse, kv_heads), readings)


def extend(
    gated: GatedPool, layer: int, q: Tensor, k: Tensor, v: Tensor, table: PageTable, lens: Tensor, *,
    meter: Meter | None = None, scale: float, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> ExtendOutput:  # fmt: skip
    """Causal attention of a chunk over its stored prefixes and itself; one read, or two and a merge where pages lie beside.

    Parameters
    ----------
    gated : the pool; packed pages that were repaired are read from the layer's side pool.
    q, k, v : [batch, C, Hq, d] and the chunk's own exact keys and values [batch, C, Hkv, d].
    table : where the prefixes lie, without the chunk. lens : int32 [batch] on the device, tokens of each chunk.
    meter : what to read of the prefixes; every position of the chunk is then a step of a Tier-B meter's budget.

    scale, window, softcap, sinks : as in :func:`witcert.kernels.extend.extend`. No host synchronization.
    """
    pool = gated.pool
    side = None if gated.repairs is None else gated.repairs.side_table(layer, table)
    if side is None:
        return ops.extend(
            pool, layer, q, k, v, table, lens, scale=scale, meter=meter, window=window, softcap=softcap, sinks=sinks
        )
    parts, pages = side
    hkv = parts.shape[1]
    first = ops.extend(
        pool, layer, q, k, v, table, lens, scale=scale, meter=meter, window=window, softcap=softcap, sinks=sinks,
        part=PagePart(parts, 0),
    )  # fmt: skip
    # The side pool has pages of one KV head: each KV head is a sequence. The chunk and the sinks were counted above.
    exact = ops.extend(
        pool, layer, _by_head(q, hkv), None, None,
        PageTable(pages, table.seq_lens.repeat_interleave(hkv).contiguous(), table.page_size),
        lens.repeat_interleave(hkv).contiguous(), scale=scale, window=window, softcap=softcap,
        meter=None if meter is None else BandMeter(pool.config.pairing),
        part=PagePart(parts.flatten(0, 1)[:, None].contiguous(), 1), own=False, store=pool.side[layer],
    )  # fmt: skip
    return ops.merge(pool, first, _rows(exact, hkv), tokens=table.max_tokens)


def attend(
    gated: GatedPool, layer: int, q: Tensor, k: Tensor, v: Tensor, table: PageTable, lens: Tensor, *, seqs: Sequence[int],
    prefix: Sequence[int], queries: Sequence[int], meter: Meter | None = None, scale: float, window: int | None = None,
    softcap: float | None = None, sinks: Tensor | None = None,
) -> ChunkAttended:  # fmt: skip
    """:func:`extend`, and what the gate made of it.

    seqs : the pool's sequence of each row; prefix : tokens of it before the chunk; queries : how many of the first queries of
    each row count (those that see a stored prefix). The device is waited for only where the gate looks at the chunk.
    Raises CorruptionError if a repair finds the backing store damaged.
    """
    how = How(scale, meter, window, softcap, sinks)

    def read() -> ExtendOutput:
        return extend(
            gated, layer, q, k, v, table, lens, meter=meter, scale=scale, window=window, softcap=softcap, sinks=sinks
        )

    output = read()
    before, most = output.readings, max(queries, default=0)
    if gated.choice is None or meter is None or not 0 < most <= gated.gate.chunk:
        return ChunkAttended(output, before)
    choice, count = gated.choice, min(QUERIES, most)
    counted = torch.tensor(queries, device=q.device)
    there = torch.arange(q.shape[1], device=q.device) < counted[:, None]  # [batch, C]

    def above() -> Flags:
        return np.asarray((gated.above(output.readings) & there[..., None]).cpu().numpy())

    def heads(cells: Flags) -> Flags:
        """KV heads that fire, [batch, Hkv]: any query, any query head of the group."""
        return gated.any_of_group(np.asarray(cells.any(1)))

    first = now = above()
    fired = heads(first)

    def planned(left: Flags) -> Items:
        # the queries with the largest meters, each as a row of its own; a row with fewer lists its worst one again
        value = torch.as_tensor(deciding(output.readings, gated.gate).meter.value).nan_to_num(nan=1.0).amax(-1)
        worst, at = torch.where(there, value, -1.0).topk(count, 1)  # [batch, count]
        at = torch.where(worst < 0, at[:, :1], at).flatten()
        row = torch.arange(len(q), device=q.device).repeat_interleave(count)
        rows = PageTable(table.pages[row].contiguous(), table.seq_lens[row].contiguous(), table.page_size)
        every = [s for s in seqs for _ in range(count)]
        items = choice.planned(
            layer, q[row, at].contiguous(), every, rows, np.repeat(left, count, 0), output.lse[row, at], how, eager
        )
        return Items(items.row // count, items.page, items.head)

    def again(_: Flags) -> Flags:
        nonlocal output, now
        output = read()
        now = above()
        return heads(now)

    done = gated.repaired(layer, fired, seqs, prefix, again, None if window is not None else planned)
    for b, seq in enumerate(seqs):
        if queries[b]:
            cells = queries[b] * q.shape[2]
            within, kept = cells - int(now[b].sum()), cells - int((first[b] | now[b]).sum())
            gated.ledger.of(seq).add(
                cells=cells, certified=kept, repaired=within - kept, fired=int(done.fired[b].sum()),
                pages=int(done.pages[b]), moved=int(done.bytes[b]),
            )  # fmt: skip
    moved: dict[str, Any] = {"pages": int(done.pages.sum()), "bytes": int(done.bytes.sum()), "refused": done.refused}
    return ChunkAttended(output, before, torch.from_numpy(done.fired), **moved)
