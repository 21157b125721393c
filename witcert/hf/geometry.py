"""What a decoder's attention looks like, and whether the meter's theorems speak about it."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from witcert.errors import UnsupportedModelError

# Class-name fragments of token mixers that keep no per-token key: nothing to bound the softmax of.
_RECURRENT = (
    "mamba",
    "deltanet",
    "linearattention",
    "recurrentblock",
    "shortconv",
    "rwkv",
    "xlstm",
    "lightningattention",
)


@dataclass(frozen=True)
class Geometry:
    """Shape of a decoder's attention, one record for the whole model.

    pairing says which channels RoPE rotates together: "half" (i with i + rotary_dim/2) or "adjacent" (2i with 2i + 1).
    It decides how channels are grouped into bands, hence tightness; any grouping is sound.
    """

    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    pairing: Literal["half", "adjacent"]
    max_positions: int | None
    rope_parameters: dict[str, Any]


def _decoder_attention(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (n, m)
        for n, m in model.named_modules()
        if isinstance(getattr(m, "layer_idx", None), int) and "attention" in type(m).__name__.lower()
    ]


def _pairing(attention: nn.Module) -> Literal["half", "adjacent"]:
    """Read from the module's own rotation which channels are paired (tightness only)."""
    namespace = sys.modules[type(attention).__module__]
    for name in ("rotate_half", "rotate_every_two", "apply_rotary_emb", "apply_rotary_pos_emb"):
        function = getattr(namespace, name, None)
        if function is None:
            continue
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            continue
        if "::2" in source or "view_as_complex" in source:
            return "adjacent"
    return "half"


def _rope_parameters(config: Any) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [v for v in rope.values() if isinstance(v, dict)]
    return dict(nested[0] if nested else rope)


def describe(model: nn.Module) -> Geometry:
    """Describe the model's attention.

    Raises UnsupportedModelError, naming the reason, for encoder-decoders, models without rotary position embedding,
    latent (MLA) attention, linear or recurrent layers, and models that bypass transformers' attention interface.
    """
    config: Any = model.config
    kind = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{kind} is an encoder-decoder; WitCert meters decoder-only models")
    config = config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None):
        raise UnsupportedModelError(
            f"{kind} uses latent attention (kv_lora_rank={config.kv_lora_rank}): its cache holds no per-head key, "
            "so there is no key residual to bound"
        )
    mixers = sorted(
        {
            type(m).__name__
            for m in model.modules()
            if any(w in type(m).__name__.lower().replace("_", "") for w in _RECURRENT)
        }
    )
    linear = sorted({t for t in getattr(config, "layer_types", None) or [] if "attention" not in t or "linear" in t})
    if mixers or linear:
        what = ", ".join(mixers or linear)
        raise UnsupportedModelError(
            f"{kind} has layers without softmax attention ({what}): total variation of attention is not defined there"
        )
    if not any("rotary" in type(m).__name__.lower() for m in model.modules()):
        raise UnsupportedModelError(
            f"{kind} has no rotary position embedding (RoPE); WitCert meters RoPE decoders only"
        )
    attentions = _decoder_attention(model)
    can_set = getattr(model, "_can_set_attn_implementation", None)
    if not attentions or (can_set is not None and not can_set()):
        raise UnsupportedModelError(f"{kind} does not route its attention through transformers' AttentionInterface")
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    attention = attentions[0][1]
    head_dim = int(getattr(attention, "head_dim", 0) or getattr(config, "head_dim", 0) or config.hidden_size // heads)
    rope = _rope_parameters(config)
    factor = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    rotary_dim = max(2, int(head_dim * float(factor)) // 2 * 2)
    return Geometry(
        model_type=str(config.model_type),
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        pairing=_pairing(attention),
        max_positions=getattr(config, "max_position_embeddings", None),
        rope_parameters=rope,
    )
