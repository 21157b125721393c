"""The checks of meters, merging, requests, repairs and outputs pass on the kernels and fail on wrong outputs.

A wrong kernel is made by wrapping the imported one: it shaves a number, loses tokens, mixes heads up. Each must raise a
Violation in the named check. The truth that checks compare with is itself compared with 50 digits.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.checks import _adversary, _cells, _statements, crosscheck, extend, meter, output, repair, request
from contracts.checks._bounds import band_index, real_bounds
from contracts.checks._referee import Referee
from contracts.checks._stores import exact_case, generator, normal, packed_case
from contracts.checks._truth import Interval, attention, integer_dots
from contracts.discharge import CHECKS, Setting, Violation
from witcert.budget import Budget
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, HalfStepMeter, Reading, TierBMeter
from witcert.kernels.formats import Dither, PageTable
from witcert.witness import Bands

# the interpreter's, on NaN and overflow
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REDUCED = Setting(DEVICE, interpreted=DEVICE.type == "cpu", full=False)
MODULES = ("meter", "extend", "merge", "request", "repair", "crosscheck", "output")
NAMES = [name for name in sorted(CHECKS) if name.split(".")[0] in MODULES]


@pytest.mark.parametrize("name", NAMES)
def test_passes(name: str) -> None:
    outcome = CHECKS[name].function(REDUCED)
    assert outcome.cases >= outcome.cells
    assert outcome.unit


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_passes_in_full(name: str) -> None:
    assert CHECKS[name].function(Setting(DEVICE, interpreted=False, full=True)).cases >= 4


def test_every_obligation_is_there() -> None:
    held = {o for name in NAMES for o in CHECKS[name].obligations}
    assert {f"meter_sound.{h}" for h in ("h_bound", "h_max", "h_exact", "conclusion")} <= held
    forms = ("sharp", "eform", "tanh_half", "tanh_rival", "one_sub_ratio", "two_sided", "retention")
    assert {f"tv_le_{form}.conclusion" for form in forms} <= held
    for theorem in ("tierB_request_sound", "tierB_adaptive_sound", "tierB_adaptive_det_sound"):
        hypotheses = ("h_arith", "h_bound", "h_acert", "h_max", "h_radius", "h_cap", "conclusion")
        assert {f"{theorem}.{h}" for h in hypotheses} <= held
    assert {f"ratio_envelope.{h}" for h in ("h_num_term", "h_den_term", "h_num_sum", "h_den_sum", "conclusion")} <= held
    assert {
        "arith_fold.h_arith", "dispersion_bound_unsound.conclusion", "lse_merge.h_part", "lse_merge.conclusion",
        "blockwise_eq_perToken.h_const", "blockwise_eq_perToken.conclusion", "request_union.h_token",
        "request_union.conclusion", "adaptive_radius.h_radius", "adaptive_radius.conclusion", "page_in_bound.h_bound",
        "page_in_bound.conclusion", "page_in_naive_unsound.conclusion", "repair_exact.h_repaired",
        "repair_exact.conclusion", "output_bound.h_value", "output_bound.h_value_error", "output_bound.conclusion",
    } <= held  # fmt: skip


# ---- wrong kernels


def changed(reading: Reading, meter: float = 1.0, log_a: float = 1.0, c_max: float = 1.0) -> Reading:
    """A reading with each number multiplied."""
    return Reading(reading.meter.map(lambda x: x * meter), reading.log_a * log_a, reading.c_max * c_max)


def shave(**factors: float) -> Callable[..., Any]:
    """The readings of a kernel, multiplied."""
    return lambda real: lambda *a, **k: (
        lambda got: replace(got, readings=tuple(changed(r, **factors) for r in got.readings))
    )(real(*a, **k))


def altered(change: Callable[..., tuple[Any, ...]], **keywords: Any) -> Callable[..., Any]:
    """Decode on other arguments (q, store, table)."""
    return lambda real: lambda q, store, table, **k: real(*change(q, store, table), **(k | keywords))


def fewer(q: Any, store: Any, table: PageTable) -> tuple[Any, ...]:
    return q, store, PageTable(table.pages, (table.seq_lens - 1).clamp_min(0), table.page_size)


def other_page(q: Any, store: Any, table: PageTable) -> tuple[Any, ...]:
    pages = table.pages.clone()
    pages[0, 0] = pages[-1, 0]
    return q, store, PageTable(pages, table.seq_lens, table.page_size)


def mixed_heads(q: Any, store: Any, table: PageTable) -> tuple[Any, ...]:
    return q.roll(1, 1).contiguous(), store, table


def lost_split(real: Any) -> Any:
    """The last split of a sequence is not merged."""

    def wrong(q: Any, store: Any, table: PageTable, **k: Any) -> Any:
        splits = k["tuning"].splits
        each = -(-table.max_tokens // splits)
        kept = table.seq_lens.clamp_max(each * (splits - 1)) if splits > 1 else table.seq_lens
        return real(q, store, PageTable(table.pages, kept, table.page_size), **k)

    return wrong


def no_envelope(real: Any) -> Any:
    return lambda *a, **k: (
        lambda got: replace(
            got, readings=tuple(Reading(r.meter, (r.log_a - 3e-5).clamp_min(0.0), r.c_max) for r in got.readings)
        )
    )(real(*a, **k))


def swapped_readings(real: Any) -> Any:
    """The non-adaptive numbers under the adaptive label."""

    def wrong(*a: Any, **k: Any) -> Any:
        got = real(*a, **k)
        if len(got.readings) < 2:
            return got
        loose, tight = got.readings
        return replace(got, readings=(Reading(loose.meter.map(lambda _: torch.as_tensor(tight.meter.value)),
                                              tight.log_a, tight.c_max), tight))  # fmt: skip

    return wrong


def certain(real: Any) -> Any:
    """A meter that is never 1."""
    return lambda *a, **k: (
        lambda got: replace(
            got, readings=tuple(Reading(r.meter.map(lambda x: x.clamp_max(0.99)), r.log_a, r.c_max) for r in got.readings)
        )
    )(real(*a, **k))


def louder(real: Any) -> Any:
    return lambda *a, **k: (lambda got: replace(got, out=got.out * 1.05))(real(*a, **k))


def without(name: str) -> Callable[..., Any]:
    """Decode that ignores an option."""
    return lambda real: lambda *a, **k: real(*a, **(k | {name: None}))


def wider(real: Any) -> Any:
    return lambda *a, **k: real(*a, **(k | ({"window": k["window"] + 1} if k.get("window") else {})))


def unscaled(real: Any) -> Any:
    return lambda *a, **k: real(*a, **(k | {"scale": 1.0}))


def counted_twice(real: Any) -> Any:
    return lambda *a, **k: real(*a, **(k | {"own": True}))


WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "meter shaved": ("meter.tier_a", shave(meter=0.97)),
    "log A shaved": ("meter.tier_a", shave(log_a=0.98)),
    "C shaved": ("meter.tier_a", shave(c_max=0.995)),
    "log A in base 2": ("meter.half_step", shave(log_a=1 / math.log(2.0) - 1)),
    "C in base e": ("meter.tier_b", shave(c_max=math.log(2.0))),
    "arithmetic not paid for": ("meter.one_token", shave(c_max=0.99)),
    "a token lost": ("meter.tier_a", altered(fewer)),
    "a stale page": ("meter.tier_a", altered(other_page)),
    "heads mixed up": ("meter.tier_a", altered(mixed_heads)),
    "scale forgotten": ("meter.tier_a", unscaled),
    "no launch constant": ("meter.envelope", no_envelope),
    "NaN certified": ("meter.no_claim", certain),
    "no soft cap": ("meter.options", without("softcap")),
    "no sink": ("meter.options", without("sinks")),
    "window off by one": ("meter.options", wider),
    "the unsound formula's size": ("meter.dispersion", shave(meter=0.13)),
    "a split lost": ("merge.partition", lost_split),
    "a split lost, meters": ("merge.splits", lost_split),
    "the smaller C of a block": ("merge.blocks", shave(c_max=0.5)),
    "token errors above the bound": ("request.token_share", shave(c_max=0.1)),
    "cells above the meter": ("request.failures", shave(meter=1e-3)),
    "non-adaptive under the adaptive label": ("request.adaptive", swapped_readings),
    "deterministic, shaved": ("request.deterministic", shave(meter=0.6, c_max=0.6, log_a=0.6)),
    "not the prediction": ("repair.prediction", shave(log_a=0.5, meter=0.5)),
    "loose after a repair": ("repair.exact", shave(meter=3.0)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_decode_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = WRONG[what]
    monkeypatch.setattr(_cells, "decode", wrong(_cells.decode))
    with pytest.raises(Violation):
        CHECKS[name].function(REDUCED)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("extend.tier_a", shave(meter=0.7)), ("extend.tier_a", shave(c_max=0.95)), ("extend.packed", shave(log_a=0.5)),
        ("extend.options", without("window")), ("extend.options", without("softcap")), ("extend.options", without("sinks")),
        ("extend.vanished", shave(meter=0.01)), ("extend.no_claim", certain), ("extend.two_parts", shave(log_a=0.5)),
        ("extend.two_parts", counted_twice), ("extend.two_parts", without("part")),
    ],
)  # fmt: skip
def test_a_wrong_extend_is_found(name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extend, "extend", wrong(extend.extend))
    with pytest.raises(Violation):
        CHECKS[name].function(REDUCED)


def test_a_wrong_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cells, "decode", louder(_cells.decode))
    with pytest.raises(Violation, match="output"):
        output.error_of_output(REDUCED)


def test_a_meter_too_small_for_the_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "STEP", 0.2)
    with pytest.raises(Violation, match="value error"):
        output.error_of_output(REDUCED)


def _zeroed(real: Any) -> Any:
    """Pages in zeros in place of the backing store's keys."""

    def wrong(host: Any, rows: Any, store: Any, slots: Any, **k: Any) -> None:
        real(replace(host, k=torch.zeros_like(host.k)), rows, store, slots, **k)

    return wrong


