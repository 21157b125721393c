"""Accumulators: rounded toward the safe side, accurate relative to themselves, right at the extremes; merging and
page-ins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from witcert import bounds, golden
from witcert.golden import mp

F64 = torch.float64


def vector(*x: float, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(x, dtype=dtype)


def check(acc: bounds.Accumulators, p: list[float], c: list[float], slack: float = 1e-13) -> None:
    """log A above, log A- below the truth, both within ``slack`` of it; C exact."""
    log_a, log_a_neg = mp.log(golden.acert(p, c)), mp.log(golden.acert_neg(p, c))
    assert log_a <= acc.log_a.item() <= log_a * (1 + slack)
    assert log_a_neg * (1 + slack) <= acc.log_a_neg.item() <= log_a_neg
    assert acc.c_max.item() == max(c)


masses = st.floats(1e-30, 1.0)
errors = st.one_of(st.floats(1e-12, 20.0), st.floats(1e-12, 1e4), st.just(0.0))


@given(st.lists(st.tuples(masses, errors), min_size=1, max_size=20))
def test_directions_and_accuracy(tokens: list[tuple[float, float]]) -> None:
    p = vector(*(t[0] for t in tokens))
    p = p / p.sum()
    c = [t[1] for t in tokens]
    with mp.workdps(400):
        check(bounds.accumulate(p, vector(*c)), p.tolist(), c)


narrow = st.tuples(st.floats(2.0**-10, 1.0, width=32), st.floats(0.0, 50.0, width=32))


@given(st.lists(narrow, min_size=1, max_size=20))
def test_float32_is_kept_and_directed(tokens: list[tuple[float, float]]) -> None:
    p = vector(*(t[0] for t in tokens), dtype=torch.float32)
    p, c = p / p.sum(), vector(*(t[1] for t in tokens), dtype=torch.float32)
    acc = bounds.accumulate(p, c)
    assert {t.dtype for t in acc} == {torch.float32}
    check(acc, p.tolist(), c.tolist(), slack=3e-7)


@pytest.mark.parametrize("c", [1e-300, 1e-20, 1e-8, 1.0, 39.9, 40.1, 700.0, 709.5, 710.0, 745.0, 800.0, 1e4, 1e300])
@pytest.mark.parametrize("p", [1.0, 1e-5, 1e-30, 1e-300, 5e-324])
def test_extremes(p: float, c: float) -> None:
    """One token of any mass with any bound beside a token that is exact: log A, and A- of the first token alone."""
    exact = mp.log1p(golden.number(p) * mp.expm1(c) / (golden.number(p) + 1)) if p < 1 else golden.number(c)
    weights, cs = (vector(p, 1.0), vector(c, 0.0)) if p < 1 else (vector(1.0), vector(c))
    with mp.workdps(400):
        acc = bounds.accumulate(weights, cs)
        assert exact <= acc.log_a.item() <= exact * (1 + mp.mpf(1e-13)) + 2.0**-990
        alone = bounds.accumulate(vector(1.0), vector(c))
        assert alone.log_a_neg.item() <= -c
        assert alone.log_a_neg.item() >= -c * (1 + 1e-14) - 2.0**-990


def test_nothing_quantized_is_exactly_zero() -> None:
    """``repair_exact``: c = 0 gives A = A- = 1 and C = 0, with no allowance added."""
    acc = bounds.accumulate(torch.full((2, 5), 0.2, dtype=F64), torch.zeros(2, 5, dtype=F64))
    assert all((t == 0).all() for t in acc)
    p_only_on_exact = bounds.accumulate(vector(1.0, 0.0), vector(0.0, 3.0))
    assert p_only_on_exact.log_a.item() == 0.0
    assert p_only_on_exact.c_max.item() == 3.0


@pytest.mark.parametrize("mass", [0.5, 1e-300, 0.0])
def test_infinite_bound_makes_no_claim(mass: float) -> None:
    """c = +inf on any token, even one whose mass has underflowed, leaves A and C infinite."""
    acc = bounds.accumulate(vector(mass, 1.0 - mass), vector(torch.inf, 1e-3))
    assert acc.log_a.item() == torch.inf
    assert acc.c_max.item() == torch.inf
    assert bounds.meter(acc.log_a, acc.c_max).item() == 1.0


def test_weights_are_normalized_exactly() -> None:
    """p and a multiple of p within the tolerance are the same distribution."""
    p, c = vector(0.3, 0.2, 0.5), vector(0.1, 2.0, 1e-3)
    for factor in (1 - 9e-5, 1.0, 1 + 9e-5):
        check(bounds.accumulate(p * factor, c), (p * factor).tolist(), c.tolist())


def test_batches_broadcast() -> None:
    """Queries of a group share c: p [4, 3, T] with c [3, T]."""
    p = torch.softmax(torch.randn(4, 3, 7, dtype=F64), -1)
    c = torch.rand(3, 7, dtype=F64)
    whole = bounds.accumulate(p, c)
    for i in range(4):
        for j in range(3):
            part = bounds.accumulate(p[i, j], c[j])
            assert all(torch.equal(a[i, j], b) for a, b in zip(whole, part, strict=True))
            assert torch.equal(bounds.log_accumulator(p[i, j], c[j]), part.log_a)


def test_constant_on_blocks() -> None:
    """``blockwise_eq_perToken``: with c constant on blocks, A is the average of e^c over block masses."""
    p = torch.softmax(torch.randn(12, dtype=F64), -1)
    block_c = [0.1, 1e-6, 3.0]
    acc = bounds.accumulate(p, vector(*block_c).repeat_interleave(4))
    mass = [golden.mp.fsum(golden.number(x) for x in p[4 * i : 4 * i + 4].tolist()) for i in range(3)]
    exact = mp.log(golden.acert(mass, block_c))
    assert exact <= acc.log_a.item() <= exact * (1 + 1e-13)


# ---- splits


splits = st.lists(st.tuples(st.floats(-1000, 1000), st.integers(1, 6), st.integers(0, 999)), min_size=1, max_size=5)


@given(splits, st.sampled_from([1e-8, 0.1, 5.0, 900.0]))
def test_merging_splits_is_accumulating_the_whole(parts: list[tuple[float, int, int]], size: float) -> None:
    """``lse_merge``: partials weighted by e^lse give the accumulators of the whole; logits spread over +-1000."""
    logits, cs = [], []
    for shift, tokens, seed in parts:
        g = torch.Generator().manual_seed(seed)
        logits.append(shift + torch.randn(tokens, generator=g, dtype=F64))
        cs.append(size * torch.rand(tokens, generator=g, dtype=F64))
    each = [bounds.accumulate(torch.softmax(x, -1), c) for x, c in zip(logits, cs, strict=True)]
    stacked = bounds.Accumulators(*(torch.stack(t) for t in zip(*each, strict=True)))
    lse = torch.stack([torch.logsumexp(x, -1) for x in logits])
    merged = bounds.merge_accumulators(lse, stacked)

    weights = golden.normalized([mp.exp(x) for x in lse.tolist()])
    own_a = golden.average(weights, [mp.exp(x) for x in stacked.log_a.tolist()])
    own_neg = golden.average(weights, [mp.exp(x) for x in stacked.log_a_neg.tolist()])
    assert mp.log(own_a) <= merged.log_a.item() <= mp.log(own_a) * (1 + 1e-12) + 2.0**-900
    assert mp.log(own_neg) * (1 + 1e-12) - 2.0**-900 <= merged.log_a_neg.item() <= mp.log(own_neg)
    assert merged.c_max.item() == max(c.max().item() for c in cs)

    everything = torch.cat(logits)
    p = [mp.exp(x - max(everything.tolist())) for x in everything.tolist()]
    whole = mp.log(golden.acert(p, torch.cat(cs).tolist()))
    assert abs(merged.log_a.item() - whole) <= 1e-9 * max(whole, mp.mpf(1e-300)) + 1e-300


def test_empty_split_is_ignored() -> None:
    one = bounds.accumulate(vector(0.5, 0.5), vector(0.1, 0.2))
    other = vector(9.0, -9.0, 9.0)
    parts = bounds.Accumulators(*(torch.stack((t, x)) for t, x in zip(one, other, strict=True)))
    merged = bounds.merge_accumulators(vector(3.0, -torch.inf), parts)
    assert one.log_a <= merged.log_a <= one.log_a * (1 + 1e-12)
    assert merged.c_max == one.c_max
    assert bounds.lse_merge(vector(3.0, -torch.inf), vector(2.0, torch.inf)).item() == pytest.approx(2.0)


def test_merge_of_light_split_with_huge_accumulator() -> None:
    """A split of relative mass e^-800 whose log A is 820 contributes e^20."""
    parts = bounds.Accumulators(vector(820.0, 1e-3), vector(-5.0, -1e-3), vector(820.0, 1e-3))
    merged = bounds.merge_accumulators(vector(-800.0, 0.0), parts)
    exact = mp.log((mp.exp(20) + mp.exp(mp.mpf(1e-3))) / (1 + mp.exp(-800)))
    assert exact <= merged.log_a.item() <= exact * (1 + 1e-12)


@given(st.lists(st.tuples(st.floats(-600, 600), st.floats(0, 1e6)), min_size=1, max_size=9))
def test_lse_merge_rounds_up(parts: list[tuple[float, float]]) -> None:
    lse, values = zip(*parts, strict=True)
    got, exact = bounds.lse_merge(vector(*lse), vector(*values)).item(), golden.lse_merge(lse, values)
    assert exact <= got <= exact * (1 + 1e-12) + 2.0**-900


# ---- page-in


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(0, 30), st.booleans()), min_size=1, max_size=10))
def test_page_in_rounds_up(tokens: list[tuple[float, float, bool]]) -> None:
    p = vector(*(t[0] for t in tokens))
    p, c, gone = p / p.sum(), vector(*(t[1] for t in tokens)), torch.tensor([t[2] for t in tokens])
    with mp.workdps(400):
        exact = golden.page_in_bound(p.tolist(), c.tolist(), gone.tolist())
        assert mp.log(exact) <= bounds.page_in_log_a(p, c, gone).item() <= mp.log(exact) * (1 + 1e-13) + 2.0**-900
        assert exact <= bounds.page_in_bound(p, c, gone).item() <= exact * (1 + 1e-12)


def test_page_in_of_everything_and_of_nothing() -> None:
    p, c = vector(0.25, 0.75), vector(0.5, torch.inf)
    everything, nothing = torch.tensor([True, True]), torch.tensor([False, False])
    assert bounds.page_in_log_a(p, c, everything).item() == 0.0
    assert bounds.page_in_bound(p, c, everything).item() == 1.0
    assert bounds.page_in_log_a(p, c, nothing).item() == torch.inf
    finite = vector(0.5, 2.0)
    untouched = bounds.accumulate(p, finite).log_a.item()
    assert bounds.page_in_log_a(p, finite, nothing).item() == pytest.approx(untouched, rel=1e-14)
    assert bounds.page_in_log_a(p, c, torch.tensor([False, True])).item() < torch.inf
    assert bounds.page_in_bound(p, vector(1e4, 1.0), torch.tensor([False, True])).item() == torch.inf


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_long_context(dtype: torch.dtype) -> None:
    """32,768 tokens: the allowance grows with log2 T, not with T."""
    p = torch.softmax(3 * torch.randn(32768, dtype=F64), -1).to(dtype)
    c = (10.0 ** (4 * torch.rand(32768, dtype=F64) - 4)).to(dtype)
    check(bounds.accumulate(p, c), p.tolist(), c.tolist(), slack=2e-14 if dtype == F64 else 3e-7)
