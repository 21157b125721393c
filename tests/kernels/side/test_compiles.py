"""The kernels compile for a Hopper GPU, without one, in every variant; the kernels of page tags and copies too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from witcert.kernels.page_out.kernel import pair_tag_kernel
from witcert.kernels.page_tag.kernel import page_tag_kernel
from witcert.kernels.side.kernel import split_table_kernel, write_exact_kernel


def build(kernel, pointers, floats, constants):
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = "*" + pointers[name]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name in floats else "i32"
    compile(ASTSource(kernel, signature, constants, attributes), target=GPUTarget("cuda", 90, 32), options=dict(num_warps=1))


names = "k_from v_from k_to v_to witness_ptr"
rows = {**{n: "i16" for n in names.split()}, "slots_ptr": "i64", "map_ptr": "i32", "order_ptr": "i32", "largest_ptr": "i32"}
done = 0
for d, bands, half, permuted, wide, page in ((64, 16, 1, 0, 0, 16), (128, 8, 0, 1, 1, 1), (256, 0, 1, 0, 0, 16)):
    for beside in (True, False):
        build(write_exact_kernel, rows, ("key_factor",), dict(
            H=3, D=d, PAGE=page, BESIDE=beside, BANDS=bands, HALF=bool(half), PERMUTED=bool(permuted), FOLD=bands > 0,
            WIDE=bool(wide), INTERPRET=False))
        done += 1
build(split_table_kernel, dict(table_ptr="i32", lens_ptr="i32", map_ptr="i32", parts_ptr="u8", side_ptr="i32"), (),
      dict(H=3, PAGE=16, T=128))
for word, first in (("i64", True), ("i32", False)):
    build(page_tag_kernel, dict(x_ptr=word, items_ptr="i64", out_ptr="i64"), (),
          dict(H=3, PARTS=6, PER_ROW=16, WORDS=256, FIRST=first, T=256))
build(pair_tag_kernel, dict(k_ptr="i16", v_ptr="i16", at_ptr="i64", rows_ptr="i64", heads_ptr="i64", tags_ptr="i64",
                            wrong_ptr="i32"), (), dict(H=3, D=64))
print(done + 4)
"""


def test_every_variant_compiles() -> None:
    pytest.importorskip("triton.backends.nvidia")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    assert run.stdout.split() == ["10"]
