"""Launch of extend: checks its arguments, refuses what it does not support, waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.kernels.checks import paged_queries, positive, sink_logits, window_size
from witcert.kernels.decode import BandMeter, HalfStepMeter, PagePart, Reading, TierBMeter
from witcert.kernels.decode.budget import LOG2E, envelope
from witcert.kernels.decode.launch import Meter, _readings
from witcert.kernels.extend import budget
from witcert.kernels.extend.kernel import extend_kernel
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = ["ExtendOutput", "extend"]

MAX_GROUP, MAX_CHUNK, MAX_TOKENS = 16, 2**16, 2**24
MAX_HEADS = 65535
"""Most KV heads, and most sequences, of a launch: the second and third axis of a grid."""


@dataclass(frozen=True, eq=False)
class ExtendOutput:
    """out [batch, C, Hq, d] in the dtype of q; lse float32 [batch, C, Hq], natural log of the mass (-inf: no token).

    readings: as those of decode, with tensors [batch, C, Hq]; none without a meter, two with Tier B.

    Positions past the length of a sequence's chunk have out 0, lse -inf and meter, log A and C 0.
    """

    out: Tensor
    lse: Tensor
    readings: tuple[Reading, ...]


def _new(name: str, x: object, q: Tensor, heads: int) -> Tensor:
    """x, if it is what the chunk adds: the dtype and device of q, [batch, C, heads, d]."""
    expected = (q.shape[0], q.shape[1], heads, q.shape[3])
    if not isinstance(x, Tensor) or x.dtype != q.dtype or x.ndim != 4 or not x.is_contiguous() or x.data_ptr() % 16:
        kind = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} is {kind}; expected a contiguous {q.dtype} {expected} at a multiple of 16 bytes")
    if tuple(x.shape) != expected or x.device != q.device:
        raise InputError(f"{name} has shape {tuple(x.shape)} on {x.device}; expected {expected} on {q.device}")
    return x


def _check_meter(store: ExactStore | PackedStore, table: PageTable, meter: Meter | None) -> int:
    """Whether the store has what the meter reads; the kernel's number of the meter."""
    if meter is None:
        return 0
    if isinstance(meter, BandMeter):
        if store.witness is None:
            raise InputError("BandMeter needs a store with a witness")
        return 1
    if isinstance(meter, HalfStepMeter):
        if isinstance(store, ExactStore):
            raise InputError("HalfStepMeter needs a packed store")
        return 2
    if isinstance(meter, TierBMeter):
        if isinstance(store, ExactStore) or store.dither is None:
            raise InputError("TierBMeter needs a packed store with dither")
        if table.max_tokens > meter.tokens:
            raise InputError(f"the table allows {table.max_tokens} tokens, the meter speaks of {meter.tokens}")
        return 3
    raise InputError(f"meter is {type(meter).__name__}; expected BandMeter, HalfStepMeter, TierBMeter or None")


def _check_sizes(q: Tensor, store: ExactStore | PackedStore, lens: object) -> None:
    """Limits of one launch, and the lengths of the chunks."""
    batch, chunk = q.shape[:2]
    if not 1 <= chunk <= MAX_CHUNK:
        raise InputError(f"{chunk} tokens a chunk; expected 1 to {MAX_CHUNK}")
    if batch > MAX_HEADS or store.kv_heads > MAX_HEADS:
        raise InputError(f"{batch} sequences of {store.kv_heads} KV heads; expected at most {MAX_HEADS} of each")
    if store.slots * store.kv_heads >= 2**31:
        raise InputError(f"the store has {store.slots} slots of {store.kv_heads} heads; expected fewer than 2^31 rows")
    if not isinstance(lens, Tensor) or lens.dtype != torch.int32 or lens.shape != (batch,) or lens.device != q.device:
        kind = f"{lens.dtype} {tuple(lens.shape)} on {lens.device}" if isinstance(lens, Tensor) else type(lens).__name__
        raise InputError(f"lens is {kind}; expected an int32 tensor [{batch}] on {q.device}")
    if not lens.is_contiguous():
        raise InputError("lens is not contiguous")


def _tile(head_dim: int, rows: int, packed: bool, heads: int) -> tuple[int, int, int]:
    """Rows, tokens and warps of a program; rows: positions times heads of a group, heads: KV heads of all sequences.

    A packed token is unpacked once per program, which costs more than the products of 64 rows: 128 where that still gives
    every multiprocessor a program. Otherwise the largest tiles that leave (almost) all in registers.
    """
    if rows <= 16:
        return 16, 32, 8 if head_dim == 256 else 4
    if head_dim == 256:
        return 32, 32, 8
    if packed and triton.cdiv(rows, 128) * heads >= 128:
        return 128, 32, 8
    if packed:
        return 64, 32, 8 if head_dim == 128 else 4
    return 64, 32 if head_dim == 128 else 64, 4


