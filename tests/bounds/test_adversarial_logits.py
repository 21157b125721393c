"""Adversarial logits, page-ins and outputs: residuals chosen against the bound, 500,000 of each, zero tolerance.

The same referee as in ``tests/test_certificates.py``; what may be a violation and what comes closest is settled in
exact fractions (square roots by comparing squares).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.adversary import SEED, UNIT, WIDE, Cells, Real, Verdict, cells
from witcert import bounds, golden

pytestmark = pytest.mark.slow

TOKENS = 500_000
CHUNK = 20_000
BANDS = 4


def logits(seed: int = SEED) -> Iterator[tuple[Real, Real, Real, float]]:
    """Batches of query [N, 1, d], residual [N, 1, d], step [N, 1, d] with |r| <= step / 2, and a scale.

    Residuals: random, against the query's signs at full step (tight for ``half_step``), parallel to the query band by
    band (tight for ``band_bound``), parallel to s^2 q (tight for ``scaled_cs``); channels that are exactly 0; sizes
    1e-12 to 1e6.
    """
    rng = np.random.default_rng(seed)
    for i in range(TOKENS // CHUNK):
        d = (4, 8, 16, 32)[i % 4]
        q = rng.normal(size=(CHUNK, 1, d)) * 10.0 ** rng.uniform(-6, 3, (CHUNK, 1, 1))
        q *= rng.random(q.shape) < 0.9
        step = 10.0 ** rng.uniform(-6, 3, (CHUNK, 1, 1)) * rng.uniform(0.1, 1.0, q.shape)
        step *= rng.random(q.shape) < 0.9
        signed = np.where(q >= 0, 0.5 * step, -0.5 * step)
        parallel = step**2 * q
        parallel *= np.where(parallel != 0, 0.5 * step / np.where(parallel != 0, np.abs(parallel), 1.0), 1.0).min(
            -1, keepdims=True, where=parallel != 0, initial=1.0
        )
        smallest = np.where(step > 0, step, 1e3).min(-1, keepdims=True)
        along = np.where(step > 0, q, 0.0) * smallest / (2 * np.abs(q).max(-1, keepdims=True) + 1e-300)
        kind = rng.integers(4, size=(CHUNK, 1, 1))
        r = np.choose(kind, (step * rng.uniform(-0.5, 0.5, q.shape), signed, parallel, along))
        yield q, np.clip(r, -0.5 * step, 0.5 * step), step, float(10.0 ** rng.uniform(-2, 0))


def upper_norms(x: Real) -> Real:
    """Band norms [..., B], each at least the real norm."""
    wide = x.astype(WIDE).reshape(*x.shape[:-1], BANDS, -1)
    norm = np.sqrt((wide**2).sum(-1)).astype(float)
    return np.where(norm > 0, np.nextafter(norm * (1 + 4e-16), np.inf), 0.0)


def exact_logit(q: Real, r: Real, scale: Real) -> Fraction:
    """|scale q . r| of the floats, exactly."""
    dot = sum((Fraction(a) * Fraction(b) for a, b in zip(q.tolist(), r.tolist(), strict=True)), Fraction(0))
    return abs(dot) * Fraction(float(scale))


@pytest.fixture(scope="module")
def logit_verdicts() -> dict[str, Verdict]:
    names = ("band_bound", "half_step", "scaled_cs", "adaptive_radius_det")
    verdicts = {name: Verdict(name) for name in names}
    for q, r, step, scale in logits():
        product = q[:, 0].astype(WIDE) * r[:, 0].astype(WIDE)
        true = np.abs(product.sum(-1)) * WIDE(scale)
        error = np.abs(product).sum(-1) * WIDE(scale) * ((q.shape[-1] + 4) * UNIT)
        q_t, r_t, s_t = torch.from_numpy(q[:, 0]), torch.from_numpy(r), torch.from_numpy(step)
        norms = torch.from_numpy(upper_norms(q[:, 0])), torch.from_numpy(upper_norms(r))
        values = {
            "band_bound": bounds.band_bound(*norms, scale),
            "half_step": bounds.half_step(q_t, s_t, scale),
            "scaled_cs": bounds.scaled_cs(q_t, r_t, s_t, scale),
            "adaptive_radius_det": bounds.adaptive_radius(q_t, s_t, scale, delta=0.0, levels=1 << 40),
        }
        scales = np.full(len(q), scale)
        for name, value in values.items():
            verdicts[name].add(value[:, 0].numpy(), true, error, q[:, 0], r[:, 0], scales)
    return {name: v.settle(exact_logit) for name, v in verdicts.items()}


@pytest.mark.parametrize("name", ["band_bound", "half_step", "scaled_cs", "adaptive_radius_det"])
def test_no_residual_exceeds_the_bound(logit_verdicts: dict[str, Verdict], name: str) -> None:
    verdict = logit_verdicts[name]
    print("\n" + verdict.line())
    assert verdict.seen >= 500_000
    assert verdict.sound
    assert verdict.closest < (0.2 if name == "adaptive_radius_det" else 1e-13), "the suite stays far from the bound"


# ---- page-in: A after the repair, exactly


def page_in_truth(p: Real, c: Real, eps: Real, repaired: Real) -> golden.Number:
    weights = golden.normalized(p.tolist())
    kept = [
        w * golden.mp.exp(-golden.number(e)) if gone else w
        for w, e, gone in zip(weights, eps.tolist(), repaired.tolist(), strict=True)
    ]
    return golden.acert(kept, [0.0 if gone else x for x, gone in zip(c.tolist(), repaired.tolist(), strict=True)]) - 1


def test_page_in_bound_covers_every_repair() -> None:
    """A' - 1 after a page-in, with errors eps = c on the repaired tokens in half of the cells, where the bound is
    tight."""
    rng = np.random.default_rng(SEED)
    verdict = Verdict("page_in_bound")
    with np.errstate(over="ignore"):
        for batch in cells(256):
            for cell in batch.chunks():
                _add_page_in(verdict, cell, rng)
    verdict.settle(lambda *args: page_in_truth(*args))
    print("\n" + verdict.line())
    assert verdict.seen >= 500_000
    assert verdict.sound
    assert verdict.closest < 1e-13


def _add_page_in(verdict: Verdict, cell: Cells, rng: np.random.Generator) -> None:
    gone = rng.random(cell.c.shape) < 0.5
    c = np.minimum(cell.c, 300.0)
    eps = np.where(rng.random((len(c), 1)) < 0.5, c, cell.eps.clip(-c, c))
    p = cell.p.astype(WIDE)
    weight = np.where(gone, p * np.exp(-eps.astype(WIDE)), p)
    true = np.where(gone, 0.0, p * np.expm1(c.astype(WIDE))).sum(-1) / weight.sum(-1)
    log_a = bounds.page_in_log_a(torch.from_numpy(cell.p), torch.from_numpy(c), torch.from_numpy(gone))
    excess = np.nextafter(np.expm1(log_a.numpy().astype(WIDE)), WIDE(np.inf)).astype(float)
    excess = np.where(log_a.numpy() > 0, np.nextafter(excess, np.inf), excess)
    verdict.add(excess, true, true * (2 * (p.shape[-1] + 8) * UNIT), cell.p, c, eps, gone)


def test_subtracting_the_mass_is_too_small() -> None:
    """The estimate A - p~(J)(e^u - 1), which keeps p~ fixed, can be below A after the page-in."""
    p, c, gone, eps = [0.5, 0.5], [1.0, 1.0], [True, False], [1.0, -1.0]
    after = page_in_truth(np.array(p), np.array(c), np.array(eps), np.array(gone)) + 1
    estimate = golden.acert(p, c) - golden.number(0.5) * (golden.mp.e - 1)
    assert estimate < after <= golden.page_in_bound(p, c, gone)
    bound = bounds.page_in_bound(torch.tensor(p).double(), torch.tensor(c).double(), torch.tensor(gone))
    assert bound.item() >= after


# ---- output


def test_output_bound_covers_every_output() -> None:
    """y - y_hat for values and value residuals chosen against it, with TV at its true value."""
    rng = np.random.default_rng(SEED)
    verdict = Verdict("output_bound")
    for i in range(25):
        tokens, d = (1, 2, 4, 8, 16)[i % 5], (1, 2, 3)[i % 3]
        shape = (20_000, tokens)
        p_hat = (rng.random(shape) ** 8 + 1e-9).astype(WIDE)
        p = p_hat * np.exp(rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1, (20_000, 1)))
        p_hat, p = p_hat / p_hat.sum(-1, keepdims=True), p / p.sum(-1, keepdims=True)
        toward = np.where(p > p_hat, 1.0, -1.0)[..., None] * np.eye(d)[0]
        v = np.where(rng.random((20_000, 1, 1)) < 0.5, toward, rng.normal(size=(*shape, d)))
        step = -np.abs(rng.normal(size=shape))[..., None] * np.eye(d)[0]
        p_float = p_hat.astype(float)
        wide = p_float.astype(WIDE)
        wide = wide / wide.sum(-1, keepdims=True)
        y = (p[..., None] * v).sum(-2) - (wide[..., None] * (v.astype(WIDE) + step)).sum(-2)
        true = np.sqrt((y**2).sum(-1))
        tv = 0.5 * np.abs(p - wide).sum(-1)
        radius = np.sqrt((v.astype(WIDE) ** 2).sum(-1)).max(-1)
        up = [np.nextafter(x.astype(float), np.inf) for x in (tv, radius)]
        value = bounds.output_bound(*(torch.from_numpy(x) for x in (*up, p_float, -step[..., 0])))
        verdict.add(value.numpy(), true, true * (8 * (tokens + d + 8) * UNIT), true)
    assert verdict.seen >= 500_000
    assert not verdict.suspects, "the bound is within the computation's own error of the output"
    verdict.settle(lambda true: WIDE(true))
    print("\n" + verdict.line())
    assert verdict.closest < 1e-12
