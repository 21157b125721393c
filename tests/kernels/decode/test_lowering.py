"""What the compiler makes of stage 1, without a GPU: the order of registers that two pieces of PTX rely on.

PTX that takes four elements at a time takes them in the order in which a thread holds them. The kernel builds those four
with ``tl.join``, which puts them side by side; this compiles for a Hopper GPU and reads the layouts that came out.
"""

from __future__ import annotations

import re

import pytest

from tests.kernels.lowering import output_of

SCRIPT = """
import sys
from tests.kernels.lowering import build
from witcert.kernels.decode.stage1 import stage1_kernel as kernel

tile, warps, stages, values = map(int, sys.argv[1:])
constants = dict(HKV=4, G=7, GP=8, D=128, T=tile, PAGE=16, PACKED=True, DITHER_K=True, DITHER_V=bool(values), ROUNDS=7,
                 OUT=0, METER=3, NB=16, ADJACENT=False, CAP=False, WARPS=warps, INTERPRET=False, STAGES=stages,
                 PART=-1)
pointers = dict(q_ptr="fp16", k_ptr="i8", ks_ptr="i64", v_ptr="i32" if values else "i16", vs_ptr="i64", w_ptr="fp16",
                ko_ptr="fp16", outlier_ptr="i32", epoch_ptr="i32", page_ptr="i32", len_ptr="i32", part_ptr="u8", out_ptr="fp32",
                stat_ptr="fp32")
floats = set(kernel.arg_names) - set(pointers) - {"page_stride", "splits", "window", "key0", "key1", "layer"}
made = build(kernel, constants, pointers, floats=floats, num_warps=warps, num_stages=stages, enable_fp_fusion=False)
print(made.asm["ttgir"])
"""


@pytest.mark.parametrize(("tile", "warps", "stages", "values"), [(32, 1, 5, 1), (64, 4, 2, 0)])
def test_four_bytes_of_a_word_stay_together(tile: int, warps: int, stages: int, values: int) -> None:
    out = output_of(SCRIPT, tile, warps, stages, values)
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", out, re.MULTILINE))
    found = 0
    for line in out.splitlines():
        if "elementwise_inline_asm" not in line or "packed_element = 4" not in line:
            continue
        found += 1
        assert "pure = false" in line
        for name in set(re.findall(r"tensor<[\dx]+x\w+, (#\w+)>", line)):
            assert re.search(r"sizePerThread = \[.*2, 2\]", layouts[name]), (name, layouts[name])
            assert "order = [3, 2, 1, 0]" in layouts[name], (name, layouts[name])
    assert found == (8 if values else 4)
