"""Write a finished run: results.json, cells.safetensors, the figures, and one self-contained HTML page."""

from __future__ import annotations

import base64
import json
import math
import os
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

import torch

from witcert.errors import MissingExtraError, WitCertError
from witcert.observe.figures import FIGURES, draw
from witcert.observe.job import Results


def number(x: float | None) -> str:
    """Three significant digits, scientific below 1e-3; '—' for a number that is not there."""
    if x is None or (isinstance(x, float) and math.isnan(x)):
        return "—"
    if x == 0:
        return "0"
    if abs(x) < 1e-3 or abs(x) >= 1e4:
        return f"{x:.1e}"
    return f"{x:.3g}"


def bound(x: float | None) -> str:
    """A bound, with the digits of :func:`number` but rounded up: what is printed is a bound as well."""
    if x is None or not math.isfinite(x) or x <= 0:
        return number(x)
    exact = Decimal(x)
    digits = 2 if x < 1e-3 else 3
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return number(float(exact.quantize(unit, rounding=ROUND_CEILING)))


def percent(x: float | None) -> str:
    """A share as a percentage; never rounded up to 100 % nor down to 0 %."""
    if x is None or math.isnan(x):
        return "—"
    if 0 < x < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= x < 1:
        return "> 99.9 %"
    return f"{100 * x:.1f} %"


def ratio(x: float) -> str:
    """A factor."""
    return "—" if math.isnan(x) else f"{x:.3g} ×"


def whole(x: float) -> str:
    """A whole number of bytes."""
    return "—" if math.isnan(x) else f"{x:.0f}"


def decades(x: float) -> str:
    """A power of ten."""
    return "—" if math.isnan(x) else f"{x:.2f}"


def _atomic(path: Path, data: str) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(data, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def json_text(results: Results) -> str:
    """results.json: standard JSON (NaN and infinity become null and a large-number string)."""

    def clean(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: clean(v) for k, v in x.items()}
        if isinstance(x, list | tuple):
            return [clean(v) for v in x]
        if isinstance(x, float) and not math.isfinite(x):
            return None if math.isnan(x) else ("inf" if x > 0 else "-inf")
        return x

    return json.dumps(clean(results.to_json()), indent=1, ensure_ascii=False) + "\n"


def html(results: Results, figures: dict[str, Path], command: str) -> str:
    """The page, figures embedded."""
    try:
        from jinja2 import Environment, PackageLoader, select_autoescape
    except ImportError as e:
        raise MissingExtraError("the HTML report needs jinja2: pip install 'witcert[report]'") from e
    env = Environment(
        loader=PackageLoader("witcert.observe"), autoescape=select_autoescape(default=True), trim_blocks=True
    )
    pictures = {n: (base64.b64encode(p.read_bytes()).decode("ascii"), FIGURES[n][1]) for n, p in figures.items()}

    def recall_of(row: Any) -> float | None:
        return next((v["recall"] for v in row.output.values() if v.get("recall") is not None), None)

    baseline_recall = next((v["recall"] for v in results.baseline.values() if v.get("recall") is not None), None)
    return env.get_template("report.html.j2").render(
        about=results.about,
        config=results.config,
        rows=results.rows,
        violations=results.violations,
        rechecks=results.rechecks,
        total_cells=sum(r.cells for r in results.rows),
        has_output=any(r.output for r in results.rows),
        baseline=results.baseline,
        baseline_recall=baseline_recall,
        recall_of=recall_of,
        figures=pictures,
        command=command,
        seconds=results.seconds,
        fp16_bytes=4 * results.about["head_dim"],
        num=number,
        bound=bound,
        pct=percent,
        ratio=ratio,
        dec=decades,
        whole=whole,
    )


def _cells(results: Results, path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {}
    for run in results.cells:
        key = f"{run.domain}/{run.scheme}"
        tensors[f"{key}/tv.measured"] = run.tv
        for m in run.meters:
            tensors[f"{key}/meter.{m.label}{'-delta' if m.delta and m.label == 'proved' else ''}"] = torch.as_tensor(
                m.value
            )
        tensors[f"{run.domain}/positions"] = run.positions
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, path, metadata={"format": "witcert-cells/1"})


def write(results: Results, folder: Path, command: str) -> list[Path]:
    """Write everything into ``folder``; returns the files. A full disk or a missing permission is one clear error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _atomic(folder / "results.json", json_text(results))
        _cells(results, folder / "cells.safetensors")
        figures = draw(results, folder)
        _atomic(folder / "report.html", html(results, figures, command))
    except OSError as e:
        raise WitCertError(f"cannot write the report to {folder}: {e.strerror or e}") from e
    except Exception as e:
        # safetensors reports I/O failures with its own error type
        if type(e).__module__.startswith("safetensors"):
            raise WitCertError(f"cannot write the report to {folder}: {e}") from e
        raise
    return [folder / "report.html", folder / "results.json", folder / "cells.safetensors", *figures.values()]
