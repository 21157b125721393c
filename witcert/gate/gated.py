"""Attention over a pool behind a gate: read, meter, repair what is above tau, read again.

Where the repaired tokens live depends on the format of the pool. Exact and scheme pools are repaired in place: the exact
rows replace the served ones. Packed pools cannot hold an exact row; theirs goes to a side pool of pages of one KV head, and
the two parts are read apart and merged (``lse_merge``). Either way a repaired page stays repaired until its page is freed,
and what is written to it later is repaired at once. Nothing is paged in twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from witcert.gate.choose import Choice, Flags, How, Items, deciding
from witcert.gate.config import Gate
from witcert.gate.ledger import Ledger
from witcert.gate.repairs import Repairs
from witcert.gate.replay import Replays
from witcert.guarantees import Proved
from witcert.kernels.decode import BandMeter, DecodeOutput, PagePart, Reading, ReadingBuffers, TierBMeter
from witcert.kernels.decode.launch import Meter
from witcert.kernels.formats import PageTable
from witcert.kernels.telemetry.step import float32_below
from witcert.store import CachePool, ops
from witcert.store.allocator import Slots
from witcert.store.tables import upload

__all__ = ["Attended", "GatedPool"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention call of one layer after the gate.

    output : what the layer goes on with; its readings are of what was served in the end. before : the readings of the first
    read. fired : bool [batch, Hkv], KV heads that were above tau (None with the gate off). pages, bytes : what was paged in
    for this call, in pages of one KV head. refused : pages that could not be repaired because the side pool is full.
    """

    output: DecodeOutput
    before: tuple[Reading, ...]
    fired: Tensor | None
    pages: int = 0
    bytes: int = 0
    refused: int = 0

    def apart(self) -> Attended:
        """The same in memory of its own, for who keeps it while the model goes on."""

        def own(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
            return tuple(
                Reading(replace(r.meter, value=torch.as_tensor(r.meter.value).clone()), r.log_a.clone(), r.c_max.clone())
                for r in readings
            )

        after = self.output.readings
        output = DecodeOutput(self.output.out.clone(), self.output.lse.clone(), own(after))
        before = output.readings if self.before is after else own(self.before)
        return replace(self, output=output, before=before)


@dataclass(frozen=True, eq=False)
class Done:
    """What was repaired for one call: KV heads that fired, bool [batch, Hkv]; pages and bytes of each row; pages refused."""

    fired: Flags
    pages: Slots
    bytes: Slots
    refused: int


def _kept(output: DecodeOutput) -> DecodeOutput:
    """The output outside the memory of the graphs, in which the next one may overwrite it; its meters and C lie elsewhere."""
    if not output.out.is_cuda:
        return output
    readings = tuple(replace(r, log_a=r.log_a.clone()) for r in output.readings)
    return DecodeOutput(output.out.clone(), output.lse.clone(), readings)


class GatedPool:
    """A pool whose decode steps are gated; sequences, writes and lengths are the pool's.

    Raises InputError if the gate repairs and the pool has no backing store, or a packed pool has no side pages.
    """

    def __init__(self, pool: CachePool, gate: Gate, ledger: Ledger | None = None) -> None:
        self.pool, self.gate, self.ledger = pool, gate, ledger or Ledger()
        self.repairs = None if gate.mode == "off" else Repairs(pool)
        self.choice = None if self.repairs is None else Choice(pool, gate, self.repairs)
        self.replays = Replays()
        self._own: dict[tuple[Any, ...], ReadingBuffers] = {}
        self._made: set[tuple[int, int]] = set()
        """Layers and batches whose steps have run: what they write with is compiled."""
        self._at: tuple[Tensor, Sequence[int], PageTable] | None = None
        self._most = float32_below(gate.tau)  # a float32 meter is at most tau iff it is at most this

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store the exact keys and values [N, Hkv, d] of new tokens; repaired pages stay repaired."""
        self.pool.write(layer, k, v, slots)
        if self.repairs is not None:
            self.repairs.after_write(layer, k, v, slots)

    def _decode(
        self, layer: int, q: Tensor, table: PageTable, how: How, into: ReadingBuffers | None = None
    ) -> DecodeOutput:
        """The whole cell, from one store or from two."""
        side = None if self.repairs is None else self.repairs.side_table(layer, table)
        if side is None:
            return ops.decode(
                self.pool, layer, q, table, scale=how.scale, meter=how.meter, window=how.window, softcap=how.softcap,
                sinks=how.sinks, into=into,
            )  # fmt: skip
        parts, pages = side
        batch, hkv, count = parts.shape
        heads, d = q.shape[1:]
        first = ops.decode(
            self.pool, layer, q, table, scale=how.scale, meter=how.meter, window=how.window, softcap=how.softcap,
            sinks=how.sinks, part=PagePart(parts, 0),
        )  # fmt: skip
        lens = table.seq_lens.repeat_interleave(hkv).contiguous()
        exact = ops.decode(
            self.pool, layer, q.reshape(batch * hkv, heads // hkv, d), PageTable(pages, lens, table.page_size),
            store=self.pool.side[layer], meter=None if how.meter is None else BandMeter(self.pool.config.pairing),
            scale=how.scale, window=how.window, softcap=how.softcap,
            part=PagePart(parts.view(batch * hkv, 1, count), 1),
        )  # fmt: skip
        shaped = tuple(
            Reading(Proved(torch.as_tensor(r.meter.value).view(batch, heads), r.meter.theorem),
                    r.log_a.view(batch, heads), r.c_max.view(batch, heads))
            for r in exact.readings
        )  # fmt: skip
        exact = DecodeOutput(exact.out.view(batch, heads, d), exact.lse.view(batch, heads), shaped)
        return ops.merge(self.pool, first, exact, tokens=max(1, table.max_tokens), into=into)

    def above(self, readings: tuple[Reading, ...]) -> Tensor:
        """Cells that the deciding reading puts above tau, or NaN: bool [batch, Hq] ([batch, C, Hq] of a chunk)."""
        return ~(torch.as_tensor(deciding(readings, self.gate).meter.value) <= self._most)

    def any_of_group(self, above: Flags) -> Flags:
        """KV heads any of whose query heads is above tau, [batch, Hkv]."""
        return np.asarray(above.reshape(len(above), self.pool.config.kv_heads, -1).any(-1))

    def step(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, seqs: Sequence[int], *, scale: float,
        meter: Meter | None = None, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
        into: ReadingBuffers | None = None,
    ) -> Attended:  # fmt: skip
        """``write`` of one token per sequence and ``attend`` to it, on a GPU as one CUDA graph once it is known.

        k, v : exact keys and values [batch, Hkv, d] of the new tokens, which lie in slots [batch], the tensor that ``reserve``
        gave for this step; the other arguments as in :meth:`attend`. into : where the first read puts its meters, as in
        ``decode``.

        ``out`` of the result is the caller's. Its meters and C hold until the next step of this layer, or until ``into`` is
        written again; all else, until the next step of any layer. ``Attended.apart`` copies what is to be kept.
        """
        if self._at is None or self._at[0] is not slots or self._at[1] != seqs:  # once for all layers of a step
            self._at = slots, seqs, self.pool.table(seqs)
        table, how = self._at[2], How(scale, meter, window, softcap, sinks)
        gated = self.repairs is not None and meter is not None

        def body(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[DecodeOutput, Tensor | None]:
            self.write(layer, k, v, rest[-1])
            output = self._decode(layer, q, table, replace(how, sinks=rest[0] if len(rest) == 2 else None), into)
            return output, self.above(output.readings) if gated else None

        self._begin(table)
        into = into or self._buffers(("step", layer), q, meter)
        given = (q, k, v) if sinks is None else (q, k, v, sinks)
        if not self.pool.capturable:  # a scheme is anybody's code: it may wait for the device
            output, above = body(*given, slots)
        else:
            place = None if into is None else (into.meter.data_ptr(), into.c_max.data_ptr())
            key = self._key(layer, how)
            made = layer, len(q)  # another layer's writes may have other numbers built in
            kind = ("step", *key[1:]) if made in self._made else None
            self._made.add(made)
            output, above = self.replays.run(
                ("step", *key, place), given, body, shared=slots, replayed=lambda: self.pool.replayed(layer), kind=kind
            )
            output = replace(output, out=output.out.clone()) if q.is_cuda else output
        return self._settle(layer, q, seqs, table, how, output, above)

    def _begin(self, table: PageTable) -> None:
        """Graphs are of these page tables."""
        if self.replays.begin((table.pages.data_ptr(), table.seq_lens.data_ptr(), table.pages.shape)):
            self._own.clear()

    def _buffers(self, name: tuple[Any, ...], q: Tensor, meter: Meter | None) -> ReadingBuffers | None:
        """Memory of its own for the meters and C of one kind of read, outside that of the graphs: what one graph leaves in
        theirs, the next may overwrite. None where nothing is replayed."""
        if meter is None or not (q.is_cuda and self.replays.enabled):
            return None
        key = (*name, meter, q.shape)
        if key not in self._own:
            shape = 2 if isinstance(meter, TierBMeter) else 1, *q.shape[:2]
            self._own[key] = ReadingBuffers(*(torch.empty(shape, device=q.device) for _ in range(2)))
        return self._own[key]

    def _key(self, layer: int, how: How) -> tuple[Any, ...]:
        """What decides which launches a read makes."""
        beside = self.repairs is not None and self.repairs.counts[layer] > 0
        return layer, beside, how.scale, how.meter, how.window, how.softcap, how.sinks is None

    def _replayed(
        self, name: str, layer: int | None, how: How, given: tuple[Tensor, ...], body: Callable[..., T],
        version: tuple[Any, ...] = (),
    ) -> T:  # fmt: skip
        """A read of one layer, by a graph; the first of all layers compiles what the others then launch."""
        if layer is None:
            return self.replays.run((name,), given, body, version=version)
        key = self._key(layer, how)
        return self.replays.run((name, *key), given, body, version=version, kind=(name, *key[1:], *version))

    def attend(
        self, layer: int, q: Tensor, seqs: Sequence[int], *, scale: float, meter: Meter | None = None,
        window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
    ) -> Attended:  # fmt: skip
        """One query token per sequence, q [batch, Hq, d]; arguments as in ``decode``, and what the gate made of it.

        With the gate on, one small result is waited for in each call; nothing else is, unless a head fires. Raises
        CorruptionError if a repair finds the backing store damaged: nothing is repaired from it and no output is returned.
        """
        table, how = self.pool.table(seqs), How(scale, meter, window, softcap, sinks)
        self._begin(table)
        output = self._decode(layer, q, table, how)
        above = self.above(output.readings) if self.repairs is not None and meter is not None else None
        attended = self._settle(layer, q, seqs, table, how, output, above)
        return attended if attended.output is output or not q.is_cuda else attended.apart()

    def _settle(
        self, layer: int, q: Tensor, seqs: Sequence[int], table: PageTable, how: How, output: DecodeOutput,
        above: Tensor | None,
    ) -> Attended:  # fmt: skip
        """What the gate makes of the first read; above: the cells above tau, None without a gate."""
        if self.repairs is None or above is None:
            return Attended(output, output.readings, None)
        first = now = above.cpu().numpy()  # the device is waited for here, and once for each repair
        fired = self.any_of_group(first)
        if not fired.any():
            for seq in seqs:
                self.ledger.of(seq).add(cells=first.shape[1], certified=first.shape[1])
            return Attended(output, output.readings, torch.from_numpy(fired))
        output = _kept(output)
        before = output.readings

        def planned(left: Flags) -> Items:
            assert self.choice is not None
            return self.choice.planned(layer, q, seqs, table, left, output.lse, how, self._replayed)

        def again(left: Flags) -> Flags:
            nonlocal output, now
            output, above = self._again(layer, q, table, left.any(1).nonzero()[0], output, how)
            now = above.cpu().numpy()
            return self.any_of_group(now)

        done = self.repaired(layer, fired, seqs, None, again, None if how.window is not None else planned)
        self._book(seqs, ~first, ~now, done)
        moved = int(done.pages.sum()), int(done.bytes.sum())
        return Attended(output, before, torch.from_numpy(done.fired), *moved, done.refused)

    def repaired(
        self, layer: int, fired: Flags, seqs: Sequence[int], tokens: Sequence[int] | None, again: Callable[[Flags], Flags],
        planned: Callable[[Flags], Items] | None,
    ) -> Done:  # fmt: skip
        """Repair until no KV head fires, or nothing is left to repair.

        fired : bool [batch, Hkv]. tokens : of each row, those that may be repaired (None: all). planned : pages for the heads
        that fire, by prediction (None: whole heads at once). again : reads anew after pages became exact; which heads fire.
        """
        assert self.repairs is not None
        assert self.choice is not None
        pages, moved, refused = np.zeros(len(seqs), np.int64), np.zeros(len(seqs), np.int64), 0
        left = fired
        for attempt in range(self.gate.rounds + 1):
            if not left.any():
                break
            whole = self.gate.mode == "head" or attempt == self.gate.rounds or planned is None
            items = self.choice.whole(seqs, left, tokens) if whole or planned is None else planned(left)
            size, unable = self.repairs.repair(layer, items.page, items.head)
            done, refused = size > 0, refused + unable
            np.add.at(pages, items.row[done], 1)
            np.add.at(moved, items.row, size)
            if whole and not done.any():
                break
            if done.any():
                left = again(left)  # a read of two parts is a little looser: another head may be above tau now
                fired = fired | left
        return Done(fired, pages, moved, refused)

    def _again(
        self, layer: int, q: Tensor, table: PageTable, rows: Slots, output: DecodeOutput, how: How
    ) -> tuple[DecodeOutput, Tensor]:
        """The output with the given rows read anew, and the cells above tau; on a GPU all rows are, by a graph."""
        if q.is_cuda or len(rows) == len(q):
            into = self._buffers(("again", layer), q, how.meter)

            def body(q: Tensor, *rest: Tensor) -> tuple[DecodeOutput, Tensor]:
                new = self._decode(layer, q, table, replace(how, sinks=rest[0] if rest else None), into)
                return new, self.above(new.readings)

            given = (q,) if how.sinks is None else (q, how.sinks)
            new, above = self._replayed("again", layer, how, given, body)
            return _kept(new), above
        at = upload(rows, torch.int64, q.device)
        some = PageTable(table.pages[at].contiguous(), table.seq_lens[at].contiguous(), table.page_size)
        new = self._decode(layer, q[at].contiguous(), some, how)

        def put(old: float | Tensor, fresh: float | Tensor) -> Tensor:
            return torch.as_tensor(old).index_copy(0, at, torch.as_tensor(fresh))

        readings = []
        for old, r in zip(output.readings, new.readings, strict=True):
            label = type(r.meter)(put(old.meter.value, r.meter.value), r.meter.theorem, r.meter.delta)
            readings.append(Reading(label, put(old.log_a, r.log_a), put(old.c_max, r.c_max)))
        new = DecodeOutput(put(output.out, new.out), put(output.lse, new.lse), tuple(readings))
        return new, self.above(new.readings)

    def _book(self, seqs: Sequence[int], was: Flags, now: Flags, done: Done) -> None:
        """Enter the call into the ledger. was, now : cells [batch, Hq] within tau before and after repair."""
        columns = (was & now).sum(1), (~was & now).sum(1), done.fired.sum(1), done.pages, done.bytes
        for seq, *row in zip(seqs, *(x.tolist() for x in columns), strict=True):
            certified, repaired, fires, paged, size = row
            self.ledger.of(seq).add(
                cells=was.shape[1], certified=certified, repaired=repaired, fired=fires, pages=paged, moved=size
            )
