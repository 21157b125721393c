"""Directed rounding in Triton: how every bound that a kernel stores or inflates is rounded up.

``ru16`` follows theorems ``ru16_ge`` and ``ru16_lt_next`` (an exact integer model of binary16); it works on the bits
and needs nothing of the hardware but integer arithmetic. ``next_up`` is one step on the float32 grid: a basic operation
that rounds to nearest is within half a step of the exact result, so ``next_up`` of it is an upper bound.

The derivations, and the assumption behind each, are listed in ``docs/error-budget.md``.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["magnitude_bits", "next_up", "ru16", "ru16_bits", "ru_add", "ru_mul", "ru_sqrt"]


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
    exponent = bits >> 23
    # value = significand * 2^(max(exponent, 1) - 150); below 2^-14 a float16 code counts units of 2^-24.
    significand = (bits & 0x7FFFFF) | tl.where(exponent > 0, 0x800000, 0)
    shift = tl.minimum(tl.maximum(126 - exponent, 13), 24)
    subnormal = (significand + ((1 << shift) - 1)) >> shift
    subnormal = tl.where(exponent < 102, tl.where(bits > 0, 1, 0), subnormal)
    normal = ((bits + 0x1FFF) >> 13) - 114688  # 112 << 10, the difference of the exponent biases
    code = tl.where(exponent < 113, subnormal, normal)
    return tl.where(bits > 0x477FE000, 0x7C00, code)  # 65504.0, the largest float16


@triton.jit
def ru16(x):
    """The least float16 that is at least x >= 0; NaN, infinity and overflow give +inf."""
    return ru16_bits(x).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def next_up(x):
    """The next float32 above x >= 0, at least 2^-126 (which covers a flushed subnormal); NaN and infinity: +inf."""
    bits = tl.maximum(magnitude_bits(x) + 1, 0x00800000)
    return tl.minimum(bits, 0x7F800000).to(tl.float32, bitcast=True)


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
