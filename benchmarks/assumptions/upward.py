"""RU16 over all 2^31 nonnegative float32, against an integer model that shares no code with it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.assumptions.elementary import codes
from benchmarks.assumptions.record import Finding
from witcert.kernels.rounding import next_up, ru16, ru16_code

__all__ = ["findings", "model_codes"]


@triton.jit
def _ru16(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, ru16(tl.load(x_ptr + at)))


@triton.jit
def _converted(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, ru16_code(tl.load(x_ptr + at), False).to(tl.int16).to(tl.float16, bitcast=True))


@triton.jit
def _next_up(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, next_up(tl.load(x_ptr + at)))


def model_codes(x: Tensor) -> Tensor:
    """The code of the least float16 that is at least x >= 0, int64, by counting in whole units of 2^-24.

    x = m 2^e with m < 2^24. The count of units, rounded up, is exact in int64 up to 65504 = 65504 * 2^24 units. A
    float16 with exponent field f > 0 counts (1024 + j) << (f - 1) units, one with field 0 counts j.
    """
    bits = x.view(torch.int32).long()
    field, mantissa = bits >> 23, bits & 0x7FFFFF
    m = torch.where(field > 0, mantissa + 0x800000, mantissa)
    power = field.clamp_min(1) - 150 + 24  # x = m 2^power units
    left = m << power.clamp(0, 38)
    drop = (-power).clamp(0, 40)
    units = torch.where(power >= 0, left, (m + (1 << drop) - 1) >> drop)
    width = torch.frexp(units.double())[1].long()  # bits of the count; exact, since it is below 2^53
    shift = (width - 11).clamp_min(0)
    rounded = (units + (1 << shift) - 1) >> shift  # 1024..2048, or the count itself below 1024
    code = torch.where(shift > 0, rounded + (shift << 10), rounded)  # 2048 << shift is 1024 << (shift + 1): same code
    return torch.where((bits >= 0x7F800000) | (units > 65504 << 24), 0x7C00, code)


def findings() -> Iterator[Finding]:
    """The two directed roundings that everything else is built from."""
    wrong, converted = (torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2))
    for x in codes(0, 2**31):
        out = torch.empty(x.shape, dtype=torch.float16, device="cuda")
        model = model_codes(x)
        _ru16[(x.numel() // 2048,)](x, out, BLOCK=2048)
        wrong += (out.view(torch.int16).long() != model).sum()
        _converted[(x.numel() // 2048,)](x, out, BLOCK=2048)
        converted += (out.view(torch.int16).long() != model).sum()
    for name, count in (("RU16", wrong), ("RU16 conversion", converted)):
        yield Finding(name, "codes that differ from the integer model", "every nonnegative float32, NaN and infinity too",
                      2**31, float(count), 0.0)  # fmt: skip
    wrong.zero_()
    for x in codes(0, 2**31):
        out = torch.empty_like(x)
        _next_up[(x.numel() // 2048,)](x, out, BLOCK=2048)
        expected = torch.nextafter(x, torch.full_like(x, torch.inf)).clamp_min(2.0**-126)
        wrong += (torch.where(x.isnan(), torch.inf, expected) != out).sum()
    yield Finding("NEXT_UP", "results that are not the next float32 (at least 2^-126)", "every nonnegative float32",
                  2**31, float(wrong), 0.0)  # fmt: skip
