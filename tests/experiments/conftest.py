"""One tiny model, one setting and one recording for all experiments of the session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.common import Setting
from tests import models
from tests.hf.serving_models import build


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer decoder with head dimension 64 and a byte tokenizer, as a directory."""
    folder = tmp_path_factory.mktemp("tiny")
    build("llama", torch.float32).save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def setting(model_folder: Path) -> Setting:
    """A quick setting on it; 128 tokens and 8 queries of each text."""
    return Setting(quick=True, model=str(model_folder), tokens=128, queries=8)
