"""The device-side record of whole decode steps, and the launch that adds one step of all layers to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.telemetry.step_kernel import step_kernel

__all__ = ["COLUMNS", "LOST", "OCTAVES", "ONE", "OUTSIDE", "SAMPLES", "UNIT", "StepRecord", "edges"]

OCTAVES = 20
"""Factors of two below 1 that the histogram resolves, each in four columns."""
ONE, LOST, OUTSIDE = 4 * OCTAVES + 1, 4 * OCTAVES + 2, 4 * OCTAVES + 3
"""Columns of meters that are 1, of cells with NaN or an infinite C, and of meters outside [0, 1] (a bug)."""
COLUMNS = 4 * OCTAVES + 4
PADDED = 128
UNIT = 2.0**-24
"""Sums of meters are kept in whole multiples of this, rounded up."""
SAMPLES = 64
"""Most cells of a step that can be put into the ring."""
STATE, RING = 4, 5
MAX_HEADS = 1024


def edges() -> tuple[float, ...]:
    """Upper edges of the columns 0..ONE: column i holds the meters in (edge i - 1, edge i], the last one 1 itself.

    The first column starts at 0 and includes it; the one below ``ONE`` ends just below 1.
    """
    return (2.0**-OCTAVES, *(2.0**e * (1 + i / 4) for e in range(-OCTAVES, 0) for i in range(1, 5)), 1.0)


def float32_below(x: float) -> float:
    """The largest float32 that is at most x."""
    near = np.float32(x)
    return float(near if float(near) <= x else np.nextafter(near, np.float32(-math.inf)))


def tile_of(rows: int, heads: int) -> tuple[int, int]:
    """Heads of a tile, padded to a power of two, and rows of it: no more than there are, but a number for each lane."""
    padded = triton.next_power_of_2(heads)
    most = 256 if rows * padded <= 256 else 1024
    return padded, max(1, min(most, max(32, triton.next_power_of_2(rows) * padded)) // padded)


@dataclass(frozen=True, eq=False)
class StepRecord:
    """Counts of meters by tier and layer, the last and worst meter of each head, and a ring of sampled cells.

    Everything lies in one int64 buffer, ``memory``, so that one copy takes a consistent picture. Its parts, with a row for
    each tier and layer (``tier * layers + layer``):

    state [4] : steps added, samples written, 0 (a ticket counter), token of the last step.
    count [rows, 3] : cells with a meter of at most tau; cells that no sound kernel reports (a meter outside [0, 1], or NaN,
        or below 1 although C is not finite); sum of the meters in multiples of ``UNIT``, rounded up, with 1 for the
        cells of the columns LOST and OUTSIDE.
    histogram [rows, COLUMNS] : see :func:`edges`.
    last [rows, heads] : 2^32 * (number of the step, from 1) + bits of the largest float32 meter of that step, 0: none yet.
    worst [rows, heads] : 1 + bits of the largest meter of all steps, 0: none yet.
    ring [capacity, 5] : step (from 0), token, row (-1: no cell), cell of its segment, bits of meter and of C.
    """

    tiers: tuple[str, ...]
    layers: int
    heads: int
    tau: float
    capacity: int
    memory: Tensor

    @classmethod
    def empty(
        cls, tiers: tuple[str, ...], layers: int, heads: int, *, tau: float, capacity: int = 4096,
        device: torch.device | str = "cpu",
    ) -> StepRecord:  # fmt: skip
        """A record of nothing yet; tau in (0, 1], at most 1024 heads, room for at least 64 samples."""
        if not tiers or len(set(tiers)) != len(tiers):
            raise InputError(f"tiers={tiers!r} must be one or more different names")
        limits = (("layers", layers, 1, 2**16), ("heads", heads, 1, MAX_HEADS), ("capacity", capacity, SAMPLES, 2**24))
        for name, value, least, most in limits:
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InputError(f"{name}={value!r} is not a whole number in {least}..{most}")
        if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not 0.0 < tau <= 1.0:
            raise InputError(f"tau={tau!r} is outside (0, 1]")
        rows = len(tiers) * layers
        size = STATE + rows * (3 + COLUMNS + 2 * heads) + capacity * RING
        return cls(tiers, layers, heads, float(tau), capacity, torch.zeros(size, dtype=torch.int64, device=device))

    def view(self, memory: Tensor | None = None) -> dict[str, Tensor]:
        """The parts of the buffer, or of a copy of it, by name."""
        rows = len(self.tiers) * self.layers
        shapes = {
            "state": (STATE,), "count": (rows, 3), "histogram": (rows, COLUMNS),
            "last": (rows, self.heads), "worst": (rows, self.heads), "ring": (self.capacity, RING),
        }  # fmt: skip
        out, start = {}, 0
        for name, shape in shapes.items():
            size = math.prod(shape)
            out[name] = (self.memory if memory is None else memory)[start : start + size].view(shape)
            start += size
        return out

    @cached_property
    def _constants(self) -> tuple[tuple[Tensor, ...], float]:
        """The parts and the threshold as the kernel takes them, the same at every launch."""
        return tuple(self.view().values()), float32_below(self.tau)

    def check(self, stage: Tensor, rows: Tensor, stride: int) -> int:
        """Number of rows of a segment, if the arguments of :meth:`add` fit (nothing is read on the device)."""
        if not isinstance(stage, Tensor) or stage.dtype != torch.float32 or not stage.is_contiguous():
            kind = stage.dtype if isinstance(stage, Tensor) else type(stage).__name__
            raise InputError(f"stage is {kind}; expected a contiguous float32 tensor")
        if stage.ndim != 4 or stage.shape[0] != 2 or stage.shape[3] != self.heads or not stage.shape[1]:
            raise InputError(f"stage has shape {tuple(stage.shape)}; expected [2, segments, rows, {self.heads}]")
        segments, count = stage.shape[1], stage.shape[2]
        if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or tuple(rows.shape) != (segments,):
            raise InputError(f"rows is not an int64 tensor [{segments}]")
        if stage.device != self.memory.device or rows.device != self.memory.device:
            raise InputError(f"stage is on {stage.device}, rows on {rows.device}; expected {self.memory.device}")
        total = segments * count * self.heads
        if total >= 2**30:
            raise InputError(f"stage has {total} cells; expected fewer than 2^30")
        if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride < 2**30 or total > SAMPLES * stride:
            raise InputError(f"stride={stride!r} is outside {max(1, -(-total // SAMPLES))}..2^30 - 1 for {total} cells")
        return count

    def add(self, stage: Tensor, rows: Tensor, *, token: int = 0, stride: int = 1, masked: bool = False) -> None:
        """Add one step: one kernel, capturable, nothing waits for the device.

        Parameters
        ----------
        stage : float32 [2, segments, rows, heads], contiguous: the meters of each segment, then their C.
        rows : int64 [segments], on the device: the row of the record of each segment (tier * layers + layer).
        token : number that is kept with the samples of this step.
        stride : cells n of the step with ``n = steps (mod stride)`` are sampled, numbered over all segments; at least
            cells / 64, so that every cell has its turn.
        masked : a cell whose meter and C are both -inf is none, and is not counted.
        """
        count = self.check(stage, rows, stride)
        if stage.device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise InputError(f"stage is on {stage.device}; Triton kernels need a GPU (or TRITON_INTERPRET=1)")
        if not count:
            return
        heads, tile = tile_of(count, self.heads)
        parts, tau = self._constants
        step_kernel[(stage.shape[1], triton.cdiv(count, tile))](
            stage, rows, *parts, stage.shape[1], count, token, stride, self.capacity, tau,
            H=self.heads, HP=heads, R=tile, OCTAVES=OCTAVES, COLUMNS=COLUMNS, PADDED=PADDED, MASKED=masked,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
