"""Recorded post-RoPE queries, keys and values of a text, and their safetensors file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from witcert.errors import InputError

FORMAT = "witcert-activations/1"


@dataclass(frozen=True)
class LayerActivations:
    """One layer's attention inputs on one text.

    q [Hq, Q, d] at the query positions of the recording; k [Hkv, T, d]; v [Hkv, T, dv]; scale, softcap, sinks [Hq] as in
    witcert.hf.AttentionCall; first [Q] the first key position that each query sees (0 unless a window slides).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    first: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        hq, q_len, d = self.q.shape
        hkv, tokens, dk = self.k.shape
        if dk != d or hq % hkv or self.v.shape[:2] != (hkv, tokens) or self.first.shape != (q_len,):
            raise InputError(
                f"activations: shapes do not fit: q {tuple(self.q.shape)}, k {tuple(self.k.shape)}, "
                f"v {tuple(self.v.shape)}, first {tuple(self.first.shape)}"
            )
        for name in ("q", "k", "v"):
            x: Tensor = getattr(self, name)
            if not x.is_floating_point():
                raise InputError(f"activations: {name} has dtype {x.dtype}; a floating-point dtype is needed")
            if not bool(torch.isfinite(x).all()):
                raise InputError(f"activations: {name} holds NaN or infinity")


@dataclass(frozen=True)
class Activations:
    """All layers' attention inputs on one text; positions [Q]: a query at position p sees keys up to p."""

    domain: str
    layers: list[LayerActivations]
    positions: Tensor
    pairing: Literal["half", "adjacent"] = "half"
    rotary_dim: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("activations: no layer was recorded")
        tokens = self.layers[0].k.shape[1]
        if self.positions.ndim != 1 or not len(self.positions) or int(self.positions.max()) >= tokens:
            raise InputError(f"activations: query positions must be a list of 0..{tokens - 1}")


def _layer_tensors(prefix: str, layer: LayerActivations) -> dict[str, Tensor]:
    out = {f"{prefix}.q": layer.q, f"{prefix}.k": layer.k, f"{prefix}.v": layer.v, f"{prefix}.first": layer.first}
    if layer.sinks is not None:
        out[f"{prefix}.sinks"] = layer.sinks
    return {k: v.contiguous().cpu() for k, v in out.items()}


def save(recordings: list[Activations], path: Path) -> None:
    """Write recordings to one safetensors file, whole or not at all."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    header: list[dict[str, Any]] = []
    for i, rec in enumerate(recordings):
        tensors[f"{i}.positions"] = rec.positions.contiguous().cpu()
        for j, layer in enumerate(rec.layers):
            tensors |= _layer_tensors(f"{i}.{j}", layer)
        header.append(asdict(RecordingHeader.of(rec)))
    part = path.with_name(path.name + ".part")
    try:
        save_file(tensors, part, metadata={"format": FORMAT, "recordings": json.dumps(header)})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class RecordingHeader:
    """What a file says about one recording besides its tensors."""

    domain: str
    pairing: Literal["half", "adjacent"]
    rotary_dim: int | None
    scales: list[float]
    softcaps: list[float | None]
    meta: dict[str, Any]

    @classmethod
    def of(cls, rec: Activations) -> RecordingHeader:
        return cls(
            rec.domain,
            rec.pairing,
            rec.rotary_dim,
            [x.scale for x in rec.layers],
            [x.softcap for x in rec.layers],
            rec.meta,
        )


def load(path: Path) -> list[Activations]:
    """Read a file that :func:`save` wrote; InputError when it is missing, damaged or of another format."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"activations: no such file {path}")
    try:
        with safe_open(path, framework="pt") as f:
            meta = f.metadata() or {}
            if meta.get("format") != FORMAT:
                raise InputError(
                    f"activations: {path} is not a recording ({FORMAT}) but {meta.get('format', 'something else')!r}; "
                    "make one with `witcert capture`"
                )
            headers = [RecordingHeader(**h) for h in json.loads(meta["recordings"])]
            tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, TypeError, KeyError, OSError) as e:
        raise InputError(f"activations: {path} is damaged: {' '.join(str(e).split())[:200]}") from e
    out = []
    for i, h in enumerate(headers):
        try:
            layers = [
                LayerActivations(
                    tensors[f"{i}.{j}.q"],
                    tensors[f"{i}.{j}.k"],
                    tensors[f"{i}.{j}.v"],
                    tensors[f"{i}.{j}.first"],
                    scale,
                    softcap,
                    tensors.get(f"{i}.{j}.sinks"),
                )
                for j, (scale, softcap) in enumerate(zip(h.scales, h.softcaps, strict=True))
            ]
            out.append(Activations(h.domain, layers, tensors[f"{i}.positions"], h.pairing, h.rotary_dim, h.meta))
        except KeyError as e:
            raise InputError(f"activations: {path} is damaged: tensor {e} is missing") from e
    return out
