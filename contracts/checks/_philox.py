"""Philox4x32 and its inverse, written from the published algorithm alone, to check the package's streams against.

Philox is a bijection on 128-bit counters for each key: every round is undone by the inverses of its two odd
multipliers modulo 2^32. A counter that is recovered from the words of a draw is therefore *the* counter of that draw,
and sites whose recovered counters differ have draws of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["forward", "inverse", "known_answers", "site_bytes", "site_counter"]

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)


def _low(constant: int, x: Tensor) -> Tensor:
    """constant * x mod 2^32, for words in int64."""
    return (((constant * (x >> 16)) & 0xFFFF) << 16) + constant * (x & 0xFFFF) & WORD


def _high(constant: int, x: Tensor) -> Tensor:
    """floor(constant * x / 2^32), for words in int64."""
    return (constant * (x >> 16) + (constant * (x & 0xFFFF) >> 16)) >> 16


def _keys(seed: int, rounds: int) -> list[tuple[int, int]]:
    low, high = seed & WORD, seed >> 32
    return [((low + i * STEPS[0]) & WORD, (high + i * STEPS[1]) & WORD) for i in range(rounds)]


def forward(counter: Tensor, seed: int, rounds: int) -> Tensor:
    """The four words of each counter: int64 [..., 4] in 0..2^32 - 1, to the same."""
    a, b, c, d = counter.unbind(-1)
    for left, right in _keys(seed, rounds):
        a, b, c, d = (
            _high(MULTIPLIERS[1], c) ^ b ^ left, _low(MULTIPLIERS[1], c),
            _high(MULTIPLIERS[0], a) ^ d ^ right, _low(MULTIPLIERS[0], a),
        )  # fmt: skip
    return torch.stack((a, b, c, d), -1)


def inverse(words: Tensor, seed: int, rounds: int) -> Tensor:
    """The counter of each draw: int64 [..., 4], to the same."""
    undo = [pow(m, -1, 1 << 32) for m in MULTIPLIERS]
    a, b, c, d = words.unbind(-1)
    for left, right in reversed(_keys(seed, rounds)):
        first, third = _low(undo[0], d), _low(undo[1], b)
        second, fourth = a ^ _high(MULTIPLIERS[1], third) ^ left, c ^ _high(MULTIPLIERS[0], first) ^ right
        a, b, c, d = first, second, third, fourth
    return torch.stack((a, b, c, d), -1)


def known_answers() -> bool:
    """Whether both directions agree with the three known answers that the authors publish for ten rounds."""
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    cases = (
        ((0,) * 4, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (1 << 64) - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, 0x299F31D0A4093822, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    )
    for counter, seed, words in cases:
        there, back = torch.tensor(counter), torch.tensor(words)
        if not torch.equal(forward(there, seed, 10), back) or not torch.equal(inverse(back, seed, 10), there):
            return False
    return True


def site_counter(layer: int, heads: int, slots: Tensor, epochs: Tensor, side: int, blocks: int) -> Tensor:
    """The counters of tokens: int64 [T, heads, blocks, 4]; word 2 is layer, head, word 3 side, block, 16 bits each."""
    shape = (len(slots), heads, blocks)
    head = torch.arange(heads, device=slots.device)[None, :, None]
    block = torch.arange(blocks, device=slots.device)[None, None, :]
    words = (slots[:, None, None] & WORD, epochs[:, None, None] & WORD, layer << 16 | head, side << 16 | block)
    return torch.stack([word.expand(shape) for word in words], -1)


def site_bytes(
    seed: int, layer: int, heads: int, slots: Tensor, epochs: Tensor, side: int, head_dim: int, rounds: int
) -> Tensor:
    """The dither bytes of tokens, int64 [T, heads, head_dim] in 0..255; slots and epochs are int64 [T].

    Byte b of word w of the draw of block ``channel // 16`` dithers channel 16 * block + 4 * w + b.
    """
    words = forward(site_counter(layer, heads, slots, epochs, side, head_dim // 16), seed, rounds)
    shift = torch.arange(0, 32, 8, device=slots.device)
    return (words[..., None] >> shift & 0xFF).flatten(-3)
