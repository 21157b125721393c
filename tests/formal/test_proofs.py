"""`make proofs` from end to end: what it writes, what it refuses, and that it never claims what did not run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import proofs
import pytest

from .conftest import GOOD, ROOT, Sample, write

pytestmark = pytest.mark.lean
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def project(good: Sample, tmp_path: Path) -> Sample:
    """A fresh copy of the sound project with everything up to date."""
    copied = Sample(write(tmp_path / "p", GOOD), good.build, good.raw)
    assert copied.proofs("--update") == 0
    return copied


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_update_then_check(project: Sample, capsys: Capture) -> None:
    capsys.readouterr()
    assert project.proofs() == 0
    out = capsys.readouterr().out
    assert "real layer: not compiled here (it needs lake and Mathlib): 0 modules, 2 promised names pending" in out
    assert out.splitlines()[-1].startswith(
        "proofs: ok: 10 theorems checked, 1 of them promised by the specification. Real layer: not compiled here ("
    )
    statements = json.loads((project.root / "formal/statements.json").read_text())
    assert [p["name"] for p in statements["pending"]] == ["WitCert.two_lt", "WitCert.two_real"]
    assert "[`two_lt`](formal/WitCert/Core/Theorems.lean#L6)" in (project.root / "README.md").read_text()
    assert "| `two_real` | the same for real numbers |  | pending |" in (project.root / "docs/proofs.md").read_text()
    assert project.proofs("--check") == 0
    assert "no proof was checked" in capsys.readouterr().out


def test_a_stale_export_is_one_line_with_the_remedy(project: Sample, capsys: Capture) -> None:
    edit(project.root / "formal/statements.json", '"conclusion": "two x < two y"', '"conclusion": "two x = two y"')
    capsys.readouterr()
    assert project.proofs() == 1
    out = capsys.readouterr().out
    stale = [line for line in out.splitlines() if "stale" in line]
    remedy = "run `python3 formal/tools/proofs.py --update` and commit what it changes"
    assert stale == [f"statements: formal/statements.json is stale: {remedy}"]
    assert "WitCert.Core.two_lt: changed: conclusion" in out
    assert out.splitlines()[-1].startswith("proofs: FAILED, 1 problems")
    assert project.proofs("--update") == 0
    assert project.proofs() == 0


@pytest.mark.parametrize("name", ["README.md", "docs/theorems.md", "docs/theorems.tex", "docs/proofs.md"])
@pytest.mark.parametrize("flags", [[], ["--check"]])
def test_a_stale_document(project: Sample, name: str, flags: list[str], capsys: Capture) -> None:
    path = project.root / name
    text = path.read_text()
    assert "oubling" in text
    path.write_text(text.replace("oubling", "rippling"))
    capsys.readouterr()
    assert project.proofs(*flags) == 1
    assert f"documents: stale: {name}: run `python3 formal/tools/proofs.py --update`" in capsys.readouterr().out


def test_a_spoilt_project_is_refused(spoilt: Sample, project: Sample, capsys: Capture) -> None:
    """The mutated definition, statement, proofs and axioms, against what was committed before."""
    shutil.copy(project.root / "formal/statements.json", spoilt.root / "formal/statements.json")
    capsys.readouterr()
    assert spoilt.proofs() == 1
    out = capsys.readouterr().out
    for said in ("WitCert.Core.silent uses sorry", "rests on the axiom WitCert.Core.assumed", "trusts the compiler",
                 "WitCert.Core.bare has no docstring", "the kernel refuses a compiled constant",
                 "two_lt: changed: ", "meaning_hash",
                 "WitCert.Core.two_le: changed: ", "WitCert.Core.four_eq: no longer among the theorems"):  # fmt: skip
        assert said in out
    assert out.splitlines()[-1].startswith("proofs: FAILED")
    before = (spoilt.root / "formal/statements.json").read_text()
    assert spoilt.proofs("--update") == 1
    assert (spoilt.root / "formal/statements.json").read_text() == before  # nothing is refreshed over a failure


def test_core_that_needs_mathlib_or_does_not_compile(project: Sample, capsys: Capture) -> None:
    (project.root / "formal/WitCert/Core.lean").write_text(
        "import Mathlib.Data.Nat.Basic\nimport WitCert.Core.Theorems\n"
    )
    assert project.proofs() == 1
    out = capsys.readouterr().out
    assert "core layer: WitCert.Core could not be compiled: needs Mathlib" in out
    assert "the proofs do not compile; nothing was compared" in out
    assert "ok: " not in out.splitlines()[-1]


def test_a_promised_name_that_core_lacks(project: Sample, capsys: Capture) -> None:
    edit(project.root / "formal/spec_names.json", '"two_lt"', '"two_gt"')
    assert project.proofs() == 1
    assert "WitCert.Core.two_gt is promised and no public theorem has that name" in capsys.readouterr().out


def test_a_name_of_the_real_layer_that_is_written_stays_pending(project: Sample, capsys: Capture) -> None:
    (project.root / "formal/WitCert.lean").write_text(
        "import Mathlib.Data.Real.Basic\n\ntheorem two_real : True := trivial\n"
    )
    assert project.proofs("--update") == 0
    pending = json.loads((project.root / "formal/statements.json").read_text())["pending"]
    assert {"name": "WitCert.two_real", "layer": "real", "file": "formal/WitCert.lean"} in pending
    assert "not compiled here (it needs lake and Mathlib): 1 modules" in capsys.readouterr().out


def test_what_is_missing_is_one_line(
    project: Sample, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert proofs.main(["--root", str(project.root), "--lean", "lake"]) == 2
    monkeypatch.setenv("WITCERT_LEAN_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert project.proofs() == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "install elan" in errors[0]
    assert "npm is not on PATH" in errors[1]
    (project.root / "formal/statements.json").unlink()
    assert project.proofs("--check") == 2


def test_this_repository_s_documents_are_up_to_date() -> None:
    assert proofs.main(["--root", str(ROOT), "--check"]) == 0
