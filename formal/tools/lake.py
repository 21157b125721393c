"""Build and export with an ordinary Lean, through lake."""

import json
import subprocess
import tempfile
from pathlib import Path

import export
from problem import Problem

NO_MATHLIB = ["-R", "-Kcore=true"]  # configure the package without its dependency (lakefile.lean)


def _run(cmd: list[str], cwd: Path, quiet: bool = False) -> subprocess.CompletedProcess:
    print("$ " + " ".join(["lake", *cmd[1:]]), flush=True)
    return subprocess.run(
        cmd,
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        stdin=subprocess.DEVNULL,
    )


def build_and_export(lake: str, root: Path, program: Path, mods: dict, run) -> dict | None:
    """Build both layers (Core alone where there is no Real module), replay them, export; `run` collects failures."""
    real = export.REAL.root in mods
    flags = [] if real else NO_MATHLIB
    if real and _run([lake, "exe", "cache", "get"], root).returncode != 0:
        raise Problem(
            "`lake exe cache get` failed, so Mathlib is not here; `--lean wasm` checks the Core layer without it"
        )
    roots = [export.CORE.root, *([export.REAL.root] if real else [])]
    libraries = ["WitCertCore", *(["WitCert"] if real else [])]
    if _run([lake, *flags, "build", *libraries], root).returncode != 0:
        run.problem("lake build failed")
        return None
    replay(lake, flags, root, roots, run)
    with tempfile.TemporaryDirectory(prefix="witcert-export-") as tmp:
        out = Path(tmp) / "export.json"
        cmd = [lake, *flags, "env", "lean", "--run", str(program), "--closure", str(out), *roots]
        if _run(cmd, root).returncode != 0 or not out.is_file():
            run.problem("the export failed")
            return None
        raw = json.loads(out.read_text(encoding="utf-8"))
    run.real_compiled = real
    print(
        f"{'both layers' if real else 'core layer'}: {len(raw['modules'])} modules built with Lean {raw['lean'].split(',')[0]}",
        flush=True,
    )
    return raw


def replay(lake: str, flags: list[str], root: Path, roots: list[str], run) -> None:
    """Send every compiled constant through the kernel once more, where this toolchain brings leanchecker."""
    probe = _run([lake, *flags, "env", "sh", "-c", "command -v leanchecker"], root, quiet=True)
    if probe.returncode != 0:
        print("leanchecker is not part of this toolchain: not replayed", flush=True)
        run.notes.append("not replayed by leanchecker")
    elif _run([lake, *flags, "env", "leanchecker", *roots], root).returncode != 0:
        run.problem("leanchecker rejected a compiled module")
    else:
        print("leanchecker: every constant replayed", flush=True)
