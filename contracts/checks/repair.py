"""Paging exact keys in: what was predicted, what is there afterwards, and what the kernel then reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.checks._adversary import exact_pair, keys, ragged
from contracts.checks._bounds import Bounds, band_index, stored_bounds
from contracts.checks._cells import judge, run, value_of
from contracts.checks._referee import Referee
from contracts.checks._stores import Case, exact_case, generator, stored_witness
from contracts.checks._truth import Attention, Interval, U, attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert import bounds, golden
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, Tuning
from witcert.kernels.decode.budget import dot_gamma, envelope
from witcert.kernels.formats import ExactStore, PageTable
from witcert.kernels.page_in import page_in, page_in_mismatches
from witcert.witness import Bands

SEED = 20261203
KINDS = ("random", "along", "worst", "equal", "massive")


def _backing(case: Case) -> ExactStore:
    """The exact keys and values in host memory; row s of sequence n is n * S + s."""
    k, v = (x.flatten(0, 1).cpu() for x in (case.k, case.v))
    return ExactStore(k.pin_memory(), v.pin_memory()) if case.q.is_cuda else ExactStore(k, v)


def _items(case: Case, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the backing store and slots of the tokens chosen [N, S]; what is not cached is padding."""
    there = chosen & (torch.arange(chosen.shape[1], device=chosen.device) < case.table.seq_lens[:, None])
    rows = torch.arange(chosen.numel(), device=chosen.device).view_as(chosen)
    return rows[chosen], torch.where(there, case.slots(), -1)[chosen]


def _repaired(case: Case, chosen: Tensor) -> tuple[Case, int]:
    """A copy of the case with the tokens paged in, and the number of words that the read-back finds wrong."""
    assert isinstance(case.store, ExactStore)
    assert case.store.witness is not None
    store = ExactStore(case.store.k.clone(), case.store.v.clone(), case.store.witness.clone())
    host, (rows, slots) = _backing(case), _items(case, chosen)
    page_in(host, rows, store, slots, bands=case.bands)
    wrong = int(page_in_mismatches(host, rows, store, slots, bands=case.bands))
    return replace(case, store=store), wrong


def _make(g: torch.Generator, setting: Setting, kind: str, size: int) -> Case:
    n, heads, group = (1024, 2, 16) if setting.full else (2, 1, 2)
    bands = Bands(64)
    made = exact_pair(g, kind, n, size, heads, group, 64, torch.float16, band_index(bands, g.device))
    v = keys(g, "normal", n, size, heads, 64, torch.float16)
    return exact_case(g, *made, v, ragged(g, n, size), page_size=16, bands=bands)


def _left(truth: Attention) -> Tensor:
    """What the arithmetic of the read may still cost on an exact token: gamma * scale * sum |q_b| |k_b|, at most."""
    norms = _norm(truth.q)[..., None] * _norm(truth.k)[:, :, None, :]
    return norms * (truth.case.scale * dot_gamma(truth.q.shape[-1]) * (1 + 2.0**-8)) + 2.0**-20


def _norm(x: Tensor) -> Tensor:
    return torch.sqrt(x.square().sum(-1))


