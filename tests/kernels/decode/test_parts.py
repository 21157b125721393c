"""The device helpers of decode on their own: exact powers of two, the capped logit, the constants of the budget."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import math

import mpmath
import pytest
import torch
import triton
import triton.language as tl

from witcert.kernels.decode import budget
from witcert.kernels.decode.parts import capped, pow2

from .common import DEVICE


@triton.jit
def _apply(x_ptr, y_ptr, a, b, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = pow2(x) if WHAT == 0 else capped(x, a, b)
    tl.store(y_ptr + at, y)


def test_powers_of_two_are_exact() -> None:
    e = -torch.arange(0, 4096, device=DEVICE).float()
    e[-1], e[-2] = -3.0e38, -math.inf
    y = torch.empty_like(e)
    _apply[(4,)](e, y, 0.0, 0.0, WHAT=0, BLOCK=1024)
    exact = torch.where(e >= -126, torch.exp2(e.double()), 0.0)
    assert torch.equal(y.double(), exact)


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_capped_logit(cap: float) -> None:
    """Within half of the allowance of the exact one, from tiny to huge, monotone at the ends, NaN stays NaN."""
    magnitude = torch.exp2(torch.linspace(-30, 40, 2**15, device=DEVICE))
    x = torch.cat([magnitude, -magnitude]).contiguous()
    x[0], x[1], x[2], x[3] = math.nan, math.inf, -math.inf, 0.0
    y = torch.empty_like(x)
    _apply[(64,)](x, y, cap * budget.LOG2E, 1.0 / cap, WHAT=1, BLOCK=1024)
    exact = cap * torch.tanh(x.double() / cap) * budget.LOG2E
    assert y[0].isnan()
    assert float((y.double() - exact)[1:].abs().max()) <= budget.cap_slack(cap) / 2


def test_constants_are_rounded_up() -> None:
    mp = mpmath.MPContext()
    mp.dps = 50
    for tokens, delta in ((1, 0.5), (4096, 1e-9), (2**24, 1e-30)):
        exact = mp.sqrt(mp.log(2 * tokens / mp.mpf(delta)) * 2 / 12)
        assert exact * (1 + mp.mpf(2) ** -17) < budget.subgaussian_factor(tokens, delta) < exact * (1 + mp.mpf(2) ** -15)
    for channels, delta in ((64, 0.0), (128, 1e-12), (256, 0.5), (96, 1e-300)):
        square = mp.mpf(3 * channels)
        if delta:
            square = min(square, channels + mp.sqrt(mp.mpf(9) * channels * mp.log(1 / mp.mpf(delta)) / 2))
        exact = mp.sqrt(square / 12)
        assert exact * (1 + mp.mpf(2) ** -17) < budget.kappa(channels, delta) < exact * (1 + mp.mpf(2) ** -15)
    assert budget.envelope(10, 32, 4) < budget.envelope(11, 32, 4) < budget.envelope(1000, 32, 256) < 1.001
    assert budget.dot_gamma(64) < budget.dot_gamma(128) < 2.0**-14


@pytest.mark.parametrize(
    ("tiles", "tile", "splits"), [(1, 16, 1), (32, 32, 64), (1000, 32, 256), (2**18, 16, 1), (2**20, 16, 256)]
)
def test_envelope_counts_terms_sums_and_their_product(tiles: int, tile: int, splits: int) -> None:
    """delta_1 + delta_2 + delta_1 delta_2 <= delta (``ratio_envelope``), at every number of additions."""
    mp = mpmath.MPContext()
    mp.dps = 50
    u = mp.mpf(2) ** -24
    term = mp.mpf(budget.EXP2) + 512 * mp.log(2) * u
    sums = (tile + tiles + splits + 40) * u
    delta = term + sums + term * sums
    least = (1 + delta) / (1 - delta) * (1 + mp.mpf(2) ** -20)
    assert least <= budget.envelope(tiles, tile, splits) <= least * (1 + mp.mpf(2) ** -48)
    if tiles <= 32:
        without = (1 + term + sums) / (1 - term - sums) * (1 + mp.mpf(2) ** -20)
        assert budget.envelope(tiles, tile, splits) - without < 1e-9
