#!/usr/bin/env python3
"""Check the proofs, audit them, and compare what they state with what is committed (`make proofs`).

  proofs.py              check everything; non-zero on any failure
  proofs.py --update     the same, and rewrite formal/statements.json and the documents made from it
  proofs.py --check      no Lean: are the documents those that formal/statements.json gives?

With lake on PATH both layers are built with the toolchain of lean-toolchain and replayed through leanchecker.
Without, the Core layer is compiled and replayed by a WebAssembly build of Lean (Node.js, x86-64 Linux), and the
Real layer is not compiled.
Exit status: 0 all well, 1 something failed, 2 it could not run.
"""

import argparse
import hashlib
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import audit
import documents
import export
import install
import lake
import source
import spec
from check import Checker
from problem import Problem

REFRESH = "run `python3 formal/tools/proofs.py --update` and commit what it changes"


@dataclass
class Project:
    """Where the parts of a project are."""

    root: Path
    build: Path
    jobs: int = 2

    @property
    def formal(self) -> Path:
        return self.root / "formal"

    @property
    def statements(self) -> Path:
        return self.formal / "statements.json"

    @property
    def spec_names(self) -> Path:
        return self.formal / "spec_names.json"

    @property
    def program(self) -> Path:
        return self.formal / "Export.lean"


