"""The failure budget: what it costs in coverage, and how often the promise is broken."""

from __future__ import annotations

from typing import Any

import torch

from experiments import style
from experiments._offline import cells_of, layers, served_keys
from experiments.common import Setting
from witcert import bounds, schemes
from witcert.observe.measure import budget_for

NAME = "coverage"
ORDER = 20
QUESTION = "What does a smaller failure probability cost in coverage, and how often does a promise fail?"
METHOD = (
    "Dithered INT8 is served with several seeds of the dither; every cell is metered under both readings for "
    "request budgets δ from 0.5 to 1e-9, beside the deterministic reading that needs no δ. Failures are counted at "
    "two levels: cells whose meter is below the truth, and single tokens whose logit error exceeds its radius. A "
    "request (one text, one seed) fails if any of its tokens does; its promise is at most δ."
)
LIMITS = (
    "A handful of seeds cannot estimate a probability of 1e-9; it can only fail to refute it. Radii carry a union "
    "bound over cells and tokens, so that observed failures far below δ are expected, not evidence of slack to "
    "spend. The queries are those of the exact run, which do not depend on the dither: the case in which the "
    "non-adaptive reading speaks."
)
DELTAS = [0.5, 0.1, 0.01, 1e-3, 1e-6, 1e-9]
OPTIONS: dict[str, Any] = {"deltas": DELTAS, "seeds": 3}
NAMES = ("deterministic", "adaptive", "non-adaptive")


def _tokens_outside(setting: Setting, seed: int, delta: float) -> dict[str, Any]:
    """Cells and single tokens of one seed at one budget."""
    scheme, found = schemes.get("dither_int8"), []
    outside = {"adaptive": 0, "non-adaptive": 0}
    failed: dict[str, set[str]] = {"adaptive": set(), "non-adaptive": set()}
    tokens = 0
    for recording, i, layer, side in layers(setting):
        served = served_keys(scheme, layer, side, i, seed)
        budget = budget_for(recording, delta_req=delta, tau_k=setting.tau)
        cells = side.cells(served, budget)
        b = side.token_bounds(served, budget)
        eps = cells.eps[..., : layer.k.shape[1]].abs()
        tokens += int(side.visible.sum()) * layer.q.shape[0]
        for name, c in (("adaptive", b.proved_delta), ("non-adaptive", b.nonadaptive)):
            assert c is not None
            n = int(((eps > c) & side.visible).sum())
            outside[name] += n
            if n:
                failed[name].add(recording.domain)
        found.append(cells)
    r = cells_of(found)
    return {"readings": r, "outside": outside, "failed": {k: len(v) for k, v in failed.items()}, "tokens": tokens}


def run(setting: Setting) -> dict[str, Any]:
    """Every budget and seed."""
    seeds = 2 if setting.quick else setting.option("seeds", 3)
    rows: list[dict[str, Any]] = []
    violations = 0
    for delta in [0.5, 0.01] if setting.quick else setting.option("deltas", DELTAS):
        setting.say(f"delta {delta:g}, {seeds} seeds")
        found = [_tokens_outside(setting, setting.seed + s, delta) for s in range(seeds)]
        requests = seeds * (1 if setting.quick else len(setting.recordings))
        row: dict[str, Any] = {"delta": delta, "requests": requests, "readings": []}
        for k, name in enumerate(NAMES):
            label = found[0]["readings"].meters[k]
            value = torch.cat([f["readings"].value(k) for f in found])
            below = sum(f["readings"].below(k) for f in found)
            violations += below if label.label == "proved" else 0
            row["readings"].append({
                "reading": name, "guarantee": label.label, "delta": label.delta, "cells": value.numel(), "below_truth": below,
                "coverage": float((value <= setting.tau).double().mean()), "median": float(value.median()),
                "tokens": sum(f["tokens"] for f in found) if k else None,
                "tokens_outside": sum(f["outside"][name] for f in found) if k else None,
                "requests_failed": sum(f["failed"][name] for f in found) if k else None,
            })  # fmt: skip
        rows.append(row)
    return {"violations": violations, "tau": setting.tau, "seeds": seeds, "rows": rows,
            "factors": _factors(setting), "largest_sigmas": _largest(setting, seeds)}  # fmt: skip


