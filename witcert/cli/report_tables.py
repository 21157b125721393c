"""Rich tables of a run's telemetry."""

from __future__ import annotations

from datetime import datetime

import numpy as np
from rich.console import Console
from rich.table import Table

from witcert.observe.report import bound, percent
from witcert.telemetry.load import Run
from witcert.telemetry.snapshot import Snapshot, TierCounts

__all__ = ["print_run"]

_STYLE = {"proved": "green", "proved-nonadaptive": "yellow", "measured": "dim"}


def _size(n: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"


def _label(tier: TierCounts) -> str:
    odds = f", δ≤{tier.delta:g}" if tier.delta else ""
    return f"[{_STYLE.get(tier.label, 'dim')}]{tier.label}{odds}[/]"


def _largest(tier: TierCounts, layer: int | None = None) -> float | None:
    heads = tier.worst if layer is None else tier.worst[layer]
    return None if np.isnan(heads).all() else float(np.nanmax(heads))


def _by_tier(s: Snapshot) -> Table:
    table = Table(title="Meter by guarantee", title_justify="left", header_style="bold")
    table.add_column("guarantee", no_wrap=True)
    heads = ("cells", f"certified\nTV ≤ {s.tau:g}", "median\n≤", "95 %\n≤", "99 %\n≤", "largest", "NaN\ncells", "viola-\ntions")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for t in s.tiers:
        nan, wrong = int(t.nan.sum()), int(t.violations.sum())
        table.add_row(
            _label(t), f"{int(t.cells.sum()):,}", percent(t.share), *(bound(t.quantile(p)) for p in (0.5, 0.95, 0.99)),
            bound(_largest(t)), f"[red]{nan:,}[/]" if nan else "0", f"[bold red]{wrong:,}[/]" if wrong else "0",
        )  # fmt: skip
    return table


def _by_layer(s: Snapshot, tier: TierCounts, most: int) -> Table:
    cells = tier.cells
    seen = [i for i in range(s.layers) if cells[i]]

    def badness(i: int) -> tuple[float, float]:
        return (float(tier.certified[i] / cells[i]), -float(tier.units[i] / cells[i]))

    chosen = sorted(seen, key=badness)[:most] if 0 < most < len(seen) else seen
    which = f"the {len(chosen)} worst of {len(seen)} layers" if len(chosen) < len(seen) else f"{len(seen)} layers"
    table = Table(title=f"{_label(tier)}: {which}", title_justify="left", header_style="bold")
    for head in ("layer", "cells", f"certified\nTV ≤ {s.tau:g}", "median\n≤", "95 %\n≤", "largest", "its\nhead", "NaN\ncells"):
        table.add_column(head, justify="right", no_wrap=True)
    for i in chosen:
        worst = _largest(tier, i)
        table.add_row(
            str(i), f"{int(cells[i]):,}", percent(float(tier.certified[i] / cells[i])), bound(tier.quantile(0.5, i)),
            bound(tier.quantile(0.95, i)), bound(worst), "—" if worst is None else str(int(np.nanargmax(tier.worst[i]))),
            str(int(tier.nan[i])),
        )  # fmt: skip
    return table


def print_run(run: Run, layers: int) -> None:
    """Print what was found of a run: at most so many layers of each guarantee (0: all)."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=132)
    s = run.snapshot
    start = datetime.fromtimestamp(s.started).strftime("%Y-%m-%d %H:%M:%S")
    console.print(
        f"{s.layers} layers x {s.heads} query heads, {s.steps:,} steps in {max(0.0, s.time - s.started):.0f} s from {start}, "
        f"threshold {s.tau:g}"
    )
    if s.sampled is not None:
        console.print(
            f"[yellow]The run did not end in order: these are {run.cells:,} sampled cells (1 in {s.sampled:g} or fewer); "
            "shares and quantiles of a sample are measured, and the largest meter of the run may be larger.[/]"
        )
        if run.totals is not None:
            exact = "; ".join(
                f"{label}: {good:,} of {cells:,} cells certified" for label, (cells, good) in run.totals.tiers.items()
            )
            console.print(f"Exact up to {run.totals.time - s.started:.0f} s: {exact}")
    console.print(_by_tier(s))
    for tier in s.tiers:
        if tier.cells.sum():
            console.print(_by_layer(s, tier, layers))
    colour = "bold red" if s.violations else "green"
    console.print(
        f"[dim]measured:[/] {s.repairs:,} repaired KV heads, {_size(s.pagein_bytes)} paged in, "
        f"[{colour}]{s.violations} contract violations[/]"
    )
    notes = []
    if run.missing:
        notes.append(f"{run.missing} older file(s) of this run were rotated away")
    if run.torn:
        notes.append(f"an unfinished last line of {run.torn} bytes was left out")
    if s.dropped:
        notes.append(f"{s.dropped:,} sampled cells were overwritten before they could be written")
    if s.jsonl_error:
        notes.append(f"records stopped: {s.jsonl_error}")
    for note in notes:
        console.print(f"[yellow]{note}[/]", soft_wrap=True)
