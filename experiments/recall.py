"""Associative recall through the certified cache, with and without the gate, for schemes that break the model."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from experiments import style
from experiments._truth import Exact, Violations, exact_of
from experiments.common import Setting
from witcert.errors import InputError
from witcert.gate import Gate
from witcert.hf.attach import Attachment, attach
from witcert.observe import texts
from witcert.observe.texts import Text, overlapping

NAME = "recall"
ORDER = 70
QUESTION = "Does the gate give back the answers that a scheme makes the model forget, and what does it page in for them?"
METHOD = (
    "Texts state facts and then repeat them in another order; the first half is read in one forward, the second "
    "token by token through `witcert.attach` (teacher forcing), so that every answer is looked up in the served "
    "cache. An answer token is right if it is the most likely one. Each scheme runs without a gate and with block "
    "repair at several thresholds; the traffic is the ledger's, and the true total variation of sampled steps is "
    "recomputed in float64 from the backing store."
)
LIMITS = (
    "Where the meter of a coarse scheme is near 1 in almost every cell, a gate at a small τ pages in nearly the "
    "whole cache: recall comes back because the cache is exact again, and the price is the traffic in the table. "
    "Recall on such lists is one narrow task of one small model; the gate promises a total variation, not an answer."
)
SCHEMES = ["rtn_int4", "rtn_int2"]
TAUS = [0.2, 0.9]
OPTIONS: dict[str, Any] = {"schemes": SCHEMES, "taus": TAUS, "pairs": 20, "texts": 4, "mode": "block"}
CHECKED = 8
"""Every so many steps all layers are compared with the truth."""


def variants(pairs: int, count: int, seed: int) -> list[Text]:
    """The same facts in the same orders with other three-digit values: texts of one length in tokens."""
    base, out = texts.recall(pairs, seed=0), []
    for i in range(count):
        rng, known = random.Random(seed + i), dict[str, str]()

        def value(match: re.Match[str], rng: random.Random = rng, known: dict[str, str] = known) -> str:
            return known.setdefault(match.group(0), str(rng.randrange(100, 1000)))

        # a value names its fact here: facts that share one in the base text share the new one too
        out.append(Text("recall", re.sub(r"\d{3}", value, base.text), base.answers, pairs))
    return out


@dataclass(eq=False)
class Batch:
    """Texts as ids [R, T], the length of the first half in tokens, and the positions of the answers."""

    ids: Tensor
    prompt: int
    answers: Tensor

    def accuracy(self, logits: Tensor) -> float:
        """Share of answer tokens that are the most likely ones, from logits [R, T - prompt + 1, vocab] of the second half."""
        at = self.answers - self.prompt  # the row before an answer token predicts it
        return float((logits[:, at].argmax(-1) == self.ids[:, self.answers]).double().mean())


def batch(setting: Setting, pairs: int, count: int) -> Batch:
    """Encode the texts; InputError where the tokenizer gives them different lengths."""
    loaded = setting.loaded
    rows, halves, answers = [], set(), None
    for text in variants(pairs, count, setting.seed):
        encoded = loaded.tokenizer(text.text, return_offsets_mapping=True, add_special_tokens=True)
        offsets = encoded["offset_mapping"]
        half = len("".join(text.text.splitlines(keepends=True)[:pairs]))
        halves.add(next(i for i, (a, b) in enumerate(offsets) if b > a and a >= half))
        answers = overlapping(text.answers, offsets)
        rows.append(encoded["input_ids"])
    if len({len(r) for r in rows}) != 1 or len(halves) != 1 or answers is None:
        raise InputError("the tokenizer gives texts with other digits other lengths; use --set texts=1")
    limit = loaded.geometry.max_positions
    if limit is not None and len(rows[0]) > limit:
        raise InputError(f"pairs={pairs} need {len(rows[0])} tokens; the model's context ends at {limit}")
    return Batch(torch.tensor(rows, device=loaded.model.device), halves.pop(), torch.tensor(answers))


@dataclass(eq=False)
class Watch:
    """Compares every reading with the true total variation, in all layers of every ``CHECKED``-th step."""

    attachment: Attachment | None = None
    layers: int = 1
    calls: int = 0
    violations: Violations = field(default_factory=Violations)
    after: list[Tensor] = field(default_factory=list)

    def __call__(self, layer: int, q: Tensor, seqs: tuple[int, ...], options: dict[str, Any], attended: Any) -> None:
        step, self.calls = self.calls // self.layers, self.calls + 1
        if step % CHECKED or self.attachment is None or options["window"] is not None:
            return
        gated = self.attachment.gated
        table = gated.pool.table(seqs)
        width = max(gated.pool.length(s) for s in seqs)
        k = exact_of(gated, layer, table, width)
        exact = Exact(q, k, table.seq_lens, options["scale"], options["softcap"], options["sinks"])
        truth = exact.variation(gated, layer, table)
        self.violations.check(attended.output.readings, truth)
        self.after.append(truth.flatten().cpu())


def _decode(model: Any, a: Attachment, b: Batch) -> Tensor:
    """Logits [R, T - prompt + 1, vocab] of the second half, one step a token, float32 on the device."""
    cache = a.new_cache()
    out = model(input_ids=b.ids[:, : b.prompt], past_key_values=cache)
    rows = [out.logits[:, -1].float()]
    for i in range(b.prompt, b.ids.shape[1]):
        out = model(input_ids=b.ids[:, i : i + 1], past_key_values=cache)
        rows.append(out.logits[:, -1].float())
    return torch.stack(rows, 1)


def _one(setting: Setting, b: Batch, scheme: str | None, gate: Gate) -> dict[str, Any]:
    """One scheme under one gate."""
    model, rows = setting.loaded.model, len(b.ids)
    tokens = -(-b.ids.shape[1] // 16) * 16
    watch = Watch(layers=setting.loaded.geometry.layers)
    kind: dict[str, Any] = {"format": "exact"} if scheme is None else {"scheme": scheme}
    own = next(model.parameters()).dtype
    with torch.no_grad(), attach(
        model, **kind, gate=gate, tokens=tokens, pages=rows * tokens // 16, backing=True, seed=setting.seed,
        dtype=torch.float16 if own == torch.float32 else None, fixed_queries=True, observer=watch,
        steps=b.ids.shape[1] - b.prompt,
    ) as a:  # fmt: skip
        watch.attachment = a
        logits = _decode(model, a, b)
        summary = a.ledger.summary()
        cells, moved = summary["cells"], summary["bytes"]
        full = rows * b.ids.shape[1] * setting.loaded.geometry.layers * a.pool.config.kv_heads * 4 * a.pool.config.head_dim
    after = torch.cat(watch.after) if watch.after else torch.zeros(1)
    return {
        "scheme": scheme or "exact", "mode": gate.mode, "tau": gate.tau if gate.mode != "off" else None,
        "recall": b.accuracy(logits), "logits": logits,
        "certified": summary["certified"], "repaired": summary["repaired"], "uncertified": summary["uncertified"],
        "cells": cells, "fired": summary["fired"], "bytes": moved, "bytes_share": moved / full,
        "tv_after": {"mean": float(after.mean()), "max": float(after.max()), "cells": after.numel()},
        "checked": watch.violations.to_json(), "below_proved": watch.violations.proved,
    }  # fmt: skip


def run(setting: Setting) -> dict[str, Any]:
    """Every scheme without a gate and at every threshold."""
    quick = setting.quick
    b = batch(setting, 2 if quick else setting.option("pairs", 20), 2 if quick else setting.option("texts", 4))
    names = ["rtn_int2"] if quick else setting.option("schemes", SCHEMES)
    taus = [0.5] if quick else setting.option("taus", TAUS)
    mode = setting.option("mode", "block")
    runs = [_one(setting, b, None, Gate(mode="off"))]
    exact = runs[0]["logits"]
    for name in names:
        setting.say(f"{name}, no gate")
        runs.append(_one(setting, b, name, Gate(mode="off")))
        for tau in taus:
            setting.say(f"{name}, tau {tau:g}")
            runs.append(_one(setting, b, name, Gate(tau=tau, mode=mode)))
    for r in runs:
        served, log_p = torch.log_softmax(r.pop("logits").double(), -1), torch.log_softmax(exact.double(), -1)
        r["kl"] = float((log_p.exp() * (log_p - served)).sum(-1).mean().clamp(min=0.0))
        r["guarantee"] = "proved"
    return {
        "violations": sum(r.pop("below_proved") for r in runs), "runs": runs, "texts": len(b.ids), "tokens": b.ids.shape[1],
        "prompt": b.prompt, "steps": b.ids.shape[1] - b.prompt, "answers": len(b.answers) * len(b.ids),
        "stored": "float16",
    }  # fmt: skip


def describe(result: dict[str, Any]) -> str:
    """The table of the README."""
    rows = []
    for r in result["runs"]:
        gate = "off" if r["tau"] is None else f"{r['mode']}, τ = {r['tau']:g}"
        gated = r["tau"] is not None
        rows.append([
            r["scheme"], gate, style.percent(r["recall"]), style.number(r["kl"]),
            style.percent(r["certified"] / r["cells"]) if gated else "—",
            style.percent(r["repaired"] / r["cells"]) if gated else "—",
            style.percent(r["bytes_share"]) if gated else "—", style.number(r["tv_after"]["mean"]),
            style.number(r["tv_after"]["max"]),
        ])  # fmt: skip
    heads = ["scheme", "gate", "recall", "KL, nats", "at most τ when read", "brought to ≤ τ", "paged in, share of exact cache",
             "true TV as served, mean", "max"]  # fmt: skip
    checked = sum(x["cells"] for r in result["runs"] for x in r["checked"].values())
    return (
        style.table(heads, rows)
        + f"\n\n{result['texts']} texts of {result['tokens']} tokens, the last {result['steps']} decoded one by one; "
        f"{result['answers']} answer tokens; q, k and v stored as {result['stored']}. Cells certified or repaired "
        f"are those of the proved reading; a page that an earlier step repaired is exact when it is read again, and later "
        "rows of it are written exactly, from the device (no traffic). "
        f"{checked:,} readings were compared with the truth in float64. Recall, KL and true total variation are [measured]."
    )


def draw(result: dict[str, Any]) -> Any:
    """Recall and traffic, one group of bars a scheme."""
    figure, axes = style.axes(2, 1, 5.6, 3.5)
    runs = result["runs"]
    names = list(dict.fromkeys(r["scheme"] for r in runs if r["scheme"] != "exact"))
    gates = list(dict.fromkeys(r["tau"] for r in runs if r["scheme"] != "exact"))
    width = 0.8 / max(1, len(gates))
    for j, (tau, colour) in enumerate(zip(gates, (style.GREY, *style.CURVES), strict=False)):
        at = {r["scheme"]: r for r in runs if r["tau"] == tau and r["scheme"] != "exact"}
        x = [i + (j - (len(gates) - 1) / 2) * width for i in range(len(names))]
        label = "no gate" if tau is None else f"gate at τ = {tau:g}"
        axes[0].bar(x, [100 * at[n]["recall"] for n in names], width * 0.9, color=colour, label=label)
        if tau is not None:
            axes[1].bar(x, [100 * at[n]["bytes_share"] for n in names], width * 0.9, color=colour, label=label)
    exact = next(r for r in runs if r["scheme"] == "exact")
    axes[0].axhline(100 * exact["recall"], color="black", lw=1, ls="--", label="exact cache")
    axes[0].set(ylabel="answer tokens recalled, % [measured]", title="recall", ylim=(0, 105))
    axes[1].set(ylabel="bytes paged in, % of the exact cache", title="traffic [measured]")
    for ax in axes:
        ax.set_xticks(range(len(names)), names)
        ax.set_xlim(-0.6, len(names) - 0.4)
        ax.grid(axis="x", visible=False)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=len(gates) + 1)
    return figure