def extend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    store: ExactStore | PackedStore,
    table: PageTable,
    lens: Tensor,
    *,
    scale: float,
    meter: Meter | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    part: PagePart | None = None,
    own: bool = True,
) -> ExtendOutput:
    """Causal attention of a chunk of new tokens over a cached prefix and over the chunk itself, with meters per query.

    Parameters
    ----------
    q : float16 or bfloat16 [batch, C, Hq, d], post-RoPE; C in 1..65536, d in 64, 128, 256, Hq / Hkv in 1..16.
    k, v : exact keys and values of the chunk [batch, C, Hkv, d], not yet read back from the store. None only without own.
    store, table : the cache; ``table.seq_lens`` is the length of each prefix, without the chunk; it may be 0.
    lens : int32 [batch] on the device, tokens of each chunk, 0 to C; what lies past them is not read as a key.
    scale : softmax scale.
    meter : what to read of the prefix; the chunk's own keys are exact and pay for their arithmetic only. None reads
        nothing and leaves ``out`` the same, bit for bit.
    window : number of most recent tokens that a query sees, itself included, or None for all. What no query of the
        chunk sees is not read, nor are its pages.
    softcap : cap of the logits, ``cap * tanh(logit / cap)``, or None.
    sinks : float32 [Hq], logit of a virtual token without value, or None.
    part : read only the prefix's pages of one part, see :class:`~witcert.kernels.decode.PagePart`; None reads all.
    own : False leaves the chunk's keys and values out: the second of two reads that :func:`merge_extend` puts together. A
        query that then sees nothing has out 0, lse -inf and readings of nothing (meter, log A and C 0).

    Returns
    -------
    ExtendOutput : with the readings of decode's ``Reading`` type: ``meter_sound`` for band norms and half-steps,
        ``tierB_adaptive_sound`` and ``tierB_request_sound`` for Tier B. Every metered position of the chunk is a step of the
        Tier-B meter's budget.

    Raises
    ------
    InputError : whatever is not listed above, before anything is launched.

    Notes
    -----
    One launch, no host synchronization, deterministic, capturable in a CUDA graph. NaN or infinity on the way to a meter
    makes it 1. An exact store's witness carries ``decode.budget.dot_gamma``, as for decode. A value that is not finite can
    reach the outputs of queries before it in the same tile (never a meter or a lse).
    """
    q, group = paged_queries(q, store, table, axes="batch, C, Hq, d", max_group=MAX_GROUP, max_tokens=MAX_TOKENS)
    if not isinstance(own, bool):
        raise InputError(f"own={own!r} is neither True nor False")
    for name, x in (("k", k), ("v", v)):
        if own or x is not None:
            _new(name, x, q, store.kv_heads)
    if part is not None:
        if not isinstance(part, PagePart):
            raise InputError(f"part is {type(part).__name__}; expected PagePart or None")
        part.check(table, store.kv_heads)
    _check_sizes(q, store, lens)
    kind = _check_meter(store, table, meter)
    scale = positive("scale", scale)
    softcap = None if softcap is None else positive("softcap", softcap)
    window = window_size(window)
    batch, chunk, heads, d = q.shape
    sinks = sink_logits(sinks, heads, q.device)

    packed = store if isinstance(store, PackedStore) else None
    dither = packed.dither if packed is not None else None
    rounds = 0 if dither is None else dither.rounds
    outliers = 0 if packed is None else 2 * packed.outlier_pairs
    radius = adaptive = 0.0
    if isinstance(meter, TierBMeter):
        shares = meter.budget.delta_loc, meter.budget.delta_adaptive(meter.tokens)
        radius, adaptive = budget.radius_factors(d - outliers, meter.tokens, *shares)
    rows, tile, warps = _tile(d, chunk * group, packed is not None, batch * store.kv_heads)
    tiles = triton.cdiv(table.max_tokens, tile) + triton.cdiv(chunk, tile)
    factor = scale * LOG2E
    bits = 11 if q.dtype == torch.float16 else 8

    out = torch.empty_like(q)
    lse = torch.empty(batch, chunk, heads, dtype=torch.float32, device=q.device)
    shape = ((kind + 1) // 2, batch, chunk, heads)
    log_a, c_max, value = (torch.empty(shape, dtype=torch.float32, device=q.device) for _ in range(3))
    if batch == 0:
        return ExtendOutput(out, lse, _readings(meter, log_a, c_max, value))

    def or_q(x: Tensor | None) -> Tensor:  # a pointer that is never followed
        return q if x is None else x

    if isinstance(store, PackedStore):
        pools = store.k_code, store.v_code, store.k_scale, store.v_scale
        rest = store.k_outlier, store.outlier_channels, store.epochs
    else:
        pools, rest = (store.k, store.v, q, q), (None, None, None)
    extend_kernel[(triton.cdiv(chunk * group, rows), store.kv_heads, batch)](
        q, or_q(k), or_q(v), lens, table.pages, table.seq_lens, *pools, or_q(store.witness), *map(or_q, rest), or_q(sinks),
        q if part is None else part.parts, out, lse, log_a, c_max, value,
        chunk, batch * chunk * heads, table.pages.shape[1], min(window or 0, 2 * MAX_TOKENS),
        *((0, 0) if dither is None else dither.words), 0 if dither is None else dither.layer,
        factor, (softcap or 0.0) * LOG2E, 1.0 / (softcap or 1.0), budget.slack(factor, softcap, kind == 3),
        factor * budget.bound_factor(), factor * budget.HALF, factor * budget.BIAS, factor * radius, factor * adaptive,
        budget.packed_gamma(d, bits), budget.tiny_keys(d) if bits == 11 else 0.0, budget.self_gamma(d),
        budget.LOST_NORM, budget.LOST_OUTLIER, envelope(tiles, tile, 1),
        HKV=store.kv_heads, G=group, D=d, M=rows, N=tile, PAGE=table.page_size, PACKED=packed is not None,
        K_ROUNDS=rounds, V_ROUNDS=rounds if dither is not None and dither.values else 0, OUT=outliers, METER=kind,
        NB=store.witness.shape[-1] if kind == 1 and store.witness is not None else 16,
        HALF=not isinstance(meter, BandMeter) or meter.pairing == "half", WINDOW=window is not None,
        CAP=softcap is not None, SINK=sinks is not None, PART=-1 if part is None else part.index, OWN=own,
        INTERPRET=triton.knobs.runtime.interpret, num_warps=warps, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return ExtendOutput(out, lse, _readings(meter, log_a, c_max, value))
