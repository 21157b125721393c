"""Decode of other libraries on the same shapes, over a contiguous cache: PyTorch SDPA, and those that are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.cases import Shape

LIMIT = 40 * 2**30
"""Largest cache that a baseline copies for itself."""


def _sdpa(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Callable[[], Tensor]:
    wide = q.unsqueeze(2)  # [b, Hq, 1, d]

    def call() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(wide, k, v, enable_gqa=True)

    return call


def _sdpa_rows(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Callable[[], Tensor]:
    """The query heads of a group as query rows of its KV head: the same numbers, and no head is read twice."""
    rows = q.view(shape.batch, shape.kv_heads, shape.group, shape.head_dim)

    def call() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(rows, k, v)

    return call


def _flash_attn(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Callable[[], Tensor]:
    library = importlib.import_module("flash_attn")
    keys, values = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
    return lambda: library.flash_attn_with_kvcache(q.unsqueeze(1), keys, values)


def _flashinfer(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Callable[[], Tensor]:
    library = importlib.import_module("flashinfer")
    pages = shape.batch * shape.tokens // 16
    cache = torch.stack([k.transpose(1, 2), v.transpose(1, 2)], 2).reshape(pages, 16, 2, shape.kv_heads, shape.head_dim)
    cache = cache.transpose(1, 2).contiguous()
    each = shape.tokens // 16
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(torch.empty(2**27, dtype=torch.uint8, device="cuda"), "NHD")
    wrapper.plan(
        torch.arange(0, pages + 1, each, dtype=torch.int32, device="cuda"),
        torch.arange(pages, dtype=torch.int32, device="cuda"),
        torch.full((shape.batch,), 16, dtype=torch.int32, device="cuda"),
        shape.kv_heads * shape.group, shape.kv_heads, shape.head_dim, 16, q_data_type=torch.float16,
    )  # fmt: skip
    return lambda: wrapper.run(q, cache)


BASELINES: dict[str, Callable[[Tensor, Tensor, Tensor, Shape], Callable[[], Tensor]]] = {
    "torch SDPA, enable_gqa": _sdpa,
    "torch SDPA, heads as rows": _sdpa_rows,
    "flash-attn": _flash_attn,
    "flashinfer": _flashinfer,
}


def fits(shape: Shape) -> bool:
    """Whether the shape's cache is small enough for a baseline."""
    return 4 * shape.head_dim * shape.kv_heads * shape.batch * shape.tokens <= LIMIT
