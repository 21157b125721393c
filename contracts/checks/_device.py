"""Kernels that write out what device functions of the package return, so that checks can look at them one by one."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from witcert.kernels.philox.device import dither_words, split_seed
from witcert.kernels.rounding import ru16, ru16_code

__all__ = ["both_round_ups", "draw_words", "round_up_half"]


@triton.jit
def _ru16_kernel(x_ptr, out_ptr, code_ptr, count, BLOCK: tl.constexpr, INTERPRET: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0)
    tl.store(out_ptr + at, ru16(x), mask=at < count)
    tl.store(code_ptr + at, ru16_code(x, INTERPRET).to(tl.int16), mask=at < count)


@triton.jit
def _draw_words_kernel(
    slot_ptr, epoch_ptr, out_ptr, seed, layer, count,
    H: tl.constexpr, SIDES: tl.constexpr, BLOCKS: tl.constexpr, ROUNDS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    side = tl.program_id(2)
    item = tl.program_id(1).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)  # [ITEMS]
    inside = item < count
    slot = tl.load(slot_ptr + item, mask=inside, other=0)[:, None]
    epoch = tl.load(epoch_ptr + item, mask=inside, other=0)[:, None]
    block = tl.arange(0, BLOCKS)[None, :]
    k0, k1 = split_seed(seed)
    w0, w1, w2, w3 = dither_words(k0, k1, slot, epoch, layer, head, side, block, ROUNDS)  # [ITEMS, BLOCKS]
    at = out_ptr + (((item[:, None] * H + head) * SIDES + side) * BLOCKS + block) * 4
    mask = inside[:, None] & (block < BLOCKS)
    tl.store(at, w0.to(tl.int32, bitcast=True), mask=mask)
    tl.store(at + 1, w1.to(tl.int32, bitcast=True), mask=mask)
    tl.store(at + 2, w2.to(tl.int32, bitcast=True), mask=mask)
    tl.store(at + 3, w3.to(tl.int32, bitcast=True), mask=mask)


def round_up_half(x: Tensor) -> Tensor:
    """``rounding.ru16`` of float32 x of any shape, on the device of x."""
    return both_round_ups(x)[0]


def both_round_ups(x: Tensor) -> tuple[Tensor, Tensor]:
    """``rounding.ru16`` and ``rounding.ru16_code`` of float32 x of any shape, both float16, on the device of x."""
    out, code = (torch.empty(x.shape, dtype=torch.float16, device=x.device) for _ in range(2))
    grid = (triton.cdiv(x.numel(), 8192),)
    _ru16_kernel[grid](
        x, out, code.view(torch.int16), x.numel(), BLOCK=8192, INTERPRET=triton.knobs.runtime.interpret
    )
    return out, code


def draw_words(slots: Tensor, epochs: Tensor, seed: int, layer: int, heads: int, blocks: int, rounds: int) -> Tensor:
    """Words of the draws of int32 slots and epochs [N]: int64 [N, heads, 2 sides, blocks, 4] in 0..2^32 - 1."""
    count = len(slots)
    out = torch.empty(count, heads, 2, blocks, 4, dtype=torch.int32, device=slots.device)
    signed = seed if seed < 2**63 else seed - 2**64
    _draw_words_kernel[(heads, triton.cdiv(count, 64), 2)](
        slots, epochs, out, signed, layer, count, H=heads, SIDES=2, BLOCKS=blocks, ROUNDS=rounds, ITEMS=64
    )
    return out.long() & 0xFFFFFFFF
