"""Apply a scheme to a recording and meter every cell; keep what the report needs, forget the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field

import torch
from torch import Tensor

from witcert import bounds
from witcert.budget import Budget
from witcert.errors import InputError, WitCertError
from witcert.guarantees import Labelled
from witcert.meter import Cells, ExactAttention
from witcert.observe.activations import Activations
from witcert.schemes import Scheme, Site
from witcert.witness import Bands


@dataclass(frozen=True)
class Looseness:
    """Where the distance between meter and truth comes from, on a sample of cells; each value [N], float64.

    tv, by_sign (the same error sizes with the worst signs), by_witness (the worst errors that the per-token bound
    allows), meter. Ratios of neighbours blame the luck of signs, the witness, and the bound. The two in the middle are
    attained values of ``bounds.worst_case_tv`` (the exact supremum is a subset-sum problem), short of it by about the
    share of one token.
    """

    tv: Tensor
    by_sign: Tensor
    by_witness: Tensor
    meter: Tensor


@dataclass
class SchemeCells:
    """Every cell of one scheme on one text; arrays [L, Hq, Q] (float64, CPU)."""

    scheme: str
    domain: str
    positions: Tensor
    tv: Tensor
    meters: list[Labelled]
    eform: Tensor
    tanh_rival: Tensor
    value_share: Tensor
    looseness: Looseness
    nan_cells: int = 0
    closest: list[tuple[int, int, int]] = field(default_factory=list)

    def violations(self, meter: Labelled) -> Tensor:
        """Cells in which the meter is below the truth, with no tolerance; NaN counts as a violation."""
        return ~(torch.as_tensor(meter.value) >= self.tv)


def budget_for(recording: Activations, **overrides: float) -> Budget:
    """The request's failure budget: one query head, layer and recorded query position is one cell."""
    layer = recording.layers[0]
    return Budget(
        layers=len(recording.layers),
        heads=layer.q.shape[0],
        kv_heads=layer.k.shape[0],
        steps=len(recording.positions),
        **overrides,
    )


def exact_layers(recording: Activations, bands: int, device: str = "cpu") -> list[ExactAttention]:
    """Prepare the exact side of every layer once."""
    out = []
    for layer in recording.layers:
        d = layer.q.shape[-1]
        rotary = min(recording.rotary_dim or d, d)
        grouping = Bands(d, bands=min(bands, d // 2), pairing=recording.pairing, rotary_dim=rotary)
        out.append(
            ExactAttention(
                layer.q.to(device),
                layer.k.to(device),
                scale=layer.scale,
                positions=recording.positions.to(device),
                first=layer.first.to(device),
                softcap=layer.softcap,
                sinks=None if layer.sinks is None else layer.sinks.to(device),
                bands=grouping,
            )
        )
    return out


def _value_share(cells: Cells, v: Tensor, v_hat: Tensor) -> Tensor:
    """The value error that reaches the output, as a share of the largest value norm; [Hq, Q]."""
    rho = (v_hat.double() - v.double()).norm(dim=-1)  # [Hkv, T]
    largest = v.double().norm(dim=-1).amax(-1).clamp_min(torch.finfo(torch.float64).tiny)
    p = cells.p_tilde[..., : v.shape[1]]
    share: Tensor = torch.einsum("hgqt,ht->hgq", p, rho.nan_to_num(torch.inf)) / largest[:, None, None]
    return share.nan_to_num(torch.inf).flatten(0, 1)


def _looseness(cells: Cells, take: Tensor) -> Looseness:
    """Exact worst cases on the sampled cells ``take`` (indices into the flattened [Hq, Q])."""
    p, c, eps = (x.flatten(0, -2).index_select(0, take) for x in (cells.p_tilde, cells.c, cells.eps))
    finite = torch.isfinite(c).all(-1)
    p, c, eps = p[finite], c[finite], eps[finite]
    kept = take[finite]
    meter = torch.as_tensor(cells.meters[0].value).flatten().index_select(0, kept)
    return Looseness(
        cells.tv.flatten().index_select(0, kept),
        bounds.worst_case_tv(p, eps.abs(), polish=False),
        bounds.worst_case_tv(p, c, polish=False),
        meter,
    )


def measure(
    recording: Activations,
    exact: Sequence[ExactAttention],
    scheme: Scheme,
    budget: Budget,
    *,
    seed: int = 0,
    sample_per_layer: int = 8,
    tick: Callable[[], None] = lambda: None,
) -> SchemeCells:
    """Meter all cells of a recording under one scheme; ``tick`` is called once a layer."""
    tv, eform, rival, share = [], [], [], []
    meters: list[list[Labelled]] = []
    loose: list[Looseness] = []
    generator = torch.Generator().manual_seed(seed)
    for i, (layer, side) in enumerate(zip(recording.layers, exact, strict=True)):
        tokens = layer.k.shape[1]
        device = side.k.device
        try:
            served = scheme(layer.k.to(device), Site.contiguous(tokens, layer=i, side="k", seed=seed))
            served_v = scheme(layer.v.to(device), Site.contiguous(tokens, layer=i, side="v", seed=seed))
        except WitCertError:
            raise
        except Exception as e:
            raise InputError(
                f"scheme {scheme.name!r} failed on keys of shape {tuple(layer.k.shape)}: {type(e).__name__}: {e}"
            ) from e
        cells = side.cells(served, budget)
        tv.append(cells.tv.cpu())
        eform.append(cells.eform.cpu())
        rival.append(cells.tanh_rival.cpu())
        share.append(_value_share(cells, layer.v.to(device), served_v.x_hat).cpu())
        meters.append([m.map(Tensor.cpu) for m in cells.meters])
        take = torch.randperm(cells.tv.numel(), generator=generator)[:sample_per_layer].to(device)
        loose.append(_looseness(cells, take))
        tick()
    stacked = [
        type(ms[0])(torch.stack([torch.as_tensor(m.value) for m in ms]), ms[0].theorem, ms[0].delta)
        for ms in zip(*meters, strict=True)
    ]
    together = Looseness(
        *(torch.cat([part.cpu() for part in parts]) for parts in zip(*map(astuple, loose), strict=True))
    )
    result = SchemeCells(
        scheme.name,
        recording.domain,
        recording.positions,
        torch.stack(tv),
        stacked,
        torch.stack(eform),
        torch.stack(rival),
        torch.stack(share),
        together,
    )
    result.nan_cells = int(torch.isnan(result.tv).sum())
    return result