@dataclass
class Run:
    """What one run found out."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    real_compiled: bool = False

    def problem(self, text: str) -> None:
        self.problems.append(text)
        print(text, flush=True)


def sources_digest(mods: dict[str, source.Module]) -> str:
    """Of every source under formal/WitCert, on which a committed export of the Real layer depends."""
    own = {n: m.text for n, m in mods.items() if n.split(".")[0] == "WitCert"}
    return hashlib.sha256(repr(sorted(own.items())).encode()).hexdigest()


def find_lake(choice: str) -> str | None:
    path = shutil.which("lake")
    if choice == "lake" and not path:
        raise Problem("lake is not on PATH: install elan (the Lean toolchain manager), which brings it")
    return path if choice != "wasm" else None


# --- compiling and exporting -----------------------------------------------------------


def core_with_wasm(project: Project, checker: Checker, run: Run) -> dict | None:
    """Compile, export and replay Core; its raw export, or None where it does not compile."""
    install.setup()
    members = sorted(n for n in checker.mods if export.CORE.owns(n))
    report = checker.check(members, project.jobs)
    for name in members:
        if name in report.skipped:
            run.problem(f"core layer: {name} could not be compiled: {report.skipped[name]}")
    if report.failed:
        run.problem(f"core layer: {len(report.failed)} modules failed: {', '.join(sorted(report.failed))}")
    if run.problems or export.CORE.root not in report.results:
        return None
    raw = export.with_wasm(checker, project.program, [export.CORE.root])
    replayed = f"{raw['replayed']} constants replayed by the kernel" if raw["replayed"] else "the replay failed"
    print(
        f"core layer: {len(members)} modules compiled; {replayed} (Lean {raw['lean'].split(',')[0]}, WebAssembly)",
        flush=True,
    )
    return raw


def real_not_compiled(mods: dict[str, source.Module], promised: list[spec.SpecName], run: Run) -> None:
    files = sorted(n for n in mods if n.split(".")[0] == "WitCert" and not export.CORE.owns(n))
    names = [n for n in promised if n.layer == "real"]
    print(
        f"real layer: not compiled here (it needs lake and Mathlib): {len(files)} modules, {len(names)} promised names pending",
        flush=True,
    )
    run.notes.append("Real layer: not compiled here")


# --- comparing ---------------------------------------------------------------------------


def assemble(project: Project, mods, promised, raw: dict, run: Run) -> dict:
    """The statements as they are now."""
    new = export.build(raw, promised, mods)
    if run.real_compiled:
        new["real_sources"] = sources_digest(mods)
    else:
        export.merge_real(new, export.load(project.statements), sources_digest(mods))
    new["pending"] = export.pending(promised, new, {n: m.code for n, m in mods.items()})
    return new


def _write(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(path.name + ".new")
    tmp.write_text(text, encoding="utf-8")
    os.replace(tmp, path)
    return True


def compare_statements(project: Project, new: dict, update: bool, by_lake: bool, run: Run) -> None:
    where = project.statements.relative_to(project.root)
    if update:
        print(f"statements: {where} {'rewritten' if _write(project.statements, export.dump(new)) else 'unchanged'}")
        return
    # Another release of Lean may find another proof, naming other axioms and lemmas, for the same statement.
    skip = frozenset({"axioms", "uses"}) if by_lake else frozenset()
    changed = export.differences(export.load(project.statements), new, skip)
    for line in changed[:20]:
        print(f"  {line}")
    if len(changed) > 20:
        print(f"  ... and {len(changed) - 20} more")
    if changed:
        run.problem(f"statements: {where} is stale: {REFRESH}")
    else:
        print(f"statements: {where} is up to date")


def compare_documents(project: Project, statements: dict, promised, update: bool, run: Run) -> None:
    stale = []
    for path, text in documents.files(project.root, statements, promised).items():
        name = str(path.relative_to(project.root))
        if update:
            print(f"documents: {name} {'rewritten' if _write(path, text) else 'unchanged'}")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        run.problem(f"documents: stale: {', '.join(stale)}: {REFRESH}")
    elif not update:
        print("documents: up to date")


# --- the three commands --------------------------------------------------------------------


def check_documents(project: Project, run: Run) -> str:
    statements = export.load(project.statements)
    if statements is None:
        raise Problem(f"there is no {project.statements}: {REFRESH}")
    compare_documents(project, statements, spec.load(project.spec_names), False, run)
    return "documents compared with formal/statements.json; no proof was checked"


def check_proofs(project: Project, update: bool, lean_choice: str, run: Run) -> str:
    promised = spec.load(project.spec_names)
    checker = Checker(project.formal, project.build)
    mods = checker.mods
    findings = audit.tree(mods)
    by_lake = find_lake(lean_choice)
    if by_lake:
        raw = lake.build_and_export(by_lake, project.root, project.program, mods, run)
    else:
        print("lake is not on PATH: " * (lean_choice == "auto") + "using the WebAssembly build of Lean", flush=True)
        raw = core_with_wasm(project, checker, run)
    if raw:
        findings += audit.compiled(raw, mods)
        findings += audit.missing(promised, raw, {"core"}, project.spec_names)
    for f in sorted(set(findings)):
        print(f)
    if findings:
        run.problem(f"audit: {len(set(findings))} findings")
    elif raw:
        print(
            "audit: no sorry, no axiom but propext, Classical.choice and Quot.sound, no unreachable file, every public theorem "
            "documented, every promised Core name present"
        )
    if not run.real_compiled:
        real_not_compiled(mods, promised, run)
    if not raw:
        return "the proofs do not compile; nothing was compared"
    new = assemble(project, mods, promised, raw, run)
    if update and run.problems:
        return "nothing was rewritten, because of the failures above"
    compare_statements(project, new, update, bool(by_lake), run)
    compare_documents(project, new, promised, update, run)
    proved = [t for t in new["theorems"] if t["layer"] == "core" or run.real_compiled]
    named = sum(t["spec"] for t in proved)
    return ". ".join([f"{len(proved)} theorems checked, {named} of them promised by the specification", *run.notes])


def main(argv=None) -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = ap.add_mutually_exclusive_group()
    what.add_argument("--update", action="store_true", help="rewrite statements.json and the documents")
    what.add_argument("--check", action="store_true", help="compare the documents only; runs no Lean")
    ap.add_argument(
        "--lean", choices=("auto", "lake", "wasm"), default="auto", help="which Lean (default: lake where it is)"
    )
    ap.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parents[2], help="the project (default: this one)"
    )
    ap.add_argument("--build", type=Path, help="where results are kept (default: formal/.lake/leanrun)")
    ap.add_argument("-j", "--jobs", type=int, default=2)
    a = ap.parse_args(argv)
    root = a.root.resolve()
    project = Project(root, (a.build or root / "formal" / ".lake" / "leanrun").resolve(), a.jobs)
    run, start = Run(), time.monotonic()
    try:
        done = check_documents(project, run) if a.check else check_proofs(project, a.update, a.lean, run)
    except Problem as e:
        print(f"proofs: error: {e}", file=sys.stderr)
        return 2
    verdict = f"FAILED, {len(run.problems)} problems" if run.problems else "ok"
    print(f"proofs: {verdict}: {done} ({time.monotonic() - start:.0f} s)")
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
