"""Philox4x32 in PyTorch, bit for bit what ``tl.philox`` returns, and the counter that names one draw of dither.

Philox is a keyed bijection on 128-bit counters (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
3", SC 2011); 7 rounds are the fewest that pass BigCrush, 10 are the authors' default. The draw depends on the counter
and the key alone, so neither batching nor order nor replay changes it.

Counter layout, four 32-bit words (every field has a range of its own, so two sites never share a counter):

    word 0   slot                 0 .. 2^32 - 1
    word 1   epoch of the slot    0 .. 2^32 - 1
    word 2   layer << 16 | head   0 .. 2^16 - 1 each; head is the KV head
    word 3   side << 16 | block   side 0 for keys, 1 for values; block = channel // 16, below 2^16

The key is the seed, 64 bits, low word first. One draw is 128 bits, one byte for each of the block's 16 channels:
channel 16 * block + 4 * w + b takes byte b (from the least significant) of word w.
"""

from __future__ import annotations

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["CHANNELS_PER_DRAW", "draw_bytes", "pack_counter", "philox4x32"]

CHANNELS_PER_DRAW = 16

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_2 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85


def _mul_hi_lo(constant: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of constant * x for words held in int64; every intermediate stays below 2^50."""
    upper, lower = constant * (x >> 16), constant * (x & 0xFFFF)  # constant * x = upper * 2^16 + lower
    high = (upper + (lower >> 16)) >> 16
    low = (((upper & 0xFFFF) << 16) + lower) & _MASK
    return high, low


def philox4x32(counter: Tensor, key: int, rounds: int = 10) -> Tensor:
    """Four random words for each counter.

    Parameters
    ----------
    counter : int64 [..., 4], words in 0..2^32 - 1.
    key : seed, 0..2^64 - 1.
    rounds : 7 or 10 (any number from 1 to 16 is computed).

    Returns
    -------
    words : int64 [..., 4] in 0..2^32 - 1, the four results of ``tl.philox(key, *counter, rounds)`` read as uint32.
    """
    if not isinstance(counter, Tensor) or counter.dtype != torch.int64 or counter.shape[-1:] != (4,):
        raise InputError("counter is not an int64 tensor [..., 4]")
    if counter.numel() and not (int(counter.min()) >= 0 and int(counter.max()) <= _MASK):
        raise InputError(f"counter spans {int(counter.min())}..{int(counter.max())}; expected words in 0..2^32 - 1")
    if not 0 <= key < 2**64:
        raise InputError(f"key={key!r} is outside 0..2^64 - 1")
    if not 1 <= rounds <= 16:
        raise InputError(f"rounds={rounds!r} is outside 1..16")
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key & _MASK, key >> 32
    for _ in range(rounds):
        high0, low0 = _mul_hi_lo(_MULTIPLIER_0, c0)
        high2, low2 = _mul_hi_lo(_MULTIPLIER_2, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return torch.stack((c0, c1, c2, c3), -1)


def _field(name: str, value: int | Tensor, bits: int) -> Tensor:
    field = torch.as_tensor(value, dtype=torch.int64)
    if field.numel() and not (int(field.min()) >= 0 and int(field.max()) < 2**bits):
        raise InputError(f"{name} spans {int(field.min())}..{int(field.max())}; expected 0..2^{bits} - 1")
    return field


def pack_counter(
    *, layer: int | Tensor, head: int | Tensor, slot: Tensor, epoch: Tensor, block: Tensor, side: int | Tensor
) -> Tensor:
    """The counter of one draw (layout above), int64 [..., 4]; the fields broadcast against each other."""
    words = (
        _field("slot", slot, 32),
        _field("epoch", epoch, 32),
        (_field("layer", layer, 16) << 16) | _field("head", head, 16),
        (_field("side", side, 1) << 16) | _field("block", block, 16),
    )
    zeros = words[0] & words[1] & words[2] & words[3] & 0  # in the common shape
    return torch.stack([word | zeros for word in words], -1)


def draw_bytes(words: Tensor) -> Tensor:
    """The 16 bytes of each draw in channel order: words [..., 4] -> int64 [..., 16] in 0..255."""
    shifts = torch.arange(0, 32, 8, device=words.device)
    return ((words[..., None] >> shifts) & 0xFF).flatten(-2)
