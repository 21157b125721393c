"""The device-side record of meters, and the launch that adds one decode step of one layer to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import on_device
from witcert.kernels.telemetry.kernel import telemetry_kernel

__all__ = ["BINS", "Sample", "Telemetry"]

BINS = 64
"""Equal parts of [0, 1)."""
COLUMNS = 128
"""Columns that the kernel counts in: a power of two, at least BINS + 4."""
SAMPLES = 64
"""Most cells that one launch can put into the ring."""
BLOCK = 1024


@dataclass(frozen=True)
class Sample:
    """One sampled cell: number of the launch, tier and layer, number of the cell in its launch, its meter."""

    launch: int
    tier: str
    layer: int
    cell: int
    meter: float


@dataclass(frozen=True, eq=False)
class Telemetry:
    """Histogram of meters by tier and layer, and a ring of sampled cells, on the device.

    Parameters
    ----------
    tiers : names of the guarantees that are counted apart; meters of different tiers are never added up.
    layers : number of layers.
    histogram : int64 [tiers, layers, BINS + 3]: BINS equal parts of [0, 1), then 1 or more (no claim), then not finite
        (NaN anywhere on the way), then below 0 (a meter never is; a count here is a bug).
    ring_meter, ring_cell : float32 [capacity] and int64 [capacity, 3]: the sampled meters, and for each the launch, the
        row of the histogram and the cell.
    state : int64 [2]: launches recorded, samples written.
    stride : every stride-th cell of a launch is sampled, starting one later at each launch.
    """

    tiers: tuple[str, ...]
    layers: int
    histogram: Tensor
    ring_meter: Tensor
    ring_cell: Tensor
    state: Tensor
    stride: int

    @classmethod
    def empty(
        cls, tiers: tuple[str, ...], layers: int, *, capacity: int = 4096, stride: int = 64,
        device: torch.device | str = "cpu",
    ) -> Telemetry:  # fmt: skip
        """A record of nothing yet."""
        if not tiers or len(set(tiers)) != len(tiers):
            raise InputError(f"tiers={tiers!r} must be one or more different names")
        for name, value, least in (("layers", layers, 1), ("capacity", capacity, SAMPLES), ("stride", stride, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                raise InputError(f"{name}={value!r} is not a whole number in {least}..2^31 - 1")
        return cls(
            tiers, layers,
            histogram=torch.zeros(len(tiers), layers, BINS + 3, dtype=torch.int64, device=device),
            ring_meter=torch.zeros(capacity, device=device),
            ring_cell=torch.zeros(capacity, 3, dtype=torch.int64, device=device),
            state=torch.zeros(2, dtype=torch.int64, device=device),
            stride=stride,
        )  # fmt: skip

    def record(self, meter: Tensor, *, tier: str, layer: int, c_max: Tensor | None = None) -> None:
        """Add the meters of one launch: one kernel, capturable, nothing waits for the device.

        Parameters
        ----------
        meter : float32, any shape, contiguous: one meter a cell.
        tier, layer : where they are counted.
        c_max : float32, same shape, or None: the per-token bound C; where it is not finite, something on the way to the
            meter was not, and the cell is counted as such although its meter is 1.
        """
        if tier not in self.tiers:
            raise InputError(f"tier={tier!r} is none of {', '.join(self.tiers)}")
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise InputError(f"layer={layer!r} is outside 0..{self.layers - 1}")
        for name, x in (("meter", meter), ("c_max", meter if c_max is None else c_max)):
            if not isinstance(x, Tensor) or x.dtype != torch.float32 or not x.is_contiguous():
                kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
                raise InputError(f"{name} is {kind}; expected a contiguous float32 tensor")
            if x.shape != meter.shape or x.device != self.state.device:
                where = f"{tuple(x.shape)} on {x.device}"
                raise InputError(f"{name} is {where}; expected {tuple(meter.shape)} on {self.state.device}")
        on_device("meter", meter)
        cells = meter.numel()
        if cells >= 2**31 - SAMPLES * self.stride:
            raise InputError(f"meter has {cells} cells; expected fewer than 2^31 - {SAMPLES * self.stride}")
        telemetry_kernel[(max(1, triton.cdiv(cells, BLOCK)),)](
            meter, meter if c_max is None else c_max, self.histogram, self.ring_meter, self.ring_cell, self.state,
            cells, self.tiers.index(tier) * self.layers + layer, self.ring_meter.shape[0], self.stride,
            BINS=BINS, COLUMNS=COLUMNS, SAMPLES=SAMPLES, BLOCK=BLOCK, HAS_C=c_max is not None, num_warps=1,
        )  # fmt: skip

    def samples(self) -> list[Sample]:
        """The sampled cells that the ring still holds, oldest first. Waits for the device."""
        written, capacity = int(self.state[1]), self.ring_meter.shape[0]
        order = [i % capacity for i in range(max(0, written - capacity), written)]
        meters, rows = self.ring_meter.tolist(), self.ring_cell.tolist()
        out = []
        for i in order:
            launch, row, cell = rows[i]
            out.append(Sample(launch, self.tiers[row // self.layers], row % self.layers, cell, meters[i]))
        return out
