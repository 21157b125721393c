"""Every mode of the kernel compiles for a Hopper GPU, without one; no lane moves single 16-bit words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from witcert.kernels.page_out.kernel import page_out_kernel as kernel

for d, mode, tags in ((64, 0, 1), (128, 0, 0), (128, 1, 1), (256, 2, 1)):
    constants = dict(H=8, D=d, TAGS=bool(tags), MODE=mode)
    pointers = dict(k_from="i16", v_from="i16", slots_ptr="i64", k_to="i16", v_to="i16", tags_ptr="i64", wrong_ptr="i32")
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = "*" + pointers[name]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
            if name.endswith(("token", "head")):
                attributes[(i,)] = [["tt.divisibility", 16]]
    made = compile(ASTSource(kernel, signature, constants, attributes), target=GPUTarget("cuda", 90, 32),
                   options=dict(num_warps=1))
    ptx = made.asm["ptx"]
    moves = [line.strip() for line in ptx.splitlines() if ("ld.global" in line or "st.global" in line)]
    print(d, mode, tags, "narrow" if any(".b16" in x.split()[1 if x.startswith("@") else 0] for x in moves) else "wide")
    print(*moves, file=sys.stderr)
"""


def test_every_mode_compiles() -> None:
    pytest.importorskip("triton.backends.nvidia")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    lines = run.stdout.splitlines()
    assert len(lines) == 4
    assert not any(line.endswith("narrow") for line in lines), run.stderr
