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
from pathlib import Path
from typing import Any

__all__ = ["command", "gpu_tests"]

ROOT = Path(__file__).resolve().parent.parent
_BAD = re.compile(r"\b(?:FAILED|ERROR)\b.*?(tests/\S+)|(tests/\S+)\s+(?:FAILED|ERROR)\b")


def command(jobs: int, folder: Path = ROOT / "tests") -> list[str]:
    """How they are called: ``tests/contracts`` left out, since its tests on a GPU are the checks again."""
    beside = ["-n", str(jobs)] if jobs > 1 and importlib.util.find_spec("xdist") is not None else []
    return [sys.executable, "-u", "-m", "pytest", "-v", "--tb=short", "-m", "gpu", *beside,
            f"--ignore={folder / 'contracts'}", str(folder)]  # fmt: skip


def gpu_tests(jobs: int, seconds: float, folder: Path = ROOT / "tests") -> dict[str, Any]:
    """Run them for at most this long: exit status (124: stopped), last line, and the names of those that failed.

    Every line is passed on to stderr when it comes, so that a log that is cut off still names the failures.
    """
    print(f"contracts: pytest -m gpu, {jobs} at a time, at most {seconds:.0f} s", flush=True)
    run = subprocess.Popen(
        command(jobs, folder), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # its own session: the tests and what they started

    timer = threading.Timer(max(1.0, seconds), stop)
    timer.start()
    last, failed = "no output", list[str]()
    try:
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            last = line.strip("= \n") or last
            if (bad := _BAD.search(line)) and (name := bad.group(1) or bad.group(2)) not in failed:
                failed.append(name)
        code = run.wait()
    finally:
        timer.cancel()
        if run.poll() is None:
            stop()
            run.wait()
    if stopped.is_set():
        code, last = 124, f"stopped after {seconds:.0f} s; the last line was: {last}"
    return {"exit": code, "last_line": last, "failed": failed}
