"""What an attached model cannot do, found before its first token."""

from __future__ import annotations

import copy
from typing import Any

import torch

from witcert.errors import InputError, MissingExtraError, UnsupportedModelError
from witcert.hf.geometry import Geometry, _decoder_attention, describe
from witcert.kernels.formats import HEAD_DIMS

__all__ = ["attention_modules", "check_model", "check_request", "check_transformers", "model_dtype"]

MAX_GROUP = 16
OLDEST = (5, 17)
# Generation modes in which every step after the prompt is one token of every row.
_MODES = ("greedy_search", "sample", "beam_search", "beam_sample")


def model_dtype(model: Any) -> torch.dtype:
    """Precision of the model's parameters; InputError if they are not all of one."""
    kinds: set[torch.dtype] = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(kinds) != 1:
        raise InputError(f"the model mixes {', '.join(sorted(map(str, kinds)))}; WitCert needs one precision")
    return kinds.pop()


def attention_modules(model: Any, geometry: Geometry) -> list[Any]:
    """The attention module of each layer, in order; UnsupportedModelError unless each layer has exactly one."""
    found: list[Any] = [m for _, m in _decoder_attention(model)]
    found.sort(key=lambda m: int(m.layer_idx))
    if [m.layer_idx for m in found] != list(range(geometry.layers)):
        kind = type(model).__name__
        raise UnsupportedModelError(
            f"{kind} has {len(found)} attention modules for {geometry.layers} layers; expected one each"
        )
    return found


def check_transformers() -> None:
    """Raise MissingExtraError unless transformers is a release whose caches and masks are known to fit."""
    import transformers

    found = transformers.__version__
    numbers = tuple(int(n) for n in found.split(".")[:2] if n.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingExtraError(
            f"attach needs transformers >= {oldest}, found {found}: pip install -U 'transformers>={oldest}'"
        )


def check_model(model: Any) -> Geometry:
    """The model's geometry, if its attention can run on a pool.

    Raises UnsupportedModelError: see ``describe``; head dimensions other than 64, 128, 256; more than 16 query heads per KV
    head; chunked attention; layers that share another layer's keys; models with a vision or audio tower; compiled models;
    models spread over several devices; models that cannot generate.
    """
    kind = type(model).__name__
    if not hasattr(model, "generate") or not hasattr(model, "set_attn_implementation"):
        raise UnsupportedModelError(f"{kind} is no transformers model that generates")
    if getattr(model, "_compiled_call_impl", None) is not None or hasattr(model, "_orig_mod"):
        raise UnsupportedModelError(f"{kind} is compiled; attach the model before compiling it, or do not compile it")
    geometry = describe(model)
    config = model.config.get_text_config(decoder=True)
    if config is not model.config:
        raise UnsupportedModelError(f"{kind} has more than one tower; WitCert serves text models only")
    if geometry.head_dim not in HEAD_DIMS:
        dims = ", ".join(map(str, HEAD_DIMS))
        raise UnsupportedModelError(f"{kind} has head dimension {geometry.head_dim}; the kernels take {dims}")
    if geometry.heads % geometry.kv_heads or geometry.heads // geometry.kv_heads > MAX_GROUP:
        raise UnsupportedModelError(
            f"{kind} has {geometry.heads} query heads for {geometry.kv_heads} KV heads; expected 1 to {MAX_GROUP} each"
        )
    if "chunked_attention" in (getattr(config, "layer_types", None) or []) or getattr(
        config, "attention_chunk_size", None
    ):
        raise UnsupportedModelError(f"{kind} has chunked attention; WitCert knows causal and sliding-window attention")
    if getattr(config, "num_kv_shared_layers", None):
        raise UnsupportedModelError(f"{kind} has layers that read the keys of another layer")
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError(f"{kind} is bidirectional; WitCert meters causal attention")
    for module in attention_modules(model, geometry):
        own = getattr(module, "head_dim", geometry.head_dim)
        if own != geometry.head_dim:
            first = geometry.head_dim
            raise UnsupportedModelError(f"{kind}: layer {module.layer_idx} has head dimension {own}, the first {first}")
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1:
        raise UnsupportedModelError(
            f"{kind} is spread over {', '.join(sorted(map(str, devices)))}; expected one device"
        )
    return geometry


def check_request(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many rows of the batch belong to one prompt's beams, for the arguments of a ``generate`` call.

    Raises UnsupportedModelError for modes whose steps are not one token of every row (assisted decoding, prompt lookup,
    contrastive search, DoLa, custom loops), for caches other than the growing one, for compilation and for attention weights.
    """
    named = dict(zip(("inputs", "generation_config"), args, strict=False)) | kwargs
    config = named.pop("generation_config", None)
    config = copy.deepcopy(config if config is not None else model.generation_config)
    assistant = named.pop("assistant_model", None)
    if len(args) > 2 or named.get("custom_generate") is not None:
        raise UnsupportedModelError("an attached model generates with transformers' own loops; pass options by name")
    for name, value in vars(model.generation_config).items():  # what the call leaves open, the model's own says
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    for name, value in named.items():
        if hasattr(config, name):
            setattr(config, name, value)
    if getattr(config, "use_cache", True) is False:
        raise UnsupportedModelError("use_cache=False keeps no cache; there is nothing to certify")
    implementation = getattr(config, "cache_implementation", None)
    if implementation not in (None, "dynamic"):
        raise UnsupportedModelError(f"cache_implementation={implementation!r}: an attached model keeps its own cache")
    if getattr(config, "output_attentions", False):
        raise UnsupportedModelError("output_attentions=True: the fused kernels never form the attention weights")
    mode = config.get_generation_mode(assistant)
    name = str(getattr(mode, "value", mode))
    if name not in _MODES:
        raise UnsupportedModelError(
            f"generation mode {name!r} is not one of {', '.join(_MODES)}, which an attached model runs"
        )
    return int(getattr(config, "num_beams", None) or 1)
