"""An attention function for transformers that shows every call to a hook and lets it replace K and V."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from witcert.errors import UnsupportedModelError

NAME = "witcert"

# Arguments that models pass to an attention function and that change no logit here: positions and cache bookkeeping,
# lengths used only by variable-length kernels, the window (already in the mask) and output switches.
_HARMLESS = frozenset(
    {
        "position_ids",
        "cache_position",
        "position_embeddings",
        "use_cache",
        "past_key_values",
        "past_key_value",
        "cache",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "is_causal",
        "sliding_window",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "num_items_in_batch",
        "logits_to_keep",
        "output_router_logits",
        "deterministic",
        "target_dtype",
        "layer_idx",
        "seq_idx",
    }
)


@dataclass(frozen=True)
class AttentionCall:
    """One call of one layer's attention, after RoPE.

    query [B, Hq, Q, d], key [B, Hkv, T, d], value [B, Hkv, T, dv]; scale multiplies the logits before the cap;
    softcap is None or the cap of cap * tanh(x / cap); sinks None or [Hq] extra logits that take part in the softmax and
    carry no value; allowed bool [B, 1 or Hq, Q, T] says which keys each query may see.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    softcap: float | None
    sinks: Tensor | None
    allowed: Tensor


Hook = Callable[[AttentionCall], "tuple[Tensor, Tensor] | None"]
_active: list[Hook] = []


def _allowed(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    q_len, kv_len = query.shape[-2], key.shape[-2]
    if mask is None:
        rows = torch.arange(kv_len - q_len, kv_len, device=query.device)[:, None]
        return (torch.arange(kv_len, device=query.device)[None, :] <= rows)[None, None]
    mask = mask[..., :kv_len]
    if mask.dtype == torch.bool:
        return mask
    lowest = torch.finfo(mask.dtype).min
    allowed = mask == 0
    if not bool((allowed | (mask <= lowest / 2)).all()):
        raise UnsupportedModelError(
            "the attention mask adds a bias to some logits (ALiBi or a relative position bias); "
            "WitCert meters plain masked softmax attention"
        )
    return allowed


def _layer_index(module: nn.Module) -> int:
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise UnsupportedModelError(f"{type(module).__name__} does not say which layer it belongs to (layer_idx)")
    return index


def attend(call: AttentionCall, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention of the call on the given key and value; [B, Hq, Q, dv], computed in float32 or wider."""
    groups = call.query.shape[1] // key.shape[1]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    k = key.to(wide).repeat_interleave(groups, dim=1)
    v = value.to(wide).repeat_interleave(groups, dim=1)
    logits = call.query.to(wide) @ k.transpose(-1, -2) * call.scale  # [B, Hq, Q, T]
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    logits = logits.masked_fill(~call.allowed, float("-inf"))
    if call.sinks is not None:
        sink = call.sinks.to(wide).reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        weights = torch.softmax(torch.cat([logits, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(logits, dim=-1)
    return (weights.nan_to_num(0.0) if not bool(call.allowed.any(-1).all()) else weights) @ v


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    unknown = sorted(k for k, v in kwargs.items() if k not in _HARMLESS and v is not None and v is not False)
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention function; "
            "WitCert does not know whether that changes the logits"
        )
    if not _active:
        raise RuntimeError("the witcert attention function was called outside attention_hook()")
    if query.shape[-1] != key.shape[-1] or query.shape[1] % key.shape[1]:
        raise UnsupportedModelError(
            f"{type(module).__name__}: query {tuple(query.shape)} and key {tuple(key.shape)} do not "
            "form grouped-query attention"
        )
    call = AttentionCall(
        layer=_layer_index(module),
        query=query,
        key=key,
        value=value,
        scale=float(scaling if scaling is not None else query.shape[-1] ** -0.5),
        softcap=None if softcap is None else float(softcap),
        sinks=s_aux if s_aux is not None else sinks,
        allowed=_allowed(attention_mask, query, key),
    )
    replaced = _active[-1](call)
    out = attend(call, *(replaced or (key, value)))
    return out.to(query.dtype).transpose(1, 2).contiguous(), None


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """Run the model's attention in transformers' eager implementation while the context lasts."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def attention_hook(model: Any, hook: Hook) -> Iterator[None]:
    """Run the model's attention through WitCert's function while the context lasts.

    ``hook`` sees every :class:`AttentionCall` and may return (key, value) to be attended to instead. The model's own
    attention implementation is restored at the end, whatever happens.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        if model.config.get_text_config(decoder=True)._attn_implementation != NAME:
            raise UnsupportedModelError(f"{type(model).__name__} did not accept another attention implementation")
        _active.append(hook)
        try:
            yield
        finally:
            _active.pop()
    finally:
        model.set_attn_implementation(before)
