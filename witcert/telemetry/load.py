"""Read a finished run back: a snapshot, or the lines of a file and of the files that it was rotated into."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from witcert.errors import InputError
from witcert.guarantees import LABELS
from witcert.kernels.telemetry.step import COLUMNS, OUTSIDE, UNIT
from witcert.kernels.telemetry.step_reference import column_reference
from witcert.telemetry.jsonl import LINES
from witcert.telemetry.snapshot import FORMAT, Point, Snapshot, TierCounts

__all__ = ["Run", "load"]


@dataclass(frozen=True)
class Run:
    """A run as its files tell it.

    snapshot : its counts: exact if the run ended in order, else of the sampled cells (``snapshot.sampled``). ended : whether
    it did. files : what was read. missing : pieces that were rotated away. torn : bytes of an unfinished last line.
    totals : the last exact totals that were written, if any. cells : sampled cells that were read.
    """

    snapshot: Snapshot
    ended: bool
    files: tuple[Path, ...]
    missing: int = 0
    torn: int = 0
    totals: Point | None = None
    cells: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data: the snapshot, and how much of the run was found."""
        return self.snapshot.to_json() | {
            "run": {
                "ended": self.ended, "files": [f.name for f in self.files], "missing_files": self.missing,
                "torn_bytes": self.torn, "sampled_cells": self.cells,
                "totals": None if self.totals is None else self.totals.to_json(),
            }
        }  # fmt: skip


@dataclass
class _Sample:
    """Sampled cells of one tier."""

    places: list[tuple[int, int, int]] = field(default_factory=list)  # layer, head, step
    meters: list[float] = field(default_factory=list)
    c_max: list[float] = field(default_factory=list)
    delta: float = 0.0


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as f:
        yield from enumerate(f, 1)


