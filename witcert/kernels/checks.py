"""Checks that the launch functions share: token rows, slot maps, devices. Nothing here waits for the device."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = ["on_device", "paged_queries", "positive", "sink_logits", "slot_map", "token_rows", "window_size"]

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


def positive(name: str, value: object) -> float:
    """value, if it is a finite number > 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}={value!r} is not a finite number > 0")
    return float(value)


def window_size(window: object) -> int | None:
    """window, if it is None or a whole number of tokens >= 1."""
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise InputError(f"window={window!r} is not a whole number >= 1")
    return window


def sink_logits(sinks: object, heads: int, device: torch.device) -> Tensor | None:
    """sinks, if it is None or a contiguous float32 [heads] on the device."""
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor) or sinks.dtype != torch.float32 or tuple(sinks.shape) != (heads,):
        kind = f"{sinks.dtype} {tuple(sinks.shape)}" if isinstance(sinks, Tensor) else type(sinks).__name__
        raise InputError(f"sinks is {kind}; expected a float32 tensor [{heads}]")
    if sinks.device != device or not sinks.is_contiguous():
        raise InputError(f"sinks is on {sinks.device}, strides {sinks.stride()}; expected contiguous on {device}")
    return sinks


def paged_queries(
    q: object, store: object, table: object, *, axes: str, max_group: int, max_tokens: int
) -> tuple[Tensor, int]:
    """q and the number of query heads per KV head, if q fits the store and the store fits the page table.

    axes: names of the axes of q, such as "batch, Hq, d": the first is the batch, the last two the head and its channels.
    """
    ndim = axes.count(",") + 1
    if not isinstance(q, Tensor) or q.dtype not in (torch.float16, torch.bfloat16) or q.ndim != ndim:
        kind = f"{q.dtype} {tuple(q.shape)}" if isinstance(q, Tensor) else type(q).__name__
        raise InputError(f"q is not a float16 or bfloat16 tensor [{axes}] but {kind}")
    if not isinstance(store, (ExactStore, PackedStore)):
        raise InputError(f"store is {type(store).__name__}; expected ExactStore or PackedStore")
    if not isinstance(table, PageTable):
        raise InputError(f"table is {type(table).__name__}; expected PageTable")
    if not q.is_contiguous() or q.data_ptr() % 16:
        raise InputError("q is not contiguous, or does not start at a multiple of 16 bytes")
    heads, d = q.shape[-2:]
    if q.shape[0] != table.batch or d != store.head_dim or not heads or heads % store.kv_heads:
        expected = f"[{table.batch}, {'C, ' * (ndim - 3)}a multiple of {store.kv_heads}, {store.head_dim}]"
        raise InputError(f"q has shape {tuple(q.shape)}; expected {expected}")
    if heads // store.kv_heads > max_group:
        raise InputError(f"{heads // store.kv_heads} query heads per KV head; expected at most {max_group}")
    keys = store.k if isinstance(store, ExactStore) else store.k_code
    for name, x in (("store", keys), ("table", table.pages)):
        if x.device != q.device:
            raise InputError(f"{name} is on {x.device}, q on {q.device}")
    on_device("q", q)
    if isinstance(store, ExactStore):
        if q.dtype != store.k.dtype:
            raise InputError(f"q is {q.dtype}, the store {store.k.dtype}; they must agree")
        if store.slots % table.page_size:
            raise InputError(f"{store.slots} slots are not whole pages of {table.page_size}")
    elif store.page_size != table.page_size:
        raise InputError(f"the store has page_size {store.page_size}, the table {table.page_size}")
    if table.max_tokens > max_tokens:
        raise InputError(f"the table allows {table.max_tokens} tokens; expected at most {max_tokens}")
    return q, heads // store.kv_heads
