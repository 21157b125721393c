"""The backing store: the exact keys and values in host memory, written by the same write path, checked before use."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.errors import CorruptionError, PoolFullError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_out import damaged_pairs, damaged_rows, page_out, page_out_mismatches
from witcert.kernels.page_out.reference import page_out_reference, pair_tags, row_tags
from witcert.store.config import PoolConfig

__all__ = ["Backing", "host_tensor"]


def host_tensor(shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool) -> Tensor:
    """Host memory for a tensor, pinned if asked; PoolFullError names the bytes that the system does not give."""
    size = torch.Size(shape).numel() * dtype.itemsize
    kind = "pinned host memory" if pinned else "host memory"
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    except (RuntimeError, MemoryError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise PoolFullError(f"the backing store asked for {size} bytes of {kind} and got none: {reason}") from e


class Backing:
    """Exact keys and values of every slot of every layer in host memory, and the tag of each row and head.

    stores : one ExactStore a layer, row = slot. single : the same memory as stores of one head, row = slot * Hkv + head.
    tags : int64 [layers, slots, Hkv]. All pinned where the pool is on a GPU.
    kernels : whether the copies are made by kernels in stream order, or by PyTorch.
    """

    def __init__(self, config: PoolConfig, *, pinned: bool, kernels: bool) -> None:
        shape = (config.layers, config.slots, config.kv_heads)
        self.k, self.v = (host_tensor((*shape, config.head_dim), config.dtype, pinned=pinned) for _ in range(2))
        self.tags = host_tensor(shape, torch.int64, pinned=pinned)
        self.stores = [ExactStore(k, v) for k, v in zip(self.k, self.v, strict=True)]
        flat = (-1, 1, config.head_dim)
        self.single = [ExactStore(k.view(flat), v.view(flat)) for k, v in zip(self.k, self.v, strict=True)]
        self.kernels = kernels

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Exact rows of new tokens [N, Hkv, d], slots [N] on the device; tags are taken of what is sent."""
        if self.kernels:
            page_out(k, v, slots, self.stores[layer], self.tags[layer], layer=layer)
        else:
            page_out_reference(k, v, slots, self.stores[layer], self.tags[layer], layer)

    def mismatches(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> int:
        """How many 16-bit words and tags are not those of these rows. Waits for the device."""
        if self.kernels:
            return int(page_out_mismatches(k, v, slots, self.stores[layer], self.tags[layer], layer=layer))
        store, rows = self.stores[layer], slots.cpu()
        wrong = (store.k[rows].view(torch.int16) != k.cpu().view(torch.int16)).sum()
        wrong += (store.v[rows].view(torch.int16) != v.cpu().view(torch.int16)).sum()
        wrong += (self.tags[layer][rows] != row_tags(k, v, slots, layer).cpu()).sum()
        return int(wrong)

    def damaged(self, layer: int, rows: Tensor) -> Tensor:
        """Which rows and heads are not what their tags say, bool [N, Hkv] on the device of rows."""
        store = self.stores[layer]
        if self.kernels:
            return damaged_rows(store, rows, self.tags[layer], layer=layer) > 0
        at = rows.cpu()
        return row_tags(store.k[at], store.v[at], at, layer).to(rows.device) != self.tags[layer][at].to(rows.device)

    def require(self, layer: int, rows: Tensor) -> None:
        """Raise CorruptionError unless the rows are, in every head, as written. Waits for the device."""
        wrong = self.damaged(layer, rows)
        if bool(wrong.any()):
            item, head = wrong.nonzero()[0].tolist()
            self._refuse(layer, int(rows[item]), head, int(wrong.sum()))

    def require_pairs(
        self, layer: int, rows: Tensor, heads: Tensor, copies: ExactStore | None = None, at: Tensor | None = None
    ) -> None:
        """Raise CorruptionError unless the (row, head) pairs [N] are as written. Waits for the device.

        copies, at : look at these rows of a store of one head, which were copied from the pairs, instead of the pairs.
        """
        store, tags = self.stores[layer], self.tags[layer]
        count = store.kv_heads
        if copies is None or at is None:
            copies, at = self.single[layer], rows * count + heads
        if self.kernels:
            wrong = damaged_pairs(copies, at, rows, heads, tags, layer=layer)
        else:
            k, v = copies.k[at.to(copies.k.device), 0], copies.v[at.to(copies.v.device), 0]
            there = pair_tags(k, v, rows.to(k.device), heads.to(k.device), count, layer)
            wrong = (there.to(tags.device) != tags[rows.to(tags.device), heads.to(tags.device)]).int()
        found = wrong.cpu().numpy()
        if found.any():
            item = int(found.nonzero()[0][0])
            self._refuse(layer, int(rows[item]), int(heads[item]), int(found.sum()))

    def _refuse(self, layer: int, row: int, head: int, count: int) -> None:
        raise CorruptionError(
            f"backing store: {count} rows are not what was written, first layer {layer}, slot {row}, KV head {head}; "
            "nothing was repaired from it"
        )
