"""How one assumption is written down: what is assumed, where it was tried, the worst that was seen."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One assumption about the hardware and what a measurement found.

    Parameters
    ----------
    name : what the error budget calls it.
    statement : the assumption, in words.
    domain : where it was tried; "every" means exhaustively.
    inputs : number of inputs.
    worst : the largest error seen, in the unit of the statement.
    limit : what the error budget allows.
    note : anything that a reader of the budget should know beside.
    """

    name: str
    statement: str
    domain: str
    inputs: int
    worst: float
    limit: float
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing worse than the limit was seen (NaN: no)."""
        return self.worst <= self.limit

    def line(self) -> str:
        """One line for a table."""
        verdict = "holds" if self.holds else "FAILS"
        return f"{self.name:<28} {verdict}  worst {self.worst:.4e}  limit {self.limit:.4e}  {self.inputs:,} inputs"
