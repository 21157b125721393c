"""Checks of what ``Telemetry.record`` is called with, short where everything is as in the call before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.decode import Reading
from witcert.telemetry.samples import Request

__all__ = ["Waiting", "checked", "float32_above", "masked", "repairs_of", "requests_of"]


class Waiting(NamedTuple):
    """One reading of the step in progress: row of the record, meter and C [..., heads]; -inf in both is no cell if masked."""

    row: int
    meter: Tensor
    c_max: Tensor
    masked: bool = False


def _fits(x: object, shape: tuple[int, ...], device: torch.device) -> bool:
    return isinstance(x, Tensor) and x.shape == shape and x.dtype is torch.float32 and x.device == device


def _tensor(name: str, x: object, shape: tuple[int, ...] | None, heads: int, device: torch.device) -> tuple[int, ...]:
    """The shape of a meter or a C; that shape, where one is given."""
    fine = (torch.float32,) if device.type == "cuda" else (torch.float32, torch.float64)
    if not isinstance(x, Tensor) or x.dtype not in fine or x.device != device:
        kind = f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} is {kind}; expected {fine[0]} on {device}")
    if x.ndim not in (2, 3) or x.shape[-1] != heads or (shape is not None and x.shape != shape):
        expected = f"[batch, {heads}] or [batch, C, {heads}]" if shape is None else shape
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected {expected}")
    return tuple(x.shape)


def checked(
    readings: Sequence[Reading], layer: int, tiers: dict[str, int], size: tuple[int, int], device: torch.device,
    usual: tuple[int, ...],
) -> tuple[list[Waiting], tuple[int, ...]]:  # fmt: skip
    """The readings of one call, if they fit, and their common shape ((0,) of none).

    tiers : number of each label. size : layers and heads. usual : the shape of the call before.
    """
    out: list[Waiting] = []
    shape: tuple[int, ...] | None = None
    for reading in readings:
        tier = tiers.get(reading.meter.label) if isinstance(reading, Reading) else None
        if tier is None:
            kind = reading.meter.label if isinstance(reading, Reading) else type(reading).__name__
            raise InputError(f"readings has one of {kind!r}; expected a Reading of {', '.join(tiers)}")
        value, c_max = reading.meter.value, reading.c_max
        if (shape is None or shape is usual) and _fits(value, usual, device) and _fits(c_max, usual, device):
            shape = usual
        else:
            shape = _tensor("meter", value, shape, size[1], device)
            _tensor("c_max", c_max, shape, size[1], device)
        row = tier * size[0] + layer
        if out and any(w.row == row for w in out):
            raise InputError(f"readings has two of {reading.meter.label!r}; one call gives one meter a tier")
        assert isinstance(value, Tensor)
        out.append(Waiting(row, value, c_max))
    return out, shape or (0,)


def masked(new: list[Waiting], lens: object, shape: tuple[int, ...], device: torch.device) -> list[Waiting]:
    """The readings with -inf for the queries past the length of each row."""
    if not isinstance(lens, Tensor) or lens.dtype not in (torch.int32, torch.int64) or len(shape) != 3:
        raise InputError("lens is not an int32 or int64 tensor beside readings [batch, C, heads]")
    if tuple(lens.shape) != shape[:1] or lens.device != device:
        raise InputError(f"lens is {tuple(lens.shape)} on {lens.device}; expected {shape[:1]} on {device}")
    absent = (torch.arange(shape[1], device=device) >= lens[:, None])[..., None]  # [batch, C, 1]
    none = -torch.inf
    return [Waiting(w.row, w.meter.masked_fill(absent, none), w.c_max.masked_fill(absent, none), True) for w in new]


def float32_above(x: Tensor) -> Tensor:
    """x in float32, never below x."""
    if x.dtype is torch.float32:
        return x
    near = x.float()
    return torch.where(near.double() < x, near.nextafter(torch.full_like(near, torch.inf)), near)


def repairs_of(repaired: Tensor | int, batch: int | None, heads: int) -> tuple[int, Tensor | bool | None]:
    """How many, and the flags of each row if they are known (False: none is repaired; None: unknown which)."""
    if isinstance(repaired, Tensor):
        fits = repaired.dtype == torch.bool and repaired.ndim == 2 and repaired.device.type == "cpu"
        if not fits or (batch is not None and len(repaired) != batch) or not 1 <= repaired.shape[1] <= heads:
            kind = f"{repaired.dtype} {tuple(repaired.shape)} on {repaired.device}"
            raise InputError(f"repaired is {kind}; expected bool [batch, KV heads] on the host")
        return int(repaired.sum()), repaired
    if isinstance(repaired, bool) or not isinstance(repaired, int) or repaired < 0:
        raise InputError(f"repaired={repaired!r} is not a whole number >= 0")
    return repaired, False if repaired == 0 else None


def requests_of(request: Sequence[Request] | int | str, batch: int | None) -> tuple[Request, ...]:
    """One for each row."""
    each = (request,) * (batch or 1) if isinstance(request, (int, str)) else tuple(request)
    if (batch is not None and len(each) != batch) or any(not isinstance(r, (int, str, type(None))) for r in each):
        raise InputError(f"request={request!r} is not one number or name for each of {batch} rows")
    return each
