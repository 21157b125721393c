"""Where decode puts the readings of a step so that they are counted where they lie, without a copy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.decode import Reading, ReadingBuffers
from witcert.telemetry.calls import Waiting, checked

__all__ = ["Stage", "Stages"]

SHAPES = 64
"""Shapes whose slices are kept at hand."""


class Stage:
    """Meters and C of all layers of a step, float32 [2, segments, batch, heads]; segment = layer * readings + reading.

    So one layer's meters are one contiguous [readings, batch, heads], and its C another.

    buffers : of each layer. shape : of one reading. tiers : number of each label that may be counted.
    """

    def __init__(self, tensor: Tensor, layers: int, tiers: dict[str, int]) -> None:
        self.tensor, self.layers, self.tiers = tensor, layers, tiers
        self.readings, self.shape = tensor.shape[1] // layers, tuple(tensor.shape[2:])
        blocks = tensor.view(2, layers, self.readings, *self.shape)
        self.buffers = [ReadingBuffers(meter, c_max) for meter, c_max in zip(*blocks.unbind(), strict=True)]
        self._known: list[tuple[list[type], list[Waiting]] | None] = [None] * layers

    def find(self, layer: int, readings: Sequence[Reading]) -> list[Waiting] | None:
        """The readings of a layer, checked, if a decode wrote them here: the same tensors, all of them; else None."""
        each = self.buffers[layer].each
        if len(readings) != len(each):
            return None
        kinds = []
        for reading, (meter, c_max) in zip(readings, each, strict=True):
            if type(reading) is not Reading or reading.meter.value is not meter or reading.c_max is not c_max:
                return None
            kinds.append(type(reading.meter))
        known = self._known[layer]
        if known is None or known[0] != kinds:
            size = self.layers, self.shape[1]
            known = kinds, checked(readings, layer, self.tiers, size, self.tensor.device, self.shape)[0]
            self._known[layer] = known
        return known[1]


class Stages:
    """Stages of all shapes, one at a time in use, on common memory that is never given back.

    Memory grows by doubling, and a captured CUDA graph goes on writing into what it was captured with: so nothing that was
    handed out is freed, and all of it together is less than twice the largest.

    most : cells of the largest stage.
    """

    def __init__(self, layers: int, heads: int, tiers: dict[str, int], device: torch.device, most: int) -> None:
        self.layers, self.heads, self.tiers, self.device, self.most = layers, heads, tiers, device, most
        self._memory: list[Tensor] = []
        self._stages: dict[tuple[int, int], Stage] = {}

    def check(self, batch: int, readings: int) -> None:
        """Raise InputError unless these can be rows and readings of a decode."""
        for name, value, most in (("batch", batch, 2**31), ("readings", readings, len(self.tiers))):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                raise InputError(f"{name}={value!r} is not a whole number in 0..{most}")

    def of(self, batch: int, readings: int) -> Stage | None:
        """The stage of that shape; None where it has no cell or too many, or would have to be allocated in a capture."""
        known = self._stages.get((batch, readings))
        if known is not None:
            return known
        shape = (2, self.layers * readings, batch, self.heads)
        size = math.prod(shape)
        if not 0 < size <= 2 * self.most:
            return None
        if not self._memory or len(self._memory[-1]) < size:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None
            with torch.inference_mode(False):  # it is also written outside of inference mode
                room = 1 << (size - 1).bit_length()
                # What nobody writes would be counted as lost.
                self._memory.append(torch.full((room,), math.nan, dtype=torch.float32, device=self.device))
        if len(self._stages) >= SHAPES:
            self._stages.clear()
        stage = Stage(self._memory[-1][:size].view(shape), self.layers, self.tiers)
        self._stages[batch, readings] = stage
        return stage
