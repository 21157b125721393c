"""Page-out: the bits arrive with their tags, nothing else changes, and every damaged bit is found."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE, hard_tokens, some_slots
from witcert.errors import InputError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_in import page_in, page_in_mismatches
from witcert.kernels.page_out import damaged_rows, page_out, page_out_mismatches
from witcert.kernels.page_out.reference import mix, page_out_reference, row_tags

SHAPES = [(3, 64, torch.float16), (2, 128, torch.bfloat16), (1, 256, torch.float16)]


def host_store(rows: int, heads: int, head_dim: int, dtype: torch.dtype = torch.float16) -> tuple[ExactStore, Tensor]:
    """Stale host memory and tags, pinned where there is a GPU."""
    k, v = (torch.full((rows, heads, head_dim), torch.nan, dtype=dtype) for _ in range(2))
    tags = torch.full((rows, heads), -7, dtype=torch.int64)
    if DEVICE == "cuda":
        k, v, tags = k.pin_memory(), v.pin_memory(), tags.pin_memory()
    return ExactStore(k, v), tags


def same_bits(a: ExactStore, b: ExactStore) -> bool:
    return all(torch.equal(x.view(torch.int16), y.view(torch.int16)) for x, y in ((a.k, b.k), (a.v, b.v)))


@pytest.mark.parametrize(("heads", "head_dim", "dtype"), SHAPES)
def test_bits_and_tags_arrive_and_nothing_else_changes(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Hard values, strided rows, slots out of range among them; tags are those of PyTorch."""
    (host, tags), tokens = host_store(30, heads, head_dim, dtype), 17
    expected, expected_tags = copy.deepcopy(host), tags.clone()
    k, v = (hard_tokens(2 * tokens, heads, head_dim, dtype)[::2] for _ in range(2))
    slots = some_slots(tokens, 30)
    slots[3], slots[5] = -1, 30
    page_out(k, v, slots, host, tags, layer=9)
    assert int(page_out_mismatches(k, v, slots, host, tags, layer=9)) == 0
    page_out_reference(k, v, slots, expected, expected_tags, 9)
    assert same_bits(host, expected)
    assert torch.equal(tags, expected_tags)
    assert int(damaged_rows(host, slots, tags, layer=9).sum()) == 0
    inside = int(((slots >= 0) & (slots < 30)).sum())
    assert int(damaged_rows(host, slots, tags, layer=8).sum()) == inside * heads
    page_out(k, v, slots, host)
    assert same_bits(host, expected)


def test_round_trip_through_page_in() -> None:
    """What page-out wrote, page-in brings back, bit for bit."""
    host, tags = host_store(20, 2, 64)
    k, v = (hard_tokens(16, 2, 64, torch.float16) for _ in range(2))
    rows = some_slots(16, 20)
    page_out(k, v, rows, host, tags)
    back = ExactStore(torch.zeros(16, 2, 64, device=DEVICE).half(), torch.zeros(16, 2, 64, device=DEVICE).half())
    slots = torch.arange(16, device=DEVICE)
    page_in(host, rows, back, slots)
    assert int(page_in_mismatches(host, rows, back, slots)) == 0
    assert same_bits(back, ExactStore(k.contiguous(), v.contiguous()))


def test_read_back_notices_one_wrong_bit() -> None:
    host, tags = host_store(8, 2, 64)
    k, v = (torch.randn(8, 2, 64, device=DEVICE).half() for _ in range(2))
    slots = some_slots(8, 8)
    page_out(k, v, slots, host, tags)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    host.k.view(torch.int16)[3, 1, 63] ^= 1
    host.v.view(torch.int16)[0, 0, 0] ^= -(2**15)
    tags[5, 0] ^= 1
    assert int(page_out_mismatches(k, v, slots, host, tags)) == 3
    wrong = damaged_rows(host, torch.arange(8, device=DEVICE), tags).nonzero().tolist()
    assert wrong == [[0, 0], [3, 1], [5, 0]]