def _largest(setting: Setting, seeds: int) -> float:
    """The largest logit error of any token in units of the root of its proxy."""
    most = 0.0
    for s in range(seeds):
        for _, i, layer, side in layers(setting):
            served = served_keys(schemes.get("dither_int8"), layer, side, i, setting.seed + s)
            assert served.step is not None
            error = served.x_hat.double() - side.k
            eps = (side.q @ error[:, None].transpose(-1, -2) * side.scale).abs()
            proxy = torch.einsum("hgqd,htd->hgqt", side.q.square(), served.step.double().square()) * (side.scale**2 / 12)
            keep = side.visible & (proxy > 0)
            most = max(most, float((eps.square() / proxy)[keep].max()) ** 0.5)
    return most


def _factors(setting: Setting) -> list[dict[str, float]]:
    """The two radii in units of the root of the proxy, by budget: what a query is charged for its guarantee."""
    recording = setting.recordings[0]
    tokens, d = recording.layers[0].k.shape[1], recording.layers[0].k.shape[-1]
    one = torch.ones(1, d, dtype=torch.float64)
    spread = (d / 12.0) ** 0.5
    out = []
    for delta in setting.option("deltas", DELTAS):
        budget = budget_for(recording, delta_req=delta, tau_k=setting.tau)
        u = bounds.subgaussian_radius(one[0], one, 1.0, tokens=tokens, delta_loc=budget.delta_loc)
        v = bounds.adaptive_radius(one[0], one, 1.0, delta=budget.delta_adaptive(tokens))
        out.append({"delta": delta, "non-adaptive": float(u) / spread, "adaptive": float(v) / spread,
                    "deterministic": float(bounds.half_step(one[0], one, 1.0)) / spread})  # fmt: skip
    return out


def describe(result: dict[str, Any]) -> str:
    """The table of the README."""
    rows = []
    for row in result["rows"]:
        for i, r in enumerate(row["readings"]):
            rows.append([
                f"{row['delta']:g}" if i == 0 else "", f"{r['reading']} [{r['guarantee']}]", style.percent(r["coverage"]),
                style.bound(r["median"]), f"{r['below_truth']} of {r['cells']:,}",
                "—" if r["tokens"] is None else f"{r['tokens_outside']} of {r['tokens']:,}",
                "—" if r["tokens"] is None else f"{r['requests_failed']} of {row['requests']}",
            ])  # fmt: skip
    heads = ["δ of a request", "reading", f"coverage TV ≤ {result['tau']:g}", "meter, median", "cells below truth",
             "tokens outside their radius", "requests failed"]  # fmt: skip
    f = result["factors"]
    near = min(f, key=lambda x: abs(x["delta"] - 0.01))
    return (
        style.table(heads, rows)
        + f"\n\nDithered INT8, {result['seeds']} seeds of the dither. At δ = {near['delta']:g} a query whose "
        f"channels weigh alike is charged {near['non-adaptive']:.1f} standard deviations under the non-adaptive "
        f"reading, {near['adaptive']:.1f} under the adaptive one and {near['deterministic']:.1f} by the half-step; "
        "the reported meters take the smallest bound that their label allows, the band witness included. Failures "
        "are [measured]."
    )


def draw(result: dict[str, Any]) -> Any:
    """Coverage over the budget, and the radii beside the largest error that was seen."""
    figure, axes = style.axes(2, 1, 4.8, 3.6)
    deltas = [r["delta"] for r in result["rows"]]
    looks = {"deterministic": ("#111827", ":"), "adaptive": ("#1b6ca8", "-"), "non-adaptive": ("#d9822b", "-")}
    for k, name in enumerate(NAMES):
        colour, dash = looks[name]
        label = result["rows"][0]["readings"][k]["guarantee"]
        axes[0].plot(deltas, [100 * r["readings"][k]["coverage"] for r in result["rows"]], "o" + dash, ms=4, color=colour,
                     label=f"{name} [{label}]")  # fmt: skip
    axes[0].set(xscale="log", xlabel="failure budget δ of a request", ylabel=f"cells with meter ≤ {result['tau']:g}, %",
                title="coverage [measured]")  # fmt: skip
    axes[0].set_ylim(top=100.5)
    axes[0].legend(fontsize=8)
    for name in NAMES:
        colour, dash = looks[name]
        axes[1].plot([f["delta"] for f in result["factors"]], [f[name] for f in result["factors"]], "o" + dash, ms=4,
                     color=colour, label=f"{name} radius")  # fmt: skip
    axes[1].axhline(result["largest_sigmas"], color="#b3261e", lw=1.2, ls="--", label="largest error seen [measured]")
    axes[1].set(xscale="log", xlabel="failure budget δ of a request", ylabel="standard deviations of the dither's error",
                title="what a token is charged, channels alike", ylim=(0, None))  # fmt: skip
    axes[1].legend(fontsize=8, loc="lower left")
    return figure
