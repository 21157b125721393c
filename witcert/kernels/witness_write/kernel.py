"""Band norms of the residual in Triton, rounded up to fp16 with the arithmetic fold: Tier A's write path.

``w_b = RU16(F * |k_hat_b - k_b| + G * |k_hat_b|)``, F and G from :mod:`.budget`, is never below the real
``(1 + 2^-20) * |k_hat_b - k_b| + gamma * |k_hat_b|`` (theorems ``band_cauchy_schwarz``, ``witness_mono``, ``ru16_ge``,
``arith_fold``). What is not finite becomes +inf; a residual that is 0 in every channel, with gamma 0, becomes 0.

Error budget (docs/error-budget.md, section W): fp32 subtract, multiply, ``tl.sum``, ``tl.sqrt`` (assumption SQRT),
multiply, add, all paid for by F and G; the cast to fp16 is RU16.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.rounding import ru16_code, widen

__all__ = ["band_witness", "pool_row", "witness_write_kernel"]


@triton.jit
def pool_row(slot, head, H: tl.constexpr, PAGE: tl.constexpr):
    """Row of a slot (int32, >= 0) and KV head in a pool that is page-major, then head-major; the launch checks 2^31."""
    SHIFT: tl.constexpr = 4 if PAGE == 16 else 0
    return (((slot >> SHIFT) * H + head) << SHIFT) | (slot & (PAGE - 1))


@triton.jit
def _band_sum(x, ROWS: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr):
    """Sum over the channels of each band: [ROWS, D] -> [ROWS, BANDS]; HALF: channel i pairs with i + D/2."""
    if HALF:
        # The two halves through split, not a sum: a sum leaves every total in two lanes, which then both go on with it.
        runs = tl.sum(tl.reshape(x, [ROWS, 2, BANDS, D // BANDS // 2]), 3)
        first, second = tl.split(tl.permute(runs, (0, 2, 1)))
        return first + second
    else:
        return tl.sum(tl.reshape(x, [ROWS, BANDS, D // BANDS]), 2)


@triton.jit
def band_witness(
    residual, served, factor, key_factor,
    ROWS: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr, FOLD: tl.constexpr,
    TINY: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Witness of a tile: float32 residual and k_hat [ROWS, D] -> float16 [ROWS, BANDS].

    TINY: whether there may be residuals or served keys below 2^-60 that are not 0. Their squares can underflow, so that
    the bound is 0 although the real norm is not; the least code covers it.
    """
    bound = tl.sqrt(_band_sum(residual * residual, ROWS, D, BANDS, HALF)) * factor  # [ROWS, BANDS]
    if FOLD:
        bound += tl.sqrt(_band_sum(served * served, ROWS, D, BANDS, HALF)) * key_factor
    code = ru16_code(bound, INTERPRET)
    if TINY:
        size = tl.abs(residual)
        if FOLD:
            size += tl.abs(served)
        code = tl.maximum(code, (_band_sum(size, ROWS, D, BANDS, HALF) > 0).to(tl.int32))
    return code.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit(do_not_specialize=["tokens", "slots"])
def witness_write_kernel(
    k_ptr, k_hat_ptr, slots_ptr, order_ptr, out_ptr,
    k_token, k_head, k_hat_token, k_hat_head, tokens, slots, factor, key_factor,
    H: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, PAGE: tl.constexpr,
    HALF: tl.constexpr, PERMUTED: tl.constexpr, FOLD: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """One program: ROWS tokens of one KV head."""
    head = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    given = tl.load(slots_ptr + row, mask=row < tokens, other=-1)
    inside = (given >= 0) & (given < slots)
    slot = tl.where(inside, given, 0).to(tl.int32)
    channel = tl.arange(0, D)  # [D], in the order of the bands if PERMUTED
    if PERMUTED:
        channel = tl.load(order_ptr + channel)
    at = row.to(tl.int64)[:, None]
    mask = inside[:, None]
    k = tl.load(k_ptr + at * k_token + head * k_head + channel[None, :], mask=mask, other=0.0)  # [ROWS, D]
    k_hat = tl.load(k_hat_ptr + at * k_hat_token + head * k_hat_head + channel[None, :], mask=mask, other=0.0)
    served = widen(k_hat)
    w = band_witness(served - widen(k), served, factor, key_factor, ROWS, D, BANDS, HALF, FOLD, TINY, INTERPRET)
    out = pool_row(slot, head, H, PAGE).to(tl.int64)  # [ROWS]
    tl.store(out_ptr + out[:, None] * BANDS + tl.arange(0, BANDS)[None, :], w, mask=mask)
