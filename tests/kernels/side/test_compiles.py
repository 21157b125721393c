"""The kernels compile for a Hopper GPU, without one, in every variant; the kernels of page tags and copies too."""

from __future__ import annotations

from tests.kernels.lowering import output_of

SCRIPT = """
from tests.kernels.lowering import build
from witcert.kernels.page_out.kernel import pair_tag_kernel
from witcert.kernels.page_tag.kernel import page_tag_kernel
from witcert.kernels.side.kernel import split_table_kernel, write_exact_kernel

names = "k_from v_from k_to v_to witness_ptr"
rows = {**{n: "i16" for n in names.split()}, "slots_ptr": "i64", "map_ptr": "i32", "order_ptr": "i32", "largest_ptr": "i32"}
done = 0
for d, bands, half, permuted, wide, page in ((64, 16, 1, 0, 0, 16), (128, 8, 0, 1, 1, 1), (256, 0, 1, 0, 0, 16)):
    for beside in (True, False):
        constants = dict(
            H=3, D=d, PAGE=page, BESIDE=beside, BANDS=bands, HALF=bool(half), PERMUTED=bool(permuted), FOLD=bands > 0,
            WIDE=bool(wide), INTERPRET=False)
        build(write_exact_kernel, constants, rows, floats=("key_factor",), num_warps=1)
        done += 1
build(split_table_kernel, dict(H=3, PAGE=16, T=128),
      dict(table_ptr="i32", lens_ptr="i32", map_ptr="i32", parts_ptr="u8", side_ptr="i32"), num_warps=1)
for word, first in (("i64", True), ("i32", False)):
    build(page_tag_kernel, dict(H=3, PARTS=6, PER_ROW=16, WORDS=256, FIRST=first, T=256),
          dict(x_ptr=word, items_ptr="i64", out_ptr="i64"), num_warps=1)
pairs = dict(k_ptr="i16", v_ptr="i16", at_ptr="i64", rows_ptr="i64", heads_ptr="i64", tags_ptr="i64", wrong_ptr="i32")
build(pair_tag_kernel, dict(H=3, D=64), pairs, num_warps=1)
print(done + 4)
"""


def test_every_variant_compiles() -> None:
    assert output_of(SCRIPT).split() == ["10"]
