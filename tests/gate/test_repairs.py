"""Repaired pages under truncation and late writes: what is read as exact is what was written last."""

from __future__ import annotations

import pytest
import torch

from tests.store.common import DEVICE, Filled, filled
from witcert.errors import InputError
from witcert.gate.repairs import Repairs


def check(repairs: Repairs, got: Filled, seq: int, layer: int, head: int) -> None:
    """Every row of the head is exact, where it is read."""
    pool, size = got.pool, got.pool.config.page_size
    slots = pool.allocator.slots_of(seq).tolist()
    k, v = (x[:, head] for x in got.exact[seq, layer])
    if pool.config.packed:
        side = repairs._side[layer]
        at = [side[slot // size, head] * size + slot % size for slot in slots]
        store, column = pool.side[layer], 0
    else:
        at, store, column = slots, pool.stores[layer], head  # type: ignore[assignment]
    assert torch.equal(store.k[at, column], k)
    assert torch.equal(store.v[at, column], v)


@pytest.mark.parametrize("name", ["scheme", "dither", "int8-m2-bf16"])
def test_rows_that_are_written_again_after_a_truncation(name: str) -> None:
    got, (seq,) = filled(name, [30])
    pool = got.pool
    repairs = Repairs(pool)
    pages = pool.pages(seq)
    assert repairs.repair(0, [(p, h) for p in pages for h in (0, 1)]) == (4, 30 * 2 * 4 * 64, 0)
    got.truncate(seq, 20)
    for count, moved in ((3, 3 + 7), (4, 4 + 3), (5, 5)):  # from the first row written to the last that the page has
        slots = got.append([seq], [count])
        k = got.exact[seq, 0][0][-count:]
        assert repairs.after_write(0, k, slots) == moved * 2 * 4 * 64
        for head in (0, 1):
            check(repairs, got, seq, 0, head)


@pytest.mark.parametrize("name", ["scheme", "dither"])
def test_rows_that_were_reserved_and_not_written_at_the_repair(name: str) -> None:
    got, (seq,) = filled(name, [20])
    pool, c = got.pool, got.pool.config
    repairs = Repairs(pool)
    slots = pool.reserve([seq], [5])
    k, v = (torch.randn(5, c.kv_heads, c.head_dim, device=DEVICE).to(c.dtype) for _ in range(2))
    pool.write(0, k, v, slots)
    # layer 1 has not written the five rows yet
    assert repairs.repair(1, [(p, 0) for p in pool.pages(seq)]) == (2, 20 * 4 * 64, 0)
    pool.write(1, k, v, slots)
    assert repairs.after_write(1, k, slots) == 5 * 4 * 64
    old = got.exact[seq, 1]
    got.exact[seq, 1] = torch.cat((old[0], k)), torch.cat((old[1], v))
    check(repairs, got, seq, 1, 0)


def test_refusals_of_page_in() -> None:
    got, (seq,) = filled("int8", [20])
    pool, page = got.pool, got.pool.pages(seq)[0]
    side = pool.side_reserve(0, 2)
    for pages, heads, sides, since, match in [
        ([12], [0], side[:1], None, "pages from 12 to 12; expected numbers in 0..11"),
        ([-1], [0], side[:1], None, "pages from -1"),
        ([0.5], [0], side[:1], None, "pages is float64"),
        ([True], [0], side[:1], None, "pages is bool"),
        ([page], [2], side[:1], None, "heads from 2"),
        ([page, page], [0, 1], [side[0]] * 2, None, "listed twice"),
        ([page], [0], [next(x for x in range(6) if x not in side)], None, "not all taken"),
        ([page], [0], [6], None, "side_pages from 6"),
        ([page], [0, 1], side, None, "1 pages, 2 heads, 2 side pages"),
        ([page], [0], side[:1], [17], "since from 17"),
        ([page], [0], side[:1], [0, 0], "since has 2 rows for 1 pages"),
    ]:
        with pytest.raises(InputError, match=match):
            pool.page_in(0, pages, heads, sides, since)  # type: ignore[arg-type]
    assert pool.page_in(0, [], [], []) == 0
    assert pool.page_in(0, [page], [1], side[:1], [16]) == 0
