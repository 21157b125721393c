"""New rows of repaired pages: the bits, a sound witness, the largest key, and nothing else; and the table of the two parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE, hard_tokens
from witcert.errors import InputError
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.formats import ExactStore, PageTable
from witcert.kernels.side import split_table, write_exact
from witcert.kernels.side.reference import split_table_reference, write_exact_reference
from witcert.witness import Bands

PAGES = 7


def stale(slots: int, heads: int, d: int, dtype: torch.dtype, bands: int | None = 16) -> ExactStore:
    """A store of NaN, so that every row that is written shows."""
    k, v = (torch.full((slots, heads, d), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2))
    w = None if bands is None else torch.full((slots, heads, bands), torch.nan, dtype=torch.float16, device=DEVICE)
    return ExactStore(k, v, w)


def on_cpu(store: ExactStore) -> ExactStore:
    """A copy on the CPU: on a GPU, PyTorch's deterministic scatter of these tests adds, and loses the sign of zeros."""
    return ExactStore(*(None if x is None else x.to("cpu", copy=True) for x in (store.k, store.v, store.witness)))  # type: ignore[arg-type]


def some_map(heads: int, beside: bool) -> Tensor:
    """About half of the pairs repaired: each in a side page of its own, or in its own page."""
    g = torch.Generator().manual_seed(5)
    pairs = torch.rand(PAGES, heads, generator=g) < 0.5
    own = torch.arange(PAGES)[:, None].expand(PAGES, heads)
    side = torch.randperm(PAGES * heads, generator=g).view(PAGES, heads)
    return torch.where(pairs, side if beside else own, -1).int().to(DEVICE).contiguous()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("heads", "d", "dtype", "beside", "bands"),
    [
        (3, 64, torch.float16, True, Bands(64)), (2, 128, torch.bfloat16, True, Bands(128, 8)),
        (2, 64, torch.float16, False, Bands(64, 16, "adjacent")), (1, 256, torch.float16, True, Bands(256)),
        (2, 128, torch.float16, True, Bands(128, 16, "half", 64)), (2, 64, torch.bfloat16, True, None),
    ],
)  # fmt: skip
def test_rows_witness_and_largest_key(
    heads: int, d: int, dtype: torch.dtype, beside: bool, bands: Bands | None, page_size: int
) -> None:
    """Hard values, strided rows, slots out of range among them; the witness is at least the reference's and nearly it."""
    pages = some_map(heads, beside)
    rows = (PAGES * heads if beside else PAGES) * page_size
    store = stale(rows, 1 if beside else heads, d, dtype, None if bands is None else bands.bands)
    expected, tokens = on_cpu(store), min(40, PAGES * page_size)
    k, v = (hard_tokens(2 * tokens, heads, d, dtype)[::2] for _ in range(2))
    slots = torch.randperm(PAGES * page_size, device=DEVICE)[:tokens]
    slots[1], slots[2] = -1, PAGES * page_size
    largest, other = (torch.full((heads,), 0.25, device=device) for device in (DEVICE, "cpu"))
    how = {"page_size": page_size, "bands": bands, "gamma": dot_gamma(d)}
    write_exact(k, v, slots, pages, store, largest, **how)  # type: ignore[arg-type]
    k, v, slots, pages = (x.cpu() for x in (k, v, slots, pages))
    write_exact_reference(k, v, slots, pages, expected, other, **how)  # type: ignore[arg-type]
    store, largest = on_cpu(store), largest.cpu()
    for x, y in ((store.k, expected.k), (store.v, expected.v)):
        assert torch.equal(x.view(torch.int16), y.view(torch.int16))
    assert not store.k.isnan().all()
    if store.witness is not None and expected.witness is not None:
        assert torch.equal(store.witness.isnan(), expected.witness.isnan())
        w, least = (x[~x.isnan()].double() for x in (store.witness, expected.witness))
        assert (w >= least).all()
        assert ((w == least) | (w <= least * (1 + 2.0**-9) + 2.0**-23)).all()
    assert (largest >= other * (1 - 2.0**-22)).all()
    finite = other < torch.inf
    assert (largest[finite] <= other[finite] * 1.0001 + 1e-17).all()
    inside = (slots >= 0) & (slots < PAGES * page_size)
    real = torch.linalg.vector_norm(k[inside].double(), dim=-1).amax(0).nan_to_num(nan=torch.inf)
    assert (largest.double() >= real).all()


