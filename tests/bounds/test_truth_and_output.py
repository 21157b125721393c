"""Total variation itself, the output bound, and the checks on what the bounds are given."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from witcert import bounds, golden
from witcert.errors import InputError

F64 = torch.float64


def test_total_variation() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25], dtype=F64), torch.tensor([0.25, 0.25, 0.5], dtype=F64)
    assert bounds.total_variation(p, q).item() == 0.25
    assert bounds.total_variation(p, p).item() == 0.0
    apart = bounds.total_variation(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert apart.item() == 1.0
    assert apart.dtype == torch.float32
    assert bounds.total_variation(p.expand(2, 3, 3), q).shape == (2, 3)


tokens = st.lists(st.tuples(st.floats(1e-12, 1.0), st.floats(-1, 1)), min_size=1, max_size=16)


@given(tokens, st.sampled_from([1e-12, 1e-8, 1e-3, 1.0, 30.0, 800.0]))
def test_errors_give_a_lower_bound(drawn: list[tuple[float, float]], size: float) -> None:
    """Never above the truth; within 1e-12 of sum p |e| for small errors, within 1e-12 absolutely for large ones."""
    p = torch.tensor([x[0] for x in drawn], dtype=F64)
    p, eps = p / p.sum(), size * torch.tensor([x[1] for x in drawn], dtype=F64)
    got = bounds.total_variation_of_errors(p, eps).item()
    exact = golden.total_variation_of_errors(p.tolist(), eps.tolist())
    scale = (p * torch.expm1(-eps).abs()).sum().item() if size <= 1.0 else 1.0
    assert exact - 1e-12 * scale - 1e-290 <= got <= exact
    narrow = bounds.total_variation_of_errors(p, eps.float())
    assert narrow.dtype == F64
    assert bounds.total_variation_of_errors(p.float() / p.float().sum(), eps.float()).dtype == torch.float32


def test_errors_that_shift_all_logits_change_nothing() -> None:
    p = torch.softmax(torch.randn(5, 9, dtype=F64), -1)
    for shift in (-700.0, -1e-3, 0.0, 5.0, 700.0):
        assert bounds.total_variation_of_errors(p, torch.full_like(p, shift)).max() == 0.0
    p, eps = torch.tensor([0.0, 1.0], dtype=F64), torch.tensor([-900.0, 0.5], dtype=F64)
    assert bounds.total_variation_of_errors(p, eps).item() == 0.0


values = st.lists(st.tuples(st.floats(1e-9, 1.0), st.floats(0, 1e3)), min_size=1, max_size=9)


@given(values, st.floats(0, 1), st.floats(0, 1e3))
def test_output_bound(drawn: list[tuple[float, float]], tv: float, radius: float) -> None:
    p, rho = (torch.tensor(x, dtype=F64) for x in zip(*drawn, strict=True))
    p = p / p.sum()
    got = bounds.output_bound(torch.tensor(tv, dtype=F64), torch.tensor(radius, dtype=F64), p, rho).item()
    exact = golden.output_bound(tv, radius, p.tolist(), rho.tolist())
    assert exact <= got <= exact * (1 + 1e-14) + 2.0**-900


def test_output_bound_edges() -> None:
    one, zero = torch.tensor(1.0), torch.tensor(0.0)
    p, rho = torch.tensor([0.0, 1.0]), torch.tensor([math.inf, 0.0])
    assert bounds.output_bound(zero, one, p, 0 * torch.ones(2)).item() == 0.0
    assert bounds.output_bound(zero, one, p, rho).item() == math.inf
    assert bounds.output_bound(one, torch.tensor(math.inf), p, torch.zeros(2)).item() == math.inf
    assert bounds.output_bound(torch.tensor(7.0), one, p, torch.zeros(2)).item() == pytest.approx(2.0)


HALF = torch.tensor([0.5, 0.5], dtype=F64)


@pytest.mark.parametrize(
    ("p", "c", "message"),
    [
        (torch.tensor([0.5, math.nan]), HALF, r"p\[1\]=nan is outside \[0, 1\]"),
        (torch.tensor([1.5, -0.5]), HALF, r"p\[0\]=1\.5 is outside \[0, 1\]"),
        (torch.tensor([0.5, 0.4]), HALF, r"sum of p=0\.9.* is outside 1 \+- 0\.0001"),
        (torch.tensor([[0.5, 0.5], [0.3, 0.3]]), HALF, r"sum of p\[1\]=0\.6"),
        (torch.zeros(0), torch.zeros(0), r"at least one token"),
        (torch.tensor([1, 0]), HALF, r"p has dtype torch\.int64"),
        (HALF.half(), HALF, r"p has dtype torch\.float16; float32 or float64 is expected"),
        ([0.5, 0.5], HALF, r"p is a list"),
        (HALF, torch.tensor([0.1, -0.1]), r"c\[1\]=-0\.1.* is outside \[0, inf\]"),
        (HALF, torch.tensor([math.nan, 0.1]), r"c\[0\]=nan is outside \[0, inf\]"),
        (HALF, torch.tensor([0.1]), r"the last dimension must be the same"),
        (HALF.expand(2, 2), torch.zeros(3, 2), r"they do not broadcast"),
    ],
)
@pytest.mark.parametrize(
    "function", [bounds.accumulate, bounds.retention, bounds.worst_case_tv, bounds.dispersion_unsound]
)
def test_bad_cells_are_named(function: object, p: torch.Tensor, c: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        function(p, c)  # type: ignore[operator]


def test_other_bad_input_is_named() -> None:
    acc = bounds.accumulate(HALF, HALF)
    with pytest.raises(InputError, match="repaired has dtype"):
        bounds.page_in_bound(HALF, HALF, HALF)
    with pytest.raises(InputError, match=r"largest lse=-inf"):
        bounds.lse_merge(torch.tensor([-math.inf]), torch.tensor([1.0]))
    with pytest.raises(InputError, match=r"lse\[0\]=inf"):
        bounds.lse_merge(torch.tensor([math.inf]), torch.tensor([1.0]))
    with pytest.raises(InputError, match=r"values\[0\]=-1\.0"):
        bounds.lse_merge(torch.tensor([0.0]), torch.tensor([-1.0]))
    with pytest.raises(InputError, match=r"-log_a_neg.*=-0\.5"):
        bounds.one_sub_ratio(acc.log_a, torch.tensor(0.5, dtype=F64))
    with pytest.raises(InputError, match=r"errors\[0\]=inf"):
        bounds.total_variation_of_errors(HALF, torch.tensor([math.inf, 0.0]))


def test_inputs_with_gradients_are_read_only() -> None:
    p = torch.tensor([0.5, 0.5], dtype=F64, requires_grad=True)
    assert not bounds.accumulate(p, HALF).log_a.requires_grad
    assert not bounds.worst_case_tv(p, HALF).requires_grad
