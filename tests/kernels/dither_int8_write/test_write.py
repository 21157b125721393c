"""Dithered INT8 writes: the scheme's codes and scales bit for bit, nothing clipped, nothing else touched."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE, POOLS, bits, clone, hard_tokens, poisoned_store, some_slots
from witcert.errors import InputError
from witcert.kernels.dither_int8_write import dither_int8_write, launch
from witcert.kernels.dither_int8_write.reference import int8_write_reference, served_tokens
from witcert.kernels.formats import Dither, PackedStore
from witcert.kernels.rtn_write import rtn_write
from witcert.schemes import Site
from witcert.schemes.dither_int8 import DitherInt8, xi
from witcert.schemes.dither_int8 import dither as draw
from witcert.schemes.rtn import RoundToNearest
from witcert.witness import Bands, witness

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, on NaN and overflow


def assert_same(store: PackedStore, expected: PackedStore) -> None:
    """Every pool but the witness has the expected bits, in every slot."""
    for name in POOLS[:-1]:
        got, want = getattr(store, name), getattr(expected, name)
        assert (got is None) == (want is None)
        if got is not None:
            assert torch.equal(bits(got), bits(want)), name


@pytest.mark.parametrize(
    ("head_dim", "page", "pairs", "dtype", "rounds"),
    [
        (64, 16, 0, torch.float16, 7),
        (64, 1, 4, torch.bfloat16, 10),
        (128, 16, 2, torch.float16, 7),
        (128, 1, 0, torch.float32, 7),
        (128, 16, 16, torch.bfloat16, 7),
        (256, 16, 8, torch.float16, 10),
    ],
)
def test_same_bits_as_the_reference(head_dim: int, page: int, pairs: int, dtype: torch.dtype, rounds: int) -> None:
    """Ragged tile, random slots in stale memory, hard values; slots that nobody wrote keep what they had."""
    dither = Dither(seed=2**63 + 5, layer=77, rounds=rounds)
    store = poisoned_store(2, head_dim, page, 64 // page, dither=dither, pairs=pairs)
    expected = clone(store)
    k, v = hard_tokens(19, 2, head_dim, dtype), hard_tokens(19, 2, head_dim, dtype)
    slots = some_slots(19, 64)
    dither_int8_write(k, v, slots, store)
    int8_write_reference(k, v, slots, expected)
    assert_same(store, expected)


@pytest.mark.parametrize("pairs", [0, 4])
def test_same_bits_as_the_scheme(pairs: int) -> None:
    """Against DitherInt8.encode itself, slot by slot, keys and values."""
    store = poisoned_store(2, 64, 16, 2, dither=Dither(seed=9, layer=3), pairs=pairs)
    k, v = torch.randn(16, 2, 64, device=DEVICE).half() * 5, torch.randn(16, 2, 64, device=DEVICE).half()
    slots = some_slots(16, 32, torch.int32)
    dither_int8_write(k, v, slots, store)
    assert store.epochs is not None
    where = slots.long().cpu()
    epochs = store.epochs.cpu()[where].long() & 0xFFFFFFFF
    rows: tuple[tuple[int, ...], ...] = ()
    if store.outlier_channels is not None:
        rows = tuple(tuple(row[:pairs]) for row in store.outlier_channels.tolist())
    for side, x, codes, scales, outliers in (
        ("k", k, store.k_code, store.k_scale, rows),
        ("v", v, store.v_code, store.v_scale, ()),
    ):
        site = Site(3, side, where, epochs, 9)  # type: ignore[arg-type]
        code, scale = DitherInt8(outlier_pairs=outliers).encode(x.cpu().transpose(0, 1), site)
        page, row = where // 16, where % 16
        assert torch.equal(codes.cpu()[page, :, row].transpose(0, 1), code)
        assert torch.equal(scales.cpu()[page, :, row].transpose(0, 1), scale)


def test_no_code_is_clipped_and_every_residual_is_within_half_a_step() -> None:
    """Over the rationals: n is the nearest integer to x/s + xi up to the rounding that the scheme pays for."""
    store = poisoned_store(1, 64, 16, 1, dither=Dither(seed=4, layer=0))
    k = torch.randn(16, 1, 64, device=DEVICE) * torch.logspace(-30, 6, 16, device=DEVICE)[:, None, None]
    k[:, 0, 7] = k[:, 0, :32].abs().amax(1)  # the maximum itself, twice
    k[:, 0, 8] = -k[:, 0, 7]
    slots = some_slots(16, 16)
    dither_int8_write(k, k, slots, store)
    assert int(store.k_code.abs().max()) <= 127
    assert store.epochs is not None
    where = slots.cpu()
    site = Site(0, "k", where, store.epochs.cpu()[where].long() & 0xFFFFFFFF, 4)
    shift = xi(draw(site, 1, 64), torch.float64)[0]
    code, scale = store.k_code.cpu()[0, 0][where], store.k_scale.cpu()[0, 0][where]
    limit = Fraction(1, 2) + Fraction(1, 2**16)
    for t in range(16):
        for c in range(64):
            s = Fraction(float(scale[t, c // 32]))
            x_hat = s * (int(code[t, c]) - Fraction(float(shift[t, c])))
            assert s > 0
            assert abs(x_hat - Fraction(float(k[t, 0, c]))) <= s * limit


def test_the_dither_is_that_of_the_slot_and_its_epoch() -> None:
    """The same token gets other codes after the slot is reused, other codes in another slot, and the same on replay."""
    store = poisoned_store(1, 64, 16, 2, dither=Dither(seed=1, layer=0))
    assert store.epochs is not None
    store.epochs.zero_()
    k = torch.randn(2, 1, 64, device=DEVICE).half()
    k[1] = k[0]
    slots = torch.tensor([3, 17], device=DEVICE)

    def codes() -> Tensor:
        dither_int8_write(k, k, slots, store)
        return torch.stack((store.k_code[0, 0, 3], store.k_code[1, 0, 1], store.v_code[0, 0, 3])).clone()

    first, again = codes(), codes()
    store.epochs[3] = 1
    reused = codes()
    assert torch.equal(first, again)
    assert torch.equal(reused[1], first[1])
    for a, b in ((first[0], first[1]), (first[0], first[2]), (first[0], reused[0]), (first[2], reused[2])):
        assert int((a != b).sum()) > 0
        assert int((a.int() - b.int()).abs().max()) <= 1


def test_values_without_dither() -> None:
    """Then the values are rounded to the nearest of 255 levels, and only the keys take dither."""
    store = poisoned_store(1, 64, 1, 20, dither=Dither(seed=3, layer=1, values=False))
    expected = clone(store)
    k, v = hard_tokens(16, 1, 64, torch.float16), hard_tokens(16, 1, 64, torch.float16)
    slots = some_slots(16, 20)
    dither_int8_write(k, v, slots, store)
    int8_write_reference(k, v, slots, expected)
    assert_same(store, expected)
    served = RoundToNearest(8)(v[11:].float().cpu().transpose(0, 1)).x_hat.transpose(0, 1)
    code, scale = store.v_code.cpu()[slots.cpu()[11:], :, 0], store.v_scale.cpu()[slots.cpu()[11:], :, 0]
    assert torch.equal(code.float() * scale.float().repeat_interleave(32, -1), served)


def test_padding_is_skipped_and_strides_are_free() -> None:
    """Tokens out of a fused projection; -1 and what lies outside the store is padding, as in a captured graph."""
    store = poisoned_store(2, 64, 16, 2, dither=Dither(seed=3, layer=1), pairs=2)
    expected = clone(store)
    fused = torch.randn(18, 4 * 64, device=DEVICE).half()
    k, v = fused[:, :128].view(18, 2, 64), fused[:, 128:].view(18, 2, 64)
    slots = some_slots(18, 32)
    slots[2], slots[5], slots[17] = -1, 32, 2**40
    dither_int8_write(k, v, slots, store)
    int8_write_reference(k, v, slots, expected)
    assert_same(store, expected)
    dither_int8_write(k[:0], v[:0], slots[:0], store)
    assert_same(store, expected)


def real_witness(k: Tensor, served: Tensor, bands: Bands, gamma: float) -> list[list[list[Fraction]]]:
    """Squares of the two norms are kept apart: [T][H][B] of (residual square, key square)."""
    out = []
    for t in range(k.shape[0]):
        out.append([])
        for h in range(k.shape[1]):
            sums = [[Fraction(0), Fraction(0)] for _ in range(bands.bands)]
            for c, b in enumerate(bands.index.tolist()):
                x, y = Fraction(float(k[t, h, c])), Fraction(float(served[t, h, c]))
                sums[b][0] += (y - x) ** 2
                sums[b][1] += y**2
            out[-1].append(sums)
    return out


def at_least(w: float, residual: Fraction, key: Fraction, gamma: float) -> bool:
    """Whether w >= sqrt(residual) (1 + 2^-20) + gamma sqrt(key), decided over the rationals."""
    a, b = residual * (1 + Fraction(1, 2**20)) ** 2, key * Fraction(gamma) ** 2
    rest = Fraction(w) ** 2 - a - b  # w >= sqrt a + sqrt b iff rest >= 2 sqrt(a b)
    return rest >= 0 and rest**2 >= 4 * a * b


@pytest.mark.parametrize(
    ("pairing", "count", "gamma"), [("half", 16, 0.0), ("adjacent", 8, 2.0**-9), ("half", 8, 1e-6)]
)
def test_the_fused_witness_is_above_the_real_one(pairing: str, count: int, gamma: float) -> None:
    bands = Bands(64, count, pairing)  # type: ignore[arg-type]
    store = poisoned_store(1, 64, 16, 2, dither=Dither(seed=8, layer=2), pairs=2, bands=count, half=pairing == "half")
    k = torch.randn(16, 1, 64, device=DEVICE).bfloat16() * 4
    k[1] *= 2.0**-20
    k[2] = 0.0
    slots = some_slots(16, 32)
    dither_int8_write(k, k, slots, store, bands=bands, gamma=gamma)
    assert store.witness is not None
    w = store.witness[slots // 16, :, slots % 16].cpu()  # [T, H, B]
    served = served_tokens(k, slots, store, "k").cpu()
    real = real_witness(k.cpu(), served, bands, gamma)
    for t in range(16):
        for b in range(count):
            assert at_least(float(w[t, 0, b]), *real[t][0][b], gamma), (t, b)
    floor = witness(k.cpu(), served, bands, gamma)
    next_up = (floor.view(torch.int16) + 1).view(torch.float16)
    assert bool((w >= floor).all())
    assert bool((w <= next_up).all())


def test_the_rounding_of_the_served_key_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rounding of s (n - xi) to float32 is too small to show in fp16, so the launch constants are looked at."""
    seen: list[float] = []
    real = launch.write_factors

    def watched(channels: int, gamma: float, served_error: Fraction) -> tuple[float, float]:
        factors = real(channels, gamma, served_error)
        seen.append(factors[1])
        return factors

    monkeypatch.setattr(launch, "write_factors", watched)
    k = torch.randn(4, 1, 64, device=DEVICE).half()
    dithered = poisoned_store(1, 64, 16, 1, dither=Dither(seed=8, layer=2), bands=16)
    dither_int8_write(k, k, some_slots(4, 16), dithered)
    rtn_write(k, k, some_slots(4, 16), poisoned_store(1, 64, 16, 1, bands=16))
    assert seen[0] >= 2.0**-24
    assert seen[1] == 0.0


