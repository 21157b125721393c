"""Records: true cells, whole lines under a kill and on a full disk, rotation, nothing of another file destroyed."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from witcert.errors import InputError, WitCertError
from witcert.telemetry import Telemetry
from witcert.telemetry.jsonl import LineFile, line
from witcert.telemetry.load import load

from .common import BATCH, HEADS, LAYERS, fill, nonadaptive, proved

HEADER = {"type": "run", "format": "witcert-telemetry-lines/1", "run": "x"}


def records(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(x, parse_constant=pytest.fail) for x in text.splitlines()]


def test_records_are_the_cells_that_were_recorded(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    telemetry = Telemetry(LAYERS, HEADS, jsonl=file, sample=1 / 5)
    flags = torch.tensor([[True, False, False], [False, False, True]])  # 3 KV heads of 2 query heads
    meters = fill(telemetry, 40, repaired=flags, request=["abc", 7])
    telemetry.close()
    first, *cells, last = records(file)
    assert first["type"] == "run"
    assert (first["layers"], first["heads"], first["piece"]) == (LAYERS, HEADS, 0)
    assert last["type"] == "end"
    assert len(cells) == pytest.approx(40 * LAYERS * 2 * BATCH * HEADS / 5, abs=2)
    assert {(c["layer"], c["head"], c["row"], c["tier"]) for c in cells} == {
        (layer, head, row, tier)
        for layer in range(LAYERS) for head in range(HEADS) for row in range(BATCH) for tier in telemetry.tiers
    }  # fmt: skip
    for c in cells:
        tier = ("proved", "proved-nonadaptive").index(c["tier"])
        meter = meters[c["step"], c["layer"], tier, c["row"], c["head"]]
        assert c["meter"] == float(meter)
        assert c["c_max"] == float(meter * 2 + 0.01)
        assert c["request"] == ("abc", 7)[c["row"]]
        assert c["repaired"] == bool(flags[c["row"], c["head"] // 2])
        assert c.get("delta") == (None, 0.01)[tier]
        assert abs(c["time"] - time.time()) < 60
    assert last["snapshot"]["steps"] == 40


def test_what_is_not_a_number_stays_json(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with Telemetry(1, 4, jsonl=file, sample=1.0) as telemetry:
        meter = torch.tensor([[math.nan, 1.0, -0.5, 0.25]])
        telemetry.record(0, (proved(meter, torch.tensor([[1.0, math.inf, 1.0, 1.0]])),), repaired=1)
    cells = records(file)[1:-1]
    assert [c["meter"] for c in cells] == [1.0, 1.0, 1.0, 0.25]
    assert [c["c_max"] for c in cells] == [1.0, None, 1.0, 1.0]
    assert [c.get("nan") for c in cells] == [True, True, None, None]
    assert [c.get("outside") for c in cells] == [None, None, True, None]
    assert [c["repaired"] for c in cells] == [None] * 4  # one of them was, and it is not known which


def test_queries_of_a_chunk_are_named_and_padding_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with Telemetry(1, 2, jsonl=file, sample=1.0) as telemetry:
        meter = torch.rand(2, 3, 2)
        telemetry.record(0, (proved(meter),), lens=torch.tensor([3, 1]), request=["a", "b"])
    cells = records(file)[1:-1]
    assert [(c["request"], c["query"], c["head"]) for c in cells] == [
        *(("a", q, h) for q in range(3) for h in range(2)), ("b", 0, 0), ("b", 0, 1),
    ]  # fmt: skip
    assert all(c["meter"] == float(meter[c["row"], c["query"], c["head"]]) for c in cells)


CHILD = """
import sys, torch
from witcert.telemetry import Telemetry
from tests.telemetry.common import fill
telemetry = Telemetry(3, 6, jsonl=sys.argv[1], sample=1.0, rotate_bytes=200_000, keep=3)
print("ready", flush=True)
while True:
    fill(telemetry, 10, request=["a", "b" * 50])
