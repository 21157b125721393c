"""Adapter for Hugging Face transformers: load a decoder, record post-RoPE q, k, v, run it with a quantized cache.

Only the public extension points are used (``AttentionInterface``, ``AttentionMaskInterface``, ``Cache`` and module hooks); no
modelling code is copied. ``witcert.attach`` runs a model on a certified cache; it lives in :mod:`witcert.hf.attach`, which
imports transformers. Needs the extra ``witcert[hf]``.
"""

from witcert.hf.attention import AttentionCall, attention_hook
from witcert.hf.capture import capture
from witcert.hf.geometry import Geometry, describe
from witcert.hf.load import DEFAULT_MODEL, LoadedModel, load_model

__all__ = [
    "DEFAULT_MODEL",
    "AttentionCall",
    "Geometry",
    "LoadedModel",
    "attention_hook",
    "capture",
    "describe",
    "load_model",
]
