"""The kernel's meter against 50-digit arithmetic on the stored bits: never below, with zero tolerance.

Two quantities are recomputed for each cell. The truth: the total variation between attention over the exact keys and over
the served keys, both as real numbers. The bound: the meter of real-number bounds (band norms of the true residual, half a
step, the radius of the dither's law) under the real served weights.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from witcert import golden
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, HalfStepMeter, Tuning, decode
from witcert.kernels.decode.launch import Meter
from witcert.kernels.decode.reference import outlier_mask, served_keys, steps
from witcert.kernels.formats import GROUP, ExactStore, PackedStore, PageTable
from witcert.schemes.grid import STEP
from witcert.witness import Bands

from .build import Case
from .common import BUDGET, DEVICE, make


def dots(q: Tensor, keys: Tensor) -> list[Fraction]:
    """Exact q . k of each row; every number is a double."""
    row = [Fraction(x) for x in q.double().tolist()]
    return [sum((a * Fraction(b) for a, b in zip(row, key, strict=True)), Fraction(0)) for key in keys.double().tolist()]


def real_bounds(
    case: Case, meter: Meter, exact: Tensor, served: Tensor, slots: Tensor, head: int, q: Tensor
) -> list[list[object]]:
    """c_t of each reading as real numbers."""
    d = q.shape[-1]
    scale = mp.mpf(case.scale)
    absolute = [abs(x) for x in q.double().tolist()]
    if isinstance(meter, BandMeter):
        bands = Bands(d, 16 if case.store.witness is None else case.store.witness.shape[-1]).index.tolist()
        rows = []
        for r in (served - exact).tolist():
            total = mp.mpf(0)
            for b in sorted(set(bands)):
                members = [c for c in range(d) if bands[c] == b]
                total += golden.norm([absolute[c] for c in members]) * golden.norm([r[c] for c in members])
            rows.append(scale * total)
        return [rows]
    assert isinstance(case.store, PackedStore)
    mask = outlier_mask(case.store)[head]
    step = (steps(case.store, slots)[:, head] / STEP).tolist()
    half = [golden.half_step(absolute, s, scale) for s in step]
    if isinstance(meter, HalfStepMeter):
        return [half]
    kept = [c for c in range(d) if not bool(mask[c])]
    q_kept = [absolute[c] for c in kept]
    s_kept = [[s[c] for c in kept] for s in step]
    delta_token = BUDGET.delta_adaptive(meter.tokens)
    adaptive = [golden.adaptive_radius(q_kept, s, scale, delta=delta_token) for s in s_kept]
    tight = [
        golden.subgaussian_radius(q_kept, s, scale, tokens=meter.tokens, delta_loc=BUDGET.delta_loc) for s in s_kept
    ]
    return [[min(a, b) for a, b in zip(half, x, strict=True)] for x in (adaptive, tight)]


def check(case: Case, meter: Meter, tuning: Tuning) -> float:
    """Compare every cell; returns the least excess of a reading over the truth."""
    got = decode(case.q, case.store, case.table, scale=case.scale, meter=meter, tuning=tuning)
    group = case.q.shape[1] // case.k.shape[1]
    least = 1.0
    for b in range(case.table.batch):
        there = case.table.slots(b)
        slots = there.cpu()
        served = served_keys(case.store, there).cpu()
        exact = case.k[slots].double()
        for h in range(case.q.shape[1]):
            q, head = case.q[b, h].cpu(), h // group
            scale = Fraction(case.scale)
            good = [golden.number(x * scale) for x in dots(q, exact[:, head])]
            bad = [golden.number(x * scale) for x in dots(q, served[:, head])]
            top = max(bad)
            p = [mp.exp(x - top) for x in bad]
            truth = golden.total_variation_of_errors(p, [y - x for x, y in zip(good, bad, strict=True)])
            every = real_bounds(case, meter, exact[:, head], served[:, head], there, head, q)
            for i, c in enumerate(every):
                reading = golden.number(float(torch.as_tensor(got.readings[i].meter.value)[b, h]))
                assert reading >= truth, (b, h, i, float(reading - truth))
                wanted = golden.meter(p, c)
                assert reading >= wanted, (b, h, i, float(reading - wanted))
                assert golden.number(float(got.readings[i].log_a[b, h])) >= mp.log(golden.acert(p, c))
                assert golden.number(float(got.readings[i].c_max[b, h])) >= golden.c_max(c)
                least = min(least, float(reading - truth))
    return least


VARIANTS = [
    "exact-band",
    "exact-band8-bf16",
    "int8-half",
    "int8-band",
    "dither-half",
    "dither-m2-tierB",
    "dither-m16-bf16-tierB",
]


@pytest.mark.parametrize("kind", ["normal", "massive", "flat", "tiny"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_never_below_the_golden_meter(variant: str, kind: str) -> None:
    case, meter = make(variant, [19, 1], 1, 2, 64, 1, kind)
    assert meter is not None
    check(case, meter, Tuning(16, splits=2))


def test_bfloat16_outliers_that_float16_cannot_hold() -> None:
    """An outlier channel is stored as float16: a bfloat16 key of 1e-6 loses up to 2^-25, which a query of 3e4 shows."""
    case, meter = make("dither-m16-bf16-tierB", [19, 5], 1, 2, 64, 1, "tiny")
    assert meter is not None
    assert isinstance(case.store, PackedStore)
    mask = outlier_mask(case.store)[0].cpu()
    lost = served_keys(case.store, case.table.slots(0)).cpu()[:, 0] - case.k[case.table.slots(0).cpu()][:, 0].double()
    assert float(lost[:, mask].abs().max()) > 2.0**-26  # otherwise this test would show nothing
    for h in range(2):
        # the query sees outlier channels only, along the loss of one token: no other term of the bound can pay for it
        case.q[:, h] = torch.where(mask, 3e4 * torch.sign(lost[3 * h]), 0.0).to(case.q.dtype)
    check(case, meter, Tuning(16, splits=2))


def worst_query(case: Case, head: int, token: int) -> Tensor:
    """The query along which the residual of one token is as large as half a step allows: the residual's signs."""
    slots = case.table.slots(0)
    r = served_keys(case.store, slots).cpu()[token, head] - case.k[slots.cpu()][token, head].double()
    return torch.sign(r)


