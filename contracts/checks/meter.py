"""The meter of decode against the total variation that it bounds, cell by cell, for every store and every meter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from contracts.checks._adversary import EXACT_KINDS, KEY_KINDS, along, exact_pair, halfway_keys, keys, ragged
from contracts.checks._bounds import arithmetic, band_index, real_bounds
from contracts.checks._cells import judge, lse_is_served, run, value_of, with_queries
from contracts.checks._referee import Referee
from contracts.checks._stores import (
    Case,
    dither_numbers,
    exact_case,
    generator,
    normal,
    outlier_channels,
    packed_case,
    page_table,
    uniform,
)
from contracts.checks._truth import Interval, attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert import bounds
from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter, Tuning
from witcert.kernels.formats import Dither, ExactStore, PackedStore
from witcert.witness import Bands

SEED = 20261130
HALF, BF16 = torch.float16, torch.bfloat16
BUDGET = Budget(layers=4, heads=32, kv_heads=2, steps=64)


def _shape(setting: Setting) -> tuple[int, int, int]:
    """Sequences, KV heads and query heads per KV head of one batch of small cells."""
    return (24576, 2, 16) if setting.full else (2, 1, 2)


def _sizes(setting: Setting) -> tuple[int, ...]:
    return (16, 16, 32, 64, 128) if setting.full else (9,)


@discharges(
    "meter_sound.h_bound", "meter_sound.h_max", "meter_sound.h_exact", "meter_sound.conclusion", "tv_le_sharp.conclusion",
    "tv_le_eform.conclusion", "tv_le_tanh_half.conclusion", "tv_le_tanh_rival.conclusion",
    "tv_le_one_sub_ratio.conclusion", "tv_le_two_sided.conclusion", "tv_le_retention.conclusion",
    "tierA_sound_computed.conclusion",
)  # fmt: skip
def tier_a(setting: Setting) -> Outcome:
    """Band-norm meter of exact stores >= TV in every cell; residuals along the query, worst signs, extreme numbers."""
    referee, g = Referee(), generator(setting.device, SEED)
    n, heads, group = _shape(setting)
    for size in _sizes(setting):
        for dtype in (HALF, BF16):
            for kind in EXACT_KINDS:
                # few variants of the kernel: compiling one takes seconds, and ``options`` has the others
                bands = Bands(64, 16 if dtype == HALF else 8)
                rows = max(2, n * 16 // size) if setting.full else n
                made = exact_pair(g, kind, rows, size, heads, group, 64, dtype, band_index(bands, g.device))
                lens = torch.full((rows,), size, device=g.device) if kind in ("along", "band") else ragged(g, rows, size)
                case = exact_case(g, *made, made[1], lens, page_size=1 if dtype == HALF else 16, bands=bands)
                judge(referee, case, BandMeter(), forms=True)
    return referee.outcome(SEED)


def _packed(
    g: torch.Generator, kind: str, n: int, size: int, heads: int, group: int, dither: Dither | None, i: int
) -> Iterator[tuple[Case, bool]]:
    """Caches of a kind, each with queries that do not know it and some that do (True)."""
    lens, page = ragged(g, n, size), 16 if dither is not None and dither.values else 1
    v = keys(g, "normal", n, size, heads, 64, HALF)
    q = normal(g, n, heads * group, 64).to(HALF)
    if kind == "halfway":
        table = page_table(g, lens, page, size)
        pattern = torch.sign(normal(g, n, heads, 64))
        sign = torch.where(torch.rand((n, size, heads), generator=g, device=g.device) < 0.5, -1.0, 1.0).double()
        tilt = 6 * normal(g, n, size, heads)
        epochs = torch.randint(-(2**31), 2**31, (table[1] * page,), generator=g, device=g.device).int()
        xi = None
        if dither is not None:
            empty = PackedStore.empty(table[1], heads, 64, page, dither=dither, device=g.device)
            shell = Case(q, replace(empty, epochs=epochs), table[0], v.double(), v, 1.0)
            xi = dither_numbers(shell.store, shell.slots(), 0)  # type: ignore[arg-type]
        k = halfway_keys(g, sign, pattern, tilt, xi, 127.0 if dither is None else 126.5)
        case = packed_case(g, q, k, v, lens, page_size=page, dither=dither, epochs=epochs, table=table)
        size_of_q = 2.0 ** uniform(g, -4.0, 5.0, n, heads, group, 1)
        yield with_queries(case, (pattern[:, :, None] * size_of_q).flatten(1, 2).to(HALF)), True
        return
    k = keys(g, kind, n, size, heads, 64, BF16 if i % 2 else HALF)
    case = packed_case(g, q / (300 if kind == "huge" else 1), k, v, lens, page_size=page, dither=dither)
    yield case, False
    truth = attention(case)
    residual = torch.nan_to_num((truth.k_hat - truth.k).transpose(1, 2))
    peak = residual.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    for make in (torch.sign, lambda r: r):
        q = along(residual / peak, group, make) * 2.0 ** uniform(g, -3.0, 3.0, n, heads, group, 1)
        yield with_queries(case, q.flatten(1, 2).to(HALF)), True


@discharges("meter_sound.h_bound", "meter_sound.h_max", "meter_sound.h_exact", "meter_sound.conclusion")
def half_step(setting: Setting) -> Outcome:
    """Half-step meter of packed stores, dithered or not, >= TV, with keys placed exactly halfway and queries along them."""
    referee, g = Referee(), generator(setting.device, SEED + 1)
    n, heads, group = _shape(setting)
    for size in _sizes(setting)[::2]:
        for dither in (None, Dither(SEED, 5)):
            for i, kind in enumerate((*KEY_KINDS, "halfway")):
                rows = max(2, n * 16 // size) if setting.full else n
                for case, _ in _packed(g, kind, rows, size, heads, group, dither, i):
                    judge(referee, case, HalfStepMeter(), forms=kind != "zero")
    return referee.outcome(SEED + 1)


@discharges(
    "tierB_request_sound.h_bound", "tierB_request_sound.h_acert", "tierB_request_sound.h_max",
    "tierB_request_sound.h_radius", "tierB_adaptive_sound.h_bound", "tierB_adaptive_sound.h_acert",
    "tierB_adaptive_sound.h_max", "tierB_adaptive_sound.h_radius", "meter_sound.conclusion",
)  # fmt: skip
def tier_b(setting: Setting) -> Outcome:
    """Both Tier-B readings >= the real radii and >= TV; the adaptive one also where queries lie along the residual."""
    referee, g = Referee(), generator(setting.device, SEED + 2)
    n, heads, group = _shape(setting)
    for j, size in enumerate(_sizes(setting)):
        for i, kind in enumerate(KEY_KINDS):
            rows = max(2, n * 16 // size) if setting.full else n
            dither = Dither(SEED + 7 * i, 3 + i, values=False)
            for case, sees in _packed(g, kind, rows, size, heads, group, dither, i + j):
                judge(referee, case, TierBMeter(BUDGET, 128), adaptive=sees)
    return referee.outcome(SEED + 2)


# store, dtype, head_dim, KV heads, group, page, outlier pairs, bands, pairing, window, cap, sinks
OPTIONS: tuple[tuple[str, torch.dtype, int, int, int, int, int, int, str, int | None, float | None, bool], ...] = (
    ("exact", HALF, 128, 2, 3, 16, 0, 16, "half", 7, None, False),
    ("exact", BF16, 256, 1, 1, 1, 0, 8, "half", None, 4.0, False),
    ("exact", HALF, 64, 1, 16, 1, 0, 16, "adjacent", None, None, True),
    ("exact", BF16, 64, 2, 2, 16, 0, 8, "adjacent", 5, 30.0, True),
    ("rtn", HALF, 128, 1, 5, 1, 4, 0, "half", None, 4.0, True),
    ("rtn", BF16, 256, 1, 2, 16, 0, 0, "half", 6, None, False),
    ("rtn", HALF, 64, 2, 1, 16, 0, 16, "half", None, None, False),
    ("dither", BF16, 64, 1, 2, 1, 16, 0, "half", 5, 30.0, True),
    ("dither", HALF, 128, 2, 4, 16, 2, 0, "half", None, None, True),
    ("dither", HALF, 256, 1, 1, 1, 8, 0, "half", None, 4.0, False),
)


def _option_case(g: torch.Generator, setting: Setting, row: int) -> tuple[Case, BandMeter | HalfStepMeter | TierBMeter]:
    store, dtype, d, heads, group, page, pairs, count, pairing, window, cap, sink = OPTIONS[row]
    n, size = (256, 200) if setting.full else (2, 11)
    lens = ragged(g, n, size)
    lens[-1] = 1
    kind = EXACT_KINDS[row % 6]
    bands = Bands(d, count, pairing) if count else None  # type: ignore[arg-type]
    if store == "exact":
        assert bands is not None
        made = exact_pair(g, kind, n, size, heads, group, d, dtype, band_index(bands, g.device))
        case = exact_case(g, *made, made[1], lens, page_size=page, bands=bands)
    else:
        k = keys(g, ("normal", "massive", "tiny")[row % 3], n, size, heads, d, dtype)
        q = normal(g, n, heads * group, d).to(dtype)
        dither = Dither(SEED + row, row, rounds=10 if row % 2 else 7) if store == "dither" else None
        outliers = outlier_channels(g, heads, d, pairs) if pairs else None
        case = packed_case(g, q, k, k, lens, page_size=page, dither=dither, outliers=outliers, bands=bands)
    sinks = normal(g, heads * group).float() if sink else None
    meter = BandMeter(pairing) if bands else TierBMeter(BUDGET, 256) if store == "dither" else HalfStepMeter()  # type: ignore[arg-type]
    return replace(case, window=window, softcap=cap, sinks=sinks), meter


@discharges("meter_sound.h_bound", "meter_sound.conclusion", "tierB_request_sound.h_cap", "tierB_adaptive_sound.h_cap",
            "tierB_adaptive_det_sound.h_cap", "sink_meter_sound.conclusion")  # fmt: skip
def options(setting: Setting) -> Outcome:
    """Head sizes, groups, pages, outliers, bands, pairings, windows, soft caps and sinks: every claim in every cell."""
    referee, g = Referee(), generator(setting.device, SEED + 3)
    for row in range(len(OPTIONS)):
        case, meter = _option_case(g, setting, row)
        judge(referee, case, meter, tuning=None if setting.full else Tuning(16, splits=1 + row % 2))
    return referee.outcome(SEED + 3)


@discharges("meter_sound.conclusion", "meter_sound.h_max", "tierB_request_sound.h_max")
def long_sequences(setting: Setting) -> Outcome:
    """Sequences of up to 131072 tokens with the cut that decode chooses: the same claims, decided by float64 alone."""
    referee, g = Referee(), generator(setting.device, SEED + 4)
    sizes = (4097, 32768, 131072) if setting.full else (70,)
    for size in sizes:
        lens = torch.tensor([size, size - 5], device=g.device)
        bands = Bands(128)
        made = exact_pair(g, "random", 2, size, 1, 4 if setting.full else 1, 128, HALF, band_index(bands, g.device))
        judge(referee, exact_case(g, *made, made[1], lens, page_size=16, bands=bands), BandMeter(), tuning=None)
        for dither in (None, Dither(SEED, 1, values=False)):
            k = keys(g, "normal", 2, size, 1, 128, HALF)
            case = packed_case(g, made[0], k, k, lens, page_size=16, dither=dither)
            judge(referee, case, HalfStepMeter() if dither is None else TierBMeter(BUDGET, 2**18), tuning=None)
    return referee.outcome(SEED + 4, unit="meter minus the upper end of float64's interval of the total variation")


def _poisoned(case: Case) -> Iterator[tuple[str, Case]]:
    """The case with one thing that is not a number in the first token of sequence 0."""
    slot = int(case.slots()[0, 0])
    for bad in (math.nan, math.inf, -math.inf):
        q = case.q.clone()
        q[0, :, 3] = bad
        yield f"query {bad}", replace(case, q=q)
        if isinstance(case.store, ExactStore):
            # what the write kernel makes of such a key
            k_hat = case.store.k[case.slots()]
            k_hat[0, 0, 0, 5] = bad
            lens = case.table.seq_lens.long()
            yield f"key {bad}", exact_case(generator(case.q.device, 1), case.q, k_hat, case.k, case.v, lens, bands=case.bands)
            store = replace(case.store, k=case.store.k.clone())
            store.k[slot, 0, 5] = math.nan
            yield "key that became NaN after its witness was written", replace(case, store=store)
        elif bad != -math.inf:
            packed = replace(case.store, k_scale=case.store.k_scale.clone())
            packed.k_scale[slot // packed.page_size, 0, slot % packed.page_size, 1] = bad
            yield f"scale {bad}", replace(case, store=packed)


@discharges("meter_sound.h_bound", "tierB_request_sound.h_bound", "tierB_adaptive_sound.h_bound")
def no_claim(setting: Setting) -> Outcome:
    """NaN or infinity in a query, key, witness or scale makes the meter exactly 1, and no other sequence's."""
    g, cases = generator(setting.device, SEED + 5), 0
    lens = torch.tensor([5, 3], device=g.device)
    bands = Bands(64)
    made = exact_pair(g, "random", 2, 5, 1, 1, 64, HALF, band_index(bands, g.device))
    k = keys(g, "normal", 2, 5, 1, 64, HALF)
    stores: list[tuple[Case, BandMeter | HalfStepMeter | TierBMeter]] = [
        (exact_case(g, *made, made[1], lens, bands=bands), BandMeter()),
        (packed_case(g, made[0], k, k, lens), HalfStepMeter()),
        (packed_case(g, made[0], k, k, lens, dither=Dither(1, 0)), TierBMeter(BUDGET, 64)),
    ]
    for case, meter in stores:
        before = run(case, meter)
        for what, poisoned in _poisoned(case):
            after = run(poisoned, meter)
            for i, reading in enumerate(after.readings):
                value, old = value_of(reading), value_of(before.readings[i])
                if not bool((value[0] == 1).all()):
                    raise Violation(f"{what}: the meter is {value[0].tolist()}, not 1; {type(meter).__name__}")
                if not torch.equal(value[1], old[1]):
                    raise Violation(f"{what} of sequence 0 changed the meter of sequence 1; {type(meter).__name__}")
                cases += value.numel()
    return Outcome(cases, (SEED + 5,), 0.0, "equality", cells=cases, note="what is not a number claims nothing")


