"""Which experiments there are: the modules of this package that define ``NAME``."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from types import ModuleType
from typing import Any

import experiments
from witcert.errors import InputError

__all__ = ["REQUIRED", "discover", "find"]

REQUIRED = ("NAME", "QUESTION", "METHOD", "LIMITS", "run", "draw", "describe")
INFRASTRUCTURE = frozenset({"__main__", "common", "registry", "record", "style", "readme", "supervise"})


def discover() -> tuple[dict[str, Any], dict[str, str]]:
    """The experiments by name, in the order of the README, and the modules that could not be imported with their reason."""
    found: list[ModuleType] = []
    broken: dict[str, str] = {}
    for info in pkgutil.iter_modules(experiments.__path__):
        if info.name in INFRASTRUCTURE:
            continue
        try:
            module = importlib.import_module(f"experiments.{info.name}")
        except Exception:
            broken[info.name] = traceback.format_exc()
            continue
        if not hasattr(module, "NAME"):
            continue
        missing = [name for name in REQUIRED if not hasattr(module, name)]
        if missing:
            broken[info.name] = f"experiments/{info.name}.py defines no {', '.join(missing)}"
        else:
            found.append(module)
    found.sort(key=lambda m: (getattr(m, "ORDER", 100), m.NAME))
    return {m.NAME: m for m in found}, broken


def find(name: str) -> Any:
    """The experiment of that name."""
    known, broken = discover()
    if name in known:
        return known[name]
    if name in broken or name.replace("-", "_") in broken:
        raise InputError(f"experiment {name!r} cannot be imported:\n{broken.get(name) or broken[name.replace('-', '_')]}")
    raise InputError(f"no experiment {name!r}; there are {', '.join(known)}")
