"""The file of outlier channels: written whole, read back, and refused where it is something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from witcert.errors import InputError
from witcert.kernels.formats import PackedStore
from witcert.store import CachePool, PoolConfig
from witcert.store.outliers import FORMAT, load_outliers, save_outliers


def test_written_whole_and_read_back(tmp_path: Path) -> None:
    channels = torch.arange(24, dtype=torch.int32).view(3, 2, 4)
    save_outliers(channels, tmp_path / "x.safetensors", {"model": "m"})
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
    assert torch.equal(load_outliers(tmp_path / "x.safetensors"), channels)
    assert torch.equal(load_outliers(str(tmp_path / "x.safetensors")), channels)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_outliers(tmp_path / "none")
    (tmp_path / "text").write_text("not this")
    with pytest.raises(InputError, match="cannot be read"):
        load_outliers(tmp_path / "text")
    channels = torch.zeros(1, 1, 4, dtype=torch.int32)
    save_file({"outlier_channels": channels}, tmp_path / "a")
    save_file({"outlier_channels": channels}, tmp_path / "b", metadata={"format": "witcert-outliers/2"})
    for name in "ab":
        with pytest.raises(InputError, match=FORMAT):
            load_outliers(tmp_path / name)
    save_file({"other": channels}, tmp_path / "c", metadata={"format": FORMAT})
    with pytest.raises(InputError, match="cannot be read"):
        load_outliers(tmp_path / "c")
    for i, wrong in enumerate((channels.long(), channels[0])):
        save_file({"outlier_channels": wrong}, tmp_path / f"d{i}", metadata={"format": FORMAT})
        with pytest.raises(InputError, match="int32"):
            load_outliers(tmp_path / f"d{i}")


def test_a_pool_keeps_channels_of_its_own() -> None:
    """What the caller does to the tensor afterwards changes nothing; a view at an odd address is taken as well."""
    memory = torch.zeros(3 * 2 * 4 + 1, dtype=torch.int32)
    channels = memory[1:].view(3, 2, 4)
    channels.copy_(torch.tensor([1, 2, 33, 34], dtype=torch.int32))
    shape: dict[str, Any] = {"layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 64, "pages": 4, "tokens": 64}
    pool = CachePool(PoolConfig(**shape, format="int8", outlier_channels=channels))
    memory.fill_(0)
    store = pool.stores[2]
    assert isinstance(store, PackedStore)
    assert store.outlier_channels is not None
    assert store.outlier_channels.tolist() == [[1, 2, 33, 34]] * 2
