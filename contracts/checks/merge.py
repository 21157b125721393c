"""Splits of a sequence: however it is cut and ordered, the merged numbers are those of the whole, and never below."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from contracts.checks._adversary import exact_pair, keys, vanishing_pair
from contracts.checks._bounds import arithmetic, band_index, real_bounds, steps_of
from contracts.checks._cells import judge, judge_reading, run
from contracts.checks._referee import Referee
from contracts.checks._stores import Case, exact_case, generator, normal, packed_case, served
from contracts.checks._truth import attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, HalfStepMeter, PagePart, TierBMeter, Tuning, decode, merge
from witcert.kernels.decode.budget import dot_gamma, envelope
from witcert.kernels.formats import Dither, ExactStore, PageTable
from witcert.witness import Bands

SEED = 20261201
SPLITS = (1, 2, 3, 5, 8, 16, 17, 33, 48, 64)


def _reordered(g: torch.Generator, case: Case) -> Case:
    """The same tokens of every sequence in another order, page by page (of one token), and the truth with them."""
    lens, width = case.table.seq_lens, case.k.shape[1]
    key = torch.rand((len(lens), width), generator=g, device=g.device)
    key = key + (torch.arange(width, device=g.device) >= lens[:, None])  # what is past the end stays there
    order = key.argsort(-1)
    pages = case.table.pages.gather(1, order).contiguous()
    moved = [x.gather(1, order[..., None, None].expand_as(x)) for x in (case.k, case.v)]
    return replace(case, table=PageTable(pages, lens, 1), k=moved[0], v=moved[1])


def _cases(g: torch.Generator, setting: Setting) -> list[tuple[Case, BandMeter | HalfStepMeter | TierBMeter]]:
    n, heads, group = (512, 2, 16) if setting.full else (2, 1, 2)
    size, bands = 1000 if setting.full else 70, Bands(64)
    lens = torch.randint(0, size + 1, (n,), generator=g, device=g.device)
    lens[0] = size
    made = exact_pair(g, "worst", n, size, heads, group, 64, torch.float16, band_index(bands, g.device))
    k = keys(g, "normal", n, size, heads, 64, torch.float16)
    return [
        (exact_case(g, *made, made[1], lens, bands=bands), BandMeter()),
        (packed_case(g, made[0], k, k, lens), HalfStepMeter()),
        (packed_case(g, made[0], k, k, lens, dither=Dither(SEED, 9)), TierBMeter(Budget(1, 2, 1), 4096)),
    ]


def _tiles(tokens: int, splits: int) -> int:
    """Tiles of 16 tokens in the longest split."""
    each = math.ceil(tokens / splits)
    return math.ceil(each / 16)


def _compare(what: str, got: Tensor, want: Tensor, allowed: float, relative: float = 0.0) -> None:
    got, want = got.double().flatten(), want.double().flatten()
    same = (got == want) | ((got - want).abs() <= allowed * (1 + 1e-9) + relative * want.abs())
    if not bool(same.all()):
        i = int((~same).nonzero()[0, 0])
        raise Violation(f"{what}: cell {i} has {float(got[i])!r}, the unsplit sequence {float(want[i])!r}; allowed {allowed!r}")


@discharges("lse_merge.conclusion", "meter_sound.conclusion")
def splits(setting: Setting) -> Outcome:
    """1 to 64 splits in any order: never below the real numbers, and the unsplit value within the two envelopes."""
    g, referee = generator(setting.device, SEED), Referee()
    for case, meter in _cases(g, setting):
        tokens, truth = case.k.shape[1], attention(case)
        whole, _ = judge(referee, case, meter, tuning=Tuning(16, splits=1), truth=truth)
        base = envelope(_tiles(tokens, 1), 16, 1)
        few = (2, 64) if isinstance(meter, BandMeter) else (7,)
        for count in SPLITS[1:] if setting.full else few:
            cut = _reordered(g, case)
            got, _ = judge(referee, cut, meter, tuning=Tuning(16, splits=count), truth=attention(cut))
            each = math.log(envelope(_tiles(tokens, count), 16, count))
            name = f"{count} splits, {type(meter).__name__}"
            _compare(f"lse of {name}", got.lse, whole.lse, each + math.log(base) + 2.0**-18)
            for a, b in zip(got.readings, whole.readings, strict=True):
                _compare(f"log A of {name}", a.log_a, b.log_a, 2 * (each + math.log(base)) + 3e-6)
                _compare(f"C of {name}", a.c_max, b.c_max, 0.0, 2.0**-18)  # tiles of other tokens round otherwise
    return referee.outcome(SEED)


@discharges("lse_merge.h_part", "lse_merge.conclusion")
def partition(setting: Setting) -> Outcome:
    """Every token is in exactly one split: with equal weights and one-hot values each channel is exactly 1/64."""
    g, cases = generator(setting.device, SEED + 1), 0
    n, group = (256, 4) if setting.full else (1, 1)
    q = torch.zeros(n, group, 64, dtype=torch.float16, device=g.device)
    k = normal(g, n, 64, 1, 64).half()
    v = torch.eye(64, device=g.device).half().expand(n, 64, 64)[:, :, None].contiguous()
    for page in (1, 16):
        case = exact_case(g, q, k, k, v, torch.full((n,), 64, device=g.device), page_size=page, bands=Bands(64))
        for count in SPLITS if setting.full else (1, 3, 8, 17, 64):
            got = run(case, None, Tuning(16, splits=count))
            bad = (got.out.double() != 1 / 64).nonzero()
            if len(bad):
                row, head, channel = bad[0].tolist()
                counted = 64 * float(got.out[row, head, channel])
                raise Violation(f"{count} splits, pages of {page}: token {channel} of sequence {row} counts {counted} times")
            cases += got.out.numel()
    return Outcome(cases, (SEED + 1,), 0.0, "equality", note="times that each token is counted")


@discharges("blockwise_eq_perToken.h_const", "blockwise_eq_perToken.conclusion", "lse_merge.conclusion")
def blocks(setting: Setting) -> Outcome:
    """With one witness a block, A of a sequence is the mass-weighted sum over its blocks read as sequences of their own."""
    g, cases, least = generator(setting.device, SEED + 2), 0, math.inf
    n, heads, group, count = (256, 2, 8, 32) if setting.full else (1, 1, 2, 4)
    size = 16 * count
    q = torch.zeros(n, heads * group, 64, dtype=torch.float16, device=g.device)
    q[..., 0] = 1.0
    q[..., 40] = normal(g, n, heads * group).half()
    k = normal(g, n, size, heads, 64).half()
    case = exact_case(g, q, k, k, k, torch.full((n,), size, device=g.device), page_size=16, bands=Bands(64), scale=1.0)
    store = case.store
    assert isinstance(store, ExactStore)
    assert store.witness is not None
    store.witness.zero_()
    level = 2.0 ** torch.randint(-6, 2, (store.slots // 16,), generator=g, device=g.device).double()
    store.witness[..., 0] = level.half().repeat_interleave(16)[:, None]
    whole = run(case, BandMeter(), Tuning(16, splits=3))
    # every page as a sequence of its own
    pages = PageTable(case.table.pages.reshape(-1, 1).contiguous(), torch.full((n * count,), 16, device=g.device).int(), 16)
    asked = case.q.repeat_interleave(count, 0).contiguous()
    rows = k.reshape(-1, 16, heads, 64)
    parts = run(replace(case, q=asked, table=pages, k=rows, v=rows), BandMeter())
    grown = 2 * math.log(envelope(1, 16, 1)) + 2e-6
    log_a, c_max, lse = (x.double().view(n, count, -1) for x in (parts.readings[0].log_a, parts.readings[0].c_max, parts.lse))
    if not bool(((log_a - c_max).abs() <= grown).all()):
        raise Violation(f"a block of one witness has log A {log_a.flatten().tolist()[:4]}, C {c_max.flatten().tolist()[:4]}")
    both = 2 * math.log(envelope(_tiles(size, 3), 16, 3)) + 2e-6
    merged = torch.logsumexp(lse + log_a, 1) - torch.logsumexp(lse, 1)
    distance = (whole.readings[0].log_a.double() - merged).abs()
    allowed = grown + both + 2.0**-18
    if not bool((distance <= allowed).all()):
        raise Violation(f"A of the whole is off its blocks' by {float(distance.max())!r}, allowed {allowed!r}")
    _compare("C of the blocks", c_max.amax(1), whole.readings[0].c_max, 0.0, 2.0**-18)
    least = float((allowed - distance).min())
    cases += distance.numel() + log_a.numel()
    return Outcome(cases, (SEED + 2,), least, "allowed minus found distance of log A", cases)


@discharges(
    "lse_merge.conclusion", "meter_sound.conclusion", "acert_merge.conclusion", "cmax_merge.conclusion",
    "lse_merge_exp.conclusion",
)  # fmt: skip
def two_parts(setting: Setting) -> Outcome:
    """A dithered cache with some pages exact in a second store: the merged readings bound the whole cell."""
    g, referee = generator(setting.device, SEED + 3), Referee()
    n, heads, group, size = (2048, 2, 8, 64) if setting.full else (3, 2, 1, 40)
    lens = torch.full((n,), size, device=g.device)
    lens[0] = size - 9
    k = keys(g, "normal", n, size, heads, 64, torch.float16)
    q = normal(g, n, heads * group, 64).half()
    packed = packed_case(g, q, k, k, lens, page_size=16, dither=Dither(SEED, 3, values=False))
    side = exact_case(g, q, k, k, k, lens, page_size=16, bands=Bands(64))
    pages = packed.table.pages.shape[1]
    parts = (torch.rand((n, heads, pages), generator=g, device=g.device) < 0.5).to(torch.uint8)
    parts[1] = 1
    meter = TierBMeter(Budget(1, heads * group, heads), 64)
    first = decode(q, packed.store, packed.table, scale=packed.scale, meter=meter, part=PagePart(parts, 0))
    # the second store has pages of its own for the same tokens
    second = decode(q, side.store, side.table, scale=side.scale, meter=BandMeter(), part=PagePart(parts, 1))
    got = merge(first, second, tokens=packed.table.max_tokens)
    exact = parts.bool().repeat_interleave(16, -1)[..., :size].transpose(1, 2)[..., None]  # [N, S, Hkv, 1]
    truth = attention(packed, torch.where(exact, k.double(), served(packed)))
    steps = torch.where(exact.transpose(1, 2), 0.0, steps_of(truth))
    for reading, real in zip(got.readings, real_bounds(truth, meter, steps), strict=True):
        judge_reading(referee, f"{reading.meter.theorem} of two parts", reading, real)
    want = truth.logit.masked_fill(~truth.alive, -math.inf).logsumexp(-1)
    allowed = (arithmetic(truth) + truth.size * dot_gamma(64)).amax(-1) + 2.0**-13
    referee.within("lse of two parts", got.lse, want, allowed, truth.place)
    return referee.outcome(SEED + 3)


def _vanishing(setting: Setting, meter: HalfStepMeter | TierBMeter, reading: int) -> Case:
    """A packed cache whose first four tokens have the bound 85 in that reading, and e^-88 of the weight of a later one."""
    n, size = (2048, 64) if setting.full else (1, 40)
    g = generator(setting.device, SEED + 5)
    pattern = torch.sign(normal(g, n, 64))
    k = torch.zeros(n, size, 1, 64, device=g.device)
    # a step of 1/16, from the first channel of either group; their products with the query cancel
    peak = (126.5 if isinstance(meter, TierBMeter) else 127.0) / 16
    k[:, :4, 0, 0], k[:, :4, 0, 32] = peak * pattern[:, :1], -peak * pattern[:, 32:33]
    lens = torch.full((n,), size, device=g.device)
    dither = Dither(SEED, 4, values=False) if isinstance(meter, TierBMeter) else None

    def build(length: float) -> Case:
        q = (length * pattern)[:, None].half()
        return packed_case(generator(setting.device, SEED + 6), q, k, k, lens, dither=dither)

    # the bound is linear in the query
    length = 85.0 / float(real_bounds(attention(build(1.0)), meter)[reading].c[..., 0].max())
    top = attention(build(length)).logit[:, 0, 0].amax(-1).clamp_min(0.0)  # as the dither made it
    k[:, -3, 0] = (pattern * ((88.2 + top) / (8 * length))[:, None]).float()
    return build(length)


@discharges("lse_merge.conclusion", "ratio_envelope.conclusion", "meter_sound.conclusion")
def vanished(setting: Setting) -> Outcome:
    """A token whose served weight is lost in a rescale, and whose exact weight is not, stays in A: tiles, splits, parts."""
    g, referee = generator(setting.device, SEED + 4), Referee()
    n, group, size = (4096, 8, 64) if setting.full else (2, 2, 40)
    bands = Bands(64)
    lens = torch.full((n,), size, device=g.device)
    q, k_hat, k, high = vanishing_pair(g, n, size, group)
    k_hat[:, -3], k[:, -3] = high, high
    case = exact_case(g, q, k_hat, k, k, lens, page_size=16, bands=bands)
    truth = attention(case)
    for tuning in (Tuning(16, splits=1), Tuning(16, splits=3)):
        judge(referee, case, BandMeter(), tuning=tuning, truth=truth)
    tier_b = TierBMeter(Budget(1, 1, 1), 64)
    kinds: tuple[tuple[HalfStepMeter | TierBMeter, int], ...] = ((HalfStepMeter(), 0), (tier_b, 0), (tier_b, 1))
    for meter, reading in kinds:
        case = _vanishing(setting, meter, reading)
        for tuning in (Tuning(16, splits=1), Tuning(16, splits=3)):
            judge(referee, case, meter, tuning=tuning)
    return referee.outcome(SEED + 4)
