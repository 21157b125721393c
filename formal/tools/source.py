"""The project's Lean files as text: module names, imports, and the code without comments and strings."""

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

SKIP_DIRS = {"build", "node_modules", "tools"}

_TOKEN = re.compile(
    r"""
    (?P<line>--[^\n]*)
  | (?P<block>/-)
  | (?P<raw>\br(?P<hashes>\#*)")
  | (?P<string>")
  | (?P<char>'(?:\\.[^']*|[^\\'\n])')
""",
    re.VERBOSE,
)


def _block_end(text: str, at: int) -> int:
    """Just after the block comment that opens at `at`; they nest."""
    depth = 0
    for m in re.compile(r"/-|-/").finditer(text, at):
        depth += 1 if m[0] == "/-" else -1
        if depth == 0:
            return m.end()
    return len(text)


def code_only(text: str) -> str:
    """The text with comments and the insides of strings blanked out; lines and columns stay."""
    out, at = [], 0

    def blank(start: int, end: int) -> None:
        out.append(re.sub(r"[^\n]", " ", text[start:end]))

    while m := _TOKEN.search(text, at):
        out.append(text[at : m.start()])
        if m["line"]:
            end = m.end()
        elif m["block"]:
            end = _block_end(text, m.start())
        elif m["raw"]:
            close = text.find('"' + m["hashes"], m.end())
            end = len(text) if close < 0 else close + 1 + len(m["hashes"])
        elif m["string"]:
            close = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL).match(text, m.end())
            end = close.end() if close else len(text)
        else:
            end = m.end()
        blank(m.start(), end)
        at = end
    return "".join(out) + text[at:]


_HEADER = re.compile(r"\s*(?:(module|prelude)\b|(?:(?:public|meta)\s+)*import\s+(?:all\s+)?(\S+))")


@dataclass
class Module:
    """One Lean file."""

    name: str
    path: Path
    text: str
    imports: list[str] = field(default_factory=list)
    is_module: bool = False

    @classmethod
    def read(cls, name: str, path: Path) -> "Module":
        mod = cls(name, path, path.read_text(encoding="utf-8"))
        at = 0
        while m := _HEADER.match(mod.code, at):
            if m[1] == "module":
                mod.is_module = True
            elif m[2]:
                mod.imports.append(m[2].replace("«", "").replace("»", ""))
            at = m.end()
        return mod

    @cached_property
    def code(self) -> str:
        return code_only(self.text.lstrip("\ufeff"))


def discover(root: Path) -> dict[str, Module]:
    """{module name: Module} for every Lean file under `root`, which module A.B names ROOT/A/B.lean."""
    found = {}
    for folder, dirs, files in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIP_DIRS and not d.startswith("."))
        for f in sorted(files):
            path = Path(folder) / f
            if f.endswith(".lean") and not (f == "lakefile.lean" and Path(folder) == root):
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                found[name] = Module.read(name, path)
    return found


def reachable(mods: dict[str, Module], root: str) -> set[str]:
    """The project's modules that `root` imports, directly or not, and itself."""
    seen, todo = set(), [root]
    while todo:
        name = todo.pop()
        if name in mods and name not in seen:
            seen.add(name)
            todo += mods[name].imports
    return seen


@dataclass
class Plan:
    """What to compile, dependencies first, and what cannot be, with the reason."""

    order: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def plan(mods: dict[str, Module], asked, library: Path) -> Plan:
    """Order the modules `asked` and what they import; `library` holds Lean's own compiled modules."""
    p, state = Plan(), {}

    def judge(name: str) -> None:
        mod = mods[name]
        if mod.is_module:
            p.broken[name] = "is written as a `module`, which this build of Lean cannot mix with ordinary files"
        for imp in mod.imports:
            if imp in mods:
                visit(imp)
                if imp in p.skipped:
                    p.skipped.setdefault(name, f"{p.skipped[imp].split(' (')[0]} (through {imp})")
                elif imp in p.broken:
                    p.broken.setdefault(name, f"its import {imp} cannot be checked")
            elif (library / (imp.replace(".", "/") + ".olean")).is_file():
                pass
            elif any(m.split(".")[0] == imp.split(".")[0] for m in mods):
                p.broken[name] = f"import {imp}: no such file in the project"
            elif (library / (imp.split(".")[0] + ".olean")).is_file():
                p.broken[name] = f"import {imp}: no such module in Lean's core library"
            else:
                p.skipped.setdefault(name, f"needs {imp.split('.')[0]}")

    def visit(name: str) -> None:
        if state.get(name) == "open":
            p.broken[name] = "its imports go round in a circle"
        if name in state:
            return
        state[name] = "open"
        judge(name)
        state[name] = "done"
        if name not in p.skipped and name not in p.broken:
            p.order.append(name)

    for name in asked:
        visit(name)
    p.broken = {n: w for n, w in p.broken.items() if n not in p.skipped}
    return p
