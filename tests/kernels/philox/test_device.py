"""The device functions of the dither stream: bit for bit the reference, tl.philox and the published vectors."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from witcert.kernels.formats import Dither
from witcert.kernels.philox.device import (
    dither_bytes,
    dither_tile,
    dither_value,
    dither_words,
    key_words,
    philox4x32_words,
    split_seed,
)
from witcert.kernels.philox.kernel import philox_dump
from witcert.kernels.philox.reference import draw_bytes, pack_counter, philox4x32
from witcert.schemes import Site
from witcert.schemes.dither_int8 import dither, xi

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

KNOWN = [
    (7, "00000000 00000000 00000000 00000000", "00000000 00000000", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, "00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@triton.jit
def _words(counter, out, low, high, seed, count, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    c0 = tl.load(counter + row * 4, mask=inside, other=0).to(tl.uint32)
    c1 = tl.load(counter + row * 4 + 1, mask=inside, other=0).to(tl.uint32)
    c2 = tl.load(counter + row * 4 + 2, mask=inside, other=0).to(tl.uint32)
    c3 = tl.load(counter + row * 4 + 3, mask=inside, other=0).to(tl.uint32)
    k0, k1 = key_words(low, high)
    s0, s1 = split_seed(seed)
    k0 = tl.where(s0 == k0, k0, 12345)  # both forms of a seed must agree
    k1 = tl.where(s1 == k1, k1, 12345)
    r0, r1, r2, r3 = philox4x32_words(k0, k1, c0, c1, c2, c3, ROUNDS)
    tl.store(out + row * 4, r0.to(tl.int64), mask=inside)
    tl.store(out + row * 4 + 1, r1.to(tl.int64), mask=inside)
    tl.store(out + row * 4 + 2, r2.to(tl.int64), mask=inside)
    tl.store(out + row * 4 + 3, r3.to(tl.int64), mask=inside)


@triton.jit
def _dither(
    slots, epochs, out, values, tile, low, high, layer, head, side,
    D: tl.constexpr, T: tl.constexpr, ROUNDS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, T)
    slot = tl.load(slots + row)
    epoch = tl.load(epochs + row)
    k0, k1 = key_words(low, high)
    block = tl.arange(0, D // 16)
    w0, w1, w2, w3 = dither_words(k0, k1, slot[:, None], epoch[:, None], layer, head, side, block[None, :], ROUNDS)
    byte = dither_bytes(w0, w1, w2, w3, T, D)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + at, byte.to(tl.int32))
    tl.store(values + at, dither_value(byte))
    tl.store(tile + at, dither_tile(w0, w1, w2, w3, T, D, INTERPRET))


def device_words(counter: Tensor, key: int, rounds: int) -> Tensor:
    out = torch.empty_like(counter)
    signed = key if key < 2**63 else key - 2**64
    _words[(triton.cdiv(len(counter), 64),)](
        counter, out, *Dither(key, 0).words, signed, len(counter), ROUNDS=rounds, BLOCK=64
    )
    return out


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN)
def test_published_vectors(rounds: int, counter: str, key: str, expected: str) -> None:
    low, high = (int(word, 16) for word in key.split())
    given = torch.tensor([[int(word, 16) for word in counter.split()]], device=DEVICE)
    assert device_words(given, low | high << 32, rounds).tolist() == [[int(word, 16) for word in expected.split()]]


@pytest.mark.parametrize("rounds", [7, 10])
@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0x299F31D0A4093822])
def test_same_words_as_the_reference_and_tl_philox(key: int, rounds: int) -> None:
    counter = torch.randint(0, 2**32, (200, 4))
    counter[:16] = torch.cartesian_prod(*[torch.tensor([0, 2**32 - 1])] * 4)
    words = device_words(counter.to(DEVICE), key, rounds).cpu()
    assert torch.equal(words, philox4x32(counter, key, rounds))
    assert torch.equal(words, philox_dump(counter.to(DEVICE), key, rounds).cpu())


@pytest.mark.parametrize("rounds", [7, 10])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("side", ["k", "v"])
def test_same_bytes_in_channel_order(head_dim: int, side: str, rounds: int) -> None:
    """Slots out of order and near 2^31 and 2^32, epochs, layer and head all enter as the scheme says."""
    slots = torch.tensor([7, 0, 2**31, 2**32 - 1, 2**31 - 1, 3, 2, 12345])
    epochs = torch.tensor([0, 5, 2**32 - 1, 1, 2**31, 0, 0, 2**16])
    site = Site(layer=65535, side=side, slots=slots, epochs=epochs, seed=2**64 - 3, head0=65534)  # type: ignore[arg-type]
    out = torch.empty(8, head_dim, dtype=torch.int32, device=DEVICE)
    values, tile = (torch.empty(8, head_dim, device=DEVICE) for _ in range(2))
    key = Dither(2**64 - 3, 0).words
    arguments = (slots.to(DEVICE), epochs.to(DEVICE), out, values, tile, *key, 65535, 65534, int(side == "v"))
    _dither[(1,)](*arguments, D=head_dim, T=8, ROUNDS=rounds, INTERPRET=DEVICE == "cpu")
    expected = dither(site, 1, head_dim, rounds)[0]
    assert torch.equal(out.cpu().long(), expected)
    assert torch.equal(values.cpu(), xi(expected))
    assert torch.equal(tile.cpu(), xi(expected))


def test_the_draw_of_one_site_by_hand() -> None:
    counter = pack_counter(layer=2, head=1, slot=torch.tensor(9), epoch=torch.tensor(4), block=torch.tensor(3), side=1)
    assert counter.tolist() == [9, 4, 2 << 16 | 1, 1 << 16 | 3]
    site = Site(layer=2, side="v", slots=torch.tensor([9]), epochs=torch.tensor([4]), seed=11, head0=1)
    assert torch.equal(dither(site, 1, 64)[0, 0, 48:], draw_bytes(philox4x32(counter, 11, 7)))
