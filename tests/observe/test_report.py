"""Numbers in a report: a printed bound is a bound, a share never reads as all or nothing when it is not."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from witcert.observe import report


@given(st.floats(min_value=1e-12, max_value=1.0))
def test_a_printed_bound_is_at_least_the_bound_and_close(x: float) -> None:
    printed = Decimal(report.bound(x))
    assert printed >= Decimal(x)
    assert printed <= Decimal(x) * Decimal("1.1")


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.11910000001, "0.12"), (0.1185, "0.119"), (0.125, "0.125"), (1.0, "1"), (0.0, "0"), (0.99991, "1")],
)
def test_examples(x: float, text: str) -> None:
    assert report.bound(x) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [(1.0, "100.0 %"), (0.99999, "> 99.9 %"), (0.0, "0.0 %"), (1e-6, "< 0.1 %"), (0.5, "50.0 %"), (None, "—")],
)
def test_shares(x: float | None, text: str) -> None:
    assert report.percent(x) == text


def test_numbers_that_are_not_there() -> None:
    for f in (report.number, report.bound, report.percent):
        assert f(math.nan) == "—"
        assert f(None) == "—"
    assert report.ratio(math.nan) == "—"
    assert report.whole(math.nan) == "—"
