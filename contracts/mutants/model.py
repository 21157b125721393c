"""What a mutant is, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutant", "MutantResult"]


@dataclass(frozen=True)
class Mutant:
    """One fault: in ``file`` (relative to the repository) the text ``old``, which occurs exactly once, becomes ``new``.

    name : unique, snake case. what : the fault in one sentence. checks : names of the checks that should notice, the
    cheapest first.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    checks: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.old == self.new or not self.old or not self.checks:
            raise ValueError(f"mutant {self.name} changes nothing, or nothing looks at it")


@dataclass(frozen=True)
class MutantResult:
    """killed_by : the check that raised Violation, or None: the mutant survived, or could not be run (``error``)."""

    name: str
    what: str
    killed_by: str | None
    seconds: float
    error: str | None