def test_no_claim_where_a_group_is_not_finite() -> None:
    store = poisoned_store(2, 64, 16, 2, dither=Dither(seed=8, layer=2), bands=16)
    k = hard_tokens(16, 2, 64, torch.bfloat16)
    slots = some_slots(16, 32)
    dither_int8_write(k, k, slots, store)
    assert store.witness is not None
    w = store.witness[slots // 16, :, slots % 16]
    served = served_tokens(k, slots, store, "k")
    floor = witness(k, served, Bands(64, 16))
    assert bool((w >= floor).all())
    assert bool(w[6, 0].isinf().any())
    assert bool(w[7, 1].isinf().any())
    assert bool(w[3].isinf().all())  # above what a scale can hold
    assert not bool(w[0].any())  # a zero token is exact


def test_refusals() -> None:
    store = poisoned_store(2, 64, 16, 2, dither=Dither(seed=8, layer=2), pairs=2)
    k = torch.zeros(4, 2, 64, device=DEVICE, dtype=torch.float16)
    slots = torch.arange(4, device=DEVICE)
    cases: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("no dither", (k, k, slots, poisoned_store(2, 64, 16, 2)), {}),
        ("k has shape", (k[:, :1], k, slots, store), {}),
        ("k has dtype", (k.double(), k, slots, store), {}),
        ("v is", (k, k[:3], slots, store), {}),
        ("k has strides", (k.transpose(1, 2).contiguous().transpose(1, 2), k, slots, store), {}),
        ("slots", (k, k, slots[:3], store), {}),
        ("slots", (k, k, slots.float(), store), {}),
        ("slots", (k, k, torch.arange(8, device=DEVICE)[::2], store), {}),
        ("outlier", (k.float(), k, slots, store), {}),
        ("witness", (k, k, slots, store), {"gamma": 0.1}),
        ("k is list", ([], k, slots, store), {}),
    ]
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            dither_int8_write(*arguments, **keywords)  # type: ignore[arg-type]
    with_witness = poisoned_store(2, 64, 16, 2, dither=Dither(seed=8, layer=2), bands=16)
    for bands, gamma, match in (
        (Bands(64, 8), 0.0, "bands"),
        (Bands(64, 16, rotary_dim=32), 0.0, "part of the head"),
        (None, -1.0, "gamma"),
        (None, float("nan"), "gamma"),
    ):
        with pytest.raises(InputError, match=match):
            dither_int8_write(k, k, slots, with_witness, bands=bands, gamma=gamma)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("pairs", [0, 16])
