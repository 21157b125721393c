"""Rich tables of a finished run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from witcert.doctor import Row
from witcert.observe.job import Results
from witcert.observe.report import bound, number, percent, ratio, whole

_STYLE = {"proved": "green", "proved-nonadaptive": "yellow", "measured": "dim"}


def _console() -> Console:
    """Standard output; wide enough for the tables where it is no terminal (a pipe, a log)."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=132)


def _meter_table(results: Results) -> Table:
    tau = results.config.tau
    table = Table(
        title=f"Meter against truth, {sum(r.cells for r in results.rows):,} cells",
        title_justify="left",
        header_style="bold",
    )
    table.add_column("scheme", no_wrap=True)
    table.add_column("guarantee", no_wrap=True)
    for head in (
        "bytes\nK+V",
        f"coverage\nTV ≤ {tau:g}",
        "meter\nmedian",
        "meter\n99 %",
        "true TV\nmedian",
        "true TV\n99 %",
        "meter/TV\nmedian",
        "viola-\ntions",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for row in results.rows:
        for i, m in enumerate(row.meters):
            label = f"{m.guarantee}, δ={m.delta:g}" if m.delta else m.guarantee
            b = row.bytes_per_token_head
            table.add_row(
                row.scheme if i == 0 else "",
                f"[{_STYLE[m.guarantee]}]{label}[/]",
                whole(b["k"] + b["v"]) if i == 0 else "",
                percent(m.coverage),
                bound(m.meter["p50"]),
                bound(m.meter["p99"]),
                number(row.tv["p50"]) if i == 0 else "",
                number(row.tv["p99"]) if i == 0 else "",
                ratio(m.tightness["p50"]),
                f"[bold red]{m.violations}[/]" if m.violations else "0",
            )
    return table


def _output_table(results: Results) -> Table:
    domains = list(results.about["texts"])
    table = Table(
        title="The model's output with the whole cache quantized (measured)", title_justify="left", header_style="bold"
    )
    table.add_column("scheme", no_wrap=True)
    for d in domains:
        table.add_column(f"KL, nats\n{d}", justify="right", no_wrap=True)
    for d in domains:
        table.add_column(f"same top-1\n{d}", justify="right", no_wrap=True)
    table.add_column("recall\naccuracy", justify="right", no_wrap=True)

    def recall(output: dict[str, dict[str, float | None]]) -> str:
        return percent(next((v["recall"] for v in output.values() if v.get("recall") is not None), None))

    table.add_row("[dim]exact cache[/]", *["0"] * len(domains), *["100.0 %"] * len(domains), recall(results.baseline))
    for row in results.rows:
        table.add_row(
            row.scheme,
            *[number(row.output[d]["kl"]) for d in domains],
            *[percent(row.output[d]["top1"]) for d in domains],
            recall(row.output),
        )
    return table


def print_results(results: Results, written: list[Path]) -> None:
    """Print the tables and one line of verdict."""
    console = _console()
    a = results.about
    console.print(
        f"[bold]{a['model']}[/]: {a['layers']} layers, {a['heads']} query / {a['kv_heads']} KV heads, "
        f"head dimension {a['head_dim']}; " + ", ".join(f"{d} {t['tokens']} tokens" for d, t in a["texts"].items())
    )
    console.print(_meter_table(results))
    if any(r.output for r in results.rows):
        console.print(_output_table(results))
    held = sum(r.holds for r in results.rechecks)
    colour = "green" if not results.violations else "bold red"
    console.print(
        f"[{colour}]{results.violations} violations[/] of the meter; {held} of {len(results.rechecks)} closest cells "
        f"hold at 50 digits; {results.seconds:.0f} s"
    )
    for path in written[:2]:
        console.print(f"wrote {path}", soft_wrap=True)


def print_schemes() -> None:
    """Print the registry."""
    from witcert import schemes

    table = Table(header_style="bold")
    for head in ("scheme", "what it does", "source"):
        table.add_column(head)
    for scheme in map(schemes.get, schemes.names()):
        table.add_row(scheme.name, scheme.summary, scheme.source)
    _console().print(table)


def print_doctor(rows: list[Row]) -> None:
    """Print what was found, and how to get what is not there."""
    style = {"ok": "green", "missing": "yellow", "stale": "yellow", "invalid": "bold red"}
    table = Table(header_style="bold")
    for head in ("what", "status"):
        table.add_column(head, no_wrap=True)
    for head in ("found", "what it is for", "how to get it"):
        table.add_column(head)
    for row in rows:
        table.add_row(row.name, f"[{style[row.status]}]{row.status}[/]", escape(row.found), escape(row.means), escape(row.get))
    _console().print(table)
    counts = {s: sum(r.status == s for r in rows) for s in style}
    _console().print(", ".join(f"[{style[s]}]{n} {s}[/]" for s, n in counts.items() if n))
