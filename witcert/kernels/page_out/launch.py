"""Launch of page-out, of its read-back, and of the check of tags: arguments are checked, the device is not waited for."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import on_device, slot_map, token_rows
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_out.kernel import page_out_kernel, pair_tag_kernel

__all__ = ["damaged_pairs", "damaged_rows", "page_out", "page_out_mismatches"]

COPY, COMPARE, VERIFY = 0, 1, 2


def _reachable(name: str, x: Tensor, device: torch.device) -> None:
    """Refuse memory that a kernel on the device cannot reach: neither on it nor pinned on the host."""
    if x.device != device and not (x.device.type == "cpu" and x.is_pinned()):
        raise InputError(f"{name} is on {x.device}, neither in pinned host memory nor on {device}")


def _tags_of(tags: Tensor | None, expected: tuple[int, ...], layer: int, device: torch.device) -> None:
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < 2**16:
        raise InputError(f"layer={layer!r} is not a whole number in 0..2^16 - 1")
    if tags is None:
        return
    if not isinstance(tags, Tensor) or tags.dtype != torch.int64 or tuple(tags.shape) != expected:
        kind = f"{tags.dtype} {tuple(tags.shape)}" if isinstance(tags, Tensor) else type(tags).__name__
        raise InputError(f"tags is {kind}; expected int64 {expected}")
    if not tags.is_contiguous():
        raise InputError("tags is not contiguous")
    _reachable("tags", tags, device)


def _copy(
    k: Tensor, v: Tensor, slots: Tensor, store: ExactStore, tags: Tensor | None, layer: int, wrong: Tensor | None
) -> None:  # fmt: skip
    if not isinstance(store, ExactStore):
        raise InputError(f"store is {type(store).__name__}; expected ExactStore")
    half = (store.k.dtype,)
    token_rows("k", k, store.kv_heads, store.head_dim, half)
    token_rows("v", v, store.kv_heads, store.head_dim, half)
    if v.shape != k.shape or v.device != k.device:
        raise InputError(f"v is {tuple(v.shape)} on {v.device}; expected {tuple(k.shape)} on {k.device}")
    slot_map("slots", slots, k.shape[0], k.device)
    for name, x in (("store.k", store.k), ("store.v", store.v)):
        _reachable(name, x, k.device)
    _tags_of(tags, (store.slots, store.kv_heads), layer, k.device)
    if not k.shape[0]:
        return
    bits = [x.view(torch.int16) for x in (k, v, store.k, store.v)]
    page_out_kernel[(k.shape[0], store.kv_heads)](
        bits[0], bits[1], slots, bits[2], bits[3], slots if tags is None else tags, slots if wrong is None else wrong,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), store.slots, layer,
        H=store.kv_heads, D=store.head_dim, TAGS=tags is not None, MODE=COPY if wrong is None else COMPARE, num_warps=1,
    )  # fmt: skip


def page_out(
    k: Tensor, v: Tensor, slots: Tensor, store: ExactStore, tags: Tensor | None = None, *, layer: int = 0
) -> None:
    """Copy exact keys and values of new tokens to rows of a store in pinned host memory (or on the device itself).

    Parameters
    ----------
    k, v : [T, Hkv, d] in the dtype of the store, any strides but adjacent channels.
    slots : int32 or int64 [T], the row of each token, no row twice; a row outside the store (-1) is skipped.
    store : exact store, contiguous; its witness is not written.
    tags : int64 [rows, Hkv], pinned or on the device, or None: where the content tag of each row and head is put. It is
        computed on the device from what is sent, so it also covers the way.
    layer : part of the site that a tag speaks of.

    In stream order, capturable; the host may read the rows after synchronizing with the stream.
    """
    _copy(k, v, slots, store, tags, layer, None)


def page_out_mismatches(
    k: Tensor, v: Tensor, slots: Tensor, store: ExactStore, tags: Tensor | None = None, *, layer: int = 0
) -> Tensor:
    """Read back what ``page_out`` of the same arguments left: int32 [1] on the device, 0 if all of it is there.

    Counts the 16-bit words and the tags that differ.
    """
    wrong = torch.zeros(1, dtype=torch.int32, device=k.device)
    _copy(k, v, slots, store, tags, layer, wrong)
    return wrong


def damaged_rows(store: ExactStore, rows: Tensor, tags: Tensor, *, layer: int = 0) -> Tensor:
    """Which rows are not what their tags say: int32 [N, Hkv], 1 where they differ, for rows int32 or int64 [N].

    rows lies on the device that checks; store and tags there or in pinned host memory. A row outside the store is 0.
    """
    if not isinstance(store, ExactStore):
        raise InputError(f"store is {type(store).__name__}; expected ExactStore")
    device = rows.device
    on_device("rows", rows)
    slot_map("rows", rows, rows.shape[0] if rows.ndim == 1 else -1, device)
    for name, x in (("store.k", store.k), ("store.v", store.v)):
        _reachable(name, x, device)
    _tags_of(tags, (store.slots, store.kv_heads), layer, device)
    wrong = torch.zeros(rows.shape[0], store.kv_heads, dtype=torch.int32, device=device)
    if rows.shape[0]:
        k, v = store.k.view(torch.int16), store.v.view(torch.int16)
        page_out_kernel[(rows.shape[0], store.kv_heads)](
            k, v, rows, k, v, tags, wrong, 0, 0, 0, 0, store.slots, layer,
            H=store.kv_heads, D=store.head_dim, TAGS=True, MODE=VERIFY, num_warps=1,
        )  # fmt: skip
    return wrong


def damaged_pairs(
    data: ExactStore, at: Tensor, rows: Tensor, heads: Tensor, tags: Tensor, *, layer: int = 0
) -> Tensor:
    """Which copies of (row, KV head) pairs are not what the pairs' tags say: int32 [N], 1 where they differ.

    Parameters
    ----------
    data : exact store of one head, on the device or in pinned host memory: a side pool, or the backing store seen as one.
    at : int32 or int64 [N] on the device, the row of data to look at. rows, heads : the pair that it should be, likewise.
    tags : int64 [rows, Hkv], pinned or on the device, as ``page_out`` puts them. layer : as it was given there.

    A pair, or a row of data, that does not exist is wrong.
    """
    if not isinstance(data, ExactStore) or data.kv_heads != 1:
        kind = f"of {data.kv_heads} heads" if isinstance(data, ExactStore) else type(data).__name__
        raise InputError(f"data is {kind}; expected an ExactStore of one head")
    device = rows.device
    on_device("rows", rows)
    items = rows.shape[0] if rows.ndim == 1 else -1
    for name, x in (("at", at), ("rows", rows), ("heads", heads)):
        slot_map(name, x, items, device)
    for name, x in (("data.k", data.k), ("data.v", data.v)):
        _reachable(name, x, device)
    if not isinstance(tags, Tensor) or tags.ndim != 2:
        raise InputError("tags is not a tensor [rows, Hkv]")
    _tags_of(tags, tuple(tags.shape), layer, device)
    wrong = torch.empty(items, dtype=torch.int32, device=device)
    if items:
        pair_tag_kernel[(items,)](
            data.k.view(torch.int16), data.v.view(torch.int16), at, rows, heads, tags, wrong, data.slots, tags.shape[0], layer,
            H=tags.shape[1], D=data.head_dim, num_warps=1,
        )  # fmt: skip
    return wrong
