"""Band norms of the residual in Triton, rounded up to fp16 with the arithmetic fold: Tier A's write path.

``w_b = RU16(F * |k_hat_b - k_b| + G * |k_hat_b|)``, F and G from :mod:`.budget`, is never below the real
``(1 + 2^-20) * |k_hat_b - k_b| + gamma * |k_hat_b|`` (theorems ``band_cauchy_schwarz``, ``witness_mono``, ``ru16_ge``,
``arith_fold``). What is not finite becomes +inf; a residual that is 0 in every channel, with gamma 0, becomes 0.

Error budget (docs/error-budget.md, section W): fp32 subtract, multiply, ``tl.sum``, ``tl.sqrt_rn``, multiply, add, each
correctly rounded, in F and G; the cast to fp16 by integer arithmetic.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.rounding import magnitude_bits, ru16_bits

__all__ = ["band_witness", "witness_write_kernel"]


@triton.jit
def _by_band(x, ROWS: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr):
    """[ROWS, D] -> [ROWS, BANDS, 2, D // BANDS // 2]: the channels of each band; HALF: channel i pairs with i + D/2."""
    if HALF:
        halves = tl.reshape(x, [ROWS, 2, BANDS, D // BANDS // 2])
        return tl.permute(halves, [0, 2, 1, 3])
    else:
        return tl.reshape(x, [ROWS, BANDS, 2, D // BANDS // 2])


@triton.jit
def band_witness(
    residual, served, factor, key_factor,
    ROWS: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Witness of a tile: float32 residual and k_hat [ROWS, D] -> float16 [ROWS, BANDS]."""
    square = _by_band(residual * residual, ROWS, D, BANDS, HALF)
    bound = tl.sqrt_rn(tl.sum(tl.sum(square, 3), 2)) * factor  # [ROWS, BANDS]
    alive = magnitude_bits(residual)  # [ROWS, D]
    if FOLD:
        square = _by_band(served * served, ROWS, D, BANDS, HALF)
        bound += tl.sqrt_rn(tl.sum(tl.sum(square, 3), 2)) * key_factor
        alive |= magnitude_bits(served)
    # Squares can underflow, so that the bound is 0 although the real norm is not: the least code covers that.
    some = tl.max(tl.max(_by_band(alive, ROWS, D, BANDS, HALF), 3), 2) > 0
    code = ru16_bits(bound)
    code = tl.where(some, tl.maximum(code, 1), code)
    return code.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def witness_write_kernel(
    k_ptr, k_hat_ptr, slots_ptr, order_ptr, out_ptr,
    k_token, k_head, k_hat_token, k_hat_head, tokens, slots, factor, key_factor,
    H: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, PAGE: tl.constexpr,
    HALF: tl.constexpr, PERMUTED: tl.constexpr, FOLD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program: ROWS tokens of one KV head."""
    head = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    slot = tl.load(slots_ptr + row, mask=row < tokens, other=-1).to(tl.int64)
    inside = (slot >= 0) & (slot < slots)
    channel = tl.arange(0, D)  # [D], in the order of the bands if PERMUTED
    if PERMUTED:
        channel = tl.load(order_ptr + channel)
    at = row.to(tl.int64)[:, None]
    mask = inside[:, None]
    k = tl.load(k_ptr + at * k_token + head * k_head + channel[None, :], mask=mask, other=0.0)  # [ROWS, D]
    k_hat = tl.load(k_hat_ptr + at * k_hat_token + head * k_hat_head + channel[None, :], mask=mask, other=0.0)
    served = k_hat.to(tl.float32)
    w = band_witness(served - k.to(tl.float32), served, factor, key_factor, ROWS, D, BANDS, HALF, FOLD)
    out = ((slot // PAGE) * H + head) * PAGE + slot % PAGE  # [ROWS]
    tl.store(out_ptr + out[:, None] * BANDS + tl.arange(0, BANDS)[None, :], w, mask=mask)
