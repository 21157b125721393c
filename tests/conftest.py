"""Settings of the whole test session: Triton's interpreter without a GPU, poisoned memory, fixed seeds."""

import os

import pytest
import torch

# Triton decides at import time whether its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)  # one process a core

from hypothesis import HealthCheck, settings

settings.register_profile(
    "witcert", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("witcert")

# torch.empty returns NaN (or the largest integer) in the whole session: reading what nobody wrote shows.
torch.utils.deterministic.fill_uninitialized_memory = True
torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20261129)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests are deselected, not skipped, where there is no GPU: they were not run and are not counted."""
    if torch.cuda.is_available():
        return
    gpu = [i for i in items if "gpu" in i.keywords]
    if gpu:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [i for i in items if "gpu" not in i.keywords]


def pytest_report_header() -> str:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: Triton kernels are INTERPRETED"
    return f"torch {torch.__version__}, GPU {where}"
