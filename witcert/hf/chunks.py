"""What is kept of a metered forward of several tokens: a report's worth, whatever the number of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from witcert.errors import WitCertError
from witcert.guarantees import Labelled
from witcert.kernels.decode import Reading

__all__ = [
    "ChunkReading",
    "ChunkRecord",
    "ChunkTotals",
    "LayerChunk",
    "chunk_record",
    "over_prefix",
    "reduced",
    "stacked",
    "totals",
]


@dataclass(frozen=True, eq=False)
class ChunkReading:
    """One reading of one layer, reduced: worst [batch], the largest meter of a row in the end; certified, repaired int64
    [batch], its cells at most the threshold as read, and those brought there by a repair."""

    worst: Labelled
    certified: Tensor
    repaired: Tensor


@dataclass(frozen=True, eq=False)
class LayerChunk:
    """What is kept of one layer: its readings, and what was paged in for them."""

    readings: tuple[ChunkReading, ...]
    pages: int = 0
    bytes: int = 0
    refused: int = 0


@dataclass(frozen=True, eq=False)
class ChunkRecord:
    """One forward of several tokens over stored prefixes.

    Parameters
    ----------
    steps : decode steps of its cache before it. sequences : the pool's sequence of each row.
    tokens : metered queries of each row: its new tokens, or 0 where it had no prefix (those queries see exact keys only).
    cells : (layer, query head, query) of each row.
    worst : one labelled tensor [L, batch] per reading, the largest meter of a row; NaN counts as 1, no query as 0.
    certified, repaired : for each reading int64 [L, batch], the cells at most the gate's threshold, as read and by a repair.
    pages, bytes, refused : as in a StepRecord, for all layers.
    """

    steps: int
    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    cells: tuple[int, ...]
    worst: tuple[Labelled, ...]
    certified: tuple[Tensor, ...]
    repaired: tuple[Tensor, ...]
    pages: int
    bytes: int
    refused: int


def over_prefix(lens: Sequence[int], prefix: Sequence[int]) -> list[int]:
    """New tokens of each row that see a stored prefix: all of them, or none."""
    return [n if past else 0 for n, past in zip(lens, prefix, strict=True)]


def reduced(
    readings: Sequence[Reading], tokens: Tensor, tau: float, before: Sequence[Reading] | None = None
) -> tuple[ChunkReading, ...]:
    """Readings [batch, C, Hq] of one layer, of which the first ``tokens`` [batch] of each row count; before : what was read
    before a repair (None: the same). Waits for nothing."""
    out = []
    for r, old in zip(readings, readings if before is None else before, strict=True):
        value = torch.as_tensor(r.meter.value)
        there = (torch.arange(value.shape[1], device=value.device) < tokens[:, None])[..., None]  # [batch, C, 1]

        def largest(x: Tensor, there: Tensor = there) -> Tensor:
            return torch.where(there, x.nan_to_num(nan=1.0), 0.0).amax((1, 2))

        was, now = (torch.as_tensor(x.meter.certifies(tau)) & there for x in (old, r))
        out.append(ChunkReading(r.meter.map(largest), (was & now).sum((1, 2)), (~was & now).sum((1, 2))))
    return tuple(out)


def stacked(layers: Sequence[Sequence[Labelled]]) -> tuple[Labelled, ...]:
    """The readings of every layer as one labelled tensor [L, ...] each; WitCertError if their guarantees differ."""
    out: list[Labelled] = []
    for same in zip(*layers, strict=True):
        kind = type(same[0])
        if any(type(m) is not kind for m in same):
            raise WitCertError("the layers of one step were metered under different guarantees")
        names = dict.fromkeys(m.theorem for m in same)
        value = torch.stack([torch.as_tensor(m.value) for m in same])
        out.append(kind(value, " | ".join(names), max(m.delta for m in same)))
    return tuple(out)


def chunk_record(
    layers: Sequence[LayerChunk], *, steps: int, sequences: tuple[int, ...], tokens: Sequence[int], heads: int
) -> ChunkRecord:
    """The record of a forward from what was kept of each layer."""
    by_reading = list(zip(*(x.readings for x in layers), strict=True))
    certified = tuple(torch.stack([r.certified for r in same]) for same in by_reading)
    repaired = tuple(torch.stack([r.repaired for r in same]) for same in by_reading)
    worst = stacked([[r.worst for r in x.readings] for x in layers])
    cells = tuple(n * len(layers) * heads for n in tokens)
    moved = (sum(getattr(x, name) for x in layers) for name in ("pages", "bytes", "refused"))
    return ChunkRecord(steps, sequences, tuple(tokens), cells, worst, certified, repaired, *moved)


@dataclass
class ChunkTotals:
    """Sums over the forwards of a request: those metered, their queries; cells with the deciding reading, and of these
    the certified and the repaired ones; what was paged in for the whole batch; by label the largest meter of each layer [L],
    and a number of that label."""

    forwards: int = 0
    tokens: int = 0
    cells: int = 0
    certified: int = 0
    repaired: int = 0
    bytes: int = 0
    refused: int = 0
    worst: dict[str, Tensor] = field(default_factory=dict)
    kinds: dict[str, Labelled] = field(default_factory=dict)


def totals(chunks: Sequence[ChunkRecord], rows: Sequence[int], guarantee: type[Labelled]) -> ChunkTotals:
    """The sums for these rows of a batch, with the reading of the guarantee deciding what is certified."""
    out = ChunkTotals()
    for c in chunks:
        pick = [r for r in rows if r < len(c.tokens) and c.tokens[r]]
        if not pick:
            continue
        out.forwards += 1
        out.tokens += sum(c.tokens[r] for r in pick)
        out.bytes += c.bytes
        out.refused += c.refused
        for m in c.worst:
            value = torch.as_tensor(m.value)[:, pick].float().amax(1).cpu()  # [L]
            out.worst[m.label] = torch.maximum(out.worst[m.label], value) if m.label in out.worst else value
            out.kinds[m.label] = m
        deciding = [i for i, m in enumerate(c.worst) if type(m) is guarantee]
        if deciding:
            out.cells += sum(c.cells[r] for r in pick)
            out.certified += int(c.certified[deciding[0]][:, pick].sum())
            out.repaired += int(c.repaired[deciding[0]][:, pick].sum())
    return out
