"""Adversarial cells and logits, and a referee that cannot overlook a violation.

Everything here is NumPy in extended precision, exact fractions or :mod:`witcert.golden`; none of it uses
``witcert.bounds``.

The referee. The quantity that is bounded is computed in extended precision together with a bound on the error of that
computation. A violation (bound < true) implies bound < computed + error, and every cell for which this holds is
recomputed at 50 digits (or exactly) and compared with zero tolerance; so are the cells that come closest. Where the
platform's ``longdouble`` is no wider than double, more cells are recomputed, none fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating]
WIDE = np.longdouble
UNIT = float(np.finfo(WIDE).eps)
RANGE = float(0.4 * np.log(np.finfo(WIDE).max))

TOKENS = (1, 2, 3, 4, 6, 8, 16, 32)
SEED = 20260731


@dataclass(frozen=True)
class Cells:
    """A batch of cells: served attention p, bounds c and logit errors |eps| <= c, each float64 [N, T]."""

    p: Real
    c: Real
    eps: Real

    def __len__(self) -> int:
        return len(self.p)

    def chunks(self, size: int = 8192) -> Iterator[Cells]:
        for i in range(0, len(self), size):
            yield Cells(self.p[i : i + size], self.c[i : i + size], self.eps[i : i + size])


# ---- served attention


def _normalize(x: Real) -> Real:
    return x / x.sum(-1, keepdims=True)


def _softmax(x: Real) -> Real:
    return _normalize(np.exp(x - x.max(-1, keepdims=True)))


def _spike(rng: np.random.Generator, n: int, t: int) -> Real:
    p = rng.random((n, t)) + 0.1
    p[np.arange(n), rng.integers(t, size=n)] = 10.0 ** rng.uniform(-30, -1, n)
    return _normalize(p)


def _with_zeros(rng: np.random.Generator, n: int, t: int) -> Real:
    p = rng.random((n, t)) * (rng.random((n, t)) < 0.6)
    p[np.arange(n), rng.integers(t, size=n)] += 0.5
    return _normalize(p)


def _sink(rng: np.random.Generator, n: int, t: int) -> Real:
    p = rng.random((n, t)) * 10.0 ** rng.uniform(-9, 0, (n, 1))
    p[:, 0] = 1.0
    return _normalize(p)


ATTENTION: dict[str, Callable[[np.random.Generator, int, int], Real]] = {
    "flat": lambda rng, n, t: np.full((n, t), 1.0 / t),
    "random": lambda rng, n, t: _normalize(rng.random((n, t)) + 1e-3),
    "soft": lambda rng, n, t: _softmax(rng.normal(size=(n, t)) * 3),
    "peaked": lambda rng, n, t: _softmax(rng.normal(size=(n, t)) * 20),
    "spike": _spike,
    "zeros": _with_zeros,
    "sink": _sink,
}


# ---- logit bounds


def _log_uniform(rng: np.random.Generator, lo: float, hi: float, shape: tuple[int, ...]) -> Real:
    return 10.0 ** rng.uniform(np.log10(lo), np.log10(hi), shape)


def _one_huge(rng: np.random.Generator, p: Real) -> Real:
    c = _log_uniform(rng, 1e-8, 1e-1, p.shape)
    c[np.arange(len(p)), p.argmin(-1)] = _log_uniform(rng, 1.0, 1e3, (len(p),))
    return c


BOUNDS: dict[str, Callable[[np.random.Generator, Real], Real]] = {
    "any": lambda rng, p: _log_uniform(rng, 1e-8, 1e3, p.shape),
    "equal": lambda rng, p: np.broadcast_to(_log_uniform(rng, 1e-8, 1e3, (len(p), 1)), p.shape).copy(),
    "scaled": lambda rng, p: _log_uniform(rng, 1e-8, 3.0, (len(p), 1)) * rng.random(p.shape),
    "moderate": lambda rng, p: _log_uniform(rng, 1e-2, 5.0, p.shape),
    "one huge on the smallest mass": _one_huge,
    "some exact": lambda rng, p: _log_uniform(rng, 1e-8, 10.0, p.shape) * (rng.random(p.shape) < 0.5),
}


# ---- logit errors


def worst_set(p: Real, c: Real) -> NDArray[np.bool_]:
    """The set S that makes p(S) - p~(S) largest: over all sets up to 6 tokens, else over thresholds in c and lone
    tokens."""
    tokens = p.shape[-1]
    order = np.argsort(c, axis=-1)
    mass, bound = np.take_along_axis(p, order, -1), np.minimum(np.take_along_axis(c, order, -1), 340.0)
    if tokens <= 6:
        sets = (np.arange(1 << tokens)[:, None] >> np.arange(tokens)) & 1
    else:
        suffixes = np.triu(np.ones((tokens, tokens), dtype=int))
        sets = np.concatenate((suffixes, 1 - suffixes, np.eye(tokens, dtype=int)))
    u, d = (mass * np.exp(bound)) @ sets.T, (mass * np.exp(-bound)) @ (1 - sets).T
    gain = u / (u + d) - mass @ sets.T
    chosen = sets[gain.argmax(-1)].astype(bool)
    result = np.empty_like(chosen)
    np.put_along_axis(result, order, chosen, -1)
    return result


def _lone(rng: np.random.Generator, p: Real, c: Real) -> Real:
    eps = c.copy()
    rows = np.arange(len(p)), rng.integers(p.shape[-1], size=len(p))
    eps[rows] = -c[rows]
    return eps


ERRORS: dict[str, Callable[[np.random.Generator, Real, Real], Real]] = {
    "worst": lambda rng, p, c: np.where(worst_set(p, c), -c, c),
    "signs": lambda rng, p, c: np.where(rng.random(c.shape) < 0.5, -c, c),
    "threshold": lambda rng, p, c: np.where(c >= np.median(c, axis=-1, keepdims=True), -c, c),
    "lone": _lone,
    "inside": lambda rng, p, c: c * rng.uniform(-1, 1, c.shape),
    "some zero": lambda rng, p, c: c * rng.integers(-1, 2, c.shape),
}


def cells(per_kind: int, seed: int = SEED) -> Iterator[Cells]:
    """``per_kind`` cells of every combination of attention, bounds and errors, for every number of tokens, and tight
    ones."""
    rng = np.random.default_rng(seed)
    for tokens in TOKENS:
        batch = []
        for attention, bound, error in product(ATTENTION.values(), BOUNDS.values(), ERRORS.values()):
            p = attention(rng, per_kind, tokens)
            c = bound(rng, p)
            batch.append((p, c, error(rng, p, c)))
        yield Cells(*(np.concatenate(x) for x in zip(*batch, strict=True)))
    yield tight_for_sharp(rng, 64 * per_kind)
    yield tight_for_tanh(rng, 64 * per_kind)


def tight_for_sharp(rng: np.random.Generator, n: int) -> Cells:
    """Two tokens that attain the sharp bound up to their small mass a: U = A - b, V = b for A <= 2, else U = V =
    A/2."""
    a = _log_uniform(rng, 1e-14, 1e-2, (n,))
    level = 1.0 + _log_uniform(rng, 1e-8, 1e2, (n,))
    b = 1.0 - a
    v = np.maximum(b, level / 2)
    c = np.stack((np.log((level - v) / a), np.log(v / b)), -1).clip(0.0)
    return Cells(np.stack((a, b), -1), c, np.stack((-c[:, 0], c[:, 1]), -1))


def tight_for_tanh(rng: np.random.Generator, n: int) -> Cells:
    """Two tokens of equal c, the first with the mass 1 / (1 + e^c) at which total variation is tanh(c / 2)."""
    c = _log_uniform(rng, 1e-8, 30.0, (n,))
    m = 1.0 / (1.0 + np.exp(c))
    return Cells(np.stack((m, 1.0 - m), -1), np.stack((c, c), -1), np.stack((-c, c), -1))


def true_variation(cell: Cells) -> tuple[Real, Real]:
    """Total variation caused by the errors, and a bound on the error of this computation, extended precision [N].

    Up to |eps| = 1: sum p |x - sum p x| / (2 Z) with x = e^-eps - 1, whose error is relative to sum p |x|. Beyond:
    p(S) - p~(S) on the set S where p exceeds p~, whose error is absolute, and grows with the exponents where they had
    to be shifted into range. T terms cost at most T + 8 roundings each.
    """
    p = cell.p.astype(WIDE)
    p = p / p.sum(-1, keepdims=True)
    minus = -cell.eps.astype(WIDE)
    widest = np.abs(cell.eps).max(-1)
    small = widest <= 1.0
    x = np.expm1(np.where(small[:, None], minus, 0.0))
    near = 0.5 * (p * np.abs(x - (p * x).sum(-1, keepdims=True))).sum(-1) / (p * (x + 1.0)).sum(-1)
    top = np.where(p > 0, minus, -np.inf).max(-1, keepdims=True)
    shift = np.where(np.abs(top) > RANGE, np.floor(top), 0.0)
    pw = np.where(p > 0, p * np.exp(np.where(p > 0, minus - shift, 0.0)), 0.0)
    z = pw.sum(-1, keepdims=True)
    inside = pw > z * p
    far = np.where(inside, pw, 0.0).sum(-1) / z[:, 0] - np.where(inside, p, 0.0).sum(-1)
    size = np.where(small, 8.0 * (p * np.abs(x)).sum(-1), 2.0 + np.where(shift[:, 0] != 0, widest, 0.0))
    return np.where(small, near, far), size * (4 * (p.shape[-1] + 8) * UNIT)


# ---- the referee


@dataclass
class Verdict:
    """What the referee found about one bound. ``cap``: a value that the bounded quantity never exceeds."""

    name: str
    cap: float = np.inf
    keep: int = 200
    seen: int = 0
    suspects: list[tuple[float, float, tuple[Real, ...]]] = field(default_factory=list)
    near: list[tuple[float, float, tuple[Real, ...]]] = field(default_factory=list)
    violations: int = 0
    settled: int = 0
    unsettled: int = 0
    closest: float = np.inf

    def add(self, bound: Real, computed: Real, error: Real, *inputs: Real) -> None:
        """Take in a batch: remember every cell that may be a violation and the ``keep`` closest ones."""
        assert not np.isnan(bound).any(), f"{self.name}: NaN"
        self.seen += len(bound)
        wide = bound.astype(WIDE)
        open_ = wide < self.cap
        positive = computed > 0
        distance = np.where(open_ & positive, (wide - computed) / np.where(positive, computed, 1.0), np.inf)
        suspect = open_ & (wide < computed + error)
        closest = np.argsort(distance)[: self.keep]

        def rows(chosen: NDArray[np.intp]) -> list[tuple[float, float, tuple[Real, ...]]]:
            return [(float(distance[i]), float(bound[i]), tuple(a[i] for a in inputs)) for i in chosen]

        self.suspects += rows(np.flatnonzero(suspect))
        self.near = sorted(self.near + rows(closest[~suspect[closest]]), key=lambda row: row[0])[: self.keep]

    def settle(self, exact: Callable[..., Any], limit: int = 20_000) -> Verdict:
        """Recompute what was remembered with ``exact`` and compare with zero tolerance."""
        self.suspects.sort(key=lambda row: row[0])
        for _, bound, inputs in self.suspects[:limit] + self.near:
            true = exact(*inputs)
            distance = type(true)(bound) - true
            self.settled += 1
            self.violations += distance < 0
            if true > 0:
                self.closest = min(self.closest, float(distance / true))
        self.unsettled = max(0, len(self.suspects) - limit)
        return self

    @property
    def sound(self) -> bool:
        return self.violations == 0 and self.unsettled == 0

    def line(self) -> str:
        return (
            f"{self.name:<18} {self.seen:>9,} cells  {self.violations:>5} violations  smallest distance "
            f"{self.closest:9.2e}  ({self.settled} settled exactly)"
        )
