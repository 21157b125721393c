"""What the compiler makes of the step kernel, without a GPU: a small batch gets a small program."""

from __future__ import annotations

from tests.kernels.lowering import output_of
from witcert.kernels.telemetry.step import COLUMNS, OCTAVES, PADDED, tile_of

SCRIPT = """
import sys
from tests.kernels.lowering import build
from witcert.kernels.telemetry.step_kernel import step_kernel as kernel

names = ("H", "HP", "R", "OCTAVES", "COLUMNS", "PADDED")
constants = dict(zip(names, map(int, sys.argv[1:]), strict=True)) | {"MASKED": False}
pointers = {name: "fp32" if name == "stage_ptr" else "i64" for name in kernel.arg_names if name.endswith("_ptr")}
unaligned = set(pointers) - {"stage_ptr", "row_ptr", "state_ptr"}
made = build(kernel, constants, pointers, floats=("tau",), unaligned=unaligned, num_warps=1, enable_fp_fusion=False)
ptx = made.asm["ptx"]
print(sum(line.startswith("\\t") and not line.strip().startswith((".", "//")) for line in ptx.splitlines()))
"""


def instructions(heads: int, padded: int, tile: int) -> int:
    return int(output_of(SCRIPT, heads, padded, tile, OCTAVES, COLUMNS, PADDED))


def test_one_row_is_a_quarter_of_sixteen() -> None:
    """Instructions of a program for 9 heads."""
    assert 4 * instructions(9, *tile_of(1, 9)) < instructions(9, *tile_of(16, 9))
