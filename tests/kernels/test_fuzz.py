"""Random caches through the write kernels and decode, against an outside reference.

The reference is in this file: float64 attention from the stored bits, with a Philox of its own. Two things are asked of
every cell. The output and its log-sum-exp agree with the reference within the rounding of the kernel. And the meter is at
least the total variation from the exact keys, one-sided, with no tolerance; 1 where anything is not finite.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.kernels.decode import BandMeter, HalfStepMeter, TierBMeter, Tuning, decode
from witcert.kernels.decode.budget import dot_gamma
from witcert.kernels.dither_int8_write import dither_int8_write
from witcert.kernels.formats import Dither, ExactStore, PackedStore, PageTable
from witcert.kernels.rtn_write import rtn_write
from witcert.kernels.witness_write import witness_write
from witcert.witness import Bands

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUDGET = Budget(layers=4, heads=48, kv_heads=3)
MOST = 4096
"""Tokens of a sequence that the Tier-B meters speak of."""


@dataclass(frozen=True)
class Setting:
    """What a kernel is compiled for."""

    kind: str  # exact, rtn, dither, dither-values
    meter: str  # none, band, half, tierB
    head_dim: int
    kv_heads: int
    group: int
    page_size: int
    dtype: torch.dtype
    bands: int
    pairing: str
    pairs: int
    rounds: int
    cap: bool
    sinks: bool
    tuning: Tuning | None

    @staticmethod
    def draw(rng: random.Random) -> Setting:
        kind = rng.choice(("exact", "rtn", "dither", "dither-values"))
        few = {"exact": ("none", "band", "band"), "rtn": ("none", "half", "band")}
        meters = few.get(kind, ("half", "tierB", "tierB", "band"))
        return Setting(
            kind, rng.choice(meters), rng.choice((64, 64, 128, 256)), rng.randint(1, 3), rng.choice((1, 2, 3, 7, 8, 9, 16)),
            rng.choice((1, 16)), rng.choice((torch.float16, torch.bfloat16)), rng.choice((8, 16)),
            rng.choice(("half", "half", "adjacent")), rng.choice((0, 0, 2, 4, 8, 16)), rng.choice((7, 10)),
            rng.random() < 0.3, rng.random() < 0.3,
            rng.choice((None, None, Tuning(16, 1, 1, rng.randint(1, 5)), Tuning(32, 1, 2, rng.randint(1, 9)))),
        )  # fmt: skip


def numbers(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, broken: bool) -> Tensor:
    """Random numbers of a random kind; sometimes with the extremes of the dtype, and with NaN or infinity if broken."""
    x = torch.randn(shape)
    kind = rng.choice(("plain", "plain", "massive", "flat", "cancelling", "tiny", "zeros", "extreme"))
    if kind == "massive":
        x[..., rng.randrange(shape[-1]) :: 37] *= 100
    elif kind == "flat":
        x = x[:1] + 1e-3 * torch.randn(shape)
    elif kind == "cancelling":
        half = shape[-1] // 2
        x[..., half:] = -x[..., :half] + 1e-3 * x[..., half:]
    elif kind == "tiny":
        x *= 2.0 ** -rng.choice((10, 20, 24))
    elif kind == "zeros":
        x *= torch.rand(shape[:-1])[..., None] < 0.5
    elif kind == "extreme":
        top = min(torch.finfo(dtype).max, 65504.0)
        choice = torch.tensor([top, -top, torch.finfo(dtype).tiny, 0.0, 2.0**-24, 1.0])
        x = torch.where(torch.rand(shape) < 0.02, choice[torch.randint(0, 6, shape)], x)
    x = x.to(dtype)
    if broken:
        x[tuple(rng.randrange(n) for n in shape)] = rng.choice((math.nan, math.inf, -math.inf))
    return x.to(DEVICE)


def philox(slots: np.ndarray, epochs: np.ndarray, dither: Dither, heads: int, side: int, channels: int) -> Tensor:
    """The dither of every channel, float64 [tokens, heads, channels], from the published description of Philox4x32."""
    shape = (len(slots), heads, channels // 16)
    block = np.arange(channels // 16, dtype=np.uint64)
    head = np.arange(heads, dtype=np.uint64)[:, None]
    c0, c1, c2, c3 = (
        np.broadcast_to(x, shape)
        for x in (
            slots.astype(np.uint64)[:, None, None], (epochs.astype(np.int64) & 0xFFFFFFFF).astype(np.uint64)[:, None, None],
            (np.uint64(dither.layer << 16) | head)[None], (np.uint64(side << 16) | block)[None, None],
        )
    )  # fmt: skip
    key, low = [dither.seed & 0xFFFFFFFF, dither.seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(dither.rounds):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (b >> np.uint64(32)) ^ c1 ^ np.uint64(key[0]), b & low
        c2, c3 = (a >> np.uint64(32)) ^ c3 ^ np.uint64(key[1]), a & low
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    words = np.stack((c0, c1, c2, c3), -1)  # [tokens, heads, blocks, 4]
    byte = (words[..., None] >> (np.arange(4, dtype=np.uint64) * np.uint64(8))) & np.uint64(255)
    return torch.from_numpy((2.0 * byte.reshape(len(slots), heads, channels) + 1 - 256) / 512)


@dataclass
class Cache:
    """A written store with the exact keys and values of its slots, [slots, heads, d]."""

    store: ExactStore | PackedStore
    table: PageTable
    k: Tensor
    v: Tensor

    def served(self, slots: Tensor, side: str) -> Tensor:
        """What the store serves, float64 [tokens, heads, d], from its bits."""
        if isinstance(self.store, ExactStore):
            return getattr(self.store, side)[slots].double()
        store = self.store
        page, row = slots // store.page_size, slots % store.page_size
        code = getattr(store, f"{side}_code")[page, :, row].double()
        scale = getattr(store, f"{side}_scale")[page, :, row].double().repeat_interleave(32, -1)
        if store.dither is not None and store.epochs is not None and (side == "k" or store.dither.values):
            where, epochs = slots.cpu().numpy(), store.epochs[slots].cpu().numpy()
            code -= philox(where, epochs, store.dither, store.kv_heads, int(side == "v"), store.head_dim).to(code.device)
        out = torch.where(scale.isfinite(), scale * code, math.nan)
        if side == "k" and store.k_outlier is not None and store.outlier_channels is not None:
            out.scatter_(2, store.outlier_channels.long().expand(len(slots), -1, -1), store.k_outlier[page, :, row].double())
        return out


def build(setting: Setting, rng: random.Random, most: int) -> Cache:
    """Random lengths on random pages; stale data everywhere else; the kernels write what belongs to a sequence."""
    heads, d, page = setting.kv_heads, setting.head_dim, setting.page_size
    lens = [rng.choice((0, 1, page, page + 1, rng.randint(0, most), rng.randint(0, most))) for _ in range(rng.randint(1, 3))]
    counts = [-(-n // page) for n in lens]
    pages = sum(counts) + rng.randint(1, 4)
    order = torch.randperm(pages).tolist()
    table = torch.full((len(lens), max(1, *counts)), 2**31 - 1, dtype=torch.int32)
    owned = []
    for b, count in enumerate(counts):
        mine = [order.pop() for _ in range(count)]
        table[b, :count] = torch.tensor(mine, dtype=torch.int32)
        owned += [mine[t // page] * page + t % page for t in range(lens[b])]
    slots = torch.tensor(owned, dtype=torch.int64, device=DEVICE)
    broken = rng.random() < 0.15
    k = numbers(rng, (len(owned), heads, d), setting.dtype, broken and bool(owned))
    v = numbers(rng, (len(owned), heads, d), setting.dtype, False)
    spread = Bands(d, setting.bands, setting.pairing)  # type: ignore[arg-type]
    stale = torch.full((pages * page, heads, d), math.nan, dtype=setting.dtype, device=DEVICE)
    k_all, v_all = stale.clone(), stale.clone()
    k_all[slots], v_all[slots] = k, v
    store: ExactStore | PackedStore
    if setting.kind == "exact":
        served = (k.float() * (1 + 2.0 ** -rng.randint(4, 12) * torch.randn(k.shape, device=DEVICE))).to(setting.dtype)
        witness = torch.full((pages * page, heads, setting.bands), math.nan, dtype=torch.float16, device=DEVICE)
        if owned:
            witness_write(k, served, slots, witness, bands=spread, gamma=dot_gamma(d))
        stale[slots] = served
        store = ExactStore(stale, v_all, witness)
    else:
        dither = None
        if setting.kind != "rtn":
            values = setting.kind == "dither-values"
            dither = Dither(rng.getrandbits(64), rng.randrange(80), rounds=setting.rounds, values=values)
        channels = None
        if setting.pairs:
            first = torch.stack([torch.randperm(d // 2)[: setting.pairs] for _ in range(heads)])
            channels = torch.cat((first, first + d // 2), -1).int().to(DEVICE)
        bands = setting.bands if setting.meter == "band" else None
        store = PackedStore.empty(pages, heads, d, page, dither=dither, outlier_channels=channels, bands=bands, device=DEVICE)
        for name in ("k_code", "v_code", "k_scale", "v_scale", "k_outlier", "witness"):
            if getattr(store, name) is not None:
                getattr(store, name).fill_(77 if "code" in name else math.nan)
        if store.epochs is not None:
            store.epochs.copy_(torch.randint(-(2**31), 2**31, store.epochs.shape))
        if owned:
            write = rtn_write if dither is None else dither_int8_write
            write(k, v, slots, store, bands=spread if bands else None)
    lengths = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    return Cache(store, PageTable(table.to(DEVICE), lengths, page), k_all, v_all)


def check(setting: Setting, rng: random.Random, most: int) -> int:
    """One random case; the number of cells whose meter was compared with the truth."""
    torch.manual_seed(rng.getrandbits(40))
    cache = build(setting, rng, most)
    lens = cache.table.seq_lens.tolist()
    heads, d = setting.kv_heads * setting.group, setting.head_dim
    q = numbers(rng, (len(lens), heads, d), setting.dtype, rng.random() < 0.05)
    if rng.random() < 0.5:
        q *= rng.choice((0.01, 0.1, 4.0))
    scale = d**-0.5 * rng.choice((1.0, 1.0, 0.1, 3.0))
    window = rng.choice((None, None, 1, rng.randint(1, most)))
    cap = rng.choice((0.5, 5.0, 50.0)) if setting.cap else None
    sinks = (torch.randn(heads, device=DEVICE) * rng.choice((1.0, 30.0))) if setting.sinks else None
    meter = {
        "none": None, "half": HalfStepMeter(), "tierB": TierBMeter(BUDGET, MOST), "band": BandMeter(setting.pairing),  # type: ignore[arg-type]
    }[setting.meter]  # fmt: skip
    keywords = {"scale": scale, "window": window, "softcap": cap, "sinks": sinks, "tuning": setting.tuning}
    got = decode(q, cache.store, cache.table, meter=meter, **keywords)  # type: ignore[arg-type]
    if meter is not None and rng.random() < 0.3:
        bare = decode(q, cache.store, cache.table, **keywords)  # type: ignore[arg-type]
        assert torch.equal(bare.out.view(torch.int16), got.out.view(torch.int16))
    for b, length in enumerate(lens):
        first = 0 if window is None else max(0, length - window)
        position = torch.arange(first, length, device=DEVICE)
        slots = cache.table.pages[b, position // setting.page_size].long() * setting.page_size + position % setting.page_size
        _check_row(setting, cache, slots, q[b].double(), b, got, scale, cap, sinks)
    return sum(heads for _ in lens) if meter is not None else 0


def _check_row(setting: Setting, cache: Cache, slots: Tensor, q: Tensor, b: int, got: object, scale: float,
               cap: float | None, sinks: Tensor | None) -> None:  # fmt: skip
    group, d = setting.group, setting.head_dim
    exact, served = (x.repeat_interleave(group, 1) for x in (cache.k[slots].double(), cache.served(slots, "k")))
    values = cache.served(slots, "v").repeat_interleave(group, 1)  # [n, Hq, d]
    logits = torch.stack([torch.einsum("hd,nhd->hn", q, x) * scale for x in (exact, served)])  # [2, Hq, n]
    size = torch.einsum("hd,nhd->hn", q.abs(), served.abs()) * scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    finite = logits.isfinite().all(0).all(-1)  # [Hq]
    full = logits
    if sinks is not None:
        own = sinks.double()[None, :, None].expand(2, -1, 1)
        full = torch.cat((logits, own), -1)
    if full.shape[-1] == 0:
        assert bool((got.out[b] == 0).all())  # type: ignore[attr-defined]
        assert bool((got.lse[b] == -math.inf).all())  # type: ignore[attr-defined]
        for reading in got.readings:  # type: ignore[attr-defined]
            assert bool((torch.as_tensor(reading.meter.value)[b] == 0).all())
        return
    p = torch.softmax(full, -1)
    tv = (p[0] - p[1]).abs().sum(-1) / 2  # [Hq]
    error = (logits[0] - logits[1]).abs()
    for i, reading in enumerate(got.readings):  # type: ignore[attr-defined]
        meter = torch.as_tensor(reading.meter.value)[b].double()
        assert bool(((meter >= 0) & (meter <= 1)).all())
        assert bool((meter[finite] >= tv[finite]).all()), (setting, i, meter, tv)
        assert bool((meter[~finite] == 1.0).all()), (setting, i, meter, finite)
        if setting.meter in ("band", "half") and error.shape[-1]:
            assert bool((reading.c_max[b].double()[finite] >= error.amax(-1)[finite]).all()), (setting, reading.c_max[b], error)
    # Output: the rounding of weights and values, and of the logits (of a packed store: of the query too).
    slip = size.amax(-1) * (dot_gamma(d) if setting.kind == "exact" else 3e-4) if size.shape[-1] else torch.zeros_like(tv)
    if cap is not None:
        slip = slip + cap * 2.0**-18
    top = values.abs().amax(-1).amax(0) if len(slots) else torch.zeros_like(tv)
    usable = finite & (slip < 0.25) & top.isfinite() & (top < 6e4)
    allowed = ((1.5e-2 if setting.dtype == torch.bfloat16 else 2.5e-3) + 4 * slip) * top + 1e-7
    expected = torch.einsum("hn,nhd->hd", p[1][:, : len(slots)], values)
    miss = (got.out[b].double() - expected).abs().amax(-1)  # type: ignore[attr-defined]
    assert bool((miss[usable] <= allowed[usable]).all()), (setting, miss / allowed)
    lse = torch.logsumexp(full[1], -1)
    apart = (got.lse[b].double() - lse).abs()  # type: ignore[attr-defined]
    close = 1e-5 + 2 * slip + 1e-6 * lse.abs()
    assert bool((apart[usable] <= close[usable]).all()), (setting, apart / close)


@pytest.mark.parametrize("seed", range(24))
def test_small(seed: int) -> None:
    """Settings of all kinds on a few dozen tokens."""
    rng = random.Random(seed)
    setting = Setting.draw(rng)
    if DEVICE == "cpu":  # the interpreter takes a second for what a GPU does in a microsecond
        setting = replace(setting, head_dim=min(setting.head_dim, 128), kv_heads=min(setting.kv_heads, 2))
    check(setting, rng, 40)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(16))
def test_many_caches(seed: int) -> None:
    """Other settings, each compiled once, on many caches of up to a few thousand tokens."""
    rng = random.Random(1000 + seed)
    setting = Setting.draw(rng)
    cells = sum(check(setting, rng, rng.choice((20, 300, 3000))) for _ in range(25))
    assert cells > 0 or setting.meter == "none"