def test_every_bit_of_a_row_is_covered() -> None:
    """All 2048 bits of one row and head, one at a time: each changes the tag (by theorem: mix is one-to-one)."""
    k, v = torch.randn(1, 1, 64).half(), torch.randn(1, 1, 64).half()
    rows = torch.tensor([5])
    tag = row_tags(k, v, rows, 0)
    copies = []
    for which in range(2):
        for channel in range(64):
            for bit in range(16):
                pair = [k.clone(), v.clone()]
                pair[which].view(torch.int16)[0, 0, channel] ^= (1 << bit) - (1 << 16 if bit == 15 else 0)
                copies.append(row_tags(*pair, rows, 0))
    assert len(copies) == 2048
    assert not any(torch.equal(x, tag) for x in copies)
    assert len({int(x) for x in copies}) == 2048


@pytest.mark.parametrize("bit", [0, 31, 62, 63])
def test_damage_to_two_words_is_missed_as_rarely_as_chance_has_it(bit: int) -> None:
    """The same bit of two words flipped: the low 12 bits of the sum of their mixed values agree in a share of 2^-12."""
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(-(2**63), 2**63 - 1, (400_000, 2), generator=generator)
    flip = 1 << bit if bit < 63 else -(2**63)
    agree = ((mix(words).sum(1) ^ mix(words ^ flip).sum(1)) & 0xFFF == 0).double().mean()
    assert 0.6 * 2**-12 < float(agree) < 1.4 * 2**-12


def test_refusals() -> None:
    host, tags = host_store(16, 2, 64)
    k = torch.randn(4, 2, 64, device=DEVICE).half()
    slots = some_slots(4, 16)
    cases: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("store is Tensor", (k, k, slots, host.k), {}),
        ("k has dtype", (k.float(), k, slots, host), {}),
        ("k has shape", (k[:, :1], k, slots, host), {}),
        ("v is", (k, k[:3], slots, host), {}),
        ("slots", (k, k, slots[:3], host), {}),
        ("tags is", (k, k, slots, host, tags[:3]), {}),
        ("tags is", (k, k, slots, host, tags.int()), {}),
        ("layer=65536", (k, k, slots, host, tags), {"layer": 2**16}),
    ]
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            page_out(*arguments, **keywords)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="store is Tensor"):
        damaged_rows(host.k, slots, tags)  # type: ignore[arg-type]


def test_nothing_to_do() -> None:
    host, tags = host_store(4, 2, 64)
    empty = torch.zeros(0, 2, 64, dtype=torch.float16, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    page_out(empty, empty, none, host, tags)
    assert damaged_rows(host, none, tags).shape == (0, 2)
    assert bool(host.k.isnan().all())


@pytest.mark.gpu
def test_pageable_memory_is_refused() -> None:
    host, tags = host_store(4, 2, 64)
    k = torch.randn(4, 2, 64, device=DEVICE).half()
    slots = some_slots(4, 4)
    with pytest.raises(InputError, match="pinned"):
        page_out(k, k, slots, ExactStore(host.k.clone(), host.v.clone()))
    with pytest.raises(InputError, match="pinned"):
        page_out(k, k, slots, host, tags.clone())


@pytest.mark.gpu
def test_real_shape_in_a_graph() -> None:
    """Captured and replayed over changed rows; read back in the same graph; the host sees the same bits."""
    host, tags = host_store(8192, 8, 128)
    k, v = (torch.randn(64, 8, 128, device=DEVICE).half() for _ in range(2))
    slots = some_slots(64, 8192)
    page_out(k, v, slots, host, tags, layer=1)
    page_out_mismatches(k, v, slots, host, tags, layer=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        page_out(k, v, slots, host, tags, layer=1)
        wrong = page_out_mismatches(k, v, slots, host, tags, layer=1)
    for _ in range(3):
        k.copy_(torch.randn_like(k))
        slots.copy_(some_slots(64, 8192))
        graph.replay()
        assert int(wrong) == 0
        at = slots.cpu()
        assert torch.equal(host.k[at].view(torch.int16), k.cpu().view(torch.int16))
        assert torch.equal(tags[at], row_tags(k, v, slots, 1).cpu())
