"""How a result is kept: one JSON file an experiment, with everything that a reader needs to repeat it."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.common import Setting
from witcert.errors import InputError
from witcert.observe.job import environment

__all__ = ["FORMAT", "RESULTS", "header", "load", "load_all", "save", "write_json"]

FORMAT = "witcert-experiment/1"
ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"


def plain(x: Any) -> Any:
    """Standard JSON: tensors become lists, NaN null, infinities text."""
    if isinstance(x, Tensor):
        return plain(x.tolist())
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    if hasattr(x, "item") and not isinstance(x, str | bytes):
        return plain(x.item())
    if isinstance(x, float) and not math.isfinite(x):
        return None if math.isnan(x) else ("inf" if x > 0 else "-inf")
    return x


def _text(data: Any) -> str:
    """JSON, indented, with each list of numbers on one line."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"


def write_json(path: Path, data: Any) -> None:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(_text(plain(data)), encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """The commit of the working tree, "+changes" where tracked files differ; None outside a repository."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", "--", "../witcert", ".") else "")


def device_name(device: str) -> str:
    """What ran it: the GPU, or the number of CPU cores."""
    return torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores, {platform.machine()}"


def header(module: Any, setting: Setting, command: str, at_commit: str | None) -> dict[str, Any]:
    """Everything of a record but the result."""
    return {
        "format": FORMAT,
        "experiment": module.NAME,
        "question": module.QUESTION,
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": at_commit or commit(),
        "device": device_name(setting.device),
        "versions": environment(),
        "seed": setting.seed,
        "quick": setting.quick,
        "tau": setting.tau,
        "tokens": setting.tokens,
        "queries": setting.queries,
        "options": {k: setting.option(k, v) for k, v in getattr(module, "OPTIONS", {}).items()},
        "about": setting.about(),
    }


def save(folder: Path, record: dict[str, Any]) -> Path:
    """Write one record; returns its path."""
    path = folder / f"{record['experiment']}.json"
    write_json(path, record)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read one record; InputError if it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as e:
        raise InputError(f"{path} cannot be read as a result: {e}") from e
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path} is not a result of an experiment ({FORMAT})")
    return data


def load_all(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Every record of a folder by experiment."""
    records = [load(p) for p in sorted(folder.glob("*.json"))]
    return {r["experiment"]: r for r in records}
