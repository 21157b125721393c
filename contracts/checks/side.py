"""Repaired pages that go on growing: new rows of theirs lie exact in the side pool, and both parts are read as one cell."""

from __future__ import annotations

import math

import torch

from contracts.checks._adversary import keys
from contracts.checks._bounds import band_index, real_bounds, steps_of
from contracts.checks._cells import judge_reading
from contracts.checks._referee import Referee
from contracts.checks._stores import generator, normal, packed_case, served
from contracts.checks._truth import attention
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert.budget import Budget
from witcert.guarantees import Proved
from witcert.kernels.decode import BandMeter, DecodeOutput, PagePart, Reading, TierBMeter, decode, merge
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable
from witcert.kernels.side import split_table, write_exact
from witcert.witness import Bands

SEED = 20261207
D = 64


def _side(pages: int, device: torch.device) -> ExactStore:
    """A side pool of NaN, so that what was not written shows."""
    k, v = (torch.full((pages * 16, 1, D), math.nan, dtype=torch.float16, device=device) for _ in range(2))
    return ExactStore(k, v, torch.full((pages * 16, 1, 16), math.nan, dtype=torch.float16, device=device))


@discharges(
    "repair_exact.h_repaired", "repair_residual_zero.conclusion", "lse_merge.conclusion", "meter_sound.conclusion"
)
def grown(setting: Setting) -> Outcome:
    """Rows written to repaired pages: exact bits, the witness of an exact key, no other row; both parts bound the cell."""
    g, referee = generator(setting.device, SEED), Referee()
    n, heads, group, size = (1024, 3, 8, 64) if setting.full else (3, 2, 1, 40)
    lens = torch.full((n,), size, device=g.device)
    lens[0] = size - 9
    k, v = (keys(g, "normal", n, size, heads, D, torch.float16) for _ in range(2))
    q = normal(g, n, heads * group, D).half()
    case = packed_case(g, q, k, v, lens, page_size=16, dither=Dither(SEED, 5, values=False))
    assert isinstance(case.store, PackedStore)
    count = len(case.store.k_code)
    pairs = torch.rand((count, heads), generator=g, device=g.device) < 0.5
    free = torch.randperm(count * heads, generator=g, device=g.device).view(count, heads)
    where = torch.where(pairs, free, -1).int()
    store, largest = _side(count * heads, g.device), torch.zeros(heads, device=g.device)
    seen, slots = case.visible(), case.slots()
    write_exact(
        k.flatten(0, 1).contiguous(), v.flatten(0, 1).contiguous(), torch.where(seen, slots, -1).flatten(), where, store,
        largest, page_size=16, bands=Bands(D), gamma=dot_gamma(D),
    )  # fmt: skip

    page = where.long()[slots // 16]  # [N, S, Hkv]
    exact = seen[..., None] & (page >= 0)
    at = (page * 16 + (slots % 16)[..., None])[exact]
    for name, there, here in (("keys", store.k, k), ("values", store.v, v)):
        wrong = (there[at, 0].view(torch.int16) != here[exact].view(torch.int16)).any(-1)
        if bool(wrong.any()):
            raise Violation(f"{name}: {int(wrong.sum())} of {len(at)} rows of repaired pages are not exact")
        if int((~there.isnan().all(-1)).sum()) != len(at):
            raise Violation(f"{name}: rows were written that belong to no repaired page")
    norms = torch.sqrt(k[exact].double().square() @ band_index(Bands(D), g.device)) * dot_gamma(D)
    assert store.witness is not None
    w = store.witness[at, 0].double()
    if not bool((w >= norms * (1 - 2.0**-40)).all() and (w <= norms * (1 + 2.0**-9) + 2.0**-23).all()):
        raise Violation("the witness of an exact row is not gamma times its norm, rounded up")
    real = torch.linalg.vector_norm(k.double()[seen], dim=-1).amax(0)
    if not bool((largest.double() >= real).all()):
        raise Violation(f"the largest keys are {largest.tolist()}; they have norms {real.tolist()}")

    parts, pages = split_table(case.table, where)
    meter = TierBMeter(Budget(1, heads * group, heads), 64)
    first = decode(q, case.store, case.table, scale=case.scale, meter=meter, part=PagePart(parts, 0))
    second = decode(
        q.view(n * heads, group, D), store, PageTable(pages, lens.int().repeat_interleave(heads), 16), scale=case.scale,
        meter=BandMeter(), part=PagePart(parts.view(n * heads, 1, -1), 1),
    )  # fmt: skip
    shape = n, heads * group
    readings = tuple(
        Reading(Proved(torch.as_tensor(r.meter.value).view(shape), r.meter.theorem), r.log_a.view(shape), r.c_max.view(shape))
        for r in second.readings
    )
    second = DecodeOutput(second.out.view(*shape, D), second.lse.view(shape), readings)
    got = merge(first, second, tokens=case.table.max_tokens)
    truth = attention(case, torch.where(exact[..., None], k.double(), served(case)))
    steps = torch.where(exact[..., None].transpose(1, 2), 0.0, steps_of(truth))
    for reading, bound in zip(got.readings, real_bounds(truth, meter, steps), strict=True):
        judge_reading(referee, f"{reading.meter.theorem} beside grown pages", reading, bound)
    return referee.outcome(SEED, note=f"{len(at)} rows of repaired pages")
