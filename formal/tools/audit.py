"""What the proofs may not do.  Every rule is provoked by a test in tests/formal/test_audit.py."""

import re
from dataclasses import dataclass
from pathlib import Path

import export
import source
from source import Module
from spec import SpecName

STANDARD_AXIOMS = frozenset({"propext", "Classical.choice", "Quot.sound"})
COMPILER_AXIOMS = frozenset({"Lean.ofReduceBool", "Lean.ofReduceNat", "Lean.trustCompiler"})
MAX_HEARTBEATS = 400_000
CORE_MAY_IMPORT = ("Init", "Std", "WitCert.Core")


@dataclass(frozen=True, order=True)
class Finding:
    """One breach of a rule, and where."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: error: {self.message}"


# --- the text of the sources ----------------------------------------------------------

FORBIDDEN = [
    (r"\bsorry\b", "uses sorry"),
    (r"\badmit\b", "uses admit"),
    (r"\bnative_decide\b|\bofReduce(?:Bool|Nat)\b|\btrustCompiler\b", "trusts the compiler (native_decide)"),
    (r"\bdebug\.skipKernelTC\b", "turns the kernel's check off (debug.skipKernelTC)"),
]
HEARTBEATS = re.compile(r"\b(?:\w+\.)?maxHeartbeats\s*(?::=|=)?\s*(\d[\d_]*)")


def text(name: str, path: Path, code: str) -> list[Finding]:
    """Rules for one file that hold whether or not it can be compiled here."""
    found = []

    def at(m: re.Match, message: str) -> None:
        found.append(Finding(str(path), code.count("\n", 0, m.start()) + 1, message))

    for pattern, message in FORBIDDEN:
        for m in re.finditer(pattern, code):
            at(m, message)
    for m in HEARTBEATS.finditer(code):
        limit = int(m[1].replace("_", ""))
        if limit > MAX_HEARTBEATS or limit == 0:
            at(m, f"maxHeartbeats {limit or '0 (no limit)'} is above {MAX_HEARTBEATS}")
    return found


def tree(mods: dict[str, Module]) -> list[Finding]:
    """Rules for the project's files together: each is reachable from its root, and Core imports Lean's own library only."""
    found = []
    for layer in (export.CORE, export.REAL):
        members = {n: m for n, m in mods.items() if n.split(".")[0] == "WitCert" and layer.owns(n)}
        for name in sorted(members.keys() - source.reachable(mods, layer.root)):
            why = "has no file" if layer.root not in mods else "does not reach it"
            found.append(
                Finding(str(members[name].path), 1, f"{name} is not checked: the root import {layer.root} {why}")
            )
    for name, mod in sorted(mods.items()):
        if name.split(".")[0] == "WitCert":
            found += text(name, mod.path, mod.code)
        if export.CORE.owns(name):
            for imp in mod.imports:
                if not any(imp == p or imp.startswith(p + ".") for p in CORE_MAY_IMPORT):
                    found.append(
                        Finding(str(mod.path), 1, f"{name} imports {imp}; Core may import Init, Std and Core only")
                    )
    return found


# --- the compiled modules --------------------------------------------------------------


def compiled(raw: dict, mods: dict[str, Module]) -> list[Finding]:
    """Rules for what was exported: axioms of every constant, and a docstring for every public theorem."""
    found = []
    lines = {c["name"]: c["line"] for c in raw["constants"]}

    def where(c: dict) -> tuple[str, int]:
        name = c["name"]
        while name and not lines.get(name):  # what Lean derives has no line of its own
            name = name.rpartition(".")[0]
        path = mods[c["module"]].path if c["module"] in mods else Path(export._file(c["module"]))
        return str(path), lines.get(name) or 1

    for c in raw["constants"]:
        for axiom in sorted((set(c["axioms"]) | set(c.get("closure", ()))) - STANDARD_AXIOMS):
            who = c["user_name"]
            if axiom == "sorryAx":
                message = f"{who} uses sorry"
            elif axiom in COMPILER_AXIOMS:
                message = f"{who} trusts the compiler ({axiom}, native_decide)"
            elif axiom == c["name"]:
                message = f"{who} is an axiom"
            else:
                message = f"{who} rests on the axiom {axiom}"
            found.append(Finding(*where(c), message))
    if raw.get("replay_error"):
        root = mods.get(export.CORE.root)
        path = str(root.path) if root else export.CORE.root
        found.append(Finding(path, 1, f"the kernel refuses a compiled constant: {raw['replay_error']}"))
    for t in raw["theorems"]:
        if t["kind"] == "theorem" and not (t["doc"] or "").strip():
            found.append(Finding(*where(t), f"{t['name']} has no docstring"))
    return found


def missing(spec: list[SpecName], raw: dict, layers: set[str], path: Path) -> list[Finding]:
    """Promised names of the compiled layers that are no theorems there."""
    have = {t["name"] for t in raw["theorems"] if t["kind"] == "theorem"}
    return [
        Finding(str(path), 1, f"{n.full} is promised and no public theorem has that name")
        for n in spec
        if n.layer in layers and n.full not in have
    ]
