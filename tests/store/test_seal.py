"""Tags of pages: every flipped bit is found and named, whatever it is a bit of; restored pages are as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.store.common import FORMATS, Filled, filled
from witcert.errors import InputError
from witcert.store import Damage


def sealed(name: str, **changes: object) -> tuple[Filled, list[int]]:
    """A pool with three full, sealed pages, in some order, and one that is filling."""
    f, (a,) = filled(name, [50], **changes)
    f.pool.reserve([a], [0])  # seals what is full
    pages = list(f.pool.pages(a))
    assert [f.pool._sealed().sealed(1, p) for p in pages] == [True, True, True, False]
    return f, pages


def rows_of(f: Filled, x: Tensor, layer: int, page: int, head: int) -> Tensor:
    """The numbers of a page and head in a tensor of rows, a view."""
    size = f.pool.config.page_size
    if f.pool.config.packed:
        return x[layer, page, head]
    return x[layer, page * size : (page + 1) * size, head]


def parts(f: Filled) -> list[tuple[str, Tensor]]:
    t = f.pool.tensors
    named = [("keys", t.k), ("values", t.v), ("scales", t.k_scale), ("scales", t.v_scale), ("outliers", t.k_outlier),
             ("witness", t.witness)]  # fmt: skip
    return [(name, x) for name, x in named if x is not None]


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_of_some_words_is_found(name: str) -> None:
    """Each part, first and last row: every bit of a word there, one at a time, is found as what it is."""
    f, pages = sealed(name)
    pool, page, head, layer = f.pool, pages[1], 1, 1
    assert pool.check(layer, range(pool.config.pages)) == []
    flips = 0
    for part, x in parts(f):
        rows = rows_of(f, x, layer, page, head)
        width = 8 * x.element_size()
        whole = rows.view(torch.int8 if width == 8 else torch.int16)
        for row, column in ((0, 0), (whole.shape[0] - 1, whole.shape[1] - 1)):
            for bit in range(width):
                flip = (1 << bit) - (1 << width if bit == width - 1 else 0)
                whole[row, column] ^= flip
                assert pool.check(layer, pages) == [Damage(layer, page, head, part)], (part, row, bit)
                whole[row, column] ^= flip
                flips += 1
    assert flips >= 2 * 16 * 2
    assert pool.check(layer, pages) == []


def test_every_bit_of_an_epoch_is_found_in_all_layers_and_heads() -> None:
    f, pages = sealed("dither")
    epochs = f.pool.tensors.epochs
    assert epochs is not None
    for bit in range(32):
        flip = (1 << bit) - (1 << 32 if bit == 31 else 0)
        epochs[pages[2] * 16 + 7] ^= flip
        for layer in range(2):
            assert f.pool.check(layer, pages) == [Damage(layer, pages[2], h, "epochs") for h in range(2)]
        epochs[pages[2] * 16 + 7] ^= flip
    assert f.pool.sweep(1.0, 0) == []


@pytest.mark.parametrize("side", ["k", "v", "tags"])
def test_every_bit_of_a_backing_row_is_found(side: str) -> None:
    f, (a,) = filled("int8", [20])
    host, page = f.pool.host, f.pool.pages(a)[1]
    assert host is not None
    x = getattr(host, side)
    bits = x if side == "tags" else x.view(torch.int16)
    width = 8 * bits.element_size()
    assert f.pool.check_backing(1, f.pool.pages(a)) == []  # and what is on its way to the host has arrived
    for bit in range(width):
        flip = (1 << bit) - (1 << width if bit == width - 1 else 0)
        place = (1, page * 16 + 3, 0) if side == "tags" else (1, page * 16 + 3, 0, 63)
        bits[place] ^= flip
        assert f.pool.check_backing(1, f.pool.pages(a)) == [Damage(1, page, 0, "backing")]
        assert f.pool.check_backing(0, f.pool.pages(a)) == []
        bits[place] ^= flip
    assert f.pool.check_backing(1, f.pool.pages(a)) == []


def test_rows_that_lie_elsewhere_are_damage() -> None:
    """A page copied over another one, or rows of one head under another: right bits, wrong place."""
    f, pages = sealed("int8")
    x = f.pool.tensors.k_scale
    assert x is not None
    for y in (f.pool.tensors.k, f.pool.tensors.v, x, f.pool.tensors.v_scale, f.pool.tensors.witness):
        assert y is not None
        y[0, pages[1]] = y[0, pages[0]]
    assert {d.page for d in f.pool.check(0, pages)} == {pages[1]}
    assert {d.part for d in f.pool.check(0, pages)} == {"keys", "values", "scales", "witness"}


@pytest.mark.parametrize("name", FORMATS)
def test_restored_pages_are_as_they_were(name: str) -> None:
    """All parts of a page overwritten: written anew from the backing store, to the bit; repaired heads stay repaired."""
    f, pages = sealed(name)
    pool = f.pool
    if not pool.config.packed:
        pool.page_in(1, [pages[0], pages[1]], [0, 1])
    before = [x.clone() for _, x in parts(f)]
    epochs = None if pool.tensors.epochs is None else pool.tensors.epochs.clone()
    for _, x in parts(f):
        for head in range(2):
            rows_of(f, x, 1, pages[1], head).zero_()
    if pool.tensors.epochs is not None:
        pool.tensors.epochs[pages[1] * 16 : pages[1] * 16 + 16] += 3
    assert {d.page for d in pool.check(1, pages)} == {pages[1]}
    pool.restore(1, [pages[1]])
    assert pool.check(1, pages) == []
    for (_, x), old in zip(parts(f), before, strict=True):
        rows = torch.from_numpy(pool.allocator.slots_of(0))
        pair = [y.view(torch.int8) for y in (x, old)]
        if pool.config.packed:
            assert torch.equal(*(y[:, rows // 16, :, rows % 16] for y in pair))
        else:
            assert torch.equal(*(y[:, rows] for y in pair))
    assert epochs is None or torch.equal(epochs, pool.tensors.epochs)  # type: ignore[arg-type]


def test_a_sweep_looks_at_every_layer_and_place() -> None:
    """Codes, backing rows and a side page, damaged in different layers: all named by one sweep; each, by the check of it."""
    f, pages = sealed("int8")
    pool = f.pool
    (side,) = pool.side_reserve(1, 1)
    pool.page_in(1, [pages[0]], [1], [side])
    pool.seal_side()
    assert pool.sweep(1.0, 0) == []
    assert pool.backing is not None
    rows_of(f, pool.tensors.k, 0, pages[1], 0)[3, 5] ^= 1
    for layer, page, head in ((0, pages[3], 1), (1, pages[2], 0)):
        pool.backing[layer].v.view(torch.int16)[page * 16, head, 7] ^= 4
    pool.side[1].k.view(torch.int16)[side * 16 + 2, 0, 1] ^= 2
    backing = [Damage(0, pages[3], 1, "backing"), Damage(1, pages[2], 0, "backing")]
    found = pool.sweep(1.0, 0)
    assert found == [Damage(0, pages[1], 0, "keys"), *backing, Damage(1, side, 0, "side keys")]
    assert pool.check_backing(0, pages) == backing[:1]
    assert pool.check_backing(1, pages) == backing[1:]


def test_a_sweep_is_a_random_share_of_the_pages_in_use() -> None:
    """Damage of one page of three is found by the sweeps that draw it, and by no other."""
    f, pages = sealed("exact")
    f.pool.tensors.v[0, pages[2] * 16, 0, 0] += 1
    found = [bool(f.pool.sweep(0.25, seed)) for seed in range(60)]  # one page of four
    assert 5 < sum(found) < 27
    assert f.pool.sweep(1.0, 0) == [Damage(0, pages[2], 0, "values")]
    assert found == [bool(f.pool.sweep(0.25, seed)) for seed in range(60)]
    f.pool.close(0)
    assert f.pool.sweep(1.0, 0) == []
    with pytest.raises(InputError, match="fraction=0"):
        f.pool.sweep(0, 0)


def test_writing_to_a_page_breaks_no_seal() -> None:
    """A page that is cut and written again is sealed again when it is full; a sealed partial page likewise."""
    f, (a,) = filled("dither", [20])
    f.pool.seal(0, f.pool.pages(a))
    assert f.pool.check(0, f.pool.pages(a)) == []
    f.append([a], [3])
    assert f.pool.check(0, f.pool.pages(a)) == []
    f.truncate(a, 7)
    f.append([a], [30])
    f.pool.reserve([a], [0])
    assert f.pool.sweep(1.0, 1) == []
    assert int(f.pool._sealed().valid.sum()) == 2 * 2


def test_nothing_is_sealed_before_it_is_written() -> None:
    """Reserved twice, written in two pieces, layer by layer: seals wait for the rows."""
    f, (a,) = filled("exact", [10])
    pool = f.pool
    first, second = pool.reserve([a], [6]), pool.reserve([a], [16])
    assert int(pool._sealed().valid.sum()) == 0
    assert pool.sweep(1.0, 0) == []
    for layer in range(2):
        for slots in (first, second):
            k = torch.randn(len(slots), 2, 64, device=pool.device).half()
            pool.write(layer, k, k, slots)
    pool.reserve([a], [0])
    assert pool.sweep(1.0, 0) == []
    assert int(pool._sealed().valid.sum()) == 4


def test_a_pool_without_tags_says_so() -> None:
    f, (a,) = filled("exact", [20], tags=False)
    with pytest.raises(InputError, match="tags=False"):
        f.pool.check(0, f.pool.pages(a))
    f.append([a], [20])
    assert f.pool.sweep(1.0, 0) == []
