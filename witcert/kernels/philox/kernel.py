"""A Triton kernel that writes out ``tl.philox``, so that the reference can be compared with it bit for bit."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from witcert.errors import InputError

__all__ = ["philox_dump"]


@triton.jit
def _philox_dump_kernel(counter_ptr, out_ptr, seed, count, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = row < count
    at = row.to(tl.int64) * 4
    c0 = tl.load(counter_ptr + at, mask=inside, other=0).to(tl.uint32, bitcast=True)  # [BLOCK]
    c1 = tl.load(counter_ptr + at + 1, mask=inside, other=0).to(tl.uint32, bitcast=True)  # [BLOCK]
    c2 = tl.load(counter_ptr + at + 2, mask=inside, other=0).to(tl.uint32, bitcast=True)  # [BLOCK]
    c3 = tl.load(counter_ptr + at + 3, mask=inside, other=0).to(tl.uint32, bitcast=True)  # [BLOCK]
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, c2, c3, ROUNDS)
    tl.store(out_ptr + at, r0.to(tl.int32, bitcast=True), mask=inside)
    tl.store(out_ptr + at + 1, r1.to(tl.int32, bitcast=True), mask=inside)
    tl.store(out_ptr + at + 2, r2.to(tl.int32, bitcast=True), mask=inside)
    tl.store(out_ptr + at + 3, r3.to(tl.int32, bitcast=True), mask=inside)


def philox_dump(counter: Tensor, key: int, rounds: int = 10) -> Tensor:
    """The words of :func:`witcert.kernels.philox.reference.philox4x32`, computed by Triton.

    counter is int64 [N, 4] with words in 0..2^32 - 1, on the device that Triton runs on (any, under its interpreter).
    """
    if counter.dtype != torch.int64 or counter.ndim != 2 or counter.shape[1] != 4:
        raise InputError(f"counter is {counter.dtype} {tuple(counter.shape)}; expected int64 [N, 4]")
    if not 0 <= key < 2**64:
        raise InputError(f"key={key!r} is outside 0..2^64 - 1")
    if not 1 <= rounds <= 16:
        raise InputError(f"rounds={rounds!r} is outside 1..16")
    narrow = torch.where(counter < 2**31, counter, counter - 2**32).to(torch.int32).contiguous()
    out = torch.empty_like(narrow)
    count = narrow.shape[0]
    if count:
        # The key goes in as a tensor would: an int64 with the same bits, whatever its size.
        signed = key if key < 2**63 else key - 2**64
        _philox_dump_kernel[(triton.cdiv(count, 128),)](narrow, out, signed, count, ROUNDS=rounds, BLOCK=128)
    return out.to(torch.int64) & 0xFFFFFFFF
