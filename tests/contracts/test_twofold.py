"""Dot products in pairs of float64: never a wrong yes, and a yes wherever the bound is a few units above the truth."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from contracts.checks._screen import above, exactly
from contracts.checks._twofold import dot_at_most
from contracts.discharge import Violation


def _truth(q: torch.Tensor, new: torch.Tensor, old: torch.Tensor, scale: float) -> Fraction:
    rows = zip(exactly(q), exactly(new), exactly(old), strict=True)
    return Fraction(scale) * abs(sum((x * (a - b) for x, a, b in rows), Fraction(0)))


def _case(g: torch.Generator, n: int, d: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Products of every size that cancel: old is near new, half of q beside its own negative."""
    size = torch.exp2(torch.randint(-24, 12, (n, d), generator=g).double())
    new = torch.randn(n, d, generator=g, dtype=torch.float64) * size
    old = new * (1 + 2.0**-20 * torch.randn(n, d, generator=g, dtype=torch.float64))
    q = (torch.randn(n, d, generator=g, dtype=torch.float64) * 3).half().double()
    q[::3, 1:] = 0.0
    new[1::3, d // 2 :] = new[1::3, : d // 2]
    old[1::3, d // 2 :] = old[1::3, : d // 2]
    q[1::3, d // 2 :] = -q[1::3, : d // 2]
    q[1::3, 0] = 0.5
    return q, new, old


@pytest.mark.parametrize("d", [64, 256])
def test_yes_only_where_fractions_say_so(d: int) -> None:
    g = torch.Generator().manual_seed(d)
    q, new, old = _case(g, 60, d)
    scale = d**-0.5
    truth = [_truth(q[i], new[i], old[i], scale) for i in range(len(q))]
    told = scale * 2.0**-30 * (q.abs() * (new.abs() + old.abs())).sum(-1) <= torch.tensor([float(x) for x in truth])
    assert 30 <= int(told.sum()) < 60  # and the others cancel too far for pairs
    nearest = torch.tensor([float(x) for x in truth], dtype=torch.float64)
    for units in (-3, -1, 0, 1, 2, 5):
        bound = nearest.clone()
        for _ in range(abs(units)):
            bound = torch.nextafter(bound, torch.full_like(bound, float("inf") if units > 0 else 0.0))
        said = dot_at_most(bound, q, new, old, scale).tolist()
        true = [Fraction(float(b)) >= t for b, t in zip(bound, truth, strict=True)]
        assert not [i for i, (a, b) in enumerate(zip(said, true, strict=True)) if a and not b]
        if units >= 2:
            assert all(a for a, b in zip(said, told.tolist(), strict=True) if b)
        if units == 0:
            assert 0 < sum(true) < len(true)  # both sides of the truth were asked about


def test_equality_and_what_is_not_finite_are_left_to_fractions() -> None:
    one = torch.ones(4, 1, dtype=torch.float64)
    bound = torch.tensor([1.0, float("nan"), 2.0, -2.0], dtype=torch.float64)
    assert dot_at_most(bound, one, 2 * one, one, 1.0).tolist() == [False, False, True, False]
    with pytest.raises(ValueError, match="at most 256"):
        dot_at_most(bound, one.expand(4, 257), one, one, 1.0)


def test_many_cells_that_meet_the_bound_are_decided() -> None:
    """Above the number of cells that fractions may take: proved in bulk, refused without, and one too low is found."""
    g = torch.Generator().manual_seed(3)
    n = 2500
    q, new = torch.randn(n, 1, generator=g, dtype=torch.float64), torch.rand(n, 1, generator=g, dtype=torch.float64)
    old = torch.zeros_like(new)
    truth = (q * new).abs()[:, 0]
    bound = truth * (1 + 2.0**-50)
    allowance = truth * 2.0**-43

    def decide(low: torch.Tensor) -> float:
        return above(
            "it", low, truth, allowance, lambda at: Fraction(float(low[at])) >= _truth(q[at], new[at], old[at], 1.0),
            lambda at: dot_at_most(low[at], q[at], new[at], old[at], 1.0),
        )  # fmt: skip

    assert decide(bound) > 0
    low = bound.clone()
    low[n - 1] = truth[n - 1] * (1 - 2.0**-50)
    with pytest.raises(Violation, match=rf"cell \({n - 1},\) has bound"):
        decide(low)
    with pytest.raises(Violation, match="too close for float64"):
        above("it", bound, truth, allowance, lambda at: True)
