"""Runs checks one after the other; whatever one of them does, the others run too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from contracts.discharge import Check, Outcome, Setting, Violation

__all__ = ["Result", "longest_first", "run", "select"]

LONGEST = (
    "dither.streams", "meter.options", "meter.one_token", "extend.options", "witness.layout", "witness.query_side",
    "witness.bound_of_one_token", "meter.envelope", "int8.deterministic_bounds", "meter.long_sequences",
    "request.token_share", "merge.vanished", "crosscheck.four_ways", "extend.packed", "meter.half_step",
    "request.failures", "extend.no_claim", "int8.codes", "output.error_of_output", "meter.tier_a",
)  # fmt: skip
"""What takes longest on a GPU, mostly compiling, longest first: begun first where several processes share the work."""


@dataclass(frozen=True)
class Result:
    """How one check ended: status passed, violated (a Violation) or error (anything else went wrong)."""

    name: str
    status: str
    seconds: float
    outcome: Outcome | None = None
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.status == "passed"


def select(checks: dict[str, Check], only: Iterable[str]) -> list[Check]:
    """The checks that are asked for, by name or by the name of their module, in order; all if none is asked for.

    Raises KeyError with the name that is neither.
    """
    asked = tuple(only)
    for name in asked:
        if name not in checks and not any(c.startswith(f"{name}.") for c in checks):
            raise KeyError(name)
    return [c for c in checks.values() if not asked or c.name in asked or c.name.partition(".")[0] in asked]


def longest_first(names: Iterable[str]) -> list[str]:
    """The names in the order in which several processes should begin them."""
    place = {name: i for i, name in enumerate(LONGEST)}
    return sorted(names, key=lambda name: place.get(name, len(place)))


def run(checks: Iterable[Check], setting: Setting, tick: Callable[[Result], None]) -> list[Result]:
    """Run each check, and report each to ``tick`` when it is done."""
    results = []
    for check in checks:
        start = time.monotonic()
        outcome, message, status = None, "", "passed"
        try:
            returned: object = check.function(setting)
            if isinstance(returned, Outcome):
                outcome = returned
            else:
                status, message = "error", f"returned {type(returned).__name__}, expected Outcome"
        except Violation as e:
            status, message = "violated", str(e) or "no details"
        except Exception as e:
            status, message = "error", f"{type(e).__name__}: {e}"
        results.append(Result(check.name, status, time.monotonic() - start, outcome, message))
        tick(results[-1])
    return results
