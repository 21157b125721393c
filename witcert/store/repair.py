"""What is done from the backing store: exact rows paged in, rows carried over, damaged pages written anew."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_in import page_in
from witcert.store.allocator import Slots
from witcert.store.backing import Backing
from witcert.store.seal import Damage
from witcert.store.tables import upload
from witcert.witness import witness

if TYPE_CHECKING:
    from witcert.store.pool import CachePool

__all__ = ["Repairs"]


def _whole(name: str, values: Sequence[int] | Slots, end: int) -> Slots:
    """The numbers as an array; InputError unless all are whole and in 0..end-1."""
    x = np.asarray(values)
    if not x.size and x.ndim == 1:
        return np.empty(0, np.int64)
    if x.ndim != 1 or x.dtype.kind not in "iu":
        raise InputError(f"{name} is {x.dtype} {x.shape}; expected a list of whole numbers")
    if x.min() < 0 or x.max() >= end:
        raise InputError(f"{name} from {x.min()} to {x.max()}; expected numbers in 0..{end - 1}")
    return x.astype(np.int64)


class Repairs:
    """Repairs of one pool, and which (layer, page, KV head) have exact rows.

    where : int32 [layers, pages, Hkv] on the host, the page that holds the exact rows: a side page for packed formats, else
    the page itself; -1 where there are none.
    """

    def __init__(self, pool: CachePool) -> None:
        self._pool = weakref.ref(pool)  # the pool owns this: in a cycle, its memory would outlive it
        config = pool.config
        self.where = np.full((config.layers, config.pages, config.kv_heads), -1, np.int32)
        self._full: list[set[int]] = [set() for _ in range(config.layers)]
        self.hooks: list[Callable[[Sequence[int]], None]] = []

    @property
    def pool(self) -> CachePool:
        """The pool that is repaired."""
        pool = self._pool()
        if pool is None:
            raise InputError("the pool of these repairs is gone")
        return pool

    def _host(self) -> Backing:
        if self.pool.host is None:
            raise InputError("the pool has no backing store: backing=False")
        return self.pool.host

    def forget(self, pages: Iterable[int]) -> None:
        """These pages are free: what will be written there is not exact."""
        freed = list(pages)
        for hook in self.hooks if freed else ():
            hook(freed)
        self.where[:, freed] = -1

    def forget_side(self, layer: int, side_pages: Sequence[int]) -> None:
        """These side pages were given back: they hold nobody's rows."""
        here = self.where[layer]
        here[np.isin(here, side_pages)] = -1
        self._full[layer].difference_update(side_pages)

    def full(self) -> tuple[Slots, Slots]:
        """Layers and side pages that were filled at once and not sealed since; they are taken to be sealed now."""
        layers = [np.full(len(pages), i, np.int64) for i, pages in enumerate(self._full)]
        sides = [np.fromiter(pages, np.int64) for pages in self._full]
        for pages in self._full:
            pages.clear()
        return np.concatenate(layers), np.concatenate(sides)

    def beside(self, pages: Iterable[int]) -> tuple[Slots, Slots]:
        """Layers and side pages of the exact rows of these pages; none where the format is repaired in place."""
        listed = list(pages)
        if not self.pool.config.packed or not listed:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        layer, item, head = (self.where[:, listed] >= 0).nonzero()
        return layer, self.where[layer, np.asarray(listed)[item], head].astype(np.int64)

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
        pool = self.pool
        every = _whole("pages", list(pages), pool.config.pages)
        numbers, _ = pool.rows_of(layer, every)
        rows = upload(numbers, torch.int64, pool.device)
        k, v = self._fetch(layer, rows)
        pool.set_epochs(numbers)
        pool._encode(layer, pool.stores[layer], k, v, rows)
        if not pool.config.packed:
            item, head = (self.where[layer, every] >= 0).nonzero()
            self.page_in(layer, every[item], head, None)
        seals = pool._seals
        if seals is not None:
            seals.seal([layer], [page for page in every.tolist() if seals.sealed(layer, page)])

    def page_in(
        self,
        layer: int,
        pages: Sequence[int] | Slots,
        heads: Sequence[int] | Slots,
        side_pages: Sequence[int] | Slots | None,
    ) -> Slots:
        """See :meth:`CachePool.page_in`."""
        pool, config = self.pool, self.pool.config
        host = self._host()
        if config.packed == (side_pages is None):
            raise InputError(
                f"side_pages={side_pages!r} with format={config.format!r}; packed formats are repaired beside"
            )
        size = config.page_size
        page, head = _whole("pages", pages, config.pages), _whole("heads", heads, config.kv_heads)
        beside = page if side_pages is None else _whole("side_pages", side_pages, config.side_pages)
        if not len(page) == len(head) == len(beside):
            raise InputError(
                f"{len(page)} pages, {len(head)} heads, {len(beside)} side pages; expected as many of each"
            )
        if side_pages is not None:
            own = set(beside.tolist())
            if len(own) != len(beside) or not pool._side_taken[layer].issuperset(own):
                raise InputError(f"side pages of layer {layer} are not all taken, or one is listed twice: {beside}")
        if not len(page):
            return np.empty(0, np.int64)
        numbers, item = pool.rows_of(layer, page)
        count = np.bincount(item, minlength=len(page))
        places = beside[item] * size + numbers % size
        rows, slots, of = upload(np.stack((numbers, places, head[item])), torch.int64, pool.device)
        if side_pages is None:
            host.require_pairs(layer, rows, of)
            store = pool.stores[layer]
            assert isinstance(store, ExactStore)
            self._copy(host.stores[layer], rows, store, slots, of)
            if pool._seals is not None:
                pool._seals.renew(layer, page, head)
        else:
            # Nobody reads a side page before this returns: copied first and looked at then, a row crosses the bus once.
            side = pool.side[layer]
            self._copy(host.single[layer], rows * config.kv_heads + of, side, slots, None)
            host.require_pairs(layer, rows, of, side, slots)
            if pool._side_seals is not None:
                pool._side_seals.forget_pairs(np.full(len(beside), layer, np.int64), beside)
            self._full[layer].update(beside[count == size].tolist())
            self._full[layer].difference_update(beside[count < size].tolist())
        self.where[layer, page, head] = beside
        return count * 4 * config.head_dim

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

    def check_backing(self, layers: Iterable[int], pages: Sequence[int]) -> list[Damage]:
        """See :meth:`CachePool.check_backing`. The device is waited for once, whatever the number of layers."""
        pool, host = self.pool, self._host()
        every = _whole("pages", pages, pool.config.pages)
        listed = [(layer, pool.rows_of(layer, every)[0]) for layer in layers]
        listed = [(layer, numbers) for layer, numbers in listed if len(numbers)]
        if not listed:
            return []
        last, rows, wrong = listed[0][1], upload(listed[0][1], torch.int64, pool.device), []
        for layer, numbers in listed:  # seldom others than those of the layer before
            if not np.array_equal(numbers, last):
                last, rows = numbers, upload(numbers, torch.int64, pool.device)
            wrong.append(host.damaged(layer, rows))  # [N, Hkv]
        at = torch.cat(wrong).cpu().numpy()
        layer_of = np.concatenate([np.full(len(numbers), layer) for layer, numbers in listed])
        page_of = np.concatenate([numbers for _, numbers in listed]) // pool.config.page_size
        item, head = at.nonzero()
        found = set(zip(layer_of[item].tolist(), page_of[item].tolist(), head.tolist(), strict=True))
        return [Damage(layer, page, head, "backing") for layer, page, head in sorted(found)]
