"""Pools for tests: every format, filled with random tokens, the exact ones kept beside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from witcert.store import CachePool, PoolConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

FORMATS: dict[str, dict[str, Any]] = {
    "exact": {"format": "exact"},
    "scheme": {"format": "scheme", "scheme": "rtn_int4", "pairing": "adjacent"},
    "scheme-bf16": {"format": "scheme", "scheme": "stochastic_int8", "dtype": torch.bfloat16, "bands": 8},
    "int8": {"format": "int8"},
    "int8-m2-bf16": {"format": "int8", "dtype": torch.bfloat16, "outliers": 2},
    "dither": {"format": "int8-dither", "seed": 2**63 + 5},
    "dither-m4-kv": {"format": "int8-dither", "dither_values": True, "outliers": 4, "rounds": 10, "bands": None},
}


def config_of(name: str, **changes: Any) -> PoolConfig:
    """A small configuration of a format: 2 layers, 4 query heads on 2 KV heads of 64 channels."""
    fields: dict[str, Any] = {
        "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "pages": 12, "tokens": 96, "backing": True,
        "side_pages": 6, **FORMATS[name], **changes,
    }  # fmt: skip
    pairs = fields.pop("outliers", 0)
    if pairs:
        shape = fields["layers"], fields["kv_heads"]
        half = fields["head_dim"] // 2
        first = torch.rand(*shape, half).argsort(-1)[..., :pairs]
        fields["outlier_channels"] = torch.cat((first, first + half), -1).int()
    return PoolConfig(**fields)


@dataclass
class Filled:
    """A pool with the exact keys and values [tokens, Hkv, d] that were written, by (sequence, layer)."""

    pool: CachePool
    exact: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def append(self, seqs: list[int], counts: list[int], size: float = 1.0) -> Tensor:
        """Reserve and write random tokens in every layer."""
        c = self.pool.config
        slots = self.pool.reserve(seqs, counts)
        for layer in range(c.layers):
            k, v = (torch.randn(sum(counts), c.kv_heads, c.head_dim, device=self.pool.device) for _ in range(2))
            k, v = (k * size).to(c.dtype), v.to(c.dtype)
            self.pool.write(layer, k, v, slots)
            parts = zip(seqs, k.split(counts), v.split(counts), strict=True)
            for seq, new_k, new_v in parts:
                old = self.exact.get((seq, layer))
                kept = (new_k, new_v) if old is None else (torch.cat((old[0], new_k)), torch.cat((old[1], new_v)))
                self.exact[seq, layer] = kept
        return slots

    def fork(self, seq: int) -> int:
        """Fork a sequence, with what is known of it."""
        child = self.pool.fork(seq)
        for layer in range(self.pool.config.layers):
            if (seq, layer) in self.exact:
                self.exact[child, layer] = self.exact[seq, layer]
        return child

    def truncate(self, seq: int, length: int) -> None:
        """Truncate a sequence, and what is known of it."""
        self.pool.truncate(seq, length)
        for layer in range(self.pool.config.layers):
            k, v = self.exact[seq, layer]
            self.exact[seq, layer] = k[:length], v[:length]


def filled(name: str, lens: list[int], *, kernels: bool | None = None, **changes: Any) -> tuple[Filled, list[int]]:
    """A pool of a format with sequences of these lengths; its memory is full of stale bits beforehand."""
    pool = CachePool(config_of(name, **changes), DEVICE, kernels=kernels)
    for x in [*pool.tensors.rows, *([] if pool.host is None else [pool.host.k, pool.host.v])]:
        x.view(torch.int16 if x.element_size() == 2 else torch.int8).random_(-100, 100)
    out = Filled(pool)
    seqs = [pool.open() for _ in lens]
    if any(lens):
        out.append([s for s, n in zip(seqs, lens, strict=True) if n], [n for n in lens if n])
    return out, seqs
