"""Loads the contracts and compares them with the theorems, the checks, the sources and SOUNDNESS.md.

Nothing may be left over on either side: every theorem has one contract, every hypothesis a discharge, every check the
obligations that contracts name it for. :func:`problems` is a function of plain data, so that tests can take anything
away from it; :func:`load` gathers that data from the repository.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from contracts.discharge import CHECKS, Check
from contracts.model import (
    HASH_DIGITS,
    Assumed,
    ByConstruction,
    Checked,
    Cited,
    Contract,
    Derived,
    Discharge,
    Same,
    Unused,
)

__all__ = ["ROOT", "Book", "BookError", "Facts", "Theorem", "load", "problems"]

ROOT = Path(__file__).resolve().parent.parent
CORE = "WitCert.Core."


class BookError(Exception):
    """The contracts do not fit; the message lists every reason."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = tuple(reasons)


@dataclass(frozen=True)
class Theorem:
    """What contracts need of one exported theorem; names are those inside ``WitCert.Core``."""

    name: str
    spec: bool
    module: str
    file: str
    line: int
    sentence: str
    hypotheses: tuple[tuple[str, str], ...]
    conclusion: str
    statement: str
    meaning: str
    uses: frozenset[str]


@dataclass(frozen=True)
class Facts:
    """What the contracts are compared with."""

    theorems: Mapping[str, Theorem]
    checks: Mapping[str, Check]
    letters: Mapping[str, str]
    root: Path = ROOT

    def citing(self) -> dict[str, set[str]]:
        """For each theorem, those whose proofs cite it."""
        out: dict[str, set[str]] = {name: set() for name in self.theorems}
        for theorem in self.theorems.values():
            for used in theorem.uses & out.keys():
                out[used].add(theorem.name)
        return out


@dataclass(frozen=True)
class Book:
    """Contracts that fit what they are compared with, in the order of the theorems."""

    contracts: tuple[Contract, ...]
    facts: Facts
    pending: tuple[str, ...] = ()

    def contract(self, theorem: str) -> Contract:
        """The contract of a theorem."""
        return next(c for c in self.contracts if c.theorem == theorem)


# --- comparing -----------------------------------------------------------------------------------


def problems(contracts: Sequence[Contract], facts: Facts) -> list[str]:
    """Every reason why the contracts do not fit, a line each; empty if they do."""
    found: list[str] = []
    for name, count in Counter(c.theorem for c in contracts).items():
        if count > 1:
            found.append(f"{name}: {count} contracts, expected one")
    have = {c.theorem: c for c in contracts}
    found += [f"{name}: no contract for this theorem" for name in facts.theorems if name not in have]
    citing = facts.citing()
    for contract in contracts:
        theorem = facts.theorems.get(contract.theorem)
        if theorem is None:
            found.append(f"{contract.theorem}: a contract, but no exported theorem has this name")
        else:
            found += _contract(contract, theorem, citing[theorem.name], facts)
    found += _checks(have, facts)
    return found + _circles(have)


def _contract(contract: Contract, theorem: Theorem, citing: set[str], facts: Facts) -> Iterable[str]:
    name = theorem.name
    for what, pinned, now in (
        ("statement", contract.statement, theorem.statement),
        ("meaning", contract.meaning, theorem.meaning),
    ):
        if len(pinned) < HASH_DIGITS:
            yield f"{name}: the contract gives {len(pinned)} digits of the {what} hash, expected at least {HASH_DIGITS}"
        elif not now.startswith(pinned):
            yield f"{name}: the {what} hash is {now[:HASH_DIGITS]}, the contract was written for {pinned[:HASH_DIGITS]}"
    names = [h for h, _ in theorem.hypotheses]
    for h in names:
        if h not in contract.hypotheses or not contract.discharges(h):
            yield f"{name}.{h}: nothing discharges this hypothesis"
    for h in contract.hypotheses:
        if h not in names:
            yield f"{name}.{h}: discharged, but the theorem has no such hypothesis"
            continue
        for discharge in contract.discharges(h):
            if isinstance(discharge, Unused) != isinstance(contract.conclusion, Unused):
                yield f"{name}.{h}: a hypothesis is unused exactly if its theorem is"
            yield from _discharge(f"{name}.{h}", discharge, theorem, citing, facts)
    if isinstance(contract.conclusion, Unused):
        if theorem.spec:
            yield f"{name}.conclusion: flagged as unused, but the specification names this theorem"
        for t in sorted(citing):
            yield f"{name}.conclusion: flagged as unused, but the proof of {t} cites it"
        if not contract.conclusion.why.strip():
            yield f"{name}.conclusion: flagged as unused, but not why"
    elif isinstance(contract.conclusion, Cited):
        by = contract.conclusion.by
        if not citing:
            yield f"{name}.conclusion: no proof cites this theorem, so it needs an output and a check"
        for t in sorted(set(by) - citing):
            yield f"{name}.conclusion: the proof of {t} does not cite this theorem"
        for t in sorted(citing - set(by)):
            yield f"{name}.conclusion: the proof of {t} cites this theorem, the contract does not say so"
        if len(set(by)) < len(by):
            yield f"{name}.conclusion: a citing theorem is named twice"
    else:
        if not contract.conclusion.about.strip():
            yield f"{name}.conclusion: names no output"
        yield from _named(f"{name}.conclusion", contract.conclusion.checks, facts)


