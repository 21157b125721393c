"""exp2, log2, square roots and divisions as Triton lowers them, over every float32 of the range that the kernels use.

Truth is float64 on the GPU: its roots and quotients are correctly rounded, which decides those of float32 exactly (53 >=
2 * 24 + 2 bits), and its exp2 and log2 err by a few 2^-53, far below what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.assumptions.record import Finding
from witcert.kernels.dither_int8_write.kernel import divide, reciprocal

__all__ = ["findings"]

CHUNK = 1 << 26
NORMAL = 2.0**-126


@triton.jit
def _unary(x_ptr, out_ptr, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if OP == "exp2":
        y = tl.exp2(x)
    elif OP == "log2":
        y = tl.log2(x)
    elif OP == "sqrt":
        y = tl.sqrt(x)
    elif OP == "sqrt_rn":
        y = tl.sqrt_rn(x)
    elif OP == "over_127":
        y = divide(x, 127.0, 1.0 / 127.0, False)
    elif OP == "over_126.5":
        y = divide(x, 126.5, 1.0 / 126.5, False)
    else:
        y = reciprocal(x, False)
    tl.store(out_ptr + at, y)


@triton.jit
def _divide(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) / tl.load(y_ptr + at))


def apply(op: str, x: Tensor) -> Tensor:
    """One operation on a whole number of blocks."""
    out = torch.empty_like(x)
    _unary[(x.numel() // 2048,)](x, out, OP=op, BLOCK=2048)
    return out


def codes(first: int, last: int) -> Iterator[Tensor]:
    """Every float32 whose bits, as an unsigned number, are first to last - 1, in pieces (both multiples of 2048)."""
    for start in range(first, last, CHUNK):
        bits = torch.arange(start, min(start + CHUNK, last), device="cuda")
        yield torch.where(bits < 2**31, bits, bits - 2**32).to(torch.int32).view(torch.float32)


def _bits(x: float) -> int:
    return int(torch.tensor(x, dtype=torch.float32).view(torch.int32)) & 0xFFFFFFFF


def worst_over(
    op: str, ranges: list[tuple[int, int]], truth: Callable[[Tensor], Tensor], error: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, int]:
    """The largest error over every float32 of the ranges, and how many there are; NaN if an error is NaN."""
    worst, count = torch.zeros((), dtype=torch.float64, device="cuda"), 0
    for first, last in ranges:
        for x in codes(first, last):
            worst = torch.maximum(worst, error(apply(op, x).double(), truth(x.double())).max())
            count += x.numel()
    return float(worst), count


def relative(y: Tensor, exact: Tensor) -> Tensor:
    """|y / exact - 1|, 0 where both are 0."""
    return torch.where(y == exact, 0.0, (y / exact - 1.0).abs())


def differs(y: Tensor, exact: Tensor) -> Tensor:
    """1 where y is not the float32 nearest to the exact value."""
    return (y != exact.float().double()).double()


def exp2() -> Iterator[Finding]:
    """Relative error where the result is normal, absolute error below."""
    to_128, to_126, far = _bits(128.0), _bits(126.0), _bits(1024.0)
    sign = 2**31
    worst, count = worst_over("exp2", [(0, to_128), (sign, sign + to_126)], torch.exp2, relative)
    yield Finding("EXP2", "relative error of tl.exp2", "every float32 in (-126, 128)", count, worst, 2.0**-22)
    ranges = [(sign + to_126, sign + far)]
    worst, count = worst_over("exp2", ranges, torch.exp2, lambda y, exact: (y - exact).abs())
    yield Finding(
        "EXP2 underflow", "absolute error of tl.exp2", "every float32 in (-1024, -126]", count, worst, NORMAL,
        "results below 2^-126 may be flushed to 0",
    )  # fmt: skip
    down = [(sign, sign + _bits(150.0))]
    worst, count = worst_over("exp2", down, torch.exp2, lambda y, exact: (exact < 1.0) * (y - 1.0).clamp_min(0.0))
    yield Finding("EXP2 at most 1", "excess of tl.exp2(x) over 1", "every float32 in (-150, -0]", count, worst, 0.0)


def log2() -> Iterator[Finding]:
    """Error relative to max(1, |log2 x|)."""
    worst, count = worst_over(
        "log2", [(_bits(NORMAL), 0x7F800000)], torch.log2, lambda y, t: (y - t).abs() / t.abs().clamp_min(1.0)
    )
    yield Finding(
        "LOG2", "error of tl.log2 over max(1, |log2 x|)", "every positive normal float32", count, worst, 2.0**-22
    )


def roots() -> Iterator[Finding]:
    """The approximate root relative to the real one; the other must be the nearest float32."""
    normal = [(_bits(NORMAL), 0x7F800000)]
    worst, count = worst_over("sqrt", normal, torch.sqrt, relative)
    yield Finding("SQRT", "relative error of tl.sqrt", "every positive normal float32", count, worst, 2.0**-22)
    worst, count = worst_over("sqrt_rn", [(0, 0x7F800000)], torch.sqrt, differs)
    yield Finding("SQRT_RN", "tl.sqrt_rn is correctly rounded (1: not)", "every float32 in [0, inf)", count, worst, 0.0)


def divisions() -> Iterator[Finding]:
    """Divisions of the write kernels by their constants, reciprocals of every scale, and Triton's own division."""
    for divisor in (126.5, 127.0):
        last = _bits(65504.0 * 128.0)
        worst, count = worst_over(
            f"over_{divisor:g}",
            [(_bits(2.0**-50), last)],
            lambda x, by=divisor: x / by,
            differs,  # type: ignore[misc]
        )
        yield Finding(
            f"QUOTIENT by {divisor:g}", "the quotient of a maximum is correctly rounded (1: not)",
            "every float32 from 2^-50 to 2^23", count, worst, 0.0,
        )  # fmt: skip
    halves = torch.arange(2**15, device="cuda").clamp(1, 0x7BFF).to(torch.int16).view(torch.float16).float()
    error = (apply("reciprocal", halves).double() * halves.double() - 1.0).abs()
    yield Finding("RECIPROCAL", "relative error of the inverse of a scale", "every positive float16", 0x7BFF,
                  float(error.max()), 2.0**-23)  # fmt: skip
    worst, count = 0.0, 0
    generator = torch.Generator("cuda").manual_seed(20261129)
    for _ in range(8):
        x, y = (torch.randint(0x20000000, 0x5F000000, (CHUNK,), device="cuda", generator=generator) for _ in range(2))
        left, right = x.to(torch.int32).view(torch.float32), y.to(torch.int32).view(torch.float32)
        out = torch.empty_like(left)
        _divide[(CHUNK // 2048,)](left, right, out, BLOCK=2048)
        worst = max(worst, float(relative(out.double(), left.double() / right.double()).max()))
        count += CHUNK
    yield Finding("DIV", "relative error of x / y in Triton", "random float32, both in [2^-63, 2^63)", count, worst,
                  2.0**-22)  # fmt: skip


def findings() -> Iterator[Finding]:
    """All assumptions about elementary functions."""
    for group in (exp2, log2, roots, divisions):
        yield from group()
