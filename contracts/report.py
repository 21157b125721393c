"""What a run found out, as data (``contracts/report.json``) and on the terminal."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from rich.console import Console
from rich.table import Table

from contracts.book import ROOT, Book
from contracts.discharge import Setting
from contracts.model import Assumed, ByConstruction, Checked, Cited, Contract, Derived, Discharge, Output, Same
from contracts.running import Result
from witcert.doctor.sources import digest, kernels_digest

__all__ = ["COMMITTED", "build", "dump", "load", "margin", "print_results", "whole", "write"]

SCHEMA = 1
COMMITTED = ROOT / "contracts" / "report.json"
_SOURCES = ("witcert", "contracts", "formal", "tests", "SOUNDNESS.md")


def _git(*args: str) -> str | None:
    try:
        r = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return r.stdout.strip() if r.returncode == 0 else None


def revision(given: str | None) -> dict[str, Any]:
    """The commit and whether sources differ from it; where there is no git, the commit that was given, on trust."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {"commit": given, "commit_from": "the command line" if given else None, "dirty": None}
    changed = _git("status", "--porcelain", "--untracked-files=all", "--", *_SOURCES)
    lines = [x for x in (changed or "").splitlines() if not x.endswith("contracts/report.json")]
    return {"commit": commit, "commit_from": "git", "dirty": bool(lines) or changed is None}


def _obligations(book: Book, results: Sequence[Result]) -> dict[str, Any]:
    """How every hypothesis and conclusion is met, and for those that are checked how the checks ended."""
    ended = {r.name: r.status for r in results}
    return {
        key: {"how": how, **({"checks": {c: ended.get(c, "not run") for c in checks}} if checks else {})}
        for contract in book.contracts
        for key, how, checks in _met(contract)
    }


def _kind(d: Discharge) -> str:
    if isinstance(d, Assumed):
        return f"assumed {d.letter}"
    if isinstance(d, Derived):
        return f"derived {d.theorem}"
    if isinstance(d, Same):
        return f"as {d.obligation}"
    return "by construction" if isinstance(d, ByConstruction) else "checked" if isinstance(d, Checked) else "unused"


def _met(contract: Contract) -> list[tuple[str, list[str], list[str]]]:
    out = []
    for h in contract.hypotheses:
        found = contract.discharges(h)
        checks = [c for d in found if isinstance(d, Checked) for c in d.checks]
        out.append((f"{contract.theorem}.{h}", [_kind(d) for d in found], checks))
    end = contract.conclusion
    how = [f"cited {t}" for t in end.by] if isinstance(end, Cited) else ["checked" if isinstance(end, Output) else "unused"]
    return [*out, (f"{contract.theorem}.conclusion", how, list(end.checks) if isinstance(end, Output) else [])]


