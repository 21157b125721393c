"""The tests marked ``gpu``: run beside one another where pytest-xdist is there, each named as it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["command", "gpu_tests"]

ROOT = Path(__file__).resolve().parent.parent
_NAME = r"(\S*::.*?)"
_ENDS = r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)"
_BESIDE = re.compile(rf"^\[gw\d+\] \[ *\d+%\] {_ENDS} {_NAME}(?: <- .*)?\s*$")  # of pytest-xdist
_ALONE = re.compile(rf"^{_NAME} (?:<- \S+ )?{_ENDS}\b")
_BEGUN = re.compile(rf"^{_NAME}\s*$")
_BAD = re.compile(r"\b(?:FAILED|ERROR)\b.*?(tests/\S+)|(tests/\S+)\s+(?:FAILED|ERROR)\b")
OVER = "the time of the whole run was over"


def command(jobs: int, folder: Path = ROOT / "tests") -> list[str]:
    """How they are called: ``tests/contracts`` left out, since its tests on a GPU are the checks again."""
    beside = ["-n", str(jobs)] if jobs > 1 and importlib.util.find_spec("xdist") is not None else []
    return [sys.executable, "-u", "-m", "pytest", "-v", "--tb=short", "-m", "gpu", *beside,
            f"--ignore={folder / 'contracts'}", str(folder)]  # fmt: skip


class _Log:
    """What the lines of pytest say: which tests ended, which are under way and which failed."""

    def __init__(self) -> None:
        self.last, self.ended, self.begun, self.failed = "no output", dict[str, str](), list[str](), list[str]()

    def read(self, line: str) -> None:
        self.last = line.strip("= \n") or self.last
        if beside := _BESIDE.match(line):
            self.ended[beside.group(2)] = beside.group(1).lower()
        elif alone := _ALONE.match(line):
            self.ended[alone.group(1)] = alone.group(2).lower()
        elif begun := _BEGUN.match(line.split(" <- ")[0]):
            self.begun.append(begun.group(1))
        if (bad := _BAD.search(line)) and (name := bad.group(1) or bad.group(2)) not in self.failed:
            self.failed.append(name)

    def result(self, code: int, cut: str | None) -> dict[str, Any]:
        """As ``gpu_tests`` returns it; cut : why they did not all run, if so."""
        if cut is None:
            return {"exit": code, "last_line": self.last, "failed": self.failed}
        at = [name for name in self.begun if name not in self.ended]
        return {
            "exit": code, "last_line": f"{cut}; {len(self.ended)} tests had ended; the last line was: {self.last}",
            "failed": self.failed, "cut": True, "ended": self.ended, "at": at,
        }  # fmt: skip


def gpu_tests(jobs: int, seconds: float, folder: Path = ROOT / "tests") -> dict[str, Any]:
    """Run them for at most this long: exit status (124: stopped, 130: interrupted), last line, names of those that failed.

    Tests that were stopped or interrupted say ``cut``, how each that ``ended`` did, and which were ``at`` work. No seconds
    left: they are not begun. Every line is passed on to stderr when it comes, so that a log that is cut off still names
    the failures.
    """
    log = _Log()
    if seconds <= 0:
        return log.result(124, f"not begun: {OVER}")
    print(f"contracts: pytest -m gpu, {jobs} at a time, at most {seconds:.0f} s", flush=True)
    start, stopped, interrupted = time.monotonic(), threading.Event(), False
    run = subprocess.Popen(
        command(jobs, folder), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip

    def stop() -> None:
        stopped.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # its own session: the tests and what they started

    timer = threading.Timer(seconds, stop)
    code = 130
    try:
        timer.start()
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            log.read(line)
        code = run.wait()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        timer.cancel()
        if run.poll() is None:
            stop()
            run.wait()
    if interrupted:
        return log.result(130, f"interrupted after {time.monotonic() - start:.0f} s")
    return log.result(124, f"stopped after {seconds:.0f} s") if stopped.is_set() else log.result(code, None)
