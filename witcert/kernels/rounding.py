"""Directed rounding in Triton: how every bound that a kernel stores or inflates is rounded up.

``ru16`` follows theorems ``ru16_ge`` and ``ru16_lt_next`` (an exact integer model of binary16); it works on the bits,
and below 2^-14 on one addition rounded to nearest. ``next_up`` is one step on the float32 grid: a basic operation
that rounds to nearest is within half a step of the exact result, so ``next_up`` of it is an upper bound.

The derivations, and the assumption behind each, are listed in ``docs/error-budget.md``.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["magnitude_bits", "next_up", "ru16", "ru16_bits", "ru16_code", "ru_add", "ru_mul", "ru_sqrt", "widen"]


@triton.jit
def widen(x):
    """The same numbers in float32, of float16, bfloat16 or float32 (the interpreter's cast alters tiny bfloat16)."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def magnitude_bits(x):
    """The bits of |x| as int32, for float32 x: ordered as the magnitudes are, infinity above all and NaN above that."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def ru16_bits(x):
    """Code (int32) of the least float16 that is at least x, for float32 x >= 0; NaN, infinity, above 65504: 0x7C00.

    The sign is ignored: -0.0 is 0, and a negative x is rounded as |x|, which is only larger.
    """
    bits = magnitude_bits(x)
    # At least 2^-14: drop 13 bits of the significand, upward; 0x47800000 is 65536.0, 114688 the bias difference << 10.
    normal = ((tl.minimum(bits, 0x47800000) + 0x1FFF) >> 13) - 114688
    # Below, a code counts units of 2^-24, which is the last bit of the float32 in [1/2, 1): the nearest count, or the
    # next one where that is less than x.
    size = bits.to(tl.float32, bitcast=True)
    shifted = size + 0.5
    count = shifted.to(tl.int32, bitcast=True) - 0x3F000000 + (shifted - 0.5 < size).to(tl.int32)
    return tl.where(bits < 0x38800000, count, normal)


@triton.jit
def ru16_code(x, INTERPRET: tl.constexpr):
    """The same code as ``ru16_bits``, by the conversion instruction that rounds toward +infinity where a GPU runs it."""
    if INTERPRET:
        return ru16_bits(x)
    else:
        up = tl.inline_asm_elementwise(
            "cvt.rp.f16.f32 $0, $1;", "=h,r", [tl.abs(x)], dtype=tl.float16, is_pure=True, pack=1
        )
        return tl.minimum(up.to(tl.int16, bitcast=True), 0x7C00).to(tl.int32)  # NaN has a larger code


@triton.jit
def ru16(x):
    """The least float16 that is at least x >= 0; NaN, infinity and overflow give +inf."""
    return ru16_bits(x).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def next_up(x):
    """The next float32 above x >= 0, at least 2^-126 (which covers a flushed subnormal); NaN and infinity: +inf."""
    bits = tl.minimum(magnitude_bits(x), 0x7F7FFFFF) + 1  # infinity and every NaN, whatever its payload, too
    return tl.maximum(bits, 0x00800000).to(tl.float32, bitcast=True)


@triton.jit
def ru_add(a, b):
    """An upper bound on a + b, for a, b >= 0."""
    return next_up(a + b)


@triton.jit
def ru_mul(a, b):
    """An upper bound on a * b, for a, b >= 0."""
    return next_up(a * b)


@triton.jit
def ru_sqrt(a):
    """An upper bound on the square root of a >= 0, from the correctly rounded one."""
    return next_up(tl.sqrt_rn(a))
