"""Poisoned stores and hard inputs for the tests of the write kernels."""

import copy

import torch
from torch import Tensor

from witcert.kernels.formats import Dither, PackedStore

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POOLS = ("k_code", "k_scale", "v_code", "v_scale", "k_outlier", "witness")


def outlier_channels(heads: int, head_dim: int, pairs: int, *, half: bool = True) -> Tensor | None:
    """A different random set of pairs for each head, in random order, laid out as the store wants it; None for 0."""
    if pairs == 0:
        return None
    rows = []
    for _ in range(heads):
        first = torch.randperm(head_dim // 2)[:pairs]
        rows.append(torch.cat((first, first + head_dim // 2) if half else (2 * first, 2 * first + 1)))
    return torch.stack(rows).to(torch.int32).to(DEVICE)


def poisoned_store(
    heads: int, head_dim: int, page_size: int, pages: int, *, dither: Dither | None = None, pairs: int = 0,
    bands: int | None = None, half: bool = True,
) -> PackedStore:  # fmt: skip
    """A store full of stale data: codes 77, negative scales, NaN outliers, zero witnesses, epochs of any size."""
    store = PackedStore.empty(
        pages, heads, head_dim, page_size, dither=dither, bands=bands, device=DEVICE,
        outlier_channels=outlier_channels(heads, head_dim, pairs, half=half),
    )  # fmt: skip
    for name in POOLS:
        pool = getattr(store, name)
        if pool is not None:
            pool.fill_({"k_code": 77, "v_code": 77, "k_outlier": torch.nan, "witness": 0.0}.get(name, -3.0))
    if store.epochs is not None:
        store.epochs.copy_(torch.randint(-(2**31), 2**31, store.epochs.shape))
    return store


def clone(store: PackedStore) -> PackedStore:
    """The same store in memory of its own."""
    return copy.deepcopy(store)


def bits(x: Tensor) -> Tensor:
    """The bits of a tensor, all NaNs alike."""
    if x.dtype.is_floating_point:
        return torch.where(x.isnan(), torch.tensor(torch.nan, dtype=x.dtype, device=x.device), x).view(torch.int16)
    return x


def hard_tokens(tokens: int, heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Tokens [T, H, d] with massive activations, zeros, subnormals, the largest number, NaN, infinity (T >= 16)."""
    x = torch.randn(tokens, heads, head_dim) * torch.rand(tokens, heads, 1) * 8
    x = x.to(dtype)
    tiny = torch.finfo(dtype).smallest_normal
    x[0] = 0.0
    x[1, :, 3] = 30000.0  # a massive activation
    x[2] *= tiny  # subnormal
    x[3] = torch.finfo(dtype).max
    x[4] = -torch.finfo(dtype).max
    x[5, :, 1::2] = 0.0
    x[6, 0, 5] = torch.nan
    x[7, -1, 40] = torch.inf
    x[8, 0, 33] = -torch.inf
    x[9] = -0.0
    x[10, :, ::32] = torch.finfo(dtype).smallest_normal / 16
    x[11] = 126.5  # scale 1, ties
    x[11, :, 1:] = torch.arange(head_dim - 1) % 126 + 0.5
    x[12] *= 2.0**-12
    x[13] = 0.0
    x[13, :, 5] = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the least number there is
    return x.to(DEVICE)


def some_slots(tokens: int, slots: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Slots in random order, none twice."""
    return torch.randperm(slots)[:tokens].to(dtype).to(DEVICE)
