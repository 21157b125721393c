"""The three guarantees under which WitCert reports a number, as types that do not mix.

``Proved``             holds for every query, adaptive or not (with ``delta`` > 0: outside an event of the dither alone).
``ProvedNonadaptive``  holds with probability at least 1 - ``delta`` over the dither, for queries independent of it.
``Measured``           was observed; nothing is promised.

A number leaves the package inside one of them. Combining or comparing two different ones raises
:class:`~witcert.errors.GuaranteeError`; the one conversion that loses nothing but strength is
:meth:`Proved.as_nonadaptive`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from witcert.errors import GuaranteeError, InputError

Self = TypeVar("Self", bound="Labelled")


@dataclass(frozen=True, eq=False)
class Labelled:
    """A number (or tensor of numbers) together with what is promised about it.

    value: float or Tensor of any shape.
    theorem: name of the statement that backs it (empty for ``Measured``).
    delta: probability, over the dither alone, that the promise fails; 0 for deterministic statements.
    """

    value: float | Tensor
    theorem: str = ""
    delta: float = 0.0

    label: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if type(self) is Labelled:
            raise GuaranteeError("Labelled is abstract: use Proved, ProvedNonadaptive or Measured")
        if not 0.0 <= self.delta < 1.0:
            raise InputError(f"delta={self.delta!r} is outside [0, 1)")
        if isinstance(self, Measured):
            if self.theorem or self.delta:
                raise InputError("Measured carries no theorem and no delta: nothing is promised about it")
        elif not self.theorem:
            raise InputError(f"{type(self).__name__} needs the name of the theorem that it rests on")

    def _same(self: Self, other: object, what: str) -> Self:
        if type(other) is not type(self):
            kind = other.label if isinstance(other, Labelled) else type(other).__name__
            raise GuaranteeError(f"cannot {what} a '{self.label}' number and a '{kind}' one")
        return other

    def minimum(self: Self, other: Self) -> Self:
        """The smaller of two bounds on the same quantity; the failure probabilities add up (union bound)."""
        o = self._same(other, "take the minimum of")
        value = torch.minimum(torch.as_tensor(self.value), torch.as_tensor(o.value))
        names = dict.fromkeys(n for t in (self, o) for n in t.theorem.split(" + ") if n)
        return type(self)(value, " + ".join(names), min(self.delta + o.delta, 1.0 - 2.0**-53))

    def map(self: Self, f: Callable[[Tensor], Tensor]) -> Self:
        """Apply a monotone non-decreasing map (such as a maximum or a slice) to the value, keeping the promise."""
        return type(self)(f(torch.as_tensor(self.value)), self.theorem, self.delta)

    def __lt__(self, other: object) -> bool | Tensor:
        return self.value < self._same(other, "compare").value

    def __le__(self, other: object) -> bool | Tensor:
        return self.value <= self._same(other, "compare").value

    def __gt__(self, other: object) -> bool | Tensor:
        return self.value > self._same(other, "compare").value

    def __ge__(self, other: object) -> bool | Tensor:
        return self.value >= self._same(other, "compare").value

    def __eq__(self, other: object) -> Any:
        return self.value == self._same(other, "compare").value

    __hash__ = None  # type: ignore[assignment]

    def _no_arithmetic(self, other: object) -> Any:
        raise GuaranteeError(f"no arithmetic on a '{self.label}' number: take .value and label the result anew")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic

    def certifies(self, tau: float) -> bool | Tensor:
        """Whether the bound is at most ``tau`` (element-wise); NaN certifies nothing."""
        if not 0.0 < tau <= 1.0:
            raise InputError(f"tau={tau!r} is outside (0, 1]")
        if isinstance(self, Measured):
            raise GuaranteeError("a 'measured' number certifies nothing")
        # as real numbers: the float32 nearest to tau may be above it
        return self.value.double() <= tau if isinstance(self.value, Tensor) else self.value <= tau

    def to_json(self) -> dict[str, Any]:
        """Plain data: the value with its label, theorem and failure probability."""
        value = self.value.tolist() if isinstance(self.value, Tensor) else self.value
        out: dict[str, Any] = {"value": value, "guarantee": self.label}
        if self.theorem:
            out |= {"theorem": self.theorem, "delta": self.delta}
        return out

    def __str__(self) -> str:
        value = self.value.tolist() if isinstance(self.value, Tensor) else self.value
        odds = f", delta={self.delta:g}" if self.delta else ""
        return f"{value} [{self.label}{odds}]"


@dataclass(frozen=True, eq=False)
class Proved(Labelled):
    """Holds for every query, adaptive or not."""

    label: ClassVar[str] = "proved"

    def as_nonadaptive(self) -> ProvedNonadaptive:
        """The same bound under the weaker promise."""
        return ProvedNonadaptive(self.value, self.theorem, self.delta)


@dataclass(frozen=True, eq=False)
class ProvedNonadaptive(Labelled):
    """Holds with probability at least 1 - delta over the dither, for queries independent of it."""

    label: ClassVar[str] = "proved-nonadaptive"


@dataclass(frozen=True, eq=False)
class Measured(Labelled):
    """Was observed; no guarantee."""

    label: ClassVar[str] = "measured"


LABELS: tuple[type[Labelled], ...] = (Proved, ProvedNonadaptive, Measured)
