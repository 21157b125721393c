"""Philox4x32: published vectors, bit-exactness to Triton, the counter's layout, and sanity of the stream."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.philox.kernel import philox_dump
from witcert.kernels.philox.reference import draw_bytes, pack_counter, philox4x32

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# rounds, counter, key, output: the known-answer vectors that Random123 publishes for philox4x32.
KNOWN = [
    (7, "00000000 00000000 00000000 00000000", "00000000 00000000", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, "00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
KEYS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0x299F31D0A4093822]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def some_counters(count: int) -> Tensor:
    counter = torch.randint(0, 2**32, (count, 4))
    counter[: min(count, 16)] = torch.cartesian_prod(*[torch.tensor([0, 2**32 - 1])] * 4)[: min(count, 16)]
    return counter


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN)
def test_known_answers(rounds: int, counter: str, key: str, expected: str) -> None:
    low, high = words(key)
    given_counter = torch.tensor([words(counter)])
    assert philox4x32(given_counter, low | high << 32, rounds).tolist() == [words(expected)]
    assert philox_dump(given_counter.to(DEVICE), low | high << 32, rounds).tolist() == [words(expected)]


@pytest.mark.parametrize("rounds", [7, 10])
@pytest.mark.parametrize("key", KEYS)
def test_bit_exact_to_triton(key: int, rounds: int) -> None:
    counter = some_counters(300)  # not a multiple of the block
    assert torch.equal(philox_dump(counter.to(DEVICE), key, rounds).cpu(), philox4x32(counter, key, rounds))


def test_against_python_integers() -> None:
    """The split multiplication against Python's own, word by word."""
    counter, key = some_counters(64), 0x0123456789ABCDEF
    for row, out in zip(counter.tolist(), philox4x32(counter, key, 7).tolist(), strict=True):
        c, k = list(row), [key & 0xFFFFFFFF, key >> 32]
        for _ in range(7):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k[0], q % 2**32, (p >> 32) ^ c[3] ^ k[1], p % 2**32]
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        assert out == c


FIELDS = st.tuples(
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 1),
)


def packed(fields: tuple[int, ...]) -> list[int]:
    layer, head, slot, epoch, block, side = fields
    counter = pack_counter(
        layer=layer,
        head=head,
        slot=torch.tensor(slot),
        epoch=torch.tensor(epoch),
        block=torch.tensor(block),
        side=side,
    )
    out: list[int] = counter.tolist()
    return out


@given(FIELDS)
def test_counter_can_be_unpacked(fields: tuple[int, ...]) -> None:
    """A layout that can be inverted gives different sites different counters."""
    slot, epoch, word2, word3 = packed(fields)
    assert (word2 >> 16, word2 & 0xFFFF, slot, epoch, word3 & 0xFFFF, word3 >> 16) == fields
    assert all(0 <= w < 2**32 for w in (slot, epoch, word2, word3))


@pytest.mark.parametrize("field", range(6))
def test_counter_refuses_what_does_not_fit(field: int) -> None:
    limits = [2**16, 2**16, 2**32, 2**32, 2**16, 2]
    for bad in (limits[field], -1):
        fields = [0] * 6
        fields[field] = bad
        with pytest.raises(InputError, match=["layer", "head", "slot", "epoch", "block", "side"][field]):
            packed(tuple(fields))


def test_bad_arguments() -> None:
    good = torch.zeros(1, 4, dtype=torch.int64)
    for function in (philox4x32, philox_dump):
        with pytest.raises(InputError, match="key"):
            function(good, 2**64, 7)
        with pytest.raises(InputError, match="rounds"):
            function(good, 0, 0)
        with pytest.raises(InputError, match="counter"):
            function(good.to(torch.int32), 0, 7)
        with pytest.raises(InputError, match="counter"):
            function(good[:, :3], 0, 7)
    with pytest.raises(InputError, match="counter spans"):
        philox4x32(good - 1, 0, 7)


def test_empty_and_byte_order() -> None:
    assert philox_dump(torch.zeros(0, 4, dtype=torch.int64, device=DEVICE), 0).shape == (0, 4)
    drawn = draw_bytes(torch.tensor([[0x03020100, 0x07060504, 0x0B0A0908, 0x0F0E0D0C]]))
    assert drawn.tolist() == [list(range(16))]


def stream(count: int, rounds: int) -> Tensor:
    """Bytes [count, 16] of consecutive slots, the most regular counters that a cache produces."""
    slot = torch.arange(count)
    zero = torch.zeros_like(slot)
    counter = pack_counter(layer=3, head=1, slot=slot, epoch=zero, block=zero, side=0)
    return draw_bytes(philox4x32(counter, 20260101, rounds))


@pytest.mark.parametrize("rounds", [7, 10])
def test_bytes_are_uniform_and_uncorrelated(rounds: int) -> None:
    drawn = stream(1 << 15, rounds)
    for channel in range(16):
        counts = drawn[:, channel].bincount(minlength=256).double()
        expected = drawn.shape[0] / 256
        chi2 = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255), (channel, chi2)
    centred = drawn.double() - 127.5
    centred /= centred.square().mean().sqrt()
    count = drawn.shape[0]
    between_channels = centred.T @ centred / count - torch.eye(16)
    between_slots = centred[:-1].T @ centred[1:] / (count - 1)
    for correlation in (between_channels, between_slots):
        assert float(correlation.abs().max()) < 5.5 / math.sqrt(count)


def test_every_bit_of_counter_and_key_matters() -> None:
    """Flipping any one of 192 input bits flips about half of the 128 output bits."""
    counter = torch.randint(0, 2**32, (200, 4))

    def bits(x: Tensor) -> Tensor:
        return (x[..., None] >> torch.arange(32)) & 1

    base = bits(philox4x32(counter, 12345, 7))
    for word in range(4):
        for bit in range(32):
            flip = torch.zeros(4, dtype=torch.int64)
            flip[word] = 1 << bit
            share = (bits(philox4x32(counter ^ flip, 12345, 7)) != base).double().mean()
            assert abs(float(share) - 0.5) < 0.02
    for bit in range(64):
        share = (bits(philox4x32(counter, 12345 ^ 1 << bit, 7)) != base).double().mean()
        assert abs(float(share) - 0.5) < 0.02
