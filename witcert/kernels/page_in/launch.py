"""Launch of page-in and of its read-back check: arguments are checked, the device is not waited for."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import on_device, slot_map
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.formats import BANDS, PAGE_SIZES, ExactStore
from witcert.kernels.page_in.kernel import page_in_kernel
from witcert.kernels.witness_write.budget import write_factors
from witcert.kernels.witness_write.launch import band_order, check_bands, is_contiguous, is_half
from witcert.witness import Bands

__all__ = ["page_in", "page_in_mismatches"]


def _launch(
    host: ExactStore, rows: Tensor, store: ExactStore, slots: Tensor, heads: Tensor | None, witness: Tensor | None,
    witness_slots: Tensor | None, bands: Bands | None, gamma: float | None, wrong: Tensor | None,
) -> None:  # fmt: skip
    if not isinstance(host, ExactStore) or not isinstance(store, ExactStore):
        raise InputError("host and store are exact stores")
    device = store.k.device
    on_device("store", store.k)
    for name, x in (("host.k", host.k), ("host.v", host.v)):
        pinned = x.device.type == "cpu" and (triton.knobs.runtime.interpret or x.is_pinned())
        if not pinned:
            raise InputError(f"{name} is on {x.device}, not in pinned host memory")
    if host.k.dtype != store.k.dtype or host.k.shape[1:] != store.k.shape[1:]:
        theirs, ours = f"{host.k.dtype} {tuple(host.k.shape[1:])}", f"{store.k.dtype} {tuple(store.k.shape[1:])}"
        raise InputError(f"host keeps {theirs} a token, store {ours}; they must agree")
    items = rows.shape[0] if isinstance(rows, Tensor) and rows.ndim == 1 else -1
    slot_map("rows", rows, items, device)
    slot_map("slots", slots, items, device)
    if heads is not None:
        slot_map("heads", heads, items, device)
    if witness is None:
        witness = store.witness
    if witness_slots is None:
        witness_slots = slots
    slot_map("witness_slots", witness_slots, items, device)
    count, page, marks = 0, 1, 0
    if witness is not None:
        page = witness.shape[2] if witness.ndim == 4 else 1
        fits = witness.ndim in (3, 4) and witness.dtype == torch.float16 and witness.is_contiguous()
        if not fits or witness.shape[1] != store.kv_heads or page not in PAGE_SIZES or witness.shape[-1] not in BANDS:
            kind = f"{witness.dtype} {tuple(witness.shape)}"
            raise InputError(f"witness is {kind}; expected a contiguous float16 pool of {store.kv_heads} heads")
        if witness.device != device:
            raise InputError(f"witness is on {witness.device}, the store on {device}")
        count, marks = witness.shape[-1], witness.shape[0] * page
        if marks * store.kv_heads >= 2**31:
            raise InputError(f"witness has {marks} slots of {store.kv_heads} heads; expected fewer than 2^31 rows")
    half, order, key_factor = True, slots, 0.0
    if witness is None:
        if bands is not None or gamma is not None:
            raise InputError("bands and gamma speak about a witness, and there is none")
    else:
        bands = bands or Bands(store.head_dim, count)
        check_bands(bands, store.head_dim, count)
        half = is_half(bands)
        gamma = dot_gamma(store.head_dim) if gamma is None else gamma
        key_factor = write_factors(store.head_dim // count, gamma)[1]
    permuted = key_factor > 0 and bands is not None and not half and not is_contiguous(bands)
    if permuted and bands is not None:
        order = band_order(bands, device)
    if not items:
        return
    bits = [x.view(torch.int16) for x in (host.k, host.v, store.k, store.v)]
    page_in_kernel[(items,)](
        bits[0], bits[1], rows, bits[2], bits[3], slots, slots if heads is None else heads,
        bits[2] if witness is None else witness.view(torch.int16), witness_slots, order,
        slots if wrong is None else wrong, host.slots, store.slots, marks, key_factor,
        H=store.kv_heads, HEADS=triton.next_power_of_2(store.kv_heads) if heads is None else 1, D=store.head_dim,
        BANDS=count, PAGE=page, HALF=half, PERMUTED=permuted, FOLD=key_factor > 0, WIDE=store.k.dtype == torch.bfloat16,
        ONE_HEAD=heads is not None, CHECK=wrong is not None, INTERPRET=triton.knobs.runtime.interpret,
        num_warps=4 if heads is None else 1,
    )  # fmt: skip


def page_in(
    host: ExactStore, rows: Tensor, store: ExactStore, slots: Tensor, *, heads: Tensor | None = None,
    witness: Tensor | None = None, witness_slots: Tensor | None = None, bands: Bands | None = None,
    gamma: float | None = None,
) -> None:  # fmt: skip
    """Copy exact keys and values of tokens from the host's backing store to slots, and write the witnesses of exact keys.

    Parameters
    ----------
    host : backing store in pinned host memory (its witness is not read); same dtype, heads and head_dim as store.
    rows : int32 or int64 [N], rows of host, on the device.
    store : exact store on the device: the served cache itself, or the side pool of a packed cache.
    slots : int32 or int64 [N], where in store each row goes, no slot twice.
    heads : int32 or int64 [N], the one KV head that each item copies; None: all of them.
    witness : pool to write, [slots, Hkv, B] or [pages, Hkv, page_size, B]; None: that of store, if it has one.
    witness_slots : slots of the witness pool, [N]; None: the same as slots.
    bands : the split of the channels; the default is that of a full rotation with half-split pairs.
    gamma : dot-product constant of the kernel that will read the keys; None: that of ``decode``, ``dot_gamma(d)``. With
        0.0 witnesses become 0, for a reader that computes exactly.

    An exact key has no residual (``repair_exact``): its witness is ``RU16(gamma |k_b|)`` or above, which pays for the
    rounding of the reader's own dot product (``arith_fold``); +inf for a band with a NaN or an infinity. An item with a
    row, slot or head outside the stores is padding and copies nothing.
    """
    _launch(host, rows, store, slots, heads, witness, witness_slots, bands, gamma, None)


def page_in_mismatches(
    host: ExactStore, rows: Tensor, store: ExactStore, slots: Tensor, *, heads: Tensor | None = None,
    witness: Tensor | None = None, witness_slots: Tensor | None = None, bands: Bands | None = None,
    gamma: float | None = None,
) -> Tensor:  # fmt: skip
    """Read back what ``page_in`` of the same arguments left: int32 [1] on the device, 0 if all of it is there.

    Counts the 16-bit words of keys and values that are not the host's, and the witnesses that are not what ``page_in``
    computes from the host's keys.
    """
    wrong = torch.zeros(1, dtype=torch.int32, device=store.k.device)
    _launch(host, rows, store, slots, heads, witness, witness_slots, bands, gamma, wrong)
    return wrong
