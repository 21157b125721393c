"""Readings of random meters, and a telemetry filled with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from witcert.guarantees import Measured, Proved, ProvedNonadaptive
from witcert.kernels.decode import Reading
from witcert.telemetry import Telemetry

LAYERS, HEADS, BATCH = 3, 6, 2


def proved(meter: Tensor, c_max: Tensor | None = None, delta: float = 0.0) -> Reading:
    c = meter * 2 + 0.01 if c_max is None else c_max
    return Reading(Proved(meter, "tierB_adaptive_sound" if delta else "meter_sound", delta), c, c)


def nonadaptive(meter: Tensor, c_max: Tensor | None = None) -> Reading:
    c = meter * 2 + 0.01 if c_max is None else c_max
    return Reading(ProvedNonadaptive(meter, "tierB_request_sound", 0.01), c, c)


def measured(meter: Tensor) -> Reading:
    return Reading(Measured(meter), meter, meter)


def fill(telemetry: Telemetry, steps: int, *, batch: int = BATCH, **options: Any) -> Tensor:
    """Record so many steps of all layers; returns the meters [steps, layers, 2, batch, heads]."""
    meters = torch.rand(steps, telemetry.layers, 2, batch, telemetry.heads) ** 3
    meters[:, :, 1] *= 0.1
    for step in meters:
        for layer, (first, second) in enumerate(step):
            telemetry.record(layer, (proved(first), nonadaptive(second)), **options)
    return meters
