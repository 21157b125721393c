"""Stores for tests: random and adversarial keys, shuffled slots, poisoned everywhere that no sequence owns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from witcert.kernels.decode import budget
from witcert.kernels.decode.reference import dither_of_slots
from witcert.kernels.formats import GROUP, Dither, ExactStore, PackedStore, PageTable
from witcert.schemes.grid import stored_scale
from witcert.witness import Bands, witness


@dataclass
class Case:
    """A decode step with the exact keys and values [slots, Hkv, d] that its store approximates."""

    q: Tensor
    store: ExactStore | PackedStore
    table: PageTable
    k: Tensor
    v: Tensor
    scale: float


def shuffled_table(lens: list[int], page_size: int, spare: int = 3, device: str = "cpu") -> tuple[PageTable, int]:
    """Sequences on random pages of a pool with spare pages; unused table entries point far outside. Also the pool's pages."""
    counts = [-(-n // page_size) for n in lens]
    pool = sum(counts) + spare
    order = torch.randperm(pool)
    table = torch.full((len(lens), max(1, *counts) if counts else 1), 2**31 - 1, dtype=torch.int32)
    at = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[at : at + count].int()
        at += count
    return PageTable(table.to(device), torch.tensor(lens, dtype=torch.int32, device=device), page_size), pool


def owned(table: PageTable, slots: int) -> Tensor:
    """Which slots hold a token of some sequence, bool [slots]."""
    mask = torch.zeros(slots, dtype=torch.bool)
    for b in range(table.batch):
        mask[table.slots(b).cpu()] = True
    return mask


def values_of(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random numbers of a kind: normal, massive (a few channels 100 times larger), tiny, flat (one key for all), zero."""
    x = torch.randn(shape)
    if kind == "massive":
        x[..., 5::37] *= 100
    elif kind == "tiny":
        x *= 1e-6
    elif kind == "huge":
        x *= 300
    elif kind == "flat":
        x = x[:1].expand(shape).clone() + 1e-3 * torch.randn(shape)
    elif kind == "zero":
        x *= 0
    return x.to(dtype)


def exact_case(lens: list[int], hkv: int, group: int, d: int, page_size: int = 1, dtype: torch.dtype = torch.float16,
               kind: str = "normal", bands: int | None = 16, noise: float = 0.01, pairing: str = "half",
               device: str = "cpu") -> Case:  # fmt: skip
    """An exact store whose keys are the case's keys plus noise, with the witness of that noise."""
    table, pool = shuffled_table(lens, page_size, device=device)
    slots = pool * page_size
    k, v = values_of(kind, (slots, hkv, d), dtype), values_of("normal", (slots, hkv, d), dtype)
    served = (k.float() * (1 + noise * torch.randn(k.shape))).to(dtype)
    w = None if bands is None else witness(k, served, Bands(d, bands, pairing), budget.dot_gamma(d))  # type: ignore[arg-type]
    mask = owned(table, slots)
    for x in (served, v, w):
        if x is not None:
            x[~mask] = math.nan
    store = ExactStore(served.to(device), v.to(device), None if w is None else w.to(device))
    q = values_of("normal" if kind in ("zero", "flat") else kind, (len(lens), hkv * group, d), dtype)
    if kind == "huge":
        q /= 300
    return Case(q.to(device), store, table, k, v, d**-0.5)


def _encode(x: Tensor, xi: Tensor | None, divisor: float, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    wide = x.double()
    magnitude = wide.abs() if keep is None else wide.abs().masked_fill(keep, 0.0)
    amax = magnitude.unflatten(-1, (-1, GROUP)).amax(-1)
    scale = stored_scale(amax, divisor)
    step = scale.repeat_interleave(GROUP, -1)
    y = wide / torch.where(step > 0, step, 1.0)
    code = (y if xi is None else y + xi).round()
    code = code.masked_fill(~step.isfinite(), 0.0) if keep is None else code.masked_fill(~step.isfinite() | keep, 0.0)
    return code.to(torch.int8), scale.to(torch.float16)


def _paged(x: Tensor, page_size: int) -> Tensor:
    return x.unflatten(0, (-1, page_size)).transpose(1, 2).contiguous()


def packed_case(lens: list[int], hkv: int, group: int, d: int, page_size: int = 1, dtype: torch.dtype = torch.float16,
                kind: str = "normal", dither: Dither | None = None, pairs: int = 0, bands: int | None = None,
                device: str = "cpu") -> Case:  # fmt: skip
    """A packed store of the case's keys and values, written by an independent float64 encoder."""
    table, pool = shuffled_table(lens, page_size, device=device)
    slots = pool * page_size
    k, v = values_of(kind, (slots, hkv, d), dtype), values_of("normal", (slots, hkv, d), dtype)
    channels = None
    keep = None
    if pairs:
        first = torch.stack([torch.randperm(d // 2)[:pairs] for _ in range(hkv)])
        channels = torch.cat([first, first + d // 2], -1).int()
        keep = torch.zeros(hkv, d, dtype=torch.bool).scatter_(1, channels.long(), True)
    store = PackedStore.empty(pool, hkv, d, page_size, dither=dither, outlier_channels=channels, bands=bands)
    if store.epochs is not None:
        store.epochs.copy_(torch.randint(-(2**31), 2**31, (slots,), dtype=torch.int64).int())
    every = torch.arange(slots)
    xi_k = None if dither is None else dither_of_slots(store, every, 0)
    xi_v = None if dither is None or not dither.values else dither_of_slots(store, every, 1)
    k_code, k_scale = _encode(k, xi_k, 127.0 if xi_k is None else 126.5, keep)
    v_code, v_scale = _encode(v, xi_v, 127.0 if xi_v is None else 126.5, None)
    mask = owned(table, slots)
    for code, scale in ((k_code, k_scale), (v_code, v_scale)):
        code[~mask] = 77
        scale[~mask] = math.nan
    parts = {"k_code": k_code, "k_scale": k_scale, "v_code": v_code, "v_scale": v_scale}
    if channels is not None:
        out = k.gather(2, channels.long().expand(slots, -1, -1)).to(torch.float16)
        out[~mask] = math.nan
        parts["k_outlier"] = out
    store = replace(store, witness=None, **{name: _paged(x, page_size) for name, x in parts.items()})
    if bands is not None:
        from witcert.kernels.decode.reference import served_keys

        w = witness(k.double(), served_keys(store, every), Bands(d, bands))
        w[~mask] = math.nan
        store = replace(store, witness=_paged(w, page_size))
    if device != "cpu":
        names = [f for f in store.__dataclass_fields__ if isinstance(getattr(store, f), Tensor)]
        store = replace(store, **{f: getattr(store, f).to(device) for f in names})
    q = values_of("normal" if kind in ("zero", "flat") else kind, (len(lens), hkv * group, d), dtype)
    if kind == "huge":
        q /= 300
    return Case(q.to(device), store, table, k, v, d**-0.5)
