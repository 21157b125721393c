"""The counts as Prometheus metrics, with label sets that are bounded by construction.

``witcert:tv_bound``                     histogram, labels tier and layer_group: every metered cell; NaN cells count as 1
``witcert:certified_steps_total``        counter, label tier: cells (layer, query head, query) with a meter of at most tau
``witcert:uncertified_steps_total``      counter, label tier: the other cells
``witcert:nan_cells_total``              counter, label tier: cells with NaN or an infinite C on the way to the meter
``witcert:repairs_total``                counter: KV heads of a sequence that were repaired in a call
``witcert:pagein_bytes_total``           counter: bytes paged in from the backing store
``witcert:contract_violations_total``    counter: meters that no sound kernel reports, and what checkers found

No label carries a request, a head or a single layer. The names have colons, which the classic text format keeps and the
OpenMetrics format does not, so :func:`exposition` always writes the former.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from witcert.errors import MissingExtraError
from witcert.kernels.telemetry.step import ONE, UNIT, edges
from witcert.telemetry.snapshot import Snapshot, TierCounts

if TYPE_CHECKING:
    from witcert.telemetry.recorder import Telemetry

__all__ = ["BUCKETS", "CONTENT_TYPE", "GROUPS", "Collector", "exposition", "layer_groups"]

GROUPS = 8
"""Most values of the label layer_group."""
BUCKETS = tuple(i for i, edge in enumerate(edges()[:ONE]) if np.log2(edge).is_integer() and 2.0**-16 <= edge < 1.0)
"""Columns whose upper edges, the powers of two 2^-16 .. 2^-1, are buckets; then 1, and +Inf."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _library() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
        import prometheus_client.exposition
    except ImportError as e:
        raise MissingExtraError("metrics need prometheus-client: pip install 'witcert[metrics]'") from e
    return prometheus_client


def layer_groups(layers: int) -> list[tuple[str, slice]]:
    """At most ``GROUPS`` runs of layers of nearly equal length, with names such as "0-3"."""
    count = min(GROUPS, layers)
    ends = [round(i * layers / count) for i in range(count + 1)]
    return [(f"{a}-{b - 1}", slice(a, b)) for a, b in pairwise(ends)]


def _histogram(tier: TierCounts, rows: slice) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum. Counts are of meters of at most the edge, exactly; all cells are at most 1."""
    total = tier.histogram[rows].sum(0)
    reached = total.cumsum()
    buckets = [(str(edges()[i]), float(reached[i])) for i in BUCKETS]
    cells = float(total.sum())
    return [*buckets, ("1.0", cells), ("+Inf", cells)], float(tier.units[rows].sum() * UNIT)


def families(s: Snapshot) -> Iterator[Any]:
    """The metric families of a snapshot."""
    core = _library().core
    bound = core.HistogramMetricFamily(
        "witcert:tv_bound", "Upper bound on total variation of a cell (layer, query head, query).",
        labels=["tier", "layer_group"],
    )  # fmt: skip
    for tier in s.tiers:
        for name, rows in layer_groups(s.layers):
            buckets, total = _histogram(tier, rows)
            bound.add_metric([tier.label, name], buckets, sum_value=total)
    yield bound
    by_tier: dict[str, tuple[str, Callable[[TierCounts], Any]]] = {
        "witcert:certified_steps": (f"Cells whose bound is at most tau={s.tau:g}.", lambda t: t.certified.sum()),
        "witcert:uncertified_steps": (f"Cells whose bound is above tau={s.tau:g}, NaN among them.",
                                      lambda t: t.cells.sum() - t.certified.sum()),
        "witcert:nan_cells": ("Cells with NaN or infinity on the way to the bound.", lambda t: t.nan.sum()),
    }  # fmt: skip
    for metric, (text, value) in by_tier.items():
        counter = core.CounterMetricFamily(metric, text, labels=["tier"])
        for tier in s.tiers:
            counter.add_metric([tier.label], float(value(tier)))
        yield counter
    yield core.CounterMetricFamily("witcert:repairs", "KV heads of a sequence repaired in a call.", value=s.repairs)
    yield core.CounterMetricFamily("witcert:pagein_bytes", "Bytes paged in from the backing store.", value=s.pagein_bytes)
    yield core.CounterMetricFamily(
        "witcert:contract_violations", "Breaches of what the kernels promise; any is a bug.", value=s.violations
    )


class Collector:
    """For a registry of prometheus_client: one scrape is one snapshot, at most half a second old."""

    def __init__(self, telemetry: Telemetry) -> None:
        _library()
        self.telemetry = telemetry

    def collect(self) -> Iterator[Any]:
        """The metric families now."""
        return families(self.telemetry.recent())

    def describe(self) -> list[Any]:
        """Nothing is read when the collector is registered."""
        return []


def exposition(telemetry: Telemetry) -> bytes:
    """The metrics in the classic text format, whose content type is ``CONTENT_TYPE``."""
    library = _library()
    registry = library.CollectorRegistry(auto_describe=False)
    registry.register(Collector(telemetry))
    return bytes(library.exposition.generate_latest(registry))