def test_a_norm_that_is_no_number_is_infinite_and_one_that_underflows_is_not_lost() -> None:
    pages = torch.full((1, 2), -1, dtype=torch.int32, device=DEVICE)
    store, largest = stale(16, 1, 64, torch.bfloat16), torch.zeros(2, device=DEVICE)
    k = torch.zeros(1, 2, 64, dtype=torch.bfloat16, device=DEVICE)
    k[0, 0, 3], k[0, 1, 5] = -torch.nan, 1e-30
    slots = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    write_exact(k, k, slots, pages, store, largest, page_size=16, gamma=1e-6)
    assert largest[0] == torch.inf
    assert 1e-30 <= largest[1] <= 4e-18
    assert store.k.isnan().all()


@pytest.mark.parametrize("page_size", [1, 16])
def test_split_table(page_size: int) -> None:
    heads, columns = 3, 300
    pages = some_map(heads, True)
    table = torch.randint(-2, PAGES + 2, (4, columns), dtype=torch.int32, device=DEVICE)
    lens = torch.tensor([0, 1, columns * page_size, 131 * page_size + 1 - page_size], dtype=torch.int32, device=DEVICE)
    where = PageTable(table, lens, page_size)
    for got, want in zip(split_table(where, pages), split_table_reference(where, pages), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
    parts, side = split_table(where, pages)
    assert parts.shape == (4, heads, columns)
    assert int(parts[0].sum()) == 0
    assert bool(((side > 0) <= (parts.flatten(0, 1) > 0)).all())


def test_refusals() -> None:
    pages, slots = some_map(2, True), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    store, largest = stale(32, 1, 64, torch.float16), torch.zeros(2, device=DEVICE)
    k = torch.zeros(1, 2, 64, dtype=torch.float16, device=DEVICE)
    for change, match in [
        ({"pages": pages.long()}, "pages is torch.int64"),
        ({"pages": pages.T}, "pages is torch.int32"),
        ({"k": k.float()}, "k has dtype torch.float32"),
        ({"k": k[:, :1]}, "k has shape"),
        ({"v": k[:0]}, "v has shape"),
        ({"slots": slots[:0]}, "slots has shape"),
        ({"page_size": 8}, "page_size=8"),
        ({"largest": largest[:1]}, "largest is torch.float32"),
        ({"store": stale(32, 3, 64, torch.float16)}, "store has 3 heads"),
        ({"store": k}, "store is Tensor"),
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"bands": Bands(64, 8)}, "bands splits 64 channels into 8"),
    ]:
        given = {"k": k, "v": k, "slots": slots, "pages": pages, "store": store, "largest": largest, "page_size": 16,
                 "gamma": 0.0, **change}  # fmt: skip
        with pytest.raises(InputError, match=match):
            write_exact(**given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="table is Tensor"):
        split_table(pages, pages)  # type: ignore[arg-type]
    assert store.k.isnan().all()


@pytest.mark.gpu
def test_in_a_captured_graph() -> None:
    """Rows that are written by a replay, with slots and map changed in between."""
    pages = torch.full((PAGES, 2), -1, dtype=torch.int32, device=DEVICE)
    store, largest = stale(64, 1, 64, torch.float16), torch.zeros(2, device=DEVICE)
    k = torch.randn(4, 2, 64, device=DEVICE).half()
    slots = torch.arange(4, device=DEVICE)
    write_exact(k, k, slots, pages, store, largest, page_size=16, gamma=1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write_exact(k, k, slots, pages, store, largest, page_size=16, gamma=1e-6)
    pages[2, 1] = 3
    slots += 32
    graph.replay()
    assert torch.equal(store.k[48:52, 0], k[:, 1])
    assert store.k.isnan().sum() == store.k.numel() - 4 * 64