@pytest.mark.parametrize("wrong", [_zeroed, lambda real: lambda *a, **k: None])
def test_a_wrong_page_in_is_found(wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "page_in", wrong(repair.page_in))
    for check in (repair.prediction, repair.exact):
        with pytest.raises(Violation):
            check(REDUCED)


def test_a_page_in_that_leaves_its_witness_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = repair.page_in

    def wrong(host: Any, rows: Any, store: Any, slots: Any, **k: Any) -> None:
        kept = store.witness.clone()
        real(host, rows, store, slots, **k)
        store.witness.copy_(kept)

    monkeypatch.setattr(repair, "page_in", wrong)
    with pytest.raises(Violation):
        repair.exact(REDUCED)


def test_a_read_back_that_sees_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "page_in_mismatches", lambda *a, **k: torch.zeros(1))
    with pytest.raises(Violation, match="one wrong bit"):
        repair.exact(REDUCED)


def test_an_attack_that_breaks_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    real = request._attack

    def tame(g: torch.Generator, setting: Setting, seed: int) -> Any:
        case, _ = real(g, setting, seed)
        case = replace(case, q=case.q * 0)
        return case, attention(case)

    monkeypatch.setattr(request, "_attack", tame)
    with pytest.raises(Violation, match="shows nothing"):
        request.adaptive(REDUCED)


@pytest.mark.parametrize("name", ["s_sharp", "s_half_step", "tv_by_set"])
def test_a_wrong_statement_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(_statements, name)
    monkeypatch.setattr(_statements, name, lambda *a: real(*a) * (1 + _statements.D("1e-30")))
    with pytest.raises(Violation, match="the statements give"):
        crosscheck.four_ways(REDUCED)


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
