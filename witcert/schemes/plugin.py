"""Load schemes of the user's own from a Python file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from witcert.errors import InputError, WitCertError


def load_plugin(file: Path) -> None:
    """Run a Python file that registers schemes; InputError names the file when it is missing or fails."""
    if not file.is_file():
        raise InputError(f"plugin: no such file {file}")
    spec = importlib.util.spec_from_file_location(f"witcert_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"plugin: {file} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except WitCertError as e:
        raise InputError(f"plugin: {file}: {e}") from e
    except Exception as e:
        raise InputError(f"plugin: {file} failed: {type(e).__name__}: {e}") from e
