"""What a contract says: how each hypothesis of a theorem is met, and what its conclusion is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Assumed", "ByConstruction", "Checked", "Cited", "Contract", "Derived", "Discharge", "Output", "Same", "Unused",
    "flagged", "lemma",
]  # fmt: skip

HASH_DIGITS = 16
"""Fewest digits of a hash that a contract may give; docs/theorems.md prints as many."""


@dataclass(frozen=True)
class ByConstruction:
    """Met by what the code is: ``where`` is ``path:symbol``, a definition in a file of this repository."""

    where: str
    how: str


@dataclass(frozen=True)
class Checked:
    """Looked at on kernel outputs by the checks ``checks``, each of which carries this obligation."""

    checks: tuple[str, ...]
    how: str = ""

    def __init__(self, *checks: str, how: str = "") -> None:
        object.__setattr__(self, "checks", checks)
        object.__setattr__(self, "how", how)


@dataclass(frozen=True)
class Assumed:
    """Not established: the row of SOUNDNESS.md with this letter says what could go wrong."""

    letter: str
    how: str


@dataclass(frozen=True)
class Derived:
    """Another theorem: its conclusion gives the hypothesis or, for a supporting lemma, its proof does.

    A lemma that the proof of ``theorem`` cites has its hypotheses proved there, where Lean's kernel checks them.
    """

    theorem: str
    how: str = ""


@dataclass(frozen=True)
class Same:
    """What another theorem assumes as well: ``obligation`` is its ``theorem.hypothesis``, met as that one is."""

    obligation: str
    how: str


@dataclass(frozen=True)
class Unused:
    """Neither an output nor a proof rests on the theorem: as a conclusion, and for each of its hypotheses."""

    why: str


Discharge = ByConstruction | Checked | Assumed | Derived | Same | Unused


@dataclass(frozen=True)
class Output:
    """A conclusion about the running system: ``about`` names the output, ``checks`` are those that compare it."""

    about: str
    checks: tuple[str, ...]

    def __init__(self, about: str, *checks: str) -> None:
        object.__setattr__(self, "about", about)
        object.__setattr__(self, "checks", checks)


@dataclass(frozen=True)
class Cited:
    """A conclusion that no output shows directly: the theorems whose proofs cite it, all of them."""

    by: tuple[str, ...]

    def __init__(self, *by: str) -> None:
        object.__setattr__(self, "by", by)


@dataclass(frozen=True)
class Contract:
    """One theorem of ``formal/statements.json`` and what ties it to the running system.

    theorem : its name inside ``WitCert.Core``. statement, meaning : its two hashes or their first 16 or more digits.
    hypotheses : by name, one discharge or several that are needed together. conclusion : what it is about.
    """

    theorem: str
    statement: str
    meaning: str
    conclusion: Output | Cited | Unused
    hypotheses: Mapping[str, Discharge | tuple[Discharge, ...]] = field(default_factory=dict)

    def discharges(self, hypothesis: str) -> tuple[Discharge, ...]:
        """All of what meets a hypothesis."""
        found = self.hypotheses[hypothesis]
        return found if isinstance(found, tuple) else (found,)

    @property
    def checks(self) -> dict[str, tuple[str, ...]]:
        """The checks of each obligation that has some, by obligation."""
        out = {}
        for name in self.hypotheses:
            named = tuple(c for d in self.discharges(name) if isinstance(d, Checked) for c in d.checks)
            if named:
                out[f"{self.theorem}.{name}"] = named
        if isinstance(self.conclusion, Output):
            out[f"{self.theorem}.conclusion"] = self.conclusion.checks
        return out


def lemma(theorem: str, statement: str, meaning: str, hypotheses: str, cited_by: str) -> Contract:
    """The contract of a supporting lemma: the proofs that cite it discharge its hypotheses (names between spaces)."""
    by = tuple(cited_by.split())
    met: tuple[Discharge, ...] = tuple(Derived(t) for t in by)
    return Contract(theorem, statement, meaning, Cited(*by), dict.fromkeys(hypotheses.split(), met))


def flagged(theorem: str, statement: str, meaning: str, hypotheses: str, why: str) -> Contract:
    """The contract of a theorem that nothing uses: it says so, and loading fails as soon as a proof cites it."""
    idle = Unused(why)
    return Contract(theorem, statement, meaning, idle, dict.fromkeys(hypotheses.split(), idle))
