"""Launch of the INT8 write kernel, with and without dither: checks its arguments, waits for nothing."""

from __future__ import annotations

from fractions import Fraction

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import slot_map, token_rows
from witcert.kernels.dither_int8_write.kernel import int8_write_kernel
from witcert.kernels.formats import PackedStore
from witcert.kernels.witness_write.budget import write_factors
from witcert.kernels.witness_write.launch import check_bands, is_contiguous, is_half
from witcert.witness import Bands

__all__ = ["dither_int8_write"]

# The kernel rounds s (n - xi) to float32 once; without dither s n is exact (11 + 7 bits).
SERVED_ERROR = Fraction(1, 2**24)
TILE = 512
"""Channels of a tile, on one warp: 16 a thread, which are one draw of dither. What was fastest on an H200."""
TILES, PROGRAMS = 8, 8192
"""Most tiles that a program writes one after the other, and how many programs there must be before it writes a second."""


def write_int8(k: Tensor, v: Tensor, slots: Tensor, store: PackedStore, bands: Bands | None, gamma: float) -> None:
    """Check and launch; whether there is dither is a property of the store."""
    token_rows("k", k, store.kv_heads, store.head_dim)
    token_rows("v", v, store.kv_heads, store.head_dim)
    tokens = k.shape[0]
    device = store.k_code.device
    if v.shape != k.shape or v.device != k.device or k.device != device:
        where = f"{tuple(v.shape)} on {v.device}, the store on {device}"
        raise InputError(f"v is {where}; expected {tuple(k.shape)} on {k.device}")
    slot_map("slots", slots, tokens, k.device)
    if store.k_outlier is not None and k.dtype == torch.float32:
        raise InputError("k is torch.float32; outlier pairs are kept in fp16, which only half-precision keys survive")
    if store.witness is None and (bands is not None or gamma):
        raise InputError("bands and gamma speak about a witness, and the store has none")
    head_dim, count = store.head_dim, 0 if store.witness is None else store.witness.shape[3]
    half, factor, key_factor = True, 1.0, 0.0
    if count:
        bands = bands or Bands(head_dim, count)
        check_bands(bands, head_dim, count)
        half = is_half(bands)
        if not half and not is_contiguous(bands):
            raise InputError(f"{bands} turns a part of the head: write its witness with witness_write")
        served_error = Fraction(0) if store.dither is None else SERVED_ERROR
        factor, key_factor = write_factors(head_dim // count, gamma, served_error)
    rounds = 0 if store.dither is None else store.dither.rounds
    low, high = (0, 0) if store.dither is None else store.dither.words
    rows = TILE // head_dim
    if store.slots * store.kv_heads >= 2**31:
        raise InputError(f"the store has {store.slots} slots of {store.kv_heads} heads; expected fewer than 2^31 rows")
    tiles = max(1, min(TILES, 2 * store.kv_heads * triton.cdiv(tokens, rows) // PROGRAMS))
    if tokens:
        int8_write_kernel[(store.kv_heads, triton.cdiv(tokens, rows * tiles), 2)](
            k, v, slots, store.epochs if store.epochs is not None else slots,
            store.k_code, store.k_scale, store.v_code, store.v_scale,
            store.k_outlier if store.k_outlier is not None else store.k_scale,
            store.outlier_channels if store.outlier_channels is not None else slots,
            store.witness if store.witness is not None else store.k_scale,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), tokens, store.slots, tiles, low, high,
            0 if store.dither is None else store.dither.layer, factor, key_factor,
            H=store.kv_heads, D=head_dim, PAGE=store.page_size, K_ROUNDS=rounds,
            V_ROUNDS=rounds if store.dither is not None and store.dither.values else 0,
            PAIRS=store.outlier_pairs, BANDS=count, HALF=half, FOLD=key_factor > 0,
            TINY=k.dtype != torch.float16, ROWS=rows, INTERPRET=triton.knobs.runtime.interpret,
            num_warps=1,
        )  # fmt: skip


def dither_int8_write(
    k: Tensor, v: Tensor, slots: Tensor, store: PackedStore, *, bands: Bands | None = None, gamma: float = 0.0
) -> None:
    """Quantize new keys and values with subtractive dither into a packed store: codes, scales, outliers, witness.

    Parameters
    ----------
    k, v : keys after RoPE and values [T, Hkv, d], float16, bfloat16 or float32, any strides but adjacent channels.
    slots : int32 or int64 [T], no slot twice; a slot outside the store (-1, padding of a captured graph) is skipped.
    store : a packed store with dither; each token's dither comes from its slot and the slot's epoch in ``epochs``.
    bands, gamma : of the witness, if the store has one, as in ``witness_write``.

    Codes and scales are those of ``DitherInt8`` bit for bit. A group with a NaN, an infinity or a maximum above 8.28e6
    gets scale +inf, and its bands the witness +inf: no claim. Outliers of bfloat16 keys are rounded to fp16: exact from
    2^-14 to 65504, within 2^-25 below, +inf above; a witness counts the difference.
    """
    if store.dither is None:
        raise InputError("the store has no dither; use rtn_write")
    write_int8(k, v, slots, store, bands, gamma)
