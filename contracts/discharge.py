"""Checks: functions that discharge obligations of contracts, and what they report.

An obligation is ``theorem.hypothesis`` or ``theorem.conclusion``, with the theorem's name inside ``WitCert.Core``. A check
is decorated with every obligation that it discharges; the contract names the check; loading compares the two
(:mod:`contracts.book`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["CHECKS", "Check", "Outcome", "Setting", "Violation", "discharges"]


@dataclass(frozen=True)
class Setting:
    """Where and how much: the device, whether kernels run in Triton's interpreter, and whether the amounts are full."""

    device: torch.device
    interpreted: bool
    full: bool


@dataclass(frozen=True)
class Outcome:
    """What a check that passed has seen.

    cases : comparisons made, at least 1. cells : those of them that are attention cells, or 0. seeds : of the random
    draws, empty if exhaustive. margin : smallest distance to a violation over all cases, >= 0, in ``unit``; a check for
    equality of bits has margin 0 and says so in its unit. note : what a reader of the report should know.
    """

    cases: int
    seeds: tuple[int, ...]
    margin: float
    unit: str
    cells: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        if self.cases < 1 or self.cells < 0 or self.cells > self.cases:
            raise Violation(f"a check that looked at {self.cases} cases and {self.cells} cells has checked nothing")
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise Violation(f"smallest distance to a violation is {self.margin!r} {self.unit}")


class Violation(AssertionError):
    """A kernel output contradicts what its theorem promises."""


@dataclass(frozen=True)
class Check:
    """One check: its name (module.function), obligations, one-sentence summary and function."""

    name: str
    obligations: tuple[str, ...]
    summary: str
    function: Callable[[Setting], Outcome]


CHECKS: dict[str, Check] = {}


def discharges(*obligations: str) -> Callable[[Callable[[Setting], Outcome]], Callable[[Setting], Outcome]]:
    """Register the decorated function as the check that discharges the obligations."""

    def register(function: Callable[[Setting], Outcome]) -> Callable[[Setting], Outcome]:
        name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
        if name in CHECKS:
            raise ValueError(f"check {name} is defined twice")
        if not obligations or len(set(obligations)) < len(obligations):
            raise ValueError(f"check {name} names no obligation, or one of them twice")
        summary = (function.__doc__ or "").strip().split("\n")[0]
        if not summary:
            raise ValueError(f"check {name} has no docstring")
        CHECKS[name] = Check(name, obligations, summary, function)
        return function

    return register
