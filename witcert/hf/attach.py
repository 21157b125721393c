"""``attach``: one call after which a transformers model runs on a certified cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from witcert.errors import InputError
from witcert.gate import Gate
from witcert.hf.attachment import Attachment, Observer, is_attached
from witcert.hf.load import LoadedModel
from witcert.hf.options import TierB, plan
from witcert.hf.records import StepRecord
from witcert.hf.refusals import attention_modules, check_model, check_transformers
from witcert.store import CachePool

__all__ = ["Attachment", "TierB", "attach"]


def attach(
    model: Any, *, format: Literal["exact", "scheme", "int8", "int8-dither"] | None = None, scheme: str | None = None,
    tier_b: TierB | bool | None = None, meter: Literal["auto", "band", "half", "tierB"] | None = "auto",
    gate: Gate | Literal["off"] | None = None, tau: float = 0.2, tokens: int | None = None, pages: int | None = None,
    bytes: int | None = None, side_pages: int | None = None, page_size: int = 16, bands: int | None = 16,
    dtype: torch.dtype | None = None, steps: int = 256, delta_req: float = 1e-2, seed: int = 0, backing: bool | None = None,
    fixed_queries: bool = False, telemetry: Any = None, observer: Observer | None = None,
    on_step: Callable[[StepRecord], None] | None = None, sweep: float = 0.0, graphs: bool = True,
    outliers: Tensor | str | Path | None = None,
) -> Attachment:  # fmt: skip
    """Run a transformers model on a certified cache: ``model.generate`` and plain forwards, metered and gated.

    Single-token steps are decoded with the meter and the gate. Forwards of several tokens run through extend, exact among
    themselves; what they read of a stored prefix is metered and reported, with repaired pages read exactly, and repaired for
    forwards of up to ``Gate.chunk`` new tokens (default: none).

    Parameters
    ----------
    model : a causal language model of transformers in eval mode, or a LoadedModel.
    format : ``"exact"``, ``"scheme"``, ``"int8"`` (default) or ``"int8-dither"``; scheme and tier_b imply theirs.
    scheme : name of a registered scheme whose served numbers are stored.
    tier_b : dithered INT8 with the Tier-B meter, True or :class:`TierB`.
    meter : ``"band"`` from the witness, ``"half"`` from the scales, ``"tierB"`` from the law of the dither; ``"auto"``: Tier B
        if tier_b is given, else band norms, else half-steps; None reads nothing (and needs the gate off).
    gate : a Gate, ``"off"``, or None: block repair at tau with the proved reading (off where the cache is exact).
        ``proved-nonadaptive`` speaks of queries that do not depend on the dither, which the tokens of a free-running
        generation do: it is refused unless fixed_queries is true.
    tau : threshold of the default gate.
    tokens : most tokens of a sequence; default: the model's context, at most 4096.
    pages, bytes : size of the pool, in pages or in bytes of device memory; default: one sequence of ``tokens``.
    side_pages : pages of one KV head and layer for repairs of packed formats; default: an eighth of the pool.
    page_size, bands : 16 or 1; 16, 8 or None.
    dtype : float16 or bfloat16 to which q, k and v of a float32 model are rounded before they are stored and attended
        to; "exact" then means these rounded numbers. Required for such a model, refused for others.
    steps, delta_req : steps that the non-adaptive reading covers, and failure probability of a request. Every token of a
        forward over a stored prefix is such a step; a report says what a request spent beyond them.
    seed : of the dither. backing : host copy of exact keys and values; default: if the gate repairs.
    fixed_queries : the tokens are a given text (teacher forcing): ``generate`` is refused.
    telemetry : a ``witcert.telemetry.Telemetry`` of the model's layers and query heads; each sequence is a request of it.
    sweep : share of the pages in use that is compared with its content tags before each decode step, 0 to 1. Damaged pages are
        written anew from the backing store (see ``Attachment.healed``); where there is none, CorruptionError. It waits for
        the device.
    graphs : on a GPU, launch what each layer's decode step stores, reads and compares as one CUDA graph. Without effect for
        schemes that are not registered as capturable.
    outliers : channels of the keys that a packed format keeps exactly, int32 [layers, Hkv, 2m], or the file of them that
        ``witcert audit --outliers`` wrote.
    observer : called with (layer, q, sequences, options, attended) after every layer of a decode step; on_step with each
        StepRecord.

    Raises
    ------
    UnsupportedModelError, InputError : see :func:`witcert.hf.refusals.check_model` and the fields of ``PoolConfig``.
    """
    if isinstance(model, LoadedModel):
        model = model.model
    if isinstance(sweep, bool) or not 0.0 <= sweep <= 1.0:
        raise InputError(f"sweep={sweep!r} is outside [0, 1]")
    check_transformers()
    geometry = check_model(model)
    if is_attached(model):
        raise InputError(f"this {type(model).__name__} is attached already; detach it first")
    planned = plan(
        model, geometry, format=format, scheme=scheme, tier_b=tier_b, meter=meter, gate=gate, tau=tau, tokens=tokens,
        pages=pages, bytes=bytes, side_pages=side_pages, page_size=page_size, bands=bands, dtype=dtype, steps=steps,
        delta_req=delta_req, seed=seed, backing=backing, fixed_queries=fixed_queries, outliers=outliers,
    )  # fmt: skip
    pool = CachePool(planned.config, next(model.parameters()).device)
    reads = None if planned.meter is None else pool.meter_for(planned.meter, planned.budget)
    if planned.meter is not None and reads is None:
        raise InputError(f"meter={planned.meter!r} reads nothing of format={planned.config.format!r}, bands={bands}")
    attachment = Attachment(
        model, pool, planned.gate, reads, planned.budget, modules=attention_modules(model, geometry), dtype=dtype,
        fixed_queries=fixed_queries, telemetry=telemetry, observer=observer, on_step=on_step, sweep=sweep, graphs=graphs,
    )  # fmt: skip
    attachment.install()
    return attachment
