"""Stage 2 of decode: merge the splits of one query head and read the meters off the merged sums.

``lse_merge``: output and accumulators of a cell are the averages of its splits' under the weights of the output. The
splits' references are integers, so each weight is an exact power of two and only the additions round. The sums are then
inflated by one launch constant (``ratio_envelope``) and turned into meters (``meter_sound``), every operation rounded up
by a stated margin. A cell with a NaN or an infinity anywhere on the way has meter 1: no claim.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"
# ruff: noqa: RUF005
# Triton's tuples know no unpacking.

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.decode.parts import pow2

__all__ = ["stage2_kernel"]


@triton.jit
def _meter(total, mass, top, inflate):
    """log A, C and the meter of one cell, each rounded up, from the merged sums (top in units of log 2)."""
    ratio = total / tl.where(mass == 0.0, 1.0, mass) * inflate  # >= A
    log_a = tl.log2(ratio) * 0.6931473 * 1.000001 + 1e-6
    square = ratio * ratio
    sharp = tl.where(ratio <= 2.0, 1.0 - 1.0 / ratio, 1.0 / (1.0 + 4.0 / square)) + 4e-7
    c = top * 0.69314725  # above log 2
    e = tl.exp2(top) * 1.0000005
    tanh_half = tl.minimum(c * 0.50000006, 1.0 - 2.0 / (e + 1.0) + 4e-7)
    meter = tl.minimum(tl.minimum(sharp, tanh_half), 1.0)
    known = (ratio < float("inf")) & (top < float("inf")) & (mass > 0.0)
    # No token at all: a token, even one whose weight vanished, has a bound above 0, or a NaN that shows in the sums.
    still = (top == 0.0) & (mass == 0.0) & (total == 0.0)
    log_a = tl.where(still, 0.0, log_a)
    meter = tl.where(still, 0.0, meter)
    known = known | still
    return tl.where(known, log_a, float("inf")), tl.where(known, c, float("inf")), tl.where(known, meter, 1.0)


@triton.jit(do_not_specialize=["splits", "cells"])
def stage2_kernel(
    part_ptr, stat_ptr, sink_ptr, out_ptr, lse_ptr, log_a_ptr, c_ptr, meter_ptr, splits, cells, inflate,
    HQ: tl.constexpr, D: tl.constexpr, SP: tl.constexpr, METERS: tl.constexpr, SINK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0)
    s = tl.arange(0, SP)  # [SP]
    present = s < splits
    stat = stat_ptr + (cell.to(tl.int64) * splits + s) * 8
    # All of a cell's statistics are asked for at once, before any is used.
    m = tl.load(stat, mask=present, other=-3.0e38)  # [SP]
    masses = tl.load(stat + 1, mask=present, other=0.0)
    totals = ()
    tops = ()
    for reading in tl.static_range(METERS):
        totals = totals + (tl.load(stat + 2 + 2 * reading, mask=present, other=0.0),)
        tops = tops + (tl.load(stat + 3 + 2 * reading, mask=present, other=0.0),)
    top = tl.max(m, axis=0)
    if SINK:
        sink = tl.load(sink_ptr + cell % HQ).to(tl.float32) * 1.4426950408889634
        top = tl.maximum(top, tl.ceil(sink))
    weight = tl.where(present, pow2(m - top), 0.0)  # [SP]
    keep = tl.where(present, tl.maximum(weight, 1.1754943508222875e-38), 0.0)  # of bounds, see stage 1
    mass = tl.sum(masses * weight, axis=0)
    if SINK:
        mass += tl.exp2(sink - top)

    d = tl.arange(0, D)  # [D]
    value = tl.zeros((D,), tl.float32)
    for start in range(0, splits, ROWS):
        i = start + tl.arange(0, ROWS)  # [ROWS]
        here = i < splits
        row = cell.to(tl.int64) * splits + i
        w = tl.where(here, pow2(tl.load(stat_ptr + row * 8, mask=here, other=-3.0e38) - top), 0.0)
        part = tl.load(part_ptr + row[:, None] * D + d[None, :], mask=here[:, None], other=0.0)  # [ROWS, D]
        value += tl.sum(part * w[:, None], axis=0)
    empty = mass == 0.0
    value = tl.where(empty, 0.0, value / tl.where(empty, 1.0, mass))
    tl.store(out_ptr + cell.to(tl.int64) * D + d, value.to(out_ptr.dtype.element_ty))
    lse = (top + tl.log2(tl.where(empty, 1.0, mass))) * 0.6931471805599453
    tl.store(lse_ptr + cell, tl.where(empty, float("-inf"), lse))

    for reading in tl.static_range(METERS):
        total = tl.sum(totals[reading] * keep, axis=0)
        c = tl.max(tops[reading], axis=0)
        if SINK:
            # The rounding of its own logit is the sink's error.
            own = tl.abs(sink) * 2.3841858e-07
            total += tl.exp2(sink - top + own)
            c = tl.maximum(c, own)
        log_a, c, meter = _meter(total, mass, c, inflate)
        tl.store(log_a_ptr + reading * cells + cell, log_a)
        tl.store(c_ptr + reading * cells + cell, c)
        tl.store(meter_ptr + reading * cells + cell, meter)