def _exact_log_a(truth: Attention, c: Tensor) -> Callable[[int], Any]:
    """log A of a cell at 50 digits: its weights recomputed from the stored bits, the bounds c [N, Hkv, G, S] as they are."""

    def exact(cell: int) -> Any:
        n, head = divmod(cell, truth.case.q.shape[1])
        of_tokens = c[n, head // truth.case.group, head % truth.case.group][truth.case.visible()[n]]
        p = truth[cell].p
        return mp.log(golden.acert(p, [mp.mpf(x) for x in of_tokens.tolist()])) if p else mp.mpf(0)

    return exact


def _from_blocks(case: Case, pages: Tensor, left: Tensor) -> Tensor:
    """log of the predicted A [N, Hq], from what the kernel reports of every page as a sequence of its own."""
    table = case.table
    count = table.pages.shape[1]
    rest = table.seq_lens[:, None] - 16 * torch.arange(count, device=pages.device, dtype=torch.int32)
    each = PageTable(table.pages.reshape(-1, 1).contiguous(), rest.clamp(0, 16).flatten().contiguous(), 16)
    asked = case.q.repeat_interleave(count, 0).contiguous()
    got = run(replace(case, q=asked, table=each), BandMeter())
    lse, log_a = (x.double().view(len(case.q), count, -1).transpose(1, 2) for x in (got.lse, got.readings[0].log_a))
    mass = torch.softmax(lse, -1).nan_to_num(0.0)  # [N, Hq, pages]; no token at all: 0
    up = torch.where(mass > 0, mass * log_a.exp(), 0.0)
    inside = pages[:, None]
    # Cauchy-Schwarz: sum p e^-c >= mass^2 / up
    down = torch.where(inside & (up > 0), mass.square() / up.clamp_min(1e-300), 0.0).sum(-1)
    n, m = (torch.where(inside, 0.0, x).sum(-1) for x in (up, mass))
    a = torch.maximum((n + down * left.exp()) / (m + down), left.exp())
    return torch.where(mass.sum(-1) > 0, a.log(), 0.0)


@discharges("page_in_bound.h_bound", "page_in_bound.conclusion", "page_in_sound.conclusion", "meter_sound.conclusion")
def prediction(setting: Setting) -> Outcome:
    """What page_in_bound predicts is never below A after the page-in, of the real numbers and of the kernel."""
    g, referee = generator(setting.device, SEED), Referee()
    size = 64 if setting.full else 48
    spare = math.inf
    for kind in KINDS:
        case = _make(g, setting, kind, size)
        pages = torch.rand((len(case.q), size // 16), generator=g, device=g.device) < 0.5
        chosen = pages.repeat_interleave(16, -1)
        before = attention(case)
        fixed, wrong = _repaired(case, chosen)
        if wrong:
            raise Violation(f"{wrong} words are not those of the backing store after a page-in; kind {kind}")
        after = attention(fixed)
        again, _ = judge(referee, fixed, BandMeter(), truth=after)

        # the theorem, on the real numbers: bounds of the store before, none on what was paged in
        c = stored_bounds(before, BandMeter())
        gone = (chosen[:, None, None] & before.alive).expand(c.shape)
        c_after = torch.where(gone, 0.0, c)
        real = Bounds(after, BandMeter(), 0, c_after, None, relative=0.0)
        some = before.alive.any(-1).flatten()
        p = before.weight / before.weight.sum(-1, keepdim=True).clamp_min(0.5)
        p = torch.where(before.alive.any(-1, keepdim=True), p, 1.0 / size)
        # p is the float64 of the served weights: each is within rho of the real one and divided once, and what divides
        # them all cancels, so A - 1 = (N - M) / (M + y) moves by (1 + e) / (1 - e) and log A by no more
        e = (before.rho + 4 * U).flatten()
        value = bounds.page_in_log_a(p.flatten(0, 2), c.flatten(0, 2), gone.flatten(0, 2)) * (1 + 2.1 * e)
        held = Interval(*(torch.where(some, x, 0.0) for x in (real.log_a.low, real.log_a.high)))
        exact = _exact_log_a(after, c_after)
        # Where nothing changes the two sides are equal, and float64's interval is as wide as its error: that width is not
        # held against the value. The closest cells are decided at 50 digits, where nothing is allowed.
        width = torch.where(held.high < math.inf, (held.high - held.low).clamp_max(1e-9 * (1 + held.low)), 0.0)
        referee.claim(f"page_in_bound, {kind}", value + width, held, exact, before.place, cap=600.0)
        referee.recompute(f"page_in_bound, {kind}", value, held, exact, before.place, cap=600.0)

        # the kernel's own numbers of each page, and what it then reports: both within their envelope
        left = torch.where(before.alive, _left(before), 0.0).amax(-1).flatten(1, 2)
        grown = math.log(envelope(1, 16, 1)) + math.log(envelope(-(-size // 16), 16, 1))
        log_a = _from_blocks(case, pages, left) + 2 * grown + 4e-6
        reported = again.readings[0].log_a.double()
        bad = (~(reported <= log_a)) & (log_a < 80.0)
        if bool(bad.any()):
            i = int(bad.flatten().nonzero()[0, 0])
            raise Violation(f"predicted log A {float(log_a.flatten()[i])!r}, the kernel then reports "
                            f"{float(reported.flatten()[i])!r}; {kind}, {before.place(i)}")  # fmt: skip
        spare = min(spare, float((log_a - reported)[log_a < 80.0].min()))
        meter = bounds.meter(log_a)
        referee.claim(f"predicted meter, {kind}", meter, after.tv, after.exact_tv, after.place, cap=1.0, cells=True)
    return referee.outcome(SEED, note=f"predicted minus reported log A >= {spare:.3g}")


@discharges("page_in_naive_unsound.conclusion")
def naive(setting: Setting) -> Outcome:
    """Keeping the weights fixed, A - mass (e^u - 1), is below A after the page-in on two equal tokens with errors u."""
    g = generator(setting.device, SEED + 1)
    u = torch.tensor([0.5, 0.25, 1.0, 2.0], device=g.device, dtype=torch.float64)
    n = len(u)
    k_hat = torch.zeros(n, 2, 1, 64, dtype=torch.float16, device=g.device)
    k = k_hat.clone()
    k[..., 0] = -u.half()[:, None, None]  # served minus exact logits are u for both
    q = torch.zeros(n, 1, 64, dtype=torch.float16, device=g.device)
    q[..., 0] = 1.0
    case = exact_case(g, q, k_hat, k, k, torch.full((n,), 2, device=g.device), bands=Bands(64), scale=1.0)
    first = torch.tensor([True, False], device=g.device).expand(n, 2)
    before, fixed = run(case, BandMeter()), _repaired(case, first)[0]
    truth = attention(fixed)
    c = torch.stack([torch.zeros_like(u), u], -1)[:, None, None]
    a = Bounds(truth, BandMeter(), 0, c, None).log_a.low.exp()
    p = torch.full((n, 2), 0.5, device=g.device, dtype=torch.float64)
    # from what the kernel reports before (rounded up) and its C; each token's share is exactly one half
    naive_a = before.readings[0].log_a.double()[:, 0].exp() - 0.5 * torch.expm1(before.readings[0].c_max.double()[:, 0])
    sound = bounds.page_in_log_a(p, u[:, None].expand(-1, 2), first)
    after = run(fixed, BandMeter()).readings[0].log_a.double()[:, 0]
    if not bool((naive_a < a).all()):
        raise Violation(f"the naive prediction {naive_a.tolist()} is not below {a.tolist()}")
    if not bool((sound.exp() >= a).all() and (after >= a.log()).all()):
        raise Violation(f"page_in_bound {sound.exp().tolist()} or the kernel {after.exp().tolist()} is below {a.tolist()}")
    return Outcome(n, (SEED + 1,), float((a - naive_a).min()), "A after the page-in minus the naive prediction", n)


@discharges("repair_exact.h_repaired", "repair_exact.conclusion", "repair_residual_zero.conclusion")
def exact(setting: Setting) -> Outcome:
    """With every token paged in: the bits of an exact cache, its output, total variation 0; nothing else is touched."""
    g, cases, least = generator(setting.device, SEED + 2), 0, math.inf
    for kind in KINDS if setting.full else KINDS[1:3]:
        case = _make(g, setting, kind, 20)
        store = case.store
        assert isinstance(store, ExactStore)
        fixed, wrong = _repaired(case, torch.ones(case.k.shape[:2], dtype=torch.bool, device=g.device))
        truth, seen = attention(fixed), case.visible()
        if wrong or not torch.equal(truth.k_hat, truth.k) or float(truth.tv.high.max()) != 0.0:
            raise Violation(f"after a page-in of everything {wrong} words differ, residual "
                            f"{float((truth.k_hat - truth.k).abs().max())}; {kind}")  # fmt: skip
        assert case.bands is not None
        norms = torch.sqrt(truth.k.square() @ band_index(case.bands, g.device)).transpose(1, 2)[seen] * dot_gamma(64)
        w = stored_witness(fixed)[seen]
        if not bool((w >= norms * (1 - 2.0**-40)).all() and (w <= norms * (1 + 2.0**-9) + 2.0**-23).all()):
            raise Violation(f"the witness of an exact key is not gamma times its norm, rounded up; {kind}")
        # a cache that was never quantized, in the same slots
        plain = store.k.clone()
        values = store.v.clone()
        plain[case.slots()[seen]], values[case.slots()[seen]] = case.k[seen], case.v[seen]
        tuning = Tuning(16, splits=2)
        want = run(replace(case, store=ExactStore(plain, values)), None, tuning)
        got = run(fixed, BandMeter(), tuning)
        if not (torch.equal(got.out, want.out) and torch.equal(got.lse, want.lse)):
            raise Violation(f"a repaired cache does not answer as an exact one; {kind}")
        left = torch.where(truth.alive, _left(truth), 0.0).amax(-1).flatten()
        meter = value_of(got.readings[0]).double().flatten()
        if not bool(((meter <= torch.tanh(left / 2) + 1e-6) & (meter >= 0)).all()):
            raise Violation(f"a repaired cell reports {float(meter.max())!r}, more than its arithmetic; {kind}")
        assert isinstance(fixed.store, ExactStore)
        mine = torch.zeros(store.slots, dtype=torch.bool, device=g.device)
        mine[case.slots()[seen]] = True
        for before, after in ((store.k, fixed.store.k), (store.v, fixed.store.v), (store.witness, fixed.store.witness)):
            assert before is not None
            assert after is not None
            if not torch.equal(before.view(torch.int16)[~mine], after.view(torch.int16)[~mine]):
                raise Violation(f"a page-in changed slots that are not its own; {kind}")
        fixed.store.k.view(torch.int16)[case.slots()[0, 0], 0, 7] ^= 1
        rows, slots = _items(case, torch.ones(case.k.shape[:2], dtype=torch.bool, device=g.device))
        found = int(page_in_mismatches(_backing(case), rows, fixed.store, slots, bands=case.bands))
        if found != 1:
            raise Violation(f"one wrong bit is read back as {found} wrong words; {kind}")
        least = min(least, float((torch.tanh(left / 2) + 1e-6 - meter).min()))
        cases += meter.numel()
    return Outcome(cases, (SEED + 2,), least, "what the arithmetic may cost minus the meter", cases)
