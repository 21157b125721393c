"""Page-in: the host's bits arrive, nothing else changes, witnesses pay for the reader, and the read-back notices all else."""

import copy

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE, hard_tokens, some_slots
from witcert.errors import InputError
from witcert.golden import mp
from witcert.kernels.decode import BandMeter, decode
from witcert.kernels.formats import ExactStore, PageTable
from witcert.kernels.page_in import page_in, page_in_mismatches
from witcert.kernels.page_in.reference import page_in_reference
from witcert.witness import Bands


def host_store(rows: int, heads: int, head_dim: int, dtype: torch.dtype = torch.float16) -> ExactStore:
    """Hard values in host memory, pinned where there is a GPU."""
    k, v = (hard_tokens(rows, heads, head_dim, dtype).cpu() for _ in range(2))
    if DEVICE == "cuda":
        k, v = k.pin_memory(), v.pin_memory()
    return ExactStore(k, v)


def stale_store(slots: int, heads: int, head_dim: int, dtype: torch.dtype = torch.float16) -> ExactStore:
    """A device store full of NaN with witnesses of 3."""
    pools = [torch.full((slots, heads, head_dim), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2)]
    return ExactStore(*pools, torch.full((slots, heads, 16), 3.0, dtype=torch.float16, device=DEVICE))


def assert_same(store: ExactStore, expected: ExactStore) -> None:
    """The same bits, and witnesses that are those of the reference or one step above."""
    for name in ("k", "v"):
        a, b = getattr(store, name), getattr(expected, name)
        assert torch.equal(a.view(torch.int16), b.view(torch.int16)), name
    assert store.witness is not None
    assert expected.witness is not None
    steps = store.witness.view(torch.int16).int() - expected.witness.view(torch.int16).int()
    assert int(steps.min()) >= 0
    assert int(steps.max()) <= 1


@pytest.mark.parametrize(
    ("heads", "head_dim", "dtype"), [(3, 64, torch.float16), (8, 128, torch.bfloat16), (1, 256, torch.float16)]
)
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("gamma", [None, 0.0, 2.0**-12])
def test_bits_arrive_and_nothing_else_changes(heads: int, head_dim: int, dtype: torch.dtype, by_head: bool,
                                                 gamma: float | None) -> None:  # fmt: skip
    host, store = host_store(20, heads, head_dim, dtype), stale_store(30, heads, head_dim, dtype)
    expected = copy.deepcopy(store)
    rows, slots = some_slots(12, 20, torch.int32), some_slots(12, 30)
    rows[3], slots[4], rows[5], slots[6] = -1, -1, 20, 30
    which = torch.randint(0, heads, (12,), device=DEVICE) if by_head else None
    if which is not None:
        which[7] = heads
    page_in(host, rows, store, slots, heads=which, gamma=gamma)
    page_in_reference(host, rows, expected, slots, heads=which, gamma=gamma)
    assert_same(store, expected)
    assert int(page_in_mismatches(host, rows, store, slots, heads=which, gamma=gamma)) == 0


@pytest.mark.parametrize("bands", [Bands(64, 16, "adjacent"), Bands(64, 16, "half", 32)])
def test_other_splits_of_the_channels(bands: Bands) -> None:
    host, store = host_store(16, 2, 64), stale_store(20, 2, 64)
    expected = copy.deepcopy(store)
    rows, slots = some_slots(16, 16), some_slots(16, 20)
    page_in(host, rows, store, slots, bands=bands)
    page_in_reference(host, rows, expected, slots, bands=bands)
    assert_same(store, expected)
    assert int(page_in_mismatches(host, rows, store, slots, bands=bands)) == 0
    assert int(page_in_mismatches(host, rows, store, slots)) > 0


def test_the_witness_pays_for_the_dot_product_of_the_reader() -> None:
    """Two exact tokens whose dot products cancel: the kernel's rounding moves attention further than witness 0 allows.

    Sequences 0 and 1 hold one token each: their log-sum-exp is the logit as the kernel computed it. Sequence 2 holds both.
    8 orders of the channels, since what is rounded depends on the order in which a product is summed: the witness pays in
    every one, and in some it has to.
    """
    d, scale = 128, 2.0**-12
    high, first = (torch.randint(1600, 2048, (n, 64)).double() / 2 for n in (1, 2))
    second = first + torch.randint(-1, 2, (2, 64)) / 2  # each product of 21 bits, nearly cancelled by another one
    keys, query = torch.cat((first, second), -1), torch.cat((high, -high), -1)[0]
    band = mp.mpf(2) ** -20  # of the two logarithms that the kernel rounded
    needed = 0
    for order in [torch.arange(d), *(torch.randperm(d) for _ in range(7))]:
        host = ExactStore(keys[:, order].half()[:, None].contiguous(), torch.zeros(2, 1, d).half())
        if DEVICE == "cuda":
            host = ExactStore(host.k.pin_memory(), host.v.pin_memory())
        queries = query[order].half().expand(3, 1, d).contiguous().to(DEVICE)
        q, k = queries[0, 0].double().cpu(), host.k[:, 0].double()
        pages = torch.tensor([[0, 9], [1, 9], [0, 1]], dtype=torch.int32, device=DEVICE)
        table = PageTable(pages, torch.tensor([1, 1, 2], dtype=torch.int32, device=DEVICE), 1)
        logits = [mp.fdot(q.tolist(), row.tolist()) * mp.mpf(scale) for row in k]
        meters = {}
        for gamma in (0.0, None):
            store = stale_store(2, 1, d)
            both = torch.arange(2, dtype=torch.int32, device=DEVICE)
            page_in(host, both, store, both, gamma=gamma)
            assert int(page_in_mismatches(host, both, store, both, gamma=gamma)) == 0
            got = decode(queries, store, table, scale=scale, meter=BandMeter())
            meters[gamma] = float(torch.as_tensor(got.readings[0].meter.value)[2, 0])
            served = mp.mpf(float(got.lse[0, 0])) - mp.mpf(float(got.lse[1, 0]))
        true_first, served_first = (1 / (1 + mp.exp(-x)) for x in (logits[0] - logits[1], served))
        damage = abs(true_first - served_first)  # total variation of two tokens
        assert meters[None] >= damage + band
        assert meters[None] < 1.0
        needed += bool(meters[0.0] < damage - band)
    assert needed


