"""Every mode of the kernel compiles for a Hopper GPU, without one; no lane moves single 16-bit words."""

from __future__ import annotations

from tests.kernels.lowering import output_of

SCRIPT = """
from tests.kernels.lowering import build
from witcert.kernels.page_out.kernel import page_out_kernel as kernel

for d, mode, tags in ((64, 0, 1), (128, 0, 0), (128, 1, 1), (256, 2, 1)):
    constants = dict(H=8, D=d, TAGS=bool(tags), MODE=mode)
    pointers = dict(k_from="i16", v_from="i16", slots_ptr="i64", k_to="i16", v_to="i16", tags_ptr="i64", wrong_ptr="i32")
    aligned = [name for name in kernel.arg_names if name.endswith(("token", "head"))]
    ptx = build(kernel, constants, pointers, aligned=aligned, num_warps=1).asm["ptx"]
    moves = [line.strip() for line in ptx.splitlines() if ("ld.global" in line or "st.global" in line)]
    narrow = [x for x in moves if ".b16" in x.split()[1 if x.startswith("@") else 0]]
    print(d, mode, tags, f"narrow: {narrow}" if narrow else "wide")
"""


def test_every_mode_compiles() -> None:
    lines = output_of(SCRIPT).splitlines()
    assert len(lines) == 4
    assert all(line.endswith("wide") for line in lines), lines
