"""Six schemes, all cells: is the meter ever below the truth, how far above is it, how good an alarm is it."""

from __future__ import annotations

import math
from typing import Any

import torch

from experiments import style
from experiments._offline import area, curve, metered, quantiles, readings
from experiments.common import Setting
from witcert import schemes as registry
from witcert.observe.recheck import recheck

NAME = "schemes"
ORDER = 10
QUESTION = "For six cache quantizers, is the meter ever below the true total variation, how tight is it, and how good an alarm?"
METHOD = (
    "Post-RoPE q, k, v are recorded with the exact cache; each scheme serves the keys, and every (layer, query "
    "head, query) is metered from the band witness and the scales, then compared with its true total variation in "
    "float64. The e-form ½(A² - 1) and the rival's tanh C are evaluated on the same per-token bounds. The cells "
    "nearest to a violation are computed again with 50 digits."
)
LIMITS = (
    "The count of violations is no average and needs no statistics, but it covers these queries only; that it is 0 "
    "for all others is what the theorems say. Tightness and the quality as an alarm are measured on one model and "
    "these texts. A cell's total variation is not the damage to the model's answer."
)
SIX = ["rtn_int8", "fp8_e4m3_scaled", "dither_int8", "kvquant_4bit", "rtn_int4", "kivi_2bit"]
OPTIONS: dict[str, Any] = {"schemes": SIX, "recheck": 1}
SAMPLE = 400
FORMS = ("meter", "eform", "tanh_rival")
FORM_NAMES = {"meter": "meter", "eform": "½(A² - 1)", "tanh_rival": "tanh C (rival)"}


def _outward(meter: float, tv: float) -> list[float]:
    """Four digits for the picture: the meter rounded up, the truth down."""

    def cut(x: float, way: Any) -> float:
        if x <= 0:
            return 0.0
        unit = 10.0 ** (math.floor(math.log10(x)) - 3)
        return float(f"{way(x / unit) * unit:.4g}")

    return [cut(tv, math.floor), min(1.0, cut(meter, math.ceil))]


def run(setting: Setting) -> dict[str, Any]:
    """Meter every scheme; ``violations`` counts proved readings below the truth and failed re-checks."""
    rows: list[dict[str, Any]] = []
    scores: dict[str, list[torch.Tensor]] = {f: [] for f in FORMS}
    dangers: list[torch.Tensor] = []
    violations = 0
    for name in setting.option("schemes", SIX):
        setting.say(f"metering {name}")
        scheme = registry.get(name)
        runs = metered(setting, scheme)
        r = readings(runs)
        checks = [
            c
            for recording, cells in zip(setting.recordings, runs, strict=True)
            for c in recheck(recording, scheme, cells, count=setting.option("recheck", 1), seed=setting.seed)
        ]
        violations += r.violations + sum(not c.holds for c in checks if c.guarantee == "proved")
        danger, moved = r.tv > setting.tau, r.tv > 0
        values = {"meter": r.value(0), "eform": r.eform, "tanh_rival": r.tanh_rival}
        for form in FORMS:
            scores[form].append(values[form])
        dangers.append(danger)
        d = setting.recordings[0].layers[0].k.shape[-1]
        take = torch.randperm(r.tv.numel(), generator=setting.generator(1))[:SAMPLE]
        rows.append({
            "scheme": name,
            "bytes_per_token_head": scheme.bytes_per_token(d, "k") + scheme.bytes_per_token(d, "v"),
            "cells": r.tv.numel(),
            "dangerous": int(danger.sum()),
            "readings": [
                {"guarantee": m.label, "delta": m.delta, "theorem": m.theorem, "below_truth": r.below(i),
                 "coverage": float((r.value(i) <= setting.tau).double().mean()),
                 "value": quantiles(r.value(i)),
                 "decades": quantiles(torch.log10(r.value(i)[moved] / r.tv[moved]))}
                for i, m in enumerate(r.meters)
            ],
            "tv": quantiles(r.tv),
            "forms": {
                f: {"coverage": float((v <= setting.tau).double().mean()),
                    "decades": quantiles(torch.log10(v[moved] / r.tv[moved])),
                    "auc": area(v, danger),
                    "false_alarms_at_tau": float((v[~danger] > setting.tau).double().mean()) if bool((~danger).any()) else None,
                    "missed_at_tau": int((v[danger] <= setting.tau).sum())}
                for f, v in values.items()
            },
            "rechecked": len(checks), "recheck_failed": sum(not c.holds for c in checks),
            "sample": [_outward(float(values["meter"][i]), float(r.tv[i])) for i in take.tolist()],
        })  # fmt: skip
    danger = torch.cat(dangers)
    pooled = {f: torch.cat(scores[f]) for f in FORMS}
    both = bool(danger.any()) and not bool(danger.all())
    return {
        "violations": violations, "tau": setting.tau, "schemes": rows,
        "pooled": {f: {"auc": area(v, danger), "curve": curve(v, danger) if both else None} for f, v in pooled.items()},
        "dangerous": int(danger.sum()), "cells": danger.numel(),
    }  # fmt: skip


