"""Which pages of which KV heads are exact, and making them so."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from witcert.errors import InputError, PoolFullError
from witcert.kernels.formats import PageTable
from witcert.store import CachePool
from witcert.store.tables import upload

__all__ = ["Repairs"]


class Repairs:
    """Repaired (page, KV head) pairs of every layer of a pool, on the host and, for packed pools, on the device.

    A pair stays repaired until its page is freed; what is written to it later is repaired at once. Raises InputError if the
    pool cannot be repaired: no backing store, no witness to read exact rows by, or a packed pool without side pages.
    """

    def __init__(self, pool: CachePool) -> None:
        config = pool.config
        if config.packed and not config.side_pages:
            raise InputError(f"side_pages=0 with format={config.format!r}: a packed page is repaired in a side page")
        if pool.backing is None or config.bands is None:
            missing = "backing=True" if pool.backing is None else "bands=16 or 8"
            raise InputError(f"the pool cannot be repaired: that needs {missing}")
        self._pool = weakref.ref(pool)  # the pool's hook holds this: in a cycle, its memory would outlive it
        self.page_bytes = config.page_size * 4 * config.head_dim
        # side page of each repaired pair, or -1 where the format is repaired in place
        self._side: list[dict[tuple[int, int], int]] = [{} for _ in range(config.layers)]
        self._rows: list[dict[tuple[int, int], int]] = [{} for _ in range(config.layers)]  # rows that are exact
        self._heads: list[dict[int, set[int]]] = [defaultdict(set) for _ in range(config.layers)]  # page -> heads
        self._norm = torch.zeros(config.layers, config.kv_heads, dtype=torch.float64, device=pool.device)
        self._map: Tensor | None = None
        if config.packed:
            shape = (config.layers, config.pages, config.kv_heads)
            self._map = torch.full(shape, -1, dtype=torch.int32, device=pool.device)
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
        return (page, head) in self._side[layer]

    @property
    def pages(self) -> int:
        """Repaired pairs of all layers."""
        return sum(len(x) for x in self._side)

    def _forget(self, pages: Iterable[int]) -> None:
        """The pages are free."""
        gone = list(pages)
        for layer in range(self.pool.config.layers):
            sides = []
            for page in gone:
                for head in self._heads[layer].pop(page, ()):
                    sides.append(self._side[layer].pop((page, head)))
                    del self._rows[layer][page, head]
            if self._map is not None and sides:
                self.pool.side_free(layer, sides)
        if self._map is not None:
            self._map[:, torch.tensor(gone, dtype=torch.int64, device=self._map.device)] = -1

    def repair(self, layer: int, items: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
        """Make (page, KV head) pairs exact: pages done, bytes moved, and pages that the side pool had no room for.

        Raises CorruptionError if the backing store is not what was written; nothing is changed then.
        """
        wanted = [pair for pair in dict.fromkeys(items) if pair not in self._side[layer]]
        refused = 0
        sides: list[int] | None = None
        if self._map is not None:
            sides = self._reserve(layer, len(wanted))
            refused, wanted = len(wanted) - len(sides), wanted[: len(sides)]
        if not wanted:
            return 0, 0, refused
        pages, heads = [p for p, _ in wanted], [h for _, h in wanted]
        try:
            moved = self.pool.page_in(layer, pages, heads, sides)
        except Exception:
            if sides is not None:
                self.pool.side_free(layer, sides)
            raise
        self._side[layer].update(zip(wanted, [-1] * len(wanted) if sides is None else sides, strict=True))
        self._rows[layer].update(zip(wanted, self.pool.allocator.fill[pages].tolist(), strict=True))
        heads_of = self._heads[layer]
        for page, head in wanted:
            heads_of[page].add(head)
        if self._map is not None and sides is not None:
            at = tuple(upload(np.asarray(x, np.int64), torch.int64, self._map.device) for x in (pages, heads))
            self._map[layer].index_put_(at, upload(np.asarray(sides, np.int64), torch.int32, self._map.device))
        return len(wanted), moved, refused

    def _reserve(self, layer: int, n: int) -> list[int]:
        """As many of n side pages as there are."""
        try:
            return self.pool.side_reserve(layer, n)
        except PoolFullError:
            return [] if n <= 1 else self.pool.side_reserve(layer, min(n, self.pool.side_available(layer)))

    def after_write(self, layer: int, k: Tensor, slots: Tensor) -> int:
        """Make new rows of repaired pages exact too, and take note of the largest key; the bytes that were moved.

        k : exact keys [N, Hkv, d] that were written. Waits for the device only if the layer has repairs.
        """
        norm = torch.linalg.vector_norm(k.double(), dim=-1).amax(0) if len(k) else self._norm[layer]
        # NaN stays: no claim about how small what is left on exact rows is.
        self._norm[layer] = torch.where(norm.isnan(), norm, torch.maximum(self._norm[layer], norm))
        if not self._side[layer]:
            return 0
        size = self.pool.config.page_size
        rows = np.sort(slots.cpu().numpy())
        written, first = np.unique(rows // size, return_index=True)
        lowest = dict(zip(written.tolist(), (rows[first] % size).tolist(), strict=True))
        pairs = [(p, h) for p in lowest for h in sorted(self._heads[layer].get(p, ()))]
        if not pairs:
            return 0
        sides = None if self._map is None else [self._side[layer][pair] for pair in pairs]
        # A row below those that are exact is written again after a truncation, or was reserved before the repair.
        since = [min(self._rows[layer][pair], lowest[pair[0]]) for pair in pairs]
        moved = self.pool.page_in(layer, [p for p, _ in pairs], [h for _, h in pairs], sides, since)
        for pair in pairs:
            self._rows[layer][pair] = int(self.pool.allocator.fill[pair[0]])
        return moved

    def side_table(self, layer: int, table: PageTable) -> tuple[Tensor, Tensor] | None:
        """Which pages of the sequences lie in the side pool, and where: uint8 [batch, Hkv, max_pages], int32
        [batch * Hkv, max_pages]. None where nothing of the layer does."""
        if self._map is None or not self._side[layer]:
            return None
        pages = table.pages.long().clamp(0, self.pool.config.pages - 1)
        side = self._map[layer][pages].transpose(1, 2)  # [batch, Hkv, max_pages]
        column = torch.arange(pages.shape[1], device=pages.device) * table.page_size
        there = column[None, :] < table.seq_lens[:, None]  # entries past the end belong to somebody else
        parts = ((side >= 0) & there[:, None]).to(torch.uint8).contiguous()
        return parts, side.clamp(min=0).flatten(0, 1).contiguous()

    def residual(self, layer: int, head: int, q: Tensor, scale: float) -> Tensor:
        """Bound on the logit error that the read's arithmetic leaves on exact rows of a KV head, float64 [G] for q [G, d].

        ``sum_b |q_b| RU16(gamma |k_b|)``, with Cauchy-Schwarz over the bands and RU16 within 2^-10 or 2^-24.
        """
        bands = self.pool.config.bands or 1
        largest = self._norm[layer, head].to(q.device)
        norm: Tensor = torch.linalg.vector_norm(q.double(), dim=-1)
        per_norm = self.pool.dot_gamma * largest * (1 + 2.0**-9) + bands**0.5 * 2.0**-24
        bound: Tensor = scale * norm * per_norm * (1 + 2.0**-15) + 2.0**-58
        return bound
