"""The checks of meters, merging, requests, repairs and outputs pass on the kernels and fail on wrong outputs.

A wrong kernel is made by wrapping the imported one: it shaves a number, loses tokens, mixes heads up. Each must raise a
Violation in the named check.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from contracts.checks import _cells, _statements, crosscheck, extend, output, repair, request, side
from contracts.checks._truth import attention
from contracts.discharge import CHECKS, Setting, Violation
from witcert.kernels.decode import PagePart, Reading
from witcert.kernels.formats import PageTable

# the interpreter's, on NaN and overflow
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REDUCED = Setting(DEVICE, interpreted=DEVICE.type == "cpu", full=False)
MODULES = ("meter", "extend", "merge", "request", "repair", "side", "crosscheck", "output")
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


def _next_row(real: Any) -> Any:
    return lambda k, v, slots, *a, **o: real(k, v, torch.where(slots >= 0, slots ^ 1, slots), *a, **o)


@pytest.mark.parametrize("wrong", [_next_row, lambda real: lambda *a, **k: None])
def test_rows_that_are_not_written_to_their_page_are_found(
    wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "write_exact", wrong(side.write_exact))
    with pytest.raises(Violation, match="not exact"):
        CHECKS["side.grown"].function(REDUCED)


def test_pages_that_neither_read_has_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = side.decode
    monkeypatch.setattr(side, "decode", lambda q, store, *a, **k: real(
        q, store, *a, **{**k, "part": PagePart(torch.ones_like(k["part"].parts), k["part"].index)}
    ))  # fmt: skip
    with pytest.raises(Violation):
        CHECKS["side.grown"].function(REDUCED)


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
