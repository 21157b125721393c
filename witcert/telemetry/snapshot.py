"""A consistent picture of the record at one moment, on the host: counts, quantiles, heads, history; JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from witcert.errors import InputError
from witcert.kernels.telemetry.step import COLUMNS, LOST, ONE, OUTSIDE, UNIT, edges

__all__ = ["FORMAT", "Point", "Snapshot", "TierCounts"]

FORMAT = "witcert-telemetry/1"
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_UPPER = np.array([*edges(), 1.0, 1.0])  # what a column says at most; nothing is claimed in the last two


@dataclass(frozen=True)
class Point:
    """Totals at one time (seconds since 1970): steps, repairs, bytes paged in; cells and certified cells of each tier."""

    time: float
    steps: int
    repairs: int
    pagein_bytes: int
    tiers: dict[str, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"time": self.time, "steps": self.steps, "repairs": self.repairs, "pagein_bytes": self.pagein_bytes,
                "tiers": {name: list(pair) for name, pair in self.tiers.items()}}  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Point:
        """The inverse of :meth:`to_json`."""
        tiers = {str(k): (int(v[0]), int(v[1])) for k, v in data["tiers"].items()}
        return cls(float(data["time"]), int(data["steps"]), int(data["repairs"]), int(data["pagein_bytes"]), tiers)


def quantile(histogram: Integers, p: float) -> float | None:
    """Upper edge of the column in which the p-quantile lies: at least the quantile. None of nothing."""
    total = int(histogram.sum())
    if not total:
        return None
    return float(_UPPER[int(np.searchsorted(histogram.cumsum(), max(1.0, np.ceil(p * total))))])


@dataclass(frozen=True, eq=False)
class TierCounts:
    """All meters under one guarantee; a cell is one (layer, query head, query).

    label : the guarantee. delta : largest failure probability, over the dither, that a reading carried; theorems : what they
    rest on. histogram [layers, COLUMNS] : columns as in ``witcert.kernels.telemetry.edges``, then NaN cells, then meters
    outside [0, 1]. certified, violations, units [layers] : as in ``StepRecord.count``. last, worst [layers, heads] : largest
    meter of the last step that metered the head, and of all steps; NaN where there was none.
    """

    label: str
    delta: float
    theorems: tuple[str, ...]
    histogram: Integers
    certified: Integers
    violations: Integers
    units: Integers
    last: Floats
    worst: Floats

    @property
    def cells(self) -> Integers:
        """Cells by layer; NaN cells are among them."""
        return np.asarray(self.histogram.sum(1))

    @property
    def nan(self) -> Integers:
        """Cells with NaN or an infinite C by layer."""
        return np.asarray(self.histogram[:, LOST])

    @property
    def share(self) -> float | None:
        """Certified cells over all cells."""
        cells = int(self.cells.sum())
        return int(self.certified.sum()) / cells if cells else None

    def quantile(self, p: float, layer: int | None = None) -> float | None:
        """At least the p-quantile of the meters, of one layer or of all (NaN cells count as 1)."""
        return quantile(self.histogram.sum(0) if layer is None else self.histogram[layer], p)

    def _numbers(self, layer: int | None) -> dict[str, Any]:
        rows = slice(None) if layer is None else slice(layer, layer + 1)
        seen = self.worst[rows][~np.isnan(self.worst[rows])]
        return {
            "cells": int(self.cells[rows].sum()),
            "certified": int(self.certified[rows].sum()),
            "nan": int(self.nan[rows].sum()),
            "violations": int(self.violations[rows].sum()),
            "no_claim": int(self.histogram[rows, ONE:].sum()),
            **{f"p{round(100 * p)}": self.quantile(p, layer) for p in (0.5, 0.95, 0.99)},
            "max": float(seen.max()) if seen.size else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN, which stands for no cell, becomes null."""

        def heads(x: Floats) -> list[list[float | None]]:
            return [[None if np.isnan(v) else float(v) for v in row] for row in x]

        layers = range(len(self.histogram))
        return {
            "guarantee": self.label, "delta": self.delta, "theorems": list(self.theorems),
            **self._numbers(None),
            "mean": None if not self.cells.sum() else float(self.units.sum() * UNIT / self.cells.sum()),
            "histogram": self.histogram.sum(0).tolist(),
            "by_layer": [{"layer": i, **self._numbers(i), "units": int(self.units[i]),
                          "histogram": self.histogram[i].tolist()} for i in layers],
            "last": heads(self.last), "worst": heads(self.worst),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TierCounts:
        """The inverse of :meth:`to_json`."""
        rows = data["by_layer"]

        def integers(name: str) -> Integers:
            return np.array([row[name] for row in rows], dtype=np.int64)

        def heads(name: str) -> Floats:
            return np.array([[np.nan if v is None else v for v in row] for row in data[name]], dtype=np.float64)

        out = cls(str(data["guarantee"]), float(data["delta"]), tuple(data["theorems"]), integers("histogram"),
                  integers("certified"), integers("violations"), integers("units"), heads("last"), heads("worst"))  # fmt: skip
        if out.histogram.ndim != 2 or out.histogram.shape[1] != COLUMNS or out.last.shape != out.worst.shape:
            raise ValueError("histogram or heads have another shape")
        return out


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything that was recorded up to ``time`` (seconds since 1970).

    tiers : one entry a guarantee; they are never added up. steps : commits, one a forward pass. repairs : KV heads of a
    sequence that were repaired in a call. violations : breaches of what the kernels promise, found on the device or
    reported by a checker. sampled : None for exact counts; else the cells are a sample, and one in so many was taken.
    samples, dropped : sampled cells so far, and those that the ring lost before they were written.
    """

    time: float
    started: float
    layers: int
    heads: int
    tau: float
    steps: int
    tiers: tuple[TierCounts, ...]
    repairs: int = 0
    pagein_bytes: int = 0
    violations: int = 0
    samples: int = 0
    dropped: int = 0
    sampled: float | None = None
    jsonl_error: str | None = None
    history: tuple[Point, ...] = field(default=())

    def tier(self, label: str) -> TierCounts:
        """The counts under one guarantee."""
        for t in self.tiers:
            if t.label == label:
                return t
        raise InputError(f"label={label!r} is none of {', '.join(t.label for t in self.tiers)}")

    def point(self) -> Point:
        """The totals alone."""
        tiers = {t.label: (int(t.cells.sum()), int(t.certified.sum())) for t in self.tiers}
        return Point(self.time, self.steps, self.repairs, self.pagein_bytes, tiers)

    def to_json(self) -> dict[str, Any]:
        """Plain data in the format ``witcert-telemetry/1``; every number stands under the label of its guarantee."""
        return {
            "format": FORMAT,
            "time": self.time, "started": self.started, "layers": self.layers, "heads": self.heads, "tau": self.tau,
            "steps": self.steps, "repairs": self.repairs, "pagein_bytes": self.pagein_bytes,
            "contract_violations": self.violations,
            "samples": self.samples, "dropped": self.dropped, "sampled": self.sampled, "jsonl_error": self.jsonl_error,
            "edges": list(edges()),
            "tiers": [t.to_json() for t in self.tiers],
            "history": [p.to_json() for p in self.history],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any) -> Snapshot:
        """The inverse of :meth:`to_json`; raises InputError for anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"not a snapshot: expected a JSON object with format {FORMAT!r}")
        try:
            out = cls(
                time=float(data["time"]), started=float(data["started"]), layers=int(data["layers"]),
                heads=int(data["heads"]), tau=float(data["tau"]), steps=int(data["steps"]),
                tiers=tuple(TierCounts.from_json(t) for t in data["tiers"]),
                repairs=int(data["repairs"]), pagein_bytes=int(data["pagein_bytes"]),
                violations=int(data["contract_violations"]), samples=int(data["samples"]), dropped=int(data["dropped"]),
                sampled=None if data["sampled"] is None else float(data["sampled"]), jsonl_error=data["jsonl_error"],
                history=tuple(Point.from_json(p) for p in data["history"]),
            )  # fmt: skip
            shape = (out.layers, out.heads)
            if any(t.last.shape != shape or len(t.histogram) != out.layers for t in out.tiers):
                raise ValueError(f"heads are not [{out.layers}, {out.heads}]")
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise InputError(f"a damaged snapshot: {type(e).__name__}: {e}") from e
        return out


assert len(_UPPER) == COLUMNS == OUTSIDE + 1
