"""The pool: one write path, exact copies on the host, forks and cuts, page-in, tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.store.common import DEVICE, FORMATS, Filled, config_of, filled
from witcert.budget import Budget
from witcert.errors import CorruptionError, InputError, PoolFullError
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter
from witcert.kernels.decode.reference import served_keys
from witcert.kernels.formats import ExactStore, PackedStore
from witcert.kernels.page_in.reference import page_in_reference
from witcert.schemes import Site, get
from witcert.store import CachePool, PoolConfig
from witcert.witness import Bands, witness

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's


def raw(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int8)


def slots_of(pool: CachePool, seq: int) -> Tensor:
    return torch.from_numpy(pool.allocator.slots_of(seq)).to(pool.device)


def assert_backed(f: Filled, seq: int) -> None:
    """The backing rows of a sequence are the exact keys and values, bit for bit, and so says the read-back."""
    slots = slots_of(f.pool, seq)
    assert f.pool.host is not None
    for layer in range(f.pool.config.layers):
        k, v = f.exact[seq, layer]
        assert f.pool.verify_backing(layer, slots, k, v) == 0
        store = f.pool.host.stores[layer]
        assert torch.equal(raw(store.k[slots.cpu()]), raw(k.cpu()))
        assert torch.equal(raw(store.v[slots.cpu()]), raw(v.cpu()))


def assert_witnessed(f: Filled, seq: int, layer: int) -> None:
    """Every stored witness is at least the residual of what the store serves, arithmetic of the reader included."""
    pool = f.pool
    store, split = pool.stores[layer], pool.config.split
    if store.witness is None or split is None:
        return
    slots, gamma = slots_of(pool, seq), pool.dot_gamma if isinstance(store, ExactStore) else 0.0
    least = witness(f.exact[seq, layer][0].cpu().double(), served_keys(store, slots).cpu(), split, gamma)
    w = store.witness
    page = pool.config.page_size
    found = (w[slots] if w.ndim == 3 else w[slots // page, :, slots % page]).cpu()
    assert bool((found >= least).all())
    assert bool((found.double() <= least.double() * 1.01 + 1e-6).all())


@pytest.mark.parametrize("kernels", [False, True] if DEVICE == "cpu" else [True])
@pytest.mark.parametrize("name", FORMATS)
def test_write(name: str, kernels: bool) -> None:
    """Rows reach the store, the witness and the backing store; what the store serves is what its format says."""
    f, (a, b) = filled(name, [9, 2], kernels=kernels)
    f.append([b, a], [2, 1])
    for seq in (a, b):
        assert_backed(f, seq)
        for layer in range(2):
            assert_witnessed(f, seq, layer)
            store, slots = f.pool.stores[layer], slots_of(f.pool, seq)
            if isinstance(store, ExactStore):
                scheme = get(f.pool.config.scheme or "identity")
                for side, x, got in (("k", f.exact[seq, layer][0], store.k), ("v", f.exact[seq, layer][1], store.v)):
                    epochs = torch.from_numpy(f.pool.allocator.epochs)[slots.cpu()]
                    site = Site(layer, side, slots.cpu(), epochs, f.pool.config.seed)  # type: ignore[arg-type]
                    want = scheme(x.cpu().transpose(0, 1), site).x_hat.transpose(0, 1)
                    assert torch.equal(raw(got[slots].cpu()), raw(want))
            else:
                error = (served_keys(store, slots) - f.exact[seq, layer][0].double()).abs()
                assert float(error.max()) <= 0.02


@pytest.mark.skipif(DEVICE == "cuda", reason="compares the interpreter with PyTorch")
@pytest.mark.parametrize("name", FORMATS)
def test_kernels_and_references_store_the_same_bits(name: str) -> None:
    pools = []
    for kernels in (False, True):
        torch.manual_seed(3)
        f, (a, _) = filled(name, [17, 1], kernels=kernels)
        f.truncate(a, 15)
        f.append([a], [3])
        f.fork(a)
        pools.append(f.pool)
    for x, y in zip(pools[0].tensors.rows, pools[1].tensors.rows, strict=True):
        if x is not pools[0].tensors.witness:
            assert torch.equal(raw(x), raw(y))
    one, two = pools[0].host, pools[1].host
    assert one is not None
    assert two is not None
    for pair in ((one.k, two.k), (one.v, two.v)):
        assert torch.equal(*map(raw, pair))
    rows = [int(s) for seq in pools[0].allocator.sequences for s in slots_of(pools[0], seq)]
    assert torch.equal(one.tags[:, rows], two.tags[:, rows])


@pytest.mark.parametrize("name", FORMATS)
def test_fork_and_copy_on_write(name: str) -> None:
    """A child serves what its parent does, each goes its own way, and neither disturbs the other."""
    f, (a,) = filled(name, [21])
    child = f.fork(a)
    assert f.pool.pages(child)[0] == f.pool.pages(a)[0]
    f.append([a, child], [13, 2])
    f.truncate(a, 18)
    grand = f.fork(child)
    f.truncate(grand, 20)
    shared = f.fork(grand)
    f.append([grand, a, shared], [1, 4, 3])
    for seq in (a, child, grand, shared):
        assert f.pool.length(seq) == len(f.exact[seq, 0][0])
        assert_backed(f, seq)
        for layer in range(2):
            assert_witnessed(f, seq, layer)
            error = (served_keys(f.pool.stores[layer], slots_of(f.pool, seq)) - f.exact[seq, layer][0].double()).abs()
            assert float(error.max()) <= (0.4 if name.startswith("scheme") else 0.02)
    for seq in (a, child, grand, shared):
        f.pool.close(seq)
    assert f.pool.allocator.free_pages == f.pool.config.pages


def test_a_shared_page_is_never_written_to() -> None:
    f, (a,) = filled("int8", [32])
    child = f.fork(a)
    f.truncate(child, 20)
    page = f.pool.pages(a)[1]
    before = [x[:, page].clone() for x in f.pool.tensors.rows]
    f.append([child], [5])
    assert f.pool.pages(child)[1] != page
    assert all(torch.equal(raw(x), raw(y[:, page])) for x, y in zip(before, f.pool.tensors.rows, strict=True))


def test_dithered_codes_move_only_through_the_backing_store() -> None:
    f, (a,) = filled("dither", [20], backing=False, side_pages=0)
    with pytest.raises(InputError, match="copied only from a backing store"):
        f.pool.fork(a)
    assert f.pool.allocator.sequences == (a,)
    f.append([a], [12])
    child = f.pool.fork(a)
    f.pool.truncate(child, 20)
    before = f.pool.allocator.free_pages
    with pytest.raises(InputError, match="copied only from a backing store"):
        f.pool.reserve([child], [1])
    assert (f.pool.allocator.free_pages, f.pool.length(child)) == (before, 20)


def test_a_recycled_slot_draws_another_dither() -> None:
    f, (a,) = filled("dither", [16])
    store = f.pool.stores[0]
    assert isinstance(store, PackedStore)
    page, (k, v) = f.pool.pages(a)[0], f.exact[a, 0]
    first = store.k_code[page].clone()
    f.pool.truncate(a, 0)
    for _ in range(f.pool.config.pages):  # until the page comes round again
        slots = f.pool.reserve([a], [16])
        for layer in range(2):
            f.pool.write(layer, k, v, slots)
        if f.pool.pages(a)[0] == page:
            break
        f.pool.truncate(a, 0)
    assert store.epochs is not None
    assert store.epochs[slots].tolist() == [1] * 16
    assert 0 < int((store.k_code[page] != first).sum()) < first.numel()


def test_a_full_pool_changes_nothing() -> None:
    f, (a,) = filled("exact", [90])
    b = f.pool.open()
    state = [x.clone() for x in f.pool.tensors.rows]
    small = filled("exact", [90], pages=8)[0].pool
    c = small.open()
    with pytest.raises(PoolFullError, match=r"96 new tokens needs 6 pages of 16 tokens; 2 of 8 are free"):
        small.reserve([c], [96])
    assert (small.length(c), small.allocator.free_pages) == (0, 2)
    with pytest.raises(InputError, match="would have 97 tokens"):
        f.pool.reserve([b, a], [1, 7])
    assert (f.pool.length(a), f.pool.length(b)) == (90, 0)
    assert all(torch.equal(raw(x), raw(y)) for x, y in zip(state, f.pool.tensors.rows, strict=True))


@pytest.mark.parametrize("kernels", [False, True] if DEVICE == "cpu" else [True])
@pytest.mark.parametrize("name", ["exact", "scheme", "scheme-bf16"])
def test_page_in_in_place(name: str, kernels: bool) -> None:
    """Rows become exact, with the witness of an exact key; other heads and pages stay; full pages stay sealed."""
    f, (a,) = filled(name, [37], kernels=kernels)
    pool, pages = f.pool, f.pool.pages(a)
    f.append([a], [1])
    store = pool.stores[1]
    assert isinstance(store, ExactStore)
    before = store.k.clone()
    assert pool.page_in(1, [pages[0], pages[2]], [1, 0]).tolist() == [16 * 4 * 64, 6 * 4 * 64]
    slots = slots_of(pool, a)
    k = f.exact[a, 1][0]
    assert torch.equal(raw(store.k[slots[:16], 1]), raw(k[:16, 1]))
    assert torch.equal(raw(store.k[slots[32:38], 0]), raw(k[32:, 0]))
    assert torch.equal(raw(store.k[slots[:, None], 0][:32]), raw(before[slots[:, None], 0][:32]))
    assert_witnessed(f, a, 1)
    assert pool.check(1, range(pool.config.pages)) == []
    if store.witness is not None and pool.config.split is not None and not kernels:
        want = ExactStore(torch.zeros_like(store.k), torch.zeros_like(store.v), torch.zeros_like(store.witness))
        assert pool.host is not None
        page_in_reference(
            pool.host.stores[1], slots[:16], want, slots[:16], heads=torch.ones(16).long(), bands=pool.config.split
        )
        assert torch.equal(store.witness[slots[:16], 1], want.witness[slots[:16], 1])  # type: ignore[index]


@pytest.mark.parametrize("kernels", [False, True] if DEVICE == "cpu" else [True])
@pytest.mark.parametrize("name", ["int8-m2-bf16", "dither"])
def test_page_in_beside(name: str, kernels: bool) -> None:
    """A packed page stays; its exact copy of one head lies in the side pool, witnessed."""
    f, (a,) = filled(name, [37], kernels=kernels)
    pool, pages = f.pool, f.pool.pages(a)
    side = pool.side_reserve(1, 2)
    assert pool.page_in(1, [pages[0], pages[2]], [1, 0], side).tolist() == [16 * 4 * 64, 5 * 4 * 64]
    store, slots = pool.side[1], slots_of(pool, a)
    k, v = f.exact[a, 1]
    for page, rows, head in ((side[0], slice(0, 16), 1), (side[1], slice(32, 37), 0)):
        at = slice(page * 16, page * 16 + (rows.stop - rows.start))
        assert torch.equal(raw(store.k[at, 0]), raw(k[rows, head]))
        assert torch.equal(raw(store.v[at, 0]), raw(v[rows, head]))
        assert store.witness is not None
        least = witness(k[rows, head], k[rows, head], Bands(64), pool.dot_gamma)
        assert bool((store.witness[at, 0].cpu() >= least.cpu()).all())
    assert pool.check_side(1, side) == []
    with pytest.raises(InputError, match="not all taken"):
        pool.page_in(0, [pages[0]], [0], [side[0]])
    with pytest.raises(InputError, match="repaired beside"):
        pool.page_in(1, [pages[0]], [0])
    assert len(slots) == 37


def test_side_pages_are_handed_out_once() -> None:
    f, _ = filled("int8", [1])
    pool = f.pool
    first = pool.side_reserve(0, 4)
    assert len(set(first)) == 4
    with pytest.raises(PoolFullError, match="3 side pages of layer 0 asked for; 2 of 6 are free"):
        pool.side_reserve(0, 3)
    assert len(pool.side_reserve(1, 6)) == 6
    pool.side_free(0, first[:1])
    with pytest.raises(InputError, match="not all taken"):
        pool.side_free(0, first[:1])
    assert sorted(pool.side_reserve(0, 3) + first[1:]) == list(range(6))


def test_damaged_backing_rows_repair_nothing() -> None:
    """A flipped bit on the host: page-in, fork and restore refuse, and nothing is read otherwise; other pages still work."""
    f, (a,) = filled("dither", [37])
    pool, pages = f.pool, f.pool.pages(a)
    assert pool.host is not None
    row = pages[2] * 16 + 3
    assert pool.check_backing(1, pages) == []  # and what is on its way to the host has arrived
    pool.host.k[1].view(torch.int16)[row, 1, 9] ^= 1 << 5
    side = pool.side_reserve(1, 1)
    state = [x.clone() for x in pool.tensors.rows]
    message = f"layer 1, slot {row}, KV head 1; nothing was repaired"
    with pytest.raises(CorruptionError, match=message):
        pool.page_in(1, [pages[2]], [1], side)
    with pytest.raises(CorruptionError, match=message):
        pool.restore(1, [pages[2]])
    with pytest.raises(CorruptionError, match=message):
        pool.fork(a)
    assert pool.allocator.sequences == (a,)
    now = pool.tensors.rows
    free = pool.allocator.slots_of(a)
    for x, y in zip(state[:2], now[:2], strict=True):
        kept = torch.from_numpy(free)
        assert torch.equal(x[1, kept // 16, :, kept % 16], y[1, kept // 16, :, kept % 16])
    assert (pool.exact_pages == -1).all()
    assert [str(d) for d in pool.check_backing(1, pages)] == [f"layer 1, page {pages[2]}, KV head 1: backing"]
    pool.page_in(1, [pages[2]], [0], side)
    pool.page_in(1, [pages[1]], [1], side)


def test_tables_are_updated_in_place() -> None:
    f, (a, b) = filled("exact", [20, 3])
    pool = f.pool
    table = pool.table([a, b])
    pages, lens = table.pages, table.seq_lens
    f.append([a, b], [20, 1])
    again = pool.table([a, b])
    assert again is table
    assert (again.pages.data_ptr(), again.seq_lens.data_ptr()) == (pages.data_ptr(), lens.data_ptr())
    assert lens.tolist() == [40, 4]
    assert pages[0, :3].tolist() == list(pool.pages(a))
    assert pages.shape == (2, pool.config.max_pages)
    prefix = pool.table([a, b], back=[20, 1])
    assert prefix.seq_lens.tolist() == [20, 3]
    assert prefix.pages.data_ptr() != pages.data_ptr()
    f.truncate(a, 10)
    f.append([a], [25])
    pool.check_table(pool.table([a, b]), [a, b])
    for seq in (a, b):
        assert torch.equal(pool.table([seq, b if seq == a else a]).slots(0).cpu(), slots_of(pool, seq).cpu())
    other = pool.table([b, a], into=table)
    assert other is table
    pool.check_table(other, [b, a])
    with pytest.raises(CorruptionError, match=r"row 0 (does not list the pages of|has \d+ tokens,) ?"):
        pool.check_table(other, [a, b])
    table.pages[1, 0] += 1
    with pytest.raises(CorruptionError, match="row 1 does not list"):
        pool.check_table(table, [b, a])
    with pytest.raises(InputError, match="back has 1"):
        pool.table([a, b], back=[1])
    with pytest.raises(InputError, match="back=9"):
        pool.table([a, b], back=[9, 9])


@pytest.mark.parametrize("name", FORMATS)
def test_meters_fit_the_format(name: str) -> None:
    pool = CachePool(config_of(name), DEVICE)
    budget = Budget(2, 4, 2)
    band, half, tight = (pool.meter_for(kind, budget) for kind in ("band", "half", "tierB"))
    assert (band is None) == (pool.config.bands is None)
    assert band is None or band == BandMeter(pool.config.pairing)
    assert isinstance(half, HalfStepMeter) == pool.config.packed
    assert isinstance(tight, TierBMeter) == (pool.config.format == "int8-dither")
    with pytest.raises(InputError, match="kind='all'"):
        pool.meter_for("all", budget)  # type: ignore[arg-type]
    if isinstance(tight, TierBMeter):
        with pytest.raises(InputError, match="budget is for 3 layers"):
            pool.meter_for("tierB", Budget(3, 4, 2))


def test_refused_writes() -> None:
    f, (a,) = filled("exact", [4])
    pool = f.pool
    slots = pool.reserve([a], [2])
    k = torch.randn(2, 2, 64, device=DEVICE).half()
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("layer=2", (2, k, k, slots)), ("k is torch.float32", (0, k.float(), k, slots)), ("v is \\(1, 2", (0, k, k[:1], slots)),
        ("slots is torch.int32", (0, k, k, slots.int())),
    ]  # fmt: skip
    for match, arguments in cases:
        with pytest.raises(InputError, match=match):
            pool.write(*arguments)
    with pytest.raises(InputError, match="out is"):
        pool.reserve([a], [2], out=torch.empty(3, dtype=torch.int64, device=DEVICE))


def test_float32_keys_are_witnessed_where_nothing_is_backed() -> None:
    """Without a backing store the exact key may have more bits than the store: the witness counts the difference."""
    pool = CachePool(PoolConfig(layers=1, heads=2, kv_heads=2, head_dim=64, pages=2, tokens=32, bands=16), DEVICE)
    a = pool.open()
    slots = pool.reserve([a], [20])
    k = torch.randn(20, 2, 64, device=DEVICE)
    pool.write(0, k, k, slots)
    store = pool.stores[0]
    assert isinstance(store, ExactStore)
    assert store.witness is not None
    least = witness(k, store.k[slots], Bands(64), pool.dot_gamma)
    assert bool((store.witness[slots].cpu() >= least.cpu()).all())
    assert bool((store.witness[slots] > witness(k, k, Bands(64), pool.dot_gamma).to(DEVICE)).any())
