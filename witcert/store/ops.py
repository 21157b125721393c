"""Decode, extend and merge over a pool, with the same results from the Triton kernels and, on a plain CPU, from PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from witcert import bounds
from witcert.bounds.rounding import LIBRARY, round_up, up
from witcert.errors import InputError
from witcert.guarantees import Labelled, Proved
from witcert.kernels import decode as kernels
from witcert.kernels.checks import positive, sink_logits, window_size
from witcert.kernels.decode import BandMeter, DecodeOutput, HalfStepMeter, PagePart, Reading, ReadingBuffers, TierBMeter
from witcert.kernels.decode.launch import Meter, _into, _readings
from witcert.kernels.extend import ExtendOutput, merge_extend
from witcert.kernels.extend import extend as extend_kernel
from witcert.kernels.extend.merge import as_decodes, as_extend
from witcert.kernels.formats import ExactStore, PackedStore, PageTable
from witcert.store import float64

if TYPE_CHECKING:
    from witcert.store.pool import CachePool

__all__ = ["decode", "extend", "merge", "on_kernels"]

Where = PageTable | Sequence[int]
Output = DecodeOutput | ExtendOutput


def on_kernels(device: torch.device | str) -> bool:
    """Whether a pool on the device goes through the Triton kernels unless it is told otherwise: on a GPU."""
    return torch.device(device).type == "cuda"


def _check(q: Tensor, store: ExactStore | PackedStore, table: PageTable, meter: Meter | None, axes: str) -> None:
    """What the float64 path asks of its arguments."""
    if (
        not isinstance(q, Tensor)
        or not q.dtype.is_floating_point
        or q.ndim != axes.count(",") + 1
        or q.device.type != "cpu"
    ):
        kind = f"{q.dtype} {tuple(q.shape)} on {q.device}" if isinstance(q, Tensor) else type(q).__name__
        raise InputError(f"q is {kind}; expected a floating tensor [{axes}] on the CPU")
    heads, d = q.shape[-2:]
    if q.shape[0] != table.batch or d != store.head_dim or not heads or heads % store.kv_heads:
        raise InputError(f"q has shape {tuple(q.shape)}; expected [{axes}], batch {table.batch}, d {store.head_dim}")
    if isinstance(meter, BandMeter):
        if store.witness is None:
            raise InputError("BandMeter needs a store with a witness")
    elif isinstance(meter, (HalfStepMeter, TierBMeter)):
        if not isinstance(store, PackedStore) or (isinstance(meter, TierBMeter) and store.dither is None):
            raise InputError(
                f"{type(meter).__name__} needs a packed store" + " with dither" * isinstance(meter, TierBMeter)
            )
        if isinstance(meter, TierBMeter) and table.max_tokens > meter.tokens:
            raise InputError(f"the table allows {table.max_tokens} tokens, the meter speaks of {meter.tokens}")
    elif meter is not None:
        raise InputError(f"meter is {type(meter).__name__}; expected BandMeter, HalfStepMeter, TierBMeter or None")


def decode(
    pool: CachePool, layer: int, q: Tensor, where: Where, *, scale: float, meter: Meter | None = None,
    window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None, part: PagePart | None = None,
    store: ExactStore | PackedStore | None = None, into: ReadingBuffers | None = None,
) -> DecodeOutput:  # fmt: skip
    """Attention of one query token per sequence over its cached tokens; see :func:`witcert.kernels.decode.decode`.

    Parameters
    ----------
    q : [batch, Hq, d] in the dtype of the pool, on its device (on the float64 path also float32 or float64).
    where : sequences, or a page table.
    store : another store than the layer's own, such as its side pool (with a table of its own).

    meter, window, softcap, sinks, part, into : as there.
    """
    table = where if isinstance(where, PageTable) else pool.table(where)
    chosen = pool.stores[layer] if store is None else store
    if pool.kernels:
        return kernels.decode(
            q.contiguous(), chosen, table, scale=scale, meter=meter, window=window, softcap=softcap, sinks=sinks, part=part,
            into=into,
        )  # fmt: skip
    _check(q, chosen, table, meter, "batch, Hq, d")
    window = window_size(window)
    sinks = sink_logits(sinks, q.shape[1], q.device)
    if part is not None:
        part.check(table, chosen.kv_heads)
    _into(into, meter, q.shape[0], q.shape[1], q.device)
    cached = float64.cached(chosen, table, meter=meter, back=window, part=part)
    got = float64.attend(
        q[:, None], cached, scale=positive("scale", scale), meter=meter, window=None, sinks=sinks,
        softcap=None if softcap is None else positive("softcap", softcap), lossy=pool.config.dtype == torch.bfloat16,
    )  # fmt: skip
    log_a, c_max, value = got.log_a[:, :, 0], got.c_max[:, :, 0], got.meter[:, :, 0]
    if into is None:
        readings = _readings(meter, log_a, c_max, value)
    else:
        into.meter.copy_(value)
        into.c_max.copy_(c_max)
        readings = into.readings(meter, log_a)
    return DecodeOutput(got.out[:, 0].to(q.dtype), got.lse[:, 0].float(), readings)


def extend(
    pool: CachePool, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, where: Where, lens: Tensor | Sequence[int], *,
    scale: float, meter: Meter | None = None, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, part: PagePart | None = None, own: bool = True,
    store: ExactStore | PackedStore | None = None,
) -> ExtendOutput:  # fmt: skip
    """Causal attention of a chunk of new tokens over the cached prefix and itself; see :func:`witcert.kernels.extend.extend`.

    Parameters
    ----------
    q, k, v : [batch, C, Hq, d], [batch, C, Hkv, d] twice: the chunk, exact; k and v may be None without own.
    where : sequences, in which the chunk was already reserved (lens is then a list; the prefix is what comes before), or
        the page table of the prefix.
    lens : tokens of each chunk, 0 to C.
    part, own : read one part of the prefix's pages, and leave the chunk's own keys out, as there.
    store : another store than the layer's own, such as its side pool (with a table of its own).
    """
    if isinstance(where, PageTable):
        table = where
    elif isinstance(lens, Tensor):
        raise InputError("lens is a tensor; with sequences it is a list, or where is the page table of the prefix")
    else:
        table = pool.table(where, back=lens)
    if not isinstance(lens, Tensor):
        lens = torch.tensor(list(lens), dtype=torch.int32, device=pool.device)
    store = pool.stores[layer] if store is None else store
    if pool.kernels:
        return extend_kernel(
            q.contiguous(), None if k is None else k.contiguous(), None if v is None else v.contiguous(), store, table, lens,
            scale=scale, meter=meter, window=window, softcap=softcap, sinks=sinks, part=part, own=own,
        )  # fmt: skip
    _check(q, store, table, meter, "batch, C, Hq, d")
    if part is not None:
        part.check(table, store.kv_heads)
    window = window_size(window)
    sinks = sink_logits(sinks, q.shape[2], q.device)
    for name, x in (("k", k), ("v", v)):
        expected = (*q.shape[:2], store.kv_heads, store.head_dim)
        if x is None and not own:
            continue
        if x is None or x.shape != expected:
            raise InputError(f"{name} has shape {None if x is None else tuple(x.shape)}; expected {expected}")
    if lens.shape != (q.shape[0],) or bool((lens < 0).any() | (lens > q.shape[1]).any()):
        raise InputError(f"lens={lens.tolist()} is not {q.shape[0]} lengths in 0..{q.shape[1]}")
    cached = float64.cached(store, table, meter=meter, back=window, part=part)
    got = float64.attend(
        q, cached, scale=positive("scale", scale), meter=meter, window=window, sinks=sinks, lens=lens,
        prefix=table.seq_lens, k=k if own else None, v=v if own else None,
        softcap=None if softcap is None else positive("softcap", softcap),
        lossy=pool.config.dtype == torch.bfloat16,
    )  # fmt: skip
    readings = _readings(meter, got.log_a, got.c_max, got.meter)
    return ExtendOutput(got.out.to(q.dtype), got.lse.float(), readings)


def _merged(first: DecodeOutput, second: DecodeOutput) -> DecodeOutput:
    """The formula of the merge kernel in float64: A - 1 is the average of the parts' with the masses of the output."""
    la, lb = first.lse.double(), second.lse.double()
    top = torch.maximum(la, lb)  # NaN stays
    none = top == -math.inf
    at = torch.where(none, 0.0, top)
    below = torch.stack((la - at, lb - at))
    masses = below.exp()
    shares = torch.where(none, 0.0, masses / masses.sum(0))
    weight = shares[..., None]
    out = torch.where(weight > 0, weight * torch.stack((first.out, second.out)).double(), 0.0).sum(0)
    lse = torch.where(none, -math.inf, at + masses.sum(0).log())
    out = torch.where(lse.isnan()[..., None], math.nan, out)
    # Each lse is within half a unit of float32 of its own size, which its mass carries on; 2^-40 for float64.
    size = torch.stack((la, lb)).abs()
    size = size.masked_fill(size == math.inf, 0.0).amax(0)  # an empty part has no mass, exactly
    eta = (size + 1.0) * 2.0**-23 + 2.0**-40
    readings = []
    for i, reading in enumerate(first.readings):
        other = second.readings[i % len(second.readings)]
        excess = torch.zeros_like(at)
        for share, under, r in zip(shares, below, (reading, other), strict=True):
            a = r.log_a.double()
            # A large A may lift a mass that float64 cannot hold: its product comes from the sum of the logarithms.
            term = torch.where(a > 40.0, (under + a).exp() / masses.sum(0), share * torch.expm1(a.clamp_max(40.0)))
            excess = excess + torch.where(none, 0.0, up(term, 2 * LIBRARY))
        excess = up(excess * (1 + eta) / (1 - eta), 16)
        log_a = up(torch.log1p(excess), LIBRARY)
        c_max = torch.maximum(reading.c_max, other.c_max).double()
        lost = log_a.isnan() | c_max.isnan() | lse.isnan() | (eta >= 0.5)
        log_a, c_max = log_a.masked_fill(lost, math.inf), c_max.masked_fill(lost, math.inf)
        value = bounds.meter(log_a, c_max)
        delta = min(reading.meter.delta + other.meter.delta, 1.0 - 2.0**-53)
        label: type[Labelled] = type(reading.meter)
        meter = label(round_up(value, torch.float32), f"{reading.meter.theorem} + lse_merge", delta)
        readings.append(Reading(meter, round_up(log_a, torch.float32), round_up(c_max, torch.float32)))
    return DecodeOutput(out.to(first.out.dtype), lse.float(), tuple(readings))


