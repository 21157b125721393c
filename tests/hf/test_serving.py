"""An attached model is the model itself on an exact cache, and a metered one on every other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf.serving_models import FAMILIES, build, cache_name, cache_of, ids
from witcert.errors import InputError
from witcert.gate import Gate
from witcert.hf.attach import attach
from witcert.hf.options import TierB
from witcert.store.outliers import save_outliers

GREEDY = {"max_new_tokens": 8, "do_sample": False, "min_new_tokens": 8}


def steps_logits(model: Any, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits of a prefill of ``prompt`` tokens and of one step for each of the others, [T - prompt + 1, vocab]."""
    out = model(input_ids=tokens[:, :prompt])
    rows, cache = [out.logits[:, -1]], cache_of(out)
    for i in range(prompt, tokens.shape[1]):
        out = model(input_ids=tokens[:, i : i + 1], **{cache_name(model): cache})
        rows.append(out.logits[:, -1])
    return torch.cat(rows).float()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_exact_cache_gives_the_models_own_logits(family: str) -> None:
    """No farther from the float32 model than twice what the model's own attention is in 16 bits (or 1 % of the spread)."""
    model, tokens = build(family), ids(1, 30)
    model.set_attn_implementation("eager")
    own = steps_logits(model, tokens, 22)
    with attach(model, format="exact", tokens=64):
        served = steps_logits(model, tokens, 22)
    wide = build(family, torch.float32)
    wide.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    wide.set_attn_implementation("eager")
    truth = steps_logits(wide, tokens, 22)
    spread = truth.std()
    assert (served - truth).abs().max() <= 2 * (own - truth).abs().max() + 0.01 * spread
    assert torch.equal(steps_logits(model, tokens, 22), own)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_exact_cache_gives_the_models_own_greedy_tokens(family: str) -> None:
    """Until the first step whose two best tokens are closer than rounding: there either may win."""
    model = build(family)
    model.set_attn_implementation("eager")
    for seed in range(8):
        prompt = ids(1, 22, seed=seed)
        own = model.generate(prompt, **GREEDY, output_logits=True, return_dict_in_generate=True)
        logits = torch.cat(own.logits).float()
        best = logits.topk(2, -1).values
        n = int(((best[:, 0] - best[:, 1]) > 0.05 * logits.std()).int().cumprod(0).sum())
        if n >= 3:
            break
    assert n >= 3, "no prompt of these says anything"
    with attach(model, format="exact", tokens=64) as a:
        served = model.generate(prompt, **GREEDY)
        (report,) = a.report()
    assert served[0, 22 : 22 + n].tolist() == own.sequences[0, 22 : 22 + n].tolist()
    assert report.steps == 7
    assert report.cells == 7 * 2 * 4
    assert report.certified == report.cells
    assert report.prompt == (22,)
    assert report.tokens == (29,)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_detach_gives_the_model_back_bit_for_bit(family: str) -> None:
    model, tokens = build(family), ids(2, 12)
    before = model(input_ids=tokens).logits
    state = {k: v for k, v in model.__dict__.items() if not k.startswith("_forward")}
    kinds = [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")]
    with attach(model, format="int8-dither", meter="band"):
        model.generate(tokens, **GREEDY)
    with pytest.raises(ZeroDivisionError), attach(model):
        raise ZeroDivisionError
    a = attach(model, format="int8")
    with pytest.raises(InputError, match="attached already"):
        attach(model)
    a.detach()
    a.detach()
    assert torch.equal(model(input_ids=tokens).logits, before)
    assert {k: v for k, v in model.__dict__.items() if not k.startswith("_forward")} == state
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert not model._forward_hooks_always_called
    assert [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")] == kinds


@torch.no_grad()
def test_left_padding_is_not_stored_and_changes_nothing() -> None:
    model, prompt = build("mistral"), ids(2, 20)
    mask = torch.ones_like(prompt)
    mask[0, :7] = 0
    with attach(model, format="exact", tokens=64, pages=32) as a:
        both = model.generate(prompt, attention_mask=mask, **GREEDY, output_logits=True, return_dict_in_generate=True)
        alone = [
            model.generate(p[None], **GREEDY, output_logits=True, return_dict_in_generate=True)
            for p in (prompt[0, 7:], prompt[1])
        ]
        reports = a.report()
    assert [r.prompt for r in reports] == [(13,), (20,), (13,), (20,)]
    for row, one in enumerate(alone):
        torch.testing.assert_close(torch.stack(both.logits)[:, row], torch.stack(one.logits)[:, 0], rtol=0.0, atol=0.02)
        assert both.sequences[row, 20:].tolist() == one.sequences[0, -8:].tolist()


@torch.no_grad()
def test_prefill_in_chunks_and_continuation() -> None:
    model, prompt = build("gemma2"), ids(1, 40)
    mask = torch.ones_like(prompt)
    mask[0, :9] = 0
    with attach(model, format="exact", tokens=128, pages=32) as a:
        whole = model.generate(prompt, attention_mask=mask, **GREEDY)
        chunked = model.generate(prompt, attention_mask=mask, prefill_chunk_size=7, **GREEDY)
        assert torch.equal(whole, chunked)
        first = model.generate(prompt, attention_mask=mask, **GREEDY, return_dict_in_generate=True)
        cache = cache_of(first)
        longer = torch.cat([first.sequences, ids(1, 5, seed=9)], 1)
        full = torch.cat([mask, mask.new_ones(1, 13)], 1)
        continued = model.generate(longer, attention_mask=full, past_key_values=cache, **GREEDY)
        again = model.generate(longer, attention_mask=full, **GREEDY)
        assert torch.equal(continued, again)
        free = a.pool.allocator.free_pages
        cache.close()
        assert a.pool.allocator.free_pages > free
        report = a.report()[2]
        assert report.chunk_tokens == 6  # the last token of the first call and five new ones
        assert report.chunk_cells == report.chunk_certified == 6 * 2 * 4
        assert (report.chunks, report.unmetered) == (1, 0)
        assert report.exact == 31
    assert a.report()[2].tokens == report.tokens


@torch.no_grad()
def test_beams_samples_and_several_returns() -> None:
    model, prompt = build("llama"), ids(2, 14)
    model.set_attn_implementation("eager")
    beams = {**GREEDY, "num_beams": 3}
    several = {**GREEDY, "do_sample": True, "num_return_sequences": 2}
    own = model.generate(prompt, **beams)
    torch.manual_seed(5)
    drawn = model.generate(prompt, **several)
    with attach(model, format="exact", tokens=64, pages=64) as a:
        assert torch.equal(model.generate(prompt, **beams), own)
        torch.manual_seed(5)
        assert torch.equal(model.generate(prompt, **several), drawn)
        assert a.pool.allocator.free_pages == 64
        reports = a.report()
    assert [r.rows for r in reports] == [3, 3, 1, 1, 1, 1]


@pytest.mark.parametrize("page_size", [1, 16])
@torch.no_grad()
def test_beams_of_dithered_codes_pay_for_what_a_fork_encodes_anew(page_size: int) -> None:
    model, prompt = build("qwen2"), ids(1, 14)
    with attach(model, tier_b=True, tokens=64, pages=40 * 16 // page_size, page_size=page_size, steps=8) as a:
        model.generate(prompt, **GREEDY, num_beams=4)
        (report,) = a.report()
    adaptive = next(m for m in report.worst if m.label == "proved")
    assert report.rows == 4
    assert adaptive.delta >= 1e-2
    assert report.applies == {"proved": True, "proved-nonadaptive": False}


@torch.no_grad()
def test_crop_copy_and_selection_of_rows() -> None:
    import copy

    model, tokens = build("qwen3"), ids(2, 24)
    with attach(model, format="exact", tokens=64, pages=32) as a:
        cache = a.new_cache()
        whole = model(input_ids=tokens, past_key_values=cache).logits
        cache.crop(-6)
        assert cache.get_seq_length() == 18
        other = copy.deepcopy(cache)
        again = model(input_ids=tokens[:, 18:], past_key_values=cache).logits
        torch.testing.assert_close(again, whole[:, 18:], rtol=0.0, atol=0.02)
        other.batch_select_indices(torch.tensor([1]))
        copied = model(input_ids=tokens[1:, 18:], past_key_values=other).logits
        torch.testing.assert_close(copied, whole[1:, 18:], rtol=0.0, atol=0.02)
        other.batch_repeat_interleave(3)
        assert other.batch_size == 3
        assert other.get_seq_length() == 24
        for columns in (3, -99):
            with pytest.raises(InputError):
                cache.crop(columns)
        with pytest.raises(InputError, match="new_cache"):
            cache.reset()
        del cache, other
        assert a.pool.allocator.free_pages == 32


@torch.no_grad()
def test_float32_models_round_only_when_asked() -> None:
    model = build("llama", torch.float32)
    with pytest.raises(InputError, match="float32"):
        attach(model)
    with pytest.raises(InputError, match="dtype"):
        attach(build("llama"), dtype=torch.bfloat16)
    own = model(input_ids=ids()).logits
    with attach(model, format="exact", dtype=torch.float16):
        served = model(input_ids=ids()).logits
    assert served.dtype == torch.float32
    torch.testing.assert_close(served, own, rtol=0.0, atol=0.02)


def test_guarantees_of_the_gate() -> None:
    model = build("llama")
    weak = Gate(guarantee="proved-nonadaptive")
    with pytest.raises(InputError, match="free-running"):
        attach(model, tier_b=TierB(), gate=weak)
    with attach(model, tier_b=TierB(), gate=weak, fixed_queries=True), pytest.raises(InputError, match="given text"):
        model.generate(ids(), **GREEDY)


@pytest.mark.parametrize("how", [{"format": "int8"}, {"tier_b": True}])
@torch.no_grad()
def test_outlier_channels(how: dict[str, Any], tmp_path: Path) -> None:
    """As a tensor or as the file of an audit: they are in the pool and in the meter, or refused where nothing keeps them."""
    model = build("llama")
    config = model.config
    channels = torch.tensor([3, 11, 3 + 32, 11 + 32], dtype=torch.int32).expand(config.num_hidden_layers, 2, 4).contiguous()
    save_outliers(channels, tmp_path / "o.safetensors", {"model": "tiny"})
    texts, worst = [], []
    for outliers in (channels, tmp_path / "o.safetensors", str(tmp_path / "o.safetensors")):
        with attach(model, **how, gate="off", tokens=64, outliers=outliers) as a:
            assert a.pool.config.outliers == 4
            texts.append(model.generate(ids(), **GREEDY))
            worst.append(torch.as_tensor(a.report()[0].worst[0].value))
    assert all(torch.equal(texts[0], x) for x in texts[1:])
    assert all(torch.equal(worst[0], x) for x in worst[1:])
    with attach(model, **how, gate="off", tokens=64) as a:
        model.generate(ids(), **GREEDY)
        assert not torch.equal(torch.as_tensor(a.report()[0].worst[0].value), worst[0])
    for other in ({"format": "exact"}, {"scheme": "rtn_int4"}):
        with pytest.raises(InputError, match="only packed formats"):
            attach(model, **other, outliers=channels)
    with pytest.raises(InputError, match="expected int32"):
        attach(model, **how, outliers=channels[:, :1])
    with pytest.raises(InputError, match="no such file"):
        attach(model, **how, outliers=tmp_path / "none")


@pytest.mark.parametrize("format", ["exact", "int8", "int8-dither"])
@torch.no_grad()
def test_the_fused_kernels_serve_what_the_references_serve(format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests through the Triton kernels (interpreted where there is no GPU): padding, chunks, steps, repairs."""
    model, prompt = build("mistral"), ids(2, 20)
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    runs = []
    for kernels in (False, True):
        monkeypatch.setattr("witcert.store.pool.on_kernels", lambda device, on=kernels: on)
        with attach(model, format=format, tokens=32, pages=8, tau=0.05) as a:
            assert a.pool.kernels is kernels
            out = model.generate(
                prompt, attention_mask=mask, prefill_chunk_size=12, max_new_tokens=3, min_new_tokens=3, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
            runs.append((torch.stack(out.logits), a.report()))
    (reference, first), (fused, second) = runs
    torch.testing.assert_close(fused, reference, rtol=0.0, atol=0.02)
    for one, other in zip(first, second, strict=True):
        assert one.cells == other.cells == 16
        assert other.uncertified == 0 or other.refused > 0
        for m, n in zip(one.worst, other.worst, strict=True):
            assert m.label == n.label
