"""What an attached model cannot do is refused before the first token; nothing falls back to unmetered attention."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests import models
from tests.hf.serving_models import build, cache_name, cache_of, ids
from witcert.errors import InputError, MissingExtraError, PoolFullError, UnsupportedModelError, WitCertError
from witcert.hf.attach import Attachment, attach

transformers = models.transformers
SHORT = {"max_new_tokens": 4, "do_sample": False, "min_new_tokens": 4}


@pytest.fixture
def model() -> Any:
    return build("llama")


@pytest.fixture
def attached(model: Any) -> Iterator[Attachment]:
    with torch.no_grad(), attach(model, format="int8", tokens=64, pages=16) as a:
        yield a


def unharmed(a: Attachment) -> None:
    """No page is lost, and the next request runs."""
    free = a.pool.allocator.free_pages
    assert a.model.generate(ids(), **SHORT).shape == (1, 28)
    assert a.pool.allocator.free_pages == free == 16


@pytest.mark.parametrize(
    ("family", "overrides", "reason"),
    [
        ("llama", {"hidden_size": 64}, "head dimension 16"),
        ("llama", {"hidden_size": 320, "num_attention_heads": 4}, "head dimension 80"),
        (
            "llama",
            {"num_attention_heads": 17, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 68},
            "17 query heads",
        ),
        ("gemma3", {"use_bidirectional_attention": True}, "bidirectional"),
    ],
)
def test_models(family: str, overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        attach(build(family, **overrides))


def test_models_without_the_attention_that_the_theorems_are_about() -> None:
    config = transformers.GPT2Config(vocab_size=300, n_embd=64, n_layer=1, n_head=1)
    with pytest.raises(UnsupportedModelError, match="rotary"):
        attach(transformers.AutoModelForCausalLM.from_config(config).half())
    with pytest.raises(UnsupportedModelError, match="generates"):
        attach(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "int4"}, "int4"),
        ({"format": "exact", "tier_b": True}, "different formats"),
        ({"scheme": "rtn_int9"}, "rtn_int8"),
        ({"meter": "loud"}, "loud"),
        ({"gate": "on"}, "gate"),
        ({"tau": 0.0}, "tau"),
        ({"tokens": 0}, "tokens"),
        ({"pages": 4, "bytes": 1000}, "one"),
        ({"bytes": 10}, "bytes"),
        ({"page_size": 3}, "page_size"),
        ({"bands": 5}, "bands"),
        ({"format": "exact", "meter": "half"}, "meter"),
        ({"delta_req": 2.0}, "delta"),
    ],
)
def test_options(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attach(model, **options)
    attach(model).detach()


@pytest.mark.parametrize("format", ["exact", "int8", "int8-dither"])
def test_a_pool_fills_its_bytes(model: Any, format: Any) -> None:
    for budget in (700_000, 5_000_000):
        with attach(model, format=format, bytes=budget) as a:
            config = a.pool.config
            used = config.device_bytes
            assert used <= budget
            assert budget - used < 2 * used / config.pages  # not even one more page
            assert a.pool.account()["device"] - a.pool.account()["tables"] == used


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompt_lookup_num_tokens": 3}, "assisted"),
        ({"assistant_model": "self"}, "assisted"),
        ({"cache_implementation": "static"}, "static"),
        ({"cache_implementation": "quantized"}, "quantized"),
        ({"cache_implementation": "offloaded"}, "offloaded"),
        ({"use_cache": False}, "use_cache"),
        ({"output_attentions": True}, "output_attentions"),
        ({"custom_generate": "transformers-community/dola"}, "own loops"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
    ],
)
def test_generation_modes(attached: Attachment, options: dict[str, Any], reason: str) -> None:
    if options.get("assistant_model") == "self":
        options = {"assistant_model": build("llama")}
    seen: list[int] = []
    attached.on_step = lambda step: seen.append(step.step)
    with pytest.raises(UnsupportedModelError, match=reason):
        attached.model.generate(ids(), **{**SHORT, **options})
    assert not seen
    assert not attached.report()
    unharmed(attached)


def test_options_in_a_generation_config(attached: Attachment) -> None:
    config = transformers.GenerationConfig(max_new_tokens=4, prompt_lookup_num_tokens=3)
    with pytest.raises(UnsupportedModelError, match="assisted"):
        attached.model.generate(ids(), config)
    with pytest.raises(UnsupportedModelError, match="paged cache"):
        attached.model.generate_batch([[3, 4, 5]])
    attached.model.generation_config.prompt_lookup_num_tokens = 3
    with pytest.raises(UnsupportedModelError, match="assisted"):
        attached.model.generate(ids(), transformers.GenerationConfig(max_new_tokens=4))
    attached.model.generation_config.prompt_lookup_num_tokens = None
    unharmed(attached)


def test_an_older_transformers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.9.1")
    with pytest.raises(MissingExtraError, match=r"5\.17"):
        attach(model)


def test_caches_of_others(attached: Attachment, model: Any) -> None:
    name = cache_name(model)
    static = transformers.StaticCache(config=model.config, max_cache_len=32)
    with pytest.raises(UnsupportedModelError, match="StaticCache"):
        model(input_ids=ids(), **{name: static})
    other = build("llama")
    filled = cache_of(other(input_ids=ids()))
    with pytest.raises(InputError, match="filled without"):
        model(input_ids=ids(), **{name: filled})
    with attach(other, format="int8") as b:
        theirs = cache_of(other(input_ids=ids()))
        with pytest.raises(InputError, match="another attachment"):
            model(input_ids=ids(), **{name: theirs})
        assert b.report()[0].exact == 24
    with pytest.raises(InputError, match="filled without"):
        attached.model.generate(ids(), **SHORT, past_key_values=filled)
    mine = cache_of(model(input_ids=ids()))
    mine.close()
    with pytest.raises(InputError, match="closed"):
        model(input_ids=ids(1, 1), **{name: mine})
    latest = cache_of(model(input_ids=ids()))
    assert attached.cache is latest
    latest.close()
    assert attached.cache is None
    assert len(attached.records) == 2
    unharmed(attached)


def test_masks(attached: Attachment, model: Any) -> None:
    tokens, mask = ids(2, 10), torch.ones(2, 10, dtype=torch.long)
    right = mask.clone()
    right[0, -3:] = 0
    with pytest.raises(InputError, match="padding to the right"):
        model.generate(tokens, attention_mask=right, **SHORT)
    with pytest.raises(InputError, match="expected"):
        model(input_ids=tokens, attention_mask=mask[:, :7])
    with pytest.raises(UnsupportedModelError, match="padding masks"):
        model(input_ids=tokens, attention_mask=torch.zeros(2, 1, 10, 10))
    left = mask.clone()
    left[0, :3] = 0
    out = model(input_ids=tokens, attention_mask=left)
    longer = torch.ones(2, 11, dtype=torch.long)
    with pytest.raises(InputError, match="cached columns"):
        model(input_ids=tokens[:, :1], attention_mask=longer, **{cache_name(model): cache_of(out)})
    del out
    unharmed(attached)


def test_modes_of_the_model(attached: Attachment, model: Any) -> None:
    with torch.enable_grad(), pytest.raises(InputError, match="no_grad"):
        model(input_ids=ids())
    model.train()
    with pytest.raises(InputError, match="eval"):
        model(input_ids=ids())
    model.eval()
    with pytest.raises(InputError, match="use_cache"):
        model(input_ids=ids(), use_cache=False)
    with pytest.raises(UnsupportedModelError, match="attention weights"):
        model(input_ids=ids(), output_attentions=True)
    with pytest.raises(UnsupportedModelError, match="plain text"):
        model(input_ids=ids(), token_type_ids=ids())
    unharmed(attached)


def test_another_attention_function_is_noticed(attached: Attachment, model: Any) -> None:
    model.set_attn_implementation("eager")
    with pytest.raises(WitCertError, match="unmetered"):
        model(input_ids=ids())
    with pytest.raises(WitCertError, match="unmetered"):
        model.generate(ids(), **SHORT)
    model.set_attn_implementation("witcert-serving")
    unharmed(attached)


def test_a_layer_that_goes_its_own_way_is_noticed(attached: Attachment, model: Any) -> None:
    layer = model.model.layers[1].self_attn
    layer.forward = lambda hidden_states, **kwargs: (hidden_states, None)
    with pytest.raises(UnsupportedModelError, match=r"layers \[1\]"):
        model(input_ids=ids())
    del layer.forward
    layer.config, shared = build("llama").config, layer.config
    layer.config._attn_implementation = "eager"  # this layer now looks another implementation up
    with pytest.raises(UnsupportedModelError, match=r"layers \[1\]"):
        model.generate(ids(), **SHORT)
    layer.config = shared
    unharmed(attached)


def test_a_part_of_the_model_alone(attached: Attachment, model: Any) -> None:
    with pytest.raises(WitCertError, match="outside a forward"):
        model.model(input_ids=ids())
    unharmed(attached)


def test_a_forward_that_fails_leaves_nothing_behind(attached: Attachment, model: Any) -> None:
    out = model(input_ids=ids())
    cache = cache_of(out)
    layer = model.model.layers[1].mlp
    real, kind = layer.forward, RuntimeError

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise kind("a fault")

    for kind in (RuntimeError, KeyboardInterrupt):
        layer.forward = fail
        with pytest.raises(kind):
            model(input_ids=ids(1, 1), **{cache_name(model): cache})
        layer.forward = real
        again = model(input_ids=ids(1, 3, seed=4), **{cache_name(model): cache}).logits
        assert cache.get_seq_length() == 27
        assert attached.pool.length(cache.sequences[0]) == 27
        cache.crop(-3)
        fresh = cache_of(model(input_ids=ids()))
        torch.testing.assert_close(
            model(input_ids=ids(1, 3, seed=4), **{cache_name(model): fresh}).logits, again, rtol=0.0, atol=0.0
        )
    layer.forward = fail
    with pytest.raises(KeyboardInterrupt):
        model.generate(ids(), **SHORT)
    layer.forward = real
    del out, cache, fresh
    unharmed(attached)


def test_a_full_pool_says_so_and_goes_on(attached: Attachment, model: Any) -> None:
    with pytest.raises(InputError, match="64"):
        model.generate(ids(), max_new_tokens=60, min_new_tokens=60)
    with pytest.raises(PoolFullError, match="pages"):
        model.generate(ids(6, 40), **SHORT)
    unharmed(attached)


def test_a_cache_dies_with_its_attachment(model: Any) -> None:
    with torch.no_grad():
        with attach(model, format="int8") as a:
            cache = cache_of(model(input_ids=ids()))
        assert cache.closed
        assert a.report()[0].tokens == (24,)
        with pytest.raises(InputError, match="detached"):
            a.new_cache()
        with attach(model, format="int8"), pytest.raises(InputError, match="another attachment"):
            model(input_ids=ids(1, 1), **{cache_name(model): cache})
        with pytest.raises(WitCertError, match="outside a forward"):
            model(input_ids=ids(1, 1), **{cache_name(model): cache})


def test_compiled_models(model: Any) -> None:
    model.compile()
    with pytest.raises(UnsupportedModelError, match="compiled"):
        attach(model)


def test_importing_witcert_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, witcert; assert 'attach' in dir(witcert) or witcert.__all__; print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in out
    assert "transformers" not in out
