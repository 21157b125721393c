"""Paged caches that the package's own write kernels fill, with the exact keys and values kept aside.

A cache is built the way a server builds one: pages in random order, ragged sequences, epochs of any value, and poison in
every slot that no sequence owns (NaN, codes 77), so that reading one shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.formats import GROUP, Dither, ExactStore, PackedStore, PageTable
from witcert.kernels.philox.reference import draw_bytes, pack_counter, philox4x32
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.witness_write import witness_write
from witcert.witness import Bands

__all__ = ["Case", "exact_case", "generator", "normal", "outlier_channels", "packed_case", "page_table", "served", "uniform"]


@dataclass(frozen=True)
class Case:
    """A decode step: what the kernel gets, and the exact keys and values in order of position.

    q half [N, Hq, d]; k, v exact [N, S, Hkv, d], of which the first seq_lens are cached; scale, window, softcap, sinks:
    as ``decode`` takes them; bands: the split of the store's witness, if it has one. mask bool [N, S]: what is seen, where
    lengths and window do not say it (a query of a chunk).
    """

    q: Tensor
    store: ExactStore | PackedStore
    table: PageTable
    k: Tensor
    v: Tensor
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    bands: Bands | None = None
    mask: Tensor | None = None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k.shape[2]

    def slots(self) -> Tensor:
        """Slot of every position, int64 [N, S]; that of positions past the end is some slot."""
        position = torch.arange(self.k.shape[1], device=self.q.device)
        there = position < self.table.seq_lens[:, None]
        page = self.table.pages.long()[:, position // self.table.page_size].masked_fill(~there, 0)
        return page * self.table.page_size + position % self.table.page_size

    def visible(self) -> Tensor:
        """Which positions the query sees, bool [N, S]."""
        if self.mask is not None:
            return self.mask
        position = torch.arange(self.k.shape[1], device=self.q.device)
        length = self.table.seq_lens[:, None]
        seen = position < length
        return seen if self.window is None else seen & (position >= length - self.window)

    def options(self) -> dict[str, object]:
        """Keyword arguments of ``decode`` apart from meter and tuning."""
        return {"scale": self.scale, "window": self.window, "softcap": self.softcap, "sinks": self.sinks}


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A seeded stream of random numbers on the device."""
    return torch.Generator(device=device).manual_seed(seed)


def normal(g: torch.Generator, *shape: int) -> Tensor:
    """Standard normal float64 numbers."""
    return torch.randn(shape, generator=g, device=g.device, dtype=torch.float64)


