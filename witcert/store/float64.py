"""Attention over a pool in float64 PyTorch, with sound meters: what the kernels do, for where there are none.

Vectorised over sequences, heads and queries. Meters are those of :mod:`witcert.bounds`; the rounding of float64 itself is
paid for as in :mod:`witcert.meter`: GAMMA on each dot product, SOFTMAX on each weight. What float16 outliers lose of bfloat16
keys is added too, so that half steps and radii hold for what was written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert import bounds
from witcert.bounds.logits import _energy
from witcert.bounds.rounding import round_up, up
from witcert.errors import CorruptionError
from witcert.kernels.decode import BandMeter, HalfStepMeter, PagePart, TierBMeter
from witcert.kernels.decode import budget as constants
from witcert.kernels.decode.launch import Meter
from witcert.kernels.decode.reference import outlier_mask, served_keys, served_values
from witcert.kernels.formats import GROUP, ExactStore, PackedStore, PageTable
from witcert.meter import GAMMA, SOFTMAX
from witcert.schemes.dither_int8 import EXCESS, LEVELS
from witcert.schemes.grid import STEP
from witcert.witness import Bands, query_norms, token_bound

__all__ = ["Cached", "Sums", "attend", "cached"]

BLOCK = 2**22
"""Numbers of one intermediate: queries are taken so many at a time that each stays below 32 MiB."""
OUTLIER = 2.0**-25 * (1.0 + 2.0**-20)
"""What a bfloat16 key may lose where it is kept as float16, one rounding of a product on top."""


@dataclass(frozen=True)
class Cached:
    """The cached tokens of a batch that some query sees: keys, values float64 [B, Hkv, T, d]; position [B, T].

    seen : bool [B, Hkv, T], which of them there are; of the others everything is 0. witness: float16 [B, Hkv, T, bands].
    step : float64 [B, Hkv, T, d / 32], quantization step of each group of channels, +inf where nothing is claimed; packed
        stores only. outliers : bool [Hkv, d], the channels to which no step applies.
    """

    keys: Tensor
    values: Tensor
    position: Tensor
    seen: Tensor
    witness: Tensor | None
    step: Tensor | None
    outliers: Tensor | None


@dataclass(frozen=True)
class Sums:
    """out [B, C, Hq, d], lse [B, C, Hq] in float64; log_a, c_max, meter float32 [readings, B, C, Hq], rounded up."""

    out: Tensor
    lse: Tensor
    log_a: Tensor
    c_max: Tensor
    meter: Tensor


def _slots(table: PageTable, position: Tensor, there: Tensor, slots: int) -> Tensor:
    """Slot of each position [B, T], 0 where there is none; a page outside the pool is a damaged table."""
    column = (position // table.page_size).clamp(0, table.pages.shape[1] - 1)
    page = table.pages.long().gather(1, column)
    wrong = there & ((page < 0) | (page >= slots // table.page_size) | (position >= table.max_tokens))
    if bool(wrong.any()):
        b, t = wrong.nonzero()[0].tolist()
        raise CorruptionError(
            f"page table: row {b} has page {int(page[b, t])} at position {int(position[b, t])}; "
            f"the pool has {slots // table.page_size} pages"
        )
    return torch.where(there, page * table.page_size + position % table.page_size, 0)


def cached(
    store: ExactStore | PackedStore, table: PageTable, *, meter: Meter | None, back: int | None, part: PagePart | None
) -> Cached:
    """Read the last ``back`` tokens of each sequence (None: all), of one part of the pages."""
    lens = table.seq_lens.long()
    first = torch.zeros_like(lens) if back is None else (lens - back).clamp_min(0)
    width = max(1, int((lens - first).max())) if len(lens) else 1
    position = first[:, None] + torch.arange(width)  # [B, T]
    seen = (position < lens[:, None])[:, None].expand(-1, store.kv_heads, -1)
    if part is not None:
        column = (position // table.page_size).clamp_max(table.pages.shape[1] - 1)
        seen = seen & (part.parts.gather(2, column[:, None].expand(-1, store.kv_heads, -1)) == part.index)
        some = seen.any(1).any(0).nonzero()[:, 0]  # columns in which some row has a token of this part
        some = some if len(some) else torch.zeros(1, dtype=torch.long)
        position, seen = position[:, some], seen[:, :, some]
    slots = _slots(table, position, seen.any(1), store.slots).flatten()

    def rows(x: Tensor) -> Tensor:
        """[B T, Hkv, n] -> [B, Hkv, T, n], 0 where nothing is seen."""
        y = x.view(*position.shape, *x.shape[1:]).transpose(1, 2)
        return torch.where(seen[..., None], y, torch.zeros((), dtype=y.dtype))

    witness = step = outliers = None
    if isinstance(meter, BandMeter) and store.witness is not None:
        w = store.witness
        found = w[slots] if w.ndim == 3 else w[slots // w.shape[2], :, slots % w.shape[2]]
        witness = rows(torch.where(found >= 0, found, math.inf))  # a negative witness is none
    if isinstance(meter, (HalfStepMeter, TierBMeter)) and isinstance(store, PackedStore):
        s = store.k_scale[slots // store.page_size, :, slots % store.page_size].double() * STEP  # [B T, Hkv, d / 32]
        step = rows(torch.where(s >= 0, s, math.inf))
        outliers = outlier_mask(store)
    return Cached(
        rows(served_keys(store, slots)), rows(served_values(store, slots)), position, seen, witness, step, outliers
    )


def _prefix_bounds(q: Tensor, c: Cached, scale: float, meter: Meter, *, lossy: bool) -> list[Tensor]:
    """Bounds on the logit errors of the cached tokens: q [B, Hkv, R, d], finite -> each [B, Hkv, R, T]."""
    if isinstance(meter, BandMeter):
        assert c.witness is not None
        return [token_bound(query_norms(q, Bands(q.shape[-1], c.witness.shape[-1], meter.pairing)), c.witness, scale)]
    assert c.step is not None
    assert c.outliers is not None
    lost = ~c.step.isfinite().all(-1)[:, :, None]  # [B, Hkv, 1, T]
    s = torch.where(c.step.isfinite(), c.step, 0.0)[:, :, None]  # [B, Hkv, 1, T, d / 32]
    kept = torch.zeros(())
    if lossy and bool(c.outliers.any()):
        kept = (q.abs() * c.outliers[:, None]).sum(-1, keepdim=True) * (scale * OUTLIER)
    # A step holds for 32 channels, so of the query only sums over these are needed: of magnitudes, and of squares.
    parts = q.masked_fill(c.outliers[:, None], 0.0).view(*q.shape[:-1], -1, GROUP)
    size = up(parts.abs().sum(-1), GROUP)  # [B, Hkv, R, d / 32]
    half = (bounds.half_step(size, s, scale) + kept).masked_fill(lost, math.inf)
    if not isinstance(meter, TierBMeter):
        return [half]
    # Off-centre grid of 256 levels, and what rounding adds to the law: shares of a half step (``grid_dither_law``).
    bias = bounds.half_step(size, s * (1 / LEVELS + 2 * EXCESS), scale) + kept
    root = up(parts.square().sum(-1).sqrt(), GROUP + 2)
    energy = scale * _energy(root, s)
    channels = q.shape[-1] - int(c.outliers[0].sum())
    factors = (
        constants.kappa(channels, meter.budget.delta_adaptive(meter.tokens)),
        constants.subgaussian_factor(meter.tokens, meter.budget.delta_loc),
    )
    return [torch.minimum(half, (energy * x + bias).masked_fill(lost, math.inf)) for x in factors]


@dataclass(frozen=True)
class _Tokens:
    """All tokens of a block of queries: the cached ones, then those of the chunk; finite numbers only."""

    keys: Tensor  # [B, Hkv, T, d]
    values: Tensor
    key_ok: Tensor  # bool [B, Hkv, T]
    value_ok: Tensor


def _tokens(c: Cached, k: Tensor | None, v: Tensor | None) -> _Tokens:
    keys = c.keys if k is None else torch.cat((c.keys, k), 2)
    values = c.values if v is None else torch.cat((c.values, v), 2)
    # a sum of float64 is finite iff its terms are, unless they are beyond 2^1000: then nothing is claimed
    key_ok, value_ok = keys.sum(-1).isfinite(), values.sum(-1).isfinite()
    keys, values = torch.where(key_ok[..., None], keys, 0.0), torch.where(value_ok[..., None], values, 0.0)
    return _Tokens(keys, values, key_ok, value_ok)


def _block(
    q: Tensor, t: _Tokens, c: Cached, visible: Tensor, alive: Tensor, scale: float, meter: Meter | None,
    softcap: float | None, sinks: Tensor | None, *, lossy: bool,
) -> Sums:  # fmt: skip
    """Queries [B, Hkv, G, R, d] over visible [B, Hkv, 1, R, T] tokens; alive [B, 1, 1, R]: queries that there are."""
    q_ok = q.isfinite().all(-1)
    q = torch.where(q_ok[..., None], q, 0.0)
    logits = torch.einsum("bhgrd,bhtd->bhgrt", q, t.keys) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~visible, -math.inf)
    seen = visible.expand_as(logits)
    broken = (seen & ~t.key_ok[:, :, None, None]).any(-1) | (alive & ~q_ok)
    if sinks is not None:
        column = sinks.double().view(1, *q.shape[1:3], 1, 1).expand(q.shape[0], -1, -1, q.shape[3], 1)
        column = column.masked_fill(~alive[..., None], -math.inf)
        logits = torch.cat((logits, column), -1)
        seen = torch.cat((seen, alive[..., None].expand_as(column)), -1)
    empty = ~seen.any(-1)
    lse = torch.logsumexp(logits, -1)
    broken = broken | ~lse.isfinite() & ~empty
    safe = torch.where((empty | broken)[..., None], 0.0, logits)
    p = torch.softmax(safe, -1)
    share = torch.where(seen, p, 0.0)[..., : t.keys.shape[2]]
    out = torch.einsum("bhgrt,bhtd->bhgrd", share, t.values)
    wild = broken | (visible & ~t.value_ok[:, :, None, None]).any(-1)
    out = torch.where(wild[..., None], math.nan, torch.where(empty[..., None], 0.0, out))
    lse = torch.where(broken, math.nan, lse)
    if meter is None:
        none = torch.empty(0, *lse.shape)
        return Sums(out, lse, none, none, none)
    flat = q.flatten(2, 3)  # [B, Hkv, G R, d]
    norms = torch.einsum("bhgr,bht->bhgrt", q.norm(dim=-1), t.keys.norm(dim=-1))
    arithmetic = norms * (GAMMA * scale * (1 + 2.0**-30)) + SOFTMAX
    first = torch.zeros_like(seen)
    first[..., 0] = empty | broken
    # A weight that float64 rounds to 0 is not 0, and its exp(c) may be anything: take the least normal number.
    p = torch.where(seen & ~broken[..., None], p.clamp_min(torch.finfo(torch.float64).tiny), first.double())
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    for bound in _prefix_bounds(flat, c, scale, meter, lossy=lossy):
        full = arithmetic.clone()
        full[..., : bound.shape[-1]] += bound.view(*q.shape[:4], -1)
        if sinks is not None:
            full = torch.cat((full, torch.full_like(full[..., :1], SOFTMAX)), -1)
        full = torch.where(seen & ~broken[..., None], full, 0.0)
        log_a, c_max = bounds.log_accumulator(p, full), full.amax(-1)
        value = bounds.meter(log_a, c_max)
        lost = broken | log_a.isnan() | value.isnan()
        columns.append(
            (log_a.masked_fill(lost, math.inf), c_max.masked_fill(lost, math.inf), value.masked_fill(lost, 1.0))
        )
    log_a, c_max, value = (round_up(torch.stack(x), torch.float32) for x in zip(*columns, strict=True))
    return Sums(out, lse, log_a, c_max, value)


def attend(
    q: Tensor, c: Cached, *, scale: float, meter: Meter | None, window: int | None, softcap: float | None,
    sinks: Tensor | None, lens: Tensor | None = None, prefix: Tensor | None = None, k: Tensor | None = None,
    v: Tensor | None = None, lossy: bool = False,
) -> Sums:  # fmt: skip
    """Attention of q [B, C, Hq, d] over the cached tokens, and over a chunk k, v [B, C, Hkv, d] if there is one.

    prefix : tokens [B] before the queries' own: query i is at position prefix + i and sees the chunk's first i + 1 tokens, or
    none of them where k is None; without a prefix, it is the last cached token. lens : length of each chunk. lossy: outliers
    were bfloat16.
    """
    batch, chunk, heads, d = q.shape
    hkv = c.keys.shape[1]
    wide = q.double().view(batch, chunk, hkv, heads // hkv, d).permute(0, 2, 3, 1, 4)  # [B, Hkv, G, C, d]
    own = torch.zeros(batch, 0, dtype=torch.long)
    rows = torch.arange(chunk)
    alive = torch.ones(batch, chunk, dtype=torch.bool)
    here = c.seen
    at = torch.full((batch, 1), 2**40)
    if lens is not None and prefix is not None:
        alive = rows < lens.long()[:, None]
        at = prefix.long()[:, None] + rows  # positions of the queries [B, C]
    if k is not None and v is not None:
        own = at
        present = alive[:, None, :, None]
        k, v = (torch.where(present, x.double().transpose(1, 2), 0.0) for x in (k, v))
        here = torch.cat((here, alive[:, None].expand(-1, hkv, -1)), -1)
    tokens = _tokens(c, k, v)
    position = torch.cat((c.position, own), 1)  # [B, T]
    step = max(1, BLOCK // max(1, batch * heads * tokens.keys.shape[2]))
    parts = []
    for start in range(0, chunk, step):
        block = slice(start, start + step)
        query = at[:, block, None]  # [B, R, 1]
        visible = (position[:, None] <= query) & alive[:, block, None]
        if window is not None and prefix is not None:
            visible &= position[:, None] > query - window
        visible = visible[:, None] & here[:, :, None]  # [B, Hkv, R, T]
        parts.append(
            _block(
                wide[:, :, :, block], tokens, c, visible[:, :, None], alive[:, None, None, block], scale, meter, softcap,
                sinks, lossy=lossy,
            )
        )  # fmt: skip

    def joined(name: str) -> Tensor:
        """[..., B, Hkv, G, C] of all blocks -> [..., B, C, Hq]."""
        x = torch.cat([getattr(part, name) for part in parts], -1)
        return x.movedim(-1, -3).flatten(-2)

    out = torch.cat([part.out for part in parts], 3).permute(0, 3, 1, 2, 4).reshape(batch, chunk, heads, d)
    return Sums(out, joined("lse"), joined("log_a"), joined("c_max"), joined("meter"))
