"""Copies exact keys and values from pinned host memory into slots, writes their witnesses, and reads both back.

Only bits are moved (as int16), so every number arrives as it was stored, NaN payloads included. A row that is exact has
the residual 0 (theorem ``repair_exact``); what is left of its witness is ``RU16(G |k_b|)``, which pays for the dot product
of the kernel that reads it (``arith_fold``). Error budget: docs/error-budget.md, section M; with gamma 0 there is none.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.rounding import widen
from witcert.kernels.witness_write.kernel import band_witness, pool_row

__all__ = ["page_in_kernel"]


@triton.jit
def page_in_kernel(
    k_from, v_from, rows_ptr, k_to, v_to, slots_ptr, heads_ptr, witness_ptr, marks_ptr, order_ptr, wrong_ptr,
    rows, slots, marks, key_factor,
    H: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BANDS: tl.constexpr, PAGE: tl.constexpr,
    HALF: tl.constexpr, PERMUTED: tl.constexpr, FOLD: tl.constexpr, WIDE: tl.constexpr, ONE_HEAD: tl.constexpr,
    CHECK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """One program: one item, a token with all its KV heads (HEADS: H rounded up to a power of two) or with one.

    FOLD: the witness is that of an exact key, otherwise 0. WIDE: the words are bfloat16. PERMUTED: channels are taken in
    the order of the bands. CHECK: compare instead of copying, and add the number of 16-bit words that differ to ``wrong``.
    """
    item = tl.program_id(0)
    head = tl.arange(0, HEADS)  # [HEADS]
    same = item + tl.zeros([HEADS], tl.int32)  # [HEADS], every entry the item
    row = tl.load(rows_ptr + same).to(tl.int64)
    slot = tl.load(slots_ptr + same).to(tl.int64)
    mark = tl.load(marks_ptr + same).to(tl.int64)
    inside = (row >= 0) & (row < rows) & (slot >= 0) & (slot < slots)
    if ONE_HEAD:
        head += tl.load(heads_ptr + same).to(tl.int32)
    valid = inside & (head >= 0) & (head < H)
    channel = tl.arange(0, D)[None, :]
    if PERMUTED:
        channel = tl.load(order_ptr + channel)
    source = (row * H + head)[:, None] * D + channel  # [HEADS, D]
    target = (slot * H + head)[:, None] * D + channel
    mask = valid[:, None]
    k = tl.load(k_from + source, mask=mask, other=0)
    v = tl.load(v_from + source, mask=mask, other=0)
    if CHECK:
        wrong = (k != tl.load(k_to + target, mask=mask, other=0)).to(tl.int32)
        wrong += (v != tl.load(v_to + target, mask=mask, other=0)).to(tl.int32)
        count = tl.sum(tl.sum(wrong, 1), 0)
    else:
        tl.store(k_to + target, k, mask=mask)
        tl.store(v_to + target, v, mask=mask)
    if BANDS > 0:
        marked = (valid & (mark >= 0) & (mark < marks))[:, None]
        at = pool_row(tl.where((mark >= 0) & (mark < marks), mark, 0).to(tl.int32), head, H, PAGE).to(
            tl.int64
        )  # [HEADS]
        place = witness_ptr + at[:, None] * BANDS + tl.arange(0, BANDS)[None, :]  # [HEADS, BANDS]
        w = tl.zeros([HEADS, BANDS], tl.int16)
        if FOLD:
            key = widen(k.to(tl.bfloat16 if WIDE else tl.float16, bitcast=True))  # [HEADS, D]
            w = band_witness(
                tl.zeros_like(key), key, 0.0, key_factor, HEADS, D, BANDS, HALF, True, WIDE, INTERPRET
            ).to(tl.int16, bitcast=True)  # fmt: skip
        if CHECK:
            left = tl.load(place, mask=marked, other=0)
            count += tl.sum(tl.sum((marked & (left != w)).to(tl.int32), 1), 0)
        else:
            tl.store(place, w, mask=marked)
    if CHECK:
        tl.atomic_add(wrong_ptr, count)
