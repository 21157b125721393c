"""Pools of the closed-loop experiments: which formats, what is written to them, and how numbers are summed up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments import _synthetic
from experiments.common import Setting
from witcert.budget import Budget
from witcert.gate import Gate, GatedPool
from witcert.kernels.decode.launch import Meter
from witcert.kernels.formats import HEAD_DIMS
from witcert.store import CachePool, PoolConfig

__all__ = [
    "CASES", "Case", "LayerData", "Work", "fill", "gate_of", "open_pool", "points", "recorded", "spread", "synthetic",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A format with the meter that reads it; tau None: that of the run."""

    name: str
    format: Literal["scheme", "int8", "int8-dither"]
    meter: Literal["band", "half", "tierB"]
    scheme: str | None = None
    tau: float | None = None


CASES = {
    c.name: c
    for c in (
        Case("rtn_int4", "scheme", "band", "rtn_int4"),
        Case("rtn_int2", "scheme", "band", "rtn_int2"),
        Case("dither_int8", "int8-dither", "tierB", tau=0.01),
    )
}


@dataclass(frozen=True, eq=False)
class LayerData:
    """One layer of a workload: q [R, Hq, d]; k, v [R, T, Hkv, d] exact in 16 bits, padded; what its attention does."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Work:
    """Contexts of R sequences in every layer, and one query of each; layer(i) makes the tensors of a layer."""

    name: str
    source: Literal["recorded", "synthetic"]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    lens: tuple[int, ...]
    pairing: Literal["half", "adjacent"]
    layer: Callable[[int], LayerData]


def recorded(setting: Setting, *, rows_per_text: int, stride: int) -> tuple[list[Work], list[str]]:
    """The recorded texts as one workload, every ``stride``-th layer; and why there is none, where there is none.

    A row is a text up to one of the last ``rows_per_text`` recorded queries, evenly chosen in its second half.
    """
    if setting.recording is None and not setting.has_model:
        return [], ["no model and no recording: recorded attention was left out"]
    recordings = setting.recordings
    first = recordings[0].layers[0]
    d = first.k.shape[-1]
    if d not in HEAD_DIMS:
        return [], [f"recorded attention has head dimension {d}; the pool takes {', '.join(map(str, HEAD_DIMS))}"]
    chosen = list(range(0, len(recordings[0].layers), stride))
    if any(bool((r.layers[i].first > 0).any()) for r in recordings for i in chosen):
        return [], ["recorded attention has a sliding window; this experiment takes full attention only"]
    rows: list[tuple[int, int, int]] = []  # text, query, tokens
    for t, r in enumerate(recordings):
        count = len(r.positions)
        picked = torch.linspace(count // 2, count - 1, min(rows_per_text, count)).round().long().tolist()
        rows += [(t, j, int(r.positions[j]) + 1) for j in sorted(set(picked))]

    def layer(index: int) -> LayerData:
        of = [r.layers[chosen[index]] for r in recordings]
        device, half = setting.device, torch.float16
        k, v = (
            pad_sequence([getattr(of[t], x)[:, :n].transpose(0, 1).to(device, half) for t, _, n in rows], batch_first=True)
            for x in ("k", "v")
        )
        q = torch.stack([of[t].q[:, j].to(device, half) for t, j, _ in rows])
        sinks = None if of[0].sinks is None else of[0].sinks.to(device, torch.float32).contiguous()
        return LayerData(q, k, v, of[0].scale, of[0].softcap, sinks)

    name = Path(str(recordings[0].meta.get("model", "recording"))).name  # not a place on this machine
    work = Work(
        name, "recorded", len(chosen), first.q.shape[0], first.k.shape[0], d, tuple(n for _, _, n in rows),
        recordings[0].pairing, layer,
    )  # fmt: skip
    return [work], []


def synthetic(setting: Setting, tokens: int, rows: int, shape: _synthetic.Shape) -> Work:
    """Synthetic contexts, one layer, one query each."""
    s = shape

    def layer(_: int) -> LayerData:
        drawn = [_synthetic.context(tokens, 1, s, setting.seed + 1000 * i + tokens, setting.device) for i in range(rows)]
        return LayerData(
            torch.cat([c.q for c in drawn]), torch.stack([c.k for c in drawn]), torch.stack([c.v for c in drawn]), s.scale
        )

    return Work(f"synthetic {tokens}", "synthetic", 1, s.heads, s.kv_heads, s.head_dim, (tokens,) * rows, "half", layer)


def open_pool(setting: Setting, work: Work, case: Case, *, spare: int = 0, tags: bool = True) -> tuple[CachePool, Meter]:
    """An empty pool that holds the workload, all of it repaired too, and the meter; spare: tokens a sequence may gain."""
    size, longest = 16, max(work.lens) + spare
    pages = sum(-(-(n + spare) // size) for n in work.lens)
    config = PoolConfig(
        layers=work.layers, heads=work.heads, kv_heads=work.kv_heads, head_dim=work.head_dim, pages=pages, tokens=longest,
        page_size=size, format=case.format, scheme=case.scheme, pairing=work.pairing, seed=setting.seed, backing=True,
        side_pages=pages * work.kv_heads if case.format != "scheme" else 0, tags=tags,
    )  # fmt: skip
    pool = CachePool(config, setting.device)
    meter = pool.meter_for(case.meter, Budget(work.layers, work.heads, work.kv_heads))
    assert meter is not None
    return pool, meter


def fill(gated: GatedPool, work: Work, layers: Sequence[LayerData]) -> list[int]:
    """Open a sequence for each row and write its context in every layer, through the gate's write path."""
    pool = gated.pool
    seqs = [pool.open() for _ in work.lens]
    for b, (seq, n) in enumerate(zip(seqs, work.lens, strict=True)):
        slots = pool.reserve([seq], [n])
        for i, data in enumerate(layers):
            gated.write(i, data.k[b, :n], data.v[b, :n], slots)
    return seqs


def gate_of(setting: Setting, case: Case, mode: Literal["block", "head"]) -> Gate:
    """The gate of a case: its threshold or the run's, decided by the proved reading."""
    return Gate(tau=setting.tau if case.tau is None else case.tau, mode=mode)


def spread(x: Tensor) -> dict[str, float | None]:
    """Least, 5th percentile, median, 95th percentile and largest of the numbers; None where there is none."""
    names = ("min", "p5", "median", "p95", "max")
    if not x.numel():
        return dict.fromkeys(names)
    ordered = x.double().flatten().cpu().sort().values
    at = [round(share * (len(ordered) - 1)) for share in (0.0, 0.05, 0.5, 0.95, 1.0)]
    return dict(zip(names, ordered[at].tolist(), strict=True))


def points(*columns: Tensor) -> list[list[float]]:
    """Rows of these columns for a picture, to four digits."""
    rows: list[list[float]] = torch.stack([x.double().flatten().cpu() for x in columns], 1).tolist()
    return [[float(f"{x:.4g}") for x in row] for row in rows]
