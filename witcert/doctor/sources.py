"""Digests of sources, by which a recorded run can be told from the code that is here now."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["digest", "kernels_digest", "repository"]


def digest(folder: Path) -> str:
    """sha256 over the names and contents of all Python files below a folder."""
    h = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        h.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        h.update(content)
    return h.hexdigest()


def kernels_digest(package: Path | None = None) -> str:
    """The digest of ``witcert/kernels``; package is the folder of the witcert package, by default the running one."""
    return digest((package or Path(__file__).resolve().parent.parent) / "kernels")


def repository() -> Path | None:
    """The repository that the running package belongs to; None if it was installed without one."""
    root = Path(__file__).resolve().parent.parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "formal").is_dir() else None
