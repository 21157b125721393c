"""The pool: sequences in pages over the kernels' formats, one write path, exact copies on the host, tags that find damage."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.errors import InputError, PoolFullError
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.decode.launch import Meter
from witcert.kernels.formats import ExactStore, PageTable
from witcert.store.allocator import Moved, PageAllocator, Slots
from witcert.store.backing import Backing
from witcert.store.config import GIB, PoolConfig
from witcert.store.ops import on_kernels
from witcert.store.repair import Repairs
from witcert.store.seal import Damage, Seals
from witcert.store.tables import Tables, upload
from witcert.store.tensors import PoolTensors
from witcert.store.write import Encoder

__all__ = ["CachePool"]


class CachePool:
    """A paged KV cache of all layers; all layers share page ids.

    Parameters
    ----------
    config : what it holds.
    device : where its tensors lie.
    kernels : whether reads and writes go through the Triton kernels; None: on a GPU, yes; on a CPU, through the PyTorch
        references. True on a CPU needs Triton's interpreter.

    Order of a step: ``reserve`` slots for all sequences, then for each layer ``write`` and attend, then the next ``reserve``.

    Raises
    ------
    PoolFullError : the device or the host gives less memory than the configuration needs; the message names the bytes.
    """

    def __init__(self, config: PoolConfig, device: torch.device | str = "cpu", *, kernels: bool | None = None) -> None:
        self.config, self.device = config, torch.empty(0, device=device).device
        self.kernels = on_kernels(self.device) if kernels is None else kernels
        if self.device.type == "cuda" and not self.kernels:
            raise InputError("kernels=False on a GPU; the references are for the CPU")
        self.allocator = PageAllocator(config.pages, config.page_size, config.tokens)
        self.tensors = PoolTensors(config, self.device)
        self.stores, self.side = self.tensors.stores, self.tensors.side
        pinned = self.device.type == "cuda"
        self.host = Backing(config, pinned=pinned, kernels=self.kernels) if config.backing else None
        self._encode = Encoder(config, self.tensors.epochs, kernels=self.kernels)
        self._tables = Tables(self.allocator, config.max_pages, self.device)
        self._seals, self._side_seals = self._make_seals()
        self._repairs = Repairs(self)
        self._side_free = [list(range(config.side_pages - 1, -1, -1)) for _ in range(config.layers)]
        self._side_taken: list[set[int]] = [set() for _ in range(config.layers)]
        self._filling: set[int] = set()  # pages with rows that no seal covers yet
        self._reserved, self._written = 0, [0] * config.layers
        self._pending: list[
            np.ndarray[tuple[int], np.dtype[np.int64]]
        ] = []  # slots that some layer has not written yet

    def _make_seals(self) -> tuple[Seals | None, Seals | None]:
        c = self.config
        if not c.tags:
            return None, None
        major = not c.packed
        own = Seals(self.tensors.sealed_parts(), c.layers, c.pages, c.kv_heads, token_major=major,
                    device=self.device, kernels=self.kernels)  # fmt: skip
        if not c.side_pages:
            return own, None
        side = self.tensors.sealed_side()
        return own, Seals(side, c.layers, c.side_pages, 1, token_major=True, device=self.device, kernels=self.kernels)

    # ---- sequences

    @property
    def backing(self) -> list[ExactStore] | None:
        """Exact keys and values in host memory, one store a layer, row = slot; None without a backing store."""
        return None if self.host is None else self.host.stores

    @property
    def capturable(self) -> bool:
        """Whether ``write`` makes launches only: not where a scheme is not known to (``register(capturable=True)``)."""
        return self._encode.capturable

    @property
    def dot_gamma(self) -> float:
        """The read constant that witnesses of exact rows carry (``arith_fold``)."""
        return dot_gamma(self.config.head_dim)

    def open(self) -> int:
        """A new, empty sequence."""
        return self.allocator.open()

    def close(self, seq: int) -> None:
        """Give the pages of a sequence back; its id is not open any more."""
        self._repairs.forget(self.allocator.close(seq))
        self._tables.drop(seq)

    def length(self, seq: int) -> int:
        """Tokens of a sequence, reserved ones included."""
        return self.allocator.length(seq)

    def pages(self, seq: int) -> tuple[int, ...]:
        """Pages of a sequence in order of position."""
        return self.allocator.pages_of(seq)

    def stored(self, seq: int) -> int:
        """Tokens that a sequence ever stored, forgotten and re-encoded ones included: events of its dither."""
        return self.allocator.stored(seq)

    def truncate(self, seq: int, length: int) -> None:
        """Forget the tokens of a sequence from position ``length`` on."""
        self._repairs.forget(self.allocator.truncate(seq, length))

    def fork(self, seq: int) -> int:
        """A new sequence with the same tokens. Whole pages are shared; a partly filled last page is copied.

        Dithered codes belong to their slot, so there the copy is encoded anew from the backing store, after its tags were
        checked. Raises PoolFullError without a free page, InputError without a backing store, CorruptionError if its rows
        are damaged (the new sequence is then gone again).
        """
        self._can_move(self.allocator.length(seq) % self.config.page_size)
        child, moved = self.allocator.fork(seq)
        try:
            self._move(moved)
        except Exception:
            self.close(child)
            raise
        return child

    def _can_move(self, rows: int) -> None:
        if rows and self.config.format == "int8-dither" and self.host is None:
            raise InputError(
                "a partly filled page of dithered codes can be copied only from a backing store: backing=True, or fork at a "
                f"multiple of page_size={self.config.page_size}"
            )

    def _move(self, moved: Moved) -> None:
        """Carry rows over to slots of their own."""
        if not len(moved.source):
            return
        self._handed_out(moved.target)
        source, target = (upload(x, torch.int64, self.device) for x in (moved.source, moved.target))
        dithered = self.config.format == "int8-dither"
        if not dithered:
            self.tensors.copy_rows(source, target)
        if self.host is not None:
            for layer in range(self.config.layers):
                if self._written[layer]:
                    self._repairs.rewrite(layer, source, target, encode=dithered)

    def reserve(self, seqs: Sequence[int], counts: Sequence[int], out: Tensor | None = None) -> Tensor:
        """Slots of ``counts[i]`` new tokens of each sequence, int64 [sum(counts)] on the device, in order.

        The tokens of the previous reservation must have been written by now. out : tensor to fill, for captured graphs.

        Raises
        ------
        PoolFullError : too few free pages; nothing was changed.
        InputError : a sequence that is not open or would have more than ``config.tokens`` tokens; nothing was changed.
        """
        for seq, n in zip(seqs, counts, strict=False):
            self._can_move(self.allocator.shared_tail(seq) if n else 0)
        if out is not None and (out.shape != (sum(counts),) or out.dtype != torch.int64 or out.device != self.device):
            expected = f"int64 ({sum(counts)},) on {self.device}"
            raise InputError(f"out is {out.dtype} {tuple(out.shape)} on {out.device}; expected {expected}")
        self._seal_full()
        got = self.allocator.reserve(seqs, counts)
        self._move(got.moved)
        self._handed_out(got.slots)
        if all(n in (0, self._reserved) for n in self._written):
            self._pending.clear()
        self._pending.append(got.slots)
        self._reserved += len(got.slots)
        slots = upload(got.slots, torch.int64, self.device)
        return slots if out is None else out.copy_(slots)

    def _handed_out(self, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        pages = set((slots // self.config.page_size).tolist())
        self._filling |= pages
        if self._seals is not None:
            self._seals.forget(pages)
        if self._side_seals is not None:
            self._side_seals.forget_pairs(*self._repairs.beside(pages))
        self.set_epochs(slots)

    def set_epochs(self, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Put the epochs that the allocator knows on the device."""
        if self.tensors.epochs is not None and len(slots):
            words = self.allocator.epochs[slots]
            words = np.where(words >= 2**31, words - 2**32, words)
            self.tensors.epochs[upload(slots, torch.int64, self.device)] = upload(words, torch.int32, self.device)

    def _seal_full(self) -> None:
        """Seal the pages that were filled since, in the layers that were written, and their side pages."""
        self.seal_side()
        full = {p for p in self._filling if self.allocator.fill[p] == self.config.page_size}
        layers = [i for i, n in enumerate(self._written) if n == self._reserved]
        if full and layers:
            if self._seals is not None:
                self._seals.seal(layers, sorted(full))
            if self._side_seals is not None:
                layer, side = self._repairs.beside(sorted(full))
                done = np.isin(layer, layers)
                self._side_seals.seal_pairs(layer[done], side[done])
            self._filling -= full
        self._filling = {p for p in self._filling if self.allocator.references(p)}

    def seal_side(self) -> None:
        """Seal the side pages that repairs have filled since; ``reserve`` does so at the latest."""
        if self._side_seals is not None:
            self._side_seals.seal_pairs(*self._repairs.full())

    def rows_of(self, layer: int, pages: Slots) -> tuple[Slots, Slots]:
        """Slots of pages [P] that the layer has written, page by page, and which of the pages each is in (0..P-1)."""
        size = self.config.page_size
        within = np.arange(size)
        listed = within < self.allocator.fill[pages][:, None]  # [P, page_size]
        if self._written[layer] != self._reserved:
            slots = pages[:, None] * size + within
            listed &= ~np.isin(slots, np.concatenate(self._pending)) if self._written[layer] else False
        item, row = listed.nonzero()
        return pages[item] * size + row, item

    # ---- write and read

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store exact keys (after RoPE) and values of new tokens at reserved slots; the witness and the backing store too.

        k, v : [N, Hkv, d] in the dtype of the pool. Without a backing store also float32: what the store's dtype cannot
        hold is then part of the residual that the witness counts. slots : int64 [N] from :meth:`reserve`.
        """
        c = self.config
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < c.layers:
            raise InputError(f"layer={layer!r} is outside 0..{c.layers - 1}")
        wide = self.host is None and not c.outliers
        for name, x in (("k", k), ("v", v)):
            if x.ndim != 3 or x.shape != (len(slots), c.kv_heads, c.head_dim) or x.device != self.device:
                expected = f"({len(slots)}, {c.kv_heads}, {c.head_dim}) on {self.device}"
                raise InputError(f"{name} is {tuple(x.shape)} on {x.device}; expected {expected}")
            if x.dtype != c.dtype and not (wide and x.dtype == torch.float32):
                also = " or torch.float32" if wide else ""
                raise InputError(
                    f"{name} is {x.dtype}; expected {c.dtype}{also}: what is written is the exact key and value"
                )
        if slots.dtype != torch.int64 or slots.ndim != 1 or slots.device != self.device:
            raise InputError(
                f"slots is {slots.dtype} {tuple(slots.shape)} on {slots.device}; expected int64 from reserve"
            )
        self._encode(layer, self.stores[layer], k, v, slots)
        if self.host is not None:
            self.host.write(layer, k, v, slots)
        self._written[layer] = min(self._written[layer] + len(slots), self._reserved)

    def replayed(self, layer: int | None = None) -> None:
        """Say that a replayed graph has written all reserved tokens of a layer, or of all: ``write`` was not called."""
        for i in range(self.config.layers) if layer is None else (layer,):
            self._written[i] = self._reserved

    def verify_backing(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> int:
        """Read back what ``write`` of these rows left in the backing store: how many words and tags differ."""
        if self.host is None:
            raise InputError("the pool has no backing store")
        return self.host.mismatches(layer, k, v, slots)

    def table(
        self, seqs: Sequence[int], *, back: Sequence[int] | None = None, into: PageTable | None = None
    ) -> PageTable:
        """The page table of these sequences as they are now: the same device tensors each time, updated in place.

        back : tokens at the end of each sequence to leave out, such as the chunk that ``extend`` is given beside the
        cache; such a table has tensors of its own. into : a table of the same batch to fill instead of the cached one.
        """
        return self._tables.get(seqs, back, into)

    def check_table(self, table: PageTable, seqs: Sequence[int]) -> None:
        """Raise CorruptionError unless the device table lists the pages of these sequences. Waits for the device."""
        self._tables.check(table, seqs)

    def meter_for(self, kind: Literal["band", "half", "tierB"], budget: Budget | None = None) -> Meter | None:
        """The meter of that kind, or None where the format keeps nothing that it could read. budget : for Tier B."""
        c = self.config
        if kind == "band":
            return None if c.bands is None else BandMeter(c.pairing)
        if kind == "half":
            return HalfStepMeter() if c.packed else None
        if kind != "tierB":
            raise InputError(f"kind={kind!r} is none of 'band', 'half', 'tierB'")
        if c.format != "int8-dither":
            return None
        if budget is None:
            raise InputError("budget is None; Tier B shares a failure probability out")
        if (budget.layers, budget.heads, budget.kv_heads) != (c.layers, c.heads, c.kv_heads):
            theirs = f"{budget.layers} layers of {budget.heads} and {budget.kv_heads} heads"
            raise InputError(f"budget is for {theirs}; the pool has {c.layers} of {c.heads} and {c.kv_heads}")
        return TierBMeter(budget, self.config.max_pages * c.page_size)

    # ---- repair

    def side_reserve(self, layer: int, n: int) -> list[int]:
        """n pages of the layer's side pool; PoolFullError if there are fewer."""
        if n > len(self._side_free[layer]):
            raise PoolFullError(
                f"{n} side pages of layer {layer} asked for; {len(self._side_free[layer])} of {self.config.side_pages} are free"
            )
        pages = [self._side_free[layer].pop() for _ in range(n)]
        self._side_taken[layer].update(pages)
        return pages

    def side_available(self, layer: int) -> int:
        """Free pages of the layer's side pool."""
        return len(self._side_free[layer])

    def side_free(self, layer: int, pages: Iterable[int]) -> None:
        """Give side pages back."""
        given = list(pages)
        if len(set(given)) != len(given) or not self._side_taken[layer].issuperset(given):
            raise InputError(f"side pages {given} of layer {layer} are not all taken")
        self._side_taken[layer].difference_update(given)
        self._repairs.forget_side(layer, given)
        self._side_free[layer].extend(given)

    def page_in(
        self, layer: int, pages: Sequence[int] | Slots, heads: Sequence[int] | Slots,
        side_pages: Sequence[int] | Slots | None = None,
    ) -> Slots:  # fmt: skip
        """Copy exact rows of (page, KV head) pairs from the backing store; returns the bytes that were copied for each.

        Rows are compared with their tags: CorruptionError, and nothing was repaired. Into the store itself for formats that
        keep exact rows, into ``side_pages`` (one for each pair) for packed ones. The witness of a row is then
        ``RU16(gamma |k_b|)``: residual zero (``repair_exact``), arithmetic paid (``arith_fold``).
        """
        return self._repairs.page_in(layer, pages, heads, side_pages)

    @property
    def exact_pages(self) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
        """Where the exact rows of each repaired (layer, page, KV head) lie: a side page, or the page itself; -1: nowhere."""
        return self._repairs.where

    def on_freed(self, hook: Callable[[Sequence[int]], None]) -> None:
        """Call the hook with the pages that become free, before anybody can own them again."""
        self._repairs.hooks.append(hook)

    def restore(self, layer: int, pages: Iterable[int]) -> None:
        """Write damaged pages of a layer anew from the checked backing store: codes, scales, outliers, witness, epochs."""
        self._repairs.restore(layer, pages)

    # ---- damage

    def seal(self, layer: int, pages: Iterable[int]) -> None:
        """Take the content tags of pages as they are now. Full pages are sealed by ``reserve`` without being asked."""
        self._sealed().seal([layer], pages)

    def _sealed(self) -> Seals:
        if self._seals is None:
            raise InputError("the pool has no tags: tags=False")
        return self._seals

    def check(self, layer: int, pages: Iterable[int]) -> list[Damage]:
        """Which of these pages are not what they were when they were sealed. Waits for the device."""
        return self._sealed().check([layer], pages)

    def check_side(self, layer: int, side_pages: Iterable[int]) -> list[Damage]:
        """The same for full pages of the side pool."""
        self._sealed()
        return [] if self._side_seals is None else self._side_seals.check([layer], side_pages)

    def check_backing(self, layer: int, pages: Iterable[int]) -> list[Damage]:
        """Which pages have rows in the backing store that are not what was written. Waits for the device."""
        return self._repairs.check_backing([layer], list(pages))

    def sweep(self, fraction: float, seed: int) -> list[Damage]:
        """Check a random share of the pages in use, of every layer and its side pool, with their backing rows.

        Waits for the device.
        """
        if not 0.0 < fraction <= 1.0:
            raise InputError(f"fraction={fraction!r} is outside (0, 1]")
        used = [p for p in range(self.config.pages) if self.allocator.references(p)]
        drawn = sorted(random.Random(seed).sample(used, math.ceil(fraction * len(used))))
        found = [] if self._seals is None else self._seals.check(range(self.config.layers), drawn)
        if self.host is not None:
            found += self._repairs.check_backing(range(self.config.layers), drawn)
        if self._side_seals is not None:
            sides = [
                (layer, page)
                for layer, taken in enumerate(self._side_taken)
                for page in sorted(random.Random(seed).sample(sorted(taken), math.ceil(fraction * len(taken))))
            ]
            layers, pages = np.asarray(sides, np.int64).reshape(-1, 2).T
            found += [Damage(d.layer, d.page, d.head, f"side {d.part}") for d in self._side_seals.check_pairs(layers, pages)]
        return found

    # ---- memory

    def account(self) -> dict[str, float]:
        """Bytes of the tensors by part, their sums on device and host, tokens that fit, tokens per GiB of device memory."""
        parts: dict[str, float] = dict(self.tensors.bytes_by_part())
        for name, seals in (("tags", self._seals), ("side tags", self._side_seals)):
            parts[name] = 0 if seals is None else seals.tags.numel() * seals.tags.element_size()
        parts["tables"] = self._tables.bytes
        device = sum(parts.values())
        backing = () if self.host is None else (self.host.k, self.host.v)
        parts["host backing"] = sum(x.numel() * x.element_size() for x in backing)
        parts["host backing tags"] = 0 if self.host is None else self.host.tags.numel() * self.host.tags.element_size()
        host = parts["host backing"] + parts["host backing tags"]
        slots = self.config.slots
        return {**parts, "device": device, "host": host, "tokens": slots, "tokens per GiB": slots * GIB / device}