def test_read_back_notices_one_wrong_bit() -> None:
    host, store = host_store(16, 2, 64), stale_store(16, 2, 64)
    rows, slots = some_slots(16, 16), some_slots(16, 16)
    already = int((host.k.isnan().sum() + host.v.isnan().sum()).item())  # the store is full of the same NaN
    assert int(page_in_mismatches(host, rows, store, slots)) == 2 * 16 * 2 * 64 + 16 * 2 * 16 - already
    page_in(host, rows, store, slots)
    assert int(page_in_mismatches(host, rows, store, slots)) == 0
    store.k.view(torch.int16)[int(slots[5]), 1, 63] ^= 1
    assert int(page_in_mismatches(host, rows, store, slots)) == 1
    store.v.view(torch.int16)[int(slots[0]), 0, 0] ^= -(2**15)
    assert int(page_in_mismatches(host, rows, store, slots)) == 2
    assert store.witness is not None
    store.witness.view(torch.int16)[int(slots[9]), 1, 15] ^= 1
    assert int(page_in_mismatches(host, rows, store, slots)) == 3


def test_a_side_pool_and_the_witness_of_a_packed_store() -> None:
    """Repaired blocks of a packed cache lie in a side pool; the witness to zero is that of the packed slot."""
    host, side = host_store(16, 2, 64), stale_store(8, 2, 64)
    packed = torch.full((3, 2, 16, 8), 5.0, dtype=torch.float16, device=DEVICE)
    rows, slots, marks = some_slots(6, 16), some_slots(6, 8), some_slots(6, 48)
    page_in(host, rows, side, slots, witness=packed, witness_slots=marks, gamma=0.0)
    assert int(page_in_mismatches(host, rows, side, slots, witness=packed, witness_slots=marks, gamma=0.0)) == 0
    zero = (packed == 0).all(3).all(1).flatten()  # [slots]
    assert zero.nonzero()[:, 0].tolist() == sorted(marks.tolist())
    assert int((packed == 5).sum()) == (48 - 6) * 2 * 8
    assert bool((side.witness == 3.0).all())  # type: ignore[union-attr]


def test_refusals() -> None:
    host, store = host_store(16, 2, 64), stale_store(16, 2, 64)
    rows = some_slots(4, 16)
    other = host_store(16, 2, 64, torch.bfloat16)
    cases: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("exact stores", (host.k, rows, store, rows), {}),
        ("must agree", (other, rows, store, rows), {}),
        ("must agree", (host_store(16, 3, 64), rows, store, rows), {}),
        ("rows", (host, rows.float(), store, rows), {}),
        ("rows", (host, rows[None], store, rows), {}),
        ("slots", (host, rows, store, rows[:3]), {}),
        ("heads", (host, rows, store, rows), {"heads": rows[:2]}),
        ("witness_slots", (host, rows, store, rows), {"witness_slots": rows[:2]}),
        ("witness is", (host, rows, store, rows), {"witness": torch.zeros(4, 3, 16, device=DEVICE).half()}),
        ("witness is", (host, rows, store, rows), {"witness": torch.zeros(4, 2, 16, device=DEVICE)}),
        ("gamma", (host, rows, store, rows), {"gamma": -1.0}),
        ("gamma", (host, rows, store, rows), {"gamma": float("nan")}),
        ("bands splits", (host, rows, store, rows), {"bands": Bands(64, 8)}),
        ("there is none", (host, rows, ExactStore(store.k, store.v), rows), {"gamma": 0.0}),
    ]
    for match, arguments, keywords in cases:
        with pytest.raises(InputError, match=match):
            page_in(*arguments, **keywords)  # type: ignore[arg-type]


def test_nothing_to_do() -> None:
    host, store = host_store(16, 2, 64), stale_store(16, 2, 64)
    empty: Tensor = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    page_in(host, empty, store, empty)
    assert bool(store.k.isnan().all())


@pytest.mark.gpu
def test_pageable_memory_is_refused() -> None:
    host, store = host_store(16, 2, 64), stale_store(16, 2, 64)
    pageable = ExactStore(host.k.clone(), host.v.clone())
    rows = some_slots(4, 16)
    with pytest.raises(InputError, match="pinned"):
        page_in(pageable, rows, store, rows)
    with pytest.raises(InputError, match="pinned"):
        page_in(store, rows, store, rows)


@pytest.mark.gpu
def test_real_shape_in_a_graph() -> None:
    host, store = host_store(4096, 8, 128), stale_store(8192, 8, 128)
    expected = copy.deepcopy(store)
    rows, slots = some_slots(1024, 4096), some_slots(1024, 8192)
    page_in(host, rows, copy.deepcopy(store), slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        page_in(host, rows, store, slots)
        wrong = page_in_mismatches(host, rows, store, slots)
    for _ in range(2):
        rows.copy_(some_slots(1024, 4096))
        slots.copy_(some_slots(1024, 8192))
        graph.replay()
        assert int(wrong) == 0
        page_in(host, rows, expected, slots)
        assert_same(store, expected)
