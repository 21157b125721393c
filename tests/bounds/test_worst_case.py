"""The supremum of total variation: exact against brute force, and what a threshold search misses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from witcert import bounds, golden

F64 = torch.float64


def brute(p: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Total variation of every sign pattern of eps = +-c, by its definition, in extended precision; the largest [N]."""
    best = np.zeros(len(p), dtype=np.longdouble)
    p = p.astype(np.longdouble)
    p = p / p.sum(-1, keepdims=True)
    for signs in itertools.product((-1, 1), repeat=p.shape[-1]):
        w = p * np.exp(np.array(signs) * c.astype(np.longdouble))
        q = w / w.sum(-1, keepdims=True)
        best = np.maximum(best, 0.5 * np.abs(q - p).sum(-1))
    return best


def cells(n: int, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random cells, a third of them with equal c, a quarter with few distinct values of p and c (ties) and zeros in
    both."""
    rng = np.random.default_rng(seed)
    p = rng.random((n, tokens)) ** rng.integers(1, 12, (n, 1)) + 1e-12
    c = 10.0 ** rng.uniform(-3, 2, (n, tokens))
    c[::3] = c[::3, :1]
    p[1::4] = rng.integers(0, 3, p[1::4].shape)
    c[1::4] = rng.integers(0, 3, c[1::4].shape) * 0.7
    p[:, 0] += p.sum(-1) == 0
    return p / p.sum(-1, keepdims=True), c


SIZES = [(1, 100), (2, 1000), (3, 1000), (4, 1000), (6, 1000), (8, 600), (10, 200), (12, 60)]


@pytest.mark.parametrize(("tokens", "n"), SIZES)
def test_exact_up_to_twelve_tokens(tokens: int, n: int) -> None:
    p, c = cells(n, tokens, tokens)
    expected = brute(p, c)
    got = bounds.worst_case_tv(torch.from_numpy(p), torch.from_numpy(c)).numpy()
    assert (got <= expected * (1 + 1e-17) + 1e-17).all(), "above the supremum"
    assert (expected - got <= 2e-14 * expected + 1e-18).all(), "below the supremum"


@pytest.mark.parametrize("tokens", [13, 14, 15])
def test_close_beyond_twelve_tokens(tokens: int) -> None:
    p, c = cells(24, tokens, tokens)
    expected = brute(p, c)
    got = bounds.worst_case_tv(torch.from_numpy(p), torch.from_numpy(c)).numpy()
    assert (got <= expected * (1 + 1e-17) + 1e-17).all()
    assert (expected - got <= 1e-6 * expected + 1e-18).all()


def test_the_set_attains_the_value() -> None:
    """``worst_case_set`` is a recipe: errors -c on it and +c off it cause the reported total variation."""
    for tokens, polish in ((3, True), (12, True), (30, True), (100, True), (12, False), (30, False), (100, False)):
        p, c = (torch.from_numpy(x) for x in cells(6, tokens, 5))
        chosen = bounds.worst_case_set(p, c, polish=polish)
        value = bounds.worst_case_tv(p, c, polish=polish)
        assert tokens == 12 or polish or (value <= bounds.worst_case_tv(p, c) * (1 + 1e-13)).all()
        for i in range(6):
            true = golden.total_variation_of_errors(p[i].tolist(), torch.where(chosen[i], -c[i], c[i]).tolist())
            assert value[i].item() <= true <= value[i].item() * (1 + 2e-14) + 1e-290


def test_below_every_bound_and_close_to_the_sharpest() -> None:
    """Every bound lies above the worst case, also of long rows; with many equal tokens it reaches tanh(C/2)."""
    p = torch.softmax(4 * torch.randn(3, 300, dtype=F64), -1)
    c = torch.rand(3, 300, dtype=F64)
    a, worst = bounds.accumulate(p, c), bounds.worst_case_tv(p, c)
    ratio = bounds.one_sub_ratio(a.log_a, a.log_a_neg)
    for bound in (bounds.sharp(a.log_a), bounds.tanh_half(a.c_max), ratio, bounds.retention(p, c)):
        assert (worst <= bound).all()
    flat, equal = torch.full((1, 256), 1 / 256, dtype=F64), torch.full((1, 256), 0.5, dtype=F64)
    reached = bounds.worst_case_tv(flat, equal)
    assert reached <= bounds.tanh_half(equal.amax(-1))
    assert reached >= bounds.tanh_half(equal.amax(-1)) * (1 - 1e-5)


def test_no_order_of_the_tokens_gives_the_optimum() -> None:
    """Equal c, p~ = (1, 2, 3, 4, 11) / 21, and m* = 1 / (1 + e^c) = 7/21: the best sets sum to 7, and no threshold
    does.

    With e^c = 2 the supremum is tanh(c/2) = 1/3, reached by masses {3, 4} (or {1, 2, 4}), not by the smallest or
    largest k.
    """
    parts = [1, 2, 3, 4, 11]
    p, c = torch.tensor(parts, dtype=F64) / 21, torch.full((5,), float(np.log(2.0)), dtype=F64)
    assert bounds.worst_case_tv(p, c).item() == pytest.approx(1 / 3, rel=1e-14)
    assert p[bounds.worst_case_set(p, c)].sum().item() == pytest.approx(7 / 21)

    def value(mass: int) -> float:
        return 4 * mass / (4 * mass + 21 - mass) - mass / 21

    thresholds = {sum(parts[:k]) for k in range(6)} | {sum(parts[k:]) for k in range(6)}
    assert 7 not in thresholds
    assert max(value(m) for m in thresholds) < 1 / 3 - 1e-3


def test_low_bounds_can_belong_to_the_set() -> None:
    """Z < 1: an exact token gains when a heavy one loses; S = {smallest c, largest c} beats every threshold in c."""
    p, c = torch.tensor([0.36, 0.63, 0.01], dtype=F64), torch.tensor([0.0, 1.0, 2.0], dtype=F64)
    assert bounds.worst_case_set(p, c).tolist() == [True, False, True]


def test_edges() -> None:
    one = torch.ones(1, dtype=F64)
    assert bounds.worst_case_tv(one, 5 * one).item() == 0.0
    zero = bounds.worst_case_tv(torch.full((4, 30), 1 / 30, dtype=F64), torch.zeros(4, 30, dtype=F64))
    assert zero.tolist() == [0.0] * 4
    huge = bounds.worst_case_tv(torch.tensor([0.9, 0.1], dtype=F64), torch.tensor([1e4, torch.inf], dtype=F64))
    assert huge.item() == pytest.approx(0.9)
    assert bounds.worst_case_tv(torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1])).dtype == torch.float32
    assert bounds.worst_case_tv(torch.zeros(0, 3) + 1 / 3, torch.zeros(0, 3)).shape == (0,)
    tiny = bounds.worst_case_tv(torch.tensor([0.5, 0.5], dtype=F64), torch.tensor([1e-12, 1e-12], dtype=F64)).item()
    assert tiny == pytest.approx(5e-13, rel=1e-10)
