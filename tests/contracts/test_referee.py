"""What the checks compare with: intervals around the truth, the 50 digits that decide, the statements, the binomial law."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.checks import _adversary, _statements, meter, request
from contracts.checks._bounds import band_index, real_bounds
from contracts.checks._referee import Referee
from contracts.checks._stores import exact_case, generator, normal, packed_case
from contracts.checks._truth import Interval, attention, integer_dots
from contracts.discharge import Violation
from witcert.budget import Budget
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.formats import Dither
from witcert.witness import Bands

# the interpreter's, on NaN and overflow
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# ---- the truth


@pytest.mark.parametrize("kind", _adversary.EXACT_KINDS)
@pytest.mark.parametrize("options", [{}, {"window": 5, "softcap": 3.0, "sinks": True}])
def test_intervals_hold_the_exact_numbers(kind: str, options: dict[str, Any]) -> None:
    """Total variation, C, log A and the meter of real bounds, of every cell, against 50 digits."""
    g = generator(DEVICE, 11)
    for dtype in (torch.bfloat16 if options else torch.float16,):
        bands = Bands(64)
        made = _adversary.exact_pair(g, kind, 3, 7, 1, 2, 64, dtype, band_index(bands, g.device))
        case = exact_case(g, *made, made[1], torch.tensor([7, 1, 0], device=g.device), bands=bands)
        sinks = normal(g, 2).float() if options.get("sinks") else None
        case = replace(case, window=options.get("window"), softcap=options.get("softcap"), sinks=sinks)
        truth = attention(case)
        real = real_bounds(truth, BandMeter())[0]
        wanted = ((truth.tv, truth.exact_tv), (real.c_max, real.exact_c_max), (real.log_a, real.exact_log_a),
                  (real.meter_value, real.exact_meter))  # fmt: skip
        for interval, exact in wanted:
            for cell in range(6):
                low, high = float(interval.low[cell]), float(interval.high[cell])
                value = exact(cell)
                assert mp.mpf(low) <= value, (kind, cell, low, value)
                assert math.isinf(high) or value <= mp.mpf(high), (kind, cell, high, value)
        if kind not in ("extreme", "massive"):
            assert float((truth.tv.high - truth.tv.low).max()) < 1e-12


def test_packed_intervals_hold_the_exact_numbers() -> None:
    g = generator(DEVICE, 12)
    for dither, meter_ in ((None, HalfStepMeter()), (Dither(5, 6), TierBMeter(Budget(2, 2, 1), 64))):
        k = _adversary.keys(g, "massive", 2, 7, 1, 64, torch.float16)
        case = packed_case(g, normal(g, 2, 2, 64).half(), k, k, torch.tensor([7, 2], device=g.device), dither=dither)
        truth = attention(case)
        for real in real_bounds(truth, meter_):
            for interval, exact in ((truth.tv, truth.exact_tv), (real.c_max, real.exact_c_max), (real.log_a, real.exact_log_a)):
                for cell in range(4):
                    assert mp.mpf(float(interval.low[cell])) <= exact(cell) <= mp.mpf(float(interval.high[cell]))


def test_integer_dots_are_exact() -> None:
    g = generator(DEVICE, 13)
    q = normal(g, 40).half().double()
    rows = torch.cat([normal(g, 5, 40).half().double(), torch.full((1, 40), 2.0**-133, device=g.device).double()])
    rows[0, 3] = 3e38
    for row, value in zip(rows.tolist(), integer_dots(q, rows), strict=True):
        true = sum((Fraction(a) * Fraction(b) for a, b in zip(q.tolist(), row, strict=True)), Fraction(0))
        assert abs(value - mp.mpf(true.numerator) / true.denominator) <= abs(value) * mp.mpf(2) ** -300
    assert integer_dots(q, rows[:0]) == []


# ---- the referee


def _claim(referee: Referee, value: list[float], low: list[float], high: list[float], true: list[float], **k: Any) -> None:
    tensors = [torch.tensor(x, dtype=torch.float64) for x in (value, low, high)]
    referee.claim("x", tensors[0], Interval(*tensors[1:]), lambda i: mp.mpf(true[i]), str, **k)


def test_what_is_open_is_decided_at_50_digits() -> None:
    referee = Referee()
    _claim(referee, [0.5, 0.5], [0.4, 0.4], [0.6, 0.6], [0.5, 0.1], margin=True)
    assert referee.settled == 2
    assert referee.margin == 0.0
    with pytest.raises(Violation, match="is below"):
        _claim(Referee(), [0.5], [0.4], [0.6], [math.nextafter(0.5, 1.0)])


@pytest.mark.parametrize("value", [math.nan, -math.inf, -1.0])
def test_what_is_no_bound_is_a_violation(value: float) -> None:
    with pytest.raises(Violation):
        _claim(Referee(), [value], [0.0], [0.0], [0.0])


def test_a_value_at_its_cap_holds_whatever_the_interval() -> None:
    _claim(Referee(), [1.0], [0.0], [1.5], [2.0], cap=1.0)


def test_too_many_open_cells_are_a_violation() -> None:
    with pytest.raises(Violation, match="at most 3"):
        _claim(Referee(limit=3), [0.5] * 4, [0.4] * 4, [0.6] * 4, [0.5] * 4)


def test_open_cells_that_nothing_can_decide_are_a_violation() -> None:
    with pytest.raises(Violation):
        Referee().claim("x", torch.tensor([0.5]), Interval(torch.tensor([0.4]), torch.tensor([0.6])), None, str)


def test_values_of_another_shape_are_a_violation() -> None:
    with pytest.raises(Violation, match="values for"):
        Referee().claim("x", torch.zeros(2), Interval(torch.zeros(3), torch.zeros(3)), None, str)


def test_no_distance_is_no_outcome() -> None:
    with pytest.raises(Violation, match="above 0"):
        Referee().outcome(1)


# ---- the statements and the binomial law


def test_the_statements_import_nothing_of_the_package() -> None:
    tree = ast.parse(Path(_statements.__file__).read_text(encoding="utf-8"))
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Import)]
    assert names <= {"__future__", "collections.abc", "decimal", "fractions", "itertools"}


@pytest.mark.parametrize(("trials", "failures"), [(5, 0), (5, 1), (20, 3), (40, 40)])
@pytest.mark.parametrize("rate", [Fraction(1, 20), Fraction(3, 10)])
def test_tail_is_the_binomial_law(trials: int, failures: int, rate: Fraction) -> None:
    exact = sum(math.comb(trials, i) * rate**i * (1 - rate) ** (trials - i) for i in range(failures, trials + 1))
    assert request.tail(trials, failures, float(rate)) == pytest.approx(float(exact), rel=1e-12)


def test_upper_limit_inverts_the_tail() -> None:
    assert request.upper_limit(1000, 0) == pytest.approx(1 - request.CONFIDENCE ** (1 / 1000), rel=1e-9)
    limit = request.upper_limit(200, 4)
    assert 1 - request.tail(200, 5, limit) == pytest.approx(request.CONFIDENCE, rel=1e-6)


def test_too_many_failures_are_a_violation() -> None:
    request._within("x", 30, 100, 0.3)
    with pytest.raises(Violation, match="was promised"):
        request._within("x", 60, 100, 0.3)


def test_the_option_table_reaches_every_option() -> None:
    columns = list(zip(*meter.OPTIONS, strict=True))
    assert {64, 128, 256} == set(columns[2])
    assert {1, 16} <= set(columns[4])
    assert {1, 16} == set(columns[5])
    assert {0, 2, 4, 8, 16} == set(columns[6])
    assert {"half", "adjacent"} == set(columns[8])
