"""What was metered while a request ran, and its summary: numbers under their guarantee, requests with their own delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.guarantees import Labelled, Proved, ProvedNonadaptive
from witcert.hf.chunks import ChunkRecord, totals

__all__ = ["Record", "RequestReport", "StepRecord", "summarize"]


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One decode step of a batch.

    Parameters
    ----------
    step : number of the step, from 0, among the decode steps of its cache.
    sequences : the pool's sequence of each row; lengths: its tokens, the new one included.
    before, after : one labelled tensor [L, batch, Hq] per reading, as read and after repairs. Empty without a meter.
    fired : bool [L, batch, Hkv], KV heads that were above the gate's threshold; None with the gate off.
    pages, bytes : moved from the host at this step, in pages of one KV head. refused : pages for which the side pool had no
        room.
    """

    step: int
    sequences: tuple[int, ...]
    lengths: tuple[int, ...]
    before: tuple[Labelled, ...]
    after: tuple[Labelled, ...]
    fired: Tensor | None
    pages: int
    bytes: int
    refused: int

    def worst(self) -> tuple[Labelled, ...]:
        """The largest meter of the step after repairs, by guarantee; NaN counts as 1."""
        return tuple(m.map(lambda x: x.float().nan_to_num(nan=1.0).amax()) for m in self.after)


@dataclass
class Record:
    """Everything that one cache has to tell.

    group : rows of one request, side by side (the beams of a prompt); prompt: tokens of each row when decoding began.
    chunks : forwards of several tokens over stored prefixes that were metered. unmetered : queries of such forwards without
    a meter; exact : queries that saw only keys of their own forward, which are exact.
    """

    group: int = 1
    prompt: tuple[int, ...] = ()
    steps: list[StepRecord] = field(default_factory=list)
    chunks: list[ChunkRecord] = field(default_factory=list)
    unmetered: list[int] = field(default_factory=list)
    exact: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class RequestReport:
    """Summary of one request: a prompt and what was generated from it.

    Parameters
    ----------
    rows : sequences that it had (beams). steps : decode steps. cells : (layer, query head, row, step) metered.
    guarantee : label of the reading that decides; tau : its threshold.
    cells and the next four are of decode steps; those of chunks have names of their own.
    certified : cells at most tau as read. repaired : cells brought to at most tau by a repair. uncertified : the others.
    steps_certified : steps in which every cell ended at most tau.
    worst : by guarantee, the largest meter of each layer after repairs [L], with the failure probability that this request
        spent; where that reaches 1 the value is 1, since nothing is promised.
    applies : by guarantee, whether its promise speaks about this request's queries.
    chunks : forwards of several tokens over a stored prefix that were metered, chunk_tokens their queries, chunk_cells their
        (layer, query head, query), chunk_certified those at most tau as read, chunk_repaired those brought there by a repair
        (``Gate.chunk``). Each query is a step of the budget. chunk_worst : as worst, of these forwards.
    bytes, refused : moved from the host, and pages that found no room, for the whole batch in these steps and forwards.
    unmetered, exact : see :class:`Record`.
    """

    rows: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    steps: int
    cells: int
    guarantee: str | None
    tau: float
    certified: int
    repaired: int
    uncertified: int
    steps_certified: int
    worst: tuple[Labelled, ...]
    applies: dict[str, bool]
    chunks: int
    chunk_tokens: int
    chunk_cells: int
    chunk_certified: int
    chunk_repaired: int
    chunk_worst: tuple[Labelled, ...]
    bytes: int
    refused: int
    unmetered: int
    exact: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        out = {k: v for k, v in vars(self).items() if k not in ("worst", "chunk_worst")}
        return out | {"prompt": list(self.prompt), "tokens": list(self.tokens),
                      "worst_by_layer": [m.to_json() for m in self.worst],
                      "chunk_worst_by_layer": [m.to_json() for m in self.chunk_worst]}  # fmt: skip


