"""Recorded attention under a scheme, all cells of all texts, and what is read off them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments.common import Setting
from witcert import schemes
from witcert.guarantees import Labelled
from witcert.meter import Cells, ExactAttention
from witcert.observe.activations import Activations, LayerActivations
from witcert.observe.measure import SchemeCells, budget_for, measure
from witcert.schemes import Scheme, Served, Site

__all__ = ["Readings", "area", "curve", "layers", "metered", "quantiles", "readings", "served_keys"]


def layers(setting: Setting) -> Iterator[tuple[Activations, int, LayerActivations, ExactAttention]]:
    """Every layer of every recording (of the first one in a quick run) with its exact side on the device."""
    recorded = list(zip(setting.recordings, setting.exact(), strict=True))
    for recording, sides in recorded[:1] if setting.quick else recorded:
        for i, (layer, side) in enumerate(zip(recording.layers, sides, strict=True)):
            yield recording, i, layer, side


def served_keys(scheme: Scheme, layer: LayerActivations, side: ExactAttention, index: int, seed: int) -> Served:
    """What the scheme serves for a layer's keys in a fresh cache."""
    keys = layer.k.to(side.k.device)
    slots = torch.arange(keys.shape[1], device=keys.device)  # on the device, so that the dither is drawn there
    return scheme(keys, Site(index, "k", slots, torch.zeros_like(slots), seed))


@dataclass(frozen=True, eq=False)
class Readings:
    """All cells of one scheme, float64 [N] on the CPU: the truth, every reading with its guarantee, the published forms."""

    tv: Tensor
    meters: list[Labelled]
    eform: Tensor
    tanh_rival: Tensor

    def value(self, index: int) -> Tensor:
        """Numbers of one reading."""
        return torch.as_tensor(self.meters[index].value)

    def below(self, index: int) -> int:
        """Cells in which a reading is below the truth; NaN counts."""
        return int((~(self.value(index) >= self.tv)).sum())

    @property
    def violations(self) -> int:
        """Of the proved readings."""
        return sum(self.below(i) for i, m in enumerate(self.meters) if m.label == "proved")


def _gather(tv: list[Tensor], eform: list[Tensor], rival: list[Tensor], meters: list[list[Labelled]]) -> Readings:
    together = [
        type(ms[0])(torch.cat([torch.as_tensor(m.value).flatten() for m in ms]), ms[0].theorem, ms[0].delta)
        for ms in zip(*meters, strict=True)
    ]
    flat = [torch.cat([x.flatten() for x in part]) for part in (tv, eform, rival)]
    return Readings(flat[0], together, flat[1], flat[2])


def readings(runs: list[SchemeCells]) -> Readings:
    """All texts of one scheme together."""
    return _gather([r.tv for r in runs], [r.eform for r in runs], [r.tanh_rival for r in runs], [r.meters for r in runs])


def metered(setting: Setting, scheme: Scheme | str) -> list[SchemeCells]:
    """Meter every text under one scheme, without the worst-case sample."""
    chosen = schemes.get(scheme) if isinstance(scheme, str) else scheme
    return [
        measure(recording, sides, chosen, budget_for(recording, tau_k=setting.tau), seed=setting.seed, sample_per_layer=1)
        for recording, sides in zip(setting.recordings, setting.exact(), strict=True)
    ]


def cells_of(found: list[Cells]) -> Readings:
    """The cells of several layers together."""
    return _gather(
        [c.tv.cpu() for c in found], [c.eform.cpu() for c in found], [c.tanh_rival.cpu() for c in found],
        [[m.map(Tensor.cpu) for m in c.meters] for c in found],
    )  # fmt: skip


def quantiles(x: Tensor) -> dict[str, float]:
    """5th, 50th, 95th percentile and maximum; NaN where there is nothing."""
    if not x.numel():
        return dict.fromkeys(("p5", "p50", "p95", "max"), float("nan"))
    sorted_ = x.double().sort().values
    at = {n: sorted_[min(len(x) - 1, int(q * len(x)))] for n, q in (("p5", 0.05), ("p50", 0.5), ("p95", 0.95))}
    return {n: float(v) for n, v in at.items()} | {"max": float(sorted_[-1])}


def area(score: Tensor, danger: Tensor) -> float:
    """Area under the ROC curve of a score (higher: more dangerous), ties counted half; NaN without both classes."""
    positive, negative = int(danger.sum()), int((~danger).sum())
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(score.numpy(), return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # mean rank of the ties, from 1
    return float((rank[danger.numpy()].sum() - positive * (positive + 1) / 2) / (positive * negative))


def curve(score: Tensor, danger: Tensor, points: int = 200) -> dict[str, list[float]]:
    """The ROC curve: false alarms and detections at thresholds that fall on distinct scores, at most that many."""
    order = score.argsort(descending=True)
    s, hit = score[order], danger[order].double()
    last = torch.cat([s[1:] != s[:-1], torch.tensor([True])])
    detected = (hit.cumsum(0) / hit.sum())[last]
    alarms = ((1 - hit).cumsum(0) / (1 - hit).sum())[last]
    detected, alarms = (torch.cat([torch.zeros(1, dtype=torch.float64), x]) for x in (detected, alarms))
    take = torch.linspace(0, len(detected) - 1, min(points, len(detected))).round().long()
    return {"false_alarms": [round(x, 5) for x in alarms[take].tolist()],
            "detected": [round(x, 5) for x in detected[take].tolist()]}  # fmt: skip
