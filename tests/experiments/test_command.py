"""The command: exit codes, one failing experiment loses nothing, bundles, the README in step with the results."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import __main__ as command
from experiments import readme, record, registry, supervise
from experiments.common import NeedsModelError, Setting
from witcert.errors import InputError


def fake(name: str, violations: Any = 0, error: Exception | None = None) -> Any:
    def run(setting: Setting) -> dict[str, Any]:
        if error is not None:
            raise error
        return {"violations": violations, "numbers": [1.0, float("nan"), float("inf")]}

    return SimpleNamespace(
        NAME=name, QUESTION="?", METHOD=".", LIMITS=".", run=run, draw=lambda r: None, describe=lambda r: "table"
    )


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Experiments of this test instead of the real ones."""
    there = {
        "good": fake("good"),
        "bad": fake("bad", error=ValueError("no")),
        "below": fake("below", 2),
        "modelless": fake("modelless", error=NeedsModelError("a model")),
        "uncounted": fake("uncounted", None),
    }
    monkeypatch.setattr(registry, "discover", lambda: (there, {}))
    return there


def test_one_failure_loses_nothing(known: dict[str, Any], tmp_path: Path) -> None:
    assert supervise.run_here(list(known), Setting(), tmp_path, "cmd", "abc", 0) == 0
    assert {p.name for p in tmp_path.glob("*.json")} == {"good.json", "below.json"}
    assert "ValueError: no" in (tmp_path / "bad.failed").read_text()
    assert (tmp_path / "modelless.failed").read_text().startswith("skipped")
    assert "does not count its violations" in (tmp_path / "uncounted.failed").read_text()
    good = record.load(tmp_path / "good.json")
    assert good["commit"] == "abc"
    assert good["result"]["numbers"] == [1.0, None, "inf"]
    whole = supervise.bundle(list(known), tmp_path, {"bad": "no"})
    assert [r["experiment"] for r in whole["records"]] == ["good", "below"]


def test_a_slow_experiment_is_stopped(known: dict[str, Any], tmp_path: Path) -> None:
    def slow(setting: Setting) -> dict[str, Any]:
        while True:
            pass

    known["slow"] = fake("slow")
    known["slow"].run = slow
    supervise.run_here(["slow", "good"], Setting(), tmp_path, "cmd", None, 1)
    assert "TimeoutError" in (tmp_path / "slow.failed").read_text()
    assert (tmp_path / "good.json").exists()


def test_a_process_that_dies_is_followed_by_another(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def child(names: list[str], arguments: list[str], out: Path) -> int:
        calls.append(list(names))
        if names[0] == "bad":
            return -11
        supervise.run_here(names[:1], Setting(), out, "cmd", None, 0)
        return 0 if len(names) == 1 else supervise.BROKEN

    monkeypatch.setattr(supervise, "_child", child)
    failures = supervise.run_all(["good", "bad", "below"], [], tmp_path)
    assert calls == [["good", "bad", "below"], ["bad", "below"], ["below"]]
    assert failures == {"bad": "the process ended with exit code -11\n"}


def test_violations_are_exit_code_3(known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "draw", lambda paths: None)
    assert command.main(["good", "--out", str(tmp_path)]) == 0
    assert command.main(["below", "--out", str(tmp_path)]) == 3
    assert command.main(["nothing"]) == 2
    assert command.main(["good", "--set", "x=1", "--out", str(tmp_path)]) == 2
    assert command.main(["good", "--tau", "1.5"]) == 2


def test_bundle_and_back(known: dict[str, Any], tmp_path: Path) -> None:
    supervise.run_here(["good", "below"], Setting(), tmp_path / "a", "cmd", None, 0)
    record.write_json(tmp_path / "b.json", supervise.bundle(["good", "below"], tmp_path / "a", {}))
    assert command.main(["unpack", str(tmp_path / "b.json"), "--out", str(tmp_path / "c")]) == 0
    for name in ("good", "below"):
        assert record.load(tmp_path / "a" / f"{name}.json") == record.load(tmp_path / "c" / f"{name}.json")


def test_the_command_of_a_record_names_no_place() -> None:
    argv = ["schemes", "--out", "/x/y", "--device", "cuda", "--model", "/home/z/m.gguf", "--bundle", "/q"]
    assert command.command_of(argv) == "python -m experiments schemes --device cuda --model m.gguf"


def test_options_take_the_type_of_their_default() -> None:
    s = Setting(options={"a": "3", "b": "x,y", "c": "0.5,1", "d": "true", "e": "no"})
    assert s.option("a", 1) == 3
    assert s.option("b", ["z"]) == ["x", "y"]
    assert s.option("c", [0.1]) == [0.5, 1.0]
    assert s.option("d", False) is True
    with pytest.raises(InputError, match="e=no"):
        s.option("e", True)


@pytest.mark.parametrize("bad", [{"device": "tpu"}, {"tau": 0.0}, {"tokens": 1}, {"queries": 0}])
def test_settings_are_validated(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Setting(**bad)


def test_without_a_model_what_needs_one_is_refused() -> None:
    with pytest.raises(NeedsModelError):
        _ = Setting(model="none").loaded


def test_lists_of_numbers_are_one_line(tmp_path: Path) -> None:
    data = {"a": [1, 2.5, None], "b": ["x [y]", "z"], "c": [[1, 2], [3, 4]]}
    record.write_json(tmp_path / "x.json", data)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == data
    assert "[1, 2.5, null]" in text
    assert "[3, 4]" in text


def test_readme_is_in_step() -> None:
    assert readme.PATH.read_text(encoding="utf-8") == readme.render()


def test_rows_of_the_readme_have_the_cells_of_their_table() -> None:
    cells = [(line, len(re.findall(r"(?<!\\)\|", line))) for line in readme.render().splitlines()]
    tables = 0
    for (line, here), (_, before) in zip(cells[1:], cells, strict=False):
        if line.startswith("|"):
            assert before in (0, here), line
            tables += before == 0
    assert tables >= len(registry.discover()[0])


def test_every_result_has_its_picture() -> None:
    for path in record.RESULTS.glob("*.json"):
        assert path.with_suffix(".png").exists()
        assert record.load(path)["violations"] == 0


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert "schemes" in capsys.readouterr().out
    assert "experiments" in sys.modules
