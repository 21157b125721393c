"""What is promised of a whole request, counted over many outcomes of the dither.

A request is an outcome: a batch of sequences in slots of their own has independent dithers (gap E of SOUNDNESS.md), so each
launch draws many requests. Failures are counted against the promised probability by the exact binomial law.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from contracts.checks._adversary import halfway_keys, keys
from contracts.checks._bounds import real_bounds
from contracts.checks._cells import SMALL, judge, run, value_of, with_queries
from contracts.checks._referee import Referee
from contracts.checks._stores import Case, dither_numbers, generator, normal, packed_case, page_table
from contracts.checks._truth import Attention, Interval, attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.budget import Budget
from witcert.golden import mp
from witcert.kernels.decode import TierBMeter
from witcert.kernels.formats import Dither, PackedStore

SEED = 20261202
CONFIDENCE = 1e-6
"""A rate is rejected when the promised one would give that many failures with a smaller probability than this."""


def at_most(trials: int, failures: int, rate: float) -> float:
    """Probability of at most that many failures in independent trials of this rate."""
    share = mp.mpf(rate)
    if share >= 1:
        return float(failures >= trials)
    term = (1 - share) ** trials
    total = mp.mpf(0)
    for i in range(failures + 1):
        total += term
        term *= mp.mpf(trials - i) / (i + 1) * share / (1 - share)
    return float(total)


def tail(trials: int, failures: int, rate: float) -> float:
    """Probability of at least that many failures (what Clopper and Pearson's lower limit is made of)."""
    return 1.0 if failures == 0 else 1.0 - at_most(trials, failures - 1, rate)


def upper_limit(trials: int, failures: int) -> float:
    """Clopper and Pearson's upper limit: the rate at which that few failures have the probability CONFIDENCE."""
    low, high = failures / trials, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if at_most(trials, failures, rate) > CONFIDENCE else (low, rate)
    return high


def _within(what: str, failed: int, trials: int, delta: float) -> None:
    if tail(trials, failed, delta) < CONFIDENCE:
        raise Violation(f"{what}: {failed} failures in {trials}; {delta:g} was promised")


def _stored(g: torch.Generator, n: int, size: int, heads: int, group: int, seed: int, kind: str, layer: int) -> Case:
    """Requests with queries that do not know the dither."""
    k = keys(g, kind, n, size, heads, 64, torch.float16)
    # of one size in every channel: the heaviest tails that the radius allows for
    q = torch.sign(normal(g, n, heads * group, 64)).half()
    return packed_case(g, q, k, k, torch.full((n,), size, device=g.device), dither=Dither(seed, layer, values=False))


@discharges("request_union.h_token", "tierB_request_sound.h_radius")
def token_share(setting: Setting) -> Outcome:
    """The share of tokens whose logit error exceeds the reported non-adaptive bound is at most the token's delta."""
    g, n, heads = generator(setting.device, SEED), 8192 if setting.full else 12, 2 if setting.full else 1
    seeds = [SEED + i for i in range(8 if setting.full else 2)]
    least, trials, note = 1.0, 0, []
    for delta in (0.3, 0.05):
        # one cell of one token: delta_req is what one error may cost
        meter = TierBMeter(Budget(1, 1, 1, steps=1, delta_req=delta), 1)
        failed = seen = 0
        for i, seed in enumerate(seeds):
            case = _stored(g, n, 1, heads, 1, seed, ("normal", "massive")[i % 2], i)
            got, truth = run(case, meter), attention(case)
            # one query for each token, so that all errors are independent
            failed += int((truth.eps.abs().flatten() > got.readings[1].c_max.double().flatten()).sum())
            seen += n * heads
        _within(f"tokens at delta {delta:g}", failed, seen, delta)
        least, trials = min(least, max(0.0, delta - failed / seen)), trials + seen
        note.append(f"delta {delta:g}: {failed} of {seen} failed, rates above {upper_limit(seen, failed):.3g} are excluded")
    return Outcome(trials, tuple(seeds), least, "promised minus observed share", trials, "; ".join(note))


@discharges("request_union.conclusion", "tierB_request_sound.conclusion")
def failures(setting: Setting) -> Outcome:
    """The share of requests with a cell above its non-adaptive meter, or an error above its radius, is at most delta_req."""
    g, n, size = generator(setting.device, SEED + 1), 1024 if setting.full else 8, 16 if setting.full else 5
    seeds = [SEED + 100 + i for i in range(16 if setting.full else 2)]
    heads, group, steps = (1, 4, 4) if setting.full else (1, 2, 1)
    delta = 0.3
    meter = TierBMeter(Budget(2, heads * group, heads, steps=steps, delta_req=delta), size)
    failed = cells = 0
    closest = math.inf
    for seed in seeds:
        broken = torch.zeros(n, dtype=torch.bool, device=g.device)
        for layer in range(2):
            case = _stored(g, n, size, heads, group, seed, ("flat", "normal")[layer], layer)
            for _ in range(steps):
                case = with_queries(case, torch.sign(normal(g, *case.q.shape)).half())
                got, truth = run(case, meter), attention(case)
                reported = value_of(got.readings[1]).double()
                tv = truth.tv.low.view_as(reported)
                real = real_bounds(truth, meter)[1]
                over = truth.eps.abs() > real.c * (1 + 2.0**-30)
                broken |= (tv > reported).any(-1) | over.flatten(1).any(-1)
                closest = min(closest, float((reported - tv).min()))
                cells += reported.numel()
        failed += int(broken.sum())
    trials = n * len(seeds)
    _within("requests", failed, trials, delta)
    note = f"{failed} of {trials} requests failed, rates above {upper_limit(trials, failed):.3g} are excluded; " \
           f"meter minus total variation >= {closest:.3g}"
    return Outcome(cells, tuple(seeds), max(0.0, delta - failed / trials), "delta_req minus observed share", cells, note)


def _attack(g: torch.Generator, setting: Setting, seed: int) -> tuple[Case, Attention]:
    """Two tokens of nearly the same key, and queries along the difference of their residuals, as the dither made them."""
    n, heads, group = (8192, 2, 16) if setting.full else (3, 1, 4)
    case = _stored(g, n, 2, heads, group, seed, "flat", 0)
    truth = attention(case)
    residual = truth.k_hat - truth.k  # [n, H, 2, d]
    aims = torch.stack([residual[:, :, 0] - residual[:, :, 1], residual[:, :, 0], torch.sign(residual[:, :, 1])], 2)
    aims = aims / aims.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    member = torch.arange(group, device=g.device)
    q = aims[:, :, member % 3] * 2.0 ** -(member // 3 % 4)[:, None].double()
    case = with_queries(case, q.flatten(1, 2).half())
    return case, attention(case)


@discharges(
    "adaptive_radius.h_radius", "adaptive_radius.conclusion", "tierB_adaptive_sound.conclusion",
    "tierB_adaptive_sound.h_radius",
)  # fmt: skip
def adaptive(setting: Setting) -> Outcome:
    """Queries chosen with the dither in view never exceed the adaptive radius and meter; they do break the other one."""
    g, referee = generator(setting.device, SEED + 2), Referee()
    seeds = [SEED + 200 + i for i in range(8 if setting.full else 2)]
    meter = TierBMeter(Budget(1, 1, 1, steps=1), 2)
    attacked = broken = beyond = 0
    for seed in seeds:
        case, truth = _attack(g, setting, seed)
        got, _ = judge(referee, case, meter, adaptive=True, truth=truth)
        loose, tight = real_bounds(truth, meter)
        error = truth.eps.abs().amax(-1).flatten()
        real = Interval(error, error + truth.eps_error.amax(-1).flatten())
        referee.claim("adaptive radius", loose.c_max.low, real, None, truth.place)
        broken += int((truth.tv.low > value_of(got.readings[1]).double().flatten()).sum())
        beyond += int((truth.eps.abs() > tight.c * (1 + 2.0**-30)).any(-1).sum())
        attacked += error.numel()
    if not broken or not beyond:
        raise Violation(f"the attack breaks {broken} non-adaptive meters and {beyond} radii of {attacked}: it shows nothing")
    note = f"the same queries break the non-adaptive meter in {broken} of {attacked} cells, its radius in {beyond}"
    return referee.outcome(*seeds, note=note)


@discharges("tierB_adaptive_det_sound.conclusion", "tierB_adaptive_det_sound.h_radius")
def deterministic(setting: Setting) -> Outcome:
    """With kappa^2 = 3 d nothing breaks, even where keys and queries are both made for the dither."""
    g, referee = generator(setting.device, SEED + 3), Referee()
    n, size, heads, group = (8192, 16, 2, 16) if setting.full else (3, 4, 1, 3)
    meter = TierBMeter(Budget(1, 1, 1, steps=1, delta_req=1e-290), 16)
    seeds = [SEED + 300 + i for i in range(4 if setting.full else 2)]
    for seed in seeds:
        lens = torch.full((n,), size, device=g.device)
        table = page_table(g, lens, 1, size)
        dither = Dither(seed, 1, values=False)
        empty = PackedStore.empty(table[1], heads, 64, 1, dither=dither, device=g.device)
        epochs = torch.randint(-(2**31), 2**31, (table[1],), generator=g, device=g.device).int()
        pattern = torch.sign(normal(g, n, heads, 64))
        q = (pattern[:, :, None] * 2.0 ** -torch.arange(group, device=g.device)[:, None].double()).flatten(1, 2).half()
        v = keys(g, "normal", n, size, heads, 64, torch.float16)
        shell = Case(q, replace(empty, epochs=epochs), table[0], v, v, 1.0)
        sign = torch.where(torch.rand((n, size, heads), generator=g, device=g.device) < 0.5, -1.0, 1.0).double()
        xi = dither_numbers(replace(empty, epochs=epochs), shell.slots(), 0)
        k = halfway_keys(g, sign, pattern, normal(g, n, size, heads), xi, 126.5)
        case = packed_case(g, q, k, v, lens, dither=dither, epochs=epochs, table=table)
        judge(referee, case, meter, adaptive=True, tuning=SMALL)
    return referee.outcome(*seeds)
