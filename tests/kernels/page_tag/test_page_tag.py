"""Tags of pages: those of PyTorch, for every layout that a pool has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.stores import DEVICE
from tests.store.common import FORMATS, filled
from witcert.errors import InputError
from witcert.kernels.formats import ExactStore
from witcert.kernels.page_out import damaged_pairs
from witcert.kernels.page_out.reference import content_tag, row_tags, words_of
from witcert.kernels.page_tag import Rows, page_tags
from witcert.store.seal import Seals


def reference(parts: list[list[Tensor]], items: Tensor, heads: int, token_major: bool) -> Tensor:
    """The tags word by word, from the definition."""
    out = torch.zeros(items.shape[1], heads, len(parts), dtype=torch.int64)
    for n, (layer, page) in enumerate(items.T.tolist()):
        for head in range(heads):
            for i, tensors in enumerate(parts):
                words = []
                for x in tensors:
                    rows = x[page] if x.ndim == 2 else x[layer, page, :, head] if token_major else x[layer, page, head]
                    words.append(words_of(rows.reshape(1, -1))[0])
                site = torch.tensor(((page * heads + head) * 2**16 + layer) * 16 + i)
                out[n, head, i] = content_tag(torch.cat(words).cpu(), site)
    return out


@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize(("size", "n", "dtype"), [(16, 64, torch.float16), (16, 2, torch.float16), (1, 2, torch.float16),
                                                  (16, 128, torch.int8), (1, 64, torch.int8)])  # fmt: skip
def test_every_layout(size: int, n: int, dtype: torch.dtype, token_major: bool) -> None:
    if token_major and n == 2 and size == 16:
        n = 16  # token-major rows are keys, values or witnesses: whole words
    g = torch.Generator().manual_seed(3)
    shape = (3, 5, size, 2, n) if token_major else (3, 5, 2, size, n)
    a, b = (torch.randint(-128, 127, (*shape, dtype.itemsize), dtype=torch.int8, generator=g) for _ in range(2))
    a, b = (x.view(dtype)[..., 0].contiguous().to(DEVICE) for x in (a, b))
    shared = torch.randint(-(2**31), 2**31, (5, size), dtype=torch.int32, generator=g).to(DEVICE)
    items = torch.tensor([[0, 2, 1, 2], [4, 0, 3, 0]], device=DEVICE)
    parts = [[a], [b, a], [shared]]
    rows = [[Rows.of(x, token_major=token_major) for x in xs] for xs in parts]
    got = page_tags(rows, items, 2)
    assert torch.equal(got.cpu(), reference(parts, items, 2, token_major))
    assert torch.equal(got[1], got[3])
    assert got[0].unique().numel() == got[0].numel()


@pytest.mark.parametrize("name", FORMATS)
def test_the_two_ways_of_a_pool_agree(name: str) -> None:
    """Kernel and PyTorch give the same tags of every page of every format."""
    f, _ = filled(name, [50])
    tensors, c = f.pool.tensors, f.pool.config
    parts = tensors.sealed_parts()
    ways = [
        Seals(parts, c.layers, c.pages, c.kv_heads, token_major=not c.packed, device=f.pool.device, kernels=kernels)
        for kernels in (False, True)
    ]
    items = torch.tensor([[0, 1, 1, 0], [0, 3, 1, 2]], device=f.pool.device)
    assert torch.equal(ways[0].compute(items), ways[1].compute(items))


def test_copies_of_pairs() -> None:
    """A right copy, a flipped bit, a copy of another row or head, and rows that do not exist."""
    heads, d = 3, 64
    k, v = (torch.randn(20, heads, d).half() for _ in range(2))
    tags = row_tags(k, v, torch.arange(20), 4).to(DEVICE)
    rows, head = torch.tensor([3, 7, 7, 19, 0]), torch.tensor([0, 2, 1, 1, 2])
    data = ExactStore(*(torch.cat((x[rows, head], x[:1, 0]))[:, None].contiguous().to(DEVICE) for x in (k, v)))
    at, rows, head = (x.to(DEVICE) for x in (torch.arange(5), rows, head))
    assert damaged_pairs(data, at, rows, head, tags, layer=4).tolist() == [0] * 5
    assert damaged_pairs(data, at, rows, head, tags, layer=5).tolist() == [1] * 5
    assert damaged_pairs(data, at.flip(0), rows, head, tags, layer=4).tolist() == [1, 1, 0, 1, 1]
    data.v.view(torch.int16)[1, 0, 63] ^= 1
    assert damaged_pairs(data, at, rows, head, tags, layer=4).tolist() == [0, 1, 0, 0, 0]
    outside = torch.tensor([0, 6, -1, 3, 4], device=DEVICE)
    assert damaged_pairs(data, outside, rows, head, tags, layer=4).tolist() == [0, 1, 1, 0, 0]
    rows[3], head[4] = 20, 3
    assert damaged_pairs(data, at, rows, head, tags, layer=4).tolist() == [0, 1, 0, 1, 1]


def test_refusals() -> None:
    x = torch.zeros(2, 3, 2, 16, 4, dtype=torch.float16, device=DEVICE)
    items = torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
    for bad in (x.transpose(0, 1), x[0]):
        with pytest.raises(InputError, match="expected contiguous pages"):
            Rows.of(bad, token_major=False)
    with pytest.raises(InputError, match="no words of 8 bytes"):
        Rows.of(torch.zeros(2, 3, 16, 2, 1, dtype=torch.int8, device=DEVICE), token_major=True)
    rows = Rows.of(x, token_major=False)
    with pytest.raises(InputError, match="0 parts"):
        page_tags([], items, 2)
    with pytest.raises(InputError, match=r"items is torch\.int32"):
        page_tags([[rows]], items.int(), 2)
    assert page_tags([[rows]], items[:, :0], 2).shape == (0, 2, 1)
    single = ExactStore(torch.zeros(2, 2, 64, device=DEVICE).half(), torch.zeros(2, 2, 64, device=DEVICE).half())
    with pytest.raises(InputError, match="data is of 2 heads"):
        damaged_pairs(single, items[0], items[0], items[0], items)
