"""A copy of the package and of its checks in a temporary folder, with one text replaced, imported in their place.

Only one overlay may be open at a time, and nothing else may import the package meanwhile.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from contracts.mutants.model import Mutant

__all__ = ["ROOT", "mutated", "overlay"]

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("witcert", "contracts")


def mutated(mutant: Mutant) -> str:
    """The text of the mutant's file with the fault in it; ValueError unless the old text is there exactly once."""
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.file} has the text of mutant {mutant.name} {count} times; expected once")
    return text.replace(mutant.old, mutant.new)


def _ours() -> list[str]:
    return [name for name in sys.modules if name.split(".", 1)[0] in PACKAGES]


@contextmanager
def overlay(mutant: Mutant | None) -> Iterator[ModuleType]:
    """The module ``contracts.discharge`` of a copy with the fault (None: no fault), all of its checks registered."""
    text = None if mutant is None else mutated(mutant)
    kept = {name: sys.modules.pop(name) for name in _ours()}
    bytecode = sys.dont_write_bytecode
    with tempfile.TemporaryDirectory(prefix="witcert-mutant-") as folder:
        try:
            for package in PACKAGES:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / package, Path(folder) / package, ignore=ignored)
            (Path(folder) / "formal").symlink_to(ROOT / "formal", target_is_directory=True)
            if mutant is not None and text is not None:
                (Path(folder) / mutant.file).write_text(text, encoding="utf-8")
            sys.dont_write_bytecode = True
            sys.path.insert(0, folder)
            importlib.invalidate_caches()
            discharge = importlib.import_module("contracts.discharge")
            importlib.import_module("contracts.checks")
            found = Path(str(sys.modules["witcert"].__file__))
            if not found.is_relative_to(folder):
                raise RuntimeError(f"the copy was not imported, but {found}")
            yield discharge
        finally:
            for name in _ours():
                del sys.modules[name]
            sys.modules.update(kept)
            if folder in sys.path:
                sys.path.remove(folder)
            sys.dont_write_bytecode = bytecode
            importlib.invalidate_caches()
