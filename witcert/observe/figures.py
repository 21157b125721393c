"""The report's pictures, drawn with matplotlib from a finished run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from witcert.errors import MissingExtraError
from witcert.observe.job import Results
from witcert.observe.measure import SchemeCells

DOMAIN_COLOURS = {"natural": "#1b6ca8", "code": "#d9822b", "recall": "#3a8f5c"}
_CURVES = (
    "#1b6ca8",
    "#d9822b",
    "#3a8f5c",
    "#b3261e",
    "#7a4fa3",
    "#7c5a3a",
    "#d65f9e",
    "#5f6b76",
    "#a8a13a",
    "#2aa3b5",
    "#111827",
)
_FLOOR = 1e-8  # TV below this is drawn at the left edge: it is zero for every practical purpose


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as e:
        raise MissingExtraError("figures need matplotlib: pip install 'witcert[report]'") from e
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 160,
            "font.size": 9,
            "axes.titlesize": 9.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "font.family": "DejaVu Sans",
        }
    )
    return plt


def _by_scheme(results: Results) -> dict[str, list[SchemeCells]]:
    out: dict[str, list[SchemeCells]] = {}
    for run in results.cells:
        out.setdefault(run.scheme, []).append(run)
    return out


def _meter(run: SchemeCells, index: int = 0) -> np.ndarray[Any, Any]:
    return torch.as_tensor(run.meters[index].value).numpy()


def _best(run: SchemeCells) -> int:
    """The last meter: the tightest one the scheme has (the first is the deterministic one)."""
    return len(run.meters) - 1


def _moved(results: Results) -> dict[str, list[SchemeCells]]:
    """The schemes that move any attention at all; all of them if none does."""
    groups = _by_scheme(results)
    return {n: r for n, r in groups.items() if any(bool((x.tv > 0).any()) for x in r)} or groups


def _line(i: int) -> dict[str, Any]:
    """Colour and width of the i-th of up to a dozen curves that can be told apart."""
    return {"color": _CURVES[i % len(_CURVES)], "lw": 1.6}


def _grid(plt: Any, n: int, width: float = 3.0, height: float = 2.7, columns: int = 4) -> tuple[Any, list[Any]]:
    columns = min(columns, n)
    rows = math.ceil(n / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for ax in flat[n:]:
        ax.set_visible(False)
    return figure, flat[:n]


def _colour(domain: str) -> str:
    return DOMAIN_COLOURS.get(domain, "#7a4fa3")


def _floor(values: list[np.ndarray[Any, Any]]) -> float:
    """A power of ten below all but the smallest half percent of the positive values: where the axes begin."""
    positive = np.concatenate([v[v > 0] for v in values])
    return float(10.0 ** np.floor(np.log10(np.quantile(positive, 0.005)))) if positive.size else _FLOOR


def scatter(results: Results, plt: Any) -> Any:
    """Meter against true TV, one panel a scheme, log-log, with the line y = x."""
    groups = _moved(results)
    figure, axes = _grid(plt, len(groups))
    rng = np.random.default_rng(0)
    floor = max(_FLOOR, _floor([r.tv.numpy() for runs in groups.values() for r in runs]))
    domains = list(results.about["texts"])
    for ax, (name, runs) in zip(axes, groups.items(), strict=True):
        tv = np.concatenate([r.tv.flatten().numpy() for r in runs])
        meter = np.concatenate([_meter(r).ravel() for r in runs])
        colours = np.repeat([_colour(r.domain) for r in runs], [r.tv.numel() for r in runs])
        keep = rng.permutation(tv.size)[:6000]  # one shuffled cloud, so that no domain hides another
        ax.scatter(
            np.maximum(tv[keep], floor),
            np.maximum(meter[keep], floor),
            s=3,
            alpha=0.3,
            linewidths=0,
            c=colours[keep],
            rasterized=True,
        )
        ax.plot([floor, 1], [floor, 1], color="black", lw=1)
        ax.fill_between([floor, 1], [floor, 1], floor, color="#c0392b", alpha=0.07, lw=0)
        ax.axhline(results.config.tau, color="#7f8c8d", lw=0.9, ls="--")
        ax.set(xscale="log", yscale="log", xlim=(floor, 1.3), ylim=(floor, 1.6), title=name)
    figure.supxlabel("true total variation of the cell")
    figure.supylabel("meter (proved, any query)")
    marks = [plt.Line2D([], [], marker="o", ls="", color=_colour(d), label=d) for d in domains]
    marks.append(plt.Line2D([], [], color="#7f8c8d", ls="--", lw=0.9, label=f"threshold {results.config.tau:g}"))
    figure.legend(handles=marks, loc="outside upper center", ncols=len(marks))
    return figure


def tightness(results: Results, plt: Any) -> Any:
    """Distribution of meter / TV, one curve a scheme; solid the deterministic meter, dashed the dithered one."""
    figure, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    groups = _moved(results)
    far = 10.0
    for i, (name, runs) in enumerate(groups.items()):
        for index, style in ((0, "-"), (_best(runs[0]), "--")):
            if style == "--" and index == 0:
                continue
            tv = np.concatenate([r.tv.flatten().numpy() for r in runs])
            ratio = np.sort(np.concatenate([_meter(r, index).ravel() for r in runs])[tv > 1e-12] / tv[tv > 1e-12])
            if ratio.size:
                suffix = "" if style == "-" else " (proved-nonadaptive)"
                ax.plot(ratio, np.linspace(0, 1, ratio.size), style, **_line(i), label=name + suffix)
                far = max(far, float(np.quantile(ratio, 0.98)))
    ax.axvline(1, color="black", lw=1)
    ax.set(
        xscale="log",
        xlabel="meter / true total variation   (1 = exact; left of 1 would be unsound)",
        ylabel="share of cells",
        ylim=(0, 1),
    )
    ax.set_xlim(0.7, far)
    ax.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def roc(results: Results, plt: Any) -> Any:
    """ROC of the meter as a detector of cells with TV above tau."""
    try:
        from sklearn.metrics import roc_auc_score, roc_curve
    except ImportError as e:
        raise MissingExtraError("the ROC figure needs scikit-learn: pip install 'witcert[report]'") from e
    figure, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    without = []
    for i, (name, runs) in enumerate(_by_scheme(results).items()):
        danger = np.concatenate([(r.tv > results.config.tau).flatten().numpy() for r in runs])
        score = np.concatenate([_meter(r, _best(r)).ravel() for r in runs])
        if danger.all() or not danger.any():
            without.append(name)
            continue
        fpr, tpr, _ = roc_curve(danger, score)
        auc = roc_auc_score(danger, score)
        ax.plot(fpr, tpr, **_line(i), label=f"{name}: AUC {auc:.3f}, {danger.sum():,} of {danger.size:,} dangerous")
    ax.plot([0, 1], [0, 1], color="#7f8c8d", lw=0.9, ls="--")
    ax.set(
        xlabel="false alarms (share of harmless cells)",
        ylabel=f"share of cells with TV > {results.config.tau:g} detected",
        xlim=(-0.01, 1),
        ylim=(0, 1.01),
    )
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    if without:
        ax.text(
            0.98,
            0.04,
            f"no cell, or every cell, above {results.config.tau:g}:\n" + "\n".join(without),
            transform=ax.transAxes,
            ha="right",
            va="bottom",
            fontsize=7.5,
            color="#555555",
        )
    return figure


def heatmap(results: Results, plt: Any) -> Any:
    """95th percentile of the meter per layer and query head, one panel a scheme."""
    groups = _by_scheme(results)
    layers, heads = next(iter(groups.values()))[0].tv.shape[:2]
    figure, axes = _grid(plt, len(groups), width=2.6, height=2.9)
    image = None
    for ax, (name, runs) in zip(axes, groups.items(), strict=True):
        value = np.concatenate([_meter(r, _best(r)) for r in runs], axis=-1)
        image = ax.imshow(
            np.quantile(value, 0.95, axis=-1),
            vmin=0,
            vmax=1,
            cmap="magma_r",
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
        ax.set_title(name)
        ax.grid(False)
        ax.set_xticks(range(0, heads, max(1, heads // 4)))
        ax.set_yticks(range(0, layers, max(1, layers // 6)))
    figure.supxlabel("query head")
    figure.supylabel("layer")
    figure.colorbar(image, ax=axes, label="meter, 95th percentile", shrink=0.8)
    return figure


def along(results: Results, plt: Any) -> Any:
    """Median and 90th percentile of meter and TV along the sequence, one panel a scheme."""
    groups = _moved(results)
    figure, axes = _grid(plt, len(groups))
    floor = max(
        _FLOOR, _floor([np.median(r.tv.flatten(0, 1).numpy(), axis=0) for runs in groups.values() for r in runs])
    )
    for ax, (name, runs) in zip(axes, groups.items(), strict=True):
        for run in runs:
            x = run.positions.numpy()
            value = _meter(run, _best(run)).reshape(-1, len(x))
            tv = run.tv.numpy().reshape(-1, len(x))
            colour = _colour(run.domain)
            ax.plot(x, np.maximum(np.median(value, axis=0), floor), color=colour, lw=1.4, label=f"{run.domain}: meter")
            ax.fill_between(
                x,
                np.maximum(np.median(value, axis=0), floor),
                np.maximum(np.quantile(value, 0.9, axis=0), floor),
                color=colour,
                alpha=0.15,
                lw=0,
            )
            ax.plot(
                x, np.maximum(np.median(tv, axis=0), floor), color=colour, lw=1, ls=":", label=f"{run.domain}: true TV"
            )
        ax.axhline(results.config.tau, color="#7f8c8d", lw=0.9, ls="--")
        ax.set(yscale="log", title=name, ylim=(floor / 2, 1.6))
    figure.supxlabel("query position (tokens in the cache)")
    figure.supylabel("total variation: meter (median to 90th pct.), truth (median)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, len(labels)), fontsize=8)
    return figure


def looseness(results: Results, plt: Any) -> Any:
    """Where the distance between truth and meter comes from, in decades, stacked."""
    rows = [r for r in results.rows if not math.isnan(r.looseness["bound_decades"])]
    figure, ax = plt.subplots(figsize=(7.6, 0.34 * max(len(rows), 1) + 1.4), layout="constrained")
    parts = (
        ("signs_decades", "luck of signs (quantizer)", "#3a8f5c"),
        ("witness_decades", "witness (per-token bound)", "#d9822b"),
        ("bound_decades", "bound on TV (sharp / tanh)", "#1b6ca8"),
    )
    left = np.zeros(len(rows))
    names = [r.scheme for r in rows][::-1]
    for key, label, colour in parts:
        width = np.array([max(r.looseness[key], 0.0) for r in rows][::-1])
        ax.barh(names, width, left=left, color=colour, label=label, height=0.7)
        left = left + width
    ax.set(xlabel="median distance from true TV to the meter, in powers of ten")
    figure.legend(fontsize=8, loc="outside upper center", ncols=3)
    ax.grid(axis="y", visible=False)
    return figure


FIGURES: dict[str, tuple[Callable[[Results, Any], Any], str]] = {
    "bound_vs_tv": (
        scatter,
        "Each dot is one cell (layer, query head, position): its true total variation against the proved meter. "
        "The black line is y = x; a dot in the tinted area below it would be a violation. Below the dashed line "
        "the cell is certified.",
    ),
    "tightness": (
        tightness,
        "How far the meter is above the truth. A curve that rises further left is a tighter meter; nothing may "
        "be left of the black line.",
    ),
    "roc": (
        roc,
        "The meter as a detector of dangerous cells. A curve in the top left corner finds them all with few false "
        "alarms; the diagonal carries no information.",
    ),
    "heatmap": (
        heatmap,
        "Which layers and heads suffer: the meter's 95th percentile over all texts and positions. Dark cells are "
        "candidates for staying in full precision.",
    ),
    "along_sequence": (
        along,
        "The meter as the sequence grows (solid: median, band up to the 90th percentile) beside the truth "
        "(dotted: median), over all layers and heads.",
    ),
    "looseness": (
        looseness,
        "Who is to blame for the distance between meter and truth, on a sample of cells with their exact worst "
        "cases: errors that happen to cancel, the per-token bound, or the bound on total variation itself.",
    ),
}


def draw(results: Results, folder: Path) -> dict[str, Path]:
    """Write every figure as a PNG into ``folder``; returns name → path."""
    plt = _pyplot()
    out = {}
    for name, (function, _) in FIGURES.items():
        figure = function(results, plt)
        out[name] = folder / f"{name}.png"
        figure.savefig(out[name])
        plt.close(figure)
    return out
