"""Matrix instructions: dot products built to accumulate error, relative to the sum of the magnitudes of their terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.assumptions.record import Finding
from witcert.kernels.decode.budget import MMA_STEP

__all__ = ["FAMILIES", "findings"]

TILES = 1024
"""Tiles of a family; each is M * N dot products."""


@triton.jit
def _tiles(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHOLE: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + tile * (M * K) + rows[:, None] * K + depth[None, :])  # [M, K]
    b = tl.load(b_ptr + tile * (K * N) + depth[:, None] * N + columns[None, :])  # [K, N]
    out = tl.dot(a, b, out_dtype=WHOLE)  # [M, N]
    tl.store(out_ptr + tile * (M * N) + rows[:, None] * N + columns[None, :], out)


def _pow2(shape: tuple[int, ...], low: int, high: int) -> Tensor:
    return torch.exp2(torch.randint(low, high + 1, shape, device="cuda").float())


def _sign(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 2, shape, device="cuda") * 2.0 - 1.0


def _ones_below(shape: tuple[int, ...]) -> Tensor:
    """Significands of all ones, with one or two bits cleared: their products lose the most."""
    return 2.0 - 2.0**-10 * torch.randint(1, 8, shape, device="cuda")


def gaussian(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, device="cuda")


def positive(shape: tuple[int, ...]) -> Tensor:
    """Same signs: rounding that is biased (truncation) adds up."""
    return torch.rand(shape, device="cuda") + 1.0


def long_significands(shape: tuple[int, ...]) -> Tensor:
    return _ones_below(shape)


def big_first(shape: tuple[int, ...]) -> Tensor:
    """One large term, the rest just below what an aligned addition keeps; the large one first, last or in between."""
    x = _ones_below(shape) * 2.0**-6
    x[..., int(torch.randint(shape[-1], ())), None] *= 2.0**6
    return x


def spread(shape: tuple[int, ...]) -> Tensor:
    return _ones_below(shape) * _pow2(shape, -7, 6)


def spread_signed(shape: tuple[int, ...]) -> Tensor:
    return spread(shape) * _sign(shape)


def cancelling(shape: tuple[int, ...]) -> Tensor:
    """Neighbours of opposite sign and nearly equal magnitude, and small terms between."""
    x = _ones_below(shape)
    x[..., 1::2] = -x[..., ::2] * (1.0 + 2.0**-9)
    x[..., 2::4] *= 2.0**-11
    return x


FAMILIES: tuple[Callable[[tuple[int, ...]], Tensor], ...] = (
    gaussian, positive, long_significands, big_first, spread, spread_signed, cancelling,
)  # fmt: skip


def worst_dot(dtype: torch.dtype, m: int, n: int, k: int, warps: int) -> tuple[float, str, int]:
    """The largest |computed - exact| / sum |a b| over the families, and in which; the exact side is float64."""
    worst, where, count = 0.0, "none", 0
    for left in FAMILIES:
        for right in (left, gaussian, positive):
            a = left((TILES, m, k)).to(dtype)
            b = right((TILES, n, k)).to(dtype).transpose(1, 2).contiguous()
            out = torch.empty(TILES, m, n, device="cuda")
            _tiles[(TILES,)](a, b, out, M=m, N=n, K=k, WHOLE=tl.float32, num_warps=warps)
            exact = a.double() @ b.double()
            size = a.double().abs() @ b.double().abs()
            ratio = float(((out.double() - exact).abs() / size).max())
            count += out.numel()
            if not ratio <= worst:
                worst, where = ratio, f"{left.__name__} by {right.__name__}"
    return worst, where, count


def integer_dots() -> Finding:
    """int8 by int8 into int32 is exact, at the ends of the range too."""
    wrong, count = 0, 0
    for k in (32, 64, 128, 256):
        a = torch.randint(-128, 128, (TILES, 64, k), dtype=torch.int8, device="cuda")
        b = torch.randint(-128, 128, (TILES, k, 16), dtype=torch.int8, device="cuda")
        a[: TILES // 4], b[: TILES // 4] = -128, -128
        a[TILES // 4 : TILES // 2], b[TILES // 4 : TILES // 2] = -128, 127
        out = torch.empty(TILES, 64, 16, dtype=torch.int32, device="cuda")
        _tiles[(TILES,)](a, b, out, M=64, N=16, K=k, WHOLE=tl.int32, num_warps=4)
        wrong += int((out.double() != a.double() @ b.double()).sum())
        count += out.numel()
    return Finding("MMA int8", "int8 dot products that are not exact", "random and extreme, depth 32 to 256", count,
                   float(wrong), 0.0)  # fmt: skip


def findings() -> Iterator[Finding]:
    """Error of one instruction depth (16) and of whole head dimensions, for the tile shapes that the kernels use."""
    torch.manual_seed(20261129)
    for dtype, label in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        for k in (16, 64, 128, 256):
            worst, where, count = 0.0, "none", 0
            for m, n, warps in ((64, 16, 4), (16, 64, 1), (128, 16, 4)):
                ratio, family, inputs = worst_dot(dtype, m, n, k, warps)
                count += inputs
                if not ratio <= worst:
                    worst, where = ratio, f"{family}, tile {m}x{n}, {warps} warps"
            yield Finding(
                f"MMA {label} depth {k}", "error of tl.dot over the sum of the magnitudes of its terms",
                "seven families built to accumulate error", count, worst, k / 16 * MMA_STEP, f"worst in {where}",
            )  # fmt: skip
    yield integer_dots()
