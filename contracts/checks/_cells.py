"""Runs decode on a case and puts every claim about its readings before the referee."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from contracts.checks._bounds import Bounds, Meter, arithmetic, real_bounds, stored_bounds
from contracts.checks._referee import Referee
from contracts.checks._stores import Case
from contracts.checks._truth import Attention, Interval, attention
from witcert import bounds
from witcert.kernels.decode import BandMeter, TierBMeter, Tuning, decode
from witcert.kernels.decode.launch import DecodeOutput, Reading

__all__ = ["SMALL", "judge", "judge_reading", "lse_is_served", "run", "variation_forms"]

SMALL = Tuning(16, splits=1)
"""The cut of the smallest work; what a full run takes for long sequences is decode's own choice."""
LONG = 2048
"""Tokens from which no cell is recomputed at 50 digits: there float64's interval must decide."""


def run(case: Case, meter: Meter | None, tuning: Tuning | None = SMALL) -> DecodeOutput:
    """Decode on a case."""
    if isinstance(meter, BandMeter) and case.bands is not None:
        meter = BandMeter(case.bands.pairing)
    return decode(case.q, case.store, case.table, meter=meter, tuning=tuning, **case.options())  # type: ignore[arg-type]


def value_of(reading: Reading) -> Tensor:
    """The meter of a reading as a tensor."""
    return torch.as_tensor(reading.meter.value)


def judge_reading(referee: Referee, what: str, reading: Reading, real: Bounds, *, tv: bool = True) -> None:
    """meter >= TV (unless the label does not promise it here), and meter, log A and C at least the real ones."""
    truth = real.truth
    meter = value_of(reading).flatten()
    short = truth.logit.shape[-1] <= LONG
    if tv:
        referee.claim(f"{what}: meter >= TV", meter, truth.tv, truth.exact_tv if short else None, truth.place,
                      cap=1.0, cells=True, margin=True)  # fmt: skip
    referee.claim(f"{what}: C", reading.c_max, real.c_max, real.exact_c_max if short else None, truth.place)
    referee.claim(f"{what}: log A", reading.log_a, real.log_a, real.exact_log_a if short else None, truth.place)
    referee.claim(f"{what}: meter of the real bounds", meter, real.meter_value, real.exact_meter if short else None,
                  truth.place, cap=1.0)  # fmt: skip
    if not bool(((meter >= 0) & (meter <= 1)).all()):
        referee.claim(f"{what}: meter in [0, 1]", -meter.clamp_max(1.0), Interval(*(torch.zeros_like(meter),) * 2), None,
                      truth.place)  # fmt: skip


def lse_is_served(referee: Referee, truth: Attention, got: DecodeOutput, sums: float = 2.0**-14) -> None:
    """The log-sum-exp is that of the served logits: each token counted once, within the arithmetic of its logit.

    sums : relative error of the mass, from exponentials and additions.
    """
    want = truth.logit.masked_fill(~truth.alive, -math.inf).logsumexp(-1).flatten()
    error = arithmetic(truth).amax(-1).flatten()
    known = torch.isfinite(want) & torch.isfinite(error)
    none = ~truth.alive.any(-1).flatten()
    lse = got.lse.double().flatten()
    if not bool((lse[none] == -math.inf).all()):
        referee.within("lse of no token", torch.where(none, lse, 0.0), torch.zeros_like(lse), 0.0, truth.place)
    allowed = error + sums + 2.0**-20 + 2.0**-21 * want.abs()
    referee.within("lse", torch.where(known, lse, 0.0), torch.where(known, want, 0.0), allowed.nan_to_num(1.0), truth.place)


def variation_forms(referee: Referee, truth: Attention, reading: Reading, meter: Meter) -> None:
    """Every form of the bound holds: of the kernel's log A and C, and with A- of what the store keeps."""
    forms = {
        "tv_le_eform": bounds.eform(reading.log_a),
        "tv_le_sharp": bounds.sharp(reading.log_a),
        "tv_le_tanh_half": bounds.tanh_half(reading.c_max),
        "tv_le_tanh_rival": bounds.tanh_rival(reading.c_max),
    }
    for name, value in forms.items():
        referee.claim(name, value, truth.tv, truth.exact_tv, truth.place, cap=1.0)
    some = truth.alive.any(-1) & torch.isfinite(truth.rho)
    index = some.flatten().nonzero()[:, 0]
    if not len(index):
        return
    c = stored_bounds(truth, meter)[some]
    p = truth.weight[some] / truth.weight[some].sum(-1, keepdim=True)
    sums = bounds.accumulate(p, c)
    more = {
        "tv_le_one_sub_ratio": bounds.one_sub_ratio(sums.log_a, sums.log_a_neg),
        "tv_le_two_sided": bounds.two_sided(sums.log_a, sums.log_a_neg),
        "tv_le_retention": bounds.retention(p, c),
    }
    real = Interval(truth.tv.low[index], truth.tv.high[index])
    for name, value in more.items():
        referee.claim(name, value, real, lambda i: truth[int(index[i])].tv, lambda i: truth.place(int(index[i])), cap=1.0)


def judge(
    referee: Referee, case: Case, meter: Meter, *, tuning: Tuning | None = SMALL, adaptive: bool = False,
    forms: bool = False, truth: Attention | None = None,
) -> tuple[DecodeOutput, Attention]:  # fmt: skip
    """One decode step with every claim; adaptive: the query or the keys saw the dither, so only ``proved`` holds TV."""
    got = run(case, meter, tuning)
    truth = attention(case) if truth is None else truth
    for i, (reading, real) in enumerate(zip(got.readings, real_bounds(truth, meter), strict=True)):
        name = f"{reading.meter.theorem} of {type(meter).__name__}"
        judge_reading(referee, name, reading, real, tv=not (adaptive and i == 1))
    if forms and not (adaptive and isinstance(meter, TierBMeter)):
        variation_forms(referee, truth, got.readings[-1], meter)
    lse_is_served(referee, truth, got)
    return got, truth


def with_queries(case: Case, q: Tensor) -> Case:
    """The same cache asked by other queries."""
    return replace(case, q=q.contiguous())
