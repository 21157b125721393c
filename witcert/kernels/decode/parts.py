"""Device helpers of decode: exact powers of two, folds, the tile of dither in operand order, the capped logit.

Two operations are written as inline PTX, because Triton has no name for them: reading the four bytes of a word as four
int8 without moving them, and turning four codes into four scaled float16 (byte permutes into the mantissa of 1024 + n).
Triton's interpreter has no PTX; there the same numbers are computed with shifts and conversions (INTERPRET).
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "capped",
    "dither_operand",
    "dithered_to_half",
    "fold_max",
    "fold_sum",
    "half_of_pair",
    "join_words",
    "pow2",
    "value_scales",
]


@triton.jit
def pow2(e):
    """2^e for an integer-valued float32 e <= 0, exactly; 0 below 2^-126. NaN gives some power of two."""
    exponent = tl.maximum(e, -127.0).to(tl.int32) + 127
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def fold_sum(x, T: tl.constexpr, GP: tl.constexpr, WARPS: tl.constexpr):
    """Sum over the rows of a tile that one lane holds: [T, GP] -> [8 * WARPS, GP], without crossing lanes."""
    y = tl.reshape(x, (T // (16 * WARPS), WARPS, 2, 8, GP))
    return tl.reshape(tl.sum(tl.sum(y, axis=2), axis=0), (WARPS * 8, GP))


@triton.jit
def fold_max(x, T: tl.constexpr, GP: tl.constexpr, WARPS: tl.constexpr):
    """Maximum over the rows of a tile that one lane holds: [T, GP] -> [8 * WARPS, GP], without crossing lanes."""
    y = tl.reshape(x, (T // (16 * WARPS), WARPS, 2, 8, GP))
    return tl.reshape(tl.max(tl.max(y, axis=2), axis=0), (WARPS * 8, GP))


@triton.jit
def capped(z, cap_log2, inverse_cap):
    """cap * tanh(z / cap) in units of log 2, z in natural units; absolute error below cap_log2 * 2^-19."""
    y = tl.minimum(tl.maximum(z * inverse_cap, -40.0), 40.0)
    y = tl.where(z == z, y, z)  # NaN stays
    e = tl.exp2(y * 2.8853900817779268)
    return cap_log2 * (1.0 - 2.0 / (e + 1.0))


@triton.jit
def _spread(words):
    """Each 32-bit word four times, int32 [..., 2, 2], next to each other in the registers of one thread.

    ``join`` puts its two arguments into neighbouring registers, which a broadcast does not promise; the PTX below takes
    its elements four at a time in the order of registers. It is marked impure so that no pass gives it another order.
    """
    words = words.to(tl.int32, bitcast=True)
    return tl.join(tl.join(words, words), tl.join(words, words))


@triton.jit
def _bytes(spread):
    """Byte 2 i + j of entry (i, j) of the last axes, 0..255, as float32 (for the interpreter)."""
    i = tl.arange(0, 2)
    shift = i[:, None] * 16 + i[None, :] * 8  # [2, 2]
    return ((spread >> shift) & 0xFF).to(tl.float32)


@triton.jit
def join_words(w0, w1, w2, w3):
    """The words of draws in order: four [T, blocks] -> [T, blocks, 2, 2], entry (i, j) is word 2 i + j."""
    return tl.join(tl.join(w0, w2), tl.join(w1, w3))


@triton.jit
def dither_operand(dither, flip, T: tl.constexpr, C: tl.constexpr, INTERPRET: tl.constexpr):
    """The bytes of draws, XORed with those of flip, as int8 [T, C].

    flip, int32 [T, C / 4], must come from a load: it gives the words the layout of a loaded tile, four to a thread.
    """
    words = tl.reshape(dither, (T, C // 4)).to(tl.int32, bitcast=True) ^ flip
    spread = _spread(words)  # [T, C / 4, 2, 2]
    if INTERPRET:
        return tl.reshape(_bytes(spread).to(tl.uint8), (T, C)).to(tl.int8, bitcast=True)
    # Four elements a call, all the same word: its four bytes are the result.
    byte = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [spread], dtype=tl.int8, is_pure=False, pack=4)
    return tl.reshape(byte, (T, C))


@triton.jit
def twice(x):
    """float16 [T] as the low and the high half of int32 [T]."""
    bits = x.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return bits | (bits << 16)


@triton.jit
def value_scales(word, BITS: tl.constexpr, INTERPRET: tl.constexpr):
    """Float16 scales in an integer of 32 or 64 bits, each at most 515.5 (127 times that is within float16); not finite: NaN."""
    if INTERPRET:
        out = word & 0
        for i in tl.static_range(BITS // 16):
            bits = (word >> (16 * i)) & 0xFFFF
            bits = tl.where(bits >= 0x7C00, 0x7E00, tl.minimum(bits, 0x6007))
            out = out | (bits << (16 * i)).to(word.dtype)
        return out
    elif BITS == 32:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 z, c;
            mov.b32 z, 0;
            mov.b32 c, 0x60076007;
            mul.rn.f16x2 z, $1, z;
            min.f16x2 c, $1, c;
            add.rn.f16x2 $0, c, z;
            }""",
            "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, z, c, d;
            mov.b64 {a, b}, $1;
            mov.b32 z, 0;
            mov.b32 d, 0x60076007;
            mul.rn.f16x2 c, a, z;
            min.f16x2 a, a, d;
            add.rn.f16x2 a, a, c;
            mul.rn.f16x2 c, b, z;
            min.f16x2 b, b, d;
            add.rn.f16x2 b, b, c;
            mov.b64 $0, {a, b};
            }""",
            "=l,l", [word], dtype=tl.int64, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def half_of_pair(pair, scale, ODD: tl.constexpr, INTERPRET: tl.constexpr):
    """scale * code of the even or the odd channel, one rounding: int16 holding two codes and float16, of one shape.

    Each element depends on its own element only, so the compiler may do this in the layout of the dot product's operand.
    """
    if INTERPRET:
        code = pair >> 8 if ODD else (pair << 8).to(tl.int16) >> 8
        return (code.to(tl.float32) * scale.to(tl.float32)).to(tl.float16)
    if ODD:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t, c;
            xor.b32 t, $1, 0x80808080;
            mov.b32 c, 0x64806480;
            prmt.b32 t, t, 0x64646464, 0x4341;
            sub.rn.f16x2 t, t, c;
            mul.rn.f16x2 $0, t, $2;
            }""",
            "=r,r,r", [pair, scale], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 t, c;
        xor.b32 t, $1, 0x80808080;
        mov.b32 c, 0x64806480;
        prmt.b32 t, t, 0x64646464, 0x4240;
        sub.rn.f16x2 t, t, c;
        mul.rn.f16x2 $0, t, $2;
        }""",
        "=r,r,r", [pair, scale], dtype=tl.float16, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def dithered_to_half(words, dither, scale, T: tl.constexpr, C: tl.constexpr, INTERPRET: tl.constexpr):
    """scale * (code - xi), two roundings: words of codes [T, C / 4], draws, float16 [T] -> float16 [T, C].

    code - xi = (code - byte / 256) + 255 / 512.
    """
    spread = _spread(words)  # [T, C / 4, 2, 2]
    drawn = _spread(tl.reshape(dither, (T, C // 4)))
    offset = (scale.to(tl.float32) * 0.498046875).to(tl.float16)
    if INTERPRET:
        code = tl.where(_bytes(spread) >= 128.0, _bytes(spread) - 256.0, _bytes(spread))
        fine = (code - _bytes(drawn) * 0.00390625).to(tl.float16).to(tl.float32)
        exact = fine * scale.to(tl.float32)[:, None, None, None] + offset.to(tl.float32)[:, None, None, None]
        return tl.reshape(exact.to(tl.float16), (T, C))
    both = tl.broadcast_to(twice(scale)[:, None, None, None], (T, C // 4, 2, 2))
    shift = tl.broadcast_to(twice(offset)[:, None, None, None], (T, C // 4, 2, 2))
    half = tl.inline_asm_elementwise(
        """{
        .reg .b32 t, u, v, a, b, c;
        xor.b32 t, $2, 0x80808080;
        mov.b32 c, 0x647c647c;
        prmt.b32 u, t, 0x64646464, 0x4140;
        prmt.b32 v, t, 0x64646464, 0x4342;
        prmt.b32 a, $6, 0x44444444, 0x4140;
        prmt.b32 b, $6, 0x44444444, 0x4342;
        sub.rn.f16x2 u, u, c;
        sub.rn.f16x2 v, v, c;
        sub.rn.f16x2 u, u, a;
        sub.rn.f16x2 v, v, b;
        fma.rn.f16x2 $0, u, $10, $14;
        fma.rn.f16x2 $1, v, $10, $14;
        }""",
        "=r,=r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r", [spread, drawn, both, shift], dtype=tl.float16, is_pure=False, pack=4,
    )  # fmt: skip
    return tl.reshape(half, (T, C))
