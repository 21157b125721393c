"""Predictions from block sums against the real thing: never below, and the plan is the shortest prefix that does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from witcert import bounds
from witcert.errors import InputError
from witcert.gate.predict import BlockSums, _meter, _scan, plan, predicted_meter

SEEDS = range(40)


def random_cell(seed: int, heads: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Served weights and bounds of some heads on the same tokens; some seeds concentrate the mass on few tokens."""
    g = torch.Generator().manual_seed(seed)
    p = torch.softmax(torch.randn(heads, tokens, generator=g, dtype=torch.float64) * (1 + seed % 7), -1)
    c = torch.rand(heads, tokens, generator=g, dtype=torch.float64) ** 3 * (0.2 + seed % 5)
    return p, c


def sums_of(p: Tensor, c: Tensor, block: int, down: str = "exact") -> BlockSums:
    mass, up, low = (x.unflatten(-1, (-1, block)).sum(-1) for x in (p, p * c.exp(), p * (-c).exp()))
    if down == "cauchy":
        low = mass**2 / up
    zero = p.new_zeros(len(p))
    return BlockSums(mass, up, low, c.unflatten(-1, (-1, block)).amax(-1), zero, zero, zero)


@pytest.mark.parametrize("down", ["exact", "cauchy"])
@pytest.mark.parametrize("residual", [0.0, 1e-3])
def test_prediction_is_never_below_the_meter_after_the_repair(down: str, residual: float) -> None:
    """40 seeds x 3 heads x 7 choices x 3 sign patterns of the error: 2520 repairs, zero tolerance."""
    least = math.inf
    for seed in SEEDS:
        p, c = random_cell(seed, 3, 48)
        sums = sums_of(p, c, 8, down)
        g = torch.Generator().manual_seed(1000 + seed)
        chosen = torch.rand(7, 6, generator=g) < 0.5
        chosen[0], chosen[1] = False, True
        got = predicted_meter(sums, chosen, torch.full((3,), residual, dtype=torch.float64))
        for k in range(7):
            tokens = chosen[k].repeat_interleave(8)
            for sign in (-torch.ones_like(c), torch.ones_like(c), torch.sign(torch.randn(c.shape, generator=g))):
                error = torch.where(tokens, sign * c, 0.0)  # what the repair takes away
                now = p * (-error).exp()
                now = now / now.sum(-1, keepdim=True)
                left = torch.where(tokens, residual, c)
                a = (now * left.exp()).sum(-1)
                real = bounds.meter(a.log().clamp(min=0), left.amax(-1))
                least = min(least, float((got[:, k] - real).min()))
    assert least >= 0


def test_the_plan_is_the_shortest_prefix_that_is_predicted_to_do() -> None:
    done = 0
    for seed in SEEDS:
        p, c = random_cell(seed, 2, 64)
        sums = sums_of(p, c, 4)
        zero = torch.zeros(2, dtype=torch.float64)
        for tau in (0.02, 0.2):
            chosen = plan(sums, tau, zero)
            count = int(chosen.blocks.sum())
            order = sums.contribution.amax(0).argsort(descending=True, stable=True)
            assert set(order[:count].tolist()) == set(chosen.blocks.nonzero().flatten().tolist())
            assert (chosen.predicted <= tau).all()
            if count:
                fewer = torch.zeros(1, 16, dtype=torch.bool)
                fewer[0, order[: count - 1]] = True
                if not (predicted_meter(sums, fewer, zero) <= tau).all():
                    done += 1
    assert done > 40


def test_no_claim_stays_no_claim_until_it_is_paged_in() -> None:
    """An infinite witness (up = inf) makes the meter 1 wherever its block is left out, and nothing once it is chosen."""
    p, c = random_cell(3, 1, 16)
    c[0, 5] = math.inf
    sums = sums_of(p, c, 4)
    chosen = torch.tensor([[False] * 4, [False, True, False, False], [True] * 4])
    got = predicted_meter(sums, chosen, torch.zeros(1, dtype=torch.float64))[0]
    assert got[0] == 1
    assert got[1] < 1
    assert got[2] < 1e-6
    assert plan(sums, 0.9, torch.zeros(1, dtype=torch.float64)).blocks[1]


def test_an_unreachable_threshold_chooses_everything() -> None:
    p, c = random_cell(1, 2, 16)
    got = plan(sums_of(p, c, 4), 1e-3, torch.full((2,), 0.1, dtype=torch.float64))
    assert got.blocks.all()
    assert (got.predicted > 1e-3).all()


def test_running_joins_are_those_of_torch() -> None:
    """10 lengths, with infinities and NaN: sums within 2^-48 of torch's, maxima the same."""
    for length in (1, 2, 3, 7, 8, 16, 33, 100, 255, 1024):
        x = torch.rand(3, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
        from_end = x.flip(-1).cumsum(-1).flip(-1)
        assert ((_scan(x, torch.sum, 0.0) - from_end).abs() <= from_end * 2.0**-48).all()
        x[0, length // 2], x[1, length // 3] = math.inf, math.nan
        most = x.flip(-1).cummax(-1).values.flip(-1)
        assert torch.equal(_scan(x, torch.amax, -math.inf).nan_to_num(nan=-1.0), most.nan_to_num(nan=-1.0))


def test_the_predicted_form_is_that_of_the_meter() -> None:
    """64 x 64 values of A and C, infinite ones and NaN among them: within 2^-40 of ``bounds.meter``."""
    log_a = torch.cat((torch.linspace(0, 3, 61, dtype=torch.float64), torch.tensor([50.0, math.inf, math.nan])))
    c = torch.cat((torch.linspace(0, 4, 61, dtype=torch.float64), torch.tensor([50.0, math.inf, math.nan])))
    a, b = (x.flatten() for x in torch.meshgrid(log_a, c, indexing="ij"))
    ours, theirs = _meter(a.exp(), b), bounds.meter(a, b)
    assert ((ours - theirs).abs() <= 2.0**-40).all()


def test_shapes_are_checked() -> None:
    x = torch.ones(1, 2, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(InputError, match="blocks"):
        BlockSums(x, x[:, :1], x, x, one, one, one)
    with pytest.raises(InputError, match="rest_mass"):
        BlockSums(x, x, x, x, one[:0], one, one)
