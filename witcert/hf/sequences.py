"""The rows of a batch as sequences of the pool: what each holds, which columns of the model's input are padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.store import CachePool

__all__ = ["Chunk", "Rows", "left_padding"]


def left_padding(mask: Tensor | None, batch: int, columns: int, new: int) -> list[int]:
    """Padding columns at the left of each row of ``mask`` [batch, columns]; none without a mask.

    Raises InputError for a mask of another shape, for one that is not 0 and 1, and for padding anywhere but at the left:
    a window counts columns, so that a hole would move it.
    """
    if mask is None:
        return [0] * batch
    if not isinstance(mask, Tensor) or mask.ndim != 2 or tuple(mask.shape) != (batch, columns):
        kind = str(tuple(mask.shape)) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"attention_mask is {kind}; expected [{batch}, {columns}]: cached columns and {new} new ones")
    real = mask != 0
    pads = (~real).sum(1)
    expected = torch.arange(columns, device=mask.device)[None, :] >= pads[:, None]
    if not bool((real == expected).all()):
        raise InputError("attention_mask has padding to the right of a token; WitCert takes padding at the left only")
    return [int(n) for n in pads.tolist()]


@dataclass(frozen=True, eq=False)
class Chunk:
    """The new tokens of one forward.

    Parameters
    ----------
    columns : columns Q of the model's input.
    lens : tokens of each row among them, at its right end; the rest is padding.
    prefix : tokens that each row had before.
    slots : int64 [sum(lens)], where they are stored, row by row.
    index : int64 [batch, Q] on the device, column of the i-th token of each row; None where nothing is padding.
    """

    columns: int
    lens: tuple[int, ...]
    prefix: tuple[int, ...]
    slots: Tensor
    index: Tensor | None

    @property
    def single(self) -> bool:
        """Whether this is a decode step: one token for every row."""
        return self.columns == 1 and all(n == 1 for n in self.lens)

    def align(self, x: Tensor) -> Tensor:
        """x [batch, heads, Q, d] as a contiguous [batch, Q, heads, d] whose rows begin with their tokens."""
        x = x.transpose(1, 2)
        if self.index is not None:
            x = x.gather(1, self.index[:, :, None, None].expand(-1, -1, x.shape[2], x.shape[3]))
        return x.contiguous()

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of align without the transposition, [batch, Q, heads, d]; padding columns get 0."""
        if self.index is None:
            return x
        out = torch.zeros_like(x)
        for row, n in enumerate(self.lens):
            if n:
                out[row, self.columns - n :] = x[row, :n]
        return out

    def tokens(self, x: Tensor) -> Tensor:
        """The tokens of an aligned tensor [batch, Q, heads, d], row by row, [sum(lens), heads, d]."""
        if self.index is None:
            return x.flatten(0, 1)
        return torch.cat([x[row, :n] for row, n in enumerate(self.lens)])


