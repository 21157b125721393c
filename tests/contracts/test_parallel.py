"""Work in several processes: every task is answered, whatever becomes of the process that was at it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from contracts import parallel, suite
from contracts.parallel import CHECK, Group, Task


@dataclass(frozen=True)
class Answer:
    name: str
    message: str
    process: int


def serve(pipe: Connection, group: Group) -> None:
    """Stands in for a process that runs checks: the name of a task says what happens."""
    seen = 0
    while (task := pipe.recv()) is not None:
        seen += 1
        if task.name.startswith("dies"):
            os._exit(7)
        if task.name.startswith("hangs"):
            time.sleep(600)
        full = task.name.startswith("large") and (seen > 1 or group.jobs > 1) and not Path(task.name[6:]).exists()
        if full:
            Path(task.name[6:]).touch()
        pipe.send(Answer(task.name, "OutOfMemoryError: no" if full else f"ok on {group.device}", os.getpid()))


def lost(task: Task, reason: str, seconds: float) -> Answer:
    assert seconds >= 0
    return Answer(task.name, reason, 0)


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_serve", serve)


def _run(names: list[str], *, jobs: int = 2, limit: float = 60.0, seconds: float = 120.0) -> dict[str, Answer]:
    group = Group([Task(CHECK, name) for name in names], jobs, "cpu", True, False)
    seen: list[Answer] = []
    answers = parallel.in_parallel([group], lost, seen.append, limit=limit, deadline=time.monotonic() + seconds)
    assert answers == seen
    found = {a.name: a for a in answers}
    assert sorted(found) == sorted(names)
    assert len(answers) == len(names)
    return found


def test_processes_take_one_task_after_the_other() -> None:
    found = _run([f"task {i}" for i in range(12)])
    assert {a.message for a in found.values()} == {"ok on cpu"}
    assert len({a.process for a in found.values()}) == 2


def test_a_process_that_dies_loses_its_own_task() -> None:
    found = _run(["a", "dies", "b", "dies too", "c"])
    assert found["dies"].message == found["dies too"].message == "its process ended with exit code 7"
    assert {found[x].message for x in "abc"} == {"ok on cpu"}


def test_a_process_that_hangs_is_stopped() -> None:
    start = time.monotonic()
    found = _run(["hangs", "a", "b"], limit=8.0)
    assert found["hangs"].message == "stopped after 8 s"
    assert {found[x].message for x in "ab"} == {"ok on cpu"}
    assert time.monotonic() - start < 60.0


def test_when_the_time_of_the_run_is_over_all_that_is_left_is_reported() -> None:
    found = _run(["hangs", "hangs too", "a", "b"], seconds=5.0)
    assert found["hangs"].message == "the time of the whole run was over"
    assert found["a"].message == "not begun: the time of the whole run was over"


def test_what_ran_out_of_memory_is_tried_once_more_alone(tmp_path: Path) -> None:
    found = _run([f"large {tmp_path / 'x'}", "a", "b"])
    assert {a.message for a in found.values()} == {"ok on cpu"}
    assert (tmp_path / "x").exists()
    monkey = [f"large {tmp_path / 'no' / 'folder'}"]  # cannot be remembered: its process dies, and that is said
    assert "exit code" in _run(monkey)[monkey[0]].message


def test_a_group_may_use_the_places_of_others() -> None:
    groups = [
        Group([Task(CHECK, "alone")], 2, "cuda", False, True),
        Group([Task(CHECK, f"task {i}") for i in range(6)], 1, "cpu", True, False, idle=True),
    ]
    answers = parallel.in_parallel(groups, lost, lambda _: None, limit=60.0, deadline=time.monotonic() + 60.0)
    assert len(answers) == 7
    assert {a.message for a in answers if a.name != "alone"} == {"ok on cpu"}
    assert [a.message for a in answers if a.name == "alone"] == ["ok on cuda"]
    assert 1 < len({a.process for a in answers if a.name != "alone"}) <= 3


def test_on_a_gpu_the_mutants_run_in_the_interpreter_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from contracts import __main__ as command
    from contracts import mutants
    from contracts.discharge import CHECKS, Setting

    seen: list[Group] = []

    def in_parallel(groups: list[Group], lost: Any, tick: Any, **limits: float) -> list[Any]:
        seen.extend(groups)
        answers = [lost(task, "no GPU here", 0.0) for group in groups for task in group.tasks]
        for answer in answers:
            tick(answer)
        return answers

    assert mutants.MUTANTS
    monkeypatch.setattr(parallel, "in_parallel", in_parallel)
    monkeypatch.setattr(command, "_cores", lambda: 16)
    args = command._arguments(["--limit", "7"])
    gpu = Setting(torch.device("cuda"), interpreted=False, full=True)
    every = [CHECKS[x] for x in sorted(CHECKS)]
    results, killed, interrupted = command._all(args, gpu, every, ["lost_split"], time.monotonic() + 9.0)
    assert not interrupted
    checks, faults = seen
    assert (checks.device, checks.interpreted, checks.full, checks.jobs) == ("cuda", False, True, 12)
    assert (faults.device, faults.interpreted, faults.full, faults.jobs) == ("cpu", True, False, 4)
    assert faults.environment["TRITON_INTERPRET"] == "1"
    assert faults.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert sorted(r.name for r in results) == sorted(CHECKS)
    assert {r.status for r in results} == {"error"}
    assert [(m.name, m.killed_by, m.error) for m in killed] == [("lost_split", None, "no GPU here")]


def test_real_checks_and_mutants_in_processes(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    asked = ["rounding.ru16_exhaustive", "corollaries.statements", "package_ru16_truncates"]
    command = [sys.executable, "-m", "contracts", "--device", "cpu", "--jobs", "2", "--out", str(out), "--only", *asked]
    r = subprocess.run(command, cwd=suite.ROOT, capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    assert len(re.findall(r"^\[\d/3, ", r.stderr, re.MULTILINE)) == 3
    data = json.loads(out.read_text())
    assert {c["name"] for c in data["checks"]} == set(asked[:2])
    assert all(c["status"] == "passed" and c["cases"] > 0 for c in data["checks"])
    assert data["mutants"][0]["killed_by"] == "rounding.ru16_exhaustive"
    assert data["mutants_interpreted"]


def test_the_longest_come_first_and_none_is_lost() -> None:
    from contracts.running import LONGEST, longest_first  # PyTorch comes with it, which no process here needs

    names = ["a.b", LONGEST[2], "c.d", LONGEST[0]]
    assert longest_first(names) == [LONGEST[0], LONGEST[2], "a.b", "c.d"]
    assert len(set(LONGEST)) == len(LONGEST)


GPU_TESTS = """
import time
import pytest
pytestmark = pytest.mark.gpu
def test_well(): pass
def test_badly(): assert False
@pytest.mark.skipif({skip}, reason="")
def test_hangs(): time.sleep(600)
"""


def _folder(path: Path, skip: bool) -> Path:
    path.joinpath("pytest.ini").write_text("[pytest]\nmarkers =\n  gpu\n")
    tests = path / "tests"
    (tests / "contracts").mkdir(parents=True)
    (tests / "contracts" / "test_again.py").write_text("raise SystemExit('collected')\n")
    (tests / "test_some.py").write_text(GPU_TESTS.format(skip=skip))
    return tests


def test_tests_that_fail_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = suite.gpu_tests(1, 120.0, _folder(tmp_path, skip=True))
    assert found["exit"] == 1
    assert "1 failed, 1 passed, 1 skipped" in found["last_line"]
    assert [name.rsplit("::")[-1] for name in found["failed"]] == ["test_badly"]
    assert "test_badly FAILED" in capsys.readouterr().err


def test_tests_that_hang_are_stopped(tmp_path: Path) -> None:
    found = suite.gpu_tests(1, 10.0, _folder(tmp_path, skip=False))
    assert found["exit"] == 124
    assert found["last_line"].startswith("stopped after 10 s")
    assert [name.rsplit("::")[-1] for name in found["failed"]] == ["test_badly"]


def test_the_command_leaves_the_checks_out() -> None:
    command = suite.command(12)
    assert command[0] == sys.executable
    assert any(x.startswith("--ignore=") and x.endswith("tests/contracts") for x in command)
    assert command[-1].endswith("tests")
    assert "-n" not in suite.command(1)
