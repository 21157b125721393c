"""Which page belongs to whom: free pages, reference counts, epochs of slots. Host side only; it moves no data.

A page is owned by one sequence or shared by several (a common prefix); only a page with one owner is ever written. A slot's
epoch counts how often it was handed out again: without it a recycled slot would repeat its dither. Epochs are 32-bit
words of the random counter, so a slot whose epoch cannot grow any more is never handed out again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from witcert.errors import InputError, PoolFullError
from witcert.kernels.formats import PAGE_SIZES

__all__ = ["MAX_EPOCH", "Moved", "PageAllocator", "Reservation", "Slots"]

MAX_EPOCH = 2**32 - 1
Slots = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Moved:
    """Rows that the caller has to carry over, because their page is shared: slots of the same tokens, old and new."""

    source: Slots
    target: Slots


@dataclass(frozen=True)
class Reservation:
    """Slots of the new tokens in order, and the rows to carry over before they are written."""

    slots: Slots
    moved: Moved


@dataclass
class _Sequence:
    pages: list[int] = field(default_factory=list)
    length: int = 0
    stored: int = 0  # tokens that it ever stored
    version: int = 0


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name}={value!r} is not a whole number >= {least}")
    return int(value)


def _joined(parts: list[Slots]) -> Slots:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class PageAllocator:
    """Pages of a pool and the sequences that own them.

    Parameters
    ----------
    pages : number of pages. page_size : tokens of a page, 1 or 16. tokens : most tokens that a sequence may have.

    Every method that needs pages raises :class:`~witcert.errors.PoolFullError` before it changes anything.
    """

    def __init__(self, pages: int, page_size: int, tokens: int) -> None:
        if page_size not in PAGE_SIZES:
            raise InputError(f"page_size={page_size!r} is none of {PAGE_SIZES}")
        self.pages, self.page_size, self.tokens = _whole("pages", pages, 1), page_size, _whole("tokens", tokens, 1)
        self.epochs = np.zeros(pages * page_size, np.int64)
        """Epoch of each slot, as it is or was last handed out."""
        self.fill = np.zeros(pages, np.int64)
        """Rows of each page that were handed out since the page was last free."""
        self._used = np.zeros(pages * page_size, np.bool_)
        self._refs = np.zeros(pages, np.int64)
        self._free: deque[int] = deque(range(pages))
        self._sequences: dict[int, _Sequence] = {}
        self._ids = itertools.count()
        self._versions = itertools.count(1)

    # ---- what is where

    @property
    def free_pages(self) -> int:
        """Pages that nobody owns and that can still be handed out."""
        return len(self._free)

    @property
    def retired_pages(self) -> int:
        """Free pages with a slot whose epoch cannot grow any more."""
        return self.pages - len(self._free) - int((self._refs > 0).sum())

    @property
    def sequences(self) -> tuple[int, ...]:
        """Open sequences, oldest first."""
        return tuple(self._sequences)

    def references(self, page: int) -> int:
        """How many sequences own a page."""
        return int(self._refs[page])

    def _of(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            raise InputError(f"sequence {sequence!r} is not open")
        return self._sequences[sequence]

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return self._of(sequence).length

    def stored(self, sequence: int) -> int:
        """Tokens that the sequence and those it was forked from ever stored, forgotten and copied ones included.

        Each is an event of the dither: where there are more than ``tokens``, the failure probability of an adaptive reading
        grows in proportion.
        """
        return self._of(sequence).stored

    def version(self, sequence: int) -> int:
        """A number that changes whenever the pages or the length of the sequence do; never that of another sequence."""
        return self._of(sequence).version

    def pages_of(self, sequence: int) -> tuple[int, ...]:
        """Pages of a sequence in order of position."""
        return tuple(self._of(sequence).pages)

    def slots_of(self, sequence: int, start: int = 0, stop: int | None = None) -> Slots:
        """Slots of the tokens start..stop-1 (default: all) of a sequence."""
        one = self._of(sequence)
        position = np.arange(start, one.length if stop is None else min(stop, one.length))
        pages = np.asarray(one.pages, np.int64)
        return pages[position // self.page_size] * self.page_size + position % self.page_size

    # ---- changes

    def _touch(self, one: _Sequence) -> None:
        one.version = next(self._versions)

    def open(self) -> int:
        """A new, empty sequence; no id is ever used twice."""
        sequence = next(self._ids)
        self._sequences[sequence] = one = _Sequence()
        self._touch(one)
        return sequence

    def close(self, sequence: int) -> list[int]:
        """Give the pages of a sequence back; returns those that became free."""
        one = self._of(sequence)
        del self._sequences[sequence]
        return self._release(one.pages)

    def truncate(self, sequence: int, length: int) -> list[int]:
        """Forget the tokens from position ``length`` on; returns the pages that became free."""
        one = self._of(sequence)
        if _whole("length", length, 0) > one.length:
            raise InputError(f"length={length} is more than the {one.length} tokens of sequence {sequence}")
        keep = -(-length // self.page_size)
        dropped, one.pages, one.length = one.pages[keep:], one.pages[:keep], int(length)
        self._touch(one)
        return self._release(dropped)

    def _release(self, pages: Sequence[int]) -> list[int]:
        freed = []
        for page in pages:
            self._refs[page] -= 1
            if self._refs[page]:
                continue
            freed.append(page)
            self.fill[page] = 0
            if self.epochs[page * self.page_size : (page + 1) * self.page_size].max() < MAX_EPOCH:
                self._free.append(page)
        return freed

    def _take(self) -> int:
        page = self._free.popleft()
        self._refs[page] = 1
        return page

    def _hand_out(self, slots: Slots) -> Slots:
        again = slots[self._used[slots]]
        self.epochs[again] += 1
        self._used[slots] = True
        np.maximum.at(self.fill, slots // self.page_size, slots % self.page_size + 1)
        return slots

    def _need(self, pages: int, what: str) -> None:
        if pages > len(self._free):
            retired = f", {self.retired_pages} retired" if self.retired_pages else ""
            raise PoolFullError(
                f"{what} needs {pages} pages of {self.page_size} tokens; {len(self._free)} of {self.pages} are free{retired}"
            )

    def shared_tail(self, sequence: int) -> int:
        """Tokens in a partly filled last page that other sequences own too; 0 if there is none."""
        one = self._of(sequence)
        tail = one.length % self.page_size
        return tail if tail and self._refs[one.pages[-1]] > 1 else 0

    def reserve(self, sequences: Sequence[int], counts: Sequence[int]) -> Reservation:
        """Slots for ``counts[i]`` more tokens of each sequence; shared pages are left to their other owners."""
        rows = [self._of(s) for s in sequences]
        numbers = [_whole("counts", n, 0) for n in counts]
        if len(rows) != len(numbers) or len(set(sequences)) != len(rows):
            raise InputError(f"{len(rows)} sequences, {len(numbers)} counts; expected one count each, no sequence twice")
        needed = 0
        left: dict[int, int] = {}  # owners of a shared last page that still write to it
        for sequence, one, n in zip(sequences, rows, numbers, strict=True):
            total = one.length + n
            if total > self.tokens:
                raise InputError(f"sequence {sequence} would have {total} tokens; the pool was made for {self.tokens}")
            needed += -(-total // self.page_size) - len(one.pages)
            tail = one.length % self.page_size
            if n and tail:
                last = one.pages[-1]
                left.setdefault(last, int(self._refs[last]))
                if left[last] > 1:
                    needed, left[last] = needed + 1, left[last] - 1
                else:
                    rest = last * self.page_size + np.arange(tail, min(self.page_size, tail + n))
                    if self.epochs[rest].max() >= MAX_EPOCH:
                        raise PoolFullError(f"a slot of page {last} was handed out 2^32 times; its dither would repeat")
        self._need(needed, f"{sum(numbers)} new tokens")
        source, target, slots = [], [], []
        for one, n in zip(rows, numbers, strict=True):
            if not n:
                continue
            tail = one.length % self.page_size
            if tail and self._refs[one.pages[-1]] > 1:
                page, within = self._take(), np.arange(tail)
                source.append(one.pages[-1] * self.page_size + within)
                target.append(self._hand_out(page * self.page_size + within))
                self._release([one.pages[-1]])
                one.pages[-1] = page
                one.stored += tail
            while len(one.pages) * self.page_size < one.length + n:
                one.pages.append(self._take())
            position = np.arange(one.length, one.length + n)
            pages = np.asarray(one.pages, np.int64)[position // self.page_size]
            slots.append(self._hand_out(pages * self.page_size + position % self.page_size))
            one.length += n
            one.stored += n
            self._touch(one)
        return Reservation(_joined(slots), Moved(_joined(source), _joined(target)))

    def fork(self, sequence: int) -> tuple[int, Moved]:
        """A new sequence with the same tokens: whole pages are shared, a partly filled last page becomes a new one."""
        one = self._of(sequence)
        tail = one.length % self.page_size
        self._need(1 if tail else 0, "a fork")
        whole = one.pages[: one.length // self.page_size]
        for page in whole:
            self._refs[page] += 1
        pages, moved = list(whole), Moved(_joined([]), _joined([]))
        if tail:
            page, within = self._take(), np.arange(tail)
            moved = Moved(one.pages[-1] * self.page_size + within, self._hand_out(page * self.page_size + within))
            pages.append(page)
        child = next(self._ids)
        self._sequences[child] = other = _Sequence(pages, one.length, one.stored + tail)
        self._touch(other)
        return child, moved
