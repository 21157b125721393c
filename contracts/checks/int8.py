"""INT8 codes as written: nothing clipped, residuals within half a stored step, outliers exact; bounds from steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from contracts.checks._data import GROUP, Plan, Written, draw, hard_tokens, rows_of, write
from contracts.checks._queries import OneToken, adversarial, decode_one, extend_one
from contracts.checks._screen import RELATIVE, Closer, Decision, above, exactly, first
from contracts.checks._twofold import dot_at_most
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert import bounds
from witcert.budget import Budget
from witcert.kernels.decode import HalfStepMeter, TierBMeter
from witcert.kernels.decode.launch import Meter
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.rtn_write import rtn_write

SLACK = 2.0**-16
"""``slack`` of the Tier B theorems, in steps: how far a code may be from nearest. 2 * 256 * SLACK < 1 (``h_slack``)."""

STEP = Fraction(1) + Fraction(1, 2**14)
"""A step of ``half_step`` over the stored scale: 1/2 + SLACK <= STEP / 2."""

HALF_MAX = 65504.0
SEED = 60621

BATCH = 1 << 15
"""Cells that are looked at closer at a time."""

PLANS = (
    Plan(64, 16),
    Plan(64, 1, torch.bfloat16, rounds=10, pairs=4),
    Plan(128, 16, torch.float32),
    Plan(64, 16, dithered=False, pairs=2),
    Plan(64, 1, torch.bfloat16, values=False, pairs=16),
    Plan(128, 1, torch.float32, dithered=False),
)
MORE = (Plan(256, 16), Plan(256, 1, torch.bfloat16, dithered=False), Plan(128, 16, torch.bfloat16, pairs=8))


def _written(setting: Setting, seed: int, tokens: tuple[int, int] = (32, 1 << 14)) -> Iterator[Written]:
    rng = draw(setting, seed)
    count, heads = (tokens[1], 8) if setting.full else (tokens[0], 2)
    for plan in PLANS + (MORE if setting.full else ()):
        k = hard_tokens(rng, count, heads, plan.head_dim, plan.dtype)
        yield write(rng, plan, k, hard_tokens(rng, count, heads, plan.head_dim, plan.dtype))


def _group_max(x: Tensor, kept: Tensor) -> Tensor:
    """Largest magnitude of each group, +inf if one is not finite, outliers aside; on every channel of the group."""
    size = torch.where(x.isfinite(), x.abs(), torch.inf)
    size = torch.where(kept, 0.0, size)
    return size.reshape(*size.shape[:-1], -1, GROUP).amax(-1).repeat_interleave(GROUP, -1)


def _scales(what: str, x: Tensor, scale: Tensor, kept: Tensor, divisor: float) -> None:
    """A scale is the least float16 >= amax / divisor: no code is clipped, and outliers do not make steps larger."""
    if not bool((scale >= 0).all()):
        raise Violation(f"{what}: scale {first(~(scale >= 0))} is negative or NaN")
    top = _group_max(x, kept)
    known = top <= divisor * HALF_MAX
    wrong = scale.isfinite() != known
    if bool(wrong.any()):
        cell = first(wrong)
        raise Violation(f"{what}: cell {cell} has scale {float(scale[cell])!r} for a maximum of {float(top[cell])!r}")
    clipped = known & ~(scale * divisor >= top)  # 19 bits at most: exact in float64
    if bool(clipped.any()):
        cell = first(clipped)
        raise Violation(
            f"{what}: cell {cell} is clipped: maximum {float(top[cell])!r} above {divisor} * {float(scale[cell])!r}"
        )
    less = (scale.half().view(torch.int16) - 1).clamp_min(0).view(torch.float16).double()
    wide = known & (less > 0) & (less * divisor >= top * (1 + 2.0**-22))
    if bool(wide.any()):
        cell = first(wide)
        raise Violation(f"{what}: cell {cell} has scale {float(scale[cell])!r}, more than {float(top[cell])!r} needs")


def _outliers(what: str, done: Written, x: Tensor, kept: Tensor, code: Tensor) -> None:
    """The outlier channels of the keys hold the key in float16, and their codes are 0."""
    channels, pool = done.store.outlier_channels, done.store.k_outlier
    if channels is None or pool is None or not bool(kept.any()):
        return
    got = rows_of(pool, done.slots, done.store.page_size)
    expected = x.gather(2, channels.long().expand(len(x), -1, -1)).to(torch.float16)
    same = (got == expected) | (got.isnan() & expected.isnan())
    if not bool(same.all()):
        cell = first(~same)
        raise Violation(f"{what}: outlier {cell} is {float(got[cell])!r}; expected {float(expected[cell])!r}")
    if bool((code != 0)[:, kept].any()):
        raise Violation(f"{what}: an outlier channel has a code that is not 0")


def _sides(done: Written) -> Iterator[tuple[str, Tensor, Tensor, Tensor, Tensor, Tensor, float]]:
    """Name, x as written, codes, scales by channel, xi, outliers [H, d] and divisor of keys and values."""
    for side, x in ((0, done.k), (1, done.v)):
        code, scale = done.codes(side)
        dithered = done.plan.dithered and (side == 0 or done.plan.values)
        kept = done.kept() if side == 0 else torch.zeros_like(done.kept())
        name = f"{done.plan} {'keys' if side == 0 else 'values'}"
        yield name, x, code, scale, done.shift(side), kept, 126.5 if dithered else 127.0


@discharges(
    "grid_dither_law.h_round",
    "tierB_request_sound.h_round", "tierB_request_sound.h_noclip", "tierB_request_sound.h_scale",
    "tierB_adaptive_sound.h_round", "tierB_adaptive_sound.h_noclip", "tierB_adaptive_sound.h_scale",
    "tierB_adaptive_det_sound.h_round", "tierB_adaptive_det_sound.h_noclip", "tierB_adaptive_det_sound.h_scale",
)  # fmt: skip
def codes(setting: Setting) -> Outcome:
    """Every code is within 1/2 + 2^-16 of x/s + xi with the stored s; every scale is the least that clips nothing."""
    cases, margin = 0, float("inf")
    for done in _written(setting, SEED):
        for name, x, code, scale, xi, kept, divisor in _sides(done):
            wide = x.double()
            _scales(name, wide, scale, kept, divisor)
            _outliers(name, done, x, kept, code)
            if bool((code.abs() > 127).any()):
                raise Violation(f"{name}: code {first(code.abs() > 127)} is -128")
            seen = scale.isfinite() & ~kept
            # 512 (code - xi) has 17 bits and s 11; the difference is rounded by 2^-53 of itself; the slack: 2^-16.
            off = torch.where(seen, (scale * ((code - xi) * 512) - torch.where(seen, wide, 0.0) * 512).abs(), 0.0)
            limit = torch.where(scale > 0, scale, 0.0) * (256 + 512 * SLACK)
            wrong = seen & (off > limit * (1 - 2.0**-50))
            if bool(wrong.any()):
                cell = first(wrong)
                raise Violation(
                    f"{name}: cell {cell}, x = {float(wide[cell])!r}, s = {float(scale[cell])!r}, "
                    f"xi = {float(xi[cell])!r}, has code {int(code[cell])}: "
                    f"{float((off / limit)[cell])!r} of what is allowed from x/s + xi"
                )
            some = seen & (scale > 0)
            margin = min(margin, float(((limit - off) / (512 * scale))[some].min()))
            cases += int(seen.sum())
    return Outcome(cases, (SEED,), margin, "steps", note="slack 2^-16 of the theorems")


@discharges("half_step.h_step", "adaptive_radius_det.h_half", "scaled_cs.h_zero")
def residuals(setting: Setting) -> Outcome:
    """|k_hat - k| <= s/2 (1 + 2^-14) with the stored s, and 0 where s is 0, over the exact numbers that are served."""
    cases, margin = 0, float("inf")
    for done in _written(setting, SEED + 1):
        for name, x, code, scale, xi, kept, _ in _sides(done):
            seen = (scale.isfinite() & ~kept & x.isfinite()).expand_as(x)
            wide = torch.where(seen, x.double(), 0.0)
            residual = torch.where(seen, scale * (code - xi) - wide, 0.0).abs()
            limit = torch.where(seen, scale * float(STEP / 2), 0.0)
            zero = seen & (scale == 0) & (wide != 0)
            if bool(zero.any()):
                cell = first(zero)
                raise Violation(f"{name}: cell {cell} is {float(wide[cell])!r} in a group whose scale is 0")

            def holds(cell: tuple[int, ...], scale: Tensor = scale, code: Tensor = code, xi: Tensor = xi,
                      wide: Tensor = wide) -> bool:  # fmt: skip
                s = Fraction(float(scale[cell]))
                served = s * (int(code[cell]) - Fraction(float(xi[cell])))
                return abs(served - Fraction(float(wide[cell]))) <= s * STEP / 2

            allowance = torch.where(residual > 0, residual * 2.0**-50, 0.0)
            margin = min(margin, above(f"{name}: residual", limit, residual, allowance, holds))
            cases += int(seen.sum())
    return Outcome(cases, (SEED + 1,), margin, "of the residual")


def _decide(bound: Tensor, q: Tensor, k: Tensor, k_hat: Tensor, scale: float) -> Decision:
    def decide(cell: tuple[int, ...]) -> bool:
        rows = zip(exactly(q[cell]), exactly(k[cell[:2]]), exactly(k_hat[cell[:2]]), strict=True)
        error = abs(sum((x * (new - old) for x, old, new in rows), Fraction(0)))
        return Fraction(float(bound[cell])) >= Fraction(scale) * error

    return decide


def _closer(bound: Tensor, q: Tensor, k: Tensor, k_hat: Tensor, scale: float) -> Closer:
    """Decides in bulk where the bound is met: a residual in one channel, say, is the equality of Cauchy-Schwarz."""

    def some(at: tuple[Tensor, ...]) -> Tensor:
        t, h = at[:2]
        return dot_at_most(bound[at], q[at].double(), k_hat[t, h].double(), k[t, h].double(), scale)

    def closer(cells: tuple[Tensor, ...]) -> Tensor:
        parts = zip(*(torch.split(x, BATCH) for x in cells), strict=True)  # a dozen tensors of the size of the products each
        return torch.cat([some(at) for at in parts])

    return closer


def _adaptive(rng: torch.Generator, k: Tensor, k_hat: Tensor, step: Tensor, dtype: torch.dtype) -> Tensor:
    """Adversarial queries [T, H, 16, d], two of them aligned with r / s^2 and r / s, which scaled bounds fear most."""
    residual = k_hat - k
    band = torch.arange(k.shape[-1]) // GROUP  # bands of scales
    q = adversarial(rng, residual, k_hat, band, dtype)
    ratio = torch.where(step > 0, residual / torch.where(step > 0, step, 1.0), 0.0)
    worst = torch.where(step > 0, ratio / torch.where(step > 0, step, 1.0), 0.0)
    largest = worst.abs().amax(-1, keepdim=True)
    q[:, :, 11] = torch.where(largest > 0, 6 * worst / torch.where(largest > 0, largest, 1.0), 0.0).to(dtype)
    q[:, :, 12] = (4 * ratio).to(dtype)
    return q


def _worst(rng: torch.Generator, done: Written) -> Written:
    """The same slots rewritten by someone who knows their dither: residuals of s/2 (1 - 2^-15), of random signs.

    Scale 1 (one channel of each group is the maximum); x/s + xi is 2^-16 below or above the middle of two integers.
    """
    shape, device = done.k.shape, done.k.device
    whole = torch.randint(-60, 60, shape, generator=rng, device=device)
    side = torch.randint(0, 2, shape, generator=rng, device=device) * 2 - 1
    x = whole + side * (0.5 - 2.0**-16) - done.shift(0)
    x[..., ::GROUP] = 126.5 if done.plan.dithered else 127.0
    k = x.to(torch.float32 if done.plan.dithered else torch.float16)
    (dither_int8_write if done.plan.dithered else rtn_write)(k, k, done.slots, done.store)
    return replace(done, k=k, v=k)


CLAIMED = 0.8
"""Least share of the cells of a batch that must be claims: one kind of query in 16 may exceed an operand's range."""


