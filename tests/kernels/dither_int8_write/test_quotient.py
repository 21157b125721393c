"""The division of the write kernel: IEEE division by an 11-bit divisor, from a reciprocal."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from witcert.kernels.dither_int8_write.kernel import divide, quotient, reciprocal

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def _quotient(x_ptr, s_ptr, out_ptr, fused_ptr, count, INTERPRET: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=1.0).to(tl.float32)
    s = tl.load(s_ptr + at, mask=at < count, other=1.0).to(tl.float32)
    tl.store(out_ptr + at, quotient(x, s, reciprocal(s, INTERPRET)), mask=at < count)
    tl.store(fused_ptr + at, divide(x, s, reciprocal(s, INTERPRET), INTERPRET), mask=at < count)


def device_quotient(x: Tensor, s: Tensor) -> Tensor:
    """By both ways, with and without fused operations; NaN where they differ."""
    out, fused = torch.empty(x.shape, device=DEVICE), torch.empty(x.shape, device=DEVICE)
    interpret = triton.knobs.runtime.interpret
    grid = (triton.cdiv(x.numel(), 8192),)
    _quotient[grid](x.to(DEVICE), s.to(DEVICE), out, fused, x.numel(), INTERPRET=interpret, BLOCK=8192)
    return torch.where(out == fused, out, torch.nan)


def in_range(x: Tensor, s: Tensor) -> Tensor:
    """Where the kernel relies on it: not tiny (there the code is that of the dither alone), within the codes."""
    exact = (x.double() / s.double()).abs()
    return (exact > 2.0**-60) & (exact <= 127.0) & (s > 0) & s.isfinite()


def test_random_and_nearly_tied() -> None:
    s = torch.randint(1, 0x7C00, (100_000,)).to(torch.int16).view(torch.float16)
    x = (torch.rand(100_000) - 0.5) * 250.0 * s.float()
    # Half the cases: as near as float32 can be to (n + 1/2) s, or to the middle of two quotients.
    middle = torch.randint(-126, 127, (25_000,)) + 0.5
    x[:25_000] = (middle.double() * s[:25_000].double()).float()
    wide = (x[25_000:50_000] / s[25_000:50_000].float()).double()
    x[25_000:50_000] = ((wide + wide.abs() * 2.0**-24) * s[25_000:50_000].double()).float()
    x[::3] = x[::3].nextafter(torch.tensor(torch.inf))
    good = in_range(x, s)
    assert int(good.sum()) > 99_000
    assert torch.equal(device_quotient(x, s).cpu()[good], (x / s.float())[good])


def test_every_half_by_some_scales() -> None:
    x = torch.arange(0x7C00).to(torch.int16).view(torch.float16)
    for code in (1, 3, 0x3FF, 0x400, 0x7FF, 0x3555, 0x3BFF, 0x3C01, 0x7BFF):
        s = torch.full_like(x, float(torch.tensor(code, dtype=torch.int16).view(torch.float16)))
        good = in_range(x, s)
        assert torch.equal(device_quotient(x, s).cpu()[good], (x.float() / s.float())[good])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_by_every_scale(dtype: torch.dtype) -> None:
    """All 2^15 positive codes of the dtype by all 31743 positive scales; the sign does not matter."""
    x = torch.arange(1, 2**15, device="cuda").to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    block = 512
    for first in range(1, 0x7C00, block):
        code = torch.arange(first, min(first + block, 0x7C00), device="cuda").to(torch.int16)
        left, right = torch.broadcast_tensors(x[None], code.view(torch.float16)[:, None])
        left, right = left.contiguous(), right.contiguous()
        good = in_range(left, right)
        expected = (left.double() / right.double()).float()  # no double rounding: quotients of short numbers
        assert torch.equal(device_quotient(left, right)[good], expected[good]), first
