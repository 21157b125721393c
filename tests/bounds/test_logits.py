"""Bounds on one logit error: against golden, at their edges, and the dither radii against every outcome of a small
dither."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from witcert import bounds, golden
from witcert.errors import InputError

F64 = torch.float64
SMALL = 2.0**-400


def vector(*x: float) -> Tensor:
    return torch.tensor(x, dtype=F64)


sizes = st.one_of(st.just(0.0), st.floats(1e-30, 1e6))
channels = st.lists(st.tuples(st.floats(-1e6, 1e6), sizes, st.floats(-0.5, 0.5)), min_size=1, max_size=40)


@given(channels, st.floats(1e-3, 10.0))
def test_above_golden_by_rounding_only(drawn: list[tuple[float, float, float]], scale: float) -> None:
    q, step, r = [x[0] for x in drawn], [x[1] for x in drawn], [x[1] * x[2] for x in drawn]
    q_t, s_t, r_t = vector(*q), vector(*step)[None], vector(*r)[None]
    radius = {"tokens": 1000, "delta_loc": 1e-6, "levels": 16}
    pairs = [
        (bounds.half_step(q_t, s_t, scale), golden.half_step(q, step, scale)),
        (bounds.band_bound(q_t.abs(), s_t, scale), 2 * golden.half_step(q, step, scale)),
        (bounds.scaled_cs(q_t, r_t, s_t, scale), golden.scaled_cs(q, r, step, scale)),
        (bounds.subgaussian_radius(q_t, s_t, scale, **radius), golden.subgaussian_radius(q, step, scale, **radius)),
        (bounds.adaptive_radius(q_t, s_t, scale, delta=0.0), golden.adaptive_radius(q, step, scale, delta=0.0)),
        (bounds.adaptive_radius(q_t, s_t, scale, delta=1e-3), golden.adaptive_radius(q, step, scale, delta=1e-3)),
    ]
    for got, exact in pairs:
        assert got.shape == (1,)
        assert exact <= got.item() <= exact * (1 + 2e-14) + SMALL


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_inputs_are_taken_exactly(dtype: torch.dtype) -> None:
    q, w = torch.rand(3, 16).to(dtype), torch.rand(3, 5, 16).to(dtype)
    got = bounds.band_bound(q, w, 0.125)
    assert got.dtype == torch.float32
    for i, t in itertools.product(range(3), range(5)):
        exact = golden.band_bound(q[i].tolist(), w[i, t].tolist(), 0.125)
        assert exact <= got[i, t].item() <= exact * (1 + 2e-7)


def test_lost_witness_makes_no_claim() -> None:
    """w = +inf leaves c infinite even where the query's band norm is 0; overflow of finite numbers does too."""
    w = torch.tensor([[math.inf, 1.0], [1.0, 1.0]], dtype=F64)
    assert bounds.band_bound(vector(0.0, 1.0), w, 1.0).tolist()[0] == math.inf
    assert bounds.band_bound(vector(0.0, 1.0), w, 1.0)[1] < 1.0 + 1e-14
    assert bounds.band_bound(vector(1e300, 0.0), 1e300 * w, 1.0)[1] == math.inf
    assert bounds.band_bound(torch.tensor([3e38]), torch.tensor([[3e38]]), 1.0).tolist() == [math.inf]


def test_channels_that_are_exact() -> None:
    """Step 0 costs nothing; a residual on a channel that claims step 0 is no bound at all."""
    q, step = vector(5.0, -3.0), vector(0.0, 2.0)[None]
    assert bounds.half_step(q, step, 1.0).item() == pytest.approx(3.0, rel=1e-14)
    assert bounds.scaled_cs(q, vector(0.0, 1.0)[None], step, 1.0).item() == pytest.approx(3.0, rel=1e-14)
    assert bounds.scaled_cs(q, vector(1e-9, 1.0)[None], step, 1.0).item() == math.inf
    for zero in (bounds.half_step(q, 0 * step, 1.0), bounds.adaptive_radius(q, 0 * step, 1.0, delta=0.1)):
        assert zero.item() == 0.0
    assert bounds.scaled_cs(q, 0 * step, 0 * step, 1.0).item() == 0.0
    assert bounds.subgaussian_radius(q, 0 * step, 1.0, tokens=8, delta_loc=0.1).item() == 0.0


def test_no_underflow_to_zero() -> None:
    """Products below the range of float64 still leave a positive bound."""
    q, step = vector(1e-200), vector(1e-200)[None]
    for got in (
        bounds.half_step(q, step, 1.0),
        bounds.band_bound(q, step, 1.0),
        bounds.scaled_cs(q, step, step, 1.0),
        bounds.adaptive_radius(q, step, 1.0, delta=0.0),
    ):
        assert 0.0 < got.item() < 1e-100
    apart = bounds.adaptive_radius(vector(1.7e308, 5e-324), vector(0.0, 5e-324)[None], 1.0, delta=0.0)
    assert apart.item() > 0.0
    assert bounds.adaptive_radius(vector(1.7e308), vector(1.7e308)[None], 1.0, delta=0.0).item() == math.inf


