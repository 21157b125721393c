"""The meters of extend: every query of a chunk over a cached prefix and the chunk itself, as decode's cells are checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contracts.checks._adversary import exact_pair, halfway_keys, keys, ragged, vanishing_pair
from contracts.checks._bounds import Bounds, Meter, band_index, real_bounds, steps_of
from contracts.checks._cells import judge_reading, value_of
from contracts.checks._referee import Referee
from contracts.checks._stores import Case, exact_case, generator, normal, outlier_channels, packed_case, served, uniform
from contracts.checks._truth import Attention, Interval, attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, HalfStepMeter, PagePart, Reading, TierBMeter
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.extend import ExtendOutput, extend, merge_extend
from witcert.kernels.extend.budget import packed_gamma, tiny_keys
from witcert.kernels.formats import Dither, ExactStore
from witcert.witness import Bands

SEED = 20261206
HALF, BF16 = torch.float16, torch.bfloat16
BUDGET = Budget(layers=4, heads=32, kv_heads=2, steps=64)


@dataclass(frozen=True)
class Chunk:
    """A prefix (its case's q is not used) and new tokens: q half [N, C, Hq, d], k, v [N, C, Hkv, d], lens int32 [N]."""

    prefix: Case
    q: Tensor
    k: Tensor
    v: Tensor
    lens: Tensor

    def run(self, meter: Meter | None) -> ExtendOutput:
        """Extend on the chunk."""
        case = self.prefix
        return extend(self.q, self.k, self.v, case.store, case.table, self.lens, scale=case.scale, meter=meter,
                      window=case.window, softcap=case.softcap, sinks=case.sinks)  # fmt: skip

    def queries(self, k_hat: Tensor | None = None) -> Iterator[tuple[int, Attention, Tensor]]:
        """Every position of the chunk, its truth over prefix and chunk, and what it sees [N, S + C].

        k_hat : the served keys of the prefix [N, S, Hkv, d], if they are at hand.
        """
        case, size = self.prefix, self.k.shape[1]
        start, lens = case.table.seq_lens[:, None], self.lens[:, None]
        old, new = torch.arange(case.k.shape[1], device=lens.device), torch.arange(size, device=lens.device)
        exact = torch.cat([case.k.double(), self.k.double()], 1)
        bad = torch.cat([served(case) if k_hat is None else k_hat, self.k.double()], 1)
        for i in range(size):
            seen = torch.cat([(old < start) & (i < lens), (new <= i) & (new < lens) & (i < lens)], 1)
            if case.window is not None:
                place = torch.cat([old.expand(len(lens), -1), start + new], 1)
                seen &= place > start + i - case.window
            yield i, attention(replace(case, q=self.q[:, i].contiguous(), k=exact, mask=seen), bad), seen


def _steps(chunk: Chunk, truth: Attention) -> Tensor | None:
    """Quantization steps of prefix and chunk, [N, Hkv, S + C, d]; 0 for the chunk's own keys."""
    case = chunk.prefix
    if isinstance(case.store, ExactStore):
        return None
    seen = truth.case.visible()[:, : case.k.shape[1]]
    steps = steps_of(replace(truth, case=replace(case, mask=seen)))  # [N, Hkv, S, d]
    return torch.nn.functional.pad(steps, (0, 0, 0, chunk.k.shape[1]))


def _arithmetic(chunk: Chunk, truth: Attention) -> Tensor:
    """What extend's computed logits may differ from the real ones by [N, Hkv, G, T]; docs/error-budget/extend.md, once."""
    case, d = chunk.prefix, truth.q.shape[-1]
    error = truth.size * (dot_gamma(d) / 2)
    if not isinstance(case.store, ExactStore):
        bits = 11 if chunk.q.dtype == HALF else 8
        tiny = tiny_keys(d) if bits == 11 else 0.0
        norms = truth.k_hat.norm(dim=-1) * packed_gamma(d, bits) + tiny
        cost = case.scale * truth.q.norm(dim=-1)[..., None] * norms[:, :, None] / 2
        old = case.k.shape[1]
        error = torch.cat([cost[..., :old], error[..., old:]], -1)
    if case.softcap is not None:
        error = error + case.softcap * 2.0**-19
    if case.sinks is not None:
        error[..., -1] = truth.logit[..., -1].abs() * 2.0**-23
    return torch.where(truth.alive, error, 0.0)


def _at(reading: Reading, i: int) -> Reading:
    return Reading(reading.meter.map(lambda x: x[:, i].contiguous()), reading.log_a[:, i], reading.c_max[:, i])


def _judge(referee: Referee, chunk: Chunk, meter: BandMeter | HalfStepMeter | TierBMeter, adaptive: bool = False) -> None:
    got = chunk.run(meter)
    for i, truth, seen in chunk.queries():
        error = torch.where(seen.any(-1)[:, None, None, None], _arithmetic(chunk, truth), 0.0)
        for r, real in enumerate(real_bounds(truth, meter, _steps(chunk, truth))):
            reading = _at(got.readings[r], i)
            name = f"{reading.meter.theorem}, position {i} of a chunk"
            judge_reading(referee, name, reading, real, tv=not (adaptive and r == 1))
            _covers_arithmetic(referee, name, reading, real, error)
        alive = seen.any(-1)[:, None].expand(got.lse[:, i].shape)
        want = truth.logit.masked_fill(~truth.alive, -math.inf).logsumexp(-1).flatten(1)
        allowed = error.amax(-1).flatten(1) + 2.0**-14 + 2.0**-20 + 2.0**-21 * want.abs()
        known = alive & torch.isfinite(want) & torch.isfinite(allowed)
        lse = got.lse[:, i].double()
        referee.within("lse of a chunk's query", torch.where(known, lse, 0.0), torch.where(known, want, 0.0),
                       allowed.nan_to_num(1.0), truth.place)  # fmt: skip
        past = i >= chunk.lens
        if bool((lse[past] != -math.inf).any() or (got.out[past, i] != 0).any()):
            raise Violation(f"position {i} is past a chunk and has an output")


def _covers_arithmetic(referee: Referee, name: str, reading: Reading, real: Bounds, error: Tensor) -> None:
    top = (real.c + error).amax(-1).flatten()
    covered = Interval(top * (1 - 2.0**-40), top * (1 + 2.0**-40))
    referee.claim(f"{name}: C and arithmetic", reading.c_max, covered, None, real.truth.place)


def _chunk(g: torch.Generator, case: Case, length: int, along: Tensor | None, share: float = 0.5) -> Chunk:
    """New tokens of the prefix's dtype; queries normal, or (half of them) along the given ones [N, Hq, d]."""
    n, heads, d = case.q.shape
    dtype = case.q.dtype
    q = normal(g, n, length, heads, d)
    if along is not None:
        turned = torch.rand((n, length, 1, 1), generator=g, device=g.device) < share
        q = torch.where(turned, along[:, None].double() * 2.0 ** uniform(g, -3.0, 0.0, n, length, 1, 1), q)
    k, v = (normal(g, n, length, case.k.shape[2], d).to(dtype) for _ in range(2))
    lens = torch.randint(0, length + 1, (n,), generator=g, device=g.device).int()
    lens[0] = length
    return Chunk(case, q.to(dtype), 0.3 * k, v, lens)


def _amounts(setting: Setting) -> tuple[int, int, int, int, int]:
    """Sequences, tokens of a prefix, KV heads, group, tokens of a chunk."""
    return (2048, 40, 2, 8, 6) if setting.full else (2, 9, 1, 2, 3)


@discharges(
    "meter_sound.h_bound", "meter_sound.h_max", "meter_sound.h_exact", "meter_sound.conclusion", "repair_exact.conclusion",
)  # fmt: skip
def tier_a(setting: Setting) -> Outcome:
    """Band-norm meter of a chunk's queries >= TV in every cell; residuals along queries, worst signs, extreme numbers."""
    referee, g = Referee(), generator(setting.device, SEED)
    n, size, heads, group, length = _amounts(setting)
    for i, kind in enumerate(("random", "along", "worst", "dominant", "equal", "massive", "extreme", "tiny", "band")):
        dtype = BF16 if i % 3 == 2 else HALF
        bands = Bands(64) if dtype == HALF else Bands(64, 8, "adjacent")
        made = exact_pair(g, kind, n, size, heads, group, 64, dtype, band_index(bands, g.device))
        case = exact_case(g, *made, made[1], ragged(g, n, size), page_size=1 if dtype == HALF else 16, bands=bands)
        _judge(referee, _chunk(g, case, length, case.q, 0.8), BandMeter(bands.pairing))
    return referee.outcome(SEED)


@discharges(
    "meter_sound.h_bound", "meter_sound.conclusion", "tierB_request_sound.h_bound", "tierB_request_sound.h_arith",
    "tierB_request_sound.h_acert", "tierB_request_sound.h_max", "tierB_request_sound.h_radius",
    "tierB_adaptive_sound.h_bound", "tierB_adaptive_sound.h_arith", "tierB_adaptive_sound.h_acert",
    "tierB_adaptive_sound.h_max", "tierB_adaptive_sound.h_radius",
)  # fmt: skip
def packed(setting: Setting) -> Outcome:
    """Half-step and Tier-B meters of a chunk's queries >= TV; keys exactly halfway, queries along the residual."""
    referee, g = Referee(), generator(setting.device, SEED + 1)
    n, size, heads, group, length = _amounts(setting)
    v = keys(g, "normal", n, size, heads, 64, HALF)
    for i, kind in enumerate(("normal", "massive", "flat", "tiny", "halfway")):
        lens, q = ragged(g, n, size), normal(g, n, heads * group, 64).half()
        if kind == "halfway":
            pattern = torch.sign(normal(g, n, heads, 64))
            sign = torch.where(torch.rand((n, size, heads), generator=g, device=g.device) < 0.5, -1.0, 1.0).double()
            k = halfway_keys(g, sign, pattern, normal(g, n, size, heads), None, 127.0)
            case = packed_case(g, q, k, v, lens)
            q = pattern[:, :, None].expand(-1, -1, group, -1).flatten(1, 2).half()
            _judge(referee, _chunk(g, replace(case, q=q), length, q, 0.8), HalfStepMeter())
            continue
        dtype = BF16 if kind == "massive" else HALF
        k = keys(g, kind, n, size, heads, 64, dtype)
        outliers = outlier_channels(g, heads, 64, 2) if kind == "massive" else None
        plain = packed_case(g, q.to(dtype), k, k, lens, outliers=outliers)
        _judge(referee, _chunk(g, plain, length, None), HalfStepMeter())
        case = packed_case(g, q.to(dtype), k, k, lens, dither=Dither(SEED + i, 3), outliers=outliers)
        residual = torch.where(case.visible()[..., None, None], served(case) - case.k.double(), 0.0)[:, 0]  # [N, Hkv, d]
        peak = residual.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        aim = (residual / peak)[:, :, None].expand(-1, -1, group, -1).flatten(1, 2)
        _judge(referee, _chunk(g, case, length, None), TierBMeter(BUDGET, 128))
        _judge(referee, _chunk(g, case, length, aim), TierBMeter(BUDGET, 128), adaptive=True)
    return referee.outcome(SEED + 1)


@discharges("meter_sound.conclusion", "tierB_request_sound.h_cap", "tierB_adaptive_sound.h_cap")
def options(setting: Setting) -> Outcome:
    """Windows, soft caps, sinks, outliers, head sizes and groups in extend: every claim in every cell."""
    referee, g = Referee(), generator(setting.device, SEED + 2)
    rows = (
        ("exact", HALF, 128, 2, 1, 5, None, False), ("exact", BF16, 64, 1, 16, None, 4.0, True),
        ("rtn", HALF, 256, 1, 1, None, 30.0, False), ("rtn", BF16, 64, 2, 3, 4, None, True),
        ("dither", HALF, 64, 1, 2, 6, 20.0, True), ("dither", BF16, 128, 1, 1, None, None, True),
    )  # fmt: skip
    n, size, length = (128, 100, 20) if setting.full else (2, 7, 3)
    for i, (store, dtype, d, heads, group, window, cap, sink) in enumerate(rows):
        lens, bands = ragged(g, n, size), Bands(d)
        made = exact_pair(g, "worst", n, size, heads, group, d, dtype, band_index(bands, g.device))
        meter: Meter = BandMeter()
        if store == "exact":
            case = exact_case(g, *made, made[1], lens, page_size=16 if i % 2 else 1, bands=bands)
        else:
            outliers = outlier_channels(g, heads, d, 4) if i % 2 else None
            dither = Dither(SEED, i) if store == "dither" else None
            page = 1 if i % 2 else 16
            case = packed_case(g, made[0], made[2], made[2], lens, page_size=page, dither=dither, outliers=outliers)
            meter = HalfStepMeter() if dither is None else TierBMeter(BUDGET, 128)
        sinks = normal(g, heads * group).float() if sink else None
        _judge(referee, _chunk(g, replace(case, window=window, softcap=cap, sinks=sinks), length, case.q), meter)
    return referee.outcome(SEED + 2)


@discharges(
    "lse_merge.conclusion", "meter_sound.conclusion", "acert_merge.conclusion", "cmax_merge.conclusion",
    "lse_merge_exp.conclusion",
)  # fmt: skip
def two_parts(setting: Setting) -> Outcome:
    """A chunk over a dithered prefix with some pages exact in a second store: the merged readings bound every whole cell."""
    referee, g = Referee(), generator(setting.device, SEED + 5)
    n, heads, group, size, length = (1024, 2, 8, 64, 6) if setting.full else (3, 2, 1, 40, 3)
    lens = ragged(g, n, size)
    k = keys(g, "normal", n, size, heads, 64, HALF)
    q = normal(g, n, heads * group, 64).half()
    case = packed_case(g, q, k, k, lens, page_size=16, dither=Dither(SEED, 3, values=False))
    side = exact_case(g, q, k, k, k, lens, page_size=16, bands=Bands(64))
    chunk = _chunk(g, replace(case, window=50), length, q)
    parts = (torch.rand((n, heads, case.table.pages.shape[1]), generator=g, device=g.device) < 0.5).to(torch.uint8)
    parts[1] = 1
    meter = TierBMeter(Budget(1, heads * group, heads), 64)
    new = chunk.q, chunk.k, chunk.v
    first = extend(*new, case.store, case.table, chunk.lens, scale=case.scale, window=50, meter=meter,
                   part=PagePart(parts, 0))  # fmt: skip
    # the second store has pages of its own for the same tokens, and leaves the chunk to the first
    second = extend(*new, side.store, side.table, chunk.lens, scale=case.scale, window=50, meter=BandMeter(),
                    part=PagePart(parts, 1), own=False)  # fmt: skip
    got = merge_extend(first, second, tokens=case.table.max_tokens)
    exact = parts.bool().repeat_interleave(16, -1)[..., :size].transpose(1, 2)[..., None]  # [N, S, Hkv, 1]
    kept = torch.nn.functional.pad(exact.transpose(1, 2), (0, 0, 0, length), value=True)  # [N, Hkv, S + C, 1]
    for i, truth, seen in chunk.queries(torch.where(exact, k.double(), served(case))):
        found = _steps(chunk, truth)
        assert found is not None
        steps = torch.where(kept, 0.0, found)
        for reading, real in zip(got.readings, real_bounds(truth, meter, steps), strict=True):
            judge_reading(referee, f"{reading.meter.theorem} of two parts, position {i}", _at(reading, i), real)
        want = truth.logit.masked_fill(~truth.alive, -math.inf).logsumexp(-1).flatten(1)
        alive = seen.any(-1)[:, None].expand(want.shape)
        allowed = (_arithmetic(chunk, truth) + truth.size * dot_gamma(64)).amax(-1).flatten(1) + 2.0**-13
        lse = got.lse[:, i].double()
        referee.within("lse of two parts", torch.where(alive, lse, 0.0), torch.where(alive, want, 0.0), allowed, truth.place)
        if bool((lse[~alive] != -math.inf).any()):
            raise Violation(f"position {i} of two parts sees nothing and has a mass")
    return referee.outcome(SEED + 5)


@discharges("ratio_envelope.conclusion", "meter_sound.conclusion")
def vanished(setting: Setting) -> Outcome:
    """A prefix token whose served weight is lost beside a key of the chunk, and whose exact weight is not, stays in A."""
    g, referee = generator(setting.device, SEED + 4), Referee()
    n, size, group = (2048, 80, 8) if setting.full else (2, 5, 2)
    q, k_hat, k, high = vanishing_pair(g, n, size, group)
    lens = torch.full((n,), size, device=g.device)
    case = exact_case(g, q, k_hat, k, k, lens, bands=Bands(64))
    new = torch.stack([high, torch.zeros_like(high)], 1)  # [N, 2, 1, 64]
    both = torch.full((n,), 2, device=g.device).int()
    _judge(referee, Chunk(case, q[:, None].expand(-1, 2, -1, -1).contiguous(), new, new, both), BandMeter())
    return referee.outcome(SEED + 4)


@discharges("meter_sound.h_bound", "tierB_request_sound.h_bound")
def no_claim(setting: Setting) -> Outcome:
    """NaN or infinity in a query, a key of the chunk or a scale of the prefix makes the meter 1 where it is seen."""
    g, cases = generator(setting.device, SEED + 3), 0
    lens = torch.tensor([5, 4], device=g.device)
    k = keys(g, "normal", 2, 5, 1, 64, HALF)
    case = packed_case(g, normal(g, 2, 2, 64).half(), k, k, lens, dither=Dither(3, 1))
    chunk = replace(_chunk(g, case, 3, None), lens=torch.tensor([3, 3], device=g.device).int())
    for bad in (math.nan, math.inf):
        for what in ("query", "key", "scale"):
            spoiled = chunk
            seen = torch.ones(3, dtype=torch.bool, device=g.device)
            if what == "query":
                spoiled = replace(chunk, q=chunk.q.clone())
                spoiled.q[0, 1, :, 9] = bad
                seen = torch.tensor([False, True, False], device=g.device)
            elif what == "key":
                spoiled = replace(chunk, k=chunk.k.clone())
                spoiled.k[0, 1, 0, 9] = bad
                seen = torch.tensor([False, True, True], device=g.device)
            else:
                assert not isinstance(case.store, ExactStore)
                scale = case.store.k_scale.clone()
                scale[case.slots()[0, 0], 0, 0, 1] = bad
                spoiled = replace(chunk, prefix=replace(case, store=replace(case.store, k_scale=scale)))
            for meter in (HalfStepMeter(), TierBMeter(BUDGET, 64)):
                before, after = chunk.run(meter), spoiled.run(meter)
                for old, new in zip(before.readings, after.readings, strict=True):
                    a, b = value_of(old), value_of(new)  # [N, C, Hq]
                    if not bool((b[0, seen] == 1).all()):
                        raise Violation(f"{what} {bad}: the meter is {b[0, seen].flatten().tolist()}, not 1")
                    if not (torch.equal(a[1], b[1]) and torch.equal(a[0, ~seen], b[0, ~seen])):
                        raise Violation(f"{what} {bad}: the meter of a query that does not see it changed")
                    cases += b.numel()
    return Outcome(cases, (SEED + 3,), 0.0, "equality", cases, "what is not a number claims nothing")
