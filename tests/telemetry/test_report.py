"""``witcert report``: exact for a run that ended, honest about a sample, one clear line for everything else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from witcert.cli import main
from witcert.telemetry import Telemetry
from witcert.telemetry.load import load

from .common import HEADS, LAYERS, fill, proved


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    status = 0
    try:
        main(["report", *map(str, args)])
    except SystemExit as e:
        status = int(e.code or 0)
    out = capsys.readouterr()
    assert "Traceback" not in out.err + out.out
    return status, out.out, out.err


def make(path: Path, steps: int = 30, **options: object) -> None:
    with Telemetry(LAYERS, HEADS, jsonl=path, **({"sample": 1.0} | options)) as telemetry:  # type: ignore[arg-type]
        fill(telemetry, steps, repaired=1, bytes=2**20)


def cut(path: Path, keep: int) -> None:
    """As a kill leaves it: without the end."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1])[: keep if keep else None])


def test_tables_of_a_run_that_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "run.jsonl")
    status, out, err = run(capsys, tmp_path / "run.jsonl")
    assert (status, err) == (0, "")
    for text in ("proved  ", "proved-nonadaptive, δ≤0.01", "1,080", "TV ≤ 0.2", "90 repaired KV heads", "90.00 MiB"):
        assert text in out, text
    assert "did not end" not in out


def test_json_is_the_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "run.jsonl")
    status, out, _ = run(capsys, tmp_path / "run.jsonl", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["steps"] == 30
    assert data["sampled"] is None
    assert data["run"]["ended"]
    assert [t["cells"] for t in data["tiers"]] == [30 * LAYERS * 2 * HEADS] * 2
    (tmp_path / "snapshot.json").write_text(out)
    status, again, _ = run(capsys, tmp_path / "snapshot.json", "--json")
    assert status == 0
    assert json.loads(again)["tiers"] == data["tiers"]


def test_a_full_sample_counts_what_the_device_counted(tmp_path: Path) -> None:
    """The same run by its samples and by its end: every cell of every step was sampled."""
    file = tmp_path / "run.jsonl"
    with Telemetry(2, 5, jsonl=file, sample=1.0) as telemetry:
        for _ in range(20):
            for layer in range(2):
                meter = torch.rand(2, 5) ** 4
                c_max = meter.clone()
                meter[0, 0], c_max[0, 0] = 1.0, torch.inf
                telemetry.record(layer, (proved(meter, c_max, delta=0.02),))
    exact = load(file).snapshot.tier("proved")
    cut(file, 0)
    run = load(file)
    sample = run.snapshot.tier("proved")
    assert not run.ended
    assert run.snapshot.sampled == 1
    for name in ("histogram", "certified", "violations", "units", "last", "worst"):
        assert (getattr(exact, name) == getattr(sample, name)).all(), name
    assert exact.delta == sample.delta == 0.02


def test_a_killed_run_says_that_it_is_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    make(file, sample=0.1)
    cut(file, -20)
    status, out, _ = run(capsys, file)
    assert status == 0
    assert "did not end in order" in out
    assert "1 in 10 or fewer" in out
    assert "unfinished last line" in out


def test_rotated_files_are_read_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    make(file, rotate_bytes=50_000, keep=2)
    cut(file, 0)
    found = load(file)
    assert len(found.files) == 3
    assert found.missing > 0
    assert "rotated away" in run(capsys, file)[1]
    newest = file.read_bytes()
    file.unlink()  # as a kill in the middle of a rotation leaves it
    assert [p.name for p in load(file).files] == ["run.jsonl.2", "run.jsonl.1"]
    file.write_bytes(newest)
    make(file)  # another run; the old files are not its own
    assert [p.name for p in load(file).files] == ["run.jsonl"]


def test_html_is_one_file_with_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "run.jsonl")
    status, out, _ = run(capsys, tmp_path / "run.jsonl", "--html", tmp_path / "r.html")
    assert status == 0
    assert "r.html" in out
    text = (tmp_path / "r.html").read_text()
    start = text.index('id="data">') + len('id="data">')
    assert json.loads(text[start : text.index("</script>", start)])["steps"] == 30
    bad = ((tmp_path, "folder"), (tmp_path / "run.jsonl", "the run itself"), (tmp_path / "no" / "r.html", "No such file"))
    for target, message in bad:
        status, _, err = run(capsys, tmp_path / "run.jsonl", "--html", target)
        assert status == 2
        assert message in err
    assert not list(tmp_path.glob("*.part"))


def test_a_contract_violation_is_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Telemetry(1, 2, jsonl=tmp_path / "run.jsonl") as telemetry:
        telemetry.record(0, (proved(torch.tensor([[0.5, -0.5]])),))
    status, out, err = run(capsys, tmp_path / "run.jsonl")
    assert status == 3
    assert "1 contract violation" in out
    assert "bug in WitCert" in err


def test_a_run_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Telemetry(1, 2, jsonl=tmp_path / "run.jsonl").close()
    status, out, _ = run(capsys, tmp_path / "run.jsonl", "--html", tmp_path / "r.html")
    assert status == 0
    assert "—" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"hello\n", "neither"),
        (b"{}", "neither"),
        (b"\x00\xff" * 100, "neither"),
        (b'{"format":"witcert-telemetry/1"}', "damaged snapshot"),
        (b'{"type":"run","format":"witcert-telemetry-lines/1"}\n', "damaged first line"),
        (b'{"type":"run","format":"witcert-telemetry-lines/1"\n', "line 1"),
    ],
)
def test_other_files_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    file = tmp_path / "f.jsonl"
    if content is not None:
        file.write_bytes(content)
    status, _, err = run(capsys, file)
    assert status == 2
    assert message in err.replace("\n", " ")


@pytest.mark.parametrize(
    "bad",
    [
        b'{"type":"cell"}\n', b"{\n", b"[]\n", b'{"type":"other"}\n', b'{"type":"end","snapshot":{}}\n',
        b'{"type":"cell","tier":"proved","layer":99,"head":0,"meter":0.1,"c_max":0.1,"time":1,"step":1}\n',
        b'{"type":"cell","tier":"proved","layer":0,"head":0,"meter":NaN,"c_max":0.1,"time":1,"step":1}\n',
        b'{"type":"cell","tier":"gold","layer":0,"head":0,"meter":0.1,"c_max":0.1,"time":1,"step":1}\n',
    ],
)  # fmt: skip
def test_a_damaged_line_names_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: bytes) -> None:
    file = tmp_path / "run.jsonl"
    make(file, steps=2)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:4], bad, *lines[4:]]))
    status, _, err = run(capsys, file)
    assert status == 2
    assert "line 5" in err.replace("\n", " ") or "snapshot" in err


def test_a_folder_is_told_where_its_report_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, tmp_path)
    assert status == 2
    assert "folder" in err
    (tmp_path / "results.json").write_text("{}")
    assert "report.html" in run(capsys, tmp_path)[2]
    assert run(capsys, tmp_path / "x.jsonl", "--layers", "-1")[0] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "run.jsonl", steps=1)
    (tmp_path / "run.jsonl").chmod(0)
    assert run(capsys, tmp_path / "run.jsonl")[0] == 2
