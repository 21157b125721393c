"""Speed and memory of ``model.generate`` on the certified cache, against the same model in plain transformers, in one run."""

from __future__ import annotations

import copy
import gc
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from experiments import _free, style
from experiments.common import Setting
from witcert.audit import outlier_channels, rank_pairs
from witcert.gate import Gate
from witcert.hf.attach import Attachment, attach
from witcert.hf.refusals import model_dtype

NAME = "loop"
ORDER = 14
QUESTION = "What do the certified cache, its meter and its gate cost when transformers generates text?"
METHOD = (
    "The same model in the same precision (16 bits on a GPU) generates the same number of tokens greedily, once as "
    "plain transformers with its own growing cache and SDPA, and once for each way of attaching. The ways take turns "
    "in one process; the time of a step is the median over the steps of a generation but the first, each ended by a "
    "synchronization, and the least of the repeats: the host is shared, and what else it does can only slow a step down. "
    "On a GPU a profiled generation of a few tokens adds up the time of the kernels: what the GPU is busy with, "
    "against what the host (Python, launches, the gate's waiting) takes. The outlier pairs of the last way are the first "
    "two of each head as `witcert audit` ranks them, on the recall text, which no prompt is cut from."
)
LIMITS = (
    "This is the eager loop of transformers, in which a small model leaves the GPU idle for most of a step: the "
    "ratios of steps measure mostly Python, and would be others in a serving engine or for a large model: what a layer of an "
    "attached model stores, reads and meters is one CUDA graph, plain attention is launched kernel by kernel. The ratio "
    "of kernel times is the part that would stay; it includes the model's own products. Prefill is not in the step "
    "times. A gate's cost depends on how much it repairs; the first steps page in most, so that a short run "
    "overstates it."
)
OPTIONS: dict[str, Any] = {"batch": [1, 8], "prompt": [512, 2048], "new": 24, "repeats": 3, "pairs": 2}
PLAIN = "plain transformers, SDPA"


@dataclass(frozen=True)
class Way:
    """One way to run the model: arguments of attach, or None for plain transformers."""

    name: str
    how: dict[str, Any] | None
    gate: Gate | Literal["off"] = "off"


def ways(tau: float, outliers: Tensor | None) -> list[Way]:
    """What is compared."""
    return [
        Way(PLAIN, None),
        Way("exact, no meter", {"format": "exact", "meter": None, "bands": None}),
        Way("exact, metered", {"format": "exact", "meter": "band"}),
        Way("int8, half-step meter, gate off", {"format": "int8", "meter": "half", "bands": None}),
        Way("dither_int8, Tier B, gate off", {"tier_b": True, "bands": None}),
        Way(f"dither_int8, Tier B, gate at τ = {tau:g}", {"tier_b": True}, Gate(tau=tau)),
        *([] if outliers is None else [
            Way(f"the same with {outliers.shape[-1] // 2} outlier pairs", {"tier_b": True, "outliers": outliers}, Gate(tau=tau))
        ]),
    ]  # fmt: skip


def _outliers(setting: Setting) -> Tensor | None:
    """The key channels of the pairs that an audit of the last text ranks first; no prompt is cut from it. None for no pairs."""
    pairs, recording = setting.option("pairs", OPTIONS["pairs"]), setting.recordings[-1]
    if not pairs:
        return None
    d = setting.loaded.geometry.head_dim
    return outlier_channels(rank_pairs(recording, pairs, setting.device), pairs, d, recording.pairing).cpu()


@dataclass
class _Clock:
    """A stopping criterion that never stops: notes when each step has ended, the device's work included."""

    marks: list[float] = field(default_factory=list)

    def __call__(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if ids.is_cuda:
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


@dataclass
class _Measured:
    """Everything of one way, over its repeats."""

    steps: list[float] = field(default_factory=list)
    """Median step of each generation."""
    prefill: list[float] = field(default_factory=list)
    peak: int | None = None
    cache: int = 0
    side: int = 0
    host: int = 0
    moved: int = 0
    fired: float | None = None
    """KV heads above tau, of a step of all layers and rows."""
    busy: float | None = None
    profiled: float | None = None
    text: Tensor | None = None


def _generate(model: Any, ids: Tensor, new: int, clock: _Clock | None) -> Tensor:
    from transformers import StoppingCriteriaList

    with torch.no_grad():
        out: Tensor = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([clock] if clock else []),
        )  # fmt: skip
    return out


