"""From the arguments of ``attach`` to a pool, a gate and a meter that fit each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from witcert.budget import Budget
from witcert.errors import InputError
from witcert.gate import Gate
from witcert.hf.geometry import Geometry
from witcert.hf.refusals import model_dtype
from witcert.store import PoolConfig
from witcert.store.outliers import load_outliers

__all__ = ["Plan", "TierB", "plan"]

DEFAULT_TOKENS = 4096
Format = Literal["exact", "scheme", "int8", "int8-dither"]
MeterKind = Literal["band", "half", "tierB"]


@dataclass(frozen=True, eq=False)
class TierB:
    """Dithered INT8.

    rounds : of Philox, 7 or 10. dither_values : whether the values are dithered too.
    """

    rounds: int = 7
    dither_values: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """What an attachment is made of."""

    config: PoolConfig
    gate: Gate
    meter: MeterKind | None
    budget: Budget


def _stored_dtype(model: Any, dtype: torch.dtype | None) -> torch.dtype:
    own = model_dtype(model)
    half = (torch.float16, torch.bfloat16)
    if own in half:
        if dtype is not None and dtype != own:
            raise InputError(f"dtype={dtype}: the model computes in {own}, which is stored as it is")
        return own
    if own != torch.float32:
        raise InputError(f"the model computes in {own}; expected float16, bfloat16 or float32")
    if dtype is None:
        raise InputError(
            "the model computes in float32 and the cache holds 16 bits: pass dtype=torch.float16 or torch.bfloat16 to have "
            "q, k and v rounded, or load the model in 16 bits"
        )
    if dtype not in half:
        raise InputError(f"dtype={dtype} is neither torch.float16 nor torch.bfloat16")
    return dtype


def _format(format: str | None, scheme: str | None, tier_b: object) -> Format:
    implied: dict[str, str] = {}
    if scheme is not None:
        implied["scheme"] = "scheme"
    if tier_b:
        implied["tier_b"] = "int8-dither"
    if format is not None:
        implied["format"] = format
    if len(set(implied.values())) > 1:
        raise InputError(f"{' and '.join(implied)} ask for different formats: {', '.join(implied.values())}")
    chosen = next(iter(implied.values()), "int8")
    if chosen not in ("exact", "scheme", "int8", "int8-dither"):
        raise InputError(f"format={chosen!r} is none of exact, scheme, int8, int8-dither")
    return cast(Format, chosen)


def _meter(meter: str | None, tier_b: object, bands: int | None, packed: bool) -> MeterKind | None:
    if meter is None:
        return None
    if meter == "auto":
        if tier_b:
            return "tierB"
        return "band" if bands is not None else "half" if packed else None
    if meter not in ("band", "half", "tierB"):
        raise InputError(f"meter={meter!r} is none of auto, band, half, tierB")
    return cast(MeterKind, meter)


def _gate(gate: Gate | str | None, tau: float, exact: bool, meter: str | None, fixed_queries: bool) -> Gate:
    if isinstance(gate, str):
        if gate != "off":
            raise InputError(f"gate={gate!r} is neither a Gate nor 'off'")
        return Gate(tau=tau, mode="off")
    if gate is None:
        return Gate(tau=tau, mode="off" if exact or meter is None else "block")
    if not isinstance(gate, Gate):
        raise InputError(f"gate is {type(gate).__name__}; expected Gate, 'off' or None")
    if gate.mode != "off" and meter is None:
        raise InputError("a gate that repairs needs a meter")
    if gate.guarantee == "proved-nonadaptive" and not fixed_queries:
        raise InputError(
            "guarantee='proved-nonadaptive' speaks of queries that do not depend on the dither; in free-running generation "
            "they do. Use 'proved', or pass fixed_queries=True for a given text"
        )
    return gate


def _largest(sized: Callable[[int], PoolConfig], bytes: int) -> PoolConfig:
    """The pool with the most pages whose device bytes (page tables aside) are at most ``bytes``."""
    low, high = 1, 2
    least = sized(low).device_bytes
    if isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < least:
        raise InputError(f"bytes={bytes!r} holds no page; the smallest pool takes {least}")
    while sized(high).device_bytes <= bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sized(middle).device_bytes <= bytes else (low, middle)
    return sized(low)


def plan(
    model: Any, geometry: Geometry, *, format: str | None, scheme: str | None, tier_b: TierB | bool | None,
    meter: str | None, gate: Gate | str | None, tau: float, tokens: int | None, pages: int | None, bytes: int | None,
    side_pages: int | None, page_size: int, bands: int | None, dtype: torch.dtype | None, steps: int, delta_req: float,
    seed: int, backing: bool | None, fixed_queries: bool, outliers: Tensor | str | Path | None = None,
) -> Plan:  # fmt: skip
    """Check the arguments of ``attach`` against each other; InputError names the first that does not fit."""
    stored = _stored_dtype(model, dtype)
    chosen = _format(format, scheme, tier_b)
    packed = chosen in ("int8", "int8-dither")
    kind = _meter(meter, tier_b, bands, packed)
    gated = _gate(gate, tau, chosen == "exact", kind, fixed_queries)
    repairs = gated.mode != "off"
    if tokens is None:
        tokens = min(geometry.max_positions or DEFAULT_TOKENS, DEFAULT_TOKENS)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"tokens={tokens!r} is not a whole number >= 1")
    if pages is not None and bytes is not None:
        raise InputError("pages and bytes both size the pool; pass one")
    channels = load_outliers(outliers) if isinstance(outliers, str | Path) else outliers
    dithered = tier_b if isinstance(tier_b, TierB) else TierB()
    fields: dict[str, Any] = {
        "layers": geometry.layers, "heads": geometry.heads, "kv_heads": geometry.kv_heads, "head_dim": geometry.head_dim,
        "tokens": tokens, "page_size": page_size, "format": chosen, "scheme": scheme, "dtype": stored, "bands": bands,
        "pairing": geometry.pairing, "rotary_dim": geometry.rotary_dim, "seed": seed, "rounds": dithered.rounds,
        "dither_values": dithered.dither_values and chosen == "int8-dither",
        "outlier_channels": channels, "backing": repairs if backing is None else backing,
    }  # fmt: skip

    def sized(n: int) -> PoolConfig:
        side = 0
        if repairs and packed:
            side = side_pages if side_pages is not None else max(geometry.kv_heads * 8, n * geometry.kv_heads // 8)
        return PoolConfig(**fields, pages=n, side_pages=side)

    if bytes is None:
        config = sized(pages if pages is not None else -(-tokens // page_size))
    else:
        config = _largest(sized, bytes)
    budget = Budget(
        geometry.layers, geometry.heads, geometry.kv_heads, steps=steps, delta_req=delta_req, tau_k=gated.tau
    )
    return Plan(config, gated, kind, budget)