def _unclaimed(what: str, got: OneToken) -> int:
    """How many cells claim nothing: c is infinite exactly there, and the meter is 1; few may be so."""
    none = got.c == torch.inf
    wrong = none & got.claims
    if bool(wrong.any()):
        raise Violation(f"{what}: cell {first(wrong)} has an infinite bound, and its meter is below 1")
    share = float((~none).double().mean())
    if share < CLAIMED:
        raise Violation(f"{what}: a share of {share:.3f} of the cells has a bound; at least {CLAIMED} should")
    return int(none.sum())


def _logits(what: str, name: str, got: OneToken, exact: Tensor) -> None:
    """Raise unless the computed logit, read off the log-sum-exp, is within c of the exact one; no claim, no logit.

    The float32 log-sum-exp is read within 2^-18 of 1 + its magnitude; extend's is log(1 + e^logit), which says little
    of logits far below 0, so those are left out.
    """
    c = got.c
    logit = got.lse if name == "decode" else got.lse + torch.log(-torch.expm1(-got.lse))
    # what extend computed may be as low as exact - c, and must itself be readable
    known = exact.abs() < 1e4 if name == "decode" else (exact - c > -3) & (exact < 1e4)
    known &= c != torch.inf
    off = (logit - exact).abs()
    wrong = known & ~(off <= c + 2.0**-18 * (1 + exact.abs()) * (1 if name == "decode" else 32))
    if bool(wrong.any()):
        cell = first(wrong)
        raise Violation(
            f"{what}: cell {cell} has logit {float(logit[cell])!r}, exactly {float(exact[cell])!r}; "
            f"c is {float(c[cell])!r}"
        )