def test_order_of_the_radii() -> None:
    """kappa grows as delta shrinks and stops at 3 d; the radius grows with the number of tokens; half_step caps
    nothing."""
    q, step = torch.randn(64, dtype=F64), torch.rand(3, 64, dtype=F64)
    values = [bounds.adaptive_radius(q, step, 0.1, delta=d) for d in (0.5, 1e-2, 1e-6, 1e-12, 0.0)]
    assert all((b >= a).all() for a, b in itertools.pairwise(values))
    assert (values[-1] <= 1.01 * 0.1 * 0.5 * math.sqrt(64) * (q * step).norm(dim=-1)).all()
    small, large = (bounds.subgaussian_radius(q, step, 0.1, tokens=t, delta_loc=1e-3) for t in (10, 10_000))
    assert (large > small).all()
    assert bounds.subgaussian_radius(q, step, 0.1, tokens=10, delta_loc=1e-320).isfinite().all()


def outcomes(levels: int, channels: int) -> np.ndarray:
    """Every outcome of the dither's grid on every channel: [levels^channels, channels]."""
    grid = (2 * np.arange(levels) + 1 - levels) / (2 * levels)
    return np.array(list(itertools.product(grid, repeat=channels)))


@pytest.mark.parametrize(("levels", "channels"), [(2, 12), (4, 6), (8, 4), (16, 4), (256, 2)])
@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-2, 1e-3])
def test_share_of_all_dither_outcomes(levels: int, channels: int, delta: float) -> None:
    """``two_sided_tail``: over every outcome, with every |theta| <= 1/(2n) on top, at most delta / S exceed the
    radius."""
    rng = np.random.default_rng(levels + channels)
    everything = outcomes(levels, channels)
    for trial in range(6):
        q = rng.normal(size=channels) if trial else np.ones(channels)
        step = rng.uniform(0.1, 2.0, size=channels) if trial else np.ones(channels)
        for tokens in (1, 4):
            budget = {"tokens": tokens, "delta_loc": delta, "levels": levels}
            u = bounds.subgaussian_radius(vector(*q), vector(*step)[None], 0.5, **budget)
            centred = 0.5 * everything @ (q * step)
            offset = 0.5 * np.abs(q * step).sum() / (2 * levels)
            exceeding = np.mean(np.abs(centred) + offset > u.item())
            assert exceeding <= delta / tokens


@pytest.mark.parametrize(("levels", "channels"), [(2, 12), (4, 6), (8, 4), (256, 2)])
@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-2, 0.0])
def test_adaptive_radius_for_the_worst_query(levels: int, channels: int, delta: float) -> None:
    """``adaptive_radius``: the event is about the dither alone, 12 |g|^2 <= kappa^2; then the worst query, g itself,
    is covered."""
    everything = outcomes(levels, channels)
    radii = bounds.adaptive_radius(
        torch.from_numpy(everything), torch.ones(1, channels, dtype=F64), 1.0, delta=delta, levels=levels
    )[:, 0].numpy()
    norms = (everything**2).sum(-1)
    worst = norms + np.abs(everything).sum(-1) / (2 * levels)
    assert np.mean(worst > radii) <= delta


def test_grid_dither_never_leaves_half_a_step() -> None:
    """``half_step``: |g| <= (n-1)/2n and |theta| <= 1/2n add up to exactly 1/2."""
    for levels in (2, 4, 256):
        assert np.abs(outcomes(levels, 1)).max() + 1 / (2 * levels) == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, s: bounds.half_step(q, s, -1.0), r"scale=-1\.0 is outside \(0, inf\)"),
        (lambda q, s: bounds.half_step(q, s, math.nan), r"scale=nan is outside"),
        (lambda q, s: bounds.half_step(q, -s, 1.0), r"step\[0, 0\]=-1\.0 is outside \[0, inf\)"),
        (lambda q, s: bounds.half_step(q * math.nan, s, 1.0), r"q\[0\]=nan is outside \(-inf, inf\)"),
        (lambda q, s: bounds.half_step(q, s[:, :1], 1.0), r"last dimension must be the same"),
        (lambda q, s: bounds.half_step(q.long(), s, 1.0), r"q has dtype torch\.int64"),
        (lambda q, s: bounds.band_bound(q, s * math.nan, 1.0), r"w\[0, 0\]=nan is outside \[0, inf\]"),
        (lambda q, s: bounds.band_bound(-q, s, 1.0), r"q_norms\[0\]=-1\.0 is outside"),
        (lambda q, s: bounds.scaled_cs(q, s[:, :1], s, 1.0), r"the last two dimensions must be the same"),
        (lambda q, s: bounds.subgaussian_radius(q, s, 1.0, tokens=0, delta_loc=0.1), r"tokens=0 is outside"),
        (lambda q, s: bounds.subgaussian_radius(q, s, 1.0, tokens=5, delta_loc=0.0), r"delta_loc=0\.0 is outside"),
        (lambda q, s: bounds.subgaussian_radius(q, s, 1.0, tokens=5, delta_loc=0.1, levels=0), r"levels=0 is outside"),
        (lambda q, s: bounds.adaptive_radius(q, s, 1.0, delta=1.0), r"delta=1\.0 is outside \[0, 1\)"),
        (lambda q, s: bounds.adaptive_radius(q, s, 1.0, delta=math.nan), r"delta=nan is outside \[0, 1\)"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(torch.ones(4, dtype=F64), torch.ones(2, 4, dtype=F64))  # type: ignore[operator]
