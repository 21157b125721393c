"""The README's five lines around ``generate`` and the code of docs/serving.md, run as they stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf.serving_models import FAMILIES, build, ids
from witcert.store.outliers import save_outliers

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def code_between(path: Path, name: str) -> str:
    block = path.read_text(encoding="utf-8").split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
    return block.strip().removeprefix("```python").removesuffix("```")


def test_attach_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_between(README, "attach")
    assert len(code.strip().splitlines()) == 6
    model = build(next(iter(FAMILIES)), torch.float32)
    names: dict[str, object] = {"model": model, "torch": torch, "inputs": {"input_ids": ids(1, 12)}}
    exec(code, names)
    assert tuple(names["tokens"].shape) == (1, 20)  # type: ignore[attr-defined]
    said = capsys.readouterr().out
    assert "proved" in said
    assert "RequestReport" in said


def test_the_code_of_the_serving_guide(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both blocks in turn, with the file of an audit for outliers."""
    monkeypatch.chdir(tmp_path)
    model = build(next(iter(FAMILIES)), torch.float32)
    layers = model.config.num_hidden_layers
    channels = torch.tensor([3, 35, 9, 41], dtype=torch.int32).expand(layers, model.config.num_key_value_heads, 4)
    save_outliers(channels, tmp_path / "pairs.safetensors", {"model": "tiny"})
    prompt = {"input_ids": ids(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    names: dict[str, Any] = {"model": model, "inputs": prompt, "outliers": "pairs.safetensors"}
    exec(code_between(ROOT / "docs" / "serving.md", "serve"), names)
    assert tuple(names["tokens"].shape) == (2, 20)
    assert names["bytes_of"]["outliers"] > 0
    assert names["traffic"]["cells"] == 2 * 7 * layers * model.config.num_attention_heads
    assert [r.steps for r in names["reports"]] == [7, 7]
    exec(code_between(ROOT / "docs" / "serving.md", "watch"), names)
    assert "http://" in capsys.readouterr().out
    assert (tmp_path / "run.jsonl").stat().st_size > 100
