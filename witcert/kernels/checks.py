"""Checks that the launch functions share: token rows, slot maps, devices. Nothing here waits for the device."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from witcert.errors import InputError

__all__ = ["on_device", "slot_map", "token_rows"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def on_device(name: str, x: Tensor) -> None:
    """Refuse a tensor that a compiled kernel cannot reach (the interpreter reaches all)."""
    if x.device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise InputError(f"{name} is on {x.device}; Triton kernels need a GPU (or TRITON_INTERPRET=1)")


def token_rows(
    name: str, x: object, heads: int | None, head_dim: int, dtypes: tuple[torch.dtype, ...] = FLOATS
) -> Tensor:
    """x, if it is a tensor [T, heads, head_dim] of one of the dtypes with adjacent channels (else any strides)."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} is {type(x).__name__}; expected a tensor")
    if x.dtype not in dtypes:
        raise InputError(f"{name} has dtype {x.dtype}; expected {' or '.join(map(str, dtypes))}")
    if x.ndim != 3 or x.shape[2] != head_dim or x.shape[1] < 1 or (heads is not None and x.shape[1] != heads):
        expected = f"[T, {'H' if heads is None else heads}, {head_dim}]"
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected {expected}")
    if x.stride(2) != 1:
        raise InputError(f"{name} has strides {x.stride()}; the channels of a head must be adjacent")
    on_device(name, x)
    return x


def slot_map(name: str, slots: object, tokens: int, device: torch.device) -> Tensor:
    """slots, if it is a contiguous int32 or int64 [T] on the device."""
    if not isinstance(slots, Tensor) or slots.dtype not in (torch.int32, torch.int64):
        kind = slots.dtype if isinstance(slots, Tensor) else type(slots).__name__
        raise InputError(f"{name} is {kind}; expected an int32 or int64 tensor")
    if slots.shape != (tokens,) or not slots.is_contiguous():
        raise InputError(f"{name} has shape {tuple(slots.shape)}; expected a contiguous [{tokens}], one per token")
    if slots.device != device:
        raise InputError(f"{name} is on {slots.device}, the tokens on {device}")
    return slots
