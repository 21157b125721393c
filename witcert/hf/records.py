"""What was metered while a request ran, and its summary: numbers under their guarantee, requests with their own delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.guarantees import Labelled, Proved, ProvedNonadaptive

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
    unmetered : queries of forwards with several tokens that saw a stored prefix, which nothing gates; exact : queries that
    saw only keys of their own forward, which are exact.
    """

    group: int = 1
    prompt: tuple[int, ...] = ()
    steps: list[StepRecord] = field(default_factory=list)
    unmetered: list[int] = field(default_factory=list)
    exact: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class RequestReport:
    """Summary of one request: a prompt and what was generated from it.

    Parameters
    ----------
    rows : sequences that it had (beams). steps : decode steps. cells : (layer, query head, row, step) metered.
    guarantee : label of the reading that decides; tau : its threshold.
    certified : cells at most tau as read. repaired : cells brought to at most tau by a repair. uncertified : the others.
    steps_certified : steps in which every cell ended at most tau.
    worst : by guarantee, the largest meter of each layer after repairs [L], with the failure probability that this request
        spent; where that reaches 1 the value is 1, since nothing is promised.
    applies : by guarantee, whether its promise speaks about this request's queries.
    bytes, refused : moved from the host, and pages that found no room, for the whole batch in these steps.
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
    bytes: int
    refused: int
    unmetered: int
    exact: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        out = {k: v for k, v in vars(self).items() if k != "worst"}
        return out | {"prompt": list(self.prompt), "tokens": list(self.tokens),
                      "worst_by_layer": [m.to_json() for m in self.worst]}  # fmt: skip


def _spent(kind: Labelled, budget: Budget, tokens: int, encoded: int, steps: int, rows: int) -> float:
    """Failure probability that a request has used: events of the dither by what each may fail with.

    Adaptive: one event per stored token, layer and KV head, each with ``budget.delta_adaptive(tokens)``. Non-adaptive: one
    per cell, each with ``budget.delta_loc``. Within the budget's tokens and steps that is at most its delta_req.
    """
    if kind.delta == 0.0:
        return 0.0
    if isinstance(kind, ProvedNonadaptive):
        return max(kind.delta, rows * steps * budget.layers * budget.heads * budget.delta_loc)
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
    deltas = {
        name: _spent(m, budget, stored, sum(encoded[r] for r in pick), len(record.steps), len(pick))
        for name, m in kinds.items()
    }
    return RequestReport(
        rows=len(pick),
        prompt=tuple(record.prompt[r] for r in pick if r < len(record.prompt)),
        tokens=tuple(tokens[r] for r in pick),
        steps=len(record.steps),
        cells=cells,
        guarantee=guarantee.label if cells else None,
        tau=tau,
        certified=certified,
        repaired=good - certified,
        uncertified=cells - good,
        steps_certified=steps_certified,
        worst=tuple(_bound(type(m)(worst[name], m.theorem, m.delta), deltas[name]) for name, m in kinds.items()),
        applies={name: isinstance(m, Proved) or fixed_queries for name, m in kinds.items()},
        bytes=moved,
        refused=refused,
        unmetered=sum(record.unmetered[r] for r in pick if r < len(record.unmetered)),
        exact=sum(record.exact[r] for r in pick if r < len(record.exact)),
    )