@discharges("half_step.conclusion", "adaptive_radius_det.conclusion", "scaled_cs.conclusion")
def deterministic_bounds(setting: Setting) -> Outcome:
    """The bounds from scales alone (half a step; 3 d) are at least the logit error of adversarial queries."""
    rng = draw(setting, SEED + 2)
    tokens, heads = (2048, 8) if setting.full else (16, 2)
    keep = tokens if setting.full else 2
    # A failure probability so small that kappa^2 is 3 d, which needs no probability (``adaptive_radius_det``).
    certain = TierBMeter(Budget(layers=1, heads=16 * heads, kv_heads=heads, delta_req=1e-300), 1 << 17)
    plans: list[tuple[Plan, Meter]] = [
        (Plan(64, 1, dithered=False, pairs=2), HalfStepMeter()),
        (Plan(64, 16, torch.bfloat16), HalfStepMeter()),
        (Plan(64, 1), certain),
    ]
    if setting.full:
        plans += [(Plan(d, 1, torch.bfloat16, pairs=8), certain) for d in (128, 256)]
        plans += [(Plan(d, 1), certain) for d in (128, 256)]
        plans += [(Plan(128, 16, dithered=False), HalfStepMeter()), (Plan(128, 1, pairs=16), certain)]
    cases, unclaimed, margin = 0, 0, float("inf")
    for plan, meter in plans:
        k = hard_tokens(rng, tokens, heads, plan.head_dim, plan.dtype)
        k = torch.where(k.isfinite() & (k.abs() < 1e4), k, 1.0)
        done = write(rng, plan, k, k)
        if not plan.pairs:
            done = _worst(rng, done)
            k = done.k
        pick = torch.randperm(tokens, generator=rng, device=k.device)[:keep]
        step = done.codes(0)[1].masked_fill(done.kept(), 0.0)[pick] * float(STEP)  # [T, H, d], exact: 11 + 15 bits
        k64, k_hat, slots = k[pick].double(), done.served_keys()[pick], done.slots[pick]
        q = _adaptive(rng, k64, k_hat, step, plan.dtype)
        scale = plan.head_dim**-0.5
        read = {"decode": decode_one(q, done.store, slots, plan.page_size, scale, meter)}
        if plan.page_size == 1:
            read["extend"] = extend_one(q, done.store, slots, scale, meter)
        readings = {name: (got.c, k_hat) for name, got in read.items()}
        exact = scale * (q.double() * k64[:, :, None]).sum(-1)
        for name, got in read.items():
            unclaimed += _unclaimed(f"{name}, {plan}", got)
            _logits(f"{name}, {plan}", name, got, exact)
        # The formulas know of scales only; what float16 loses of a bfloat16 outlier is paid by the kernels' bounds.
        coded = torch.where(done.kept(), k64, k_hat)
        wide, rows = q.double(), step[:, :, None, None]
        readings["half_step"] = bounds.half_step(wide, rows.expand(-1, -1, q.shape[2], -1, -1), scale)[..., 0], coded
        error = (coded - k64)[:, :, None, None].expand(-1, -1, q.shape[2], -1, -1)
        readings["scaled_cs"] = bounds.scaled_cs(wide, error, rows.expand_as(error), scale)[..., 0], coded
        energy = (wide * step[:, :, None]).square().sum(-1)
        readings["3 d energy / 12"] = scale * (plan.head_dim / 4 * energy * (1 + 2.0**-40)).sqrt(), coded
        for name, (bound, served) in readings.items():
            what = f"{name}, {plan}"
            products = wide * (served - k64)[:, :, None]
            truth = scale * products.sum(-1).abs()
            allowance = scale * RELATIVE * products.abs().sum(-1)
            given = (bound, q, k64, served, scale)
            distance = above(what, bound, truth, allowance, _decide(*given), _closer(*given))
            margin = min(margin, distance) if name in ("decode", "extend") else margin
            cases += bound.numel()
    note = f"margin: of the kernels' bounds; {unclaimed} cells claim nothing (meter 1)"
    return Outcome(cases, (SEED + 2,), margin, "of the logit error", note=note)
