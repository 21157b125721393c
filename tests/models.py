"""Tiny random decoders of many families, and a tokenizer for them, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

_BASE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# family → (config class, overrides): what makes the family interesting stands behind it
SUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),  # biases on q, k, v
    "qwen3": ("Qwen3Config", {"head_dim": 128}),  # QK-norm, head_dim apart from hidden_size / heads
    "mistral": ("MistralConfig", {"sliding_window": 16}),  # sliding window
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 256, "sliding_window": 16, "attn_logit_softcapping": 5.0},
    ),  # soft-cap, windows, d = 256
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 256, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {"head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 16},
    ),  # sinks
    "phi3": ("Phi3Config", {"partial_rotary_factor": 0.5}),  # fused qkv, partial RoPE
    "gpt_neox": ("GPTNeoXConfig", {"rotary_pct": 0.25}),  # partial RoPE, no GQA
    "cohere": ("CohereConfig", {}),  # adjacent pairs
    "olmo2": ("Olmo2Config", {}),
    "smollm3": ("SmolLM3Config", {}),  # layers without RoPE
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.25}),
}


def tiny(family: str, seed: int = 0) -> Any:
    """A random model of the family, float32, eval; query and key weights scaled up so that attention is not flat."""
    name, extra = SUPPORTED[family]
    config = getattr(transformers, name)(**{**_BASE, **extra})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if any(w in n for w in ("q_proj.weight", "k_proj.weight", "qkv_proj.weight", "query_key_value.weight")):
                p.mul_(12.0)
            if n.endswith("sinks"):
                p.normal_()
    return model


def tokenizer() -> Any:
    """A byte-level tokenizer of 256 + 3 entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {c: i + 3 for i, c in enumerate(alphabet)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def save(family: str, folder: Path, seed: int = 0) -> Path:
    """Write a tiny model with its tokenizer as a Hugging Face directory."""
    tiny(family, seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
