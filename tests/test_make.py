"""A target whose tool is missing says so in one line and fails; nothing that was not run is reported as passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the target runs")
@pytest.mark.parametrize("command", [["contracts", "--device", "cuda"], ["benchmarks"]])
def test_gpu_targets_without_a_gpu(command: list[str]) -> None:
    r = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert r.returncode == 2
    lines = (r.stdout + r.stderr).strip().splitlines()
    assert len(lines) == 1
    assert "GPU" in lines[0]
    assert "passed" not in lines[0]


def test_every_target_is_in_the_help() -> None:
    out = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "proofs", "contracts", "bench", "lint", "report"):
        assert f"make {target}" in out


def test_an_old_python_is_refused_in_one_line(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    r = subprocess.run(
        ["make", "test", f"PYTHON={fake}", f"VENV={tmp_path / 'v'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert r.returncode != 0
    assert "Python >= 3.10" in r.stdout + r.stderr
    assert not (tmp_path / "v").exists()
