"""The file of key channels that packed formats keep exactly: ``witcert audit --outliers`` writes it, ``attach`` reads it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from witcert.errors import InputError

__all__ = ["load_outliers", "save_outliers"]

FORMAT = "witcert-outliers/1"


def save_outliers(channels: Tensor, path: Path, about: dict[str, str]) -> None:
    """Write ``outlier_channels`` (int32 [L, Hkv, 2m]) as a safetensors file with what it was chosen on, whole or not at all."""
    from safetensors.torch import save_file

    part = path.with_name(path.name + ".part")
    try:
        save_file({"outlier_channels": channels.contiguous()}, part, metadata={"format": FORMAT, **about})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_outliers(path: str | Path) -> Tensor:
    """``outlier_channels`` (int32 [L, Hkv, 2m]) of such a file; InputError if it is none."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise InputError(f"outliers: no such file {path}")
    try:
        with safe_open(path, framework="pt") as f:
            kind = (f.metadata() or {}).get("format")
            channels = f.get_tensor("outlier_channels") if kind == FORMAT else None
    except (SafetensorError, OSError) as e:
        raise InputError(f"outliers: {path} cannot be read: {e}") from e
    if not isinstance(channels, Tensor):
        raise InputError(f"outliers: {path} has the format {kind!r}; expected {FORMAT!r}, of witcert audit --outliers")
    if channels.dtype != torch.int32 or channels.ndim != 3:
        raise InputError(f"outliers: {path} holds {channels.dtype} {tuple(channels.shape)}; expected int32 [L, Hkv, 2m]")
    return channels
