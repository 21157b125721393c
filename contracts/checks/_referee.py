"""Decides claims ``value >= real number`` for batches of cells, with nothing allowed in the unsafe direction.

The real number comes as a float64 interval. A value at or above its upper end is proved to hold the claim. Any other is
recomputed at 50 digits and compared there; there can be a few hundred of those at most, or the cases are badly made and
the check does not pass. The closest cells are recomputed as well: their distances are what is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contracts.checks._truth import Interval
from contracts.discharge import Outcome, Violation
from witcert.golden import mp

__all__ = ["Referee"]

Recompute = Callable[[int], Any]


class Referee:
    """Keeps count of one check's claims.

    limit : cells that may be decided at 50 digits. closest : how many of each batch are recomputed for the margin.
    """

    def __init__(self, limit: int = 300, closest: int = 2) -> None:
        self.limit, self.closest = limit, closest
        self.cases = self.cells = self.settled = 0
        self.margin = self.ratio = math.inf

    def claim(
        self, what: str, value: Tensor, real: Interval, exact: Recompute | None, place: Callable[[int], str], *,
        cap: float | None = None, cells: bool = False, margin: bool = False,
    ) -> None:  # fmt: skip
        """Every value [cells] is at least its real number, which cannot exceed cap; exact recomputes one at 50 digits.

        cells : whether each is an attention cell to be counted. margin : whether distances count for the check's.
        """
        value, low, high = value.double().flatten(), real.low.flatten(), real.high.flatten()
        if value.shape != high.shape:
            raise Violation(f"{what}: {tuple(value.shape)} values for {tuple(high.shape)} cells")
        sure = value >= high if cap is None else (value >= high) | (value >= cap)
        self.cases += value.numel()
        self.cells += value.numel() if cells else 0
        open_cells = (~sure).nonzero()[:, 0]
        if len(open_cells):
            worst = torch.argsort(torch.nan_to_num(value[open_cells] - low[open_cells], nan=-math.inf))
            self.settled += len(open_cells)
            for cell in open_cells[worst][: self.limit].tolist():
                self._settle(what, cell, float(value[cell]), float(high[cell]), exact, place, margin)
            if self.settled > self.limit:
                raise Violation(f"{what}: {self.settled} cells within float64's own error; at most {self.limit} are decided")
        if margin and self.closest and value.numel():
            self._closest(what, value, high, cap, exact, place)

    def _settle(
        self, what: str, cell: int, value: float, high: float, exact: Recompute | None, place: Callable[[int], str],
        margin: bool,
    ) -> None:  # fmt: skip
        if exact is None:
            raise Violation(f"{what}: {value!r} is below {high!r}; {place(cell)}")
        true = exact(cell)
        if not mp.mpf(value) >= true:
            raise Violation(f"{what}: {value!r} is below {mp.nstr(true, 20)}; {place(cell)}")
        if margin and true > 0:
            self.margin = min(self.margin, float(mp.mpf(value) - true))
            self.ratio = min(self.ratio, float(mp.mpf(value) / true - 1))

    def _closest(
        self, what: str, value: Tensor, high: Tensor, cap: float | None, exact: Recompute | None,
        place: Callable[[int], str],
    ) -> None:  # fmt: skip
        distance = value - high
        # what is surely too small to matter, and what claims nothing, is no close call
        far = (high <= 1e-100) | (value >= (math.inf if cap is None else cap))
        for key, best in ((distance, self.margin), (distance / high, self.ratio)):
            found = torch.topk(key.masked_fill(far, math.inf), min(self.closest, len(key)), largest=False)
            for d, cell in zip(found.values.tolist(), found.indices.tolist(), strict=True):
                if d < best and exact is None:  # too long for 50 digits: what is surely left
                    self.margin = min(self.margin, max(0.0, float(distance[cell])))
                    self.ratio = min(self.ratio, max(0.0, float(distance[cell] / high[cell])))
                elif d < best:
                    self._settle(what, cell, float(value[cell]), float(high[cell]), exact, place, True)

    def recompute(
        self, what: str, value: Tensor, real: Interval, exact: Recompute, place: Callable[[int], str], *, cap: float,
        count: int = 8,
    ) -> None:  # fmt: skip
        """Decide at 50 digits the count cells below cap that come closest; they are counted as no further cases."""
        value, high = value.double().flatten(), real.high.flatten()
        near = ((value - high) / high).masked_fill((high <= 1e-100) | (value >= cap), math.inf)
        found = torch.topk(near, min(count, len(near)), largest=False)
        for distance, cell in zip(found.values.tolist(), found.indices.tolist(), strict=True):
            if distance < math.inf:
                self._settle(what, cell, float(value[cell]), float(high[cell]), exact, place, False)

    def within(self, what: str, value: Tensor, want: Tensor, allowed: Tensor | float, place: Callable[[int], str]) -> None:
        """Every value is within ``allowed`` of ``want``; for outputs that bound nothing."""
        value, want = value.double().flatten(), want.double().flatten()
        bad = (~((value - want).abs() <= torch.as_tensor(allowed, device=value.device).flatten())).nonzero()[:, 0]
        self.cases += value.numel()
        if len(bad):
            cell = int(bad[0])
            raise Violation(f"{what}: {float(value[cell])!r} is not near {float(want[cell])!r}; {place(cell)}")

    def outcome(self, *seeds: int, unit: str = "meter minus total variation, 50 digits", note: str = "") -> Outcome:
        """The report; a check in which nothing came close enough to measure has not been tried hard enough."""
        if not math.isfinite(self.margin):
            raise Violation("no cell has a total variation above 0")
        near = f"closest: bound / real number = 1 + {self.ratio:.3g}; {self.settled} cells settled at 50 digits"
        return Outcome(self.cases, seeds, self.margin, unit, self.cells, f"{note}; {near}" if note else near)
