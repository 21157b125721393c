"""Page-in: the host's bits arrive, nothing else changes, witnesses become 0, and the read-back notices any difference."""

import copy

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE, hard_tokens, some_slots
from witcert.errors import InputError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_in import page_in, page_in_mismatches
from witcert.kernels.page_in.reference import page_in_reference


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
    for name in ("k", "v", "witness"):
        a, b = getattr(store, name), getattr(expected, name)
        assert torch.equal(a.view(torch.int16), b.view(torch.int16)), name


@pytest.mark.parametrize(
    ("heads", "head_dim", "dtype"), [(3, 64, torch.float16), (8, 128, torch.bfloat16), (1, 256, torch.float16)]
)
@pytest.mark.parametrize("by_head", [False, True])
def test_bits_arrive_and_nothing_else_changes(heads: int, head_dim: int, dtype: torch.dtype, by_head: bool) -> None:
    host, store = host_store(20, heads, head_dim, dtype), stale_store(30, heads, head_dim, dtype)
    expected = copy.deepcopy(store)
    rows, slots = some_slots(12, 20, torch.int32), some_slots(12, 30)
    rows[3], slots[4], rows[5], slots[6] = -1, -1, 20, 30
    which = torch.randint(0, heads, (12,), device=DEVICE) if by_head else None
    if which is not None:
        which[7] = heads
    page_in(host, rows, store, slots, heads=which)
    page_in_reference(host, rows, expected, slots, heads=which)
    assert_same(store, expected)
    assert int(page_in_mismatches(host, rows, store, slots, heads=which)) == 0


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
    store.witness[int(slots[9]), 1, 15] = 2.0**-24
    assert int(page_in_mismatches(host, rows, store, slots)) == 3


def test_a_side_pool_and_the_witness_of_a_packed_store() -> None:
    """Repaired blocks of a packed cache lie in a side pool; the witness to zero is that of the packed slot."""
    host, side = host_store(16, 2, 64), stale_store(8, 2, 64)
    packed = torch.full((3, 2, 16, 8), 5.0, dtype=torch.float16, device=DEVICE)
    rows, slots, marks = some_slots(6, 16), some_slots(6, 8), some_slots(6, 48)
    page_in(host, rows, side, slots, witness=packed, witness_slots=marks)
    assert int(page_in_mismatches(host, rows, side, slots, witness=packed, witness_slots=marks)) == 0
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
