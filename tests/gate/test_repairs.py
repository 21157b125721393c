"""Repaired pages under truncation and late writes: what is read as exact is what was written last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.store.common import DEVICE, Filled, filled
from witcert.errors import InputError
from witcert.gate.repairs import Repairs
from witcert.kernels.formats import ExactStore
from witcert.store.allocator import Slots
from witcert.witness import witness


def check(got: Filled, seq: int, layer: int, head: int) -> None:
    """Every row of the head is exact, where it is read."""
    pool, size = got.pool, got.pool.config.page_size
    slots = got.pool.allocator.slots_of(seq)
    k, v = (x[:, head] for x in got.exact[seq, layer])
    at = torch.from_numpy(pool.exact_pages[layer, slots // size, head] * size + slots % size)
    assert (at >= 0).all()
    store, column = (pool.side[layer], 0) if pool.config.packed else (pool.stores[layer], head)
    assert isinstance(store, ExactStore)
    assert torch.equal(store.k[at, column], k)
    assert torch.equal(store.v[at, column], v)
    assert store.witness is not None
    assert pool.config.split is not None
    least = witness(k, k, pool.config.split, pool.dot_gamma)
    assert (store.witness[at, column] >= least).all()
    assert (store.witness[at, column].double() <= least.double() * 1.01 + 2.0**-23).all()


def pairs(pages: Sequence[int], heads: Sequence[int]) -> tuple[Slots, Slots]:
    """Every page with every head."""
    return np.repeat(np.asarray(pages, np.int64), len(heads)), np.tile(np.asarray(heads, np.int64), len(pages))


@pytest.mark.parametrize("name", ["scheme", "dither", "int8-m2-bf16"])
def test_rows_that_are_written_again_after_a_truncation(name: str) -> None:
    got, (seq,) = filled(name, [30])
    pool = got.pool
    repairs = Repairs(pool)
    moved, refused = repairs.repair(0, *pairs(pool.pages(seq), (0, 1)))
    assert (moved.tolist(), refused) == ([16 * 4 * 64] * 2 + [14 * 4 * 64] * 2, 0)
    got.truncate(seq, 20)
    for count in (3, 4, 5):
        slots = got.append([seq], [count])
        repairs.after_write(0, *(x[-count:] for x in got.exact[seq, 0]), slots)
        for head in (0, 1):
            check(got, seq, 0, head)


@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_rows_that_were_reserved_and_not_written_at_the_repair(name: str) -> None:
    got, (seq,) = filled(name, [20])
    pool, c = got.pool, got.pool.config
    repairs = Repairs(pool)
    slots = pool.reserve([seq], [5])
    k, v = (torch.randn(5, c.kv_heads, c.head_dim, device=DEVICE).to(c.dtype) for _ in range(2))
    pool.write(0, k, v, slots)
    # layer 1 has not written the five rows yet
    assert repairs.repair(1, *pairs(pool.pages(seq), (0,)))[0].tolist() == [16 * 4 * 64, 4 * 4 * 64]
    pool.write(1, k, v, slots)
    repairs.after_write(1, k, v, slots)
    old = got.exact[seq, 1]
    got.exact[seq, 1] = torch.cat((old[0], k)), torch.cat((old[1], v))
    check(got, seq, 1, 0)


def test_pairs_that_are_listed_twice_or_exact_move_nothing_and_a_full_side_pool_refuses_the_rest() -> None:
    got, (seq,) = filled("dither", [48], side_pages=4)
    repairs, (a, b, c) = Repairs(got.pool), got.pool.pages(seq)
    page = 16 * 4 * 64
    moved, refused = repairs.repair(0, np.asarray([a, a, b]), np.asarray([1, 1, 0]))
    assert (moved.tolist(), refused) == ([page, 0, page], 0)
    moved, refused = repairs.repair(0, np.asarray([a, c, c, b]), np.asarray([1, 0, 1, 1]))
    assert (moved.tolist(), refused) == ([0, page, page, 0], 1)
    assert repairs.pages == repairs.counts[0] == 4
    assert [repairs.is_exact(0, b, h) for h in (0, 1)] == [True, False]
    got.pool.close(seq)
    assert repairs.pages == 0
    assert got.pool.side_available(0) == 4
    assert (got.pool.exact_pages == -1).all()


def test_a_side_page_is_sealed_when_it_is_full_and_open_again_when_its_page_is() -> None:
    got, (seq,) = filled("dither", [30])
    pool = got.pool
    repairs, (first, last) = Repairs(pool), pool.pages(seq)
    repairs.repair(1, *pairs((first, last), (0,)))
    whole, part = (int(pool.exact_pages[1, p, 0]) for p in (first, last))
    assert pool._side_seals is not None
    assert [pool._side_seals.sealed(1, p) for p in (whole, part)] == [False, False]
    pool.reserve([seq], [0])
    assert [pool._side_seals.sealed(1, p) for p in (whole, part)] == [True, False]
    slots = got.append([seq], [2])
    repairs.after_write(1, *(x[-2:] for x in got.exact[seq, 1]), slots)
    pool.reserve([seq], [0])
    assert [pool._side_seals.sealed(1, p) for p in (whole, part)] == [True, True]
    pool.side[1].k.view(torch.int16)[part * 16 + 15, 0, 3] ^= 1
    assert [(d.layer, d.page, d.part) for d in pool.check_side(1, [whole, part])] == [(1, part, "keys")]
    pool.truncate(seq, 20)
    got.append([seq], [1])
    assert [pool._side_seals.sealed(1, p) for p in (whole, part)] == [True, False]


def test_refusals_of_page_in() -> None:
    got, (seq,) = filled("int8", [20])
    pool, page = got.pool, got.pool.pages(seq)[0]
    side = pool.side_reserve(0, 2)
    for pages, heads, sides, match in [
        ([12], [0], side[:1], "pages from 12 to 12; expected numbers in 0..11"),
        ([-1], [0], side[:1], "pages from -1"),
        ([0.5], [0], side[:1], "pages is float64"),
        ([True], [0], side[:1], "pages is bool"),
        ([page], [2], side[:1], "heads from 2"),
        ([page, page], [0, 1], [side[0]] * 2, "listed twice"),
        ([page], [0], [next(x for x in range(6) if x not in side)], "not all taken"),
        ([page], [0], [6], "side_pages from 6"),
        ([page], [0, 1], side, "1 pages, 2 heads, 2 side pages"),
    ]:
        with pytest.raises(InputError, match=match):
            pool.page_in(0, pages, heads, sides)  # type: ignore[arg-type]
    assert pool.page_in(0, [], [], []).size == 0