@overload
def merge(
    pool: CachePool, first: DecodeOutput, second: DecodeOutput, *, tokens: int | None = None,
    into: ReadingBuffers | None = None,
) -> DecodeOutput: ...  # fmt: skip


@overload
def merge(pool: CachePool, first: ExtendOutput, second: ExtendOutput, *, tokens: int | None = None) -> ExtendOutput: ...


def merge(
    pool: CachePool, first: Output, second: Output, *, tokens: int | None = None, into: ReadingBuffers | None = None
) -> Output:
    """One output from two decodes, or two extends, of the same queries over the two parts of a cache.

    See :func:`witcert.kernels.decode.merge` and :func:`witcert.kernels.extend.merge_extend`. tokens : most cached tokens of a
    sequence; None: what the pool's tables allow. into : where the meters and C of two decodes go, as in ``decode``.
    """
    most = pool.config.max_pages * pool.config.page_size if tokens is None else tokens
    if isinstance(first, ExtendOutput):
        if into is not None:
            raise InputError("into is for two decodes; first is an ExtendOutput")
        if not isinstance(second, ExtendOutput) or first.out.shape != second.out.shape:
            raise InputError(f"second is {type(second).__name__} of {tuple(second.out.shape)}; expected an ExtendOutput of "
                             f"{tuple(first.out.shape)}")  # fmt: skip
        if pool.kernels:
            return merge_extend(first, second, tokens=most)
        merged = merge(pool, as_decodes(first), as_decodes(second), tokens=most)
        return as_extend(merged, *first.out.shape[:2])
    if not isinstance(second, DecodeOutput):
        raise InputError(f"second is {type(second).__name__}; expected a DecodeOutput")
    if pool.kernels:
        return kernels.merge(first, second, tokens=most, into=into)
    count, other = len(first.readings), len(second.readings)
    if first.out.shape != second.out.shape or (count == 0) != (other == 0) or other not in (0, 1, count):
        raise InputError(
            f"first has {count} readings of {tuple(first.out.shape)}, second {other} of {tuple(second.out.shape)}"
        )
    if other == 1 and not (isinstance(second.readings[0].meter, Proved) and not second.readings[0].meter.delta):
        raise InputError("the one reading of second has a probability; it cannot stand beside every reading of first")
    if other > 1 and any(
        type(a.meter) is not type(b.meter) for a, b in zip(first.readings, second.readings, strict=True)
    ):
        raise InputError("the readings of first and second have different labels")
    got = _merged(first, second)
    if into is None:
        return got
    into.check((count, *first.out.shape[:2]), first.out.device)
    readings = []
    for (value, c_max), r in zip(into.each, got.readings, strict=True):
        value.copy_(torch.as_tensor(r.meter.value))
        c_max.copy_(r.c_max)
        readings.append(replace(r, meter=replace(r.meter, value=value), c_max=c_max))
    return replace(got, readings=tuple(readings))
