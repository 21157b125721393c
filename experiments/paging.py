"""Traffic of repairs: pages chosen by contribution against whole KV heads, over the threshold and the length of the context."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from experiments import _pools, _synthetic, style
from experiments._pools import CASES, Case, LayerData, Work
from experiments._truth import Exact, Violations
from experiments.common import Setting
from witcert.gate import Gate, GatedPool
from witcert.kernels.decode.launch import Meter
from witcert.store import CachePool

NAME = "paging"
ORDER = 11
QUESTION = "How much does repair by pages move from the host, against paging in whole KV heads?"
METHOD = (
    "Requests with contexts of several lengths are written to a pool, and each asks several queries in turn through a "
    "gate; what was repaired for one query stays exact for the next ones. The gate's ledger counts pages (of one KV "
    "head, 16 tokens) and bytes by request, once with block and once with head repair, for the same tokens and "
    "queries. After each query the total "
    "variation of every cell is recomputed and compared with the reading. " + _synthetic.DESCRIPTION
)
LIMITS = (
    "How much less block repair moves depends on how few pages hold the mass, which the synthetic contexts prescribe; "
    "a scheme whose meter is loose, such as one of 4 bits, needs every page at any useful τ, and then both modes move "
    "the same. With as few requests as here the 95th percentile is close to the largest. Bytes are counted, not timed."
)
MODES: tuple[Literal["block", "head"], ...] = ("block", "head")
OPTIONS: dict[str, Any] = {
    "lengths": [8192, 32768, 131072], "taus": [0.02, 0.05, 0.2], "loose_tau": 0.5, "steps": 4, "rows": 8,
}  # fmt: skip
LOOSE = "rtn_int4"


def _run(
    pool: CachePool, work: Work, data: LayerData, exact: Exact, queries: Tensor, meter: Meter, gate: Gate
) -> tuple[dict[str, Any], Violations]:
    """Fill the pool, ask the queries [R, Q, Hq, d] one after another, and read the ledger."""
    gated, violations = GatedPool(pool, gate), Violations()
    seqs = _pools.fill(gated, work, [data])
    for j in range(queries.shape[1]):
        q = queries[:, j].contiguous()
        done = gated.attend(0, q, seqs, scale=data.scale, meter=meter)
        truth = Exact(q, exact.k, exact.lens, exact.scale).variation(gated, 0, pool.table(seqs))
        violations.check(done.output.readings, truth)
    for seq in seqs:
        pool.close(seq)
    return gated.ledger.summary(), violations


def _contexts(setting: Setting, tokens: int, rows: int, steps: int, shape: _synthetic.Shape) -> tuple[Work, LayerData, Tensor]:
    """Contexts with all their queries [R, Q, Hq, d]."""
    seeds = [setting.seed + 1000 * i + tokens for i in range(rows)]
    drawn = [_synthetic.context(tokens, steps, shape, seed, setting.device) for seed in seeds]
    queries = torch.stack([c.q for c in drawn])
    data = LayerData(queries[:, 0], torch.stack([c.k for c in drawn]), torch.stack([c.v for c in drawn]), shape.scale)
    work = Work(f"synthetic {tokens}", "synthetic", 1, shape.heads, shape.kv_heads, shape.head_dim, (tokens,) * rows, "half",
                lambda _: data)  # fmt: skip
    return work, data, queries


def run(setting: Setting) -> dict[str, Any]:
    """Every length, case, threshold and mode."""
    lengths, taus = setting.option("lengths", OPTIONS["lengths"]), setting.option("taus", OPTIONS["taus"])
    steps, most = setting.option("steps", OPTIONS["steps"]), setting.option("rows", OPTIONS["rows"])
    shape = _synthetic.Shape()
    if setting.device == "cpu" and "lengths" not in setting.options:
        lengths = [512] if setting.quick else [2048, 8192]
    if setting.quick:
        taus, steps, most, shape = taus[1:], min(steps, 2), min(most, 2), _synthetic.Shape(2, 4, 64)
    plans: list[tuple[Case, list[float]]] = [
        (CASES["dither_int8"], list(taus)), (CASES[LOOSE], [setting.option("loose_tau", OPTIONS["loose_tau"])]),
    ]  # fmt: skip
    found: list[dict[str, Any]] = []
    total = Violations()
    for tokens in lengths:
        rows = max(2, min(most, 2**19 // tokens))
        work, data, queries = _contexts(setting, tokens, rows, steps, shape)
        exact = Exact(data.q, data.k, torch.tensor(work.lens), data.scale)
        whole = tokens * shape.kv_heads * 4 * shape.head_dim
        for case, thresholds in plans:
            pool, meter = _pools.open_pool(setting, work, case, tags=False)
            for tau in thresholds:
                pair: dict[str, dict[str, Any]] = {}
                for mode in MODES:
                    summary, below = _run(pool, work, data, exact, queries, meter, Gate(tau=tau, mode=mode))
                    total.add(below)
                    pair[mode] = summary
                less = pair["head"]["bytes"] / pair["block"]["bytes"] if pair["block"]["bytes"] else None
                found.append({
                    "tokens": tokens, "requests": rows, "queries": steps, "case": case.name, "guarantee": "proved", "tau": tau,
                    "exact_bytes_of_request": whole, "head_over_block": less, **pair,
                })  # fmt: skip
                setting.say(f"{tokens} tokens, {case.name}, tau {tau:g}: head moves {less} times what block does")
            del pool
    return {
        "violations": total.proved, "readings": total.to_json(), "runs": found, "page_tokens": 16, "shape": vars(shape),
        "guarantee": "measured",
    }  # fmt: skip


def draw(result: dict[str, Any]) -> Any:
    """Megabytes of a request over the length of its context, and the share of the exact cache that was moved."""
    figure, panels = style.axes(2)
    groups = list(dict.fromkeys((r["case"], r["tau"]) for r in result["runs"]))
    for i, (case, tau) in enumerate(groups):
        of = [r for r in result["runs"] if (r["case"], r["tau"]) == (case, tau)]
        x, colour = [r["tokens"] for r in of], style.CURVES[i % len(style.CURVES)]
        for mode, line in (("block", "-o"), ("head", "--s")):
            middle = [r[mode]["bytes_per_request"]["p50"] for r in of]
            label = f"{case}, τ = {tau:g}" if mode == "block" else None
            panels[0].plot(x, [max(b, 1.0) / 1e6 for b in middle], line, color=colour, ms=3.5, lw=1.2, label=label)
            share = [b / r["exact_bytes_of_request"] for b, r in zip(middle, of, strict=True)]
            panels[1].plot(x, share, line, color=colour, ms=3.5, lw=1.2)
    for axis in panels:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("tokens of the context")
    panels[0].set(yscale="log", ylabel="MB moved by a request (median)", title="solid: block, dashed: head")
    panels[1].set(ylabel="share of the request's exact K and V", title="the same, as a share")
    panels[1].set_ylim(bottom=0)
    panels[0].legend(fontsize=7)
    return figure


def describe(result: dict[str, Any]) -> str:
    """The table of traffic."""
    rows = []
    for r in result["runs"]:
        def amounts(mode: str, of: dict[str, Any] = r) -> str:
            b = of[mode]["bytes_per_request"]
            return f"{b['p50'] / 1e6:.2f} / {b['p95'] / 1e6:.2f}"

        less = r["head_over_block"]
        rows.append((
            f"{r['tokens']}", r["case"], f"{r['tau']:g}", amounts("block"), amounts("head"),
            f"{r['block']['pages']} / {r['head']['pages']}", "nothing moved" if less is None else f"{float(less):.3g}",
            f"{100 * r['block']['bytes_per_request']['p50'] / r['exact_bytes_of_request']:.1f} %",
            r["block"]["uncertified"] + r["head"]["uncertified"],
        ))  # fmt: skip
    first, s = result["runs"][0], result["shape"]
    heads = ("tokens", "scheme", "τ", "block: MB a request, P50 / P95", "head", "pages, block / head", "head / block",
             "block's share of exact K, V", "cells left above τ")  # fmt: skip
    compared = [f"{n}: {x['cells']} compared, {x['violations']} below the truth" for n, x in result["readings"].items()]
    return "\n\n".join([
        style.table(heads, rows),
        f"{s['kv_heads']} KV heads of {s['group']} query heads, d = {s['head_dim']}, one layer, {first['queries']} "
        f"queries a request; requests: {', '.join(sorted({str(r['requests']) for r in result['runs']}))}. A page is "
        f"{result['page_tokens']} tokens of one KV head. Traffic is {result['guarantee']}; the gate decides by the "
        "proved "
        f"reading. Readings after each query: {'; '.join(compared)}.",
    ])  # fmt: skip