class Rows:
    """Sequences of a pool that a model's forward sees as the rows of one batch.

    pool : where they are stored. columns : what the model has seen, padding included. encoded[i] : tokens that were ever
    written for row i, those of a page that a fork wrote anew included; each is an event of the dither that the failure
    probability of the request pays for.
    """

    def __init__(self, pool: CachePool) -> None:
        self.pool = pool
        self.columns = 0
        self.open: Chunk | None = None
        self.pads: list[int] = []
        self.sequences: list[int] = []
        self.encoded: list[int] = []
        self.closed = False
        self._last: list[int] = []

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.sequences)

    @property
    def columns_before(self) -> int:
        """Columns before the forward that is running, or all columns."""
        return self.columns - (0 if self.open is None else self.open.columns)

    def lengths(self) -> list[int]:
        """Stored tokens of each row; after closing, those that it had."""
        return list(self._last) if self.closed else [self.pool.length(s) for s in self.sequences]

    def begin(self, mask: Tensor | None, batch: int, columns: int) -> Chunk:
        """Reserve slots for the new columns; PoolFullError or InputError before anything is stored.

        mask : 0 and 1 [batch, all columns], or None; the first call decides how many rows there are.
        """
        if self.closed:
            raise InputError("this cache was closed: its pages belong to others now")
        if self.sequences and batch != self.batch:
            raise InputError(f"the cache has {self.batch} rows, this forward {batch}")
        total = self.columns + columns
        pads = left_padding(mask, batch, total, columns)
        if mask is None:
            pads = list(self.pads) or pads
        elif self.columns and any(min(p, self.columns) != old for p, old in zip(pads, self.pads, strict=True)):
            raise InputError(f"attention_mask has padding {pads} where the cached columns have {self.pads}")
        prefix = self.lengths() or [0] * batch
        lens = [total - p - n for p, n in zip(pads, prefix, strict=True)]
        while len(self.sequences) < batch:
            self.sequences.append(self.pool.open())
            self.encoded.append(0)
        # a page that is shared is copied before it is written: its rows are encoded anew
        copied = [self.pool.allocator.shared_tail(s) if n else 0 for s, n in zip(self.sequences, lens, strict=True)]
        slots = self.pool.reserve(self.sequences, lens)
        index = None
        if any(n != columns for n in lens):
            shift = torch.tensor([columns - n for n in lens], device=slots.device)
            index = (torch.arange(columns, device=slots.device)[None, :] + shift[:, None]).clamp_(max=columns - 1)
        self.columns, self.pads = total, [min(p, total) for p in pads]
        for row, n in enumerate(lens):
            self.encoded[row] += n + copied[row]
        self.open = Chunk(columns, tuple(lens), tuple(prefix), slots, index)
        return self.open

    def commit(self) -> None:
        """The forward of the open chunk went through."""
        self.open = None

    def undo(self, unwritten: Iterable[int] = ()) -> None:
        """Take back the open chunk, whose forward failed before these layers wrote their tokens.

        A pool expects every reserved token to be written in every layer; these get zeros, and are then forgotten.
        """
        chunk, self.open = self.open, None
        if self.closed or chunk is None:
            return
        c = self.pool.config
        zeros = torch.zeros(len(chunk.slots), c.kv_heads, c.head_dim, dtype=c.dtype, device=chunk.slots.device)
        for layer in unwritten:
            self.pool.write(layer, zeros, zeros, chunk.slots)
        for s, n in zip(self.sequences, chunk.prefix, strict=True):
            self._truncate(s, n)
        self.columns -= chunk.columns
        self.pads = [min(p, self.columns) for p in self.pads]

    def _truncate(self, sequence: int, length: int) -> None:
        if length < self.pool.length(sequence):
            self.pool.truncate(sequence, length)

    def crop(self, columns: int) -> None:
        """Drop the last ``columns`` columns of every row."""
        if self.closed:
            raise InputError("this cache was closed")
        if not 0 <= columns <= self.columns:
            raise InputError(f"cannot crop {columns} of {self.columns} columns")
        self.columns -= columns
        self.pads = [min(p, self.columns) for p in self.pads]
        for s, p in zip(self.sequences, self.pads, strict=True):
            self._truncate(s, self.columns - p)

    def select(self, rows: list[int]) -> None:
        """Row i becomes what row ``rows[i]`` was; rows named twice are forked, rows not named are closed."""
        if self.closed:
            raise InputError("this cache was closed")
        if self.open is not None:
            raise InputError("the rows of a cache cannot change during a forward")
        if not rows or min(rows) < 0 or max(rows) >= self.batch:
            raise InputError(f"rows={rows} are not rows of a batch of {self.batch}")
        taken: set[int] = set()
        sequences: list[int] = []
        encoded: list[int] = []
        forked: list[int] = []
        try:
            for row in rows:
                source = self.sequences[row]
                if row not in taken:
                    taken.add(row)
                    sequences.append(source)
                    encoded.append(self.encoded[row])
                else:
                    new = self.pool.fork(source)
                    forked.append(new)
                    sequences.append(new)
                    encoded.append(self.encoded[row] + self.pool.length(source) % self.pool.config.page_size)
        except Exception:
            for s in forked:
                self.pool.close(s)
            raise
        for row, s in enumerate(self.sequences):
            if row not in taken:
                self.pool.close(s)
        self.sequences, self.encoded = sequences, encoded
        self.pads = [self.pads[row] for row in rows]

    def fork(self) -> Rows:
        """The same rows again, sharing their pages; packed formats need a backing store for that."""
        if self.closed or self.open is not None:
            raise InputError("a cache that is closed or in use cannot be copied")
        other = Rows(self.pool)
        page = self.pool.config.page_size
        try:
            for s, n in zip(self.sequences, self.encoded, strict=True):
                other.sequences.append(self.pool.fork(s))
                other.encoded.append(n + self.pool.length(s) % page)
        except Exception:
            other.close()
            raise
        other.columns, other.pads = self.columns, list(self.pads)
        return other

    def close(self) -> None:
        """Give every page back; closing twice does nothing."""
        if self.closed:
            return
        self._last = self.lengths()
        self.closed = True
        for s in self.sequences:
            self.pool.close(s)