def _discharge(
    obligation: str, discharge: Discharge, theorem: Theorem, citing: set[str], facts: Facts
) -> Iterable[str]:
    if isinstance(discharge, ByConstruction):
        if why := _missing(discharge.where, facts.root):
            yield f"{obligation}: by construction at {discharge.where}: {why}"
        if not discharge.how.strip():
            yield f"{obligation}: by construction at {discharge.where}, but not how"
    elif isinstance(discharge, Checked):
        yield from _named(obligation, discharge.checks, facts)
    elif isinstance(discharge, Assumed):
        if discharge.letter not in facts.letters:
            yield f"{obligation}: assumed under {discharge.letter}, and SOUNDNESS.md has no such row"
        if not discharge.how.strip():
            yield f"{obligation}: assumed under {discharge.letter}, but not what"
    elif isinstance(discharge, Same):
        other, _, part = discharge.obligation.rpartition(".")
        if other not in facts.theorems or part not in dict(facts.theorems[other].hypotheses):
            yield f"{obligation}: the same as {discharge.obligation}, and there is no such hypothesis"
        if other == theorem.name:
            yield f"{obligation}: the same as a hypothesis of the theorem itself"
        if not discharge.how.strip():
            yield f"{obligation}: the same as {discharge.obligation}, but not how"
    elif isinstance(discharge, Unused):
        return
    elif discharge.theorem not in facts.theorems:
        yield f"{obligation}: derived from {discharge.theorem}, and no exported theorem has this name"
    elif discharge.theorem == theorem.name:
        yield f"{obligation}: derived from the theorem itself"
    elif not theorem.spec and citing and discharge.theorem not in citing:
        yield f"{obligation}: derived in the proof of {discharge.theorem}, which does not cite this lemma"
    elif (theorem.spec or not citing) and not discharge.how.strip():
        yield f"{obligation}: derived from {discharge.theorem}, but not how"


def _named(obligation: str, checks: Sequence[str], facts: Facts) -> Iterable[str]:
    if not checks or len(set(checks)) < len(checks):
        yield f"{obligation}: names no check, or one twice"
    for check in checks:
        if check not in facts.checks:
            yield f"{obligation}: the contract names the check {check}, which does not exist"
        elif obligation not in facts.checks[check].obligations:
            yield f"{obligation}: the contract names the check {check}, which does not carry this obligation"


def _checks(have: Mapping[str, Contract], facts: Facts) -> Iterable[str]:
    named: dict[str, set[str]] = {}
    for contract in have.values():
        for obligation, checks in contract.checks.items():
            named.setdefault(obligation, set()).update(checks)
    every = set().union(*named.values())
    for check in facts.checks.values():
        if check.name not in every:
            yield f"check {check.name}: no contract names it"
        for obligation in check.obligations:
            theorem, _, part = obligation.rpartition(".")
            exported = facts.theorems.get(theorem)
            if exported is None:
                yield f"check {check.name}: carries {obligation}, and no exported theorem is called {theorem!r}"
            elif part != "conclusion" and part not in dict(exported.hypotheses):
                yield f"check {check.name}: carries {obligation}, and {theorem} has no such hypothesis"
            elif check.name not in named.get(obligation, set()):
                yield f"check {check.name}: carries {obligation}, which its contract says is met otherwise"


def _rests_on(have: Mapping[str, Contract]) -> dict[str, list[str]]:
    """What each theorem and each ``theorem.hypothesis`` rests on: a theorem on its hypotheses, they on what meets them."""
    out: dict[str, list[str]] = {}
    for name, contract in have.items():
        out[name] = [f"{name}.{h}" for h in contract.hypotheses]
        for h in contract.hypotheses:
            found = contract.discharges(h)
            out[f"{name}.{h}"] = [d.theorem for d in found if isinstance(d, Derived)] + [
                d.obligation for d in found if isinstance(d, Same)
            ]
    return out


