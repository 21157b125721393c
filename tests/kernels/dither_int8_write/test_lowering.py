"""What the compiler makes of the INT8 write kernel, without a GPU: that it compiles, spills nothing, needs no barrier."""

from __future__ import annotations

import pytest

from tests.kernels.lowering import output_of

SCRIPT = """
import sys
from tests.kernels.lowering import build
from witcert.kernels.dither_int8_write.kernel import int8_write_kernel as kernel
from witcert.kernels.dither_int8_write.launch import TILE

dtype, d, pairs, bands, half, rounds = sys.argv[1], *map(int, sys.argv[2:])
constants = dict(H=4, D=d, PAGE=16, K_ROUNDS=rounds, V_ROUNDS=rounds, PAIRS=pairs, BANDS=bands, HALF=bool(half),
                 FOLD=bands > 0, TINY=dtype != "fp16", ROWS=TILE // d, INTERPRET=False)
pointers = dict(k_ptr=dtype, v_ptr=dtype, slots_ptr="i64", epochs_ptr="i32", k_code="i8", v_code="i8", k_scale="fp16",
                v_scale="fp16", outlier_ptr="fp16", channels_ptr="i32", witness_ptr="fp16")
strides = ("k_token", "k_head", "v_token", "v_head", "tokens", "slots")
floats = [name for name in kernel.arg_names if "factor" in name]
made = build(kernel, constants, pointers, floats=floats, aligned=strides, num_warps=1)
print("barriers", made.asm["ptx"].count("bar.sync"), "local", made.asm["ptx"].count(".local"))
"""


@pytest.mark.parametrize(
    ("dtype", "d", "pairs", "bands", "half", "rounds"),
    [
        ("fp16", 128, 4, 16, 1, 7), ("fp16", 64, 4, 16, 1, 7), ("bf16", 256, 16, 8, 1, 10), ("bf16", 64, 2, 16, 0, 7),
        ("fp32", 128, 0, 16, 1, 0), ("fp16", 64, 0, 0, 1, 0),
    ],
)  # fmt: skip
def test_compiles_without_barriers(dtype: str, d: int, pairs: int, bands: int, half: int, rounds: int) -> None:
    """A program is one warp: what crosses lanes goes by shuffles."""
    assert output_of(SCRIPT, dtype, d, pairs, bands, half, rounds).split() == ["barriers", "0", "local", "0"]
