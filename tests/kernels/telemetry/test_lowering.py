"""What the compiler makes of the step kernel, without a GPU: a small batch gets a small program."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from witcert.kernels.telemetry.step import COLUMNS, OCTAVES, PADDED, tile_of

SCRIPT = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from witcert.kernels.telemetry.step_kernel import step_kernel as kernel

names = ("H", "HP", "R", "OCTAVES", "COLUMNS", "PADDED")
constants = dict(zip(names, map(int, sys.argv[1:]), strict=True)) | {"MASKED": False}
signature, attributes = {}, {}
for i, name in enumerate(kernel.arg_names):
    if name in constants:
        signature[name] = "constexpr"
    elif name.endswith("_ptr"):
        signature[name] = "*fp32" if name == "stage_ptr" else "*i64"
        if name in ("stage_ptr", "row_ptr", "state_ptr"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    else:
        signature[name] = "fp32" if name == "tau" else "i32"
source = ASTSource(kernel, signature, constants, attributes)
options = dict(num_warps=1, enable_fp_fusion=False)
ptx = compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
print(sum(line.startswith("\\t") and not line.strip().startswith((".", "//")) for line in ptx.splitlines()))
"""


def instructions(heads: int, padded: int, tile: int) -> int:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, (heads, padded, tile, OCTAVES, COLUMNS, PADDED))],
        env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return int(run.stdout)


def test_one_row_is_a_quarter_of_sixteen() -> None:
    """Instructions of a program for 9 heads."""
    pytest.importorskip("triton.backends.nvidia")
    assert 4 * instructions(9, *tile_of(1, 9)) < instructions(9, *tile_of(16, 9))
