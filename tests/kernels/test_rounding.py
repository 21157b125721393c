"""Directed rounding in Triton against exact models: the upward fp16 rounding, the next float32, the operations."""

import math
from fractions import Fraction

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from witcert.kernels import rounding
from witcert.witness import ru16

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def _ru16(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, rounding.ru16(tl.load(x + at, mask=at < count)), mask=at < count)


@triton.jit
def _ru16_code(x, out, count, INTERPRET: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = rounding.ru16_code(tl.load(x + at, mask=at < count), INTERPRET)
    tl.store(out + at, code.to(tl.int16).to(tl.float16, bitcast=True), mask=at < count)


@triton.jit
def _directed(a, b, total, product, root, above, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < count
    left = tl.load(a + at, mask=inside, other=0.0)
    right = tl.load(b + at, mask=inside, other=0.0)
    tl.store(total + at, rounding.ru_add(left, right), mask=inside)
    tl.store(product + at, rounding.ru_mul(left, right), mask=inside)
    tl.store(root + at, rounding.ru_sqrt(left), mask=inside)
    tl.store(above + at, rounding.next_up(left), mask=inside)


def on_device(x: Tensor) -> Tensor:
    """By both ways, bits and conversion; they must agree."""
    out, other = (torch.empty(x.shape, dtype=torch.float16, device=DEVICE) for _ in range(2))
    grid = (triton.cdiv(x.numel(), 4096),)
    _ru16[grid](x.to(DEVICE), out, x.numel(), BLOCK=4096)
    _ru16_code[grid](x.to(DEVICE), other, x.numel(), INTERPRET=triton.knobs.runtime.interpret, BLOCK=4096)
    assert torch.equal(out.view(torch.int16), other.view(torch.int16))
    return out


def device_ru16(x: Tensor) -> Tensor:
    return on_device(x).cpu()


def test_every_half_and_its_float32_neighbours() -> None:
    """All 31744 finite codes: the value, its float32 neighbours, the middle to the next code and its neighbours."""
    low = torch.arange(0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    high = torch.cat((low[1:], torch.tensor([65536.0])))
    middle, up, down = (low + high) / 2, torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
    inside = (low.nextafter(up), middle.nextafter(down), middle, middle.nextafter(up), high.nextafter(down))
    points = torch.stack((low, *inside, high))
    codes = device_ru16(points.flatten()).view(torch.int16).long().reshape(points.shape)
    own = torch.arange(0x7C00)
    assert torch.equal(codes, torch.stack([own] + [own + 1] * 6))


def test_same_as_the_reference_on_random_bits() -> None:
    x = torch.randint(0, 2**31, (100_000,)).to(torch.int32).view(torch.float32)
    assert torch.equal(device_ru16(x), ru16(x))


def test_what_is_not_finite_and_the_ends() -> None:
    x = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 2.0**-149, 65504.0, 65504.004, 3e38])
    assert device_ru16(x).tolist() == [math.inf] * 4 + [0.0, 0.0, 2.0**-24, 65504.0, math.inf, math.inf]


def test_operations_are_upper_bounds() -> None:
    a = torch.cat((torch.rand(500), torch.rand(500) * 2.0**-140, torch.rand(500) * 1e38, torch.tensor([0.0, 3e38])))
    b = torch.cat((torch.rand(500) * 1e-6, torch.rand(500), torch.rand(500) * 1e30, torch.tensor([0.0, 3e38])))
    out = [torch.empty(len(a), device=DEVICE) for _ in range(4)]
    _directed[(1,)](a.to(DEVICE), b.to(DEVICE), *out, len(a), BLOCK=2048)
    rows = zip(a.tolist(), b.tolist(), *(o.tolist() for o in out), strict=True)
    for x, y, total, product, root, above in rows:
        p, q = Fraction(x), Fraction(y)
        for got, exact in ((total, p + q), (product, p * q)):
            assert math.isinf(got) or exact <= Fraction(got) <= max(
                exact * (1 + Fraction(1, 2**22)), Fraction(1, 2**126)
            )
        assert p <= Fraction(root) ** 2 <= max(p * (1 + Fraction(1, 2**21)), Fraction(1, 2**252))
        assert above == max(
            math.inf if x > 3.4e38 else float(torch.tensor(x).nextafter(torch.tensor(math.inf))), 2.0**-126
        )


def test_next_up_of_what_is_not_finite() -> None:
    """Also NaNs of every payload, the largest included, which is what the hardware produces."""
    payloads = torch.tensor([0x7FFFFFFF, 0x7F800001, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    a = torch.cat((payloads, torch.tensor([math.inf, 3.4028234663852886e38]))).to(DEVICE)
    out = [torch.empty(6, device=DEVICE) for _ in range(4)]
    _directed[(1,)](a, a, *out, 6, BLOCK=8)
    for got in out[0], out[1], out[3]:
        assert got.tolist() == [math.inf] * 6
    assert out[2].tolist()[:5] == [math.inf] * 5
    assert device_ru16(a.cpu()).tolist() == [math.inf] * 6


@pytest.mark.gpu
def test_every_nonnegative_float32() -> None:
    """All 2^31 nonnegative inputs: the least float16 that is at least x, decided in float64 from its two neighbours."""
    step = 1 << 24
    for first in range(0, 2**31, step):
        x = torch.arange(first, first + step, dtype=torch.int64, device="cuda").to(torch.int32).view(torch.float32)
        out = on_device(x)
        code = out.view(torch.int16)
        below = (code - 1).clamp_min(0).view(torch.float16).double()
        wide = x.double()
        known = x.isfinite() & (x <= 65504.0)
        good = torch.where(known, (out.double() >= wide) & ((below < wide) | (code == 0)), out == math.inf)
        assert bool(good.all()), first
