"""Layouts of the cache: byte counts, slots of a page table, and what is refused."""

from __future__ import annotations

import pytest
import torch

from witcert.errors import InputError
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable


def test_bytes_per_token() -> None:
    store = PackedStore.empty(2, 4, 128, 16)
    assert store.bytes_per_token == 2 * 136
    channels = torch.stack([torch.randperm(64)[:8] for _ in range(4)])
    channels = torch.cat([channels, channels + 64], -1).int()
    rich = PackedStore.empty(2, 4, 128, 16, outlier_channels=channels, bands=16, dither=Dither(1, 2))
    assert rich.bytes_per_token == 2 * 136 + 4 * 8 + 32
    assert rich.outlier_pairs == 8
    assert (rich.epochs == 0).all()
    measured = sum(x.numel() * x.element_size() for x in (store.k_code, store.k_scale, store.v_code, store.v_scale))
    assert measured == store.bytes_per_token * store.slots * store.kv_heads
    half = torch.zeros(3, 2, 64, dtype=torch.float16)
    exact = ExactStore(half, half, torch.zeros(3, 2, 8, dtype=torch.float16))
    assert (exact.bytes_per_token, exact.slots, exact.kv_heads, exact.head_dim) == (2 * 128 + 16, 3, 2, 64)


@pytest.mark.parametrize("page_size", [1, 16])
def test_slots(page_size: int) -> None:
    pages = torch.tensor([[5, 0], [1, 7]], dtype=torch.int32)
    lens = torch.tensor([page_size + 1, 1], dtype=torch.int32)
    table = PageTable(pages, lens, page_size)
    first = [5 * page_size + i for i in range(page_size)] + [0]
    assert table.slots(0).tolist() == first
    assert table.slots(1).tolist() == [page_size]
    assert (table.batch, table.max_tokens) == (2, 2 * page_size)


def test_seed_words() -> None:
    for seed in (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
        low, high = Dither(seed, 0).words
        assert -(2**31) <= low < 2**31
        assert (low & 0xFFFFFFFF) | ((high & 0xFFFFFFFF) << 32) == seed


def test_refusals() -> None:
    half = torch.zeros(4, 2, 64, dtype=torch.float16)
    code = torch.zeros(4, 2, 1, 64, dtype=torch.int8)
    scale = torch.zeros(4, 2, 1, 2, dtype=torch.float16)
    epochs = torch.zeros(4, dtype=torch.int32)
    ints = torch.zeros(2, 2, dtype=torch.int32)
    bad = [
        ("page_size", lambda: PageTable(ints, ints[0], 8)),
        ("pages has dtype", lambda: PageTable(ints.long(), ints[0], 1)),
        ("seq_lens has shape", lambda: PageTable(ints, ints, 1)),
        ("v has dtype", lambda: ExactStore(half, half.bfloat16())),
        ("k has dtype", lambda: ExactStore(half.float(), half)),
        ("head_dim", lambda: ExactStore(half[..., :32].contiguous(), half[..., :32].contiguous())),
        ("not contiguous", lambda: ExactStore(half.transpose(0, 1), half.transpose(0, 1))),
        ("bands", lambda: ExactStore(half, half, torch.zeros(4, 2, 4, dtype=torch.float16))),
        ("multiple of 16", lambda: ExactStore(torch.zeros(513, dtype=torch.float16)[1:].view(4, 2, 64), half)),
        ("k_scale has shape", lambda: PackedStore(code, scale[..., :1].contiguous(), code, scale)),
        ("come together", lambda: PackedStore(code, scale, code, scale, epochs=epochs)),
        ("epochs has shape", lambda: PackedStore(code, scale, code, scale, epochs[:2], Dither(0, 0))),
        ("come together", lambda: PackedStore(code, scale, code, scale, k_outlier=scale)),
        ("seed", lambda: Dither(-1, 0)),
        ("layer", lambda: Dither(0, 2**16)),
        ("rounds", lambda: Dither(0, 0, 8)),
        ("k is NoneType", lambda: ExactStore(None, half)),  # type: ignore[arg-type]
    ]
    for message, build in bad:
        with pytest.raises(InputError, match=message):
            build()