def describe(result: dict[str, Any]) -> str:
    """The table of the README."""
    rows = []
    for s in result["schemes"]:
        for i, r in enumerate(s["readings"]):
            f = s["forms"]
            label = r["guarantee"] + (f", δ = {r['delta']:g}" if r["delta"] else "")
            first = i == 0
            rows.append([
                s["scheme"] if first else "", label, f"{s['bytes_per_token_head']:.0f}" if first else "",
                r["below_truth"], style.percent(r["coverage"]),
                style.percent(f["eform"]["coverage"]) if first else "",
                style.percent(f["tanh_rival"]["coverage"]) if first else "",
                style.number(r["decades"]["p50"]), style.number(f["eform"]["decades"]["p50"]) if first else "",
                style.number(f["tanh_rival"]["decades"]["p50"]) if first else "",
                f"{s['dangerous']:,}" if first else "", style.number(f["meter"]["auc"]) if first else "",
            ])  # fmt: skip
    tau = result["tau"]
    heads = [
        "scheme", "guarantee", "bytes K+V", "below truth", f"coverage TV ≤ {tau:g}", "with ½(A² - 1)", "with tanh C",
        "decades above TV, median", "½(A² - 1)", "tanh C", f"cells TV > {tau:g}", "AUC",
    ]  # fmt: skip
    pooled = ", ".join(f"{FORM_NAMES[f]} {style.number(p['auc'])}" for f, p in result["pooled"].items())
    checked = sum(s["rechecked"] for s in result["schemes"])
    failed = sum(s["recheck_failed"] for s in result["schemes"])
    return (
        style.table(heads, rows)
        + f"\n\n{result['cells']:,} cells, {result['dangerous']:,} of them with a total variation above {tau:g}. "
        f"Area under the ROC curve over all schemes together [measured]: {pooled}. ½(A² - 1) cannot tell the cells "
        "apart in which it reaches 1. A proved reading misses no dangerous cell at the threshold. Cells nearest "
        f"to a violation, computed again with 50 digits: {checked - failed} of {checked} hold."
    )


def draw(result: dict[str, Any]) -> Any:
    """Meter against truth, one panel a scheme, and the ROC curves of the three forms."""
    found = result["schemes"]
    columns = 4
    figure, axes = style.axes(columns, math.ceil((len(found) + 1) / columns), 3.1, 2.9)
    floor = 1e-4
    for ax, s, colour in zip(axes, found, style.CURVES, strict=False):
        ax.scatter([max(x, floor) for x, _ in s["sample"]], [max(y, floor) for _, y in s["sample"]], s=5, alpha=0.5,
                   linewidths=0, color=colour)  # fmt: skip
        ax.plot([floor, 1], [floor, 1], color="black", lw=1)
        ax.fill_between([floor, 1], [floor, 1], floor, color="#c0392b", alpha=0.07, lw=0)
        ax.axhline(result["tau"], color=style.GREY, lw=0.9, ls="--")
        ax.set(xscale="log", yscale="log", xlim=(floor, 1.3), ylim=(floor, 1.6), title=s["scheme"],
               xlabel="true total variation", ylabel="meter [proved]")  # fmt: skip
    ax = axes[len(found)]
    for (form, p), colour in zip(result["pooled"].items(), style.CURVES, strict=False):
        if p["curve"]:
            ax.plot(p["curve"]["false_alarms"], p["curve"]["detected"], color=colour, lw=1.6,
                    label=f"{FORM_NAMES[form]}: AUC {p['auc']:.3f}")  # fmt: skip
    ax.plot([0, 1], [0, 1], color=style.GREY, lw=0.9, ls="--")
    ax.set(xlabel="false alarms", ylabel=f"detected, TV > {result['tau']:g}", title="all schemes together [measured]")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7.5, loc="lower right")
    _tightness(axes[len(found) + 1] if len(axes) > len(found) + 1 else None, found)
    for ax in axes[len(found) + 2 :]:
        ax.set_visible(False)
    return figure


def _tightness(ax: Any, found: list[dict[str, Any]]) -> None:
    """Decades between truth and each form: 5th to 95th percentile, the median marked."""
    if ax is None:
        return
    for j, (form, colour) in enumerate(zip(FORMS, style.CURVES, strict=False)):
        rows = [s["forms"][form]["decades"] for s in found]
        y = [len(found) - 1 - i + 0.25 * (1 - j) for i in range(len(found))]
        low, middle, high = (style.numbers([r[q] for r in rows]) for q in ("p5", "p50", "p95"))
        ax.hlines(y, low, high, color=colour, lw=2)
        ax.plot(middle, y, "o", color=colour, ms=3.5, label=FORM_NAMES[form])
    ax.set_yticks(range(len(found)), [s["scheme"] for s in reversed(found)], fontsize=7.5)
    ax.set(xlabel="decades above the truth, 5 to 95 %", title="tightness, same colours [measured]")
    ax.set_xlim(left=0)
