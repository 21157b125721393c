"""Most of these tests count through the reference: the kernel is compared with it in tests/kernels/telemetry."""

import pytest
import triton


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
