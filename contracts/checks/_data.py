"""Hard tokens, stores that the kernels have written, and what such a store serves, computed from its bits alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from contracts.checks._philox import site_bytes
from contracts.discharge import Setting
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.formats import Dither, PackedStore
from witcert.kernels.rtn_write import rtn_write
from witcert.witness import Bands

__all__ = ["GROUP", "Plan", "Written", "band_of_channel", "draw", "hard_tokens", "rows_of", "write"]

GROUP = 32
Pairing = Literal["half", "adjacent"]


def band_of_channel(head_dim: int, bands: int, pairing: Pairing, rotary: int | None = None) -> Tensor:
    """Band of each channel from the definition: the pairs in order of frequency, then the rest two by two."""
    turned = head_dim if rotary is None else rotary
    pair = []
    for channel in range(head_dim):
        half = pairing == "half" and channel < turned
        pair.append(channel % (turned // 2) if half else channel // 2)
    return torch.tensor([p * bands // (head_dim // 2) for p in pair])


def draw(setting: Setting, seed: int) -> torch.Generator:
    """A generator on the device of the setting."""
    return torch.Generator(setting.device).manual_seed(seed)


def hard_tokens(rng: torch.Generator, tokens: int, heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Tokens [T, H, d], T >= 16: random at scales from 2^-20 to 2^12; the first ones are edge cases.

    Zero, one massive channel, subnormal, the largest numbers, NaN, infinities, ties of a scale that is exactly 1, the
    least number alone, a group that is zero beside one that is not.
    """
    device = rng.device
    size = torch.exp2(torch.randint(-20, 13, (tokens, heads, 1), generator=rng, device=device).float())
    x = (torch.randn(tokens, heads, head_dim, generator=rng, device=device) * size).to(dtype)
    info = torch.finfo(dtype)
    x[0] = 0.0
    x[1, :, 3] = 30000.0
    x[2] = (torch.randn(heads, head_dim, generator=rng, device=device) * info.smallest_normal).to(dtype)
    x[3] = info.max
    x[4, :, ::2] = -info.max
    x[5, 0, 5] = torch.nan
    x[6, -1, 40] = torch.inf
    x[7, 0, 33] = -torch.inf
    x[8] = -0.0
    x[9] = 126.5
    x[9, :, 1:] = torch.arange(head_dim - 1, device=device) % 126 + 0.5
    x[10] = 0.0
    x[10, :, 5] = info.smallest_normal * info.eps
    x[11, :, :GROUP] = 0.0
    x[12] = 127.0
    x[12, :, 1:] = torch.arange(head_dim - 1, device=device) % 126 + 0.5
    return x


@dataclass(frozen=True)
class Plan:
    """How a packed store is written: dithered or to nearest, outlier pairs, bands of the witness (None: no witness)."""

    head_dim: int = 64
    page_size: int = 1
    dtype: torch.dtype = torch.float16
    rounds: int = 7
    dithered: bool = True
    values: bool = True
    pairs: int = 0
    bands: int | None = None
    pairing: Pairing = "half"
    gamma: float = 0.0
    seed: int = 2**63 + 60602
    layer: int = 513

    def __str__(self) -> str:
        kind = f"dither{self.rounds}" if self.dithered else "rtn"
        witness = "" if self.bands is None else f" B={self.bands} {self.pairing} gamma={self.gamma:.3g}"
        return f"{kind} d={self.head_dim} page={self.page_size} {str(self.dtype)[6:]} m={self.pairs}{witness}"