def _single(g: torch.Generator, setting: Setting, i: int) -> tuple[Case, BandMeter | HalfStepMeter | TierBMeter]:
    """Sequences of one token: a reading of such a cell is the bound of that token."""
    n, heads, group = (16384, 2, 16) if setting.full else (3, 1, 3)
    store = ("exact", "rtn", "dither", "rtn-band", "dither-outliers", "exact-bf16")[i % 6]
    dtype = BF16 if i % 4 == 3 or "bf16" in store else HALF
    lens = torch.ones(n, dtype=torch.long, device=g.device)
    bands = Bands(64) if "exact" in store or "band" in store else None
    kind = ("normal", "massive", "tiny", "huge")[(i + i // 6) % 4]
    q = (normal(g, n, heads * group, 64) * (2.0 ** uniform(g, -8.0, 4.0, n, heads * group, 1))).to(dtype)
    k = keys(g, kind, n, 1, heads, 64, dtype)
    if "exact" in store:
        assert bands is not None
        k_hat = (k.double() * (1 + 0.01 * normal(g, *k.shape))).to(dtype)
        return exact_case(g, q, k_hat, k, k, lens, bands=bands), BandMeter()
    dither = Dither(SEED + i, i) if "dither" in store else None
    outliers = outlier_channels(g, heads, 64, 2) if "outliers" in store else None
    case = packed_case(g, q, k, k, lens, dither=dither, outliers=outliers, bands=bands)
    # a delta this small leaves the deterministic radius, kappa^2 = 3 d
    budget = BUDGET if i < 6 else replace(BUDGET, delta_req=1e-290)
    return case, BandMeter() if bands else TierBMeter(budget, 1) if dither else HalfStepMeter()


@discharges(
    "arith_fold.h_arith", "tierB_request_sound.h_arith", "tierB_request_sound.h_bound", "tierB_request_sound.h_radius",
    "tierB_request_sound.h_cap", "tierB_adaptive_sound.h_arith", "tierB_adaptive_sound.h_bound",
    "tierB_adaptive_sound.h_radius", "tierB_adaptive_sound.h_cap", "tierB_adaptive_det_sound.h_arith",
    "tierB_adaptive_det_sound.h_bound", "tierB_adaptive_det_sound.h_radius", "tierB_adaptive_det_sound.h_cap",
    "tierB_adaptive_det_sound.h_max", "tierB_adaptive_det_sound.h_acert",
)  # fmt: skip
def one_token(setting: Setting) -> Outcome:
    """The logit read off sequences of one token is within its arithmetic; their bound covers residual and arithmetic."""
    referee, g = Referee(), generator(setting.device, SEED + 6)
    least = math.inf
    for i in range(12):
        case, meter = _single(g, setting, i)
        case = replace(case, softcap=(None, 20.0)[i % 2])
        got, truth = run(case, meter), attention(case)
        lse_is_served(referee, truth, got, sums=2.0**-21)
        error = arithmetic(truth)
        # adaptive_radius_det: the deterministic constant replaces the adaptive one where that promises less
        for reading, real in zip(got.readings, real_bounds(truth, meter), strict=True):
            both = (real.c + error).amax(-1).flatten()
            covered = Interval(*(both * (1 + sign * 2.0**-40) for sign in (-1, 1)))
            name = f"bound of {reading.meter.theorem}"
            referee.claim(name, reading.c_max, covered, None, truth.place, cells=True)
            referee.claim(f"{name}: log A", reading.log_a, covered, None, truth.place)
            spare = (reading.c_max.double().flatten() - covered.high) / covered.high
            least = min(least, float(spare[covered.high > 0].min()))
    unit = "(reported C - real bound - arithmetic) / (real bound + arithmetic)"
    return Outcome(referee.cases, (SEED + 6,), least, unit, referee.cells, "logits read off the log-sum-exp of one token")


@discharges(
    "ratio_envelope.h_num_term", "ratio_envelope.h_den_term", "ratio_envelope.h_num_sum", "ratio_envelope.h_den_sum",
    "ratio_envelope.conclusion",
)  # fmt: skip
def envelope(setting: Setting) -> Outcome:
    """With exactly representable logits: mass and A within the envelope, and the launch constant on A."""
    g, cases, least = generator(setting.device, SEED + 7), 0, math.inf
    n, heads, group = (4096, 2, 16) if setting.full else (2, 1, 3)
    for size, tuning in ((1, Tuning(16, splits=1)), (40, Tuning(16, splits=1)), (64, Tuning(32, splits=3))):
        q = torch.zeros(n, heads * group, 64, dtype=HALF, device=g.device)
        q[..., 0] = 1.0
        q[..., 20] = torch.randint(-8, 9, q.shape[:2], generator=g, device=g.device).half()
        k = torch.randint(-4, 5, (n, size, heads, 64), generator=g, device=g.device).half()
        lens = torch.full((n,), size, device=g.device)
        case = exact_case(g, q, k, k, k, lens, bands=Bands(64), scale=0.25)
        store = case.store
        assert isinstance(store, ExactStore)
        assert store.witness is not None
        for exponent in (None, 0, 3):
            store.witness.zero_()
            if exponent is not None:
                w = 2.0 ** -torch.randint(exponent, 8, store.witness.shape[:2], generator=g, device=g.device).double()
                store.witness[..., 0] = w.half()
            got, truth = run(case, BandMeter(), tuning), attention(case)
            # scale |q_0| w, and what rounding |q_0| up to float16 may add
            c = torch.where(truth.alive, 0.25 * store.witness[case.slots()][..., 0].double().transpose(1, 2)[:, :, None], 0.0)
            p = truth.weight / truth.weight.sum(-1, keepdim=True)
            a, b = (torch.log1p((p * torch.expm1(c * f)).sum(-1)).flatten() for f in (1.0, 1 + 2.0**-9.9))
            splits = tuning.splits or 1
            tiles = math.ceil(math.ceil(size / splits) / tuning.tile)
            delta = 2.0**-22 + (512 * math.log(2.0) + tuning.tile + tiles + splits + 40) * 2.0**-24
            grown = math.log1p(delta) - math.log1p(-delta)
            reported = got.readings[0].log_a.double().flatten()
            # equal summands make a ratio of exactly 1: what is left is the launch constant
            low = a + grown if exponent is None else a
            high = b + 2 * grown + 2.0**-20 + 4e-6
            mass = (got.lse.double().flatten() - truth.logit.logsumexp(-1).flatten()).abs()
            # the rounding of a logit, of the logarithm and of its product
            allowed = delta + 2.0**-21 * (1 + truth.logit.abs().amax(-1).flatten())
            for what, bad in (("below", ~(reported >= low)), ("above", ~(reported <= high)), ("mass", ~(mass <= allowed))):
                if bool(bad.any()):
                    i = int(bad.nonzero()[0, 0])
                    numbers = [float(x[i]) for x in (reported, low, high, mass, allowed)]
                    raise Violation(f"envelope, {what}: log A and its limits, mass and its {numbers}; {truth.place(i)}")
            least = min(least, float((reported - low).min()))
            cases += 3 * len(reported)
    return Outcome(cases, (SEED + 7,), least, "reported log A minus the real one", cases // 3)


@discharges("dispersion_bound_unsound.conclusion")
def dispersion(setting: Setting) -> Outcome:
    """On a cache of the refutation's two tokens the dispersion formula is below the total variation, the meter is not."""
    g, referee = generator(setting.device, SEED + 8), Referee(closest=8)
    # weights (1/2, 1/2), logit errors (c, -c): k_hat = 0, k = (-r, r), all in the first channel
    c = torch.tensor([0.1, 0.05, 0.02, 0.25], device=g.device, dtype=torch.float64)
    k_hat = torch.zeros(len(c), 2, 1, 64, dtype=HALF, device=g.device)
    k = k_hat.clone()
    k[:, 0, 0, 0], k[:, 1, 0, 0] = -c.half(), c.half()
    q = torch.zeros(len(c), 1, 64, dtype=HALF, device=g.device)
    q[..., 0] = 1.0
    lens = torch.full((len(c),), 2, device=g.device)
    case = exact_case(g, q, k_hat, k, k, lens, bands=Bands(64), scale=1.0)
    got, truth = judge(referee, case, BandMeter())
    top = got.readings[0].c_max.double()[:, 0]
    formula = bounds.dispersion_unsound(torch.full((len(c), 2), 0.5, device=g.device, dtype=torch.float64),
                                        top[:, None].expand(-1, 2))  # fmt: skip
    below = truth.tv.low - formula
    if not bool((below[:3] > 0).all()):
        raise Violation(f"the dispersion formula is not below the total variation: {formula.tolist()}, {truth.tv.low.tolist()}")
    return referee.outcome(SEED + 8, note=f"formula {float(formula[0]):.6f}, total variation {float(truth.tv.low[0]):.6f}")
