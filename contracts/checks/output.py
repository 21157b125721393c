"""The attention output: values as stored, total variation as metered, and the vector that decode returns."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from contracts.checks._adversary import exact_pair, keys, ragged
from contracts.checks._bounds import arithmetic, band_index
from contracts.checks._cells import SMALL, run, value_of
from contracts.checks._referee import Referee
from contracts.checks._stores import Case, exact_case, generator, normal, packed_case, served
from contracts.checks._truth import Attention, Interval, attention, integer_dots
from contracts.discharge import Outcome, Setting, Violation, discharges
from witcert import bounds, golden
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, HalfStepMeter
from witcert.kernels.formats import GROUP, Dither, PackedStore
from witcert.schemes.grid import STEP
from witcert.witness import Bands

SEED = 20261204


def _value_steps(case: Case) -> Tensor:
    """The stored scale of every value channel, float64 [N, S, Hkv, d]; 0 where values are exact."""
    store, slots = case.store, case.slots()
    if not isinstance(store, PackedStore):
        return torch.zeros(case.v.shape, dtype=torch.float64, device=case.q.device)
    rows = store.v_scale[slots // store.page_size, :, slots % store.page_size]
    return rows.double().repeat_interleave(GROUP, -1)


def _cases(g: torch.Generator, setting: Setting) -> list[tuple[Case, Any]]:
    n, size, heads, group = (8192, 24, 2, 16) if setting.full else (2, 7, 1, 2)
    lens = ragged(g, n, size)
    bands = Bands(64)
    made = exact_pair(g, "worst", n, size, heads, group, 64, torch.float16, band_index(bands, g.device))
    k = keys(g, "flat", n, size, heads, 64, torch.float16)
    values = {kind: keys(g, kind, n, size, heads, 64, torch.float16) for kind in ("normal", "massive", "huge", "tiny")}
    q = (0.3 * normal(g, n, heads * group, 64)).half()
    return [
        (exact_case(g, *made, values["massive"], lens, bands=bands), BandMeter()),
        (packed_case(g, q, k, values["huge"], lens), HalfStepMeter()),
        (packed_case(g, q, k, values["normal"], lens, dither=Dither(SEED, 2)), HalfStepMeter()),
        (packed_case(g, q, k, values["tiny"], lens, dither=Dither(SEED, 2, values=False)), HalfStepMeter()),
        (packed_case(g, q, k, values["massive"], lens, dither=Dither(SEED, 3, rounds=10)), HalfStepMeter()),
    ]


def _exact_distance(truth: Attention, v: Tensor, v_hat: Tensor, cell: int) -> Any:
    """|y - y_hat| at 50 digits."""
    case = truth.case
    n, head = divmod(cell, case.q.shape[1])
    h, seen, found = head // case.group, case.visible()[n], truth[cell]
    p = golden.exact_attention(found.p, found.eps)
    unit = torch.ones(1, dtype=torch.float64)
    total = mp.mpf(0)
    for channel in range(v.shape[-1]):
        a, b = (integer_dots(unit, x[n, h][seen][:, channel : channel + 1]) for x in (v, v_hat))
        total += (golden.average(p, a) - golden.average(found.p, b)) ** 2
    return mp.sqrt(total)


@discharges("output_bound.h_value", "output_bound.h_value_error", "output_bound.conclusion")
def error_of_output(setting: Setting) -> Outcome:
    """|y - y_hat| <= 2 meter max|v - v0| + sum p rho in every cell, rho from stored scales; and out is y_hat as rounded."""
    g, referee = generator(setting.device, SEED), Referee()
    for case, meter in _cases(g, setting):
        truth = attention(case)
        there = case.visible()[..., None, None]
        v, v_hat, steps = (torch.where(there, x.double(), 0.0).transpose(1, 2)
                           for x in (case.v, served(case, "v"), _value_steps(case)))  # [N, Hkv, S, d]
        seen = truth.alive
        # half a step in every channel
        rho = 0.5 * STEP * steps.norm(dim=-1) * (1 + 2.0**-40)
        lost = (v_hat - v).norm(dim=-1)
        near = Interval(lost * (1 - 2.0**-44), lost * (1 + 2.0**-44))
        referee.claim("value error", rho, near, None, lambda i: f"flat index {i} of [sequence, KV head, token]")

        total = truth.weight.sum(-1, keepdim=True).clamp_min(0.5)
        p_hat = torch.where(seen, truth.weight / total, 0.0)
        p = p_hat * torch.exp(-torch.where(seen, truth.eps, 0.0))
        p = p / p.sum(-1, keepdim=True).clamp_min(1e-300)
        got = run(case, meter, SMALL)
        reading = value_of(got.readings[0]).double()
        tv = reading.view(p.shape[:3])
        some = seen.any(-1)
        y, y_hat = p @ v, p_hat @ v_hat
        size = v.norm(dim=-1).amax(-1) + v_hat.norm(dim=-1).amax(-1)
        slack = (8 * truth.rho + 2 * torch.where(seen, truth.eps_error, 0.0).amax(-1) + 1e-12) * size[..., None]
        apart = (y - y_hat).norm(dim=-1)
        slack = torch.where(seen.sum(-1) == 1, 1e-14 * apart, slack)  # the weight of a lone token is exactly 1
        real = Interval((apart - slack).clamp_min(0.0).flatten(), torch.where(some, apart + slack, 0.0).flatten())
        count = there.sum(1).clamp_min(1).double()[:, :, None]  # [N, 1, 1, 1]
        for center in (torch.zeros_like(v[:, :, :1]), v.sum(2, keepdim=True) / count):
            radius = torch.where(case.visible()[:, None], (v - center).norm(dim=-1), 0.0).amax(-1) * (1 + 2.0**-40)
            safe = torch.where(some[..., None], p_hat, 1.0 / p_hat.shape[-1])
            every = [x.flatten(0, 2) for x in (tv, radius[..., None].expand_as(tv), safe, rho[:, :, None].expand_as(safe))]
            tv_, radius_, p_, rho_ = every[0].reshape(-1), every[1].reshape(-1), every[2], every[3]
            value = bounds.output_bound(tv_, radius_, p_, rho_)
            exact = partial(_exact_distance, truth, v, v_hat)
            referee.claim("output", value, real, exact, truth.place, cells=True, margin=True)
        _as_rounded(truth, got.out, p_hat, v_hat, steps, y_hat)
        referee.cases += reading.numel()
    return referee.outcome(SEED, unit="bound minus error of the output, 50 digits")


def _as_rounded(truth: Attention, out: Tensor, p: Tensor, v_hat: Tensor, steps: Tensor, y_hat: Tensor) -> None:
    """The returned vector is the served one but for half-precision weights, values and result."""
    coarse = 2.0**-6 if out.dtype == torch.bfloat16 else 2.0**-8
    shift = 4 * arithmetic(truth).amax(-1, keepdim=True) + coarse
    magnitude = p @ v_hat.abs()
    small = v_hat.abs().amax((-1, -2)) * p.shape[-1] * 2.0**-22 + steps.amax((-1, -2)) * 2.0**-9 + 2.0**-23
    allowed = shift * magnitude + small[:, :, None, None]
    off = (out.double().view_as(y_hat) - y_hat).abs()
    bad = ~(off <= allowed) & truth.alive.any(-1, keepdim=True)
    if bool(bad.any()):
        n, h, member, channel = bad.nonzero()[0].tolist()
        found, want = float(out.view_as(y_hat)[n, h, member, channel]), float(y_hat[n, h, member, channel])
        raise Violation(f"output {found!r} is not near {want!r}: sequence {n}, KV head {h}, query {member}, channel {channel}")
    none = ~truth.alive.any(-1)
    if bool((out.view_as(y_hat)[none] != 0).any()):
        raise Violation("a query without tokens has an output that is not 0")
