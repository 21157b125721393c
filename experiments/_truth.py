"""What attention reads now and what it should have read, in float64, for all cells of a layer at once.

The served keys are computed from the stored codes, scales, dither and side pages by a formula of their own, not by the
code that serves them; the exact ones are those that were written, or those of the backing store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from witcert import bounds
from witcert.gate import GatedPool
from witcert.guarantees import Labelled
from witcert.kernels.decode.launch import Reading
from witcert.kernels.formats import GROUP, ExactStore, PackedStore, PageTable
from witcert.kernels.philox.reference import CHANNELS_PER_DRAW, draw_bytes, pack_counter, philox4x32

__all__ = ["Exact", "Violations", "exact_of", "served_keys", "slots_of"]

CHUNK = 2**27
"""Numbers of one float64 tensor of keys: sequences are taken so many at a time that it stays below a GiB."""


def slots_of(table: PageTable, width: int) -> Tensor:
    """Slot of each of the first ``width`` positions, int64 [R, width]; positions past the end read slot 0 of their page."""
    position = torch.arange(width, device=table.pages.device)
    last = (table.seq_lens.long()[:, None] - 1).clamp_min(0)
    at = torch.minimum(position[None], last)
    return table.pages.long().gather(1, at // table.page_size) * table.page_size + at % table.page_size


def _dither(store: PackedStore, slots: Tensor) -> Tensor:
    """xi of the keys at these slots [N], float64 [N, Hkv, d]."""
    assert store.dither is not None
    assert store.epochs is not None
    device = slots.device
    counter = pack_counter(
        layer=store.dither.layer,
        head=torch.arange(store.kv_heads, device=device)[None, :, None],
        slot=slots[:, None, None],
        epoch=(store.epochs[slots].long() & 0xFFFFFFFF)[:, None, None],
        block=torch.arange(store.head_dim // CHANNELS_PER_DRAW, device=device),
        side=0,
    )
    drawn = draw_bytes(philox4x32(counter, store.dither.seed, store.dither.rounds)).flatten(-2)
    return (2 * drawn - 255).double() / 512


def _stored(store: ExactStore | PackedStore, slots: Tensor) -> Tensor:
    """Keys that the store serves at these slots [N], as real numbers, float64 [N, Hkv, d]."""
    if isinstance(store, ExactStore):
        return store.k[slots].double()
    page, row = slots // store.page_size, slots % store.page_size
    code = store.k_code[page, :, row].double()
    if store.dither is not None:
        code = code - _dither(store, slots)
    keys = code * store.k_scale[page, :, row].double().repeat_interleave(GROUP, -1)
    if store.k_outlier is not None and store.outlier_channels is not None:
        index = store.outlier_channels.long().expand(len(slots), -1, -1)
        keys = keys.scatter(2, index, store.k_outlier[page, :, row].double())
    return keys


def served_keys(gated: GatedPool, layer: int, table: PageTable, width: int) -> Tensor:
    """Keys that a read of these sequences uses now, float64 [R, width, Hkv, d]; repaired pages are the exact ones."""
    pool, slots = gated.pool, slots_of(table, width)
    rows = len(slots)
    keys = _stored(pool.stores[layer], slots.flatten()).view(rows, width, pool.config.kv_heads, pool.config.head_dim)
    side = None if gated.repairs is None else gated.repairs.side_table(layer, table)
    if side is None:
        return keys
    parts, pages = side  # [R, Hkv, P], [R * Hkv, P]
    column = (torch.arange(width, device=slots.device) // table.page_size).clamp(max=parts.shape[2] - 1)
    beside = parts[:, :, column].bool().transpose(1, 2)  # [R, T, Hkv]
    at = pages.view(parts.shape).long()[:, :, column].transpose(1, 2) * table.page_size + (slots % table.page_size)[..., None]
    exact = pool.side[layer].k[at.clamp(min=0), 0].double()  # [R, T, Hkv, d]
    return torch.where(beside[..., None], exact, keys)


def exact_of(gated: GatedPool, layer: int, table: PageTable, width: int) -> Tensor:
    """Exact keys of these sequences out of the backing store, [R, width, Hkv, d] on the device. Waits for the device."""
    assert gated.pool.backing is not None
    slots = slots_of(table, width).cpu()  # what is on its way to the host has arrived then
    return gated.pool.backing[layer].k[slots].to(table.pages.device)


@dataclass(eq=False)
class Exact:
    """Exact attention of one query per sequence, computed once.

    q [R, Hq, d]; k, v [R, T, Hkv, d], exact; lens [R]; scale, softcap, sinks [Hq] as the model uses them.
    out : exact output, float64 [R, Hq, d].
    """

    q: Tensor
    k: Tensor
    lens: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    v: Tensor | None = None
    out: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.v is not None:
            outs = []
            for rows in self._chunks():
                p = self._softmax(self._capped(self._dot(self.k[rows].double(), rows)), rows)[..., : self.k.shape[1]]
                outs.append(torch.einsum("rhgt,rthd->rhgd", p, self.v[rows].double()).flatten(1, 2))
            self.out = torch.cat(outs)

    def _chunks(self) -> Iterator[slice]:
        step = max(1, CHUNK // max(1, self.k[0].numel()))
        return (slice(i, i + step) for i in range(0, len(self.k), step))

    def _dot(self, keys: Tensor, rows: slice) -> Tensor:
        """Logits before the cap [r, Hkv, G, T]."""
        q = self.q[rows].double().view(len(keys), keys.shape[2], -1, keys.shape[3])
        return torch.einsum("rhgd,rthd->rhgt", q, keys) * self.scale

    def _capped(self, raw: Tensor) -> Tensor:
        return raw if self.softcap is None else self.softcap * torch.tanh(raw / self.softcap)

    def _softmax(self, logits: Tensor, rows: slice) -> Tensor:
        """Weights [r, Hkv, G, T (+ 1 with sinks)]."""
        position = torch.arange(logits.shape[-1], device=logits.device)
        hidden = (position >= self.lens[rows].to(logits.device)[:, None])[:, None, None]
        logits = logits.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            column = self.sinks.double().view(1, *logits.shape[1:3], 1).expand(len(logits), -1, -1, 1)
            logits = torch.cat((logits, column), -1)
        return torch.softmax(logits, -1)

    def variation(self, gated: GatedPool, layer: int, table: PageTable) -> Tensor:
        """Total variation between exact attention and what a read serves now, rounded down, float64 [R, Hq]."""
        width, parts = self.k.shape[1], []
        for rows in self._chunks():
            some = PageTable(table.pages[rows].clone(), table.seq_lens[rows].clone(), table.page_size)
            served = served_keys(gated, layer, some, width)
            exact = self.k[rows].double()
            raw, here = self._dot(served, rows), (slice(None), slice(None), slice(None), slice(0, width))
            error = self._dot(served - exact, rows)
            if self.softcap is not None:
                error = self._capped(raw) - self._capped(raw - error)
            p = self._softmax(self._capped(raw), rows)
            full = torch.zeros_like(p)
            full[here] = torch.where(p[here] > 0, error, 0.0)
            parts.append(bounds.total_variation_of_errors(p, full).flatten(1, 2))
        return torch.cat(parts)

    def floor(self) -> Tensor:
        """Error of the exact output rounded to 16 bits, float64 [R, Hq]: the least that an output in the type of q can have."""
        assert self.out is not None
        return self.error(self.out.to(self.q.dtype))

    def error(self, out: Tensor) -> Tensor:
        """Distance of an output [R, Hq, d] to the exact one, relative to the norm of the exact one, float64 [R, Hq]."""
        assert self.out is not None
        distance: Tensor = (out.double() - self.out).norm(dim=-1) / self.out.norm(dim=-1)
        return distance


@dataclass
class Violations:
    """Cells in which a reading is below the truth, by label."""

    cells: dict[str, int] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)

    def check(self, readings: tuple[Reading, ...], truth: Tensor) -> None:
        """Compare readings [R, Hq] with the truth; NaN on either side is a violation."""
        for reading in readings:
            self.compare(reading.meter, truth)

    def compare(self, meter: Labelled, truth: Tensor) -> None:
        """The same for one labelled number."""
        value = torch.as_tensor(meter.value).to(truth)
        name = meter.label
        excess = value - truth
        self.cells[name] = self.cells.get(name, 0) + value.numel()
        self.below[name] = self.below.get(name, 0) + int((~(excess >= 0)).sum())
        self.least[name] = min(self.least.get(name, float("inf")), float(excess.nan_to_num(nan=-1.0).min()))

    def add(self, other: Violations) -> None:
        """Count another's cells too."""
        for name, n in other.cells.items():
            self.cells[name] = self.cells.get(name, 0) + n
            self.below[name] = self.below.get(name, 0) + other.below[name]
            self.least[name] = min(self.least.get(name, float("inf")), other.least[name])

    @property
    def proved(self) -> int:
        """Violations of proved readings."""
        return self.below.get("proved", 0)

    def to_json(self) -> dict[str, dict[str, float]]:
        return {n: {"cells": self.cells[n], "violations": self.below[n], "least_excess": self.least[n]} for n in self.cells}
