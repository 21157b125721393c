"""Aggregate metered cells into the rows of a report; every block of numbers says under which guarantee it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from witcert.guarantees import Labelled, Measured
from witcert.observe.measure import SchemeCells
from witcert.schemes import Scheme

QUANTILES = (0.5, 0.9, 0.99, 1.0)


def quantiles(x: Tensor) -> dict[str, float]:
    """Median, 90th, 99th percentile and maximum (NaN when empty)."""
    x = x.flatten().double()
    names = ("p50", "p90", "p99", "max")
    if not x.numel():
        return dict.fromkeys(names, float("nan"))
    x = x.sort().values
    return {n: float(x[min(x.numel() - 1, int(q * x.numel()))]) for n, q in zip(names, QUANTILES, strict=True)}


@dataclass(frozen=True)
class MeterRow:
    """One meter of one scheme: the guarantee it stands under and how it did on all cells.

    coverage: share of cells with meter <= tau. tightness: quantiles of meter / TV where TV > 0. margin: smallest
    meter - TV. violations: cells with meter < TV (zero tolerance; NaN counts).
    """

    guarantee: str
    theorem: str
    delta: float
    coverage: float
    meter: dict[str, float]
    tightness: dict[str, float]
    margin: float
    violations: int


@dataclass(frozen=True)
class SchemeRow:
    """One scheme over all texts; everything but ``meters`` is ``measured`` (also joint_coverage: it needs exact values)."""

    scheme: str
    summary: str
    cells: int
    bytes_per_token_head: dict[str, float]
    meters: list[MeterRow]
    tv: dict[str, float]
    value_share: dict[str, float]
    joint_coverage: float
    comparison: dict[str, float]
    looseness: dict[str, float]
    nan_cells: int
    output: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        """Violations of any of the scheme's meters."""
        return sum(m.violations for m in self.meters)

    def to_json(self) -> dict[str, Any]:
        """Plain data; measured blocks are labelled so, meters carry their own label."""
        out = asdict(self)
        label = Measured.label
        for key in ("tv", "value_share", "comparison", "looseness"):
            out[key] = {"guarantee": label, **out[key]}
        out["joint_coverage"] = {"guarantee": label, "value": self.joint_coverage}
        out["output"] = {d: {"guarantee": label, **v} for d, v in self.output.items()}
        return out


def meter_row(runs: Sequence[SchemeCells], index: int, tau: float) -> MeterRow:
    """Aggregate the ``index``-th meter over texts."""
    first: Labelled = runs[0].meters[index]
    value = torch.cat([torch.as_tensor(r.meters[index].value).flatten() for r in runs])
    tv = torch.cat([r.tv.flatten() for r in runs])
    moved = tv > 0
    return MeterRow(
        guarantee=first.label,
        theorem=first.theorem,
        delta=first.delta,
        coverage=float((value <= tau).double().mean()),
        meter=quantiles(value),
        tightness=quantiles(value[moved] / tv[moved]),
        margin=float((value - tv).min()),
        violations=int(sum(int(r.violations(r.meters[index]).sum()) for r in runs)),
    )


def _decades(a: Tensor, b: Tensor) -> float:
    """Median of log10(b / a) over cells where a > 0."""
    keep = a > 0
    return float(torch.log10(b[keep] / a[keep]).median()) if bool(keep.any()) else float("nan")


def scheme_row(
    scheme: Scheme,
    runs: Sequence[SchemeCells],
    head_dim: int,
    tau: float,
    tau_v: float,
    output: dict[str, dict[str, float | None]],
) -> SchemeRow:
    """Aggregate one scheme over its texts."""

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(r, name).flatten() for r in runs])

    loose = {n: torch.cat([getattr(r.looseness, n) for r in runs]) for n in ("tv", "by_sign", "by_witness", "meter")}
    proved = torch.cat([torch.as_tensor(r.meters[0].value).flatten() for r in runs])
    return SchemeRow(
        scheme=scheme.name,
        summary=scheme.summary,
        cells=int(cat("tv").numel()),
        bytes_per_token_head={s: scheme.bytes_per_token(head_dim, s) for s in ("k", "v")},
        meters=[meter_row(runs, i, tau) for i in range(len(runs[0].meters))],
        tv=quantiles(cat("tv")),
        value_share=quantiles(cat("value_share")),
        joint_coverage=float(((proved <= tau) & (cat("value_share") <= tau_v)).double().mean()),
        comparison={
            "coverage_eform": float((cat("eform") <= tau).double().mean()),
            "coverage_tanh_rival": float((cat("tanh_rival") <= tau).double().mean()),
        },
        looseness={
            "signs_decades": _decades(loose["tv"], loose["by_sign"]),
            "witness_decades": _decades(loose["by_sign"], loose["by_witness"]),
            "bound_decades": _decades(loose["by_witness"], loose["meter"]),
            "sampled_cells": int(loose["tv"].numel()),
        },
        nan_cells=sum(r.nan_cells for r in runs),
        output=output,
    )
