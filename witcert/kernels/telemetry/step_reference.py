"""What one step adds to the record, in PyTorch; also what runs where there is no Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.kernels.telemetry.step import COLUMNS, LOST, OCTAVES, ONE, OUTSIDE, StepRecord, edges, float32_below

__all__ = ["add_reference", "column_reference"]


def column_reference(meter: Tensor, c_max: Tensor) -> Tensor:
    """Column of the histogram of each cell, int64: the first edge >= x, from its fraction and exponent in float64."""
    wide = meter.double()
    fraction, exponent = torch.frexp(wide.nan_to_num(0.0).clamp(2.0**-30, 1.0))  # x = fraction * 2^exponent
    column = ((exponent - 1 + OCTAVES) * 4 + (8 * fraction).ceil().long() - 4).clamp_min(0)
    column = torch.where(wide == 1.0, ONE, column)
    column = torch.where((wide >= 0.0) & (wide <= 1.0), column, OUTSIDE)
    return torch.where(wide.isnan() | ~c_max.isfinite(), LOST, column)


def add_reference(
    record: StepRecord, stage: Tensor, rows: Tensor, *, token: int = 0, stride: int = 1, masked: bool = False
) -> None:
    """The same as ``StepRecord.add``, to the bit."""
    count = record.check(stage, rows, stride)
    if not count:
        return
    parts = record.view()
    meter, c_max = stage[0].flatten(1), stage[1].flatten(1)  # [segments, cells]
    counted = ~((meter == -torch.inf) & (c_max == -torch.inf)) if masked else torch.ones_like(meter, dtype=torch.bool)
    lost = meter.isnan() | ~c_max.isfinite()
    sane = (meter >= 0.0) & (meter <= 1.0)
    fine = sane & ~lost
    value = torch.where(fine, meter, 1.0)
    value = torch.where(value == 0.0, 0.0, value)

    column = torch.where(counted, column_reference(meter, c_max), COLUMNS)
    found = torch.zeros(len(meter), COLUMNS + 1, dtype=torch.int64, device=meter.device)
    found.scatter_add_(1, column, torch.ones_like(column))
    parts["histogram"].index_add_(0, rows, found[:, :COLUMNS])
    units = (value.double() * 2.0**24).ceil().long()
    good = counted & fine & (meter.double() <= float32_below(record.tau))
    bad = counted & (~sane | (lost & ~(meter >= 1.0)))
    sums = torch.stack([good.sum(1), bad.sum(1), torch.where(counted, units, 0).sum(1)], 1)
    parts["count"].index_add_(0, rows, sums)

    bits = torch.where(counted, value.view(torch.int32).long(), -1).view(len(meter), count, record.heads).amax(1)
    step, written = int(parts["state"][0]), int(parts["state"][1])
    both = (
        (parts["last"], torch.where(bits >= 0, ((step + 1) << 32) | bits, 0)),
        (parts["worst"], torch.where(bits >= 0, bits + 1, 0)),
    )
    for old, new in both:
        old.scatter_reduce_(0, rows[:, None].expand_as(new), new, "amax")

    number = torch.arange(min(step % stride, meter.numel()), meter.numel(), stride, device=meter.device)
    slot = (written + torch.arange(len(number), device=meter.device)) % record.capacity
    segment, cell = number // meter.shape[1], number % meter.shape[1]
    pair = (meter.flatten()[number].view(torch.int32).long() << 32) | (
        c_max.flatten()[number].view(torch.int32).long() & 0xFFFFFFFF
    )
    place = torch.where(counted.flatten()[number], rows[segment], -1)
    full = torch.full_like(number, step)
    parts["ring"][slot] = torch.stack([full, torch.full_like(number, token), place, cell, pair], 1)
    parts["state"].copy_(torch.tensor([step + 1, written + len(number), 0, token]))


assert len(edges()) == ONE + 1
