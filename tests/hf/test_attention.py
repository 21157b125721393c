"""The hooked attention is the model's own attention, for every supported family; others are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import models
from witcert.errors import UnsupportedModelError
from witcert.hf import attention_hook, describe
from witcert.hf.attention import AttentionCall, attend
from witcert.hf.capture import capture, check_agreement, query_positions
from witcert.hf.load import LoadedModel

transformers = models.transformers


def loaded(family: str) -> LoadedModel:
    model = models.tiny(family)
    return LoadedModel(family, model, None, describe(model), "")


def ids(tokens: int = 40) -> torch.Tensor:
    return torch.randint(3, 200, (1, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", models.SUPPORTED)
def test_hooked_logits_agree_with_the_models_own(family: str) -> None:
    assert check_agreement(loaded(family), ids()) < 1e-3


@pytest.mark.parametrize("family", models.SUPPORTED)
def test_recording_reproduces_the_attention_output(family: str) -> None:
    """q, k, v and the mask of a recording give back what the layer really computed."""
    m = loaded(family)
    positions = query_positions(40, 7)
    rec, _ = capture(m, ids(), positions, "t")
    outputs: dict[int, torch.Tensor] = {}

    def hook(call: AttentionCall) -> None:
        outputs[call.layer] = attend(call, call.key, call.value)[0].index_select(1, positions)

    with torch.no_grad(), attention_hook(m.model, hook):
        m.model(input_ids=ids(), use_cache=False)
    for i, layer in enumerate(rec.layers):
        groups = layer.q.shape[0] // layer.k.shape[0]
        k, v = (x.repeat_interleave(groups, 0).double() for x in (layer.k, layer.v))
        logits = layer.q.double() @ k.transpose(-1, -2) * layer.scale
        if layer.softcap is not None:
            logits = layer.softcap * torch.tanh(logits / layer.softcap)
        cols = torch.arange(40)
        visible = (cols <= positions[:, None]) & (cols >= layer.first[:, None])
        logits = logits.masked_fill(~visible, float("-inf"))
        if layer.sinks is not None:
            logits = torch.cat([logits, layer.sinks.double().reshape(-1, 1, 1).expand(-1, len(positions), 1)], -1)
        p = torch.softmax(logits, -1)[..., :40]
        torch.testing.assert_close((p @ v).float(), outputs[i], rtol=1e-4, atol=1e-5)


def test_what_is_special_about_a_family_is_recorded() -> None:
    rec, _ = capture(loaded("gemma2"), ids(), query_positions(40, 8), "t")
    assert [x.softcap for x in rec.layers] == [5.0, 5.0]
    assert rec.layers[0].k.shape[-1] == 256
    assert {int(x.first[-1]) for x in rec.layers} == {0, 24}  # one layer slides over 16 tokens, one sees all
    rec, _ = capture(loaded("gpt_oss"), ids(), query_positions(40, 8), "t")
    assert all(x.sinks is not None and x.sinks.shape == (4,) for x in rec.layers)
    assert describe(models.tiny("cohere")).pairing == "adjacent"
    assert describe(models.tiny("llama")).pairing == "half"
    assert describe(models.tiny("phi3")).rotary_dim == 8
    assert describe(models.tiny("qwen3")).head_dim == 128


def test_queries_and_keys_are_post_rope() -> None:
    """Moving the text by 7 positions turns q and k but keeps their pair norms: RoPE has been applied to what is recorded."""
    m = loaded("llama")
    x = ids(20)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hook(call: AttentionCall) -> None:
        if call.layer == 0:
            seen.append((call.query, call.key))

    with torch.no_grad(), attention_hook(m.model, hook):
        for shift in (0, 7):
            m.model(input_ids=x, position_ids=torch.arange(shift, shift + 20)[None], use_cache=False)
    (q0, k0), (q7, k7) = seen
    assert not torch.allclose(k0, k7, atol=1e-3)
    torch.testing.assert_close(
        k0.unflatten(-1, (2, -1)).norm(dim=-2), k7.unflatten(-1, (2, -1)).norm(dim=-2), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        q0 @ k0.repeat_interleave(2, 1).mT, q7 @ k7.repeat_interleave(2, 1).mT, rtol=1e-3, atol=1e-2
    )


def test_the_hook_serves_what_it_returns_and_is_taken_away() -> None:
    m = loaded("llama")
    before = m.model.config._attn_implementation
    with torch.no_grad():
        own = m.model(input_ids=ids(), use_cache=False).logits
        with attention_hook(m.model, lambda c: (torch.zeros_like(c.key), c.value)):
            flat = m.model(input_ids=ids(), use_cache=False).logits
        after = m.model(input_ids=ids(), use_cache=False).logits
    assert m.model.config._attn_implementation == before
    assert torch.equal(own, after)
    assert not torch.allclose(own, flat, atol=1e-3)
    with pytest.raises(ZeroDivisionError), attention_hook(m.model, lambda c: 1 // 0):  # type: ignore[arg-type, return-value]
        m.model(input_ids=ids(), use_cache=False)
    assert m.model.config._attn_implementation == before


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4}, "no rotary"),
    "bloom": ("BloomConfig", {"n_layer": 2, "n_head": 4}, "no rotary"),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
        },
        "latent attention",
    ),
    "mamba": ("MambaConfig", {"state_size": 4}, "without softmax attention"),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            "head_dim": 16,
            "num_experts": 2,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
        "without softmax attention",
    ),
}


@pytest.mark.parametrize("family", REFUSED)
def test_unsupported_models_are_refused_with_the_reason(family: str) -> None:
    name, extra, reason = REFUSED[family]
    config = getattr(transformers, name)(**{**models._BASE, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModelError, match=reason):
        describe(model)


def test_encoder_decoders_are_refused() -> None:
    config = transformers.T5Config(vocab_size=300, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        describe(transformers.AutoModelForSeq2SeqLM.from_config(config))


def test_an_argument_that_may_change_the_logits_is_refused() -> None:
    m = loaded("llama")
    with pytest.raises(UnsupportedModelError, match="position_bias"), attention_hook(m.model, lambda c: None):
        m.model(input_ids=ids(), use_cache=False, position_bias=torch.zeros(1))


@pytest.mark.parametrize(("tokens", "count"), [(2, 64), (3, 2), (40, 7), (512, 64), (65, 64)])
def test_query_positions_are_ascending_inside_and_end_at_the_last_token(tokens: int, count: int) -> None:
    p = query_positions(tokens, count)
    assert p[-1] == tokens - 1
    assert bool((p.diff() > 0).all())
    assert 1 <= len(p) <= max(count, 1)
    assert p[0] >= 1
