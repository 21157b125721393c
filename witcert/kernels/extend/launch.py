"""Launch of extend: checks its arguments, refuses what it does not support, waits for nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from witcert.errors import InputError
from witcert.guarantees import Labelled, Proved
from witcert.kernels.checks import on_device
from witcert.kernels.decode import BandMeter, HalfStepMeter
from witcert.kernels.decode.budget import LOG2E, TINY, envelope
from witcert.kernels.extend import budget
from witcert.kernels.extend.kernel import extend_kernel
from witcert.kernels.formats import ExactStore, PackedStore, PageTable

__all__ = ["ExtendOutput", "extend"]

MAX_GROUP, MAX_CHUNK, MAX_TOKENS = 16, 2**16, 2**17


@dataclass(frozen=True, eq=False)
class ExtendOutput:
    """out [batch, C, Hq, d] in the dtype of q; lse float32 [batch, C, Hq]; with a meter: its label, log A and C, likewise.

    Positions past the length of a sequence's chunk have out 0, lse -inf and meter 0.
    """

    out: Tensor
    lse: Tensor
    meter: Labelled | None = None
    log_a: Tensor | None = None
    c_max: Tensor | None = None


def _new(name: str, x: object, q: Tensor, heads: int | None) -> Tensor:
    if not isinstance(x, Tensor) or x.dtype != q.dtype or x.ndim != 4 or not x.is_contiguous():
        kind = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} is {kind}; expected a contiguous {q.dtype} [batch, C, heads, d]")
    expected = (q.shape[0], q.shape[1], q.shape[2] if heads is None else heads, q.shape[3])
    if tuple(x.shape) != expected or x.device != q.device:
        raise InputError(f"{name} has shape {tuple(x.shape)} on {x.device}; expected {expected} on {q.device}")
    return x


def _check(
    q: Tensor, k: Tensor, v: Tensor, store: ExactStore | PackedStore, table: PageTable, lens: Tensor,
    meter: BandMeter | HalfStepMeter | None,
) -> int:  # fmt: skip
    """Whether the arguments fit together; the number of query heads per KV head."""
    if not isinstance(q, Tensor) or q.dtype not in (torch.float16, torch.bfloat16) or q.ndim != 4:
        raise InputError("q is not a float16 or bfloat16 tensor [batch, C, Hq, d]")
    if not isinstance(store, (ExactStore, PackedStore)) or not isinstance(table, PageTable):
        raise InputError(f"store is {type(store).__name__}, table {type(table).__name__}; expected a store and a table")
    on_device("q", q)
    _new("q", q, q, None)
    _new("k", k, q, store.kv_heads)
    _new("v", v, q, store.kv_heads)
    batch, chunk, heads, d = q.shape
    if batch != table.batch or d != store.head_dim or not heads or heads % store.kv_heads:
        raise InputError(
            f"q has shape {tuple(q.shape)}; expected [{table.batch}, C, a multiple of {store.kv_heads}, {store.head_dim}]"
        )
    if heads // store.kv_heads > MAX_GROUP or chunk > MAX_CHUNK:
        raise InputError(f"{heads // store.kv_heads} query heads per KV head, {chunk} tokens a chunk; expected at most "
                         f"{MAX_GROUP} and {MAX_CHUNK}")  # fmt: skip
    pool = store.k if isinstance(store, ExactStore) else store.k_code
    if pool.device != q.device or table.pages.device != q.device:
        raise InputError(f"store is on {pool.device}, table on {table.pages.device}, q on {q.device}")
    if not isinstance(lens, Tensor) or lens.dtype != torch.int32 or lens.shape != (batch,) or lens.device != q.device:
        raise InputError(f"lens is not an int32 tensor [{batch}] on {q.device}")
    if table.max_tokens > MAX_TOKENS:
        raise InputError(f"the table allows {table.max_tokens} tokens; expected at most {MAX_TOKENS}")
    if store.slots * store.kv_heads >= 2**31:
        raise InputError(f"the store has {store.slots} slots of {store.kv_heads} heads; expected fewer than 2^31 rows")
    if isinstance(store, PackedStore):
        if store.page_size != table.page_size:
            raise InputError(f"the store has page_size {store.page_size}, the table {table.page_size}")
        if store.k_outlier is not None:
            raise InputError("extend does not support outlier pairs")
    elif store.k.dtype != q.dtype:
        raise InputError(f"q is {q.dtype}, the store {store.k.dtype}; they must agree")
    if isinstance(meter, BandMeter):
        if store.witness is None:
            raise InputError("BandMeter needs a store with a witness")
    elif isinstance(meter, HalfStepMeter):
        if isinstance(store, ExactStore):
            raise InputError("HalfStepMeter needs a packed store")
    elif meter is not None:
        raise InputError(f"meter is {type(meter).__name__}; extend supports BandMeter, HalfStepMeter and None")
    return heads // store.kv_heads


def extend(
    q: Tensor, k: Tensor, v: Tensor, store: ExactStore | PackedStore, table: PageTable, lens: Tensor, *, scale: float,
    meter: BandMeter | HalfStepMeter | None = None,
) -> ExtendOutput:  # fmt: skip
    """Causal attention of a chunk of new tokens over a cached prefix and over the chunk itself, and a meter per query.

    Parameters
    ----------
    q : float16 or bfloat16 [batch, C, Hq, d], post-RoPE.
    k, v : exact keys and values of the chunk [batch, C, Hkv, d], not yet read back from the store.
    store, table : the cache; ``table.seq_lens`` is the length of each prefix, without the chunk.
    lens : int32 [batch] on the device, tokens of each chunk, 0 to C; what lies past them is not read as a key.
    scale : softmax scale.
    meter : band norms (Tier A) or half-steps of the prefix; the chunk's own keys are exact. None reads nothing.

    One launch, no host synchronization, deterministic, capturable. Sliding windows, soft caps, sinks, outlier pairs and
    the probabilistic meters are not supported. An exact store's witness carries ``dot_gamma``, as for decode.
    """
    group = _check(q, k, v, store, table, lens, meter)
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale={scale!r} is not a finite number > 0")
    batch, chunk, heads, d = q.shape
    out = torch.empty_like(q)
    lse, log_a, c_max, value = (torch.empty(batch, chunk, heads, device=q.device) for _ in range(4))
    packed = store if isinstance(store, PackedStore) else None
    dither = packed.dither if packed is not None else None
    rounds = 0 if dither is None else dither.rounds
    rows, tile = (64, 64 if d == 64 else 32) if d <= 128 else (32, 32)
    factor = scale * LOG2E
    kind = 0 if meter is None else 1 if isinstance(meter, BandMeter) else 2
    bits = 11 if q.dtype == torch.float16 else 8
    half = not isinstance(meter, BandMeter) or meter.pairing == "half"
    exact = store if isinstance(store, ExactStore) else None
    if batch and chunk:
        extend_kernel[(triton.cdiv(chunk * group, rows), store.kv_heads, batch)](
            q, k, v, lens, table.pages, table.seq_lens,
            packed.k_code if packed is not None else exact.k if exact is not None else q,
            packed.v_code if packed is not None else exact.v if exact is not None else q,
            q if packed is None else packed.k_scale, q if packed is None else packed.v_scale,
            q if store.witness is None else store.witness,
            lens if packed is None or packed.epochs is None else packed.epochs,
            out, lse, log_a, c_max, value, chunk, table.pages.shape[1],
            *((0, 0) if dither is None else dither.words), 0 if dither is None else dither.layer,
            factor, factor * budget.bound_factor(kind == 2), budget.packed_gamma(d, bits),
            budget.tiny_keys(d) if bits == 11 else 0.0, budget.self_gamma(d), TINY,
            envelope(triton.cdiv(table.max_tokens, tile) + triton.cdiv(chunk, tile), tile, 1),
            HKV=store.kv_heads, G=group, D=d, M=rows, N=tile, PAGE=table.page_size, PACKED=packed is not None,
            K_ROUNDS=rounds, V_ROUNDS=rounds if dither is not None and dither.values else 0, METER=kind,
            NB=store.witness.shape[-1] if kind == 1 and store.witness is not None else 16, HALF=half,
            INTERPRET=triton.knobs.runtime.interpret, num_warps=4 if d <= 128 else 8, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
    if meter is None:
        return ExtendOutput(out, lse)
    return ExtendOutput(out, lse, Proved(value, "meter_sound"), log_a, c_max)
