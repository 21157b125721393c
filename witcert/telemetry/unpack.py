"""From the integers of a ``StepRecord`` to the counts of one tier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from witcert.telemetry.snapshot import TierCounts

__all__ = ["tier_counts"]

Integers = npt.NDArray[np.int64]


def _floats(bits: Integers, there: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """float32 numbers by their bits; NaN where there is none."""
    values = (bits & 0xFFFFFFFF).astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(there, values, np.nan)


def tier_counts(
    parts: dict[str, Integers], index: int, label: str, layers: int, promises: tuple[tuple[str, float], ...]
) -> TierCounts:
    """Counts of the tier with that index; promises: (theorem, delta) of the readings seen so far."""
    rows = slice(index * layers, (index + 1) * layers)
    count, last, worst = (parts[name][rows].copy() for name in ("count", "last", "worst"))
    return TierCounts(
        label, max((delta for _, delta in promises), default=0.0), tuple(dict.fromkeys(t for t, _ in promises if t)),
        parts["histogram"][rows].copy(), count[:, 0], count[:, 1], count[:, 2],
        _floats(last, last > 0), _floats(worst - 1, worst > 0),
    )  # fmt: skip
