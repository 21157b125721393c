"""Content tags of pages, as :mod:`witcert.kernels.page_out.reference` defines them. Bits only, no error budget."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.page_out.kernel import _mix

__all__ = ["page_tag_kernel"]


@triton.jit(do_not_specialize=["items", "before", "part"])
def page_tag_kernel(
    x_ptr, items_ptr, out_ptr, layer_stride, page_stride, head_stride, row_stride, items, before, part,
    H: tl.constexpr, PARTS: tl.constexpr, PER_ROW: tl.constexpr, WORDS: tl.constexpr, FIRST: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """One program: one (layer, page) and KV head; adds its words, which follow ``before`` others, to the tag of the part.

    Strides in words. FIRST: the tag begins here, with its site.
    """
    item = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    layer = tl.load(items_ptr + item)
    page = tl.load(items_ptr + items + item)
    base = x_ptr + layer * layer_stride + page * page_stride + head.to(tl.int64) * head_stride
    sums = tl.zeros([T], tl.int64)
    for start in range(0, WORDS, T):
        word = start + tl.arange(0, T)
        there = word < WORDS
        x = tl.load(base + (word // PER_ROW) * row_stride + word % PER_ROW, mask=there, other=0).to(tl.int64)
        place = (word + before + 1).to(tl.int64) * -7046029254386353131
        sums += tl.where(there, _mix(x + place), 0)
    tag = tl.sum(sums, 0)
    out = out_ptr + (item * H + head) * PARTS + part
    if FIRST:
        tag += _mix(((page * H + head) * 65536 + layer) * 16 + part)
    else:
        tag += tl.load(out)
    tl.store(out, tag)
