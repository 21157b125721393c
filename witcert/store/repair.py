"""What is done from the backing store: exact rows paged in, rows carried over, damaged pages written anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_in import page_in
from witcert.store.backing import Backing
from witcert.store.seal import Damage
from witcert.store.tables import upload
from witcert.witness import witness

if TYPE_CHECKING:
    from witcert.store.pool import CachePool

__all__ = ["Repairs"]


class Repairs:
    """Repairs of one pool, and which (page, layer, head) were repaired in place."""

    def __init__(self, pool: CachePool) -> None:
        self.pool = pool
        self._exact: dict[int, set[tuple[int, int]]] = {}  # page -> (layer, head)
        self.hooks: list[Callable[[Sequence[int]], None]] = []

    def _host(self) -> Backing:
        if self.pool.host is None:
            raise InputError("the pool has no backing store: backing=False")
        return self.pool.host

    def forget(self, pages: Iterable[int]) -> None:
        """These pages are free: what will be written there is not exact."""
        freed = list(pages)
        for page in freed:
            self._exact.pop(page, None)
        for hook in self.hooks if freed else ():
            hook(freed)

    def _rows(self, layer: int, pages: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        found = [self.pool.rows_of(layer, page) for page in pages]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _fetch(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Exact keys and values of checked rows on the device of the pool. Waits for the device."""
        host = self._host()
        host.require(layer, rows)  # waits for what is on its way to the host, too
        at, device = rows.cpu(), self.pool.device
        store = host.stores[layer]
        return store.k[at].to(device), store.v[at].to(device)

    def rewrite(self, layer: int, source: Tensor, target: Tensor, *, encode: bool) -> None:
        """Carry backing rows over to other slots; encode: and write the store there from them."""
        k, v = self._fetch(layer, source)
        if encode:
            self.pool._encode(layer, self.pool.stores[layer], k, v, target)
        self._host().write(layer, k, v, target)

    def restore(self, layer: int, pages: Iterable[int]) -> None:
        """See :meth:`CachePool.restore`."""
        pool, every = self.pool, list(pages)
        numbers = self._rows(layer, every)
        rows = upload(numbers, torch.int64, pool.device)
        k, v = self._fetch(layer, rows)
        pool.set_epochs(numbers)
        pool._encode(layer, pool.stores[layer], k, v, rows)
        pairs = [(page, head) for page in every for of, head in sorted(self._exact.get(page, ())) if of == layer]
        if pairs:
            self.page_in(layer, [p for p, _ in pairs], [h for _, h in pairs], None)
        seals = pool._seals
        if seals is not None:
            seals.seal([layer], [page for page in every if seals.sealed(layer, page)])

    def page_in(
        self, layer: int, pages: Sequence[int], heads: Sequence[int], side_pages: Sequence[int] | None,
        since: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """See :meth:`CachePool.page_in`."""
        pool, config = self.pool, self.pool.config
        host = self._host()
        if config.packed == (side_pages is None):
            raise InputError(f"side_pages={side_pages!r} with format={config.format!r}; packed formats are repaired beside")
        beside = list(pages) if side_pages is None else list(side_pages)
        if not len(pages) == len(heads) == len(beside):
            raise InputError(f"{len(pages)} pages, {len(heads)} heads, {len(beside)} side pages; expected as many of each")
        if any(not 0 <= h < config.kv_heads for h in heads) or any(not 0 <= p < config.pages for p in pages):
            raise InputError(f"a page outside 0..{config.pages - 1} or a head outside 0..{config.kv_heads - 1}")
        if side_pages is not None and not pool._side_taken[layer].issuperset(beside):
            raise InputError(f"side pages {beside} of layer {layer} are not all taken")
        size = config.page_size
        first = [0] * len(pages) if since is None else list(since)
        if len(first) != len(pages) or any(not 0 <= n <= size for n in first):
            raise InputError(f"since={first} is not a row in 0..{size} for each of {len(pages)} pages")
        found = [rows[rows % size >= n] for rows, n in zip((pool.rows_of(layer, p) for p in pages), first, strict=True)]
        numbers = np.concatenate(found) if found else np.empty(0, np.int64)
        if not len(numbers):
            return 0
        places = np.concatenate([at * size + rows % size for at, rows in zip(beside, found, strict=True)])
        head_of = np.repeat(np.asarray(heads, np.int64), [len(rows) for rows in found])
        rows, slots, head = (upload(x, torch.int64, pool.device) for x in (numbers, places, head_of))
        host.require(layer, rows, head)
        if side_pages is None:
            store = pool.stores[layer]
            assert isinstance(store, ExactStore)
            self._copy(host.stores[layer], rows, store, slots, head)
            for page, h in zip(pages, heads, strict=True):
                self._exact.setdefault(page, set()).add((layer, h))
            if pool._seals is not None:
                pool._seals.renew(layer, pages, heads)
        else:
            exact = host.stores[layer]
            single = ExactStore(exact.k.view(-1, 1, config.head_dim), exact.v.view(-1, 1, config.head_dim))
            self._copy(single, rows * config.kv_heads + head, pool.side[layer], slots, None)
            if pool._side_seals is not None:
                pool._side_seals.seal([layer], beside)
        return len(numbers) * 4 * config.head_dim

    def _copy(self, host: ExactStore, rows: Tensor, store: ExactStore, slots: Tensor, heads: Tensor | None) -> None:
        """Exact rows into a store on the device, with the witness of an exact key; heads None: of the only head."""
        pool, split = self.pool, self.pool.config.split
        if pool.kernels:
            gamma = None if split is None else pool.dot_gamma
            page_in(host, rows, store, slots, heads=heads, bands=split, gamma=gamma)
            return
        head = torch.zeros_like(slots) if heads is None else heads
        k = host.k[rows, head]  # [N, d]
        store.k[slots, head], store.v[slots, head] = k, host.v[rows, head]
        if store.witness is not None and split is not None:
            store.witness[slots, head] = witness(k, k, split, pool.dot_gamma)

    def check_backing(self, layer: int, pages: Sequence[int]) -> list[Damage]:
        """See :meth:`CachePool.check_backing`."""
        numbers = self._rows(layer, pages)
        if not len(numbers):
            return []
        wrong = self._host().damaged(layer, upload(numbers, torch.int64, self.pool.device)).cpu()  # [N, Hkv]
        found = {(int(numbers[i]) // self.pool.config.page_size, head) for i, head in wrong.nonzero().tolist()}
        return [Damage(layer, page, head, "backing") for page, head in sorted(found)]