def test_real_shape(head_dim: int, pairs: int) -> None:
    store = poisoned_store(8, head_dim, 16, 1024, dither=Dither(seed=11, layer=5), pairs=pairs, bands=16)
    expected = clone(store)
    k, v = hard_tokens(5000, 8, head_dim, torch.bfloat16), hard_tokens(5000, 8, head_dim, torch.bfloat16)
    slots = some_slots(5000, store.slots)
    dither_int8_write(k, v, slots, store, gamma=2.0**-12)
    int8_write_reference(k, v, slots, expected, gamma=2.0**-12)
    assert_same(store, expected)
    assert store.witness is not None
    assert expected.witness is not None
    assert bool((store.witness >= expected.witness).all())
    assert bool((store.witness.view(torch.int16) <= expected.witness.view(torch.int16) + 1).all())


@pytest.mark.gpu
def test_captured_graph_replays_the_eager_bits() -> None:
    """The slots change between replays; nothing in the launch waits for the device (capture would refuse it)."""
    store = poisoned_store(8, 128, 16, 64, dither=Dither(seed=11, layer=5), pairs=4, bands=16)
    expected = clone(store)
    k, v = torch.randn(64, 8, 128, device="cuda").half(), torch.randn(64, 8, 128, device="cuda").half()
    slots = some_slots(64, store.slots)
    dither_int8_write(k, v, slots, clone(store))  # compile
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dither_int8_write(k, v, slots, store)
    for _ in range(3):
        k.copy_(torch.randn_like(k))
        slots.copy_(some_slots(64, store.slots))
        graph.replay()
        dither_int8_write(k, v, slots, expected)
        assert_same(store, expected)
        assert store.witness is not None
        assert expected.witness is not None
        assert torch.equal(store.witness, expected.witness)
