"""Which pages of which KV heads are exact, and making them so."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.formats import ExactStore, PageTable
from witcert.kernels.side import split_table, write_exact
from witcert.kernels.side.reference import split_table_reference, write_exact_reference
from witcert.store import CachePool
from witcert.store.allocator import Slots
from witcert.store.tables import upload

__all__ = ["Repairs"]


class Repairs:
    """Repairs of a pool, layer by layer, and what the device has to know of them.

    A (page, KV head) pair stays repaired until its page is freed; what is written to it later is repaired at once, from the
    rows that are written, without the backing store and without waiting. Raises InputError if the pool cannot be repaired: no
    backing store, no witness to read exact rows by, or a packed pool without side pages.
    """

    def __init__(self, pool: CachePool) -> None:
        config = pool.config
        if config.packed and not config.side_pages:
            raise InputError(f"side_pages=0 with format={config.format!r}: a packed page is repaired in a side page")
        if pool.backing is None or config.bands is None:
            missing = "backing=True" if pool.backing is None else "bands=16 or 8"
            raise InputError(f"the pool cannot be repaired: that needs {missing}")
        self._pool = weakref.ref(pool)  # the pool's hook holds this: in a cycle, its memory would outlive it
        self.counts = [0] * config.layers
        """Repaired pairs of each layer."""
        # Page of the exact rows of each pair, or -1; `pool.exact_pages` on the device.
        shape = (config.layers, config.pages, config.kv_heads)
        self._map = torch.full(shape, -1, dtype=torch.int32, device=pool.device)
        self._largest = torch.zeros(config.layers, config.kv_heads, dtype=torch.float32, device=pool.device)
        pool.on_freed(self._forget)

    @property
    def pool(self) -> CachePool:
        """The pool that is repaired."""
        pool = self._pool()
        if pool is None:
            raise InputError("the pool of these repairs is gone")
        return pool

    def is_exact(self, layer: int, page: int, head: int) -> bool:
        """Whether the page of the KV head was repaired."""
        return bool(self.pool.exact_pages[layer, page, head] >= 0)

    @property
    def pages(self) -> int:
        """Repaired pairs of all layers."""
        return sum(self.counts)

    def _forget(self, pages: Sequence[int]) -> None:
        """The pages are free."""
        pool, where = self.pool, self.pool.exact_pages[:, pages]  # [layers, P, Hkv]
        some = where >= 0
        if not some.any():
            return
        for layer in some.any((1, 2)).nonzero()[0].tolist():
            sides = where[layer][some[layer]].tolist()
            self.counts[layer] -= len(sides)
            if pool.config.packed:
                pool.side_free(layer, sides)
        self._map[:, upload(np.asarray(pages, np.int64), torch.int64, self._map.device)] = -1

    def repair(self, layer: int, pages: Slots, heads: Slots) -> tuple[Slots, int]:
        """Make the pairs (pages[i], heads[i]) exact: bytes moved for each, and how many pairs were refused because the side
        pool has no room for them. A pair that is exact already, or listed before, moves nothing.

        Raises CorruptionError if the backing store is not what was written; nothing is changed then.
        """
        pool, kv_heads = self.pool, self.pool.config.kv_heads
        fresh = np.zeros(len(pages), np.bool_)
        fresh[np.unique(pages * kv_heads + heads, return_index=True)[1]] = True
        fresh &= pool.exact_pages[layer, pages, heads] < 0
        refused = 0
        sides: Slots | None = None
        if pool.config.packed:
            wanted = fresh.nonzero()[0]
            room = min(len(wanted), pool.side_available(layer))
            refused = len(wanted) - room
            fresh[wanted[room:]] = False
            sides = np.asarray(pool.side_reserve(layer, room), np.int64)
        page, head = pages[fresh], heads[fresh]
        if not len(page):
            return np.zeros(len(pages), np.int64), refused
        try:
            moved = pool.page_in(layer, page, head, sides)
        except Exception:
            if sides is not None:
                pool.side_free(layer, sides.tolist())
            raise
        self.counts[layer] += len(page)
        at = upload(np.stack((page, head, page if sides is None else sides)), torch.int64, self._map.device)
        self._map[layer].index_put_((at[0], at[1]), at[2].int())
        every = np.zeros(len(pages), np.int64)
        every[fresh] = moved
        return every, refused

    def after_write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Make new rows of repaired pages exact too, and take note of the largest key. Does not wait for the device.

        k, v : exact keys and values [N, Hkv, d] that were written to the slots.
        """
        pool, config = self.pool, self.pool.config
        store = pool.side[layer] if config.packed else pool.stores[layer]
        assert isinstance(store, ExactStore)
        assert config.split is not None
        (write_exact if pool.kernels else write_exact_reference)(
            k, v, slots, self._map[layer], store, self._largest[layer], page_size=config.page_size, bands=config.split,
            gamma=pool.dot_gamma,
        )  # fmt: skip

    def side_table(self, layer: int, table: PageTable) -> tuple[Tensor, Tensor] | None:
        """Which pages of the sequences lie in the side pool, and where: uint8 [batch, Hkv, max_pages], int32
        [batch * Hkv, max_pages]. None where nothing of the layer does."""
        pool = self.pool
        if not pool.config.packed or not self.counts[layer]:
            return None
        return (split_table if pool.kernels else split_table_reference)(table, self._map[layer])

    def residual(self, layer: int, norms: Tensor, scale: float) -> Tensor:
        """Bound on the logit error that the read's arithmetic leaves on exact rows, float64 [..., Hq] for ``|q|`` [..., Hq].

        ``sum_b |q_b| RU16(gamma |k_b|)``, with Cauchy-Schwarz over the bands and RU16 within 2^-10 or 2^-24.
        """
        bands = self.pool.config.bands or 1
        largest = self._largest[layer].double().repeat_interleave(norms.shape[-1] // self.pool.config.kv_heads)
        per_norm = self.pool.dot_gamma * largest * (1 + 2.0**-9) + bands**0.5 * 2.0**-24
        bound: Tensor = scale * norms.double() * per_norm * (1 + 2.0**-15) + 2.0**-58
        return bound