"""


@pytest.mark.parametrize("delay", [0.15, 0.4, 0.9])
def test_a_kill_leaves_whole_lines(tmp_path: Path, delay: float) -> None:
    file = tmp_path / "run.jsonl"
    environment = os.environ | {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait(20)
    files = [f for f in tmp_path.iterdir() if f.suffix != ".part"]
    total = 0
    for each in files:
        first, *rest = records(each)
        assert first["type"] == "run"
        assert all(r["type"] == "cell" for r in rest)
        total += len(rest)
    run = load(file)
    assert not run.ended
    assert run.torn == 0
    assert run.cells == total > 0
    assert len(run.files) == len(files)


def test_dropped_without_close_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    telemetry = Telemetry(LAYERS, HEADS, jsonl=file)
    fill(telemetry, 1)
    del telemetry
    assert records(file)[-1]["type"] == "end"


def test_rotation_keeps_every_line_and_every_header(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = LineFile(file, HEADER, rotate_bytes=4096, keep=3)
    for i in range(100):
        lines.write([line({"type": "n", "n": i, "pad": "p" * 120})])
    lines.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.1", "a.jsonl.2", "a.jsonl.3"]
    found, pieces = [], []
    for name in ("a.jsonl.3", "a.jsonl.2", "a.jsonl.1", "a.jsonl"):
        assert (tmp_path / name).stat().st_size <= 4096
        first, *rest = records(tmp_path / name)
        pieces.append(first["piece"])
        found += [r["n"] for r in rest]
    assert pieces == list(range(pieces[0], pieces[0] + 4))
    assert found == list(range(found[0], 100))


def test_a_run_never_destroys_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("precious\n")
    with pytest.raises(InputError, match="no telemetry file"):
        LineFile(file, HEADER)
    assert file.read_text() == "precious\n"
    file.unlink()
    LineFile(file, HEADER | {"run": "first"}).close()
    (tmp_path / "a.jsonl.1").write_text("precious\n")
    with pytest.raises(InputError, match=r"a\.jsonl\.1"):
        LineFile(file, HEADER)
    (tmp_path / "a.jsonl.1").unlink()
    LineFile(file, HEADER | {"run": "second"}).close()
    assert [records(tmp_path / n)[0]["run"] for n in ("a.jsonl", "a.jsonl.1")] == ["second", "first"]


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.jsonl"
    telemetry = Telemetry(LAYERS, HEADS, jsonl=file, sample=1.0)
    fill(telemetry, 1)
    telemetry.snapshot()
    before = len(records(file))
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if data[:8] != b'{"type":':
            return real(fd, data)
        real(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    fill(telemetry, 1)
    with pytest.warns(RuntimeWarning, match="No space left"):
        got = telemetry.snapshot()
    assert got.steps == 2  # counting goes on
    assert "No space left" in (got.jsonl_error or "")
    assert len(records(file)) == before
    fill(telemetry, 1)
    with pytest.raises(WitCertError, match="No space left"):
        telemetry.close()
    assert len(records(file)) == before


def test_bad_files(tmp_path: Path) -> None:
    for path, match in ((tmp_path / "no" / "a.jsonl", "does not exist"), (tmp_path, "not a file")):
        with pytest.raises(InputError, match=match):
            Telemetry(1, 1, jsonl=path)
    for name, value in (("rotate_bytes", 10), ("keep", 0), ("keep", True)):
        with pytest.raises(InputError, match=name):
            Telemetry(1, 1, jsonl=tmp_path / "a.jsonl", **{name: value})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_ring_that_was_not_read_in_time_is_told(tmp_path: Path) -> None:
    """As after many replays of a graph: what was overwritten is counted as dropped."""
    telemetry = Telemetry(1, 64, jsonl=tmp_path / "run.jsonl", sample=1.0)
    meter = torch.rand(1, 64)
    telemetry._undrained = -(10**6)  # never drained between snapshots
    for _ in range(100):
        telemetry.record(0, (nonadaptive(meter),))
    got = telemetry.snapshot()
    assert got.samples == 6400
    assert got.dropped == 6400 - 4096
    telemetry.close()
    assert sum(r["type"] == "cell" for r in records(tmp_path / "run.jsonl")) == 4096
