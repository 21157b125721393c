"""What a run found out, as data (``contracts/report.json``) and on the terminal."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
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

__all__ = ["COMMITTED", "build", "dump", "load", "margin", "other_machine", "print_results", "whole", "write"]

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
    """The commit and whether sources differ from it; where git does not know them, the commit that was given."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=all", "--", *_SOURCES)
    lines = [x for x in (changed or "").splitlines() if not x.endswith("contracts/report.json")]
    dirty = bool(lines) or changed is None
    if commit is None or (dirty and given):  # a copy of a tree may lie over an older commit
        return {"commit": given, "commit_from": "the command line" if given else None, "dirty": None}
    return {"commit": commit, "commit_from": "git", "dirty": dirty}


def _obligations(book: Book, checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How every hypothesis and conclusion is met, and for those that are checked how the checks ended."""
    ended = {c["name"]: c["status"] for c in checks}
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


def _machine(setting: Setting) -> dict[str, Any]:
    """Where a run takes place, and on which sources: what two runs must share to be parts of one report."""
    cuda = setting.device.type == "cuda"
    return {
        "interpreted": setting.interpreted,
        "full": setting.full,
        "device": setting.device.type,
        "gpu": torch.cuda.get_device_name(setting.device) if cuda else None,
        "capability": list(torch.cuda.get_device_capability(setting.device)) if cuda else None,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        },
        "sources": {
            "kernels": kernels_digest(ROOT / "witcert"),
            "checks": digest(ROOT / "contracts" / "checks"),
            "mutants": digest(ROOT / "contracts" / "mutants"),
            "statements": hashlib.sha256((ROOT / "formal" / "statements.json").read_bytes()).hexdigest(),
        },
    }


def other_machine(earlier: dict[str, Any], setting: Setting) -> list[str]:
    """In what a report was made elsewhere, or of other sources; empty if this run may continue it."""
    return [key for key, value in _machine(setting).items() if earlier.get(key) != value]


def build(
    book: Book, setting: Setting, results: Sequence[Result], *, mutants: Sequence[Any], every_mutant: Iterable[str],
    tests: dict[str, Any] | None, seconds: float, commit: str | None = None, earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The report of one run, or of one that continues an earlier report.

    mutants : results of those that were run; every_mutant : names of all. tests : of ``pytest -m gpu``, None if not run;
    with "cut" they did not all run, and the report is not complete.
    """
    before = earlier or {"checks": [], "mutants": [], "tests": None, "seconds": 0.0}
    ran = [_check(book, r) for r in results]
    checks = _in_order([*before["checks"], *ran], book.facts.checks)
    killed = _in_order([*before["mutants"], *map(_mutant, mutants)], every_mutant)
    tests = tests or before["tests"]
    green = all(c["status"] == "passed" for c in checks) and all(m["killed_by"] for m in killed)
    whole_run = len(checks) == len(book.facts.checks) and len(killed) == len(tuple(every_mutant))
    return {
        "schema": SCHEMA,
        "passed": bool(checks or killed) and green and (tests is None or tests["exit"] == 0),
        "complete": whole_run and (setting.device.type != "cuda" or (tests is not None and not tests.get("cut"))),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **_machine(setting),
        **revision(commit),
        "seconds": round(before["seconds"] + seconds, 1),
        "cases": sum(c["cases"] for c in checks),
        "cells": sum(c["cells"] for c in checks),
        "checks": checks,
        "obligations": _obligations(book, checks),
        "mutants": killed,
        "mutants_interpreted": True,
        "tests": tests,
    }


def _in_order(found: list[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """The last entry of each name, in the order of the names."""
    last = {entry["name"]: entry for entry in found}
    return [last[name] for name in names if name in last]


def _mutant(m: Any) -> dict[str, Any]:
    return {"name": m.name, "what": m.what, "killed_by": m.killed_by, "seconds": round(m.seconds, 1), "error": m.error}


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
    for name in (report["tests"] or {}).get("failed", ()):
        console.print(f"pytest -m gpu: failed: {name}", markup=False, style="red")
    for name in (report["tests"] or {}).get("at", ()):
        console.print(f"pytest -m gpu: did not end: {name}", markup=False, style="red")
    if report["mutants"]:
        mutants = Table(title="Mutants (INTERPRETED, reduced amounts)", title_justify="left", header_style="bold")
        for head in ("mutant", "what is wrong with it", "killed by"):
            mutants.add_column(head)
        for m in report["mutants"]:
            mutants.add_row(m["name"], m["what"], m["killed_by"] or f"[bold red]SURVIVED[/] {m['error'] or ''}")
        console.print(mutants)
    console.print(last_line(report), markup=False, soft_wrap=True)


def last_line(report: dict[str, Any]) -> str:
    """How the run ended and what it counts for."""
    bad = [c["name"] for c in report["checks"] if c["status"] != "passed"]
    survived = [m["name"] for m in report["mutants"] if not m["killed_by"]]
    said = [f"{len(report['checks']) - len(bad)} of {len(report['checks'])} checks passed",
            f"{whole(report['cases'])} cases, {whole(report['cells'])} cells"]  # fmt: skip
    if report["mutants"]:
        said.append(f"{len(report['mutants']) - len(survived)} of {len(report['mutants'])} mutants killed (INTERPRETED)")
    if report["tests"] is not None:
        said.append(f"pytest -m gpu: {report['tests']['last_line']}")
    if not report["complete"]:
        said.append("not all of checks, mutants and tests")
    where = f"on {report['gpu']}" if report["gpu"] else "on the CPU"
    if report["interpreted"]:
        where += ", INTERPRETED, reduced amounts: does not count as GPU validation"
    verdict = "ok" if report["passed"] else "FAILED"
    return f"contracts: {verdict}: {'; '.join(said)}; {where} ({report['seconds']:.0f} s)"
