"""Decode: one query token per sequence over a paged cache, with a meter of every cell read in the same pass."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import triton
from torch import Tensor

from witcert.budget import Budget
from witcert.errors import InputError
from witcert.guarantees import Labelled, Proved, ProvedNonadaptive
from witcert.kernels.decode import budget as constants
from witcert.kernels.decode.stage1 import stage1_kernel
from witcert.kernels.decode.stage2 import stage2_kernel
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = [
    "BandMeter", "DecodeOutput", "HalfStepMeter", "PagePart", "Reading", "ReadingBuffers", "TierBMeter", "Tuning", "decode",
]  # fmt: skip

MAX_GROUP = 16
MAX_TOKENS = 2**24
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"


@dataclass(frozen=True)
class BandMeter:
    """Tier A, from the witness of the store; pairing: how channels pair up under RoPE, as the witness was written."""

    pairing: Literal["half", "adjacent"] = "half"

    def __post_init__(self) -> None:
        if self.pairing not in ("half", "adjacent"):
            raise InputError(f"pairing={self.pairing!r} is neither 'half' nor 'adjacent'")


@dataclass(frozen=True)
class HalfStepMeter:
    """From the scales of a packed store alone, dithered or not: half a step per channel, any query, no probability."""


@dataclass(frozen=True)
class TierBMeter:
    """From the scales and the law of the dither: an adaptive and a non-adaptive reading in one pass.

    budget : shares the failure probability out. tokens : most tokens that a sequence ever stores (S of the theorems).
    """

    budget: Budget
    tokens: int

    def __post_init__(self) -> None:
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or not 1 <= self.tokens <= MAX_TOKENS:
            raise InputError(f"tokens={self.tokens!r} is not a whole number in 1..{MAX_TOKENS}")


Meter = BandMeter | HalfStepMeter | TierBMeter


@dataclass(frozen=True)
class Reading:
    """One meter of every cell, float32 [batch, Hq]: the labelled bound on the total variation; log A, C, rounded up."""

    meter: Labelled
    log_a: Tensor
    c_max: Tensor


@dataclass(frozen=True, eq=False)
class ReadingBuffers:
    """Where a decode puts the meters and the C of its readings: contiguous float32 [readings, batch, Hq], on the device of q.

    each : meter and C of each reading, [batch, Hq]; the readings of a decode into these buffers carry these very tensors, so
        they hold only until the buffers are written again.
    """

    meter: Tensor
    c_max: Tensor
    each: tuple[tuple[Tensor, Tensor], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, x in (("meter", self.meter), ("c_max", self.c_max)):
            if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.ndim != 3 or not x.is_contiguous():
                kind = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                raise InputError(f"{name} is {kind}; expected a contiguous float32 tensor [readings, batch, Hq]")
        a, b = self.meter, self.c_max
        if a.shape != b.shape or a.device != b.device:
            raise InputError(f"meter is {tuple(a.shape)} on {a.device}, c_max {tuple(b.shape)} on {b.device}; they must agree")
        if a.numel() and abs(a.data_ptr() - b.data_ptr()) < a.nbytes:
            raise InputError("meter and c_max overlap in memory")
        object.__setattr__(self, "each", tuple(zip(a.unbind(), b.unbind(), strict=True)))

    def check(self, shape: tuple[int, int, int], device: torch.device) -> None:
        """Raise InputError unless readings of that shape [readings, batch, Hq] fit."""
        if self.meter.shape != shape or self.meter.device != device:
            where = f"{tuple(self.meter.shape)} on {self.meter.device}"
            raise InputError(f"into holds readings {where}; expected {shape} on {device}")

    def readings(self, meter: Meter | None, log_a: Tensor) -> tuple[Reading, ...]:
        """What a decode by that meter says of what it wrote here."""
        return _readings(meter, log_a, [c for _, c in self.each], [v for v, _ in self.each])


@dataclass(frozen=True)
class DecodeOutput:
    """out [batch, Hq, d] in the dtype of q; lse float32 [batch, Hq], natural log of the mass (-inf: no token)."""

    out: Tensor
    lse: Tensor
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Tuning:
    """How the work is cut: tokens of a tile, warps of a program, pipeline stages, splits of a sequence (None: choose).

    registers : most registers of a thread, or None for the compiler's choice.
    """

    tile: int = 32
    warps: int = 1
    stages: int = 3
    splits: int | None = None
    registers: int | None = None

    def __post_init__(self) -> None:
        if self.warps not in (1, 2, 4, 8):
            raise InputError(f"warps={self.warps!r} is none of 1, 2, 4, 8")
        if self.tile not in (16, 32, 64, 128, 256) or self.tile < 16 * self.warps:
            raise InputError(f"tile={self.tile!r} is not a power of two in 16..256 and >= 16 * warps")
        if not 1 <= self.stages <= 8:
            raise InputError(f"stages={self.stages!r} is outside 1..8")
        if self.splits is not None and not 1 <= self.splits <= 1024:
            raise InputError(f"splits={self.splits!r} is outside 1..1024")


@dataclass(frozen=True, eq=False)
class PagePart:
    """One of two parts of a cache that are read from different stores and merged by :func:`merge`.

    parts : uint8 [batch, Hkv, max_pages], 0 or 1: the part to which each page of each KV head belongs. index : the part
    that this call reads, 0 or 1; what belongs to the other is left out as if it were not cached.
    """

    parts: Tensor
    index: int

    def __post_init__(self) -> None:
        if isinstance(self.index, bool) or self.index not in (0, 1):
            raise InputError(f"index={self.index!r} is neither 0 nor 1")
        x = self.parts
        if not isinstance(x, Tensor) or x.dtype != torch.uint8 or x.ndim != 3 or not x.is_contiguous():
            kind = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"parts is {kind}; expected a contiguous uint8 tensor [batch, Hkv, max_pages]")

    def check(self, table: PageTable, kv_heads: int) -> None:
        """Raise InputError unless the parts are those of the table."""
        expected = (table.batch, kv_heads, table.pages.shape[1])
        if tuple(self.parts.shape) != expected or self.parts.device != table.pages.device:
            where = f"{tuple(self.parts.shape)} on {self.parts.device}"
            raise InputError(f"parts is {where}; expected {expected} on {table.pages.device}")


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}={value!r} is not a finite number > 0")
    return float(value)


def _check(q: Tensor, store: ExactStore | PackedStore, table: PageTable, meter: Meter | None) -> int:
    """Whether the arguments fit together; the number of query heads per KV head."""
    if not isinstance(q, Tensor) or q.dtype not in (torch.float16, torch.bfloat16) or q.ndim != 3:
        raise InputError("q is not a float16 or bfloat16 tensor [batch, Hq, d]")
    if not isinstance(store, (ExactStore, PackedStore)):
        raise InputError(f"store is {type(store).__name__}; expected ExactStore or PackedStore")
    if not isinstance(table, PageTable):
        raise InputError(f"table is {type(table).__name__}; expected PageTable")
    if not q.is_contiguous():
        raise InputError("q is not contiguous")
    if q.shape[0] != table.batch or q.shape[2] != store.head_dim or q.shape[1] == 0 or q.shape[1] % store.kv_heads:
        raise InputError(
            f"q has shape {tuple(q.shape)}; expected [{table.batch}, a multiple of {store.kv_heads}, {store.head_dim}]"
        )
    group = q.shape[1] // store.kv_heads
    if group > MAX_GROUP:
        raise InputError(f"{group} query heads per KV head; expected at most {MAX_GROUP}")
    keys = store.k if isinstance(store, ExactStore) else store.k_code
    for name, x in (("store", keys), ("table", table.pages)):
        if x.device != q.device:
            raise InputError(f"{name} is on {x.device}, q on {q.device}")
    if q.device.type != "cuda" and not INTERPRET:
        raise InputError(f"q is on {q.device}; expected a CUDA device (or TRITON_INTERPRET=1)")
    if isinstance(store, ExactStore):
        if q.dtype != store.k.dtype:
            raise InputError(f"q is {q.dtype}, the store {store.k.dtype}; they must agree")
        if table.page_size > 1 and store.slots % table.page_size:
            raise InputError(f"{store.slots} slots are not whole pages of {table.page_size}")
    elif store.page_size != table.page_size:
        raise InputError(f"the store has page_size {store.page_size}, the table {table.page_size}")
    if table.max_tokens > MAX_TOKENS:
        raise InputError(f"the table allows {table.max_tokens} tokens; expected at most {MAX_TOKENS}")
    if isinstance(meter, BandMeter):
        if store.witness is None:
            raise InputError("BandMeter needs a store with a witness")
    elif isinstance(meter, HalfStepMeter):
        if isinstance(store, ExactStore):
            raise InputError("HalfStepMeter needs a packed store")
    elif isinstance(meter, TierBMeter):
        if isinstance(store, ExactStore) or store.dither is None:
            raise InputError("TierBMeter needs a packed store with dither")
        if table.max_tokens > meter.tokens:
            raise InputError(f"the table allows {table.max_tokens} tokens, the meter speaks of {meter.tokens}")
    elif meter is not None:
        raise InputError(f"meter is {type(meter).__name__}; expected BandMeter, HalfStepMeter, TierBMeter or None")
    return group


def _tuning(store: ExactStore | PackedStore, group: int) -> tuple[Tuning, int]:
    """What was fastest on an H200 (benchmarks/NOTES.md), and how many of its programs a multiprocessor runs at once."""
    large = store.head_dim == 256 or group > 8
    if isinstance(store, ExactStore):
        return (Tuning(128, 4, 3) if store.head_dim == 64 and not large else Tuning(32 if large else 64, 2, 3)), 4
    if store.dither is None:
        return Tuning(32 if large else 64, 1, 3), 8
    return Tuning(32, 1, 3 if large else 5), 8


def _splits(tuning: Tuning, resident: int, programs: int, tokens: int, device: torch.device) -> int:
    """Splits of a sequence: as many programs as run at once, no more than 256 and no more than there are tiles."""
    if tuning.splits is not None:
        return tuning.splits
    units = 4
    if device.type == "cuda":
        units = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(units * resident // programs, 256, -(-tokens // tuning.tile)))


def _count(meter: Meter | None) -> int:
    """Readings of one pass."""
    return 0 if meter is None else 2 if isinstance(meter, TierBMeter) else 1


def _into(into: ReadingBuffers | None, meter: Meter | None, batch: int, heads: int, device: torch.device) -> None:
    """Raise InputError unless the readings of a decode fit into the buffers that are given, if any are."""
    if into is None:
        return
    if not isinstance(into, ReadingBuffers):
        raise InputError(f"into is {type(into).__name__}; expected ReadingBuffers or None")
    if meter is None:
        raise InputError("into is given but no meter: there is nothing to put there")
    into.check((_count(meter), batch, heads), device)


def _readings(
    meter: Meter | None, log_a: Tensor, c_max: Tensor | Sequence[Tensor], value: Tensor | Sequence[Tensor]
) -> tuple[Reading, ...]:
    if meter is None:
        return ()
    if isinstance(meter, TierBMeter):
        delta = meter.budget.delta_req
        return (
            Reading(Proved(value[0], "tierB_adaptive_sound", delta), log_a[0], c_max[0]),
            Reading(ProvedNonadaptive(value[1], "tierB_request_sound", delta), log_a[1], c_max[1]),
        )
    return (Reading(Proved(value[0], "meter_sound"), log_a[0], c_max[0]),)


def decode(
    q: Tensor,
    store: ExactStore | PackedStore,
    table: PageTable,
    *,
    scale: float,
    meter: Meter | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    part: PagePart | None = None,
    tuning: Tuning | None = None,
    into: ReadingBuffers | None = None,
) -> DecodeOutput:
    """Attention of one query token per sequence over its cached tokens, and the meter of every cell.

    Parameters
    ----------
    q : float16 or bfloat16 [batch, Hq, d], post-RoPE; d in 64, 128, 256; Hq / Hkv in 1..16. An exact store's dtype.
    store, table : the cache and where each sequence lies in it.
    scale : softmax scale.
    meter : what to read; None reads nothing and leaves ``out`` the same, bit for bit.
    window : number of most recent tokens that are visible, or None for all.
    softcap : cap of the logits, ``cap * tanh(logit / cap)``, or None.
    sinks : float32 [Hq], logit of a virtual token without value, or None.
    part : read only the pages of one part, see :class:`PagePart`; None reads all.
    tuning : how the work is cut; every choice is sound, not every one is fast.
    into : where the meters and C of the readings go, see :class:`ReadingBuffers`; None: into new tensors. The same bits.

    No host synchronization, two launches, deterministic, capturable in a CUDA graph. NaN or infinity on the way to a
    meter makes it 1. The read constant of an exact store, to be folded into its witness, is ``budget.dot_gamma``.
    """
    group = _check(q, store, table, meter)
    scale = _positive("scale", scale)
    if softcap is not None:
        softcap = _positive("softcap", softcap)
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise InputError(f"window={window!r} is not a whole number >= 1")
    batch, heads, d = q.shape
    if sinks is not None:
        fits = isinstance(sinks, Tensor) and sinks.dtype == torch.float32 and tuple(sinks.shape) == (heads,)
        if not fits or sinks.device != q.device or not sinks.is_contiguous():
            raise InputError(f"sinks is not a contiguous float32 tensor [{heads}] on {q.device}")
    if part is not None:
        if not isinstance(part, PagePart):
            raise InputError(f"part is {type(part).__name__}; expected PagePart or None")
        part.check(table, store.kv_heads)
    _into(into, meter, batch, heads, q.device)
    chosen, resident = _tuning(store, group)
    tuning = tuning or chosen
    splits = _splits(tuning, resident, max(1, batch * store.kv_heads), table.max_tokens, q.device)
    tiles = triton.cdiv(triton.cdiv(table.max_tokens, splits), tuning.tile)
    inflate = constants.envelope(tiles, tuning.tile, splits)

    packed = isinstance(store, PackedStore)
    dither = store.dither if isinstance(store, PackedStore) else None
    kind = 0 if meter is None else 1 if isinstance(meter, BandMeter) else 2 if isinstance(meter, HalfStepMeter) else 3
    factor = scale * constants.LOG2E
    slack = constants.TINY + (0.0 if softcap is None else constants.cap_slack(softcap))
    radius = adaptive = 0.0
    outliers = 2 * store.outlier_pairs if isinstance(store, PackedStore) else 0
    if isinstance(meter, TierBMeter):
        radius = constants.subgaussian_factor(meter.tokens, meter.budget.delta_loc)
        adaptive = constants.kappa(d - outliers, meter.budget.delta_adaptive(meter.tokens))

    out = torch.empty_like(q)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=q.device)
    meters = _count(meter)
    log_a = torch.empty(meters, batch, heads, dtype=torch.float32, device=q.device)
    if into is None:
        c_max, value = torch.empty_like(log_a), torch.empty_like(log_a)
        readings = _readings(meter, log_a, c_max, value)
    else:
        c_max, value = into.c_max, into.meter
        readings = into.readings(meter, log_a)
    if batch == 0:
        return DecodeOutput(out, lse, readings)
    sums = torch.empty(batch * heads * splits, d, dtype=torch.float32, device=q.device)
    stat = torch.empty(batch * heads * splits, 8, dtype=torch.float32, device=q.device)

    def or_q(x: Tensor | None) -> Tensor:  # a pointer that is never followed
        return q if x is None else x

    pair, quad = torch.int16, torch.int32  # two or four codes of values
    words = torch.int32 if d == 64 else torch.int64  # two or four scales
    if isinstance(store, PackedStore):
        keys, values = store.k_code, store.v_code.view(quad if dither is not None and dither.values else pair)
        scales = store.k_scale.view(words), store.v_scale.view(words)
        rest = store.k_outlier, store.outlier_channels, store.epochs
    else:
        keys, values, scales, rest = store.k, store.v, (q, q), (None, None, None)
    stage1_kernel[(store.kv_heads, splits, batch)](
        q, keys, scales[0], values, scales[1], or_q(store.witness), *map(or_q, rest),
        table.pages, table.seq_lens, q if part is None else part.parts, sums, stat,
        table.pages.shape[1], splits, window or MAX_TOKENS,
        *(dither.words if dither else (0, 0)), dither.layer if dither else 0,
        factor, (softcap or 0.0) * constants.LOG2E, 1.0 / (softcap or 1.0), slack, factor * constants.BAND,
        radius, adaptive,
        HKV=store.kv_heads, G=group, GP=8 if group <= 8 else 16, D=d, T=tuning.tile, PAGE=table.page_size,
        PACKED=packed, DITHER_K=dither is not None, DITHER_V=dither is not None and dither.values,
        ROUNDS=dither.rounds if dither else 7, OUT=outliers, METER=kind,
        NB=store.witness.shape[-1] if kind == 1 and store.witness is not None else 16,
        ADJACENT=isinstance(meter, BandMeter) and meter.pairing == "adjacent", CAP=softcap is not None,
        WARPS=tuning.warps, INTERPRET=INTERPRET, STAGES=tuning.stages,
        PART=-1 if part is None else part.index,
        num_warps=tuning.warps, enable_fp_fusion=False, maxnreg=tuning.registers,
    )  # fmt: skip
    many = splits > 16  # long sequences of a small batch: few programs, so each has more of its rows on the way at once
    stage2_kernel[(batch * heads,)](
        sums, stat, or_q(sinks), out, lse, log_a, c_max, value, splits, batch * heads, inflate,
        HQ=heads, D=d, SP=triton.next_power_of_2(splits), METERS=meters, SINK=sinks is not None,
        ROWS=(32 if d == 256 else 64) if many else 16, num_warps=8 if many else 2, enable_fp_fusion=False,
    )  # fmt: skip
    return DecodeOutput(out, lse, readings)