def uniform(g: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Uniform float64 numbers in [low, high)."""
    return low + (high - low) * torch.rand(shape, generator=g, device=g.device, dtype=torch.float64)


def outlier_channels(g: torch.Generator, heads: int, d: int, pairs: int) -> Tensor:
    """A random set of RoPE pairs for each head, as the store lists them; int32 [heads, 2 pairs]."""
    first = torch.rand((heads, d // 2), generator=g, device=g.device).argsort(-1)[:, :pairs]
    return torch.cat((first, first + d // 2), -1).int()


def page_table(g: torch.Generator, lens: Tensor, page_size: int, tokens: int, spare: int = 3) -> tuple[PageTable, int]:
    """Sequences of up to ``tokens`` tokens on random pages; entries past the end point far outside. Also the pool's pages."""
    each = -(-tokens // page_size)
    pool = len(lens) * each + spare
    pages = torch.randperm(pool, generator=g, device=g.device)[: len(lens) * each].view(len(lens), each).int()
    used = torch.arange(each, device=g.device) * page_size < lens[:, None]
    return PageTable(torch.where(used, pages, 2**31 - 1).contiguous(), lens.int().contiguous(), page_size), pool


def _targets(table: PageTable, tokens: int) -> Tensor:
    """Slot of every position [N * S], -1 past the end."""
    position = torch.arange(tokens, device=table.pages.device)
    there = position < table.seq_lens[:, None]
    page = table.pages.long()[:, position // table.page_size]
    return torch.where(there, page * table.page_size + position % table.page_size, -1).flatten()


def exact_case(
    g: torch.Generator, q: Tensor, k_hat: Tensor, k: Tensor, v: Tensor, lens: Tensor, *, page_size: int = 1,
    bands: Bands | None = None, scale: float | None = None,
) -> Case:  # fmt: skip
    """An exact store that serves k_hat half [N, S, Hkv, d] in place of k, its witness written by ``witness_write``."""
    tokens, heads, d = k.shape[1:]
    table, pages = page_table(g, lens, page_size, tokens)
    slots = _targets(table, tokens)
    pool = torch.full((pages * page_size, heads, d), math.nan, dtype=k_hat.dtype, device=g.device)
    values = pool.clone()
    kept = slots >= 0
    pool[slots[kept]] = k_hat.flatten(0, 1)[kept]
    values[slots[kept]] = v.to(k_hat.dtype).flatten(0, 1)[kept]
    witness = None
    if bands is not None:
        witness = torch.full((pages * page_size, heads, bands.bands), math.nan, dtype=torch.float16, device=g.device)
        rows = k.flatten(0, 1).contiguous(), k_hat.flatten(0, 1).contiguous()
        witness_write(*rows, slots, witness, bands=bands, gamma=dot_gamma(d))
    store = ExactStore(pool, values, witness)
    return Case(q.contiguous(), store, table, k, v, d**-0.5 if scale is None else scale, bands=bands)


def packed_case(
    g: torch.Generator, q: Tensor, k: Tensor, v: Tensor, lens: Tensor, *, page_size: int = 1,
    dither: Dither | None = None, epochs: Tensor | None = None, outliers: Tensor | None = None,
    bands: Bands | None = None, scale: float | None = None, table: tuple[PageTable, int] | None = None,
) -> Case:  # fmt: skip
    """A packed store that ``rtn_write`` or ``dither_int8_write`` filled with k, v [N, S, Hkv, d].

    epochs : int32 of every slot, or random ones. outliers : int32 [Hkv, 2m]. table : a page table and its pool of pages,
    for keys that were made for their slots.
    """
    tokens, heads, d = k.shape[1:]
    where, pages = table or page_table(g, lens, page_size, tokens)
    store = PackedStore.empty(
        pages, heads, d, page_size, dither=dither, outlier_channels=outliers, device=g.device,
        bands=None if bands is None else bands.bands,
    )  # fmt: skip
    for name, poison in (("k_code", 77), ("v_code", 77), ("k_scale", math.nan), ("v_scale", math.nan),
                         ("k_outlier", math.nan), ("witness", math.nan)):  # fmt: skip
        if getattr(store, name) is not None:
            getattr(store, name).fill_(poison)
    if store.epochs is not None:
        if epochs is None:
            epochs = torch.randint(-(2**31), 2**31, store.epochs.shape, generator=g, device=g.device).int()
        store = replace(store, epochs=epochs)
    write = rtn_write if dither is None else dither_int8_write
    rows = k.flatten(0, 1).contiguous(), v.to(k.dtype).flatten(0, 1).contiguous()
    write(*rows, _targets(where, tokens), store, bands=bands)
    return Case(q.contiguous(), store, where, k, v.to(k.dtype), d**-0.5 if scale is None else scale, bands=bands)


def dither_numbers(store: PackedStore, slots: Tensor, side: int) -> Tensor:
    """xi of the codes at slots [N, S], float64 [N, S, Hkv, d], on the device of the store."""
    assert store.dither is not None
    assert store.epochs is not None
    device = slots.device
    counter = pack_counter(
        layer=torch.tensor(store.dither.layer, device=device),
        head=torch.arange(store.kv_heads, device=device)[:, None],
        slot=slots[..., None, None],
        epoch=(store.epochs[slots].long() & 0xFFFFFFFF)[..., None, None],
        block=torch.arange(store.head_dim // 16, device=device),
        side=torch.tensor(side, device=device),
    )
    byte = draw_bytes(philox4x32(counter, store.dither.seed, store.dither.rounds)).flatten(-2)
    return (2 * byte - 255).double() / 512


def served(case: Case, side: str = "k") -> Tensor:
    """k_hat (side "k") or v_hat (side "v") of every position as real numbers, float64 [N, S, Hkv, d].

    Exact: a packed number is a 11-bit scale times a 17-bit multiple. What the store does not claim is NaN, and so is what
    no sequence owns.
    """
    store, slots = case.store, case.slots()
    if isinstance(store, ExactStore):
        return (store.k if side == "k" else store.v)[slots].double()
    page, row = slots // store.page_size, slots % store.page_size
    code, scale = (store.k_code, store.k_scale) if side == "k" else (store.v_code, store.v_scale)
    n = code[page, :, row].double()
    if store.dither is not None and (side == "k" or store.dither.values):
        n = n - dither_numbers(store, slots, 0 if side == "k" else 1)
    s = scale[page, :, row].double().repeat_interleave(GROUP, -1)
    x = torch.where(s.isfinite(), s * n, math.nan)
    if side == "k" and store.k_outlier is not None and store.outlier_channels is not None:
        index = store.outlier_channels.long().expand(*slots.shape, -1, -1)
        x = x.scatter(-1, index, store.k_outlier[page, :, row].double())
    return x


def stored_steps(case: Case) -> Tensor:
    """The stored scale of every key channel, float64 [N, S, Hkv, d]; 0 for outlier channels."""
    store, slots = case.store, case.slots()
    assert isinstance(store, PackedStore)
    s = store.k_scale[slots // store.page_size, :, slots % store.page_size].double().repeat_interleave(GROUP, -1)
    if store.outlier_channels is not None:
        s = s.scatter(-1, store.outlier_channels.long().expand(*slots.shape, -1, -1), 0.0)
    return s


def stored_witness(case: Case) -> Tensor:
    """The stored witness of every position, float64 [N, S, Hkv, B]."""
    store, slots = case.store, case.slots()
    assert store.witness is not None
    if isinstance(store, ExactStore):
        return store.witness[slots].double()
    return store.witness[slots // store.page_size, :, slots % store.page_size].double()
