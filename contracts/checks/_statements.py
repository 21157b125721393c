"""The bounds once more, from the mathematical statements and nothing else: a fourth implementation to compare with.

Exact fractions for the algebra where the inputs are fractions, the standard library's decimal arithmetic for exp, log and
square roots, no mpmath, no tensors, nothing of the package. Inputs are floats or fractions, taken exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from itertools import chain, combinations

CTX = Context(prec=130)
D = Decimal
Row = Sequence[float | Fraction]


def dec(x: float | Fraction) -> Decimal:
    """The exact value of a float or integer, a fraction to 130 digits."""
    return CTX.divide(D(x.numerator), D(x.denominator)) if isinstance(x, Fraction) else D(x)


def add(xs: Iterable[Decimal]) -> Decimal:
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


# ---- from stored numbers


def s_logits(q: Row, keys: Sequence[Row], sm: float) -> list[Fraction]:
    """sm q . k of every key, exactly."""
    row = [Fraction(x) for x in q]
    return [Fraction(sm) * sum((a * Fraction(b) for a, b in zip(row, key, strict=True)), Fraction(0)) for key in keys]


def s_weights(logits: Sequence[Fraction]) -> list[Fraction]:
    """Softmax weights relative to the largest, each to 130 digits."""
    top = max(logits)
    return [Fraction(exp(dec(x - top))) for x in logits]


def s_norm(x: Row) -> Decimal:
    """Euclidean norm."""
    return CTX.sqrt(dec(sum((Fraction(a) ** 2 for a in x), Fraction(0))))


def s_band_bound(q: Row, r: Row, bands: Sequence[int], sm: float) -> Decimal:
    """sm times the sum over bands of |q_b| |r_b|."""
    total = D(0)
    for b in sorted(set(bands)):
        members = [i for i, band in enumerate(bands) if band == b]
        total = CTX.add(total, mul(s_norm([q[i] for i in members]), s_norm([r[i] for i in members])))
    return mul(dec(Fraction(sm)), total)
