"""The README's five lines around ``generate``, run as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.hf.serving_models import FAMILIES, build, ids

README = Path(__file__).resolve().parents[2] / "README.md"


def test_attach_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    block = README.read_text(encoding="utf-8").split("<!-- attach:begin -->")[1].split("<!-- attach:end -->")[0]
    code = block.strip().removeprefix("```python").removesuffix("```")
    assert len(code.strip().splitlines()) == 6
    model = build(next(iter(FAMILIES)), torch.float32)
    names: dict[str, object] = {"model": model, "torch": torch, "inputs": {"input_ids": ids(1, 12)}}
    exec(code, names)
    assert tuple(names["tokens"].shape) == (1, 20)  # type: ignore[attr-defined]
    said = capsys.readouterr().out
    assert "proved" in said
    assert "RequestReport" in said
