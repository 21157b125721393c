"""Compiling a kernel for a Hopper GPU without one: what the scripts of these tests share.

The interpreter that CI runs kernels with has replaced Triton's language by the time a test runs, so that a compilation needs a
process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build(
    kernel: Any, constants: Mapping[str, Any], pointers: Mapping[str, str], *, floats: Collection[str] = (),
    aligned: Collection[str] = (), unaligned: Collection[str] = (), **options: Any,
) -> Any:  # fmt: skip
    """The kernel compiled for compute capability 9.0, with these options (``num_warps`` and the like).

    constants : what is built in. pointers : element type of each pointer, all multiples of 16 bytes but the unaligned ones.
    floats, aligned : of the other arguments, which are float32 and which are multiples of 16; else int32.
    """
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = "*" + pointers[name] if name in pointers else "fp32" if name in floats else "i32"
        if name in aligned or (name in pointers and name not in unaligned):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, dict(constants), attributes)
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def output_of(script: str, *arguments: object) -> str:
    """Standard output of the script, run where Triton compiles; skips where its NVIDIA backend is not installed."""
    pytest.importorskip("triton.backends.nvidia")
    run = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:] + run.stdout[-1000:]
    return run.stdout
