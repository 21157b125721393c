"""The audit itself: every layer and head of recorded texts under one scheme, for several numbers of outlier pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from witcert import schemes
from witcert.audit.outliers import kept_channels, outlier_channels, rank_pairs
from witcert.audit.traffic import PAGE, layer_traffic
from witcert.errors import InputError
from witcert.observe.activations import Activations
from witcert.observe.measure import budget_for, exact_layers
from witcert.schemes import Scheme, Site

__all__ = ["Audit", "AuditConfig", "Variant", "audit"]

TAUS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
PACKED = ("rtn_int8", "dither_int8")
"""Schemes of the pool's packed formats, which can keep outlier pairs."""


@dataclass(frozen=True)
class AuditConfig:
    """Settings of an audit, validated.

    Parameters
    ----------
    scheme : a registered scheme. guarantee : of the reading that decides.
    tau : threshold of a certificate. delta_req : failure budget of a request, for dithered schemes.
    budget : bytes that a request may page in; None takes a tenth of the exact cache of the shortest audited text.
    pairs : numbers of outlier pairs to try; only the packed formats keep any.
    bands, seed, device : as in ``ObserveConfig``.
    """

    scheme: str = "rtn_int8"
    guarantee: str = "proved"
    tau: float = 0.2
    delta_req: float = 1e-2
    budget: int | None = None
    pairs: tuple[int, ...] = (0, 2, 4, 8, 16)
    bands: int = 16
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        schemes.get(self.scheme)
        for name in ("tau", "delta_req"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise InputError(f"{name}={getattr(self, name)!r} is outside (0, 1)")
        if self.guarantee not in ("proved", "proved-nonadaptive"):
            raise InputError(f"guarantee={self.guarantee!r} is neither 'proved' nor 'proved-nonadaptive'")
        if self.budget is not None and self.budget < 0:
            raise InputError(f"budget={self.budget!r} bytes is below 0")
        if not self.pairs or any(m not in (0, 2, 4, 8, 16) for m in self.pairs):
            raise InputError(f"pairs={self.pairs!r}: expected numbers out of 0, 2, 4, 8, 16")
        if self.bands < 1:
            raise InputError(f"bands={self.bands} must be at least 1")

    @property
    def taus(self) -> tuple[float, ...]:
        """The thresholds whose traffic is counted, ascending; tau is one of them."""
        return tuple(sorted({*TAUS, self.tau}))


@dataclass(frozen=True, eq=False)
class Variant:
    """One number of outlier pairs: everything measured, over the audited texts.

    Parameters
    ----------
    pairs : m. channels : int32 [L, Hkv, 2m], or None for m = 0. bytes_per_token : of K and V of one KV head.
    meter, tv : [L, Hq, cells], all audited queries side by side.
    pages, step_pages : [texts, taus, L, Hkv], as in :class:`witcert.audit.traffic.LayerTraffic`.
    violations : cells in which a proved reading is below the truth.
    """

    pairs: int
    channels: Tensor | None
    bytes_per_token: float
    meter: Tensor
    tv: Tensor
    pages: Tensor
    step_pages: Tensor
    violations: int


@dataclass(frozen=True, eq=False)
class Audit:
    """All variants, and what they were measured on.

    page_bytes : of one exact page of one KV head, [L] (keys and values in 16 bits). cache_bytes : of a text's whole exact
    cache, [texts]. calibrated_on, audited_on : names of texts; held_out says that they differ.
    """

    config: AuditConfig
    budget: int
    variants: list[Variant]
    page_bytes: Tensor
    cache_bytes: Tensor
    calibrated_on: str
    audited_on: list[str]
    held_out: bool
    about: dict[str, Any]

    @property
    def violations(self) -> int:
        """Of all variants."""
        return sum(v.violations for v in self.variants)


def _variant(
    scheme: Scheme, recordings: Sequence[Activations], sides: Sequence[Sequence[Any]], channels: Tensor | None,
    config: AuditConfig, tick: Callable[[str], None],
) -> Variant:  # fmt: skip
    meters: list[Tensor] = []
    tvs: list[Tensor] = []
    pages, steps, violations = [], [], 0
    head_dim = recordings[0].layers[0].k.shape[-1]
    for recording, exact in zip(recordings, sides, strict=True):
        tick(f"m = {0 if channels is None else channels.shape[-1] // 2}: {recording.domain}")
        budget = budget_for(recording, delta_req=config.delta_req, tau_k=config.tau)
        found = []
        for i, (layer, side) in enumerate(zip(recording.layers, exact, strict=True)):
            of = kept_channels(scheme, None if channels is None else channels[i], layer.k.shape[-1])
            slots = torch.arange(layer.k.shape[1], device=side.k.device)  # on the device, so that the dither is drawn there
            site = Site(i, "k", slots, torch.zeros_like(slots), config.seed)
            served = of(layer.k.to(side.k.device), site)
            found.append(layer_traffic(side, served, budget, config.taus, config.guarantee))
        violations += sum(x.violations for x in found)
        meters.append(torch.stack([torch.as_tensor(x.meter.value) for x in found]))
        tvs.append(torch.stack([x.tv for x in found]))
        pages.append(torch.stack([x.pages for x in found], 1))
        steps.append(torch.stack([x.step_pages for x in found], 1))
    one = kept_channels(scheme, None if channels is None else channels[0], head_dim)
    return Variant(
        0 if channels is None else channels.shape[-1] // 2, channels,
        one.bytes_per_token(head_dim, "k") + one.bytes_per_token(head_dim, "v"),
        torch.cat(meters, -1), torch.cat(tvs, -1), torch.stack(pages), torch.stack(steps), violations,
    )  # fmt: skip


def audit(
    recordings: Sequence[Activations], config: AuditConfig, tick: Callable[[str], None] = lambda what: None
) -> Audit:
    """Meter the recordings under the scheme for every number of outlier pairs.

    Outlier pairs are chosen on the first recording; with more than one, only the others are audited, so that no number
    comes from the text that a choice was made on.
    """
    if not recordings:
        raise InputError("audit: no recording was given")
    scheme = schemes.get(config.scheme)
    held_out = len(recordings) > 1
    audited = list(recordings[1:]) if held_out else list(recordings)
    sides = [exact_layers(r, config.bands, config.device) for r in audited]
    first = recordings[0]
    widths = {x.k.shape[-1] for x in first.layers}
    numbers = [m for m in config.pairs if m == 0 or (scheme.name in PACKED and len(widths) == 1 and m < min(widths) // 2)]
    ranked = None
    if max(numbers, default=0) > 0:
        tick(f"choosing outlier pairs on {first.domain}")
        ranked = rank_pairs(first, max(numbers), config.device)
    variants = []
    for m in numbers or [0]:
        chosen = None if m == 0 or ranked is None else outlier_channels(ranked, m, min(widths), first.pairing)
        variants.append(_variant(scheme, audited, sides, chosen, config, tick))
    page = torch.tensor([PAGE * 2 * (x.k.shape[-1] + x.v.shape[-1]) for x in first.layers])
    cache = torch.tensor([sum(2 * x.k.numel() + 2 * x.v.numel() for x in r.layers) for r in audited])
    budget = int(cache.min()) // 10 if config.budget is None else config.budget
    from witcert.observe.job import about

    return Audit(
        config, budget, variants, page, cache, first.domain, [r.domain for r in audited], held_out, about(audited)
    )
