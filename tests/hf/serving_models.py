"""Tiny random decoders of every family with head dimensions that the kernels take, in 16 bits."""

from __future__ import annotations

from typing import Any

import torch

from tests import models

transformers = models.transformers
FAMILIES = tuple(models.SUPPORTED)


def build(family: str, dtype: torch.dtype = torch.float16, seed: int = 0, **overrides: Any) -> Any:
    """As ``models.tiny``, with head dimension 64, 128 or 256; the head dimension is the family's own where it sets one."""
    name, extra = models.SUPPORTED[family]
    fields = {**models._BASE, "hidden_size": 256, **extra, **overrides}
    if family == "gpt_oss":
        fields["head_dim"] = 64
    if family == "gpt_neox":  # has one KV head per query head, whatever its configuration says
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    config = getattr(transformers, name)(**fields)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if any(w in n for w in ("q_proj.weight", "k_proj.weight", "qkv_proj.weight", "query_key_value.weight")):
                p.mul_(6.0)
            if n.endswith("sinks"):
                p.normal_()
    return model.to(dtype)


def ids(batch: int = 1, tokens: int = 24, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 200, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def cache_name(model: Any) -> str:
    """What this release of transformers calls the cache of a forward."""
    import inspect

    names = inspect.signature(model.forward).parameters
    return next(n for n in ("cache", "past_key_values") if n in names)


def cache_of(output: Any) -> Any:
    """The cache that a forward or a generation returned."""
    return next(output[n] for n in ("cache", "past_key_values") if n in output)
