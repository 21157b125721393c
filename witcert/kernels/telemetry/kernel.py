"""Counts the meters of one launch into a histogram and samples some cells into a ring, all on the device.

Integer additions only, and one program writes the ring, so the result does not depend on the order of programs.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["telemetry_kernel"]


@triton.jit(do_not_specialize=["cells", "row", "capacity", "stride"])
def telemetry_kernel(
    meter_ptr, c_max_ptr, histogram_ptr, ring_meter_ptr, ring_cell_ptr, state_ptr, cells, row, capacity, stride,
    BINS: tl.constexpr, COLUMNS: tl.constexpr, SAMPLES: tl.constexpr, BLOCK: tl.constexpr, HAS_C: tl.constexpr,
):  # fmt: skip
    """One program, one warp: BLOCK cells. state: [launches, samples written], int64; row: the row of the histogram.

    Columns of a row: BINS equal parts of [0, 1), then 1 or more, then not finite (NaN, or a bound C that is not finite),
    then below 0. The cell number i is sampled if i = launches (mod stride), at most SAMPLES of them.
    """
    program = tl.program_id(0)
    cell = program * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = cell < cells
    meter = tl.load(meter_ptr + cell, mask=inside, other=0.0)
    lost = meter != meter
    if HAS_C:
        c_max = tl.load(c_max_ptr + cell, mask=inside, other=0.0)
        lost = lost | ((c_max - c_max) != 0.0)  # NaN or infinity
    part = tl.minimum(tl.maximum(tl.where(lost, 0.0, meter), 0.0), 1.0) * BINS
    column = tl.minimum(part.to(tl.int32), BINS - 1)
    column = tl.where(meter >= 1.0, BINS, column)
    column = tl.where(meter < 0.0, BINS + 2, column)
    column = tl.where(lost, BINS + 1, column)
    column = tl.where(inside, column, COLUMNS - 1)  # never read
    count = tl.histogram(column, COLUMNS)  # [COLUMNS]
    at = tl.arange(0, COLUMNS)
    place = histogram_ptr + row.to(tl.int64) * (BINS + 3) + at
    tl.atomic_add(place, count.to(tl.int64), mask=(at < BINS + 3) & (count > 0))
    if program == 0:
        none = tl.zeros([1], tl.int32)  # state as a block of one, so that all of it goes through masks
        launches = tl.load(state_ptr + none)  # [1]
        written = tl.load(state_ptr + 1 + none)  # [1]
        first = (launches % stride).to(tl.int32)  # [1]
        number = tl.arange(0, SAMPLES)
        sample = first + number * stride  # [SAMPLES]
        taken = sample < cells
        value = tl.load(meter_ptr + sample, mask=taken, other=0.0)
        slot = (written + number) % capacity  # int64
        tl.store(ring_meter_ptr + slot, value, mask=taken)
        tl.store(ring_cell_ptr + slot * 3, launches + tl.zeros([SAMPLES], tl.int64), mask=taken)
        tl.store(ring_cell_ptr + slot * 3 + 1, row + tl.zeros([SAMPLES], tl.int64), mask=taken)
        tl.store(ring_cell_ptr + slot * 3 + 2, sample.to(tl.int64), mask=taken)
        tl.debug_barrier()
        tl.store(state_ptr + none, launches + 1)
        tl.store(state_ptr + 1 + none, written + tl.sum(taken.to(tl.int64), 0))