def _record(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as e:
        raise InputError(f"{path}, line {number}: not JSON: {e}") from e
    if not isinstance(record, dict):
        raise InputError(f"{path}, line {number}: expected a JSON object")
    return record


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as f:
        record = _record(path, 1, f.readline())
    if record.get("type") != "run" or record.get("format") != LINES:
        raise InputError(f"{path}: the first line does not say that it is a telemetry file ({LINES})")
    return record


def _pieces(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The file, if it is there, and its rotated files of the same run, oldest first."""
    there = path.is_file()
    start = path if there else path.with_name(f"{path.name}.1")
    newest = _header(start)
    out = [(start, newest)]
    for n in range(1 if there else 2, 10**6):
        file = path.with_name(f"{path.name}.{n}")
        if not file.is_file():
            break
        header = _header(file)
        if header.get("run") != newest.get("run"):
            break
        out.append((file, header))
    return out[::-1]


class _Reader:
    """Collects what the lines of a run say."""

    def __init__(self, header: dict[str, Any]) -> None:
        try:
            self.layers, self.heads = int(header["layers"]), int(header["heads"])
            self.tiers, self.tau = [str(t) for t in header["tiers"]], float(header["tau"])
            self.started, self.stride = float(header["started"]), float(header["stride"])
        except (KeyError, TypeError, ValueError) as e:
            raise InputError(f"a damaged first line: {type(e).__name__}: {e}") from e
        known = [label.label for label in LABELS]
        if not 0 < self.layers <= 2**16 or not 0 < self.heads <= 1024 or any(t not in known for t in self.tiers):
            raise InputError("a damaged first line: layers, heads or tiers are out of range")
        self.samples = {t: _Sample() for t in self.tiers}
        self.end: Snapshot | None = None
        self.totals: list[Point] = []
        self.time, self.steps, self.cells = self.started, 0, 0

    def take(self, record: dict[str, Any]) -> None:
        kind = record.get("type")
        if kind == "cell":
            self._cell(record)
        elif kind == "totals":
            self.totals.append(Point.from_json(record))
            self.time = max(self.time, self.totals[-1].time)
        elif kind == "end":
            self.end = Snapshot.from_json(record["snapshot"])
        elif kind != "run":
            raise ValueError(f"unknown type {kind!r}")

    def _cell(self, record: dict[str, Any]) -> None:
        sample = self.samples[record["tier"]]
        layer, head, meter = int(record["layer"]), int(record["head"]), float(record["meter"])
        if not 0 <= layer < self.layers or not 0 <= head < self.heads or not 0.0 <= meter <= 1.0:
            raise ValueError("layer, head or meter out of range")
        lost = bool(record.get("nan"))
        sample.places.append((layer, head, int(record["step"])))
        sample.meters.append(2.0 if record.get("outside") else meter)
        sample.c_max.append(math.inf if lost else float(record["c_max"]))
        sample.delta = max(sample.delta, float(record.get("delta", 0.0)))
        self.time = max(self.time, float(record["time"]))
        self.steps = max(self.steps, int(record["step"]) + 1)
        self.cells += 1

    def _tier(self, label: str) -> TierCounts:
        sample = self.samples[label]
        histogram = np.zeros((self.layers, COLUMNS), dtype=np.int64)
        certified, units = np.zeros(self.layers, dtype=np.int64), np.zeros(self.layers, dtype=np.int64)
        last, worst = np.full((2, self.layers, self.heads), np.nan)
        newest = np.full((self.layers, self.heads), -1)
        meters, c_max = (torch.tensor(x, dtype=torch.float64) for x in (sample.meters, sample.c_max))
        columns = column_reference(meters, c_max).tolist()
        for (layer, head, step), meter, column, c in zip(sample.places, sample.meters, columns, sample.c_max, strict=True):
            histogram[layer, column] += 1
            fine = meter <= 1.0 and math.isfinite(c)
            value = meter if fine else 1.0
            certified[layer] += fine and meter <= self.tau
            units[layer] += math.ceil(value / UNIT)
            if step >= newest[layer, head]:
                last[layer, head] = np.fmax(last[layer, head], value) if step == newest[layer, head] else value
                newest[layer, head] = step
            worst[layer, head] = np.fmax(worst[layer, head], value)
        return TierCounts(label, sample.delta, (), histogram, certified, histogram[:, OUTSIDE].copy(), units, last, worst)

    def snapshot(self) -> Snapshot:
        """Exact, if the run ended; else of the samples, with the repairs and bytes of the last totals."""
        if self.end is not None:
            return self.end
        tiers = tuple(self._tier(t) for t in self.tiers)
        known = self.totals[-1] if self.totals else None
        return Snapshot(
            time=self.time, started=self.started, layers=self.layers, heads=self.heads, tau=self.tau,
            steps=max(self.steps, known.steps if known else 0), tiers=tiers, repairs=known.repairs if known else 0,
            pagein_bytes=known.pagein_bytes if known else 0, violations=sum(int(t.violations.sum()) for t in tiers),
            samples=self.cells, sampled=self.stride, history=tuple(self.totals),
        )  # fmt: skip


def _load_lines(path: Path) -> Run:
    pieces = _pieces(path)
    reader, torn = _Reader(pieces[-1][1]), 0
    for file, _ in pieces:
        for number, text in _lines(file):
            if not text.endswith(b"\n"):
                torn += len(text)
                continue
            try:
                reader.take(_record(file, number, text))
            except InputError:
                raise
            except (KeyError, TypeError, ValueError) as e:
                raise InputError(f"{file}, line {number}: a damaged record: {type(e).__name__}: {e}") from e
    first = int(pieces[0][1].get("piece", 0))
    snapshot = reader.snapshot()
    if reader.end is not None and not snapshot.history:
        snapshot = replace(snapshot, history=tuple(reader.totals))
    totals = reader.totals[-1] if reader.totals else None
    return Run(snapshot, reader.end is not None, tuple(f for f, _ in pieces), first, torn, totals, reader.cells)


def load(path: Path) -> Run:
    """What a run recorded: ``path`` is a JSONL file of ``Telemetry(jsonl=...)`` or a saved ``Snapshot.to_json()``.

    Raises InputError for a file that is missing, of another kind, or damaged before its last line.
    """
    if path.is_dir():
        hint = "; the report of `witcert observe` is in report.html there" if (path / "results.json").exists() else ""
        raise InputError(f"{path} is a folder; name a telemetry file (.jsonl or .json){hint}")
    if not path.is_file():
        if path.with_name(f"{path.name}.1").is_file():  # killed just after a rotation
            return _load_lines(path)
        raise InputError(f"{path}: no such file")
    with path.open("rb") as f:
        start = f.read(2**16)
    if not start.strip():
        raise InputError(f"{path} is empty")
    if LINES.encode() in start.split(b"\n", 1)[0]:
        return _load_lines(path)
    try:
        data = json.loads(path.read_bytes())
    except ValueError as e:
        raise InputError(f"{path} is neither a telemetry file nor a snapshot: {e}") from e
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path} is neither a telemetry file ({LINES}) nor a snapshot ({FORMAT})")
    return Run(Snapshot.from_json(data), data.get("sampled") is None, (path,))
