"""Record post-RoPE q, k, v of a text as the model computes them with exact attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import witcert
from witcert.errors import InputError, UnsupportedModelError
from witcert.hf.attention import AttentionCall, attention_hook, own_attention
from witcert.hf.load import LoadedModel
from witcert.observe.activations import Activations, LayerActivations

# The hooked forward must agree with the model's own: relative to the spread of the logits, in the model's precision.
_AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-9, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def query_positions(tokens: int, count: int) -> Tensor:
    """At most ``count`` query positions, evenly spaced, the last token included; int64, ascending."""
    if count >= tokens - 1:
        return torch.arange(1, tokens) if tokens > 1 else torch.zeros(1, dtype=torch.long)
    spaced = torch.linspace(max(1, tokens // 16), tokens - 1, count).round().long().tolist()
    return torch.tensor(sorted(set(spaced)))


def check_agreement(loaded: LoadedModel, input_ids: Tensor) -> float:
    """Largest difference between hooked and own logits on the given ids, relative to their spread; raises if too large."""
    with torch.no_grad():
        # the eager implementation is the definition: others leave out, in some releases, what they do not support
        with own_attention(loaded.model):
            own = loaded.model(input_ids=input_ids, use_cache=False).logits
        with attention_hook(loaded.model, lambda call: None):
            hooked = loaded.model(input_ids=input_ids, use_cache=False).logits
    if not bool(torch.isfinite(own).all()):
        raise InputError("the model's logits hold NaN or infinity on this text")
    difference = float((own - hooked).abs().max() / own.float().std().clamp_min(1e-30))
    if not difference <= _AGREEMENT[own.dtype if own.dtype in _AGREEMENT else torch.float32]:
        raise UnsupportedModelError(
            f"{type(loaded.model).__name__} computes something else than masked softmax attention: its logits and those of "
            f"the hooked attention differ by {difference:.2g} standard deviations"
        )
    return difference


def _first_visible(allowed: Tensor, positions: Tensor, layer: int) -> Tensor:
    """First key of each query's window; every mask of causal or sliding attention is such an interval."""
    rows = allowed[0, 0].index_select(0, positions)  # [Q, T]
    first = rows.int().argmax(-1)
    cols = torch.arange(rows.shape[1], device=rows.device)
    interval = (cols >= first[:, None]) & (cols <= positions[:, None])
    if allowed.shape[1] != 1 or not bool((rows == interval).all()):
        raise UnsupportedModelError(f"layer {layer}: the attention mask is not a causal window")
    return first.to("cpu", torch.int32)


def capture(loaded: LoadedModel, input_ids: Tensor, positions: Tensor, domain: str) -> tuple[Activations, Tensor]:
    """One exact forward over ``input_ids`` [1, T]; returns the recording and the logits [T, vocab] (float32, CPU)."""
    layers: dict[int, LayerActivations] = {}
    where = positions.to(input_ids.device)

    def record(call: AttentionCall) -> None:
        layers[call.layer] = LayerActivations(
            q=call.query[0].index_select(1, where).cpu(),
            k=call.key[0].cpu(),
            v=call.value[0].cpu(),
            first=_first_visible(call.allowed, where, call.layer),
            scale=call.scale,
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks.detach().reshape(-1).cpu(),
        )

    with torch.no_grad(), attention_hook(loaded.model, record):
        logits = loaded.model(input_ids=input_ids, use_cache=False).logits[0].float().cpu()
    g = loaded.geometry
    missing = sorted(set(range(g.layers)) - set(layers))
    if missing:
        raise UnsupportedModelError(f"layers {missing} never called the attention function: not softmax attention")
    meta: dict[str, Any] = {
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "model_type": g.model_type,
        "rope": g.rope_parameters,
        "dtype": str(layers[0].k.dtype),
        "tokens": int(input_ids.shape[1]),
        "witcert": witcert.__version__,
    }
    recording = Activations(domain, [layers[i] for i in sorted(layers)], positions.cpu(), g.pairing, g.rotary_dim, meta)
    return recording, logits