def build(
    book: Book, setting: Setting, results: Sequence[Result], *, mutants: Sequence[Any] | None, tests: dict[str, Any] | None,
    seconds: float, commit: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The report of one run. mutants, tests: None if they were not run."""
    cuda = setting.device.type == "cuda"
    complete = {r.name for r in results} == set(book.facts.checks)
    green = all(r.passed for r in results)
    killed = mutants is None or all(m.killed_by for m in mutants)
    tested = tests is None or tests["exit"] == 0
    outcomes = [r.outcome for r in results if r.outcome is not None]
    return {
        "schema": SCHEMA,
        "passed": bool(results) and green and killed and tested,
        "complete": complete and mutants is not None,
        "interpreted": setting.interpreted,
        "full": setting.full,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": setting.device.type,
        "gpu": torch.cuda.get_device_name(setting.device) if cuda else None,
        "capability": list(torch.cuda.get_device_capability(setting.device)) if cuda else None,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        },
        **revision(commit),
        "sources": {
            "kernels": kernels_digest(ROOT / "witcert"),
            "checks": digest(ROOT / "contracts" / "checks"),
            "statements": hashlib.sha256((ROOT / "formal" / "statements.json").read_bytes()).hexdigest(),
        },
        "seconds": round(seconds, 1),
        "cases": sum(o.cases for o in outcomes),
        "cells": sum(o.cells for o in outcomes),
        "checks": [_check(book, r) for r in results],
        "obligations": _obligations(book, results),
        "mutants": None if mutants is None else [
            {"name": m.name, "what": m.what, "killed_by": m.killed_by, "seconds": round(m.seconds, 1), "error": m.error}
            for m in mutants
        ],
        "tests": tests,
    }  # fmt: skip


def _check(book: Book, r: Result) -> dict[str, Any]:
    check, o = book.facts.checks[r.name], r.outcome
    return {
        "name": r.name,
        "summary": check.summary,
        "obligations": list(check.obligations),
        "status": r.status,
        "cases": o.cases if o else 0,
        "cells": o.cells if o else 0,
        "seeds": list(o.seeds) if o else [],
        "margin": o.margin if o else None,
        "unit": o.unit if o else "",
        "note": o.note if o else "",
        "seconds": round(r.seconds, 1),
        "message": r.message,
    }


def write(path: Path, text: str) -> None:
    """Replace a file at once, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def dump(report: dict[str, Any]) -> str:
    """The report as text."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def load(path: Path = COMMITTED) -> dict[str, Any] | None:
    """A report; None if there is no such file. ValueError if it is not one of this version."""
    if not path.is_file():
        return None
    report = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no report of version {SCHEMA}")
    return report


# --- on the terminal -----------------------------------------------------------------------------


def whole(n: int) -> str:
    """A count, with its thousands apart."""
    return f"{n:,}"


def margin(value: float | None, unit: str) -> str:
    """A smallest distance and its unit; a check of equal bits has none."""
    if value is None:
        return "-"
    return f"{value:.3g} {unit}".strip() if value else f"0 {unit}".strip()


def print_results(report: dict[str, Any], console: Console) -> None:
    """The tables of a run and, last, one line that says how it ended."""
    table = Table(title="Checks", title_justify="left", header_style="bold")
    for head in ("check", "outcome"):
        table.add_column(head, no_wrap=True)
    for head in ("cases", "cells", "smallest margin", "s"):
        table.add_column(head, justify="right")
    style = {"passed": "green", "violated": "bold red", "error": "red"}
    for c in report["checks"]:
        table.add_row(
            c["name"], f"[{style[c['status']]}]{c['status']}[/]", whole(c["cases"]), whole(c["cells"]),
            margin(c["margin"], c["unit"]), f"{c['seconds']:.1f}",
        )  # fmt: skip
    console.print(table)
    for c in report["checks"]:
        if c["message"]:
            console.print(f"{c['name']}: {c['status']}: {c['message']}", markup=False, style="red")
    if report["mutants"] is not None:
        mutants = Table(title="Mutants", title_justify="left", header_style="bold")
        for head in ("mutant", "what is wrong with it", "killed by"):
            mutants.add_column(head)
        for m in report["mutants"]:
            mutants.add_row(m["name"], m["what"], m["killed_by"] or f"[bold red]SURVIVED[/] {m['error'] or ''}")
        console.print(mutants)
    console.print(last_line(report), markup=False, soft_wrap=True)


def last_line(report: dict[str, Any]) -> str:
    """How the run ended and what it counts for."""
    bad = [c["name"] for c in report["checks"] if c["status"] != "passed"]
    survived = [m["name"] for m in report["mutants"] or () if not m["killed_by"]]
    said = [f"{len(report['checks']) - len(bad)} of {len(report['checks'])} checks passed",
            f"{whole(report['cases'])} cases, {whole(report['cells'])} cells"]  # fmt: skip
    if report["mutants"] is not None:
        said.append(f"{len(report['mutants']) - len(survived)} of {len(report['mutants'])} mutants killed")
    if report["tests"] is not None:
        said.append(f"pytest -m gpu: {report['tests']['last_line']}")
    if not report["complete"]:
        said.append("a part of the checks and mutants")
    where = f"on {report['gpu']}" if report["gpu"] else "on the CPU"
    if report["interpreted"]:
        where += ", INTERPRETED, reduced amounts: does not count as GPU validation"
    verdict = "ok" if report["passed"] else "FAILED"
    return f"contracts: {verdict}: {'; '.join(said)}; {where} ({report['seconds']:.0f} s)"
