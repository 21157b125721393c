"""``write_exact`` and ``split_table`` in PyTorch, in float64 where the kernels round."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.kernels.formats import ExactStore, PageTable
from witcert.witness import Bands, witness

__all__ = ["split_table_reference", "write_exact_reference"]


def write_exact_reference(
    k: Tensor, v: Tensor, slots: Tensor, pages: Tensor, store: ExactStore, largest: Tensor, *, page_size: int,
    bands: Bands | None, gamma: float,
) -> None:  # fmt: skip
    """As :func:`witcert.kernels.side.write_exact`; ``largest`` is rounded up, and the witness is the least that is sound."""
    inside = (slots >= 0) & (slots < pages.shape[0] * page_size)
    k, v, slots = k[inside], v[inside], slots[inside].long()
    if not len(slots):
        return
    norm = torch.linalg.vector_norm(k.double(), dim=-1).amax(0).nan_to_num(nan=torch.inf)  # [Hkv]
    largest.copy_(torch.maximum(largest, torch.nextafter(norm.float(), torch.full_like(largest, torch.inf))))
    page = pages[slots // page_size].long()  # [N, Hkv]
    item, head = (page >= 0).nonzero(as_tuple=True)
    row = page[item, head] * page_size + slots[item] % page_size
    column = torch.zeros_like(head) if store.kv_heads == 1 else head
    key = k[item, head]
    store.k[row, column], store.v[row, column] = key, v[item, head]
    if store.witness is not None and bands is not None:
        store.witness[row, column] = witness(key, key, bands, gamma)


def split_table_reference(table: PageTable, pages: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`witcert.kernels.side.split_table`."""
    listed = table.pages.long()
    known = (listed >= 0) & (listed < len(pages))
    side = pages[torch.where(known, listed, 0)].transpose(1, 2)  # [batch, Hkv, max_pages]
    column = torch.arange(listed.shape[1], device=listed.device) * table.page_size
    there = known & (column[None, :] < table.seq_lens[:, None])
    parts = (side >= 0) & there[:, None]
    return parts.to(torch.uint8).contiguous(), torch.where(parts, side, 0).flatten(0, 1).contiguous()
