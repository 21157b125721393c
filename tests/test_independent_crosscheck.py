"""A fourth implementation, from the statements alone, against the other two.

``contracts.checks._statements`` is written from the mathematical statements and nothing else. It must agree with
``witcert.golden`` to 40 digits, and ``witcert.bounds`` must lie above golden by no more than double rounding; the check
``crosscheck`` of the contract layer makes the same comparisons on what kernels wrote and reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

from contracts.checks._statements import (
    Row,
    big_a,
    s_adaptive,
    s_dispersion,
    s_eform,
    s_half_step,
    s_meter,
    s_one_sub_ratio,
    s_page_in,
    s_retention,
    s_scaled_cs,
    s_sharp,
    s_subgaussian,
    s_tanh_half,
    s_tanh_rival,
    s_two_sided,
    s_worst_case,
    tv_by_set,
)

# ---- inputs


Cell = tuple[Row, Row, Row]


def _draw_cell(kind: str, rng: random.Random) -> Cell:
    tokens = 1 if kind == "one token" else rng.randint(2, 9)
    p = [rng.random() + 1e-3 for _ in range(tokens)]
    c = [10.0 ** rng.uniform(-8, 1) for _ in range(tokens)]
    if kind == "peaked":
        p = [10.0 ** rng.uniform(-12, 0) for _ in range(tokens)]
        p[0] = 1.0
    elif kind == "flat":
        p = [1.0] * tokens
    elif kind == "massive":
        p[-1] = 10.0 ** rng.uniform(-30, -3)
        c[-1] = 10.0 ** rng.uniform(1, 3)
    elif kind == "equal c":
        c = [c[0]] * tokens
    elif kind == "tiny c":
        c = [x * 1e-8 for x in c]
    total = sum(p)
    eps = [rng.choice((-x, x, x * rng.uniform(-1, 1))) for x in c]
    return [x / total for x in p], c, eps


KINDS = ("random", "peaked", "flat", "massive", "one token", "equal c", "tiny c")


def draw(kind: str, count: int) -> list[Cell]:
    rng = random.Random(f"witcert {kind}")
    return [_draw_cell(kind, rng) for _ in range(count)]


# ---- the comparisons; only from here on is the package imported


def agree_to_40_digits(mine: Decimal, theirs: object) -> None:
    from witcert import golden

    own = golden.mp.mpf(str(mine))
    assert abs(own - theirs) <= golden.mp.mpf(10) ** -40 * abs(own), f"{mine} and {theirs}"


STATEMENTS: dict[str, Callable[[Row, Row], Decimal]] = {
    "eform": s_eform,
    "sharp": s_sharp,
    "tanh_half": s_tanh_half,
    "tanh_rival": s_tanh_rival,
    "one_sub_ratio": s_one_sub_ratio,
    "two_sided": s_two_sided,
    "retention": s_retention,
    "meter": s_meter,
    "dispersion_unsound": s_dispersion,
    "acert": big_a,
    "acert_neg": lambda p, c: big_a(p, c, -1),
}


def golden_value(name: str, p: Row, c: Row) -> object:
    from witcert import golden

    function = getattr(golden, name)
    return function(c) if name.startswith("tanh") else function(p, c)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_and_golden_agree_to_40_digits(name: str, kind: str) -> None:
    for p, c, _ in draw(kind, 25):
        agree_to_40_digits(STATEMENTS[name](p, c), golden_value(name, p, c))


@pytest.mark.parametrize("kind", KINDS)
def test_total_variation_agrees_to_40_digits_and_no_statement_is_below_it(kind: str) -> None:
    from witcert import golden

    for p, c, eps in draw(kind, 25):
        true = tv_by_set(p, eps)
        agree_to_40_digits(true, golden.total_variation_of_errors(p, eps))
        for name in ("eform", "sharp", "tanh_half", "tanh_rival", "one_sub_ratio", "two_sided", "retention", "meter"):
            assert STATEMENTS[name](p, c) >= true, name


@pytest.mark.parametrize("kind", KINDS)
def test_worst_case_and_page_in_agree_to_40_digits(kind: str) -> None:
    from witcert import golden

    rng = random.Random(7)
    for p, c, _ in draw(kind, 25):
        gone = [rng.random() < 0.5 for _ in p]
        agree_to_40_digits(s_page_in(p, c, gone), golden.page_in_bound(p, c, gone))
        if len(p) <= 5:
            agree_to_40_digits(s_worst_case(p, c), golden.worst_case_tv(p, c))


def draw_logits(count: int) -> Iterator[tuple[Row, Row, Row, float]]:
    rng = random.Random("witcert logits")
    for _ in range(count):
        d = rng.choice((1, 2, 8, 32))
        q = [rng.gauss(0, 1) * 10 ** rng.uniform(-2, 2) for _ in range(d)]
        step = [10 ** rng.uniform(-6, 1) for _ in range(d)]
        yield q, [s * rng.uniform(-0.5, 0.5) for s in step], step, rng.uniform(0.01, 1.0)


def test_logit_bounds_agree_to_40_digits() -> None:
    from witcert import golden

    for q, r, step, sm in draw_logits(60):
        agree_to_40_digits(s_half_step(q, step, sm), golden.half_step(q, step, sm))
        agree_to_40_digits(s_scaled_cs(q, r, step, sm), golden.scaled_cs(q, r, step, sm))
        for delta in (1e-2, 1e-9, 0.7):
            expected = golden.subgaussian_radius(q, step, sm, tokens=4096, delta_loc=delta, levels=256)
            agree_to_40_digits(s_subgaussian(q, step, sm, 4096, delta, 256), expected)
            expected = golden.adaptive_radius(q, step, sm, delta=delta, levels=16)
            agree_to_40_digits(s_adaptive(q, step, sm, delta, 16), expected)
        agree_to_40_digits(s_adaptive(q, step, sm, 0.0, 16), golden.adaptive_radius(q, step, sm, delta=0.0, levels=16))


# ---- golden and the PyTorch reference


SLACK = 2e-14
"""How far above golden a float64 bound may lie, relative: the largest allowance of witcert.bounds at 32 tokens."""


def just_above(value: float, exact: object, what: str) -> None:
    from witcert import golden

    own = golden.mp.mpf(value)
    assert own >= exact, f"{what}: {value!r} is below {exact}"
    assert own <= exact * (1 + golden.mp.mpf(SLACK)), f"{what}: {value!r} is far above {exact}"


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_lies_above_golden_by_no_more_than_rounding(kind: str) -> None:
    import torch

    from witcert import bounds, golden

    for p, c, eps in draw(kind, 60):
        p_t, c_t = torch.tensor(p, dtype=torch.float64), torch.tensor(c, dtype=torch.float64)
        acc = bounds.accumulate(p_t, c_t)
        values = {
            "eform": bounds.eform(acc.log_a),
            "sharp": bounds.sharp(acc.log_a),
            "tanh_half": bounds.tanh_half(acc.c_max),
            "tanh_rival": bounds.tanh_rival(acc.c_max),
            "one_sub_ratio": bounds.one_sub_ratio(acc.log_a, acc.log_a_neg),
            "two_sided": bounds.two_sided(acc.log_a, acc.log_a_neg),
            "retention": bounds.retention(p_t, c_t),
            "meter": bounds.meter(acc.log_a, acc.c_max),
        }
        for name, value in values.items():
            just_above(value.item(), min(golden.mp.mpf(1), golden_value(name, p, c)), name)
        just_above(acc.log_a.item(), golden.mp.log(golden.acert(p, c)), "log A")
        just_above(-acc.log_a_neg.item(), -golden.mp.log(golden.acert_neg(p, c)), "-log A-")
        lower = bounds.total_variation_of_errors(p_t, torch.tensor(eps, dtype=torch.float64)).item()
        assert lower <= golden.total_variation_of_errors(p, eps)


def test_pytorch_logit_bounds_lie_above_golden_by_no_more_than_rounding() -> None:
    import torch

    from witcert import bounds, golden

    for q, r, step, sm in draw_logits(60):
        q_t, r_t, s_t = (torch.tensor(x, dtype=torch.float64) for x in (q, [r], [step]))
        just_above(bounds.half_step(q_t, s_t, sm).item(), golden.half_step(q, step, sm), "half_step")
        just_above(bounds.scaled_cs(q_t, r_t, s_t, sm).item(), golden.scaled_cs(q, r, step, sm), "scaled_cs")
        norms = torch.tensor([step], dtype=torch.float64)
        just_above(bounds.band_bound(q_t.abs(), norms, sm).item(), 2 * golden.half_step(q, step, sm), "band_bound")
        for delta in (1e-2, 1e-9, 0.7):
            value = bounds.subgaussian_radius(q_t, s_t, sm, tokens=4096, delta_loc=delta).item()
            just_above(value, golden.subgaussian_radius(q, step, sm, tokens=4096, delta_loc=delta), "subgaussian")
            value = bounds.adaptive_radius(q_t, s_t, sm, delta=delta).item()
            just_above(value, golden.adaptive_radius(q, step, sm, delta=delta), "adaptive")
