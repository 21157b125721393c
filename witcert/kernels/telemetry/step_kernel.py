"""Adds the meters of one decode step, all layers and tiers of it, to a record on the device: one launch a step.

Integer additions and integer maxima only, so the result does not depend on the order of programs. The columns of the
histogram are found from the bits of a float32: for x > 0 the integer ``bits(x) - 1 >> 21`` is the same for all x of one
interval ``(2^e (1 + i/4), 2^e (1 + (i + 1)/4)]`` and grows from one to the next, so no edge is ever rounded.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["step_kernel"]


@triton.jit(do_not_specialize=["segments", "rows", "token", "stride", "capacity"])
def step_kernel(
    stage_ptr, row_ptr, state_ptr, count_ptr, histogram_ptr, last_ptr, worst_ptr, ring_ptr,
    segments, rows, token, stride, capacity, tau,
    H: tl.constexpr, HP: tl.constexpr, R: tl.constexpr, OCTAVES: tl.constexpr, COLUMNS: tl.constexpr,
    PADDED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One program, one warp: R rows of H heads of one segment (a tier of a layer). Formats: ``StepRecord``.

    stage: [2, segments, rows, H], the meters and then the C. MASKED: a cell whose meter and C are both -inf is none.
    """
    segment, chunk = tl.program_id(0), tl.program_id(1)
    step, written = tl.load(state_ptr), tl.load(state_ptr + 1)  # int64
    place = tl.load(row_ptr + segment)  # int64, row of the record
    r = chunk * R + tl.arange(0, R)  # [R]
    h = tl.arange(0, HP)  # [HP]
    exists = (r[:, None] < rows) & (h[None, :] < H)  # [R, HP]
    cell = r[:, None] * H + h[None, :]
    flat = segment * (rows * H) + cell  # int32: the launch refuses more
    total = segments * (rows * H)
    meter = tl.load(stage_ptr + flat, mask=exists, other=0.0)
    c_max = tl.load(stage_ptr + total + flat, mask=exists, other=0.0)
    counted = exists
    if MASKED:
        counted = exists & ((meter != float("-inf")) | (c_max != float("-inf")))

    lost = (meter != meter) | ((tl.abs(c_max) < float("inf")) == 0)  # NaN or infinity
    sane = (meter >= 0.0) & (meter <= 1.0)  # false for NaN
    bad = counted & ((sane == 0) | (lost & (meter < 1.0)))
    fine = sane & (lost == 0)
    value = tl.where(fine & (meter != 0.0), meter, 0.0)  # -0.0 becomes 0.0
    bits = value.to(tl.int32, bitcast=True)
    column = tl.maximum(((bits - 1) >> 21) - (127 - OCTAVES) * 4 + 1, 0)
    column = tl.where(meter == 1.0, OCTAVES * 4 + 1, column)
    column = tl.where(fine, column, OCTAVES * 4 + 3)
    column = tl.where(lost, OCTAVES * 4 + 2, column)
    column = tl.where(counted, column, PADDED - 1)  # never read
    at = tl.arange(0, PADDED)
    found = tl.histogram(tl.reshape(column, [R * HP]), PADDED).to(tl.int64)
    tl.atomic_add(histogram_ptr + place * COLUMNS + at, found, mask=(at < COLUMNS) & (found > 0))

    scaled = value * 16777216.0  # exact
    units = scaled.to(tl.int32)
    units += (units.to(tl.float32) < scaled).to(tl.int32)  # up
    units = tl.where(fine, tl.where((bits > 0) & (units == 0), 1, units), 16777216)
    units = tl.sum(tl.sum(tl.where(counted, units, 0).to(tl.int64), 1), 0)
    good = tl.sum(tl.sum((counted & fine & (meter <= tau)).to(tl.int64), 1), 0)
    wrong = tl.sum(tl.sum(bad.to(tl.int64), 1), 0)
    tl.atomic_add(count_ptr + place * 3, good)
    tl.atomic_add(count_ptr + place * 3 + 1, wrong)
    tl.atomic_add(count_ptr + place * 3 + 2, units)

    reported = tl.where(counted, tl.where(fine, bits, 1065353216), -1)  # 1.0 where nothing is claimed
    top = tl.max(reported, 0).to(tl.int64)  # [HP]
    seen = (h < H) & (top >= 0)
    tl.atomic_max(last_ptr + place * H + h, ((step + 1) << 32) | top, mask=seen)
    tl.atomic_max(worst_ptr + place * H + h, top + 1, mask=seen)

    first = (step % stride).to(tl.int32)
    behind = flat - first
    number = behind // stride
    taken = exists & (behind >= 0) & (number * stride == behind)
    entry = ring_ptr + ((written + number) % capacity) * 5
    pair = (meter.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (
        c_max.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    )
    none = tl.zeros([R, HP], tl.int64)
    tl.store(entry, step + none, mask=taken)
    tl.store(entry + 1, token + none, mask=taken)
    tl.store(entry + 2, tl.where(counted, place, -1) + none, mask=taken)
    tl.store(entry + 3, cell.to(tl.int64), mask=taken)
    tl.store(entry + 4, pair, mask=taken)

    # Whoever is last moves the step on: all others have read it by then.
    tl.debug_barrier()
    ticket = tl.atomic_add(state_ptr + 2, 1)
    if ticket == tl.num_programs(0) * tl.num_programs(1) - 1:
        samples = tl.maximum(total - first + stride - 1, 0) // stride
        tl.store(state_ptr, step + 1)
        tl.store(state_ptr + 1, written + samples)
        tl.store(state_ptr + 2, step * 0)
        tl.store(state_ptr + 3, token + step * 0)
