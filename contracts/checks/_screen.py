"""Bound against truth without tolerance: float64 with a rigorous allowance first, fractions where it is close.

A cell whose bound is above truth + allowance in float64 is above the truth. So is one that a closer look proves, in bulk.
Every other cell is decided exactly; there is no cell that is none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from torch import Tensor

from contracts.discharge import Violation

__all__ = ["RELATIVE", "Closer", "Decision", "above", "exactly", "first", "norm_sum_at_most"]

Decision = Callable[[tuple[int, ...]], bool]
"""Decides one cell over the rationals."""

Closer = Callable[[tuple[Tensor, ...]], Tensor]
"""Of cells [n], given by their indices, the ones [n] whose bound it proves; the others are decided exactly."""

RELATIVE = 2.0**-43
"""Relative allowance of a float64 sum of up to 512 nonnegative terms, each with a few roundings, and of its root."""

LIMIT = 2000
"""Most cells of one comparison that are decided exactly; a bound that is this close this often is refused."""


def first(bad: Tensor) -> tuple[int, ...]:
    """Index of the first true entry."""
    return tuple(bad.nonzero()[0].tolist())


def above(
    what: str, bound: Tensor, truth: Tensor, allowance: Tensor, holds: Decision,
    closer: Closer | None = None,
) -> float:  # fmt: skip
    """Raise unless bound >= true value in every cell; smallest relative distance, 0 where it was decided exactly.

    bound, truth, allowance: float64 of one shape, the true value within ``allowance`` of truth (+inf bound: no claim).
    holds: decides one cell over the rationals. closer: what is asked first, where many cells are close.
    """
    if bool(bound.isnan().any()):
        raise Violation(f"{what}: the bound of cell {first(bound.isnan())} is NaN")
    # Not "bound < ...": a truth that is NaN must be looked at too.
    close = ~(bound >= truth + allowance)
    if closer is not None and bool(close.any()):
        cells = close.nonzero(as_tuple=True)
        close[cells] = ~closer(cells)
    suspects = close.nonzero().tolist()
    for at in suspects[:LIMIT]:
        if not holds(tuple(at)):
            cell = tuple(at)
            raise Violation(
                f"{what}: cell {cell} has bound {float(bound[cell])!r}, true value {float(truth[cell])!r}; "
                f"{len(suspects)} of {bound.numel()} cells were too close for float64"
            )
    if len(suspects) > LIMIT:
        raise Violation(f"{what}: {len(suspects)} of {bound.numel()} cells are too close for float64 to tell")
    known = bound.isfinite() & (truth > 0)
    if not bool(known.any()):
        return 0.0
    return max(0.0, float(((bound - truth) / truth)[known].min()))


def exactly(x: Tensor) -> list[Fraction]:
    """The numbers of a one-dimensional tensor as fractions."""
    return [Fraction(value) for value in x.double().tolist()]


def norm_sum_at_most(bound: float, squares: tuple[Fraction, Fraction]) -> bool:
    """Whether sqrt(a) + sqrt(b) <= bound, over the rationals, for bound >= 0."""
    a, b = squares
    rest = Fraction(bound) ** 2 - a - b
    return rest >= 0 and rest**2 >= 4 * a * b
