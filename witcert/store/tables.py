"""Page tables on the device, kept up to date in place, so that a captured graph sees the cache grow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from witcert.errors import CorruptionError, InputError
from witcert.kernels.formats import PageTable
from witcert.store.allocator import PageAllocator

__all__ = ["Tables", "upload"]

Key = tuple[tuple[int, ...], bool]
STAGED = 2**15
"""Bytes up to which a copy from ordinary memory is not seen to wait. CUDA would allow it to, which costs time and no more."""


def upload(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers on the device, without waiting for it: large ones through pinned memory, small ones with the command."""
    x = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    if x.nbytes > STAGED and device.type == "cuda":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


class _Row:
    """What one row of a device table holds."""

    def __init__(self) -> None:
        self.pages: tuple[int, ...] = ()
        self.length = -1


class Tables:
    """Device page tables by the sequences that they list; each is one pair of tensors for as long as all are open.

    Pages past the end of a sequence are 0, which nothing reads.
    """

    def __init__(self, allocator: PageAllocator, max_pages: int, device: torch.device) -> None:
        self.allocator, self.max_pages, self.device = allocator, max_pages, device
        self._tables: dict[Key, tuple[PageTable, list[_Row]]] = {}
        self._rows: dict[int, list[_Row]] = {}

    def new(self, batch: int) -> PageTable:
        """An empty table for so many sequences."""
        pages = torch.zeros(batch, self.max_pages, dtype=torch.int32, device=self.device)
        return PageTable(pages, torch.zeros(batch, dtype=torch.int32, device=self.device), self.allocator.page_size)

    def get(self, sequences: Sequence[int], back: Sequence[int] | None = None, into: PageTable | None = None) -> PageTable:
        """The table of these sequences, as they are now, without the last ``back[i]`` tokens of each.

        into : tensors to fill instead of the cached ones, of the same batch.
        """
        key = tuple(sequences), back is not None
        less = [0] * len(key[0]) if back is None else list(back)
        if len(less) != len(key[0]):
            raise InputError(f"back has {len(less)} entries for {len(key[0])} sequences")
        if into is not None:
            if into.pages.shape != (len(key[0]), self.max_pages) or into.pages.device != self.device:
                expected = f"({len(key[0])}, {self.max_pages}) on {self.device}"
                raise InputError(f"into is {tuple(into.pages.shape)} on {into.pages.device}; expected {expected}")
            table, rows = into, self._known(into)
        else:
            if key not in self._tables:
                table = self.new(len(key[0]))
                self._tables[key] = table, [_Row() for _ in key[0]]
            table, rows = self._tables[key]
        self._fill(table, rows, key[0], less)
        return table

    def _known(self, table: PageTable) -> list[_Row]:
        """What a table that is not ours holds is not known: everything is written."""
        return [_Row() for _ in range(table.batch)]

    def _fill(self, table: PageTable, rows: list[_Row], sequences: tuple[int, ...], less: list[int]) -> None:
        lengths = []
        for b, (row, sequence, n) in enumerate(zip(rows, sequences, less, strict=True)):
            length = self.allocator.length(sequence) - n
            if not 0 <= length <= self.allocator.length(sequence):
                raise InputError(f"back={n} of sequence {sequence}, which has {length + n} tokens")
            lengths.append(length)
            pages = self.allocator.pages_of(sequence)
            if pages != row.pages:
                pairs = zip(pages, row.pages, strict=False)
                first = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(pages), len(row.pages)))
                if first < len(pages):
                    table.pages[b, first : len(pages)] = upload(np.asarray(pages[first:]), torch.int32, self.device)
                row.pages = pages
        if lengths != [row.length for row in rows]:
            table.seq_lens.copy_(upload(np.asarray(lengths), torch.int32, self.device))
            for row, length in zip(rows, lengths, strict=True):
                row.length = length

    def drop(self, sequence: int) -> None:
        """Forget the tables that list a sequence."""
        self._tables = {key: kept for key, kept in self._tables.items() if sequence not in key[0]}

    def check(self, table: PageTable, sequences: Sequence[int]) -> None:
        """Raise CorruptionError unless the device table is that of these sequences. Waits for the device."""
        lengths, pages = table.seq_lens.tolist(), table.pages.cpu()
        for b, sequence in enumerate(sequences):
            owned = self.allocator.pages_of(sequence)
            if not 0 <= lengths[b] <= self.allocator.length(sequence):
                raise CorruptionError(
                    f"page table: row {b} has {lengths[b]} tokens, sequence {sequence} has {self.allocator.length(sequence)}"
                )
            used = -(-lengths[b] // self.allocator.page_size)
            if pages[b, :used].tolist() != list(owned[:used]):
                raise CorruptionError(f"page table: row {b} does not list the pages of sequence {sequence}")

    @property
    def bytes(self) -> int:
        """Bytes of the cached tables."""
        tensors = [x for table, _ in self._tables.values() for x in (table.pages, table.seq_lens)]
        return sum(x.numel() * x.element_size() for x in tensors)
