"""Four implementations on what kernels wrote and reported: Triton, PyTorch, 50 digits, and the bare statements."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch

from contracts.checks import _statements as s
from contracts.checks._adversary import exact_pair, keys
from contracts.checks._bounds import Bounds, band_index, real_bounds, steps_of
from contracts.checks._cells import SMALL, run, value_of
from contracts.checks._stores import Case, exact_case, generator, normal, packed_case
from contracts.checks._truth import attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert import bounds, golden
from witcert.budget import Budget
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.decode.launch import Reading
from witcert.kernels.formats import Dither
from witcert.witness import Bands

SEED = 20261205
REFERENCE = 2e-14
"""How far above the 50-digit number the PyTorch reference may lie, relative: its allowance at 32 tokens."""


def _agree(what: str, mine: Any, theirs: Any) -> None:
    own = mp.mpf(str(mine))
    if not abs(own - theirs) <= mp.mpf(10) ** -40 * abs(theirs):
        raise Violation(f"{what}: the statements give {mp.nstr(own, 45)}, 50 digits give {mp.nstr(theirs, 45)}")


def _above(what: str, value: float, exact: Any, slack: float | None = None) -> float:
    """value >= exact, and above by no more than slack (relative); the distance."""
    if not mp.mpf(value) >= exact:
        raise Violation(f"{what}: {value!r} is below {mp.nstr(exact, 25)}")
    if slack is not None and not mp.mpf(value) <= exact * (1 + mp.mpf(slack)):
        raise Violation(f"{what}: {value!r} is far above {mp.nstr(exact, 25)}")
    return float(mp.mpf(value) - exact)


def _token_bounds(real: Bounds, cell: int) -> list[Fraction]:
    """c of every token by the statements, from stored numbers alone."""
    case = real.truth.case
    n, head = divmod(cell, case.q.shape[1])
    h, member = divmod(head, case.group)
    seen = case.visible()[n]
    q = [Fraction(x) for x in real.truth.q[n, h, member].tolist()]
    if isinstance(real.meter, BandMeter):
        assert case.bands is not None
        index = case.bands.index.tolist()
        pairs = zip(real.truth.k_hat[n, h][seen].tolist(), real.truth.k[n, h][seen].tolist(), strict=True)
        residuals = [[Fraction(a) - Fraction(b) for a, b in zip(*pair, strict=True)] for pair in pairs]
        return [Fraction(s.s_band_bound(q, r, index, case.scale)) for r in residuals]
    rows = steps_of(real.truth)[n, h][seen].tolist()
    half = [s.s_half_step(q, row, case.scale) for row in rows]
    if isinstance(real.meter, HalfStepMeter):
        return [Fraction(x) for x in half]
    budget, tokens = real.meter.budget, real.meter.tokens
    if real.reading == 0:
        radius = [s.s_adaptive(q, row, case.scale, budget.delta_adaptive(tokens), 256) for row in rows]
    else:
        radius = [s.s_subgaussian(q, row, case.scale, tokens, budget.delta_loc, 256) for row in rows]
    return [Fraction(min(a, b)) for a, b in zip(half, radius, strict=True)]


def _cell(what: str, reading: Reading, real: Bounds, cell: int) -> float:
    """All four on one cell; the smallest distance of the kernel from the 50-digit numbers."""
    truth, case = real.truth, real.truth.case
    n, head = divmod(cell, case.q.shape[1])
    h, member = divmod(head, case.group)
    seen = case.visible()[n]
    found, c = truth[cell], real.exact(cell)
    q = truth.q[n, h, member].tolist()
    bad, good = (s.s_logits(q, x[n, h][seen].tolist(), case.scale) for x in (truth.k_hat, truth.k))
    weights, eps = s.s_weights(bad), [a - b for a, b in zip(bad, good, strict=True)]
    mine = _token_bounds(real, cell)
    for a, b in zip(mine, c, strict=True):
        _agree(f"{what}, c", s.dec(a), b)
    _agree(f"{what}, total variation", s.tv_by_set(weights, eps), found.tv)
    _agree(f"{what}, A", s.big_a(weights, mine), golden.acert(found.p, c))
    _agree(f"{what}, meter", s.s_meter(weights, mine), golden.meter(found.p, c))
    for name in ("eform", "sharp", "one_sub_ratio", "two_sided", "retention"):
        _agree(f"{what}, {name}", getattr(s, f"s_{name}")(weights, mine), getattr(golden, name)(found.p, c))
    _agree(f"{what}, tanh_half", s.s_tanh_half(weights, mine), golden.tanh_half(c))

    # PyTorch and 50 digits on the same floats
    p_f, c_f = ([float(x) for x in row] for row in (found.p, c))
    sums = bounds.accumulate(torch.tensor(p_f, dtype=torch.float64), torch.tensor(c_f, dtype=torch.float64))
    _above(f"{what}, PyTorch log A", float(sums.log_a), mp.log(golden.acert(p_f, c_f)), REFERENCE)
    _above(f"{what}, PyTorch -log A-", -float(sums.log_a_neg), -mp.log(golden.acert_neg(p_f, c_f)), REFERENCE)
    _above(f"{what}, PyTorch meter", float(bounds.meter(sums.log_a, sums.c_max)), golden.meter(p_f, c_f), REFERENCE)

    meter = float(value_of(reading).flatten()[cell])
    _above(f"{what}, kernel log A", float(reading.log_a.flatten()[cell]), mp.log(golden.acert(found.p, c)))
    _above(f"{what}, kernel C", float(reading.c_max.flatten()[cell]), golden.c_max(c))
    _above(f"{what}, kernel meter and total variation", meter, found.tv)
    return _above(f"{what}, kernel meter", meter, golden.meter(found.p, c))


def _cases(g: torch.Generator, setting: Setting) -> list[tuple[str, Case, BandMeter | HalfStepMeter | TierBMeter]]:
    n, size, heads, group = (1, 12, 2, 16) if setting.full else (1, 6, 1, 2)
    lens = torch.full((n,), size, device=g.device)
    bands = Bands(64)
    index = band_index(bands, g.device)
    made = [exact_pair(g, kind, n, size, heads, group, 64, torch.float16, index) for kind in ("worst", "random")]
    k = keys(g, "normal", n, size, heads, 64, torch.float16)
    q = normal(g, n, heads * group, 64).half()
    budget = Budget(2, heads * group, heads)
    return [
        ("worst signs", exact_case(g, *made[0], k, lens, bands=bands), BandMeter()),
        ("noise", exact_case(g, *made[1], k, lens, bands=bands), BandMeter()),
        ("rounded to nearest", packed_case(g, q, k, k, lens), HalfStepMeter()),
        ("dithered", packed_case(g, q, k, k, lens, dither=Dither(SEED, 4, values=False)), TierBMeter(budget, 64)),
    ]


@discharges("meter_sound.conclusion", "meter_sound.h_max", "tv_le_sharp.conclusion", "tv_le_tanh_half.conclusion",
            "band_cauchy_schwarz.conclusion", "half_step.conclusion")  # fmt: skip
def four_ways(setting: Setting) -> Outcome:
    """Statements and 50 digits agree to 40 digits, PyTorch lies above by rounding alone, the kernel is never below."""
    g, cells, least = generator(setting.device, SEED), 0, math.inf
    for name, case, meter in _cases(g, setting):
        got, truth = run(case, meter, SMALL), attention(case)
        for reading, real in zip(got.readings, real_bounds(truth, meter), strict=True):
            for cell in range(0, case.q.shape[1], 3 if setting.full else 1):
                least = min(least, _cell(f"{name}, {truth.place(cell)}", reading, real, cell))
                cells += 1
    note = "per cell: 13 quantities to 40 digits, 3 by PyTorch, 4 by the kernel"
    return Outcome(20 * cells, (SEED,), least, "kernel's meter minus the meter of the real bounds, 50 digits", cells, note)
