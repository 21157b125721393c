"""Device functions for the dither of packed codes: Philox4x32 in 32-bit arithmetic, 16 eight-bit dithers a draw.

Bit for bit the stream of :mod:`witcert.kernels.philox.reference` and of ``tl.philox`` (theorems ``grid_dither_law``,
``grid_mgf``: what the finite dither guarantees; the counter layout makes two sites never share a draw).

One round is two 32x32 -> 64 bit products, each one instruction, and four XORs; every other value is uint32 and wraps.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["dither_bytes", "dither_tile", "dither_value", "dither_words", "key_words", "philox4x32_words", "split_seed"]


@triton.jit
def key_words(low, high):
    """The two key words of a seed from its int32 halves (``Dither.words``), as uint32 scalars."""
    return tl.full([], low, tl.int32).to(tl.uint32, bitcast=True), tl.full([], high, tl.int32).to(
        tl.uint32, bitcast=True
    )


@triton.jit
def split_seed(seed):
    """The two key words of a seed that comes as one integer with its 64 bits, signed or not."""
    wide = tl.full([], seed, tl.int64).to(tl.uint64)
    return (wide & 0xFFFFFFFF).to(tl.uint32), (wide >> 32).to(tl.uint32)


@triton.jit
def _wide_product(x, M: tl.constexpr):
    """High and low word of M * x for uint32 x: one widening multiplication (``umulhi`` and a low multiply are two)."""
    wide = x.to(tl.uint64) * M
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def philox4x32_words(k0, k1, c0, c1, c2, c3, ROUNDS: tl.constexpr):
    """Four random words of counter (c0, c1, c2, c3) under key (k0, k1): uint32, of one shape, the key of scalars."""
    tl.static_assert(c0.dtype == tl.uint32 and c1.dtype == tl.uint32)
    tl.static_assert(c2.dtype == tl.uint32 and c3.dtype == tl.uint32)
    tl.static_assert(k0.dtype == tl.uint32 and k1.dtype == tl.uint32)
    MULTIPLIER_0: tl.constexpr = 0xD2511F53
    MULTIPLIER_2: tl.constexpr = 0xCD9E8D57
    for _ in tl.static_range(ROUNDS):
        high0, low0 = _wide_product(c0, MULTIPLIER_0)
        high2, low2 = _wide_product(c2, MULTIPLIER_2)
        c0 = high2 ^ c1 ^ k0
        c1 = low2
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def dither_words(k0, k1, slot, epoch, layer, head, side, block, ROUNDS: tl.constexpr):
    """The four words of one draw: slot, epoch, layer, KV head, side (0 keys, 1 values) and block = channel // 16.

    Integers of any width, whose shapes broadcast against each other; the counter is laid out as ``pack_counter`` does.
    Byte b of word w dithers channel 16 * block + 4 * w + b.
    """
    c0 = slot.to(tl.uint32)
    c1 = epoch.to(tl.uint32)
    c2 = (tl.full([], layer, tl.uint32) << 16) | tl.full([], head, tl.uint32)
    c3 = (tl.full([], side, tl.uint32) << 16) | block.to(tl.uint32)
    zero = (c0 ^ c0) | (c1 ^ c1) | (c2 ^ c2) | (c3 ^ c3)  # in the common shape
    return philox4x32_words(k0, k1, c0 | zero, c1 | zero, c2 | zero, c3 | zero, ROUNDS)


@triton.jit
def _by_channel(w0, w1, w2, w3, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The words of the draws in channel order: four words [ROWS, CHANNELS // 16] -> [ROWS, CHANNELS // 4, 1]."""
    tl.static_assert(CHANNELS % 16 == 0)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # [ROWS, CHANNELS // 16, 2, 2]: entry (i, j) is word 2 i + j
    return tl.reshape(words, [ROWS, CHANNELS // 4, 1])


@triton.jit
def dither_bytes(w0, w1, w2, w3, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The bytes of the draws in channel order, 0..255: four words [ROWS, CHANNELS // 16] -> uint32 [ROWS, CHANNELS]."""
    shift = (tl.arange(0, 4) * 8).to(tl.uint32)[None, None, :]  # [1, 1, 4]
    return tl.reshape((_by_channel(w0, w1, w2, w3, ROWS, CHANNELS) >> shift) & 0xFF, [ROWS, CHANNELS])


@triton.jit
def dither_value(byte):
    """The dither of a byte j: (2 j + 1 - 256) / 512, exact in float32 (also where the two operations are fused)."""
    return byte.to(tl.float32) * 0.00390625 - 0.498046875


@triton.jit
def dither_tile(w0, w1, w2, w3, ROWS: tl.constexpr, CHANNELS: tl.constexpr, INTERPRET: tl.constexpr):
    """The dither of every channel, ``dither_value(dither_bytes(...))``, without a conversion from integers.

    The byte j goes into bits 8 to 15 of 1.0, which makes 1 + j 2^-15 (one byte permute, where a GPU runs it); times 128,
    less 128 + 255/512, it is the dither, exactly at each step.
    """
    words = _by_channel(w0, w1, w2, w3, ROWS, CHANNELS)
    lane = tl.arange(0, 4)[None, None, :]  # [1, 1, 4]
    if INTERPRET:
        one = (((words >> (lane * 8).to(tl.uint32)) & 0xFF) << 8) | 0x3F800000
    else:
        # Bytes of the result, lowest first: 0x00, byte `lane` of the word, 0x80, 0x3F.
        one = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0x3F800000, $2;", "=r,r,r", [words, lane * 16 + 0x7604],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.reshape(one.to(tl.float32, bitcast=True) * 128.0 - 128.498046875, [ROWS, CHANNELS])
