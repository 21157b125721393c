"""The golden reference against closed forms that were worked out by hand, and its promise of 50 digits."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from witcert import golden
from witcert.golden import Number, mp

TIGHT = mp.mpf(10) ** -golden.DIGITS


def same(a: Number, b: Number) -> bool:
    return bool(abs(a - b) <= TIGHT * max(abs(a), abs(b)))


def test_a_context_of_its_own() -> None:
    """The precision of the rest of the process is neither used nor changed."""
    import mpmath

    assert mp is not mpmath.mp
    assert mpmath.mp.dps == 15
    assert mp.dps == golden.DIGITS + golden.GUARD


def test_numbers_are_exact() -> None:
    assert golden.number(0.1) == mp.mpf(3602879701896397) / 2**55
    assert golden.number(Fraction(1, 3)) * 3 == 1
    assert sum(golden.normalized([0.1, 0.2, 0.7])) == 1


def test_two_equal_tokens() -> None:
    """p~ = (1/2, 1/2), eps = (c, -c): p = (e^-c, e^c) / 2 cosh c, so TV = tanh(c) / 2, which is also the worst case."""
    for c in (1e-8, 0.1, 1.0, 20.0):
        expected = mp.tanh(c) / 2
        assert same(golden.total_variation_of_errors([0.5, 0.5], [c, -c]), expected)
        assert same(golden.worst_case_tv([0.5, 0.5], [c, c]), expected)


def test_equal_bounds() -> None:
    """With all c_t = c: A = e^c, A- = e^-c, and every form is a function of c alone."""
    p = [0.1, 0.2, 0.3, 0.4]
    for c in (1e-6, 0.1, 0.6, 0.7, 3.0):
        cs, e = [c] * 4, mp.exp(c)
        assert same(golden.acert(p, cs), e)
        assert same(golden.acert_neg(p, cs), 1 / e)
        assert same(golden.eform(p, cs), (e**2 - 1) / 2)
        assert same(golden.sharp(p, cs), 1 - 1 / e if e <= 2 else e**2 / (e**2 + 4))
        assert same(golden.tanh_half(cs), mp.tanh(golden.number(c) / 2))
        assert same(golden.one_sub_ratio(p, cs), 1 - mp.exp(-2 * golden.number(c)))
        assert same(golden.two_sided(p, cs), mp.sinh(2 * golden.number(c)))
        assert same(golden.retention(p, cs), (mp.exp(2 * golden.number(c)) - 1) / 2)


def test_the_sharp_bound_is_reached() -> None:
    """``sharp_is_optimal``: two tokens of mass a -> 0 and b = 1 - a come within a of it, for A on both sides of 2."""
    for level in (1.001, 1.5, 2.0, 3.0, 50.0):
        for a in (1e-3, 1e-9, 1e-15):
            b = 1 - mp.mpf(a)
            v = max(b, mp.mpf(level) / 2)
            c = [mp.log((level - v) / a), mp.log(v / b)]
            tv = golden.total_variation_of_errors([a, b], [-c[0], c[1]])
            bound = golden.sharp([a, b], c)
            assert same(golden.acert([a, b], c), mp.mpf(level))
            assert 0 <= bound - tv <= 2 * a


def test_sharp_is_continuous_and_below_its_second_form() -> None:
    c = [mp.log(2)]
    assert same(golden.sharp([1], [c[0]]), mp.mpf(1) / 2)
    for level in (1.1, 1.9, 1.999):
        assert golden.sharp([1], [mp.log(level)]) <= level**2 / (level**2 + 4)


def test_page_in_by_hand() -> None:
    """p~ = (1/4, 3/4), c = (log 2, log 3); repairing the second: N = 1/2, M = 1/4, y = 1/4, so 3/2."""
    c = [mp.log(2), mp.log(3)]
    assert same(golden.page_in_bound([0.25, 0.75], c, [False, True]), mp.mpf(3) / 2)
    assert same(golden.page_in_bound([0.25, 0.75], c, [True, True]), mp.mpf(1))
    assert same(golden.page_in_bound([0.25, 0.75], c, [False, False]), golden.acert([0.25, 0.75], c))


def test_merge_by_hand() -> None:
    """Masses 1 and 3, averages 2 and 4: 14/4."""
    assert same(golden.lse_merge([0, mp.log(3)], [2, 4]), mp.mpf(7) / 2)


def test_logit_bounds_by_hand() -> None:
    q, r, step = [3.0, -4.0], [0.5, 0.25], [2.0, 1.0]
    assert golden.half_step(q, step, 0.5) == mp.mpf(5) / 2
    assert golden.band_bound([3.0, 4.0], [0.5, 0.25], 2.0) == 5
    assert same(golden.scaled_cs(q, r, step, 1.0), mp.sqrt(52) * mp.sqrt(mp.mpf(1) / 8))
    assert golden.scaled_cs([3.0, -4.0], [0.5, 0.0], [2.0, 0.0], 1.0) == mp.mpf(3) / 2
    assert same(golden.proxy(q, step, 1.0), mp.mpf(52) / 12)
    assert golden.dither_bias(q, step, 1.0, 5) == 1
    assert same(golden.adaptive_radius(q, step, 1.0, delta=0, levels=5), mp.sqrt(26) + 1)
    kappa_sq = 2 + mp.sqrt(9 * mp.log(2))
    assert same(golden.adaptive_radius(q, step, 1.0, delta=0.5, levels=5), mp.sqrt(kappa_sq * 52 / 12) + 1)
    assert golden.adaptive_radius(q, step, 1.0, delta=1e-9) == golden.adaptive_radius(q, step, 1.0, delta=0)
    expected = mp.sqrt(mp.mpf(52) / 6 * mp.log(80)) + 1
    assert same(golden.subgaussian_radius(q, step, 1.0, tokens=10, delta_loc=0.25, levels=5), expected)
    assert golden.output_bound(0.25, 2.0, [0.5, 0.5], [1.0, 3.0]) == 3


FORMS: dict[str, Callable[[list[float], list[float]], Number]] = {
    "eform": golden.eform,
    "sharp": golden.sharp,
    "one_sub_ratio": golden.one_sub_ratio,
    "two_sided": golden.two_sided,
    "retention": golden.retention,
    "tanh_half": lambda p, c: golden.tanh_half(c),
    "worst_case_tv": golden.worst_case_tv,
}


@pytest.mark.parametrize("name", FORMS)
def test_fifty_digits_are_correct(name: str) -> None:
    """Doubling the working precision changes nothing in the first 50 digits, for bounds down to 1e-16."""
    rng = random.Random(3)
    for _ in range(20):
        p = [rng.random() for _ in range(4)]
        c = [10.0 ** rng.uniform(-16, 1) for _ in range(4)]
        normal = FORMS[name](p, c)
        with mp.workdps(4 * mp.dps):
            precise = FORMS[name](p, c)
        assert same(normal, precise)


def test_order_of_the_bounds() -> None:
    """sharp <= eform, one_sub_ratio <= two_sided, retention <= both aggregates, worst case below all of them."""
    rng = random.Random(4)
    for _ in range(200):
        p = [rng.random() ** 4 for _ in range(4)]
        c = [10.0 ** rng.uniform(-4, 1) for _ in range(4)]
        assert golden.sharp(p, c) <= golden.eform(p, c)
        assert golden.one_sub_ratio(p, c) <= golden.two_sided(p, c)
        assert golden.retention(p, c) <= min(golden.eform(p, c), golden.two_sided(p, c))
        assert golden.tanh_half(c) <= golden.tanh_rival(c) <= 2 * golden.tanh_half(c)
        assert golden.worst_case_tv(p, c) <= min(f(p, c) for f in FORMS.values())
