"""When a cell is repaired, and how much is paged in for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from witcert.errors import InputError
from witcert.guarantees import Labelled, Proved, ProvedNonadaptive

__all__ = ["Gate"]

_LABELS: dict[str, type[Labelled]] = {"proved": Proved, "proved-nonadaptive": ProvedNonadaptive}


@dataclass(frozen=True)
class Gate:
    """A threshold on the meter, and what happens above it.

    Parameters
    ----------
    tau : largest total variation that is served without repair, in (0, 1].
    mode : "block": pages in decreasing contribution ``mass * (e^c - 1)`` until the predicted meter (``page_in_bound``) is
        at most tau; "head": everything of the KV head; "off": nothing, the meter is only reported.
    guarantee : which reading decides. In free-running generation queries depend on earlier dithers, so that only "proved"
        says something about them; "proved-nonadaptive" is for queries of a given text.
    rounds : block repairs of one step before the whole KV head is paged in.
    chunk : most new tokens of a sequence, in a forward of several over a stored prefix, for which is repaired too (a turn of a
        chat). Of longer forwards, and of all with 0, what is above tau is reported, not repaired: among thousands of queries
        some nearly always are.

    A KV head is repaired when any of its query heads is above tau (any-of-G); NaN is above every tau.
    """

    tau: float = 0.2
    mode: Literal["block", "head", "off"] = "block"
    guarantee: Literal["proved", "proved-nonadaptive"] = "proved"
    rounds: int = 2
    chunk: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.tau, bool) or not (math.isfinite(self.tau) and 0.0 < self.tau <= 1.0):
            raise InputError(f"tau={self.tau!r} is outside (0, 1]")
        if self.mode not in ("block", "head", "off"):
            raise InputError(f"mode={self.mode!r} is none of 'block', 'head', 'off'")
        if self.guarantee not in _LABELS:
            raise InputError(f"guarantee={self.guarantee!r} is neither 'proved' nor 'proved-nonadaptive'")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or not 0 <= self.rounds <= 16:
            raise InputError(f"rounds={self.rounds!r} is not a whole number in 0..16")
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or not 0 <= self.chunk <= 2**20:
            raise InputError(f"chunk={self.chunk!r} is not a whole number in 0..2^20")

    @property
    def label(self) -> type[Labelled]:
        """The type of the readings that decide."""
        return _LABELS[self.guarantee]
