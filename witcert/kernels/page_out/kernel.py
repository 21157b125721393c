"""Copies exact keys and values to rows of a store, tags them, and checks rows against their tags.

Only bits are moved (as int16). The tag, defined in :mod:`.reference`, is taken of the registers that are stored, so that
it also covers the way to the host. No arithmetic on numbers, no error budget.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["page_out_kernel", "pair_tag_kernel"]


@triton.jit
def _mix(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _tag(x, start, W: tl.constexpr):
    """Share of a row's tag: int16 [W, 4], the words of 8 bytes that follow ``start`` others -> int64."""
    shift = (tl.arange(0, 4) * 16).to(tl.int64)
    word = tl.sum((x.to(tl.int64) & 0xFFFF) << shift[None, :], 1)  # [W]
    place = (tl.arange(0, W) + start + 1).to(tl.int64) * -7046029254386353131
    return tl.sum(_mix(word + place), 0)


@triton.jit(do_not_specialize=["layer"])
def page_out_kernel(
    k_from, v_from, slots_ptr, k_to, v_to, tags_ptr, wrong_ptr,
    k_token, k_head, v_token, v_head, rows, layer,
    H: tl.constexpr, D: tl.constexpr, TAGS: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """One program: one KV head of one token. MODE 0: copy; 1: count the words that differ; 2: mark rows whose tag differs.

    In mode 2 nothing but the target is read, and ``wrong`` has an entry for each token and head.
    """
    item = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)  # [1]
    head = tl.program_id(1)
    row = tl.load(slots_ptr + item).to(tl.int64)
    inside = (row >= 0) & (row < rows)
    row = tl.where(inside, row, 0)
    W: tl.constexpr = D // 4
    at = tl.arange(0, W)[:, None] * 4 + tl.arange(0, 4)[None, :]  # [W, 4]
    mask = inside[:, None] & (at >= 0)
    target = ((row * H + head) * D)[:, None] + at
    if MODE != 0:
        k_there = tl.load(k_to + target, mask=mask, other=0)
        v_there = tl.load(v_to + target, mask=mask, other=0)
    if MODE == 2:
        k = k_there
        v = v_there
    else:
        k = tl.load(k_from + (item * k_token + head * k_head)[:, None] + at, mask=mask, other=0)
        v = tl.load(v_from + (item * v_token + head * v_head)[:, None] + at, mask=mask, other=0)
    if MODE == 0:
        tl.store(k_to + target, k, mask=mask)
        tl.store(v_to + target, v, mask=mask)
    if MODE == 1:
        wrong = (k != k_there).to(tl.int32) + (v != v_there).to(tl.int32)
        count = tl.sum(tl.sum(wrong, 1), 0)
    if TAGS:
        tag = _mix((row * H + head) * 65536 + layer) + _tag(k, 0, W) + _tag(v, W, W)  # [1]
        place = tags_ptr + row * H + head
        if MODE == 0:
            tl.store(place, tag, mask=inside)
        else:
            differs = (inside & (tl.load(place, mask=inside, other=0) != tag)).to(tl.int32)
            if MODE == 1:
                count += tl.sum(differs, 0)
            else:
                tl.store(wrong_ptr + item * H + head, differs)
    if MODE == 1:
        tl.atomic_add(wrong_ptr, count)


@triton.jit(do_not_specialize=["layer", "there", "rows"])
def pair_tag_kernel(
    k_ptr, v_ptr, at_ptr, rows_ptr, heads_ptr, tags_ptr, wrong_ptr, there, rows, layer,
    H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One program: whether row ``at`` of the data has the tag of (row, head); a pair outside either is wrong."""
    item = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)  # [1]
    at = tl.load(at_ptr + item).to(tl.int64)
    row = tl.load(rows_ptr + item).to(tl.int64)
    head = tl.load(heads_ptr + item).to(tl.int64)
    inside = (at >= 0) & (at < there) & (row >= 0) & (row < rows) & (head >= 0) & (head < H)
    W: tl.constexpr = D // 4
    word = tl.arange(0, W)[:, None] * 4 + tl.arange(0, 4)[None, :]  # [W, 4]
    mask = inside[:, None] & (word >= 0)
    data = (tl.where(inside, at, 0) * D)[:, None] + word
    k = tl.load(k_ptr + data, mask=mask, other=0)
    v = tl.load(v_ptr + data, mask=mask, other=0)
    tag = _mix((row * H + head) * 65536 + layer) + _tag(k, 0, W) + _tag(v, W, W)  # [1]
    known = tl.load(tags_ptr + tl.where(inside, row * H + head, 0), mask=inside, other=0)
    tl.store(wrong_ptr + item, ((known != tag) | (inside == 0)).to(tl.int32))
