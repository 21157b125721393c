"""A fourth implementation, from the statements alone, against the other two.

The first part is written from the mathematical statements and nothing else: exact fractions for the algebra where the
inputs are fractions, the standard library's decimal arithmetic for exp, log and square roots, no mpmath, nothing of
the package. It must agree with ``witcert.golden`` to 40 digits, and ``witcert.bounds`` must lie above golden by no
more than double rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from fractions import Fraction
from itertools import chain, combinations

import pytest

# ---- the statements


CTX = Context(prec=130)
D = Decimal
Row = list[float]


def dec(x: float | int | Fraction) -> Decimal:
    """The exact value of a float or integer, a fraction to 130 digits."""
    return CTX.divide(D(x.numerator), D(x.denominator)) if isinstance(x, Fraction) else D(x)


def add(xs: Iterator[Decimal] | list[Decimal]) -> Decimal:
    total = D(0)
    for x in xs:
        total = CTX.add(total, x)
    return total


def mul(*xs: Decimal) -> Decimal:
    out = D(1)
    for x in xs:
        out = CTX.multiply(out, x)
    return out


def div(a: Decimal, b: Decimal) -> Decimal:
    return CTX.divide(a, b)


def sub(a: Decimal, b: Decimal) -> Decimal:
    return CTX.subtract(a, b)


def exp(x: Decimal) -> Decimal:
    return CTX.exp(x)


def served(p: Row) -> list[Decimal]:
    """The distribution that the weights p stand for: exact fractions of their exact sum."""
    total = sum((Fraction(x) for x in p), Fraction(0))
    return [dec(Fraction(x) / total) for x in p]


def tv_by_set(p: Row, eps: Row) -> Decimal:
    """TV = p(S) - p~(S) on the set S where exact attention p_t = p~_t e^-eps_t / Z exceeds served attention p~."""
    pt = served(p)
    tilted = [mul(a, exp(dec(-e))) for a, e in zip(pt, eps, strict=True)]
    z = add(tilted)
    gains = [sub(div(w, z), a) for a, w in zip(pt, tilted, strict=True)]
    return add([g for g in gains if g > 0])


def big_a(p: Row, c: Row, sign: int = 1) -> Decimal:
    """A = sum p~ e^c, and A- with sign -1."""
    return add([mul(a, exp(dec(sign * x))) for a, x in zip(served(p), c, strict=True)])


def s_eform(p: Row, c: Row) -> Decimal:
    a = big_a(p, c)
    return div(mul(sub(a, D(1)), CTX.add(a, D(1))), D(2))


def s_sharp(p: Row, c: Row) -> Decimal:
    a = big_a(p, c)
    if a <= 2:
        return div(sub(a, D(1)), a)
    return div(D(1), CTX.add(D(1), mul(div(D(2), a), div(D(2), a))))


def s_tanh_half(p: Row, c: Row) -> Decimal:
    half = exp(div(dec(max(c)), D(2)))
    return div(sub(half, div(D(1), half)), CTX.add(half, div(D(1), half)))


def s_tanh_rival(p: Row, c: Row) -> Decimal:
    e = exp(dec(2 * Fraction(max(c))))
    return div(sub(e, D(1)), CTX.add(e, D(1)))


def s_one_sub_ratio(p: Row, c: Row) -> Decimal:
    a = big_a(p, c)
    return div(sub(a, big_a(p, c, -1)), a)


def s_two_sided(p: Row, c: Row) -> Decimal:
    a, b = big_a(p, c), big_a(p, c, -1)
    return div(mul(sub(a, b), CTX.add(a, b)), mul(D(2), a, b))


def s_retention(p: Row, c: Row) -> Decimal:
    a, b = big_a(p, c), big_a(p, c, -1)
    terms = []
    for w, x in zip(served(p), c, strict=True):
        one_sided = sub(mul(a, exp(dec(x))), D(1))
        above, below = sub(div(exp(dec(x)), b), D(1)), sub(D(1), div(exp(dec(-x)), a))
        terms.append(mul(w, min(one_sided, max(above, below))))
    return div(add(terms), D(2))


def s_meter(p: Row, c: Row) -> Decimal:
    return min(s_sharp(p, c), s_tanh_half(p, c))


def s_worst_case(p: Row, c: Row) -> Decimal:
    """max over sets S of U / (U + D) - p~(S), U = sum_S p~ e^c, D = sum over the rest of p~ e^-c."""
    pt, best = served(p), D(0)
    tokens = range(len(p))
    for chosen in chain.from_iterable(combinations(tokens, k) for k in range(1, len(p))):
        u = add([mul(pt[t], exp(dec(c[t]))) for t in chosen])
        d = add([mul(pt[t], exp(dec(-c[t]))) for t in tokens if t not in chosen])
        best = max(best, sub(div(u, CTX.add(u, d)), add([pt[t] for t in chosen])))
    return best


def s_page_in(p: Row, c: Row, gone: list[bool]) -> Decimal:
    pt = served(p)
    n = add([mul(a, exp(dec(x))) for a, x, g in zip(pt, c, gone, strict=True) if not g])
    y = add([mul(a, exp(dec(-x))) for a, x, g in zip(pt, c, gone, strict=True) if g])
    m = sub(D(1), add([a for a, g in zip(pt, gone, strict=True) if g]))
    return div(CTX.add(n, y), CTX.add(m, y))


def s_dispersion(p: Row, c: Row) -> Decimal:
    pt, cs = served(p), [dec(x) for x in c]
    mean = add([mul(a, x) for a, x in zip(pt, cs, strict=True)])
    spread = add([mul(a, CTX.abs(sub(x, mean))) for a, x in zip(pt, cs, strict=True)])
    top = max(cs)
    return div(mul(exp(mul(D(2), top)), CTX.add(spread, mul(mean, sub(exp(top), D(1))))), D(2))


def s_half_step(q: Row, step: Row, sm: float) -> Decimal:
    return dec(Fraction(sm) / 2 * sum(abs(Fraction(a)) * Fraction(s) for a, s in zip(q, step, strict=True)))


def s_bias(q: Row, step: Row, sm: float, n: int) -> Decimal:
    return div(s_half_step(q, step, sm), D(n))


def s_energy(q: Row, step: Row) -> Fraction:
    return sum(((Fraction(a) * Fraction(s)) ** 2 for a, s in zip(q, step, strict=True)), Fraction(0))


def s_scaled_cs(q: Row, r: Row, step: Row, sm: float) -> Decimal:
    ratio = sum(((Fraction(x) / Fraction(s)) ** 2 for x, s in zip(r, step, strict=True)), Fraction(0))
    return CTX.sqrt(dec(Fraction(sm) ** 2 * s_energy(q, step) * ratio))


def s_subgaussian(q: Row, step: Row, sm: float, tokens: int, delta: float, n: int) -> Decimal:
    log = CTX.ln(dec(2 * tokens / Fraction(delta)))
    variance = dec(Fraction(sm) ** 2 * s_energy(q, step) / 12)
    return CTX.add(CTX.sqrt(mul(D(2), variance, log)), s_bias(q, step, sm, n))


def s_adaptive(q: Row, step: Row, sm: float, delta: float, n: int) -> Decimal:
    d = len(q)
    kappa_sq = D(3 * d)
    if delta:
        kappa_sq = min(kappa_sq, CTX.add(D(d), CTX.sqrt(mul(dec(Fraction(9 * d, 2)), CTX.minus(CTX.ln(dec(delta)))))))
    variance = dec(Fraction(sm) ** 2 * s_energy(q, step) / 12)
    return CTX.add(CTX.sqrt(mul(kappa_sq, variance)), s_bias(q, step, sm, n))


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
