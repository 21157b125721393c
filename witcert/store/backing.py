"""The backing store: the exact keys and values in host memory, written by the same write path, checked before use."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.errors import CorruptionError, PoolFullError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_out import damaged_rows, page_out, page_out_mismatches
from witcert.kernels.page_out.reference import page_out_reference, row_tags
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

    stores : one ExactStore a layer, row = slot. tags : int64 [layers, slots, Hkv]. Pinned where the pool is on a GPU.
    kernels : whether the copies are made by kernels in stream order, or by PyTorch.
    """

    def __init__(self, config: PoolConfig, *, pinned: bool, kernels: bool) -> None:
        shape = (config.layers, config.slots, config.kv_heads)
        self.k, self.v = (host_tensor((*shape, config.head_dim), config.dtype, pinned=pinned) for _ in range(2))
        self.tags = host_tensor(shape, torch.int64, pinned=pinned)
        self.stores = [ExactStore(k, v) for k, v in zip(self.k, self.v, strict=True)]
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

    def require(self, layer: int, rows: Tensor, heads: Tensor | None = None) -> None:
        """Raise CorruptionError unless the rows (of the head that goes with each, or of all) are as written."""
        wrong = self.damaged(layer, rows)
        if heads is not None:
            wrong = wrong.gather(1, heads.long()[:, None])
        if not bool(wrong.any()):
            return
        item, column = wrong.nonzero()[0].tolist()
        head = column if heads is None else int(heads[item])
        raise CorruptionError(
            f"backing store: {int(wrong.sum())} rows are not what was written, first layer {layer}, slot "
            f"{int(rows[item])}, KV head {head}; nothing was repaired from it"
        )
