"""What repairs moved: bytes and pages, by request, from the host's backing store to the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from witcert.errors import InputError

__all__ = ["Ledger", "Traffic"]


@dataclass
class Traffic:
    """One request: decode steps seen (layers x steps), KV heads that fired, page-head units and bytes paged in.

    steps counts attention calls of one layer; cells those of one layer and query head (and query, where the gate looks at a
    forward of several tokens); certified the cells at most tau
    before any repair; repaired the cells brought to at most tau by a repair; uncertified those that stayed above.
    """

    steps: int = 0
    cells: int = 0
    certified: int = 0
    repaired: int = 0
    uncertified: int = 0
    fired: int = 0
    pages: int = 0
    bytes: int = 0
    per_step: list[int] = field(default_factory=list)

    def add(
        self, *, cells: int, certified: int, repaired: int = 0, fired: int = 0, pages: int = 0, moved: int = 0
    ) -> None:
        """One attention call."""
        if min(cells, certified, repaired, fired, pages, moved) < 0 or certified + repaired > cells:
            raise InputError(f"cells={cells}, certified={certified}, repaired={repaired} do not add up")
        self.steps += 1
        self.cells += cells
        self.certified += certified
        self.repaired += repaired
        self.uncertified += cells - certified - repaired
        self.fired += fired
        self.pages += pages
        self.bytes += moved
        self.per_step.append(moved)


class Ledger:
    """Traffic of every request, open or closed."""

    def __init__(self) -> None:
        self.requests: dict[int, Traffic] = {}

    def of(self, sequence: int) -> Traffic:
        """The account of one request, opened at its first use."""
        return self.requests.setdefault(sequence, Traffic())

    def summary(self) -> dict[str, Any]:
        """Totals, and the 50th and 95th percentile over requests and over attention calls, in bytes."""
        accounts = list(self.requests.values())
        totals = [a.bytes for a in accounts] or [0]
        steps = [b for a in accounts for b in a.per_step] or [0]
        return {
            "requests": len(accounts),
            **{name: sum(getattr(a, name) for a in accounts)
               for name in ("steps", "cells", "certified", "repaired", "uncertified", "fired", "pages", "bytes")},
            "bytes_per_request": {f"p{q}": float(np.percentile(totals, q)) for q in (50, 95)},
            "bytes_per_step": {f"p{q}": float(np.percentile(steps, q)) for q in (50, 95)},
        }  # fmt: skip
