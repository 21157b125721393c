"""INT8 codes, scales, outlier pairs and witnesses in one pass over the new keys and values.

Per token, KV head and group of 32 channels: ``s = RU16(amax / 126.5)`` (127 without dither), ``n = round(fl(fl(x/s) +
xi))`` with the stored fp16 s, ``k_hat = s (n - xi)`` (theorems ``grid_dither_law``, ``half_step``, ``ru16_ge``). Codes
and scales are those of the PyTorch schemes bit for bit, and no code needs clipping (see ``DitherInt8``).

Error budget (docs/error-budget.md, section Q). The quotient is rounded as IEEE division rounds it, but from one
reciprocal a group: see :func:`divide`. Rounding to an integer adds 1.5 * 2^23, whose last bit is worth 1: the code is
then the low byte. The maximum keeps a NaN, which reaches the scale as +inf.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.philox.device import dither_tile, dither_words, key_words
from witcert.kernels.rounding import magnitude_bits, ru16_code, widen
from witcert.kernels.witness_write.kernel import band_witness, pool_row

__all__ = ["divide", "int8_write_kernel", "quotient", "reciprocal"]


@triton.jit
def reciprocal(s, INTERPRET: tl.constexpr):
    """1 / s within 2^-23, for a positive float16 s or infinity (assumption RECIPROCAL); nothing here is subnormal."""
    if INTERPRET:
        return 1.0 / s
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [s], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def quotient(x, s, inverse):
    """fl(x / s) for an 11-bit s > 0, from any inverse of s within 2^-23, where |x/s| >= 2^-60.

    coarse has 13 significant bits and s has 11, so their product is exact, and so is its difference from x, which is at
    most 2^-13 (1 + 2^-8) of the power of two below x. Error of the inverse and the last product are then below 0.76 *
    2^-12 ulp of the result, but no quotient of a float32 by an 11-bit number is within 2^-12 ulp of the middle between
    two float32. Exact with or without fused operations.
    """
    near = x * inverse
    coarse = ((near.to(tl.int32, bitcast=True) + 0x400) & -0x800).to(tl.float32, bitcast=True)
    return coarse + (x - coarse * s) * inverse


@triton.jit
def divide(x, s, inverse, INTERPRET: tl.constexpr):
    """fl(x / s) as :func:`quotient` gives it, in three operations, where a GPU fuses them.

    near is within 3 ulp of x / s. x - near * s is a multiple of ulp(near) times the unit of s and at most 3 * 2^11 such
    units, so the fused operation gives it exactly; the last one then errs, before it rounds, by at most 3 * 2^-23 ulp.
    """
    if INTERPRET:
        return quotient(x, s, inverse)
    else:
        near = x * inverse
        return tl.fma(tl.fma(-near, s, x), inverse, near)


@triton.jit
def _low_bytes(x, used, INTERPRET: tl.constexpr):
    """The low byte of each int32, and that of used (of all ones or 0, the same for 4 neighbours), as int8.

    Where a GPU runs it: three byte permutes and one AND for four of them.
    """
    if INTERPRET:
        return (x & used).to(tl.int8)
    else:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high;
            prmt.b32 low, $1, $2, 0x0040;
            prmt.b32 high, $3, $4, 0x0040;
            prmt.b32 low, low, high, 0x5410;
            and.b32 $0, low, $5;
            }
            """,
            "=r,r,r,r,r,r,r,r,r", [x, used], dtype=tl.int8, is_pure=True, pack=4,
        )  # fmt: skip


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _quantize(
    x, slot, epoch, head, k0, k1, layer,
    ROWS: tl.constexpr, D: tl.constexpr, SIDE: tl.constexpr, ROUNDS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """x float32 [ROWS, D] -> code int8 [ROWS, D], served float32 [ROWS, D], scale code int32 [ROWS, D // 32]."""
    grouped = tl.reshape(x, [ROWS, D // 32, 32])
    amax = tl.reduce(tl.abs(grouped), 2, _larger)  # [ROWS, D // 32]
    if ROUNDS > 0:
        scale = ru16_code(divide(amax, 126.5, 1.0 / 126.5, INTERPRET), INTERPRET)
    else:
        scale = ru16_code(divide(amax, 127.0, 1.0 / 127.0, INTERPRET), INTERPRET)
    scale = tl.maximum(scale, (magnitude_bits(amax) > 0).to(tl.int32))  # 0 means that the whole group is 0
    good = scale < 0x7C00
    s = scale.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    # A group of zeros is divided by the least scale. One without a scale gives NaN, and its code is masked below.
    divisor = tl.maximum(s, 5.9604645e-08)
    ratio = divide(grouped, divisor[:, :, None], reciprocal(divisor, INTERPRET)[:, :, None], INTERPRET)
    xi = tl.zeros_like(ratio)
    if ROUNDS > 0:
        block = tl.arange(0, D // 16)[None, :]  # [1, D // 16]
        w0, w1, w2, w3 = dither_words(k0, k1, slot[:, None], epoch[:, None], layer, head, SIDE, block, ROUNDS)
        xi = tl.reshape(dither_tile(w0, w1, w2, w3, ROWS, D, INTERPRET), [ROWS, D // 32, 32])
        ratio = ratio + xi
    biased = ratio + 12582912.0  # 1.5 * 2^23
    used = tl.broadcast_to(tl.where(good, -1, 0)[:, :, None], [ROWS, D // 32, 32])
    code = _low_bytes(biased.to(tl.int32, bitcast=True), used, INTERPRET)
    served = s[:, :, None] * ((biased - 12582912.0) - xi)  # infinite or NaN without a scale
    return tl.reshape(code, [ROWS, D]), tl.reshape(served, [ROWS, D]), scale


@triton.jit
def _bulk(kept, D: tl.constexpr):
    """All ones for the channels that are not among ``kept`` [2 m], 0 for those that are: int32 [1, D].

    No channel is listed twice, so bits add up.
    """
    group = tl.arange(0, D // 32)[:, None]
    bit = tl.where((kept >> 5)[None, :] == group, 1 << (kept & 31)[None, :], 0)  # [D // 32, 2 m]
    words = tl.sum(bit, 1)  # [D // 32]
    return tl.reshape(((words[:, None] >> tl.arange(0, 32)[None, :]) & 1) - 1, [1, D])


@triton.jit
def _select(bits, a, b, INTERPRET: tl.constexpr):
    """a where bits (int32) is all ones, b where it is 0: one operation, and no predicate to keep for each channel."""
    if INTERPRET:
        return tl.where(bits != 0, a, b)
    else:
        bits = tl.broadcast_to(bits, a.shape)
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0xCA;", "=f,r,f,f", [bits, a, b], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _rows(x_ptr, row, x_token, channel, end):
    """Some channels of rows before ``end``, as they are stored; 0 past it."""
    at = row.to(tl.int64)[:, None] * x_token + channel
    return tl.load(x_ptr + at, mask=tl.broadcast_to((row < end)[:, None], at.shape), other=0.0)


@triton.jit
def _side(
    x_ptr, x_token, x_head, slots_ptr, epochs_ptr, code_ptr, scale_ptr, outlier_ptr, channels_ptr, witness_ptr,
    tokens, slots, tiles, key_low, key_high, layer, factor, key_factor,
    H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SIDE: tl.constexpr, ROUNDS: tl.constexpr,
    PAIRS: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr, FOLD: tl.constexpr, TINY: tl.constexpr,
    ROWS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Write one side of ``tiles`` times ROWS tokens of one KV head; a tile is fetched while the one before is written."""
    head = tl.program_id(0)
    first = tl.program_id(1) * (tiles * ROWS)
    end = tl.minimum(first + tiles * ROWS, tokens)
    row = first + tl.arange(0, ROWS)  # [ROWS]
    channel = tl.arange(0, D)[None, :]  # [1, D]
    x_ptr += head * x_head
    k0, k1 = key_words(key_low, key_high)
    if PAIRS > 0:
        column = tl.arange(0, 2 * PAIRS)
        listed = tl.load(channels_ptr + head * (2 * PAIRS) + column)  # [2 PAIRS]
        bulk_bits = _bulk(listed, D)  # [1, D]
    given = tl.load(slots_ptr + row, mask=row < end, other=-1)
    raw = _rows(x_ptr, row, x_token, channel, end)  # [ROWS, D]; not masked by the slot, so that it need not wait for it
    for _ in range(tiles):
        inside = (given >= 0) & (given < slots)
        slot = tl.where(inside, given, 0).to(tl.int32)
        mask = inside[:, None]
        epoch = slot
        if ROUNDS > 0:
            epoch = tl.load(epochs_ptr + slot, mask=inside, other=0)
        if PAIRS > 0:
            exact = _rows(x_ptr, row, x_token, listed[None, :], end)  # [ROWS, 2 PAIRS]; stored last, when it has come
        x = widen(raw)
        row += ROWS
        given = tl.load(slots_ptr + row, mask=row < end, other=-1)
        raw = _rows(x_ptr, row, x_token, channel, end)

        out = pool_row(slot, head, H, PAGE).to(tl.int64)[:, None]  # [ROWS, 1], in every pool of the store
        bulk = x
        if PAIRS > 0:
            # An outlier becomes 0: it counts in no maximum, and its code is 0, because |xi| < 1/2.
            bulk = (x.to(tl.int32, bitcast=True) & bulk_bits).to(tl.float32, bitcast=True)
        code, served, scale = _quantize(bulk, slot, epoch, head, k0, k1, layer, ROWS, D, SIDE, ROUNDS, INTERPRET)
        tl.store(code_ptr + out * D + channel, code, mask=mask)
        stored = scale.to(tl.int16).to(tl.float16, bitcast=True)  # [ROWS, D // 32]
        tl.store(scale_ptr + out * (D // 32) + tl.arange(0, D // 32)[None, :], stored, mask=mask)
        if BANDS > 0:
            if PAIRS > 0:
                served = _select(bulk_bits, served, x.to(tl.float16).to(tl.float32), INTERPRET)
            w = band_witness(served - x, served, factor, key_factor, ROWS, D, BANDS, HALF, FOLD, TINY, INTERPRET)
            tl.store(witness_ptr + out * BANDS + tl.arange(0, BANDS)[None, :], w, mask=mask)
        if PAIRS > 0:
            tl.store(outlier_ptr + out * (2 * PAIRS) + column[None, :], exact.to(tl.float16), mask=mask)


@triton.jit(do_not_specialize=["tokens", "slots", "tiles", "key_low", "key_high", "layer"])
def int8_write_kernel(
    k_ptr, v_ptr, slots_ptr, epochs_ptr, k_code, k_scale, v_code, v_scale, outlier_ptr, channels_ptr, witness_ptr,
    k_token, k_head, v_token, v_head, tokens, slots, tiles, key_low, key_high, layer, factor, key_factor,
    H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, K_ROUNDS: tl.constexpr, V_ROUNDS: tl.constexpr,
    PAIRS: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr, FOLD: tl.constexpr, TINY: tl.constexpr,
    ROWS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """One program: tiles of one KV head, of the keys (third index 0) or of the values; rounds 0 means no dither."""
    if tl.program_id(2) == 0:
        _side(
            k_ptr, k_token, k_head, slots_ptr, epochs_ptr, k_code, k_scale, outlier_ptr, channels_ptr, witness_ptr,
            tokens, slots, tiles, key_low, key_high, layer, factor, key_factor,
            H, D, PAGE, 0, K_ROUNDS, PAIRS, BANDS, HALF, FOLD, TINY, ROWS, INTERPRET,
        )  # fmt: skip
    else:
        _side(
            v_ptr, v_token, v_head, slots_ptr, epochs_ptr, v_code, v_scale, outlier_ptr, channels_ptr, witness_ptr,
            tokens, slots, tiles, key_low, key_high, layer, factor, key_factor,
            H, D, PAGE, 1, V_ROUNDS, 0, 0, HALF, FOLD, TINY, ROWS, INTERPRET,
        )  # fmt: skip
