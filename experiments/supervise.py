"""All experiments in one command: one process with one model and one recording, restarted where an experiment kills it.

Each result is written when it is there. An exception is written down in NAME.failed and the next experiment goes on; a
process that dies or loses its GPU is followed by one that runs what is left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from experiments import record, registry
from experiments.common import NeedsModelError, Setting

__all__ = ["BROKEN", "bundle", "execute", "run_all", "run_here"]

BROKEN = 75
"""Exit code of a process whose GPU no longer answers."""


def execute(module: Any, setting: Setting, command: str, commit: str | None) -> dict[str, Any]:
    """Run one experiment; its whole record, with the time that it took and the number of violations."""
    start = time.monotonic()
    torch.manual_seed(setting.seed)
    result = module.run(setting)
    if not isinstance(result.get("violations"), int) or isinstance(result["violations"], bool):
        raise TypeError(f"experiment {module.NAME!r} does not count its violations")
    seconds = time.monotonic() - start
    return record.header(module, setting, command, commit) | {
        "seconds": round(seconds, 1), "violations": result["violations"], "result": result,
    }  # fmt: skip


def _limited(seconds: int, call: Callable[[], Any]) -> Any:
    """Call, interrupted by TimeoutError when it takes longer (0: no limit)."""

    def late(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"took longer than the limit of {seconds} s")

    if not seconds:
        return call()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        return call()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _device_answers(device: str) -> bool:
    if device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
        return float(torch.ones(8, device="cuda").sum()) == 8.0
    except Exception:
        return False


def run_here(names: list[str], setting: Setting, out: Path, command: str, commit: str | None, limit: int) -> int:
    """Run these in this process; 0, or ``BROKEN`` when the GPU stops answering."""
    known, _ = registry.discover()
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        setting.say(f"=== {name}")
        failed = out / f"{name}.failed"
        try:
            found = _limited(limit, partial(execute, known[name], setting, command, commit))
            path = record.save(out, found)
            setting.say(f"{name}: {found['seconds']} s, violations {found['violations']}, wrote {path}")
        except NeedsModelError as e:
            failed.write_text(f"skipped: {e}\n", encoding="utf-8")
        except Exception:
            failed.write_text(traceback.format_exc(), encoding="utf-8")
            setting.say(f"{name} FAILED:\n{traceback.format_exc()}")
        if not _device_answers(setting.device):
            setting.say("the GPU no longer answers in this process")
            return BROKEN
        if setting.device == "cuda":
            torch.cuda.empty_cache()
    return 0


def _child(names: list[str], arguments: list[str], out: Path) -> int:
    """Run these in a process of their own."""
    words = [sys.executable, "-m", "experiments", "all", "--here", "--only", ",".join(names), "--out", str(out)]
    return subprocess.run([*words, *arguments], check=False).returncode


def run_all(names: list[str], arguments: list[str], out: Path) -> dict[str, str]:
    """Run these, whatever happens to one of them; returns why each that has no result failed."""
    _, broken = registry.discover()
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        for suffix in (".json", ".failed"):
            (out / f"{name}{suffix}").unlink(missing_ok=True)
    left = list(names)
    while left:
        code = _child(left, arguments, out)
        todo = [n for n in left if not (out / f"{n}.json").exists() and not (out / f"{n}.failed").exists()]
        if todo and (code != BROKEN or todo == left):  # the first of them took the process down
            (out / f"{todo[0]}.failed").write_text(f"the process ended with exit code {code}\n", encoding="utf-8")
            todo = todo[1:]
        left = todo
    failures = {f"module {name}": reason for name, reason in broken.items()}
    for name in names:
        if (out / f"{name}.failed").exists():
            failures[name] = (out / f"{name}.failed").read_text(encoding="utf-8")
    return failures


def bundle(names: list[str], out: Path, failures: dict[str, str]) -> dict[str, Any]:
    """Every record and every failure as one object."""
    there = [out / f"{n}.json" for n in names if (out / f"{n}.json").exists()]
    return {"format": "witcert-experiments/1", "records": [record.load(p) for p in there], "failures": failures}
