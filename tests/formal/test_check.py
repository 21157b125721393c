"""Compiling modules: every failure is one, and nothing unchanged is compiled again."""

from __future__ import annotations

from pathlib import Path

import leanrun
import pytest

from .conftest import Sample, build_dir

pytestmark = pytest.mark.lean


def test_what_is_unchanged_is_not_compiled_again(good: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    checker = good.checker
    report = checker.check(["WitCert.Core"])
    assert not report.failed
    assert all(r.cached for r in report.results.values())
    before = {m: checker.digest(m) for m in ("WitCert.Core.Defs", "WitCert.Core.Theorems", "WitCert.Core")}
    changed = good.checker
    changed.mods["WitCert.Core.Theorems"].text += "-- more\n"
    after = {m: changed.digest(m) for m in before}
    assert after["WitCert.Core.Defs"] == before["WitCert.Core.Defs"]
    assert after["WitCert.Core.Theorems"] != before["WitCert.Core.Theorems"]
    assert after["WitCert.Core"] != before["WitCert.Core"]  # a change reaches all that import it
    assert "3 modules checked, 0 failed" in capsys.readouterr().out


def test_parts_of_an_older_compilation_are_removed(lean: None, tmp_path: Path) -> None:
    """What a file with a `module` header leaves beside its .olean would be loaded with the new one, and kill Lean."""
    (tmp_path / "P").mkdir()
    (tmp_path / "P/A.lean").write_text("theorem P.a : 1 + 1 = 2 := rfl\n")
    (tmp_path / "P/B.lean").write_text("import P.A\ntheorem P.b : 1 + 1 = 2 := P.a\n")
    build = tmp_path / "build"
    stale = [build / "P" / f"A{s}" for s in (".olean.private", ".olean.server", ".ir")]
    stale[0].parent.mkdir(parents=True)
    for path in stale:
        path.write_bytes(b"from another text")
    assert leanrun.main(["check", str(tmp_path), "--build", str(build)]) == 0
    assert not any(p.exists() for p in stale)


def test_a_program_runs(good: Sample) -> None:
    """An ordinary file, with its definitions compiled: `#eval` works."""
    report = good.checker.check(["WitCert.Core.Defs"])
    assert "12" in [m[4].strip() for m in report.results["WitCert.Core.Defs"].messages if m[0] == "information"]


def test_each_failure_is_caught(lean: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "P/False.lean": "import Init\ntheorem P.f : 1 + 1 = 3 := by decide\n",
        "P/Sorry.lean": "theorem P.s : 1 + 1 = 3 := by sorry\n",
        "P/After.lean": "import P.False\ntheorem P.g : True := trivial\n",
        "P/Syntax.lean": "theorem P.t : 1 = 1 :=\n  by )\n",
        "P/NoFile.lean": "import P.Nowhere\n",
        "P/Needs.lean": "import Mathlib.Data.Nat.Basic\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    rc = leanrun.main(["check", str(tmp_path), "--build", str(build_dir("bad"))])
    out = capsys.readouterr().out
    assert rc == 1
    for said in ("P/False.lean:2:30: error: Tactic `decide` proved", "P/Sorry.lean:1:8: warning: declaration uses `sorry`",
                 "P.Sorry: FAILED (sorry)", "P/After.lean:1:0: error: not checked: its import P.False failed",
                 "P/Syntax.lean:2:", "import P.Nowhere: no such file in the project",
                 "P.Needs: skipped: needs Mathlib", "5 modules checked, 5 failed, 1 skipped"):  # fmt: skip
        assert said in out


def test_an_unknown_module_or_folder(tmp_path: Path, lean: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert leanrun.main(["check", str(tmp_path), "No.Such"]) == 2
    assert leanrun.main(["check", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err.count("leanrun: error: no such") == 2
