"""What decode computes, in float64 PyTorch: served keys and values out of a store, attention, bounds, meters.

The bounds are those of :mod:`witcert.bounds` on the stored scales, without the terms by which the kernel pays for its own
arithmetic; a kernel's reading is therefore never below the one found here, and little above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from witcert import bounds
from witcert.errors import InputError
from witcert.kernels.decode.launch import BandMeter, HalfStepMeter, Meter
from witcert.kernels.formats import GROUP, ExactStore, PackedStore, PageTable
from witcert.kernels.philox.reference import CHANNELS_PER_DRAW, draw_bytes, pack_counter, philox4x32
from witcert.schemes.grid import STEP
from witcert.witness import Bands, query_norms, token_bound

__all__ = ["Cell", "decode_reference", "dither_of_slots", "served_keys", "served_values", "steps"]


@dataclass(frozen=True)
class Cell:
    """One query head of one sequence: output [d], lse, served weights p [T], and c [T] and meter of each reading."""

    out: Tensor
    lse: Tensor
    p: Tensor
    bounds: tuple[Tensor, ...]
    meters: tuple[Tensor, ...]


def dither_of_slots(store: PackedStore, slots: Tensor, side: int) -> Tensor:
    """xi of the codes at these slots, float64 [T, Hkv, d]: (2j + 1 - 256) / 512."""
    if store.dither is None or store.epochs is None:
        raise InputError("the store has no dither")
    epochs = store.epochs.cpu()[slots.cpu()].long() & 0xFFFFFFFF
    counter = pack_counter(
        layer=store.dither.layer,
        head=torch.arange(store.kv_heads)[None, :, None],
        slot=slots.cpu()[:, None, None],
        epoch=epochs[:, None, None],
        block=torch.arange(store.head_dim // CHANNELS_PER_DRAW),
        side=side,
    )
    drawn = draw_bytes(philox4x32(counter, store.dither.seed, store.dither.rounds)).flatten(-2)
    return ((2 * drawn + 1 - 256).double() / 512).to(slots.device)


def _rows(x: Tensor, slots: Tensor, page_size: int) -> Tensor:
    return x[slots // page_size, :, slots % page_size].double()  # [T, Hkv, ...]


def _unpacked(store: PackedStore, slots: Tensor, code: Tensor, scale: Tensor, side: int, dithered: bool) -> Tensor:
    n = _rows(code, slots, store.page_size)
    s = _rows(scale, slots, store.page_size)
    s = torch.where(s.isfinite(), s, math.nan).repeat_interleave(GROUP, -1)
    if dithered:
        n = n - dither_of_slots(store, slots, side)
    return s * n


def outlier_mask(store: PackedStore) -> Tensor:
    """Which channels of the keys are stored exactly, bool [Hkv, d]."""
    mask = torch.zeros(store.kv_heads, store.head_dim, dtype=torch.bool, device=store.k_code.device)
    if store.outlier_channels is not None:
        mask.scatter_(1, store.outlier_channels.long(), True)
    return mask


def served_keys(store: ExactStore | PackedStore, slots: Tensor) -> Tensor:
    """k_hat at these slots as real numbers, float64 [T, Hkv, d]."""
    if isinstance(store, ExactStore):
        return store.k[slots].double()
    k = _unpacked(store, slots, store.k_code, store.k_scale, 0, store.dither is not None)
    if store.k_outlier is not None and store.outlier_channels is not None:
        index = store.outlier_channels.long().expand(len(slots), -1, -1)
        k = k.scatter(2, index, _rows(store.k_outlier, slots, store.page_size))
    return k


def served_values(store: ExactStore | PackedStore, slots: Tensor) -> Tensor:
    """v_hat at these slots as real numbers, float64 [T, Hkv, d]."""
    if isinstance(store, ExactStore):
        return store.v[slots].double()
    dithered = store.dither is not None and store.dither.values
    return _unpacked(store, slots, store.v_code, store.v_scale, 1, dithered)


def steps(store: PackedStore, slots: Tensor) -> Tensor:
    """Quantization step of each key channel, float64 [T, Hkv, d]; 0 for outliers."""
    s = _rows(store.k_scale, slots, store.page_size).repeat_interleave(GROUP, -1) * STEP
    return s.masked_fill(outlier_mask(store), 0.0)


def _bounds(
    q: Tensor, store: ExactStore | PackedStore, slots: Tensor, head: int, scale: float, meter: Meter
) -> list[Tensor]:
    if isinstance(meter, BandMeter):
        if store.witness is None:
            raise InputError("the store has no witness")
        witness = store.witness[slots] if isinstance(store, ExactStore) else _rows(store.witness, slots, store.page_size)
        bands = Bands(store.head_dim, witness.shape[-1], meter.pairing)
        return [token_bound(query_norms(q[None], bands), witness[:, head].to(torch.float16), scale)[0]]
    if isinstance(store, ExactStore):
        raise InputError(f"{type(meter).__name__} needs a packed store")
    s = steps(store, slots)[:, head]
    lost = ~s.isfinite().all(-1)
    s = torch.where(lost[:, None], 0.0, s)
    half = bounds.half_step(q, s, scale).masked_fill(lost, math.inf)
    if isinstance(meter, HalfStepMeter):
        return [half]
    q = q * ~outlier_mask(store)[head]
    adaptive = bounds.adaptive_radius(
        q[~outlier_mask(store)[head]], s[:, ~outlier_mask(store)[head]], scale,
        delta=meter.budget.delta_adaptive(meter.tokens),
    )  # fmt: skip
    tight = bounds.subgaussian_radius(q, s, scale, tokens=meter.tokens, delta_loc=meter.budget.delta_loc)
    return [torch.minimum(half, x.masked_fill(lost, math.inf)) for x in (adaptive, tight)]


def decode_reference(
    q: Tensor, store: ExactStore | PackedStore, table: PageTable, *, scale: float, meter: Meter | None = None,
    window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> list[list[Cell]]:  # fmt: skip
    """Every cell of a decode step, [batch][Hq], in float64; arguments as in :func:`witcert.kernels.decode.decode`."""
    group = q.shape[1] // store.kv_heads
    rows: list[list[Cell]] = []
    for b in range(table.batch):
        slots = table.slots(b)
        slots = slots if window is None else slots[-window:]
        keys, values = served_keys(store, slots), served_values(store, slots)
        cells: list[Cell] = []
        for h in range(q.shape[1]):
            wide, head = q[b, h].double(), h // group
            logit = keys[:, head] @ wide * scale
            logit = logit if softcap is None else softcap * torch.tanh(logit / softcap)
            c = [] if meter is None else _bounds(wide, store, slots, head, scale, meter)
            if sinks is not None:
                logit = torch.cat([logit, sinks[h : h + 1].double()])
                c = [torch.cat([x, torch.zeros_like(x[:1]) if len(x) else x.new_zeros(1)]) for x in c]
            if not len(logit):
                zero = torch.zeros((), dtype=torch.float64)
                none = tuple(zero for _ in c)
                cells.append(Cell(torch.zeros_like(wide), logit.logsumexp(0), logit, tuple(c), none))
                continue
            p = torch.softmax(logit, 0)
            out = p[: len(slots)] @ values[:, head]
            meters = []
            for x in c:
                if bool(p.isnan().any()):
                    meters.append(torch.ones((), dtype=torch.float64))
                    continue
                acc = bounds.accumulate(p, x)
                meters.append(bounds.meter(acc.log_a, acc.c_max))
            cells.append(Cell(out, torch.logsumexp(logit, 0), p, tuple(c), tuple(meters)))
        rows.append(cells)
    return rows