@pytest.mark.parametrize("variant", ["int8-half", "exact-band", "dither-half"])
@pytest.mark.parametrize("size", [1.0, 8.0, 2.0**-10])
def test_queries_along_the_residual(variant: str, size: float) -> None:
    """An adaptive adversary: each query is aligned with the residual of the heaviest token."""
    case, meter = make(variant, [12], 1, 2, 64, 1)
    assert meter is not None
    for h in range(2):
        case.q[0, h] = (worst_query(case, 0, h) * size).to(case.q.dtype)
    assert check(case, meter, Tuning(16, splits=1)) >= 0


def test_residuals_of_exactly_half_a_step() -> None:
    """Keys halfway between codes: the half-step bound is attained up to the arithmetic."""
    case, meter = make("int8-half", [9], 1, 1, 64, 1)
    assert meter is not None
    assert isinstance(case.store, PackedStore)
    slots = case.table.slots(0)
    sign = torch.where(torch.rand(len(slots), 1, 64) < 0.5, -1.0, 1.0).double()
    step = (steps(case.store, slots) / STEP).cpu()
    case.k = case.k.double()
    case.k[slots.cpu()] = served_keys(case.store, slots).cpu() - sign * step / 2
    case.q[0, 0] = sign[0, 0].to(case.q.dtype)
    assert check(case, meter, Tuning(16, splits=1)) >= 0
    assert step.shape[-1] % GROUP == 0


@pytest.mark.parametrize("splits", [1, 3])
def test_a_rescale_that_vanishes_keeps_the_bounds(splits: int) -> None:
    """A later token 127.5 log 2 above the first, whose bound of 126 log 2 nearly makes up for it: TV up to 0.26."""
    d, log2e = 64, 1.4426950408889634
    k = torch.zeros(64, 1, d, dtype=torch.float16)
    w = torch.zeros(64, 1, 16, dtype=torch.float16)
    q = torch.zeros(1, 1, d, dtype=torch.float16, device=DEVICE)
    q[0, 0, 0] = 1.0
    k[:, 0, 0] = -2000.0
    k[0, 0, 0], w[0, 0, 0] = 0.0, 126 / log2e
    k[40, 0, 0] = 127.5 / log2e
    pages = torch.arange(64, dtype=torch.int32, device=DEVICE)[None]
    table = PageTable(pages, torch.tensor([48], dtype=torch.int32, device=DEVICE), 1)
    store = ExactStore(k.to(DEVICE), torch.zeros_like(k).to(DEVICE), w.to(DEVICE))
    got = decode(q, store, table, scale=1.0, meter=BandMeter(), tuning=Tuning(16, splits=splits))
    served, exact = mp.mpf(float(k[40, 0, 0])), mp.mpf(float(w[0, 0, 0]))  # logits; the first token's exact one is w
    p_served = [1 / (1 + mp.exp(served)), 1 / (1 + mp.exp(-served))]
    p_exact = [1 / (1 + mp.exp(served - exact)), 1 / (1 + mp.exp(exact - served))]
    truth = abs(p_served[0] - p_exact[0])
    assert truth > 0.25
    assert golden.number(float(torch.as_tensor(got.readings[0].meter.value))) >= truth