def _spent(kind: Labelled, budget: Budget, tokens: int, encoded: int, queries: int) -> float:
    """Failure probability that a request has used: events of the dither by what each may fail with.

    Adaptive: one event per stored token, layer and KV head, each with ``budget.delta_adaptive(tokens)``. Non-adaptive: one
    per cell, each with ``budget.delta_loc``; queries counts the metered positions of all rows, those of chunks included.
    Within the budget's tokens and steps that is at most its delta_req.
    """
    if kind.delta == 0.0:
        return 0.0
    if isinstance(kind, ProvedNonadaptive):
        return max(kind.delta, queries * budget.layers * budget.heads * budget.delta_loc)
    return max(kind.delta, encoded * budget.layers * budget.kv_heads * budget.delta_adaptive(tokens))


def _bound(meter: Labelled, delta: float) -> Labelled:
    """The meter under a larger failure probability; 1 without one where nothing is left to promise."""
    if delta >= 1.0:
        return type(meter)(torch.ones_like(torch.as_tensor(meter.value)), meter.theorem, 0.0)
    return type(meter)(meter.value, meter.theorem, delta)


def summarize(
    record: Record, rows: Sequence[int], tokens: Sequence[int], encoded: Sequence[int], *, budget: Budget, stored: int,
    tau: float, guarantee: type[Labelled], fixed_queries: bool,
) -> RequestReport:  # fmt: skip
    """The report of the request that these rows of a record's batch form.

    tokens, encoded : of each row of the batch; stored : most tokens of a sequence (S of the theorems).
    """
    pick = list(rows)
    cells = certified = good = steps_certified = moved = refused = 0
    worst: dict[str, Tensor] = {}
    kinds: dict[str, Labelled] = {}
    chunked = totals(record.chunks, pick, guarantee)
    for step in record.steps:
        moved += step.bytes
        refused += step.refused
        for m in step.after:
            value = torch.as_tensor(m.value)[:, pick].float().nan_to_num(nan=1.0).amax((1, 2)).cpu()  # [L]
            worst[m.label] = torch.maximum(worst[m.label], value) if m.label in worst else value
            kinds[m.label] = m
        deciding = [i for i, m in enumerate(step.after) if type(m) is guarantee]
        if not deciding:
            continue
        i = deciding[0]
        before = torch.as_tensor(step.before[i].certifies(tau))[:, pick]
        after = torch.as_tensor(step.after[i].certifies(tau))[:, pick]
        cells += after.numel()
        certified += int((before & after).sum())
        good += int(after.sum())
        steps_certified += bool(after.all())
    queries = len(pick) * len(record.steps) + chunked.tokens

    def labelled(largest: dict[str, Tensor], of: dict[str, Labelled]) -> tuple[Labelled, ...]:
        """Each with the failure probability that the whole request has spent."""
        spent = {name: _spent(m, budget, stored, sum(encoded[r] for r in pick), queries) for name, m in of.items()}
        return tuple(_bound(type(m)(largest[name], m.theorem, m.delta), spent[name]) for name, m in of.items())

    return RequestReport(
        rows=len(pick),
        prompt=tuple(record.prompt[r] for r in pick if r < len(record.prompt)),
        tokens=tuple(tokens[r] for r in pick),
        steps=len(record.steps),
        cells=cells,
        guarantee=guarantee.label if cells or chunked.cells else None,
        tau=tau,
        certified=certified,
        repaired=good - certified,
        uncertified=cells - good,
        steps_certified=steps_certified,
        worst=labelled(worst, kinds),
        applies={name: isinstance(m, Proved) or fixed_queries for name, m in (chunked.kinds | kinds).items()},
        chunks=chunked.forwards,
        chunk_tokens=chunked.tokens,
        chunk_cells=chunked.cells,
        chunk_certified=chunked.certified,
        chunk_repaired=chunked.repaired,
        chunk_worst=labelled(chunked.worst, chunked.kinds),
        bytes=moved + chunked.bytes,
        refused=refused + chunked.refused,
        unmetered=sum(record.unmetered[r] for r in pick if r < len(record.unmetered)),
        exact=sum(record.exact[r] for r in pick if r < len(record.exact)),
    )
