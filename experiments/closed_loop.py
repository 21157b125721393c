"""The closed loop: how far the output of repaired cells is from exact attention, before the repair and after it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from experiments import _pools, _synthetic, style
from experiments._pools import CASES, Case, LayerData, Work
from experiments._truth import Exact, Violations
from experiments.common import Setting
from witcert.gate import GatedPool
from witcert.guarantees import Proved
from witcert.kernels.decode.launch import Meter, Reading
from witcert.store import ops

NAME = "closed-loop"
ORDER = 10
QUESTION = "Does repairing the cells that the meter flags bring the output of attention back to the exact one?"
METHOD = (
    "Every layer's keys and values are written to a pool of the scheme, one query a sequence is attended to through "
    "the gate, and the cells that the meter puts above τ are repaired from the exact backing store: pages in order of "
    "contribution until the meter is at most τ (block), or the whole KV head (head). For each repaired cell the "
    "distance of the output to exact attention (float64, over the exact keys and values), relative to the norm of the "
    "exact output, is taken before and after. The total variation is recomputed in float64 from the stored codes, "
    "before and after, and compared with every reading. "
    + _synthetic.DESCRIPTION
)
LIMITS = (
    "Errors are those of single attention outputs, not of the model's text; values are repaired with the keys of "
    "their pages, so that the fall has a share of both. What is left after a repair of the whole head is the rounding "
    "of 16-bit arithmetic, which bounds the ratio from above; block repair stops at τ by design, so that its ratio "
    "says how much looser the meter is than the error that it stands for. Recorded queries belong to the exact run of "
    "the model; synthetic contexts are no model's."
)
OPTIONS: dict[str, Any] = {"rows": 2, "lengths": [4096, 32768, 131072], "cases": list(CASES), "stride": 1}
FALL = 10.0
SAMPLES = 250
MODES: tuple[Literal["block", "head"], ...] = ("block", "head")


def _deciding(readings: tuple[Reading, ...]) -> Tensor:
    """The proved reading [R, Hq] in float64: the one that the gate looks at."""
    for reading in readings:
        if isinstance(reading.meter, Proved):
            return torch.as_tensor(reading.meter.value).double()
    raise AssertionError("no proved reading")


class _Cells:
    """Numbers of all cells of one workload, case and mode, layer by layer."""

    NUMBERS = ("error_before", "error_after", "floor", "meter_before", "meter_after", "tv_before", "tv_after")
    NAMES = (*NUMBERS, "above", "reached")

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {name: [] for name in self.NAMES}
        self.violations = Violations()
        self.pages = self.bytes = self.fired = self.refused = 0

    def layer(self, gated: GatedPool, layer: int, data: LayerData, seqs: list[int], meter: Meter, exact: Exact) -> None:
        """Attend in one layer, and compare what is served before and after with the truth."""
        pool, table = gated.pool, gated.pool.table(seqs)
        how = {"scale": data.scale, "softcap": data.softcap, "sinks": data.sinks}
        first = ops.decode(pool, layer, data.q, table, meter=meter, **how)  # type: ignore[arg-type]
        tv_before = exact.variation(gated, layer, table)
        done = gated.attend(layer, data.q, seqs, meter=meter, **how)  # type: ignore[arg-type]
        tv_after = exact.variation(gated, layer, table)
        self.violations.check(first.readings, tv_before)
        self.violations.check(done.before, tv_before)
        self.violations.check(done.output.readings, tv_after)
        before, after = _deciding(done.before), _deciding(done.output.readings)
        above = ~(before <= gated.gate.tau)
        found = (exact.error(first.out), exact.error(done.output.out), exact.floor(), before, after, tv_before, tv_after,
                 above, above & (after <= gated.gate.tau))  # fmt: skip
        for name, x in zip(self.NAMES, found, strict=True):
            self.parts[name].append(x.flatten().cpu())
        self.pages, self.bytes, self.refused = self.pages + done.pages, self.bytes + done.bytes, self.refused + done.refused
        self.fired += 0 if done.fired is None else int(done.fired.sum())

    def fall(self) -> Tensor:
        """Error before over error after of the repaired cells; inf where nothing is left."""
        before, after, above = (torch.cat(self.parts[n]) for n in ("error_before", "error_after", "above"))
        return (before / after)[above.bool()]

    def to_json(self) -> dict[str, Any]:
        """Counts and spreads over the repaired cells: those above tau before, of which ``reached`` ended at most at tau."""
        all_ = {name: torch.cat(parts) for name, parts in self.parts.items()}
        above = all_["above"].bool()
        of = {name: x[above] for name, x in all_.items()}
        ratio = self.fall()
        pick = torch.linspace(0, max(0, len(ratio) - 1), min(SAMPLES, len(ratio))).round().long()
        return {
            "cells": len(above), "fired_heads": self.fired, "repaired": int(above.sum()),
            "reached_tau": int(of["reached"].sum()), "pages": self.pages, "bytes": self.bytes, "refused": self.refused,
            "fall": _pools.spread(ratio), "share_below_10": float((ratio < FALL).double().mean()) if len(ratio) else None,
            **{name: _pools.spread(of[name]) for name in self.NUMBERS},
            "violations": self.violations.to_json(),
            "sample": _pools.points(of["error_before"][pick], of["error_after"][pick]),
        }  # fmt: skip


Falls = dict[tuple[str, str], list[Tensor]]


def _case(
    setting: Setting, work: Work, case: Case, layers: list[LayerData], exacts: list[Exact], falls: Falls
) -> tuple[list[dict[str, Any]], int]:
    """One workload under one case, in both modes; falls collects those of all workloads."""
    pool, meter = _pools.open_pool(setting, work, case)
    out: list[dict[str, Any]] = []
    wrong = 0
    for mode in MODES:
        gated, cells = GatedPool(pool, _pools.gate_of(setting, case, mode)), _Cells()
        seqs = _pools.fill(gated, work, layers)
        for i, (data, exact) in enumerate(zip(layers, exacts, strict=True)):
            cells.layer(gated, i, data, seqs, meter, exact)
        for seq in seqs:
            pool.close(seq)
        wrong += cells.violations.proved
        falls.setdefault((case.name, mode), []).append(cells.fall())
        out.append({
            "workload": work.name, "source": work.source, "layers": work.layers, "rows": len(work.lens),
            "tokens": max(work.lens), "case": case.name, "format": case.format, "meter": case.meter, "guarantee": "proved",
            "tau": gated.gate.tau, "mode": mode, **cells.to_json(),
        })  # fmt: skip
        setting.say(f"{work.name}, {case.name}, {mode}: median fall {out[-1]['fall']['median']}")
    return out, wrong


def works(setting: Setting) -> tuple[list[Work], list[str]]:
    """The workloads of this run, and what was left out."""
    stride = int(setting.option("stride", 1))
    if setting.quick and "stride" not in setting.options:
        stride = 10
    rows = int(setting.option("rows", OPTIONS["rows"]))
    found, notes = _pools.recorded(setting, rows_per_text=rows, stride=stride)
    lengths = setting.option("lengths", OPTIONS["lengths"])
    if "lengths" not in setting.options and setting.device == "cpu":
        lengths = [512] if setting.quick else [4096]
    shape = _synthetic.Shape(2, 4, 64) if setting.quick else _synthetic.Shape()
    for tokens in lengths:
        # No more than half a million tokens at once.
        found.append(_pools.synthetic(setting, tokens, 2 if setting.quick else max(2, min(8, 2**19 // tokens)), shape))
    return found, notes


def run(setting: Setting) -> dict[str, Any]:
    """Every workload, case and mode."""
    found, notes = works(setting)
    cases: list[dict[str, Any]] = []
    falls: Falls = {}
    wrong = 0
    for work in found:
        layers = [work.layer(i) for i in range(work.layers)]
        lens = torch.tensor(work.lens)
        exacts = [Exact(x.q, x.k, lens, x.scale, x.softcap, x.sinks, x.v) for x in layers]
        for name in setting.option("cases", OPTIONS["cases"]):
            done, below = _case(setting, work, CASES[name], layers, exacts, falls)
            cases, wrong = cases + done, wrong + below
    spreads = {pair: _pools.spread(torch.cat(parts)) for pair, parts in falls.items()}
    pooled = [{"case": case, "mode": mode, **x} for (case, mode), x in spreads.items()]
    least = min((x["median"] for x in spreads.values() if x["median"] is not None), default=None)
    return {
        "violations": wrong, "cases": cases, "notes": notes,
        "claim": {
            "text": f"with every scheme, in both modes, the error of repaired cells falls by more than {FALL:g} times in the "
            "median over all workloads",
            "holds": least is not None and least > FALL, "least_median": least, "pooled": pooled, "guarantee": "measured",
        },
    }  # fmt: skip


def draw(result: dict[str, Any]) -> Any:
    """Error before against after, one panel a scheme."""
    names = list(dict.fromkeys(c["case"] for c in result["cases"]))
    figure, panels = style.axes(len(names))
    for axis, name in zip(panels, names, strict=True):
        of = [c for c in result["cases"] if c["case"] == name]
        low, high = 1e-3, 1e-2
        for i, mode in enumerate(MODES):
            points = [p for c in of if c["mode"] == mode for p in c["sample"] if p[0]]
            x, y = ([max(float(p[j]), 1e-6) for p in points] for j in (0, 1))
            axis.scatter(x, y, s=5, alpha=0.4, color=style.CURVES[i], label=f"{mode} repair", edgecolors="none")
            low, high = min([low, *x]), max([high, *x])
        axis.plot([low, high], [low, high], color=style.GREY, lw=0.8)
        axis.plot([low, high], [low / FALL, high / FALL], color=style.GREY, lw=0.8, ls="--")
        axis.set(xscale="log", yscale="log", xlabel="relative output error before", title=f"{name}, τ = {of[0]['tau']:g}")
        axis.set(xlim=(low / 2, high * 2), ylim=(3e-5, high * 2))
    panels[0].set_ylabel("after (dashed: a tenth)")
    panels[0].legend(loc="upper left")
    return figure


def describe(result: dict[str, Any]) -> str:
    """The table, the claim, the soundness count."""
    heads = ("workload", "scheme", "repair", "τ", "cells repaired", "error before", "after", "16-bit floor", "fall: median",
             "5 %", "least", "meter before → after", "TV before → after", "MB moved")  # fmt: skip
    rows = []
    for c in result["cases"]:
        def pair(name: str, of: dict[str, Any] = c) -> str:
            return f"{style.number(of[f'{name}_before']['median'])} → {style.number(of[f'{name}_after']['median'])}"

        fall = c["fall"]
        rows.append((
            c["workload"], c["case"], c["mode"], f"{c['tau']:g}", f"{c['repaired']} of {c['cells']}",
            style.number(c["error_before"]["median"]), style.number(c["error_after"]["median"]),
            style.number(c["floor"]["median"]),
            *(style.number(fall[n]) for n in ("median", "p5", "min")), pair("meter"), pair("tv"), f"{c['bytes'] / 1e6:.1f}",
        ))  # fmt: skip
    claim = result["claim"]
    verdict = "holds" if claim["holds"] else "does NOT hold"
    cells = sum(x["cells"] for c in result["cases"] for n, x in c["violations"].items() if n == "proved")
    weak = sum(x["cells"] for c in result["cases"] for n, x in c["violations"].items() if n == "proved-nonadaptive")
    weak_below = sum(x["violations"] for c in result["cases"] for n, x in c["violations"].items() if n == "proved-nonadaptive")
    left = sum(c["repaired"] - c["reached_tau"] for c in result["cases"])
    lines = [
        style.table(heads, rows),
        "Medians over the repaired cells; the floor is the error of the exact output rounded to 16 bits, which no "
        "ratio can go "
        "beyond.",
        style.table(("over all workloads", "repair", "fall: median", "5 %", "least"), [
            (p["case"], p["mode"], *(style.number(p[n]) for n in ("median", "p5", "min"))) for p in result["claim"]["pooled"]
        ]),
        f"Claim ({claim['guarantee']}): {claim['text']}: **{verdict}** "
        f"(least median {style.number(claim['least_median'])}). Repaired cells that did not reach τ: {left}.",
        f"Readings compared with the recomputed total variation: {cells} proved, {result['violations']} below it; "
        f"{weak} proved-nonadaptive, {weak_below} below it.",
        *result["notes"],
    ]
    return "\n\n".join(lines)
