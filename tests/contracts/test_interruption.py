"""A run that is cut short still tells what it knows: on a signal, at the end of its time, and before the tests begin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import __main__ as command
from contracts import parallel, report, suite
from contracts.discharge import Check, Outcome, Setting
from contracts.interruption import REASON, interruptible
from contracts.parallel import CHECK, Group, Task
from contracts.running import Result
from tests.contracts.test_parallel import GPU_TESTS, lost, serve

GPU = Setting(torch.device("cuda"), interpreted=False, full=True)


def _folder(path: Path) -> Path:
    path.joinpath("pytest.ini").write_text("[pytest]\nmarkers =\n  gpu\n")
    tests = path / "tests"
    tests.mkdir()
    (tests / "test_some.py").write_text(GPU_TESTS.format(skip=False))
    return tests


def _signal_at(line: str, read: Any, *numbers: int) -> Any:
    """A reader of lines that sends signals to this process when it has read this one."""

    def reading(self: Any, text: str) -> None:
        read(self, text)
        if line in text:
            for number in numbers:
                os.kill(os.getpid(), number)

    return reading


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tests_that_are_interrupted_say_how_far_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(suite._Log, "read", _signal_at("test_badly FAILED", suite._Log.read, number, number))
    start = time.monotonic()
    with interruptible():
        found = suite.gpu_tests(1, 300.0, _folder(tmp_path))
    assert time.monotonic() - start < 120.0
    assert found["exit"] == 130
    assert found["cut"]
    assert found["last_line"].startswith("interrupted after ")
    assert {name.rsplit("::")[-1]: how for name, how in found["ended"].items()} == {
        "test_well": "passed", "test_badly": "failed",
    }  # fmt: skip
    assert [name.rsplit("::")[-1] for name in found["failed"]] == ["test_badly"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_no_time_left_begins_no_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("begun"))
    found = suite.gpu_tests(4, -3.0)
    assert (found["exit"], found["cut"]) == (124, True)
    assert found["last_line"].startswith("not begun: the time of the whole run was over")


def test_the_tests_get_what_is_left_and_no_more(tmp_path: Path) -> None:
    start = time.monotonic()
    found = suite.gpu_tests(1, 0.5, _folder(tmp_path))
    assert time.monotonic() - start < 10.0
    assert (found["exit"], found["cut"]) == (124, True)


@pytest.mark.parametrize(
    ("lines", "ended", "at"),
    [
        (["tests/a.py::test_x ", "tests/a.py::test_y[1 2] ", "[gw0] [ 50%] PASSED tests/a.py::test_y[1 2] "],
         {"tests/a.py::test_y[1 2]": "passed"}, ["tests/a.py::test_x"]),
        (["tests/a.py::test_x PASSED       [ 50%]", "tests/a.py::test_z SKIPPED (no) [100%]"],
         {"tests/a.py::test_x": "passed", "tests/a.py::test_z": "skipped"}, []),
        (["=== test session starts ===", "E   assert 0", "[gw3] linux -- Python"], {}, []),
    ],
)  # fmt: skip
def test_lines_of_pytest(lines: list[str], ended: dict[str, str], at: list[str]) -> None:
    log = suite._Log()
    for line in lines:
        log.read(line + "\n")
    found = log.result(130, "interrupted")
    assert (found["ended"], found["at"]) == (ended, at)


@pytest.fixture
def gpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command as on a GPU, with one check and without mutants; the tests are the function given."""
    monkeypatch.setattr(report, "_machine", lambda _: {
        "interpreted": False, "full": True, "device": "cuda", "gpu": "a GPU", "sources": {},
    })  # fmt: skip
    book = command._book()
    assert book is not None
    name = next(iter(book.facts.checks))

    def everything(*_: Any) -> Any:
        return [Result(name, "passed", 0.1, Outcome(3, (1,), 0.0, "bits"))], [], False

    monkeypatch.setattr(command, "_all", everything)
    out = tmp_path / "r.json"

    def go(tests: Any, *words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(suite, "gpu_tests", tests)
        args = command._arguments(["--no-mutants", "--out", str(out), *words])
        return command._run(args, book, GPU, time.monotonic()), json.loads(out.read_text())

    return go, out


def test_the_report_is_there_before_the_tests_begin(gpu_run: Any) -> None:
    go, out = gpu_run

    def tests(jobs: int, seconds: float) -> dict[str, Any]:
        so_far = json.loads(out.read_text())
        assert so_far["tests"] is None
        assert not so_far["complete"]
        assert len(so_far["checks"]) == 1
        return {"exit": 0, "last_line": "1 passed", "failed": []}

    code, data = go(tests)
    assert (code, data["tests"]["last_line"]) == (0, "1 passed")


def test_a_budget_holds_for_the_tests_too(gpu_run: Any) -> None:
    go, _ = gpu_run
    given: list[float] = []

    def tests(jobs: int, seconds: float) -> dict[str, Any]:
        given.append(seconds)
        return {"exit": 0, "last_line": "1 passed", "failed": []}

    go(tests, "--budget", "5")
    go(tests, "--budget", "0.000001")
    assert 0 < given[0] < 5
    assert given[1] < 0


def test_what_an_interrupted_run_knows_is_written(
    gpu_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, _ = gpu_run
    monkeypatch.setattr(suite._Log, "read", _signal_at("test_badly FAILED", suite._Log.read, signal.SIGTERM))
    real = suite.gpu_tests
    with interruptible():
        code, data = go(lambda jobs, seconds: real(1, seconds, _folder(tmp_path)))
    assert code == 1
    assert not data["passed"]
    assert not data["complete"]
    assert data["tests"]["exit"] == 130
    assert len(data["tests"]["ended"]) == 2
    assert len(data["checks"]) == 1


def test_an_interruption_of_the_checks_loses_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_serve", serve)
    seen: list[Any] = []

    def tick(answer: Any) -> None:
        seen.append(answer)
        if answer.name == "a":
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    group = Group([Task(CHECK, name) for name in ("a", "hangs", "b")], 1, "cpu", True, False)
    with interruptible():
        answers = parallel.in_parallel([group], lost, tick, limit=300.0, deadline=time.monotonic() + 300.0)
    assert answers == seen
    assert [(a.name, a.message) for a in answers] == [
        ("a", "ok on cpu"), ("hangs", REASON), ("b", f"not begun: {REASON}"),
    ]  # fmt: skip


def test_an_interruption_in_one_process_keeps_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def well(_: Setting) -> Outcome:
        return Outcome(1, (1,), 0.0, "bits")

    def interrupted(_: Setting) -> Outcome:
        raise KeyboardInterrupt

    checks = [Check(name, (), "", f) for name, f in (("x.a", well), ("x.b", interrupted), ("x.c", well))]
    cpu = Setting(torch.device("cpu"), interpreted=True, full=False)
    results, killed, cut = command._all(command._arguments([]), cpu, checks, ["lost_split"], time.monotonic() + 60.0)
    assert [r.name for r in results] == ["x.a"]
    assert (killed, cut) == ([], True)


def test_the_command_ends_at_once_on_a_signal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from contracts import __main__ as c; c._main = lambda *_: (print('on', flush=True), "
         "__import__('time').sleep(600)); raise SystemExit(c.main([]))"],
        cwd=suite.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == "contracts: interrupted\n"
