"""What the compiler makes of the write kernels: no flushed subnormals, no approximations but those of the budget."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.assumptions.record import Finding
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.dither_int8_write.kernel import int8_write_kernel
from witcert.kernels.formats import Dither, PackedStore
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.witness_write import witness_write
from witcert.kernels.witness_write.kernel import witness_write_kernel

__all__ = ["findings"]

FORBIDDEN = (".ftz", "div.", "ex2.approx", "lg2.approx")
ALLOWED = ("rcp.approx.ftz", "sqrt.approx.ftz")
"""``reciprocal`` of a scale, which is never subnormal (RECIPROCAL); a root in a witness (SQRT; TINY for what it flushes)."""


def _sources(kernel: Any) -> list[str]:
    """PTX of every compiled variant of a Triton function in this process."""
    caches = kernel.device_caches.values()
    return [compiled.asm["ptx"] for cache in caches for compiled in cache[0].values()]


def findings() -> Iterator[Finding]:
    """Launch each write kernel once and read what was compiled."""
    k = torch.randn(64, 4, 128, device="cuda").half()
    slots = torch.arange(64, device="cuda")
    for dither in (Dither(1, 2), None):
        channels = torch.tensor([[3, 67]] * 4, dtype=torch.int32, device="cuda").repeat_interleave(2, 1)
        channels[:, 1::2] += 1
        store = PackedStore.empty(4, 4, 128, 16, dither=dither, outlier_channels=channels, bands=16, device="cuda")
        (rtn_write if dither is None else dither_int8_write)(k, k, slots, store, gamma=2.0**-12)
    witness_write(k, k, slots, torch.zeros(64, 4, 16, dtype=torch.float16, device="cuda"), gamma=2.0**-12)
    for kernel in (int8_write_kernel, witness_write_kernel):
        sources = _sources(kernel)
        rest = [re.sub("|".join(map(re.escape, ALLOWED)), "", source) for source in sources]
        found = sorted({word for source in rest for word in FORBIDDEN if word in source})
        yield Finding(
            f"PTX {kernel.__name__}", "approximate or flushing instructions in the compiled kernel",
            f"{len(sources)} compiled variants", len(sources), float(len(found)) if sources else float("nan"), 0.0,
            ", ".join(found),
        )  # fmt: skip
