"""Several new tokens over a gated pool: repaired pages of their prefixes are read exactly, and every cell is metered.

What a chunk's queries read is reported, not repaired: a repair follows the queries of single steps.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from witcert.gate.gated import GatedPool
from witcert.kernels.decode import BandMeter, PagePart, Reading
from witcert.kernels.decode.launch import Meter
from witcert.kernels.extend import ExtendOutput
from witcert.kernels.formats import PageTable
from witcert.store import ops

__all__ = ["extend"]


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
