"""The cache that transformers sees: its layers write new keys and values to the pool and keep no tensor themselves."""

# transformers' own classes are only partly annotated
# mypy: disable-error-code="misc,no-untyped-call,union-attr"

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from witcert.errors import InputError, UnsupportedModelError
from witcert.hf.records import Record
from witcert.hf.sequences import Rows

__all__ = ["CertifiedCache", "CertifiedLayer", "is_fresh"]

Write = Callable[["CertifiedCache", int, Tensor, Tensor], None]


class CertifiedLayer(CacheLayerMixin):
    """One layer of a :class:`CertifiedCache`: hands new keys and values to the pool and returns them as they came."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: CertifiedCache, index: int) -> None:
        super().__init__()
        self._cache, self.index = weakref.ref(cache), index
        self.is_initialized = True

    @property
    def cache(self) -> CertifiedCache:
        """The cache that this layer belongs to."""
        found = self._cache()
        if found is None:
            raise InputError("this layer's cache is gone")
        return found

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to allocate: the pool is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store the new tokens [batch, Hkv, Q, d]; what comes back are the same two tensors, not the whole cache."""
        self.cache.write(self.cache, self.index, key_states, value_states)
        self.cache.written.add(self.index)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that a mask of so many new columns has, and the first of them."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Columns that this layer has seen, padding included."""
        rows = self.cache.rows
        return rows.columns if self.index in self.cache.written else rows.columns_before

    def get_max_length(self) -> int:
        """Most columns."""
        return int(self.cache.rows.pool.config.tokens)

    def offload(self) -> None:
        """Refused: the pool stays where it is."""
        raise InputError("a certified cache cannot be offloaded")

    prefetch = offload

    def reset(self) -> None:
        """Refused: open a new cache."""
        raise InputError("a certified cache cannot be reset: make a new one with Attachment.new_cache()")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused for one layer alone."""
        raise InputError("the layers of a certified cache share their pages: call the cache's own method")

    crop = batch_repeat_interleave = batch_select_indices = reorder_cache


class CertifiedCache(Cache):
    """Keys and values of a batch in the certified pool, with the record of every metered step.

    Made by ``Attachment.new_cache`` or by a forward without a cache; passed as ``past_key_values`` (``cache`` in newer
    releases) it continues where it ended. ``close`` gives its pages back; so does the end of the object.
    """

    def __init__(self, rows: Rows, record: Record, layers: int, write: Write) -> None:
        self.rows, self.record, self.write = rows, record, write
        self.written: set[int] = set()
        self.attachment: Any = None
        super().__init__(layers=[CertifiedLayer(self, i) for i in range(layers)])
        self._finalizer = weakref.finalize(self, rows.close)

    def __deepcopy__(self, memo: dict[int, Any]) -> CertifiedCache:
        """A cache that goes on from here by itself; whole pages are shared."""
        record = replace(self.record, steps=list(self.record.steps), chunks=list(self.record.chunks),
                         unmetered=list(self.record.unmetered), exact=list(self.record.exact))  # fmt: skip
        other = CertifiedCache(self.rows.fork(), record, len(self.layers), self.write)
        self.attachment.adopt(other)
        memo[id(self)] = other
        return other

    @property
    def batch_size(self) -> int:
        """Rows of the batch."""
        return self.rows.batch

    @property
    def sequences(self) -> tuple[int, ...]:
        """The pool's sequence of each row."""
        return tuple(self.rows.sequences)

    @property
    def closed(self) -> bool:
        """Whether its pages were given back."""
        return self.rows.closed

    def close(self) -> None:
        """Give the pages back; the record stays."""
        self.rows.close()

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last ``-tokens_to_remove`` columns; 0 drops nothing."""
        if tokens_to_remove > 0:
            raise InputError(f"tokens_to_remove={tokens_to_remove} must be negative: how many columns to drop")
        self.rows.crop(-int(tokens_to_remove))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes row ``beam_idx[i]``."""
        self.rows.select([int(i) for i in beam_idx.tolist()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row ``repeats`` times, side by side."""
        if repeats < 1:
            raise InputError(f"repeats={repeats} is not >= 1")
        self.rows.select([row for row in range(self.rows.batch) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        self.rows.select([int(i) for i in indices.tolist()])

    def reset(self) -> None:
        """Refused: see ``Attachment.new_cache``."""
        raise InputError("a certified cache cannot be reset: make a new one with Attachment.new_cache()")


def is_fresh(cache: object) -> bool:
    """Whether this is the empty growing cache that transformers makes when nobody passes one.

    Raises UnsupportedModelError for every other kind of cache: static, quantized, offloaded, paged, or filled elsewhere.
    """
    if cache is None:
        return True
    if type(cache) is not DynamicCache:
        raise UnsupportedModelError(
            f"past_key_values is a {type(cache).__name__}; an attached model takes none, an empty DynamicCache, or a "
            "CertifiedCache of its attachment"
        )
    if getattr(cache, "offloading", False):
        raise UnsupportedModelError("an offloaded cache cannot be certified: WitCert keeps the cache in its own pool")
    if any(layer.get_seq_length() for layer in cache.layers):
        raise InputError("past_key_values was filled without WitCert; start from the tokens, or from a CertifiedCache")
    return True
