"""Budgets: shares never add up to more than was asked for, and nonsense is refused."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from witcert.budget import Budget
from witcert.errors import InputError


def test_defaults_of_a_small_model() -> None:
    budget = Budget(layers=30, heads=9, kv_heads=3)
    assert (budget.steps, budget.delta_req, budget.tau_k, budget.tau_v) == (256, 1e-2, 0.2, 0.05)
    assert (budget.group, budget.cells) == (3, 30 * 9 * 256)
    assert budget.delta_loc == pytest.approx(1e-2 / (30 * 9 * 256), rel=1e-15)
    assert budget.delta_token(1000) == pytest.approx(budget.delta_loc / 1000, rel=1e-15)
    assert budget.delta_adaptive(1000) == pytest.approx(1e-2 / (30 * 3 * 1000), rel=1e-15)


@given(
    st.integers(1, 200),
    st.integers(1, 32),
    st.integers(1, 16),
    st.integers(1, 10**6),
    st.floats(1e-12, 0.999),
    st.integers(1, 10**7),
)
def test_shares_add_up_to_no_more(
    layers: int, kv_heads: int, group: int, steps: int, delta: float, tokens: int
) -> None:
    budget = Budget(layers, kv_heads * group, kv_heads, steps, delta)
    cells = layers * kv_heads * group * steps
    parts = {
        cells: budget.delta_loc,
        cells * tokens: budget.delta_token(tokens),
        layers * kv_heads * tokens: budget.delta_adaptive(tokens),
    }
    for count, share in parts.items():
        assert 0 < Fraction(share) * count <= Fraction(delta)
        assert Fraction(math.nextafter(share, 1.0)) * count > Fraction(delta)  # and not a float more is left over


@pytest.mark.parametrize(
    ("name", "value"),
    [("layers", 0), ("heads", -1), ("kv_heads", 0), ("steps", 0), ("steps", 2.5), ("layers", True), ("heads", 10)]
    + [("delta_req", v) for v in (0.0, 1.0, -0.1, math.nan, math.inf)]
    + [(name, v) for name in ("tau_k", "tau_v") for v in (0.0, 1.5, math.nan)],
)
def test_nonsense_is_refused(name: str, value: object) -> None:
    arguments = {"layers": 2, "heads": 4, "kv_heads": 4, name: value}
    with pytest.raises(InputError, match=name):
        Budget(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [0, -3, 1.0, True])
def test_tokens_are_counted(tokens: int) -> None:
    budget = Budget(2, 4, 4)
    for share in (budget.delta_token, budget.delta_adaptive):
        with pytest.raises(InputError, match="tokens"):
            share(tokens)


def test_underflow_is_refused() -> None:
    with pytest.raises(InputError, match="underflows"):
        _ = Budget(10**6, 10, 10, 10**6, delta_req=5e-324).delta_loc


def test_joint_certificate() -> None:
    budget = Budget(1, 1, 1, tau_k=0.2, tau_v=0.05)
    meter = torch.tensor([0.1, 0.1, 0.3, math.nan, 0.1, 0.2], dtype=torch.float64)
    value = torch.tensor([0.01, 0.1, 0.01, 0.01, math.nan, 0.05], dtype=torch.float64)
    assert budget.certified(meter, value).tolist() == [True, False, False, False, False, True]
    assert not budget.certified(meter.float(), value.float())[5]  # the float32 nearest to 0.2 is above it
