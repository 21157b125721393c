"""New rows of repaired pages, exact beside what the cache's format keeps of them; and the table of the two.

Both look up ``map[page, KV head]``, the page in which the exact rows of a repaired pair lie, or -1. Only bits are moved (as
int16): a row that is exact has the residual 0 (theorem ``repair_exact``), and its witness is ``RU16(G |k_b|)``, which pays
for the dot product of the kernel that reads it (``arith_fold``). Error budget: docs/error-budget.md, section M.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from witcert.kernels.rounding import widen
from witcert.kernels.witness_write.kernel import band_witness

__all__ = ["split_table_kernel", "write_exact_kernel"]


@triton.jit(do_not_specialize=["slots", "rows"])
def write_exact_kernel(
    k_from, v_from, slots_ptr, map_ptr, k_to, v_to, witness_ptr, order_ptr, largest_ptr,
    k_token, k_head, v_token, v_head, slots, rows, key_factor,
    H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BESIDE: tl.constexpr, BANDS: tl.constexpr, HALF: tl.constexpr,
    PERMUTED: tl.constexpr, FOLD: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """One program: one KV head of one new token.

    BESIDE: the target store has one head, else all of them and the map names the page itself. ``largest`` [H] takes the bits
    of the largest key norm, rounded up; a norm that is no number counts as infinite.
    """
    item = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)  # [1]
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + item).to(tl.int64)
    inside = (slot >= 0) & (slot < slots)
    slot = tl.where(inside, slot, 0)
    page = tl.load(map_ptr + slot // PAGE * H + head, mask=inside, other=-1).to(tl.int64)
    row = tl.where(page >= 0, page, 0) * PAGE + slot % PAGE
    there = inside & (page >= 0) & (row < rows)
    if not BESIDE:
        row = row * H + head
    channel = tl.arange(0, D)[None, :]
    if PERMUTED:
        channel = tl.load(order_ptr + channel)
    mask = inside[:, None] & (channel >= 0)
    k = tl.load(k_from + (item * k_token + head * k_head)[:, None] + channel, mask=mask, other=0)  # [1, D]
    key = widen(k.to(tl.bfloat16 if WIDE else tl.float16, bitcast=True))
    # 1 + 2^-15 covers squares, sum and root; a square that underflows belongs to a channel below 2^-63.
    norm = tl.sqrt(tl.sum(key * key, 1)) * 1.0000305 + 3.5e-18  # [1]
    norm = tl.where(norm < float("inf"), norm, float("inf"))
    tl.atomic_max(largest_ptr + head + tl.zeros([1], tl.int32), norm.to(tl.int32, bitcast=True), mask=inside)
    mask = there[:, None] & (channel >= 0)
    v = tl.load(v_from + (item * v_token + head * v_head)[:, None] + channel, mask=mask, other=0)
    tl.store(k_to + row[:, None] * D + channel, k, mask=mask)
    tl.store(v_to + row[:, None] * D + channel, v, mask=mask)
    if BANDS > 0:
        w = tl.zeros([1, BANDS], tl.int16)
        if FOLD:
            w = band_witness(
                tl.zeros_like(key), key, 0.0, key_factor, 1, D, BANDS, HALF, True, WIDE, INTERPRET
            ).to(tl.int16, bitcast=True)  # fmt: skip
        tl.store(witness_ptr + row[:, None] * BANDS + tl.arange(0, BANDS)[None, :], w, mask=there[:, None])


@triton.jit(do_not_specialize=["columns", "pages"])
def split_table_kernel(
    table_ptr, lens_ptr, map_ptr, parts_ptr, side_ptr, columns, pages,
    H: tl.constexpr, PAGE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """One program: T columns of the table of one sequence, for one KV head."""
    row = tl.program_id(0)
    sequence, head = row // H, row % H
    column = tl.program_id(1) * T + tl.arange(0, T)  # [T]
    there = column < columns
    page = tl.load(table_ptr + sequence.to(tl.int64) * columns + column, mask=there, other=-1)
    # entries past the end belong to somebody else
    known = there & (column * PAGE < tl.load(lens_ptr + sequence)) & (page >= 0) & (page < pages)
    side = tl.load(map_ptr + tl.where(known, page, 0) * H + head, mask=known, other=-1)
    out = row.to(tl.int64) * columns + column
    tl.store(parts_ptr + out, (side >= 0).to(tl.uint8), mask=there)
    tl.store(side_ptr + out, tl.where(side >= 0, side, 0), mask=there)
