"""The real-number bounds that a reading must not be below, for all cells in float64 and for one cell at 50 digits.

They are written from the statements, on the true residual (band norms) or the stored scales (half a step, radii of the
dither's law), without any allowance for a kernel's arithmetic: ``band_cauchy_schwarz``, ``half_step``, ``two_sided_tail``,
``adaptive_radius``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from contracts.checks._stores import stored_steps, stored_witness
from contracts.checks._truth import Attention, Interval, U
from witcert import golden
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.formats import GROUP, ExactStore
from witcert.witness import Bands

__all__ = ["Bounds", "arithmetic", "band_index", "real_bounds", "stored_bounds"]

Meter = BandMeter | HalfStepMeter | TierBMeter
RELATIVE = 2.0**-42
"""Error of the float64 bounds: at most 2 (d + 16) roundings, d <= 256."""


def band_index(bands: Bands, device: torch.device) -> Tensor:
    """Which channel is in which band, float64 0 or 1 [d, B]."""
    return torch.nn.functional.one_hot(bands.index, bands.bands).double().to(device)


def _kappa_squared(d: int, delta: float) -> float:
    return min(3.0 * d, d + math.sqrt(4.5 * d * -math.log(delta))) if delta > 0 else 3.0 * d


def _by_steps(truth: Attention, meter: HalfStepMeter | TierBMeter, steps: Tensor) -> list[Tensor]:
    q, s, scale = truth.q.abs(), steps, truth.case.scale
    half = 0.5 * scale * (q @ s.transpose(2, 3))
    if isinstance(meter, HalfStepMeter):
        return [half]
    energy = scale * torch.sqrt(q.square() @ s.square().transpose(2, 3) / 12)
    channels = q.shape[-1] - _outliers(truth)
    adaptive = math.sqrt(_kappa_squared(channels, meter.budget.delta_adaptive(meter.tokens)))
    tight = math.sqrt(2 * (math.log(2 * meter.tokens) - math.log(meter.budget.delta_loc)))
    return [torch.minimum(half, factor * energy + half / 256) for factor in (adaptive, tight)]


def _outliers(truth: Attention) -> int:
    store = truth.case.store
    return 0 if isinstance(store, ExactStore) else 2 * store.outlier_pairs


def _with_sink(truth: Attention, c: Tensor) -> Tensor:
    c = torch.where(truth.alive[..., : c.shape[-1]], c, 0.0)
    return torch.nn.functional.pad(c, (0, truth.logit.shape[-1] - c.shape[-1]))


def steps_of(truth: Attention) -> Tensor:
    """Stored scales [N, Hkv, S, d], 0 where nothing is seen."""
    return torch.where(truth.case.visible()[..., None, None], stored_steps(truth.case), 0.0).transpose(1, 2)


def _bands(truth: Attention, norms: Tensor) -> Tensor:
    bands = truth.case.bands
    assert bands is not None
    index = band_index(bands, truth.q.device)
    return truth.case.scale * (torch.sqrt(truth.q.square() @ index) @ norms.transpose(2, 3))


class Bounds:
    """c of one reading [N, Hkv, G, T], and what a kernel reports from it: intervals of C, log A and the meter [cells].

    relative : error of the float64 c; 0 where the bounds are these numbers.
    """

    def __init__(
        self, truth: Attention, meter: Meter, reading: int, c: Tensor, steps: Tensor | None, relative: float = RELATIVE
    ) -> None:
        self.relative = relative
        self.truth, self.meter, self.reading, self.steps = truth, meter, reading, steps
        self.c = _with_sink(truth, c)
        top = self.c.amax(-1)
        self.c_max = Interval(*(x.flatten() for x in (top * (1 - relative), top * (1 + relative))))
        self.log_a = self._log_a(top)
        low, high = (_meter(getattr(self.log_a, k), getattr(self.c_max, k)) for k in ("low", "high"))
        self.meter_value = Interval(low * (1 - 2.0**-45), high * (1 + 2.0**-45))

    def _log_a(self, top: Tensor) -> Interval:
        w, rho, terms = self.truth.weight, self.truth.rho, self.c.shape[-1]
        total = w.sum(-1).clamp_min(0.5)
        stretch = ((1 + rho) / (1 - rho)).square() * (1 + 4 * (terms + 40) * U) * (1 + 1.01 * self.relative * (1 + top))
        excess = (w * torch.expm1(self.c.clamp_max(600.0))).sum(-1) / total
        near = (top < 600.0) & torch.isfinite(stretch)
        value = torch.log1p(excess)
        shifted = self.truth.below + self.c
        far = torch.logsumexp(shifted, -1) - total.log()
        slack = 8 * (terms + 700 + top) * U + 2 * rho + self.relative * top
        low = torch.where(near, value / stretch * (1 - 16 * U), far - slack)
        high = torch.where(near, value * stretch * (1 + 16 * U), far + slack)
        low, high = torch.nan_to_num(low, 0.0).clamp_min(0.0), torch.nan_to_num(high, math.inf, math.inf)
        # a token whose weight is lost or not known: either it adds nothing here too (e^-100 each), or nothing is known
        lost = self.truth.alive & (~self.truth.matters | (self.truth.below < -700.0)) & ~(shifted < -100.0)
        some_lost = lost.any(-1) & near
        unknown = (self.truth.alive & ~self.truth.matters & ~(shifted < -100.0)).any(-1)
        low = torch.where(some_lost | unknown, 0.0, low)
        high = torch.where(some_lost | unknown, math.inf, torch.where(top > 0, high + terms * 1e-40, high))
        some = self.truth.alive.any(-1)
        return Interval(torch.where(some, low, 0.0).flatten(), torch.where(some, high, 0.0).flatten())

    def exact(self, cell: int) -> list[Any]:
        """c of every token of a cell at 50 digits."""
        return _exact_bounds(self, cell)

    def exact_c_max(self, cell: int) -> Any:
        """C at 50 digits."""
        return max(self.exact(cell), default=mp.mpf(0))

    def exact_log_a(self, cell: int) -> Any:
        """log A at 50 digits."""
        p = self.truth[cell].p
        return mp.log(golden.acert(p, self.exact(cell))) if p else mp.mpf(0)

    def exact_meter(self, cell: int) -> Any:
        """The meter at 50 digits."""
        p = self.truth[cell].p
        return golden.meter(p, self.exact(cell)) if p else mp.mpf(0)


def _meter(log_a: Tensor, c_max: Tensor) -> Tensor:
    small = -torch.expm1(-log_a)
    large = 1.0 / (1.0 + 4.0 * torch.exp(-2.0 * log_a))
    return torch.minimum(torch.where(log_a <= math.log(2.0), small, large), torch.tanh(0.5 * c_max))


def real_bounds(truth: Attention, meter: Meter, steps: Tensor | None = None) -> list[Bounds]:
    """The bounds of every reading of a meter; steps [N, Hkv, S, d]: those of the case unless given."""
    if isinstance(meter, BandMeter):
        assert truth.case.bands is not None
        index = band_index(truth.case.bands, truth.q.device)
        norms = torch.sqrt((truth.k_hat - truth.k).square() @ index)
        return [Bounds(truth, meter, 0, _bands(truth, norms), None)]
    steps = steps_of(truth) if steps is None else steps
    return [Bounds(truth, meter, i, c, steps) for i, c in enumerate(_by_steps(truth, meter, steps))]


def stored_bounds(truth: Attention, meter: Meter) -> Tensor:
    """Deterministic per-token bounds from what the store keeps (witness, or scales), rounded outward [N, Hkv, G, T]."""
    if isinstance(meter, BandMeter):
        seen = truth.case.visible()[..., None, None]
        w = torch.where(seen, stored_witness(truth.case), 0.0).transpose(1, 2)
        c = _bands(truth, w)
    else:
        c = _by_steps(truth, HalfStepMeter(), steps_of(truth))[0] * (1 + 2.0**-14)
    return _with_sink(truth, torch.nan_to_num(c, math.inf)) * (1 + 2.0**-20)


def _exact_bounds(bounds: Bounds, cell: int) -> list[Any]:
    truth, meter = bounds.truth, bounds.meter
    case = truth.case
    n, head = divmod(cell, case.q.shape[1])
    h, member = divmod(head, case.group)
    seen = case.visible()[n]
    q, scale = truth.q[n, h, member].abs().tolist(), mp.mpf(case.scale)
    sink = [] if case.sinks is None else [mp.mpf(0)]
    if isinstance(meter, BandMeter):
        assert case.bands is not None
        index = case.bands.index.tolist()
        members = [[i for i in range(len(q)) if index[i] == b] for b in range(case.bands.bands)]
        norms = [golden.norm([q[i] for i in m]) for m in members]
        pairs = zip(truth.k_hat[n, h][seen].tolist(), truth.k[n, h][seen].tolist(), strict=True)
        residuals = [[golden.number(a) - golden.number(b) for a, b in zip(*pair, strict=True)] for pair in pairs]
        norms_of = [[golden.norm([r[i] for i in m]) for m in members] for r in residuals]
        return [golden.band_bound(norms, w, scale) for w in norms_of] + sink
    assert bounds.steps is not None
    rows = bounds.steps[n, h][seen].tolist()
    half = [golden.half_step(q, s, scale) for s in rows]
    if isinstance(meter, HalfStepMeter):
        return half + sink
    store = case.store
    assert not isinstance(store, ExactStore)
    out = set() if store.outlier_channels is None else set(store.outlier_channels[h].tolist())
    kept = [i for i in range(len(q)) if i not in out]
    q_kept, s_kept = [q[i] for i in kept], [[s[i] for i in kept] for s in rows]
    budget = meter.budget
    if bounds.reading == 0:
        delta = budget.delta_adaptive(meter.tokens)
        radius = [golden.adaptive_radius(q_kept, s, scale, delta=delta) for s in s_kept]
    else:
        radius = [
            golden.subgaussian_radius(q_kept, s, scale, tokens=meter.tokens, delta_loc=budget.delta_loc) for s in s_kept
        ]
    return [min(a, b) for a, b in zip(half, radius, strict=True)] + sink


def arithmetic(truth: Attention) -> Tensor:
    """What decode's computed logits may differ from the real served ones by, natural units [N, Hkv, G, T].

    The errors of docs/error-budget/decode.md, of which the bounds pay twice.
    """
    case, q = truth.case, truth.q.abs()
    if isinstance(case.store, ExactStore):
        error = truth.size * (dot_gamma(q.shape[-1]) / 2)
    else:
        steps, k_hat = steps_of(truth), truth.k_hat.abs()
        kept = torch.ones(q.shape[1], q.shape[-1], device=q.device, dtype=torch.float64)
        if case.store.outlier_channels is not None:
            kept.scatter_(1, case.store.outlier_channels.long(), 0.0)
        inside = (q * kept[:, None]).reshape(*q.shape[:-1], -1, GROUP)
        unit = inside.amax(-1) / 32512
        rest = 2100 * unit + 1.2254e-4 * (inside.sum(-1) + 17 * unit)  # [N, Hkv, G, d/32]
        error = rest @ steps.reshape(*steps.shape[:-1], -1, GROUP).amax(-1).transpose(2, 3)
        out = 1 - kept[:, None]
        error += 36 * 2.0**-23 * ((q * out) @ (k_hat * out).transpose(2, 3))
        error += 2.0**-25 * (k_hat * out).sum(-1)[:, :, None, :]
        error = torch.nn.functional.pad(error * case.scale, (0, truth.logit.shape[-1] - error.shape[-1]))
    if case.softcap is not None:
        error = error + case.softcap * 2.0**-19
    if case.sinks is not None:
        error[..., -1] = truth.logit[..., -1].abs() * 2.0**-23
    return torch.where(truth.alive, error, 0.0) * (1 + 1e-6)
