"""Running checks, the report, the generated document, and the command line."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from contracts import __main__ as command
from contracts import book as books
from contracts import document, mutants, report, running
from contracts.book import ROOT, Book, Facts
from contracts.discharge import Check, Outcome, Setting, Violation
from tests.contracts.test_book import FACTS, HELP, MAIN
from witcert.doctor.sources import kernels_digest

CPU = Setting(torch.device("cpu"), True, False)


def passes(setting: Setting) -> Outcome:
    return Outcome(10, (7,), 0.5, "of it", cells=4, note="All | of them.")


def violated(setting: Setting) -> Outcome:
    raise Violation("cell (3, 1): 0.5 is below 0.6")


def broken(setting: Setting) -> Outcome:
    raise RuntimeError("no such kernel")


def empty(setting: Setting) -> Any:
    return None


def check(name: str, function: Any, *obligations: str) -> Check:
    return Check(name, obligations, "Compares.", function)


@pytest.fixture
def book() -> Book:
    facts = dataclasses.replace(FACTS, checks={"m.ends": check("m.ends", passes, "main.conclusion")})
    return Book((MAIN, HELP), facts, ("WitCert.real_one",))


def results(book: Book) -> list[running.Result]:
    return running.run(book.facts.checks.values(), CPU, lambda r: None)


def build(book: Book, ran: list[running.Result], **kwargs: Any) -> dict[str, Any]:
    usual = {"mutants": [], "every_mutant": ["lost_split"], "tests": None, "seconds": 1.0}
    return report.build(book, CPU, ran, **{**usual, **kwargs})


# --- running ----------------------------------------------------------------------------------------


def test_every_check_runs_whatever_the_others_do() -> None:
    checks = [check(f"m.{f.__name__}", f, "t.h") for f in (violated, broken, empty, passes)]
    seen: list[str] = []
    ran = running.run(checks, CPU, lambda r: seen.append(r.name))
    assert [r.status for r in ran] == ["violated", "error", "error", "passed"]
    assert seen == [c.name for c in checks]
    assert ran[0].message == "cell (3, 1): 0.5 is below 0.6"
    assert "no such kernel" in ran[1].message
    assert "expected Outcome" in ran[2].message
    assert [r.passed for r in ran] == [False, False, False, True]


@pytest.mark.parametrize(
    "outcome", [(0, (), 0.0, ""), (1, (), -1e-9, ""), (1, (), math.nan, ""), (1, (), math.inf, ""), (1, (), 0.0, "", 2)]
)
def test_an_outcome_that_says_nothing_is_a_violation(outcome: tuple[Any, ...]) -> None:
    ran = running.run([check("m.x", lambda setting: Outcome(*outcome), "t.h")], CPU, lambda r: None)
    assert ran[0].status == "violated"


def test_selecting_checks() -> None:
    checks = {n: check(n, passes, "t.h") for n in ("a.x", "a.y", "b.x")}
    assert [c.name for c in running.select(checks, [])] == ["a.x", "a.y", "b.x"]
    assert [c.name for c in running.select(checks, ["a"])] == ["a.x", "a.y"]
    assert [c.name for c in running.select(checks, ["b.x", "a.y"])] == ["a.y", "b.x"]
    for wrong in ("c", "a.z", "a.", ""):
        with pytest.raises(KeyError):
            running.select(checks, [wrong])


# --- the report ---------------------------------------------------------------------------------------


def test_the_report_of_a_green_run(book: Book) -> None:
    data = build(book, results(book), mutants=[mutant("m.ends")])
    assert data["passed"]
    assert data["complete"]
    assert data["interpreted"]
    assert (data["cases"], data["cells"]) == (10, 4)
    assert data["obligations"]["main.conclusion"] == {"how": ["checked"], "checks": {"m.ends": "passed"}}
    assert data["obligations"]["main.h"] == {"how": ["by construction"]}
    assert data["obligations"]["help.h_pos"] == {"how": ["derived main"]}
    assert data["sources"]["kernels"] == kernels_digest()
    assert data["versions"]["torch"] == torch.__version__
    assert json.loads(report.dump(data)) == data


def mutant(killed_by: str | None) -> Any:
    return SimpleNamespace(name="lost_split", what="drops a split", killed_by=killed_by, seconds=1.0, error=None)


@pytest.mark.parametrize(
    "bad",
    [{"mutants": [mutant(None)]}, {"tests": {"exit": 1, "last_line": "1 failed"}}, {"function": violated}, {"none": True}],
)
def test_what_fails_a_run(book: Book, bad: dict[str, Any]) -> None:
    facts = book.facts
    if "function" in bad:
        facts = dataclasses.replace(facts, checks={"m.ends": check("m.ends", bad.pop("function"), "main.conclusion")})
    ran = [] if bad.pop("none", False) else results(Book(book.contracts, facts))
    data = build(book, ran, **bad)
    assert not data["passed"]
    assert "FAILED" in report.last_line(data)


def test_a_part_is_not_a_whole(book: Book) -> None:
    assert not build(book, results(book))["complete"]  # no mutants
    more = {**book.facts.checks, "m.other": check("m.other", passes, "main.h")}
    larger = Book(book.contracts, dataclasses.replace(book.facts, checks=more))
    data = build(larger, results(book), mutants=[mutant("m.ends")])
    assert not data["complete"]
    assert "not all of checks, mutants and tests" in report.last_line(data)


def test_a_report_in_parts(book: Book) -> None:
    first = build(book, results(book), seconds=2.0)
    second = build(book, [], mutants=[mutant("m.ends")], seconds=3.0, earlier=first)
    assert (first["complete"], second["complete"]) == (False, True)
    assert second["seconds"] == 5.0
    assert second["cells"] == 4
    assert second["obligations"]["main.conclusion"]["checks"] == {"m.ends": "passed"}
    assert report.other_machine(second, CPU) == []
    assert report.other_machine({**second, "sources": {}}, CPU) == ["sources"]
    # What failed before and passes now has passed; what is no longer a check is left out.
    failed = {**first["checks"][0], "status": "violated"}
    old = {**first, "checks": [failed, {**failed, "name": "m.gone"}]}
    assert [c["status"] for c in build(book, results(book), earlier=old)["checks"]] == ["passed"]
    assert not build(book, [], earlier=old)["passed"]


def test_an_interpreted_run_says_so(book: Book) -> None:
    line = report.last_line(build(book, results(book)))
    assert "INTERPRETED" in line
    assert "does not count as GPU validation" in line


def test_the_tables(book: Book) -> None:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_results(build(book, results(book), mutants=[mutant(None)]), console)
    text = console.export_text()
    assert "m.ends" in text
    assert "0.5 of it" in text
    assert "SURVIVED" in text
    assert text.splitlines()[-1].startswith("contracts: FAILED: 1 of 1 checks passed; 10 cases, 4 cells; 0 of 1 mutants")


def test_writing_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    report.write(path, "{}\n")
    assert path.read_text() == "{}\n"
    assert list(path.parent.iterdir()) == [path]


def test_reading_a_report(tmp_path: Path) -> None:
    assert report.load(tmp_path / "none.json") is None
    (tmp_path / "old.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="no report of version"):
        report.load(tmp_path / "old.json")


def test_without_git_the_commit_is_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.revision(None)["commit_from"] in ("git", None)
    monkeypatch.setattr(report, "_git", lambda *args: None)
    assert report.revision("abc") == {"commit": "abc", "commit_from": "the command line", "dirty": None}
    assert report.revision(None) == {"commit": None, "commit_from": None, "dirty": None}


@pytest.mark.parametrize(("changed", "given", "expected"), [
    ("", "abc", ("head", "git", False)),
    (" M contracts/report.json", "abc", ("head", "git", False)),
    (" M witcert/meter.py", "abc", ("abc", "the command line", None)),
    (" M witcert/meter.py", None, ("head", "git", True)),
])  # fmt: skip
def test_a_tree_that_lies_over_another_commit_is_what_was_said(
    changed: str, given: str | None, expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_git", lambda *args: "head" if args[0] == "rev-parse" else changed)
    assert tuple(report.revision(given).values()) == expected


# --- the document ---------------------------------------------------------------------------------------


def test_the_document(book: Book) -> None:
    text = document.markdown(book, build(book, results(book), mutants=[mutant("m.ends")]))
    assert "| [`main`](../f.lean#L1) | `h` | by construction, [`load`](../contracts/book.py): it is so |  | | |" in text
    assert "| ⊢ | a number | `m.ends` | 10 | 0.5 of it | CPU, " in text
    assert "| `m.ends` | Compares. All \\| of them. | passed | 10 | 4 | 7 | 0.5 of it |" in text
    assert "| `lost_split` | drops a split | `m.ends` |" in text
    assert "| [`help`](../f.lean#L1) | `h_pos` | `main` |" in text
    assert "`real_one`" in text
    assert "INTERPRETED" in text


def test_the_document_without_a_run(book: Book) -> None:
    text = document.markdown(book, None)
    assert "No run on a GPU is committed." in text
    assert "| `m.ends` | - | - | not run |" in text


def test_a_violation_shows_in_the_document(book: Book) -> None:
    facts: Facts = dataclasses.replace(book.facts, checks={"m.ends": check("m.ends", violated, "main.conclusion")})
    bad = Book(book.contracts, facts)
    text = document.markdown(bad, build(bad, results(bad)))
    assert "**violated**" in text
    assert "**Failed**" in text


def test_the_committed_document_is_in_step() -> None:
    loaded = books.load()
    assert document.PATH.read_text(encoding="utf-8") == document.committed(loaded), "run python -m contracts --write-docs"


def test_the_committed_run_is_one_of_a_gpu() -> None:
    data = report.load()
    assert data is not None, "run python -m contracts on a GPU and commit contracts/report.json"
    assert data["passed"]
    assert data["complete"]
    assert data["full"]
    assert not data["interpreted"]
    assert data["device"] == "cuda"
    assert data["cells"] >= 10**8
    assert len(data["mutants"]) >= 20
    assert {c["name"] for c in data["checks"]} == set(books.read_checks())


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(book: Book, monkeypatch: pytest.MonkeyPatch) -> Book:
    monkeypatch.setattr(books, "load", lambda: book)
    monkeypatch.setattr(mutants, "MUTANTS", (mutant("m.ends"),))
    monkeypatch.setattr(mutants, "run", lambda setting, names: [mutant("m.ends")])
    return book


def test_a_red_book_stops_before_any_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Book:
        raise books.BookError(["main.h: nothing discharges this hypothesis", "x: no contract for this theorem"])

    monkeypatch.setattr(books, "load", load)
    monkeypatch.setattr(running, "run", lambda *a: pytest.fail("something was run"))
    assert command.main(["--device", "cpu"]) == 1
    err = capsys.readouterr().err
    assert "main.h: nothing discharges this hypothesis" in err
    assert "FAILED: 2 reasons" in err


def test_a_run_with_its_report(loaded: Book, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert command.main(["--device", "cpu", "--no-mutants", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "[1/1, " in said.err
    assert said.out.strip().splitlines()[-1].startswith("contracts: ok: 1 of 1 checks passed")
    assert "INTERPRETED" in said.out
    assert json.loads(out.read_text())["checks"][0]["name"] == "m.ends"


def test_a_violation_is_exit_status_1(
    book: Book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = dataclasses.replace(book.facts, checks={"m.ends": check("m.ends", violated, "main.conclusion")})
    monkeypatch.setattr(books, "load", lambda: Book(book.contracts, facts))
    assert command.main(["--device", "cpu", "--no-mutants"]) == 1
    assert "m.ends: violated: cell (3, 1): 0.5 is below 0.6" in capsys.readouterr().out


def test_a_run_that_continues_another(loaded: Book, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    args = ["--device", "cpu", "--resume", str(out), "--out", str(out)]
    assert command.main([*args, "--only", "m"]) == 0
    assert not json.loads(out.read_text())["complete"]
    assert command.main(args) == 0
    said = capsys.readouterr()
    assert said.err.count("m.ends: passed") == 1
    assert said.err.count("mutant lost_split: m.ends") == 1
    assert json.loads(out.read_text())["complete"]
    assert "1 of 1 mutants killed" in said.out
    data = json.loads(out.read_text())
    out.write_text(json.dumps({**data, "versions": {}}))
    assert command.main(args) == 2
    assert "of another machine or of other sources: versions differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "ran", "killed"),
    [([], 1, 1), (["m.ends"], 1, 0), (["mutants"], 0, 1), (["lost_split"], 0, 1), (["m", "lost_split"], 1, 1)],
)
def test_only_what_is_asked_for(loaded: Book, tmp_path: Path, only: list[str], ran: int, killed: int) -> None:
    out = tmp_path / "r.json"
    assert command.main(["--device", "cpu", "--out", str(out), *(["--only", *only] if only else [])]) == 0
    data = json.loads(out.read_text())
    assert (len(data["checks"]), len(data["mutants"])) == (ran, killed)


@pytest.mark.parametrize("args", [["--only", "m.gone"], ["--out", "."]])
def test_what_cannot_run(loaded: Book, args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", *args]) == 2
    assert capsys.readouterr().err.startswith("contracts: error: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_where_one_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cuda"]) == 2
    assert "sees no CUDA GPU" in capsys.readouterr().err


def test_loading_from_a_fresh_process() -> None:
    """The environment of a user: no interpreter asked for, no test session."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    args = [sys.executable, "-m", "contracts", "--load"]
    r = subprocess.run(args, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    assert re.search(r"(\d{3}) theorems, \1 contracts, \d\d checks: they fit", r.stdout)
