"""One look for all pictures, and how numbers are printed in tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from witcert.observe.figures import _CURVES as CURVES
from witcert.observe.figures import DOMAIN_COLOURS, _pyplot
from witcert.observe.report import bound, number, percent

__all__ = [
    "CURVES",
    "DOMAIN_COLOURS",
    "GREY",
    "GUARANTEE_COLOURS",
    "axes",
    "bound",
    "number",
    "numbers",
    "percent",
    "pyplot",
    "save",
    "table",
]

GREY = "#7f8c8d"
GUARANTEE_COLOURS = {"proved": "#1b6ca8", "proved-nonadaptive": "#d9822b", "measured": "#5f6b76"}


def pyplot() -> Any:
    """matplotlib.pyplot without a display, in the package's style; MissingExtraError where it is not installed."""
    return _pyplot()


def axes(columns: int = 1, rows: int = 1, width: float = 4.6, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure and its axes as a flat list."""
    figure, grid = pyplot().subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    return figure, list(grid.flat)


def save(figure: Any, path: Any) -> None:
    """Write a PNG and close the figure; the file does not say when it was made, so that redrawing changes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    pyplot().close(figure)


def numbers(values: Sequence[Any]) -> list[float]:
    """Numbers that went through JSON, for drawing: null is NaN, "inf" infinity."""
    return [float("nan") if v is None else float(v) for v in values]


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; all columns but the first are aligned to the right, and a bar in a cell stays in it."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(x).replace("|", "\\|") for x in cells) + " |"

    return "\n".join([line(heads), "|---|" + "---:|" * (len(heads) - 1), *map(line, rows)])
