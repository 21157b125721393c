"""What page-in leaves in the stores, in PyTorch."""

from __future__ import annotations

from torch import Tensor

from witcert.kernels.formats import ExactStore

__all__ = ["page_in_reference"]


def page_in_reference(
    host: ExactStore, rows: Tensor, store: ExactStore, slots: Tensor, *, heads: Tensor | None = None,
    witness: Tensor | None = None, witness_slots: Tensor | None = None,
) -> None:  # fmt: skip
    """As :func:`witcert.kernels.page_in.page_in`, one item at a time."""
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
                pool[mark // page, head, mark % page] = 0.0
