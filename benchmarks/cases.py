"""What is measured: shapes, random stores of a shape on the GPU, and the variants of decode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, DecodeOutput, HalfStepMeter, TierBMeter, Tuning, decode
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable

BUDGET = Budget(layers=28, heads=28, kv_heads=4)


@dataclass(frozen=True)
class Shape:
    """One decode step: batch sequences of S cached tokens, Hkv KV heads of G query heads each, head dimension d."""

    batch: int
    tokens: int
    kv_heads: int
    group: int
    head_dim: int

    @property
    def name(self) -> str:
        return f"b{self.batch}-s{self.tokens}-h{self.kv_heads}x{self.group}-d{self.head_dim}"

    @property
    def cells(self) -> int:
        return self.batch * self.kv_heads * self.group

    def read(self, bytes_per_token: int) -> int:
        """Bytes that one step must move: the cache once, queries in, outputs out, the page table."""
        cache = self.batch * self.tokens * self.kv_heads * bytes_per_token
        return cache + 4 * self.cells * self.head_dim + 4 * self.batch * self.tokens // 16


@dataclass(frozen=True)
class Variant:
    """A store and a meter: what is stored, what is read from it."""

    name: str
    packed: bool = False
    dither: bool = False
    dither_values: bool = False
    bands: int | None = None
    pairs: int = 0
    meter: str = "none"

    def meter_of(self, shape: Shape) -> BandMeter | HalfStepMeter | TierBMeter | None:
        if self.meter == "band":
            return BandMeter()
        if self.meter == "half":
            return HalfStepMeter()
        if self.meter == "tierB":
            return TierBMeter(BUDGET, 2**18)
        return None


VARIANTS = (
    Variant("fp16"),
    Variant("fp16+TierA", bands=16, meter="band"),
    Variant("int8", packed=True),
    Variant("int8+half", packed=True, meter="half"),
    Variant("int8+TierA", packed=True, bands=16, meter="band"),
    Variant("int8 dither K", packed=True, dither=True),
    Variant("int8 dither K+half", packed=True, dither=True, meter="half"),
    Variant("int8 dither K+TierB", packed=True, dither=True, meter="tierB"),
    Variant("int8 dither KV", packed=True, dither=True, dither_values=True),
    Variant("int8 dither KV+TierB", packed=True, dither=True, dither_values=True, meter="tierB"),
    Variant("int8 dither KV m4+TierB", packed=True, dither=True, dither_values=True, pairs=4, meter="tierB"),
)


def page_table(shape: Shape, page_size: int) -> PageTable:
    """Pages of all sequences, shuffled over the whole pool."""
    pages = shape.tokens // page_size
    order = torch.randperm(shape.batch * pages, device="cuda", dtype=torch.int32).view(shape.batch, pages)
    return PageTable(order, torch.full((shape.batch,), shape.tokens, dtype=torch.int32, device="cuda"), page_size)


def queries(shape: Shape) -> Tensor:
    """Random float16 queries."""
    return torch.randn(shape.batch, shape.kv_heads * shape.group, shape.head_dim, device="cuda").half()


def random_store(shape: Shape, variant: Variant, page_size: int) -> ExactStore | PackedStore:
    """A store of the variant filled with random numbers of realistic size."""
    slots, h, d = shape.batch * shape.tokens, shape.kv_heads, shape.head_dim
    device = "cuda"
    if not variant.packed:
        k = torch.empty(slots, h, d, dtype=torch.float16, device=device).normal_()
        v = torch.empty(slots, h, d, dtype=torch.float16, device=device).normal_()
        w = None
        if variant.bands:
            w = torch.empty(slots, h, variant.bands, dtype=torch.float16, device=device).uniform_(0, 0.01)
        return ExactStore(k, v, w)
    channels = None
    if variant.pairs:
        first = torch.stack([torch.randperm(d // 2)[: variant.pairs] for _ in range(h)])
        channels = torch.cat([first, first + d // 2], -1).int().to(device)
    dither = Dither(20261129, 3, values=variant.dither_values) if variant.dither else None
    pages = slots // page_size
    store = PackedStore.empty(
        pages, h, d, page_size, dither=dither, outlier_channels=channels, bands=variant.bands, device=device
    )
    for code in (store.k_code, store.v_code):
        code.copy_(torch.randint(-127, 128, code.shape, dtype=torch.int8, device=device))
    for scale in (store.k_scale, store.v_scale):
        scale.uniform_(0.01, 0.03)
    if store.k_outlier is not None:
        store.k_outlier.normal_()
    if store.witness is not None:
        store.witness.uniform_(0, 0.01)
    return store


def step(q: Tensor, store: ExactStore | PackedStore, table: PageTable, variant: Variant, shape: Shape,
         tuning: Tuning | None = None) -> DecodeOutput:  # fmt: skip
    """One decode step of the variant."""
    return decode(
        q, store, table, scale=shape.head_dim**-0.5, meter=variant.meter_of(shape), tuning=tuning
    )
