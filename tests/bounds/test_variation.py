"""Bounds on the total variation: order, limits, what NaN and infinity do, dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from witcert import bounds, golden
from witcert.errors import InputError
from witcert.golden import mp

F64 = torch.float64

OF_LOG_A: dict[str, Callable[[Tensor], Tensor]] = {"eform": bounds.eform, "sharp": bounds.sharp, "meter": bounds.meter}
OF_C_MAX = {"tanh_half": bounds.tanh_half, "tanh_rival": bounds.tanh_rival}
OF_BOTH = {"one_sub_ratio": bounds.one_sub_ratio, "two_sided": bounds.two_sided}
OF_ONE = {**OF_LOG_A, **OF_C_MAX}

EXACT = {
    "eform": lambda x: (mp.exp(2 * x) - 1) / 2,
    "sharp": lambda x: 1 - mp.exp(-x) if mp.exp(x) <= 2 else mp.exp(2 * x) / (mp.exp(2 * x) + 4),
    "meter": lambda x: 1 - mp.exp(-x) if mp.exp(x) <= 2 else mp.exp(2 * x) / (mp.exp(2 * x) + 4),
    "tanh_half": lambda x: mp.tanh(x / 2),
    "tanh_rival": lambda x: mp.tanh(x),
    "one_sub_ratio": lambda x: 1 - mp.exp(-x),
    "two_sided": lambda x: mp.sinh(x),
}


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("name", OF_ONE)
@given(x=st.one_of(st.floats(0, 2, width=32), st.floats(0, 1e4, width=32), st.just(math.log(2))))
def test_at_the_given_float(name: str, dtype: torch.dtype, x: float) -> None:
    """The value is at least the formula at the float that was given, at most 1, and within rounding of it."""
    argument = torch.tensor(x, dtype=dtype)
    got = OF_ONE[name](argument)
    with mp.workdps(400):
        exact = min(mp.mpf(1), EXACT[name](mp.mpf(argument.item())))
    assert got.dtype == dtype
    assert exact <= got.item() <= min(mp.mpf(1), exact * (1 + (1e-14 if dtype == F64 else 2e-7)) + 2e-45)


@pytest.mark.parametrize("name", OF_BOTH)
@given(x=st.floats(0, 800), y=st.floats(0, 800))
def test_ratio_bounds_at_the_given_floats(name: str, x: float, y: float) -> None:
    got = OF_BOTH[name](torch.tensor(x, dtype=F64), torch.tensor(-y, dtype=F64)).item()
    with mp.workdps(400):
        exact = min(mp.mpf(1), EXACT[name](mp.mpf(x) + mp.mpf(y)))
    assert exact <= got <= min(mp.mpf(1), exact * (1 + 2e-15 * (8 + x + y)) + 2.0**-990)


@pytest.mark.parametrize("name", OF_ONE)
def test_increasing(name: str) -> None:
    """More accumulated error never gives a smaller number, across the branch at A = 2 too."""
    x = torch.cat((torch.linspace(0, 3, 20001, dtype=F64), torch.logspace(-12, 4, 2001, dtype=F64))).sort().values
    value = OF_ONE[name](x)
    assert (value[1:] - value[:-1] >= -4e-16).all()
    step = torch.tensor([math.nextafter(math.log(2), 0), math.log(2), math.nextafter(math.log(2), 1)], dtype=F64)
    assert (OF_ONE[name](step).diff() >= -4e-16).all()


@pytest.mark.parametrize("name", [*OF_ONE, *OF_BOTH])
def test_zero_infinity_and_nan(name: str) -> None:
    """0 stays 0 (nothing was quantized), infinity and NaN claim nothing; a negative argument is refused."""
    def call(x: float) -> float:
        t = torch.tensor(x, dtype=F64)
        return float(OF_ONE[name](t) if name in OF_ONE else OF_BOTH[name](t, -t))

    assert call(0.0) == 0.0
    assert call(math.inf) == 1.0
    assert call(math.nan) == 1.0
    assert 0.0 < call(5e-324) < 1e-300
    with pytest.raises(InputError, match=r"=-0\.5 is outside \[0, inf\]"):
        call(-0.5)


def test_meter_takes_the_smaller_and_refuses_nan() -> None:
    a = torch.tensor([0.1, 5.0, math.nan, 0.1, math.inf], dtype=F64)
    c = torch.tensor([5.0, 0.1, 0.1, math.nan, 0.1], dtype=F64)
    got = bounds.meter(a, c)
    assert torch.equal(got[:1], bounds.sharp(a[:1]))
    assert torch.equal(got[1:2], bounds.tanh_half(c[1:2]))
    assert got[2:4].tolist() == [1.0, 1.0]
    assert torch.equal(got[4:], bounds.tanh_half(c[4:]))
    assert bounds.meter(a.float(), c.float()).dtype == torch.float32


tokens = st.lists(st.tuples(st.floats(1e-9, 1.0), st.floats(0.0, 30.0)), min_size=1, max_size=12)


@given(tokens)
def test_order(drawn: list[tuple[float, float]]) -> None:
    """sharp <= eform, one_sub_ratio <= two_sided, tanh_half <= tanh_rival, retention <= eform and two_sided (to
    rounding)."""
    p, c = (torch.tensor(x, dtype=F64) for x in zip(*drawn, strict=True))
    p = p / p.sum()
    a = bounds.accumulate(p, c)
    wide = 1.0 + 1e-13
    assert bounds.sharp(a.log_a) <= bounds.eform(a.log_a) * wide
    assert bounds.one_sub_ratio(a.log_a, a.log_a_neg) <= bounds.two_sided(a.log_a, a.log_a_neg) * wide
    assert bounds.tanh_half(a.c_max) <= bounds.tanh_rival(a.c_max) * wide
    retention = bounds.retention(p, c)
    assert retention <= bounds.eform(a.log_a) * wide
    assert retention <= bounds.two_sided(a.log_a, a.log_a_neg) * wide
    assert bounds.worst_case_tv(p, c) <= bounds.meter(a.log_a, a.c_max)
    for dtype in (F64, torch.float32):
        assert bounds.retention(p.to(dtype), c.to(dtype)).dtype == dtype


@given(tokens, st.integers(0, 2**31))
def test_every_bound_covers_random_errors(drawn: list[tuple[float, float]], seed: int) -> None:
    p, c = (torch.tensor(x, dtype=F64) for x in zip(*drawn, strict=True))
    p = p / p.sum()
    g = torch.Generator().manual_seed(seed)
    eps = c * (2 * torch.rand(c.shape, generator=g, dtype=F64) - 1)
    a = bounds.accumulate(p, c)
    true = golden.total_variation_of_errors(p.tolist(), eps.tolist())
    for value in (
        bounds.sharp(a.log_a),
        bounds.tanh_half(a.c_max),
        bounds.one_sub_ratio(a.log_a, a.log_a_neg),
        bounds.retention(p, c),
        bounds.meter(a.log_a, a.c_max),
    ):
        assert value.item() >= true


def test_retention_without_claim() -> None:
    assert bounds.retention(torch.tensor([0.5, 0.5]), torch.tensor([0.1, math.inf])).item() == 1.0
    assert bounds.retention(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 0.0])).item() == 0.0
    assert bounds.retention(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 9.0])).item() == 0.0


def test_dispersion_formula_is_not_a_bound() -> None:
    """Equal c: the first term vanishes, and the formula is second order in c while total variation is first order."""
    p = torch.tensor([0.5, 0.5], dtype=F64)
    for c in (1e-6, 1e-3, 0.1, 0.3):
        both = torch.full((2,), c, dtype=F64)
        assert bounds.dispersion_unsound(p, both) < bounds.worst_case_tv(p, both)
    exact = golden.dispersion_unsound([0.3, 0.7], [0.25, 0.5])
    got = bounds.dispersion_unsound(torch.tensor([0.3, 0.7], dtype=F64), torch.tensor([0.25, 0.5], dtype=F64))
    assert got.item() == pytest.approx(float(exact), rel=1e-14)
