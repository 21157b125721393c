"""What one launch adds to the record, in PyTorch and Python."""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.kernels.telemetry.launch import BINS, SAMPLES

__all__ = ["histogram_reference", "samples_reference"]


def histogram_reference(meter: Tensor, c_max: Tensor | None = None) -> Tensor:
    """Counts of one launch, int64 [BINS + 3]."""
    flat = meter.flatten().double()
    lost = flat.isnan()
    if c_max is not None:
        lost |= ~c_max.flatten().isfinite()
    column = (flat.nan_to_num(0.0).clamp(0.0, 1.0) * BINS).floor().long().clamp_max(BINS - 1)
    column = torch.where(flat >= 1.0, BINS, column)
    column = torch.where(flat < 0.0, BINS + 2, column)
    column = torch.where(lost, BINS + 1, column)
    return column.bincount(minlength=BINS + 3)


def samples_reference(cells: int, launch: int, stride: int) -> list[int]:
    """The cells that a launch samples."""
    return list(range(launch % stride, cells, stride))[:SAMPLES]