@dataclass(frozen=True)
class Written:
    """Tokens k, v [T, H, d] that the kernel of the plan wrote to slots [T] of the store."""

    plan: Plan
    k: Tensor
    v: Tensor
    slots: Tensor
    store: PackedStore

    def bytes(self, side: int) -> Tensor:
        """Dither bytes of a side from the definition, int64 [T, H, d]."""
        assert self.store.epochs is not None
        epochs = self.store.epochs[self.slots].long()
        plan = self.plan
        return site_bytes(
            plan.seed, plan.layer, self.store.kv_heads, self.slots, epochs, side, plan.head_dim, plan.rounds
        )

    def codes(self, side: int) -> tuple[Tensor, Tensor]:
        """Stored codes and scales, float64 [T, H, d] and [T, H, d] (a scale for each channel)."""
        store = self.store
        pools = (store.k_code, store.k_scale) if side == 0 else (store.v_code, store.v_scale)
        code, scale = (rows_of(pool, self.slots, store.page_size).double() for pool in pools)
        return code, scale.repeat_interleave(GROUP, -1)

    def shift(self, side: int) -> Tensor:
        """xi of each channel, float64 [T, H, d]; 0 for a side without dither."""
        if not self.plan.dithered or (side == 1 and not self.plan.values):
            return torch.zeros(self.k.shape, dtype=torch.float64, device=self.k.device)
        return (2 * self.bytes(side) - 255).double() / 512

    def kept(self) -> Tensor:
        """Which channels of the keys are stored exactly, bool [H, d]."""
        mask = torch.zeros(self.k.shape[1:], dtype=torch.bool, device=self.k.device)
        if self.store.outlier_channels is not None:
            mask.scatter_(1, self.store.outlier_channels.long(), True)
        return mask

    def served_keys(self) -> Tensor:
        """k_hat as the store serves it, exact in float64 [T, H, d]; NaN where the scale is not finite."""
        code, scale = self.codes(0)
        served = torch.where(scale.isfinite(), scale * (code - self.shift(0)), torch.nan)
        if self.store.k_outlier is not None and self.store.outlier_channels is not None:
            exact = rows_of(self.store.k_outlier, self.slots, self.store.page_size).double()
            served = served.scatter(2, self.store.outlier_channels.long().expand(len(exact), -1, -1), exact)
        return served

    def witness(self) -> Tensor:
        """Stored witness, float64 [T, H, B]."""
        assert self.store.witness is not None
        return rows_of(self.store.witness, self.slots, self.store.page_size).double()


def rows_of(pool: Tensor, slots: Tensor, page_size: int) -> Tensor:
    """Rows of slots of a paged pool [pages, H, page_size, ...]: [T, H, ...]."""
    return pool[slots // page_size, :, slots % page_size]


def _channels(rng: torch.Generator, heads: int, plan: Plan) -> Tensor | None:
    """Random outlier pairs, other ones for each head, as the store wants them."""
    if not plan.pairs:
        return None
    rows = []
    for _ in range(heads):
        pair = torch.randperm(plan.head_dim // 2, generator=rng, device=rng.device)[: plan.pairs]
        half = plan.pairing == "half"
        rows.append(torch.cat((pair, pair + plan.head_dim // 2) if half else (2 * pair, 2 * pair + 1)))
    return torch.stack(rows).to(torch.int32)


def write(rng: torch.Generator, plan: Plan, k: Tensor, v: Tensor, slots: Tensor | None = None) -> Written:
    """Write tokens k, v [T, H, d] to random slots (or the given ones) of a store full of stale data."""
    tokens, heads, _ = k.shape
    pages = -(-max(2 * tokens, 64) // plan.page_size)
    dither = Dither(plan.seed, plan.layer, plan.rounds, plan.values) if plan.dithered else None
    store = PackedStore.empty(
        pages, heads, plan.head_dim, plan.page_size, dither=dither, outlier_channels=_channels(rng, heads, plan),
        bands=plan.bands, device=rng.device,
    )  # fmt: skip
    for pool, stale in ((store.k_code, 77), (store.v_code, 77), (store.k_scale, -3.0), (store.v_scale, -3.0)):
        pool.fill_(stale)
    for extra in (store.k_outlier, store.witness):
        if extra is not None:
            extra.zero_()
    if store.epochs is not None:
        store.epochs.copy_(torch.randint(-(2**31), 2**31, store.epochs.shape, generator=rng, device=rng.device))
    if slots is None:
        slots = torch.randperm(store.slots, generator=rng, device=rng.device)[:tokens]
    if plan.bands is None:
        (dither_int8_write if plan.dithered else rtn_write)(k, v, slots, store)
    else:
        bands = Bands(plan.head_dim, plan.bands, plan.pairing)
        (dither_int8_write if plan.dithered else rtn_write)(k, v, slots, store, bands=bands, gamma=plan.gamma)
    return Written(plan, k, v, slots, store)
