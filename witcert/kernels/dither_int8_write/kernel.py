"""INT8 codes, scales, outlier pairs and witnesses in one pass over the new keys and values.

Per token, KV head and group of 32 channels: ``s = RU16(amax / 126.5)`` (127 without dither), ``n = round(fl(fl(x/s) +
xi))`` with the stored fp16 s, ``k_hat = s (n - xi)`` (theorems ``grid_dither_law``, ``half_step``, ``ru16_ge``). Codes
and scales are those of the PyTorch schemes bit for bit, and no code needs clipping (see ``DitherInt8``).

Error budget (docs/error-budget.md, section Q). The quotient is rounded as IEEE division rounds it, but from one
reciprocal a group: see :func:`quotient`. Rounding to an integer adds 1.5 * 2^23, whose last bit is worth 1: the code is
then the low byte. amax is taken on the bits, where NaN is the largest of all, so it reaches the scale as +inf.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.philox.device import dither_tile, dither_words, key_words
from witcert.kernels.rounding import magnitude_bits, ru16_bits
from witcert.kernels.witness_write.kernel import band_witness

__all__ = ["int8_write_kernel", "quotient"]


@triton.jit
def quotient(x, s, reciprocal):
    """fl(x / s) for a float16 s > 0, from any reciprocal of s within 2^-24, where |x/s| >= 2^-60.

    coarse has 13 significant bits and s has 11, so their product is exact, and so is its difference from x, which is at
    most 2^-12 |x|. The result errs by at most (1/2 + 2^-13 (1 + 2^-8)) ulp, but no quotient of a float32 by an 11-bit
    number lies closer than 2^-12 ulp to the middle between two float32. Exact with or without fused operations.
    """
    near = x * reciprocal
    coarse = ((near.to(tl.int32, bitcast=True) + 0x400) & -0x800).to(tl.float32, bitcast=True)
    return coarse + (x - coarse * s) * reciprocal


@triton.jit
def _quantize(
    x, keep, slot, epoch, head, k0, k1, layer,
    ROWS: tl.constexpr, D: tl.constexpr, SIDE: tl.constexpr, ROUNDS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """x [ROWS, D], keep [D] -> code int8 and served value float32 [ROWS, D], scale code int32 [ROWS, D // 32]."""
    grouped = tl.reshape(x, [ROWS, D // 32, 32])
    magnitude = magnitude_bits(grouped)  # [ROWS, D // 32, 32]
    if KEEP:
        kept = tl.reshape(keep, [1, D // 32, 32])
        magnitude = tl.where(kept, 0, magnitude)
    top = tl.max(magnitude, 2)  # [ROWS, D // 32]
    amax = top.to(tl.float32, bitcast=True)
    divisor = tl.full(amax.shape, 126.5 if ROUNDS > 0 else 127.0, tl.float32)
    scale = ru16_bits(tl.div_rn(amax, divisor))
    scale = tl.where(top > 0, tl.maximum(scale, 1), 0)
    good = scale < 0x7C00
    s = scale.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    nonzero = tl.where(good & (scale > 0), s, 1.0)
    reciprocal = tl.div_rn(tl.full(s.shape, 1.0, tl.float32), nonzero)
    ratio = quotient(grouped, nonzero[:, :, None], reciprocal[:, :, None])
    xi = tl.zeros_like(ratio)
    if ROUNDS > 0:
        block = tl.arange(0, D // 16)[None, :]  # [1, D // 16]
        w0, w1, w2, w3 = dither_words(k0, k1, slot[:, None], epoch[:, None], layer, head, SIDE, block, ROUNDS)
        xi = tl.reshape(dither_tile(w0, w1, w2, w3, ROWS, D), [ROWS, D // 32, 32])
        ratio = ratio + xi
    biased = ratio + 12582912.0  # 1.5 * 2^23
    used = tl.where(good, 0xFF, 0)[:, :, None]  # [ROWS, D // 32, 1]
    if KEEP:
        used = tl.where(kept, 0, used)
    code = (biased.to(tl.int32, bitcast=True) & used).to(tl.int8)
    served = tl.where(good[:, :, None], s[:, :, None] * ((biased - 12582912.0) - xi), float("nan"))
    return tl.reshape(code, [ROWS, D]), tl.reshape(served, [ROWS, D]), scale


@triton.jit
def _side(
    x_ptr, x_token, x_head, slots_ptr, epochs_ptr, code_ptr, scale_ptr, outlier_ptr, channels_ptr, witness_ptr,
    tokens, slots, key_low, key_high, layer, factor, key_factor,
    H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SIDE: tl.constexpr, ROUNDS: tl.constexpr,
    PAIRS: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr, FOLD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write one side of ROWS tokens of one KV head."""
    head = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    slot = tl.load(slots_ptr + row, mask=row < tokens, other=-1).to(tl.int64)
    inside = (slot >= 0) & (slot < slots)
    mask = inside[:, None]
    epoch = slot
    if ROUNDS > 0:
        epoch = tl.load(epochs_ptr + slot, mask=inside, other=0)
    channel = tl.arange(0, D)
    start = x_ptr + row.to(tl.int64)[:, None] * x_token + head * x_head  # [ROWS, 1]
    x = tl.load(start + channel[None, :], mask=mask, other=0.0).to(tl.float32)  # [ROWS, D]
    out = ((slot // PAGE) * H + head) * PAGE + slot % PAGE  # [ROWS], the row of this token and head in the store
    keep = channel < 0
    if PAIRS > 0:
        column = tl.arange(0, 2 * PAIRS)
        kept = tl.load(channels_ptr + head * (2 * PAIRS) + column)  # [2 PAIRS]
        keep = tl.max((kept[:, None] == channel[None, :]).to(tl.int32), 0) > 0  # [D]
        exact = tl.load(start + kept[None, :], mask=mask, other=0.0).to(tl.float16)  # [ROWS, 2 PAIRS]
        tl.store(outlier_ptr + out[:, None] * (2 * PAIRS) + column[None, :], exact, mask=mask)
    k0, k1 = key_words(key_low, key_high)
    code, served, scale = _quantize(x, keep, slot, epoch, head, k0, k1, layer, ROWS, D, SIDE, ROUNDS, PAIRS > 0)
    tl.store(code_ptr + out[:, None] * D + channel[None, :], code, mask=mask)
    stored = scale.to(tl.int16).to(tl.float16, bitcast=True)  # [ROWS, D // 32]
    tl.store(scale_ptr + out[:, None] * (D // 32) + tl.arange(0, D // 32)[None, :], stored, mask=mask)
    if BANDS > 0:
        if PAIRS > 0:
            served = tl.where(keep[None, :], x.to(tl.float16).to(tl.float32), served)
        w = band_witness(served - x, served, factor, key_factor, ROWS, D, BANDS, HALF, FOLD)
        tl.store(witness_ptr + out[:, None] * BANDS + tl.arange(0, BANDS)[None, :], w, mask=mask)


@triton.jit(do_not_specialize=["key_low", "key_high", "layer"])
def int8_write_kernel(
    k_ptr, v_ptr, slots_ptr, epochs_ptr, k_code, k_scale, v_code, v_scale, outlier_ptr, channels_ptr, witness_ptr,
    k_token, k_head, v_token, v_head, tokens, slots, key_low, key_high, layer, factor, key_factor,
    H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, K_ROUNDS: tl.constexpr, V_ROUNDS: tl.constexpr,
    PAIRS: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr, FOLD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program: ROWS tokens of one KV head, the keys (third index 0) or the values; rounds 0 means no dither."""
    if tl.program_id(2) == 0:
        _side(
            k_ptr, k_token, k_head, slots_ptr, epochs_ptr, k_code, k_scale, outlier_ptr, channels_ptr, witness_ptr,
            tokens, slots, key_low, key_high, layer, factor, key_factor,
            H, D, PAGE, 0, K_ROUNDS, PAIRS, BANDS, HALF, FOLD, ROWS,
        )  # fmt: skip
    else:
        _side(
            v_ptr, v_token, v_head, slots_ptr, epochs_ptr, v_code, v_scale, outlier_ptr, channels_ptr, witness_ptr,
            tokens, slots, key_low, key_high, layer, factor, key_factor,
            H, D, PAGE, 1, V_ROUNDS, 0, 0, HALF, FOLD, ROWS,
        )  # fmt: skip
