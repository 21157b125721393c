"""What page-in leaves in the stores, in PyTorch."""

from __future__ import annotations

from torch import Tensor

from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.formats import ExactStore
from witcert.witness import Bands
from witcert.witness import witness as band_norms

__all__ = ["page_in_reference"]


def page_in_reference(
    host: ExactStore, rows: Tensor, store: ExactStore, slots: Tensor, *, heads: Tensor | None = None,
    witness: Tensor | None = None, witness_slots: Tensor | None = None, bands: Bands | None = None,
    gamma: float | None = None,
) -> None:  # fmt: skip
    """As :func:`witcert.kernels.page_in.page_in`, one item at a time; its witness is not above the kernel's."""
    gamma = dot_gamma(store.head_dim) if gamma is None else gamma
    witness = store.witness if witness is None else witness
    marks = slots if witness_slots is None else witness_slots
    page = 1 if witness is None or witness.ndim == 3 else witness.shape[2]
    for item, (row, slot, mark) in enumerate(zip(rows.tolist(), slots.tolist(), marks.tolist(), strict=True)):
        if not (0 <= row < host.slots and 0 <= slot < store.slots):
            continue
        wanted = range(store.kv_heads) if heads is None else [int(heads[item])]
        for head in wanted:
            if not 0 <= head < store.kv_heads:
                continue
            store.k[slot, head] = host.k[row, head].to(store.k.device)
            store.v[slot, head] = host.v[row, head].to(store.v.device)
            if witness is not None and 0 <= mark < witness.shape[0] * page:
                pool = witness if witness.ndim == 4 else witness[:, :, None]
                key = host.k[row, head][None]
                w = band_norms(key, key, bands or Bands(store.head_dim, pool.shape[3]), gamma) if gamma else 0.0
                pool[mark // page, head, mark % page] = w[0].to(pool.device) if isinstance(w, Tensor) else w
