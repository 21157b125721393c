"""E4M3 against an enumeration of the format, and against torch's cast where that saturates."""

import bisect
import math
from fractions import Fraction

import pytest
import torch

from tests.schemes.exact import check_step
from witcert.schemes import get
from witcert.schemes.fp8 import round_e4m3

# The nonnegative E4M3 numbers by code: bias 7, three mantissa bits, code 127 is NaN.
E4M3 = [Fraction(m, 512) if e == 0 else Fraction(8 + m) * Fraction(2) ** (e - 10) for e in range(16) for m in range(8)]
E4M3.pop()


def model(x: Fraction) -> Fraction:
    """Nearest, ties to the even code, saturating."""
    size = min(abs(x), E4M3[-1])
    above = bisect.bisect_left(E4M3, size)
    below = max(above - 1, 0)
    if size - E4M3[below] == E4M3[above] - size:
        code = below if below % 2 == 0 else above
    else:
        code = below if size - E4M3[below] < E4M3[above] - size else above
    return E4M3[code] if x >= 0 else -E4M3[code]


def interesting() -> torch.Tensor:
    """Every E4M3 number and middle, with neighbours in float64, and every float16 up to the end of the format."""
    numbers = torch.tensor([float(v) for v in E4M3], dtype=torch.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    points = torch.cat((numbers, middles))
    points = torch.cat((points, points.nextafter(points + 1), points.nextafter(points - 1)))
    halves = torch.arange(0, 0x7C00, 7, dtype=torch.int16).view(torch.float16).double()
    points = torch.cat((points, halves))
    return torch.cat((points, -points))


def test_round_e4m3_is_the_format() -> None:
    points = interesting()
    expected = [float(model(Fraction(v))) for v in points.tolist()]
    assert round_e4m3(points).tolist() == expected
    single = points.float()
    assert round_e4m3(single).tolist() == [float(model(Fraction(v))) for v in single.tolist()]


def test_round_e4m3_is_torchs_cast_inside_the_range() -> None:
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).float()
    inside = halves[halves.isfinite() & (halves.abs() <= 448)]
    assert inside.numel() > 40_000
    assert torch.equal(round_e4m3(inside), inside.to(torch.float8_e4m3fn).float())


def test_a_double_is_rounded_once() -> None:
    """Just above the middle of 1 and 1.125: through float32 it would become the middle, and then 1."""
    x = torch.tensor([1.0625 + 2.0**-40], dtype=torch.float64)
    assert x.float().double().tolist() == [1.0625]
    assert round_e4m3(x).tolist() == [1.125]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_raw_saturates_and_keeps_nan(dtype: torch.dtype) -> None:
    x = torch.tensor([448.0, 449.0, 480.0, 1000.0, math.inf, -math.inf, -5000.0, math.nan, 0.0], dtype=dtype)
    served = get("fp8_e4m3_raw")(x[None, None])
    expected = [448.0, 448.0, 448.0, 448.0, 448.0, -448.0, -448.0, math.nan, 0.0]
    assert torch.equal(served.x_hat[0, 0].nan_to_num(-1.0), torch.tensor(expected, dtype=dtype).nan_to_num(-1.0))
    assert served.step is None


def test_scaled_uses_the_whole_range_and_its_step_is_needed() -> None:
    x = torch.randn(2, 200, 64)
    served = get("fp8_e4m3_scaled")(x)
    assert check_step(x, served) > 0.99
    assert torch.equal(get("fp8_e4m3_scaled")(x * 2.0**20).x_hat, served.x_hat * 2.0**20)
    scale = x.abs().amax(-1, keepdim=True) / 448
    code = (served.x_hat / scale).double()
    assert torch.allclose(code, round_e4m3(code), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_at_the_ends_of_its_range(dtype: torch.dtype) -> None:
    """At the largest double, 448 times the scale is rounded beyond the dtype."""
    top = torch.finfo(dtype).max
    for amax in (2.0**-149, 1e-40, 2.0**-126, 1e-25, top / 3, top):
        x = torch.linspace(-1, 1, 64, dtype=dtype)[None, None] * amax
        served = get("fp8_e4m3_scaled")(x)
        assert served.x_hat.isfinite().all()
        check_step(x, served)
