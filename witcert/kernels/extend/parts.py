"""Device helpers of extend: the query's side of the bounds, served keys and values, one tile into the running sums."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment,misc"
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.decode.parts import pow2
from witcert.kernels.philox.device import dither_tile, dither_words
from witcert.kernels.rounding import ru16, widen
from witcert.kernels.witness_write.kernel import _band_sum

__all__ = [
    "accumulate",
    "band_columns",
    "halves",
    "narrow",
    "operand",
    "outlier_columns",
    "query_groups",
    "served",
    "value_operand",
]


@triton.jit
def operand(x, INTERPRET: tl.constexpr):
    """x as an operand of a dot product; the interpreter multiplies no bfloat16, and float32 holds the same numbers."""
    if INTERPRET:
        return widen(x)
    else:
        return x


@triton.jit
def narrow(x, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """float32 to float16 or bfloat16, to nearest (the interpreter's own cast to bfloat16 truncates)."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        even = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return tl.where(x == x, even, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def _within_half(x):
    """x, held to float16's largest number where it exceeds that by less than 1 % (half a step of the largest key)."""
    return tl.where(tl.abs(x) < 66000.0, tl.minimum(tl.maximum(x, -65504.0), 65504.0), x)


@triton.jit
def halves(x, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """x = high + low with both of a 16-bit type, up to what the budget's ``packed_gamma`` and ``tiny_keys`` pay for."""
    if dtype == tl.float16:
        high = narrow(_within_half(x), dtype, INTERPRET)
    else:
        high = narrow(x, dtype, INTERPRET)
    return high, narrow(x - widen(high), dtype, INTERPRET)


@triton.jit
def value_operand(x, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """Served values in the type of the output; the value behind a slight overflow of float16 was not above 65504."""
    if dtype == tl.float16:
        return narrow(_within_half(x), dtype, INTERPRET)
    else:
        return narrow(x, dtype, INTERPRET)


@triton.jit
def outlier_columns(channel, outlier_ptr, head, OUT: tl.constexpr):
    """For channels [C]: which are kept exactly (bool), and their column among the head's OUT outliers (0 for others)."""
    column = tl.arange(0, OUT)
    listed = tl.load(outlier_ptr + head * OUT + column)  # [OUT]
    same = channel[:, None] == listed[None, :]  # [C, OUT]
    return tl.max(same.to(tl.int32), 1) > 0, tl.max(tl.where(same, column[None, :], 0), 1)


@triton.jit
def band_columns(q, D: tl.constexpr, M: tl.constexpr, NB: tl.constexpr, HALF: tl.constexpr):
    """Band norms of the queries, float16 rounded up [M, 16], from float32 [M, D]; 8 bands take every other column.

    A square that underflows belongs to a channel below 2^-63; the least positive float16 is above 256 of those.
    """
    norm = ru16(tl.sqrt_rn(_band_sum(q * q, M, D, NB, HALF)) * 1.0000305)  # 1 + 2^-15: squares, sum, root
    some = _band_sum(tl.abs(q), M, D, NB, HALF) > 0.0
    norm = tl.where(some & (norm == 0.0), 5.9604645e-08, norm.to(tl.float32)).to(tl.float16)
    if NB == 8:
        norm = tl.reshape(tl.join(norm, tl.zeros_like(norm)), [M, 16])  # band b in column 2 b
    return norm


@triton.jit
def query_groups(q_ptr, cell, seen, outlier_ptr, head, D: tl.constexpr, OUT: tl.constexpr):
    """Sums of magnitudes and of squares of the queries by groups of 32 channels, outliers left out: tuples of float32 [M].

    Also the sum of magnitudes of the outlier channels [M].
    """
    size = ()
    energy = ()
    outlying = tl.where(seen, 0.0, 0.0)  # [M]
    for g in tl.static_range(D // 32):
        channel = g * 32 + tl.arange(0, 32)
        q = widen(tl.load(q_ptr + cell[:, None] * D + channel[None, :], mask=seen[:, None], other=0.0))  # [M, 32]
        if OUT > 0:
            exact, _ = outlier_columns(channel, outlier_ptr, head, OUT)
            outlying += tl.sum(tl.where(exact[None, :], tl.abs(q), 0.0), 1)
            q = tl.where(exact[None, :], 0.0, q)
        size = size + (tl.sum(tl.abs(q), 1),)
        energy = energy + (tl.sum(q * q, 1),)
    return size, energy, outlying


@triton.jit
def served(
    code_ptr, scale_ptr, row, slot, epoch, head, mask, k0, k1, layer,
    N: tl.constexpr, D: tl.constexpr, SIDE: tl.constexpr, ROUNDS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """k_hat or v_hat of N tokens, float32 [N, D]: s (n - xi); NaN or infinite where the scale is +inf."""
    channel = tl.arange(0, D)[None, :]
    n = tl.load(code_ptr + row[:, None] * D + channel, mask=mask[:, None], other=0).to(tl.float32)  # [N, D]
    s = tl.load(scale_ptr + row[:, None] * (D // 32) + channel // 32, mask=mask[:, None], other=0.0)
    if ROUNDS > 0:
        block = tl.arange(0, D // 16)[None, :]
        w0, w1, w2, w3 = dither_words(k0, k1, slot[:, None], epoch[:, None], layer, head, SIDE, block, ROUNDS)
        n = n - dither_tile(w0, w1, w2, w3, N, D, INTERPRET)
    return n * s.to(tl.float32)


@triton.jit
def accumulate(
    x, c, tight, value, m, mass, total, top, total1, top1, acc, INTERPRET: tl.constexpr, METER: tl.constexpr
):  # fmt: skip
    """One tile into the running sums: x logits in units of log 2 (-inf: not seen), c and tight bounds, value [N, D].

    A rescale below 2^-126 makes a weight 0, but not a weighted bound, which may be as large as 2^128: there it is 2^-126,
    which is larger. A maximum may drop a NaN; the sums do not.
    """
    new = tl.maximum(m, tl.ceil(tl.max(x, 1)))  # [M]
    alpha = pow2(m - new)
    shifted = x - new[:, None]
    p = tl.exp2(shifted)  # [M, N]
    mass = mass * alpha + tl.sum(p, 1)
    if METER > 0:
        least = tl.maximum(alpha, 1.1754943508222875e-38)
        total = total * least + tl.sum(tl.exp2(shifted + c), 1)
        top = tl.maximum(top, tl.max(c, 1))
        if METER == 3:
            total1 = total1 * least + tl.sum(tl.exp2(shifted + tight), 1)
            top1 = tl.maximum(top1, tl.max(tight, 1))
    weight = narrow(p, value.dtype, INTERPRET)
    acc = tl.dot(operand(weight, INTERPRET), operand(value, INTERPRET), acc * alpha[:, None])
    return new, mass, total, top, total1, top1, acc
