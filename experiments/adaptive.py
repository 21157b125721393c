"""Free-running generation on the certified cache: what the adaptive reading proves, and what the other one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from experiments import _free, _pools, style
from experiments.common import Setting
from witcert.gate import Gate
from witcert.hf.attach import attach
from witcert.hf.refusals import model_dtype

NAME = "adaptive"
ORDER = 12
QUESTION = "In free-running generation, where queries depend on earlier dither, does every reading still bound the truth?"
METHOD = (
    "The model writes its own text, sampled, from several prompts at once on the certified cache. At the end of each "
    "step the exact keys of every sequence are read from the backing store, the served ones are computed anew from "
    "codes, scales, dither and repaired pages, and the total variation of every cell (layer, query head, sequence, "
    "step) is recomputed in float64 and compared with every reading. As a control, queries are aligned with the "
    "residuals of the dither that was drawn, which is the dependence that the non-adaptive reading excludes and the "
    "adaptive one allows."
)
LIMITS = (
    "The non-adaptive reading promises nothing about these queries: its count is **measured**, on these prompts, and "
    "a count of zero proves nothing; the control shows a case where it fails. Exact means exact attention over the "
    "keys that this run computed; those depend on what earlier layers and steps were served, so that this is not the "
    "distance to the text that an exact cache would have written. The prompt's own forward is exact among itself and "
    "is not metered."
)
Off = Literal["off"]
OPTIONS: dict[str, Any] = {"batch": 8, "prompt": 256, "new": 32, "tau_dither": 0.05, "control": 256}
SAMPLES = 400


def _runs(setting: Setting) -> list[tuple[str, dict[str, Any], Gate | Off]]:
    tau = setting.option("tau_dither", OPTIONS["tau_dither"])
    return [
        ("dither_int8, gate off", {"tier_b": True}, "off"),
        (f"dither_int8, block gate at τ = {tau:g}", {"tier_b": True}, Gate(tau=tau)),
        (f"rtn_int4, block gate at τ = {setting.tau:g}", {"scheme": "rtn_int4"}, Gate(tau=setting.tau)),
    ]


def _generate(setting: Setting, how: dict[str, Any], gate: Gate | Off, batch: int, prompt: int, new: int) -> dict[str, Any]:
    """One generation, every cell of it recomputed."""
    model, watch = setting.loaded.model, _free.Watch()
    ids = _free.prompts(setting, batch, prompt)
    pages = batch * -(-(prompt + new) // 16)
    own = model_dtype(model)
    with torch.no_grad(), attach(
        model, **how, gate=gate, backing=True, tokens=prompt + new, pages=pages, steps=new, seed=setting.seed,
        side_pages=pages * setting.loaded.geometry.kv_heads, dtype=torch.float16 if own == torch.float32 else None,
        observer=watch.observe, on_step=watch.step,
    ) as attached:  # fmt: skip
        watch.attachment = attached
        torch.manual_seed(setting.seed)
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=True, temperature=0.9,
            pad_token_id=0,
        )  # fmt: skip
        reports, ledger = attached.report(), attached.ledger.summary()
    readings = []
    for label, pairs in watch.pairs.items():
        meter, truth = (torch.cat(x) for x in zip(*pairs, strict=True))
        pick = torch.randperm(len(meter), generator=setting.generator(3))[:SAMPLES]
        applies = label == "proved"
        readings.append({
            "reading": ("adaptive" if watch.delta[label] else "deterministic") if applies else "non-adaptive",
            "delta": watch.delta[label], "guarantee": "proved" if applies else "measured",
            "cells": len(meter), "violations": watch.violations.below[label],
            "least_excess": watch.violations.least[label], "meter": _pools.spread(meter), "tv": _pools.spread(truth),
            "over": _pools.spread((meter / truth)[truth > 0]),
            "sample": _pools.points(truth[pick], meter[pick]),
        })  # fmt: skip
    return {
        "steps": watch.steps, "sequences": batch, "prompt": prompt, "new_tokens": int(text.shape[1] - prompt),
        "readings": readings, "bytes": ledger["bytes"], "pages": ledger["pages"],
        "certified": sum(r.certified for r in reports), "repaired": sum(r.repaired for r in reports),
        "uncertified": sum(r.uncertified for r in reports), "refused": sum(r.refused for r in reports),
    }  # fmt: skip


def run(setting: Setting) -> dict[str, Any]:
    """All generations and the control."""
    batch, prompt, new = (setting.option(n, OPTIONS[n]) for n in ("batch", "prompt", "new"))
    if setting.quick or setting.device == "cpu":
        small = {"batch": 2, "prompt": 32, "new": 5} if setting.quick else {"batch": 2, "prompt": 128, "new": 24}
        batch, prompt, new = (setting.option(n, small[n]) for n in small)
    runs, wrong = [], 0
    for name, how, gate in _runs(setting):
        found = {"name": name, **_generate(setting, how, gate, batch, prompt, new)}
        wrong += sum(r["violations"] for r in found["readings"] if r["guarantee"] == "proved")
        runs.append(found)
        setting.say(f"{name}: {found['steps']} steps, {found['readings'][0]['cells']} cells")
    control = _free.aligned_control(setting, setting.option("control", 64 if setting.quick else OPTIONS["control"]))
    wrong += control["violations"]["proved"]["violations"]
    return {"violations": wrong, "model": Path(setting.loaded.name).name, "runs": runs, "control": control}


def draw(result: dict[str, Any]) -> Any:
    """Reading against truth, one panel a generation, and the control."""
    figure, panels = style.axes(len(result["runs"]) + 1, width=3.9)
    proved = style.GUARANTEE_COLOURS["proved"]
    weak = style.GUARANTEE_COLOURS["proved-nonadaptive"]
    colours = {"adaptive": proved, "deterministic": style.CURVES[2], "non-adaptive": weak}

    def panel(axis: Any, points: dict[str, list[tuple[float, float]]], title: str) -> None:
        low = 1e-6
        for name, pairs in points.items():
            x, y = ([max(float(p[j]), low) for p in pairs] for j in (0, 1))
            axis.scatter(x, y, s=5, alpha=0.4, color=colours[name], label=name, edgecolors="none")
        axis.plot([low, 1], [low, 1], color="black", lw=0.8)
        axis.set(xscale="log", yscale="log", xlabel="true total variation", title=title)

    for axis, r in zip(panels, result["runs"], strict=False):
        panel(axis, {x["reading"]: x["sample"] for x in r["readings"]}, r["name"])
    sample = result["control"]["sample"]
    split = {"adaptive": [(t, a) for t, a, _ in sample], "non-adaptive": [(t, w) for t, _, w in sample]}
    panel(panels[-1], split, "control: queries that know the dither")
    panels[-1].set(xlim=(0.03, 1.1), ylim=(0.03, 1.1))
    panels[0].set_ylabel("reading")
    for axis in panels:
        axis.legend(loc="upper left")
    return figure


def describe(result: dict[str, Any]) -> str:
    """Violations by reading and generation, and the control."""
    rows = []
    for r in result["runs"]:
        for x in r["readings"]:
            middle = x["over"]["median"]
            rows.append((
                r["name"], x["reading"], x["guarantee"], x["cells"], x["violations"], style.number(x["tv"]["median"]),
                style.number(x["tv"]["max"]), style.number(x["meter"]["median"]), style.number(x["meter"]["max"]),
                "-" if middle is None else style.number(middle), f"{r['bytes'] / 1e6:.1f}",
            ))  # fmt: skip
    heads = ("generation", "reading", "label", "cells", "below the truth", "TV median", "TV largest", "reading median",
             "reading largest", "reading / TV, median", "MB moved")  # fmt: skip
    first, control = result["runs"][0], result["control"]
    v = control["violations"]
    weak = v["proved-nonadaptive"]
    left = sum(r["uncertified"] for r in result["runs"][1:])
    return (
        f"{style.table(heads, rows)}\n\n{result['model']}: {first['sequences']} sequences, prompts of "
        f"{first['prompt']} tokens, {first['new_tokens']} sampled tokens each; {first['steps']} metered decode steps. "
        f"Cells of the gated generations that stayed above τ: {left}.\n\nControl, {control['queries']} queries along "
        f"the difference of two residuals (d = {control['head_dim']}): the adaptive reading (proved) is below the "
        f"truth in {v['proved']['violations']} cells, the non-adaptive one (which promises nothing here) in "
        f"{weak['violations']} of {weak['cells']}, by up to {style.number(max(0.0, -weak['least_excess']))}."
    )
