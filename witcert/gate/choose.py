"""Which pages to make exact for the KV heads above tau: all of them, or the fewest that are predicted to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.gate.config import Gate
from witcert.gate.predict import BlockSums, plan
from witcert.gate.repairs import Repairs
from witcert.guarantees import Proved
from witcert.kernels.decode import PagePart, Reading
from witcert.kernels.decode.launch import Meter
from witcert.kernels.formats import PageTable
from witcert.store import CachePool, ops
from witcert.store.allocator import Slots

__all__ = ["Choice", "Flags", "How", "Items", "Run", "deciding", "eager"]

MAX_BLOCKS = 1024
BUCKET = 16
"""Blocks are read in multiples of so many, so that a growing sequence seldom needs another graph."""
_NONE = np.empty(0, np.int64)
Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
T = TypeVar("T")


class Items(NamedTuple):
    """Pages to make exact: row of the batch, page and KV head of each."""

    row: Slots
    page: Slots
    head: Slots


@dataclass(frozen=True, eq=False)
class How:
    """How a layer is read; the fields are arguments of ``decode``."""

    scale: float
    meter: Meter | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None


class Run(Protocol):
    """Runs launches of a kind, as a graph or as they are. layer None: they are the same for all layers."""

    def __call__(
        self, name: str, layer: int | None, how: How, given: tuple[Tensor, ...], body: Callable[..., T],
        version: tuple[Any, ...] = (),
    ) -> T: ...  # fmt: skip


def eager(
    name: str, layer: int | None, how: How, given: tuple[Tensor, ...], body: Callable[..., T], version: tuple[Any, ...] = ()
) -> T:
    """Just runs them."""
    return body(*given)


def deciding(readings: tuple[Reading, ...], gate: Gate) -> Reading:
    """The reading that the gate looks at; a proved one will do where no weaker one was asked for."""
    for r in readings:
        if isinstance(r.meter, gate.label):
            return r
    for r in readings:
        if isinstance(r.meter, Proved):
            return r
    raise InputError(f"no reading is {gate.guarantee}; the meter of the pool cannot decide this gate")


class Choice:
    """Chooses pages of a pool for a gate."""

    def __init__(self, pool: CachePool, gate: Gate, repairs: Repairs) -> None:
        self.pool, self.gate, self.repairs = pool, gate, repairs

    def whole(self, seqs: Sequence[int], fired: Flags, tokens: Sequence[int] | None = None) -> Items:
        """Every page of the KV heads that fired, bool [batch, Hkv]; only those of the first tokens[i] tokens of each row."""
        row, head = fired.nonzero()
        owned = [np.asarray(self.pool.allocator.pages_of(s), np.int64) for s in seqs]
        if tokens is not None:
            owned = [pages[: -(-n // self.pool.config.page_size)] for pages, n in zip(owned, tokens, strict=True)]
        counts = [len(owned[b]) for b in row.tolist()]
        pages = np.concatenate([*(owned[b] for b in row.tolist()), _NONE])
        return Items(np.repeat(row, counts), pages, np.repeat(head, counts))

    def planned(
        self, layer: int, q: Tensor, seqs: Sequence[int], table: PageTable, fired: Flags, lse: Tensor, how: How, run: Run
    ) -> Items:
        """The pages that bring the KV heads that fired to tau, by prediction from sums over blocks of pages.

        q [batch, Hq, d], one query for each row of the table; lse [batch, Hq] of its whole cell. Waits for the device.
        """
        size = self.pool.config.page_size
        owned = [np.asarray(self.pool.allocator.pages_of(s), np.int64) for s in seqs]
        longest = max(len(pages) for pages in owned)
        per = max(1, 16 // size, -(-longest // MAX_BLOCKS))  # pages of a block
        most = -(-longest // per)
        count = min(-(-most // BUCKET) * BUCKET, -(-table.pages.shape[1] // per))

        def body(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self._sums(layer, table, count, per, how, q)

        sums = run("blocks", layer, how, (q,), body, (count, per))
        chosen = run("plan", None, how, (*sums, lse), self._chosen).cpu().numpy()
        row, head, block = (chosen & fired[..., None]).nonzero()
        pages = [owned[b][j * per : (j + 1) * per] for b, j in zip(row.tolist(), block.tolist(), strict=True)]
        counts = [len(x) for x in pages]
        return Items(np.repeat(row, counts), np.concatenate([*pages, _NONE]), np.repeat(head, counts))

    def _sums(
        self, layer: int, table: PageTable, count: int, per: int, how: How, q: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """LSE, log A and C of each block of pages, [3, batch, count, Hq]; which blocks there are, bool [batch, count]; what a
        repair leaves of C, float64 [batch, Hq].

        Each of the first ``count`` blocks of ``per`` pages is read as a sequence of its own, all in one call.
        """
        batch, size = len(q), self.pool.config.page_size
        pages = table.pages[:, : count * per]
        if pages.shape[1] < count * per:
            pages = torch.nn.functional.pad(pages, (0, count * per - pages.shape[1]))
        start = torch.arange(count, dtype=torch.int32, device=q.device) * (per * size)
        rest = table.seq_lens[:, None] - start  # [batch, count]
        lens = rest.clamp(0, per * size).flatten()
        short = PageTable(pages.reshape(batch * count, per).contiguous(), lens, size)
        side = self.repairs.side_table(layer, short)
        got = ops.decode(
            self.pool, layer, q.repeat_interleave(count, 0), short, scale=how.scale, meter=how.meter, softcap=how.softcap,
            part=None if side is None else PagePart(side[0], 0),
        )  # fmt: skip
        reading = deciding(got.readings, self.gate)
        found = torch.stack((got.lse, reading.log_a, reading.c_max)).view(3, batch, count, -1)
        left = self.repairs.residual(layer, torch.linalg.vector_norm(q.double(), dim=-1), how.scale)
        return found, rest > 0, left

    def _chosen(self, found: Tensor, there: Tensor, left: Tensor, lse: Tensor) -> Tensor:
        """The blocks that bring each KV head to tau, by prediction from :meth:`_sums`: bool [batch, Hkv, count].

        LSE, A and C of a block are its mass, its ``up`` and its largest c; lse [batch, Hq] is that of the whole cell.
        """
        batch, hkv = len(lse), self.pool.config.kv_heads
        # [batch, Hkv, G, count] and [batch, Hkv, G]
        block_lse, log_a, c_max = found.double().view(3, batch, -1, hkv, lse.shape[1] // hkv).permute(0, 1, 3, 4, 2)
        whole, left = (x.double().view(batch, hkv, -1) for x in (lse, left))
        inside = there[:, None, None, :]
        mass = torch.where(inside, (block_lse - whole[..., None]).exp(), 0.0)
        up = torch.where(mass == 0, 0.0, mass * log_a.exp())
        down = torch.where(mass > 0, mass * mass / up, 0.0).nan_to_num(nan=0.0)
        other = (1.0 - mass.sum(-1)).clamp(min=0.0)  # exact already, or a sink
        blocks = BlockSums(mass, up, down, torch.where(inside, c_max, -torch.inf), other, other * left.exp(), left)
        return plan(blocks, self.gate.tau, left).blocks & there[:, None]