def _attach(model: Any, way: Way, setting: Setting, ids: Tensor, new: int) -> Attachment:
    batch, tokens = ids.shape[0], ids.shape[1] + new
    pages = batch * -(-tokens // 16)
    kv = setting.loaded.geometry.kv_heads
    assert way.how is not None
    return attach(
        model, **way.how, gate=way.gate, tokens=tokens, pages=pages, steps=new, seed=setting.seed,
        side_pages=pages * kv if way.gate != "off" else None,
        dtype=torch.float16 if model_dtype(model) == torch.float32 else None,
    )  # fmt: skip


def _kernel_seconds(model: Any, ids: Tensor, new: int) -> tuple[float, float] | None:
    """Seconds of kernels, and of the clock, of decode steps alone: a generation of ``new`` tokens less one of 1."""
    from torch.profiler import ProfilerActivity, profile

    found: list[tuple[float, float]] = []
    for count in (1, new):
        torch.cuda.synchronize()
        start = time.perf_counter()
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                _generate(model, ids, count, None)
                torch.cuda.synchronize()
                took = time.perf_counter() - start
        except RuntimeError:  # no access to the profiler of the device: "-" in the table
            return None
        kernels = sum(e.self_device_time_total for e in profiler.key_averages()) / 1e6
        found.append((kernels, took))
    kernels, took = (found[1][i] - found[0][i] for i in (0, 1))
    return (kernels, took) if kernels > 0 else None


def _once(model: Any, way: Way, setting: Setting, ids: Tensor, new: int, into: _Measured, *, profiled: bool) -> None:
    """One generation; with ``profiled`` the time of the kernels instead of a time."""
    cuda = setting.device == "cuda"
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    attached = None if way.how is None else _attach(model, way, setting, ids, new)
    try:
        if profiled:
            found = _kernel_seconds(model, ids, min(new, 9))
            if found is not None:
                steps = min(new, 9) - 1
                into.busy, into.profiled = found[0] / steps, found[1] / steps
            return
        clock, start = _Clock(), time.perf_counter()
        into.text = _generate(model, ids, new, clock)
        marks = clock.marks
        into.prefill.append(marks[0] - start)
        into.steps.append(median([b - a for a, b in pairwise(marks)][1:]))
        into.peak = torch.cuda.max_memory_allocated() - before if cuda else None
        if attached is not None:
            account = attached.pool.account()
            into.side = int(account["side"] + account["side tags"])
            into.cache, into.host = int(account["device"]) - into.side, int(account["host"])
            summary = attached.ledger.summary()
            into.moved = int(summary["bytes"])
            into.fired = None if way.gate == "off" else summary["fired"] / (new - 1)
    finally:
        if attached is not None:
            attached.detach()


def _row(way: Way, m: _Measured, plain: _Measured, batch: int, prompt: int, own: int) -> dict[str, Any]:
    step, base = min(m.steps), min(plain.steps)
    assert m.text is not None
    assert plain.text is not None
    same = (m.text == plain.text)[:, prompt:] if m.text.shape == plain.text.shape else None
    return {
        "way": way.name, "step_seconds": step, "tokens_per_second": batch / step, "speed_ratio": base / step,
        "prefill_seconds": min(m.prefill), "peak_bytes": m.peak,
        "peak_ratio": None if m.peak is None or not plain.peak else m.peak / plain.peak,
        "cache_bytes": m.cache or own, "cache_ratio": (m.cache or own) / own, "side_bytes": m.side,
        "host_bytes": m.host, "moved_bytes": m.moved, "heads_repaired": m.fired,
        "kernel_seconds": m.busy, "profiled_step_seconds": m.profiled,
        "kernel_ratio": None if m.busy is None or not plain.busy else m.busy / plain.busy,
        "host_share": None if m.busy is None else max(0.0, 1.0 - m.busy / step),
        "same_tokens": None if same is None else float(same.double().mean()),
    }  # fmt: skip


def run(setting: Setting) -> dict[str, Any]:
    """Every batch size and length, all ways taking turns."""
    batches, lengths = setting.option("batch", OPTIONS["batch"]), setting.option("prompt", OPTIONS["prompt"])
    new, repeats = setting.option("new", OPTIONS["new"]), setting.option("repeats", OPTIONS["repeats"])
    if setting.quick or setting.device == "cpu":
        batches = setting.option("batch", [1]) if setting.quick else setting.option("batch", [1, 2])
        lengths = setting.option("prompt", [24]) if setting.quick else setting.option("prompt", [128, 128])
        new, repeats = setting.option("new", 4 if setting.quick else 12), 1
    # 16-bit products are slow on most CPUs: there the model stays in 32 bits, and what the cache holds is rounded.
    g, dtype = setting.loaded.geometry, torch.float16 if setting.device == "cuda" else torch.float32
    model = copy.deepcopy(setting.loaded.model).to(dtype)
    model.set_attn_implementation("sdpa")
    cases, outliers = [], _outliers(setting)
    try:
        for batch, prompt in zip(batches, lengths, strict=True):
            ids = _free.prompts(setting, batch, prompt)
            chosen = ways(setting.tau, outliers)
            measured = {w.name: _Measured() for w in chosen}
            for way in chosen if setting.device == "cuda" else ():  # compiles, allocates
                _once(model, way, setting, ids, min(new, 4), _Measured(), profiled=False)
            for _ in range(repeats):
                for way in chosen:
                    _once(model, way, setting, ids, new, measured[way.name], profiled=False)
            if setting.device == "cuda":
                for way in chosen:
                    _once(model, way, setting, ids, new, measured[way.name], profiled=True)
            width = 2 * dtype.itemsize
            own = width * g.layers * g.kv_heads * g.head_dim * batch * (prompt + new - 1)  # the last token is never cached
            rows = [_row(w, measured[w.name], measured[PLAIN], batch, prompt, own) for w in chosen]
            cases.append({"batch": batch, "prompt": prompt, "new": new, "repeats": repeats, "rows": rows})
            for r in rows:
                setting.say(f"batch {batch}, prompt {prompt}: {r['way']}: {r['tokens_per_second']:.1f} tokens/s")
    finally:
        del model
        gc.collect()
    return {
        "violations": 0, "model": Path(setting.loaded.name).name, "dtype": str(dtype), "guarantee": "measured", "cases": cases,
    }  # fmt: skip


def draw(result: dict[str, Any]) -> Any:
    """Time of a step, and the kernels' part of it."""
    figure, panels = style.axes(len(result["cases"]), width=5.4, height=3.2)
    for axis, case in zip(panels, result["cases"], strict=True):
        rows = case["rows"][::-1]
        names = [r["way"] for r in rows]
        axis.barh(names, [1e3 * r["step_seconds"] for r in rows], color=style.GREY, label="step")
        if all(r["kernel_seconds"] is not None for r in rows):
            axis.barh(names, [1e3 * r["kernel_seconds"] for r in rows], color=style.CURVES[0], label="of it: kernels")
        axis.set(xlabel="milliseconds of a step", title=f"batch {case['batch']}, prompt of {case['prompt']} tokens")
        axis.tick_params(axis="y", labelsize=7)
        axis.legend(fontsize=7)
    return figure


def describe(result: dict[str, Any]) -> str:
    """A table for each batch and length."""
    heads = (
        "cache", "tokens/s", "speed against plain", "kernel ms a step", "kernels against plain", "host's share of a step",
        "cache MB", "against plain", "side pages MB", "peak memory against plain", "host MB", "MB paged in",
        "KV heads repaired a step", "same tokens as plain",
    )  # fmt: skip

    def maybe(x: float | None, digits: str = ".2f", factor: float = 1.0) -> str:
        return "-" if x is None else f"{factor * x:{digits}}"

    parts = []
    for case in result["cases"]:
        rows = [
            (r["way"], f"{r['tokens_per_second']:.1f}", f"{r['speed_ratio']:.2f}", maybe(r["kernel_seconds"], ".2f", 1e3),
             maybe(r["kernel_ratio"]), maybe(r["host_share"], ".0%"), f"{r['cache_bytes'] / 1e6:.1f}",
             f"{r['cache_ratio']:.2f}", f"{r['side_bytes'] / 1e6:.1f}", maybe(r["peak_ratio"]), f"{r['host_bytes'] / 1e6:.1f}",
             f"{r['moved_bytes'] / 1e6:.1f}", maybe(r.get("heads_repaired"), ".1f"), maybe(r["same_tokens"], ".0%"))
            for r in case["rows"]
        ]  # fmt: skip
        parts.append(
            f"Batch {case['batch']}, prompt {case['prompt']}, {case['new']} new tokens, {case['repeats']} "
            "generation(s) each:\n\n"
            + style.table(heads, rows)
        )
    read = any(r["kernel_seconds"] is not None for c in result["cases"] for r in c["rows"])
    note = (
        "Kernel times are those of the profiler, over eight decode steps; the host's share is the rest of the "
        "(unprofiled) step: Python, launches, synchronizations."
        if read
        else "Kernels and Python cannot be told apart here (no GPU): the ratios are those of the whole step."
    )
    return "\n\n".join([
        f"{result['model']}, {result['dtype'].removeprefix('torch.')}, {result['guarantee']}.", *parts,
        f"{note} The gate is given side pages enough to repair everything.",
    ])  # fmt: skip
