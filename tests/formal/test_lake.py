"""The path through lake, with a stand-in for lake: which commands it runs, and what each failure does."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import proofs
import pytest

from .conftest import GOOD, ROOT, Sample, write

pytestmark = pytest.mark.lean

STAND_IN = """#!{python}
import json, os, shutil, sys
args = sys.argv[1:]
with open({log!r}, "a") as f:
    f.write(" ".join(args) + "\\n")
if any(word in args for word in os.environ.get("FAIL", "").split()):
    sys.exit(1)
if "--run" in args:
    shutil.copy({raw!r}, args[args.index("--closure") + 1])
"""


@pytest.fixture
def lake(good: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A project, and a function that runs proofs.py on it with the stand-in; returns the status and the commands."""
    root = write(tmp_path / "p", GOOD)
    raw, log, tool = tmp_path / "raw.json", tmp_path / "log", tmp_path / "bin" / "lake"
    raw.write_text(json.dumps(good.raw))
    tool.parent.mkdir()
    tool.write_text(STAND_IN.format(python=sys.executable, log=str(log), raw=str(raw)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    def run(*args: str, fail: str = "", real: bool = False) -> tuple[int, list[str]]:
        monkeypatch.setenv("FAIL", fail)
        log.unlink(missing_ok=True)
        if real:
            (root / "formal/WitCert.lean").write_text(
                "import Mathlib.Data.Nat.Basic\n/-- Doubling. -/\ntheorem x : True := trivial\n"
            )
            changed = copy.deepcopy(good.raw)
            changed["modules"].append("WitCert")
            changed["theorems"].append({**changed["theorems"][0], "name": "WitCert.two_real", "module": "WitCert"})
            changed["constants"].append(
                {**changed["constants"][0], "name": "WitCert.two_real", "module": "WitCert", "uses": []}
            )
            raw.write_text(json.dumps(changed))
        status = proofs.main(["--root", str(root), "--build", str(tmp_path / "build"), *args])
        return status, log.read_text().splitlines()

    return root, run


def test_core_alone_does_not_fetch_mathlib(lake, capsys: pytest.CaptureFixture[str]) -> None:
    root, run = lake
    status, commands = run("--update")
    assert status == 0
    assert commands[0] == "-R -Kcore=true build WitCertCore"
    assert commands[1] == "-R -Kcore=true env sh -c command -v leanchecker"
    assert commands[2] == "-R -Kcore=true env leanchecker WitCert.Core"
    assert commands[3].startswith(f"-R -Kcore=true env lean --run {root}/formal/Export.lean --closure ")
    assert commands[3].endswith(" WitCert.Core")
    assert "real layer: not compiled here" in capsys.readouterr().out


def test_both_layers(lake, capsys: pytest.CaptureFixture[str]) -> None:
    root, run = lake
    status, commands = run("--update", real=True)
    assert status == 0
    assert commands[:4] == ["exe cache get", "build WitCertCore WitCert", "env sh -c command -v leanchecker",
                            "env leanchecker WitCert.Core WitCert"]  # fmt: skip
    out = capsys.readouterr().out
    assert "not compiled here" not in out
    statements = json.loads((root / "formal/statements.json").read_text())
    assert [t["name"] for t in statements["theorems"] if t["layer"] == "real"] == ["WitCert.two_real"]
    assert [p["name"] for p in statements["pending"]] == ["WitCert.two_lt"]
    # Without lake the Real layer stays committed as it was, and is not said to have been checked.
    assert proofs.main(["--root", str(root), "--build", str(ROOT / "formal/.lake/tests/good"), "--lean", "wasm"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("proofs: ok: 10 theorems checked")
    assert "Real layer: not compiled here" in last


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("build", "lake build failed"),
        ("leanchecker", "leanchecker rejected a compiled module"),
        ("--run", "the export failed"),
    ],
)
def test_each_failure_fails(lake, capsys: pytest.CaptureFixture[str], fail: str, said: str) -> None:
    _, run = lake
    status, _ = run("--update", fail=fail)
    assert status == 1
    out = capsys.readouterr().out
    assert said in out
    assert out.splitlines()[-1].startswith("proofs: FAILED")


def test_a_toolchain_without_leanchecker_says_so(lake, capsys: pytest.CaptureFixture[str]) -> None:
    _, run = lake
    assert run("--update", fail="sh")[0] == 0
    assert "not replayed by leanchecker" in capsys.readouterr().out.splitlines()[-1]


def test_no_cache_of_mathlib(lake, capsys: pytest.CaptureFixture[str]) -> None:
    _, run = lake
    assert run(fail="cache", real=True)[0] == 2
    assert "`--lean wasm` checks the Core layer" in capsys.readouterr().err
