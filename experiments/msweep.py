"""Outlier pairs kept in 16 bits: what each buys in coverage, and when nothing has to be paged in any more."""

from __future__ import annotations

from typing import Any

import torch

from experiments import style
from experiments.common import Setting
from witcert.audit.advice import tau_table, traffic_bytes
from witcert.audit.job import Audit, AuditConfig, Variant, audit
from witcert.errors import InputError

NAME = "msweep"
ORDER = 30
QUESTION = "How many outlier pairs does it take until a request pages in nothing?"
METHOD = (
    "For each layer and KV head RoPE pairs are chosen greedily on the first text (the pair whose exclusion narrows "
    "the half-step bound most), kept in float16 and excluded from the scales; the other texts are then metered "
    "under dithered INT8. The traffic is what block repair would page in: pages in order of contribution until "
    "`page_in_bound` predicts a meter of at most τ, each page once per request. The zero-page-in point of a number "
    "of pairs is its largest meter: from that τ on nothing moves."
)
LIMITS = (
    "Traffic is a forecast from the sums of the recorded queries, a sample of the positions; a decode step at every "
    "position pages in more, and `paging` counts what a gate really moves. Coverage and traffic are measured on the "
    "texts that the pairs were not chosen on (where there is more than one)."
)
PAIRS = [0, 2, 4, 8, 16]
OPTIONS: dict[str, Any] = {"pairs": PAIRS, "scheme": "dither_int8"}
GUARANTEES = ("proved", "proved-nonadaptive")


def _row(found: Audit, v: Variant) -> dict[str, Any]:
    """One number of pairs under one reading."""
    at = found.config.taus.index(found.config.tau)
    pages = v.pages[:, at].sum((-1, -2))
    return {
        "pairs": v.pairs, "bytes_per_token_head": v.bytes_per_token, "cells": v.meter.numel(),
        "coverage": float((v.meter <= found.config.tau).double().mean()),
        "above": int((~(v.meter <= found.config.tau)).sum()),
        "largest_meter": float(v.meter.nan_to_num(nan=1.0).max()),
        "median_meter": float(v.meter.median()), "median_tv": float(v.tv.median()), "largest_tv": float(v.tv.max()),
        "pages": int(pages.max()), "traffic_bytes": int(traffic_bytes(found, v, at).sum(-1).max()),
        "thresholds": [{"tau": t, "coverage": c, "traffic_bytes": b} for t, c, b in tau_table(found, v)],
    }  # fmt: skip


def run(setting: Setting) -> dict[str, Any]:
    """Audit the recordings for every number of pairs under both readings."""
    d = min(x.k.shape[-1] for x in setting.recordings[0].layers)
    pairs = tuple(m for m in setting.option("pairs", PAIRS) if m == 0 or 2 * m < d)
    if not pairs:
        raise InputError(f"pairs: none of them is below half of the {d // 2} pairs of a head")
    out: dict[str, Any] = {"tau": setting.tau, "readings": []}
    violations = 0
    for guarantee in GUARANTEES:
        config = AuditConfig(
            scheme=setting.option("scheme", "dither_int8"), guarantee=guarantee, tau=setting.tau, pairs=pairs,
            seed=setting.seed, device=setting.device, budget=0,
        )  # fmt: skip
        found = audit(setting.recordings, config, setting.say)
        violations = max(violations, found.violations)
        below = sum(int((~(v.meter >= v.tv)).sum()) for v in found.variants)
        out["readings"].append({
            "guarantee": guarantee, "delta": config.delta_req, "below_truth": below,
            "rows": [_row(found, v) for v in found.variants],
        })  # fmt: skip
        out |= {"calibrated_on": found.calibrated_on, "audited_on": found.audited_on, "held_out": found.held_out,
                "cache_bytes": [int(x) for x in found.cache_bytes], "scheme": config.scheme}  # fmt: skip
        if setting.device == "cuda":
            torch.cuda.empty_cache()
    return out | {"violations": violations}


def describe(result: dict[str, Any]) -> str:
    """The table of the README."""
    rows = []
    for r in result["readings"]:
        for i, x in enumerate(r["rows"]):
            rows.append([
                f"{r['guarantee']}, δ = {r['delta']:g}" if i == 0 else "", x["pairs"], f"{x['bytes_per_token_head']:.0f}",
                style.percent(x["coverage"]), f"{x['above']:,}", x["pages"], f"{x['traffic_bytes'] / 1024:,.0f}",
                style.bound(x["largest_meter"]), style.number(x["median_tv"]),
            ])  # fmt: skip
    heads = ["guarantee", "pairs m", "bytes K+V", f"coverage TV ≤ {result['tau']:g}", "cells above", "pages", "KiB paged in",
             "zero-page-in τ", "true TV, median"]  # fmt: skip
    cache = max(result["cache_bytes"]) / 1024
    chosen = f"Pairs chosen on {result['calibrated_on']}, numbers from {', '.join(result['audited_on'])}"
    chosen += "" if result["held_out"] else " (the same text: optimistic)"
    return (
        style.table(heads, rows)
        + f"\n\n{result['scheme']}. {chosen}. Pages and KiB are those of "
        f"the worst text, whose exact cache is {cache:,.0f} KiB; coverage and traffic [measured]."
    )


def draw(result: dict[str, Any]) -> Any:
    """Coverage by pairs, and traffic over the threshold, one curve a number of pairs."""
    figure, axes = style.axes(3, 1, 4.0, 3.5)
    for r in result["readings"]:
        colour = style.GUARANTEE_COLOURS[r["guarantee"]]
        x = [row["pairs"] for row in r["rows"]]
        axes[0].plot(x, [100 * row["coverage"] for row in r["rows"]], "o-", color=colour, label=r["guarantee"])
    axes[0].set(xlabel="outlier pairs m", ylabel=f"cells with meter ≤ {result['tau']:g}, %", title="coverage [measured]")
    axes[0].legend(fontsize=8)
    top = max([t["traffic_bytes"] for r in result["readings"] for row in r["rows"] for t in row["thresholds"]] + [1])
    for ax, r in zip(axes[1:], result["readings"], strict=True):
        for row, colour in zip(r["rows"], style.CURVES, strict=False):
            ts = row["thresholds"]
            ax.plot([t["tau"] for t in ts], [t["traffic_bytes"] / 1024 for t in ts], "o-", ms=3, color=colour,
                    label=f"m = {row['pairs']}: nothing from {style.bound(row['largest_meter'])}")  # fmt: skip
        ax.set_yscale("symlog", linthresh=64)
        ax.set_ylim(0, 2 * top / 1024)
        ax.set(xlabel="threshold τ", ylabel="KiB paged in, worst text", title=f"{r['guarantee']} reading")
        ax.axvline(result["tau"], color=style.GREY, lw=0.9, ls="--")
        ax.legend(fontsize=7)
    return figure