def _circles(have: Mapping[str, Contract]) -> list[str]:
    """Chains of derivations that come back to where they began."""
    below = _rests_on(have)
    done: set[str] = set()

    found: list[str] = []

    def visit(name: str, path: list[str]) -> None:
        if name in done:
            return
        if name in path:
            found.append("circular: " + " <- ".join([*path[path.index(name) :], name]))
            return
        path.append(name)
        for other in below.get(name, ()):
            visit(other, path)
        path.pop()
        done.add(name)

    for name in have:
        visit(name, [])
    return found


# --- sources -------------------------------------------------------------------------------------

_LEAN = re.compile(r"^(?:@\[[^\]]*\]\s*)?(?:private |protected |noncomputable )*"
                   r"(?:theorem|def|abbrev|structure|class|inductive|instance)\s+([\w.']+)", re.MULTILINE)  # fmt: skip


@lru_cache(maxsize=256)
def _symbols(path: Path) -> frozenset[str]:
    text = path.read_text(encoding="utf-8")
    return frozenset(_LEAN.findall(text) if path.suffix == ".lean" else _defined(ast.parse(text).body))


def _defined(body: Iterable[ast.stmt], within: str = "") -> Iterable[str]:
    """Functions, classes, methods, fields and assigned names: ``f``, ``C``, ``C.method``, ``NAME``."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield within + node.name
            if isinstance(node, ast.ClassDef):
                yield from _defined(node.body, f"{within}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (within + t.id for t in targets if isinstance(t, ast.Name))


@lru_cache(maxsize=1024)
def _missing(where: str, root: Path) -> str | None:
    """Why there is no such place; None if there is."""
    path, _, symbol = where.partition(":")
    if not symbol or Path(path).is_absolute() or Path(path).suffix not in (".py", ".lean"):
        return "expected path:symbol of a Python or Lean file of this repository"
    if not (root / path).is_file():
        return "there is no such file"
    if symbol not in _symbols(root / path):
        return f"the file defines no {symbol}"
    return None


# --- gathering -----------------------------------------------------------------------------------


def read_theorems(statements: Mapping[str, Any]) -> dict[str, Theorem]:
    """The theorems of ``formal/statements.json``, by name inside ``WitCert.Core``."""
    out = {}
    for t in statements["theorems"]:
        name = t["name"].removeprefix(CORE)
        out[name] = Theorem(
            name, t["spec"], t["module"], t["file"], t["line"], t["sentence"],
            tuple((h["name"], h["type"]) for h in t["hypotheses"]), t["conclusion"],
            t["statement_hash"], t["meaning_hash"], frozenset(u.removeprefix(CORE) for u in t["uses"]),
        )  # fmt: skip
    return out


def read_letters(soundness: str) -> dict[str, str]:
    """The lettered gaps of SOUNDNESS.md: letter -> what the gap is."""
    rows = re.findall(r"^\| ([A-Z]{1,2}) \| ([^|]+) \|", soundness, re.MULTILINE)
    double = [letter for letter, count in Counter(letter for letter, _ in rows).items() if count > 1]
    if double:
        raise BookError([f"SOUNDNESS.md: two rows have the letter {letter}" for letter in double])
    return {letter: text.strip() for letter, text in rows}


def _modules(package: str) -> list[Any]:
    found = importlib.import_module(package)
    return [importlib.import_module(f"{package}.{m.name}") for m in pkgutil.iter_modules(found.__path__)]


def read_checks() -> dict[str, Check]:
    """Import every module of ``contracts.checks``; the registered checks."""
    _modules("contracts.checks")
    return CHECKS


def read_contracts() -> list[Contract]:
    """The contracts of every module of ``contracts.theorems``, in its order."""
    return [c for module in _modules("contracts.theorems") for c in getattr(module, "CONTRACTS", ())]


def load(root: Path = ROOT) -> Book:
    """The contracts, compared with all they speak of; raises BookError with every reason why they do not fit."""
    path = root / "formal" / "statements.json"
    try:
        statements = json.loads(path.read_text(encoding="utf-8"))
        theorems = read_theorems(statements)
        letters = read_letters((root / "SOUNDNESS.md").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as e:
        raise BookError([f"{path.name} or SOUNDNESS.md cannot be read: {e!r}"]) from e
    contracts, facts = read_contracts(), Facts(theorems, read_checks(), letters, root)
    if reasons := problems(contracts, facts):
        raise BookError(reasons)
    order = {name: i for i, name in enumerate(theorems)}
    contracts.sort(key=lambda c: order[c.theorem])
    return Book(tuple(contracts), facts, tuple(p["name"] for p in statements["pending"]))
