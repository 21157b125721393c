"""Compile the project's modules with the WebAssembly Lean, each once for each content.

A result is stored under the build folder with a digest of all that decides it: the tool, the options, the
text and the digests of the project's modules that it imports.  What is unchanged is not compiled again.
"""

import concurrent.futures as cf
import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import install
import lean
import source
from problem import Problem

OPTIONS = [
    # Without it a notation or macro cannot be used in another module: this build does not
    # find the constants that the compiler splits off from its code.
    "compiler.extract_closed=false",
    # With it every theorem may get a thread of its own, and each loads the module anew: a file
    # of some hundred theorems used up the machine's memory.
    "Elab.async=false",
]
# A server that has grown to this many megabytes makes way for a new one: what an import loads stays in its
# memory, about 95 MB a module, and WebAssembly gives at most 2 GB besides the code.
SERVER_MB = 2500


@dataclass
class Result:
    """The outcome of one module: messages are [severity, kind, line, column, text]."""

    compiled: bool
    sorry: bool
    messages: list[list]
    seconds: float
    cached: bool = False

    @property
    def ok(self) -> bool:
        return self.compiled and not self.sorry


@dataclass
class Report:
    results: dict[str, Result] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def locked(build: Path):
    """One process at a time in a build folder."""
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def has_sorry(messages: list[list]) -> bool:
    return any(
        kind == "hasSorry" or (severity == "warning" and "`sorry`" in text) for severity, kind, _, _, text in messages
    )


class Checker:
    """Compiles the modules under `root` into `build`."""

    def __init__(self, root: Path, build: Path, options=(), timeout: float = 1800, force: bool = False):
        self.root, self.build, self.timeout, self.force = root, build, timeout, force
        self.options = [*OPTIONS, *options]
        self.mods = source.discover(root)
        self._digests: dict[str, str] = {}
        self._use_servers = False
        self._idle: list[lean.Server] = []

    def out(self, name: str, suffix: str) -> Path:
        return self.build / (name.replace(".", "/") + suffix)

    def digest(self, name: str) -> str:
        """Of all that decides the outcome of this module."""
        if name not in self._digests:
            mod = self.mods[name]
            h = hashlib.sha256(json.dumps([install.installed_dir().name, self.options, mod.text]).encode())
            for imp in sorted(set(mod.imports) & set(self.mods)):
                h.update(f"{imp}={self.digest(imp)};".encode())
            self._digests[name] = h.hexdigest()
        return self._digests[name]

    def _stored(self, name: str) -> Result | None:
        try:
            old = json.loads(self.out(name, ".json").read_text())
        except (OSError, ValueError):
            return None
        if (
            self.force
            or old.pop("digest", None) != self.digest(name)
            or not old["compiled"]
            or not self.out(name, ".olean").is_file()
        ):
            return None
        return Result(**old, cached=True)

    def compile(self, name: str) -> Result:
        """Compile one module, or take its stored result."""
        if stored := self._stored(name):
            return stored
        olean, record = self.out(name, ".olean"), self.out(name, ".json")
        olean.parent.mkdir(parents=True, exist_ok=True)
        # The parts that a file with a `module` header compiles to besides: left over from an older text, they are
        # loaded along with the new .olean, and Lean dies of them.
        for old in (olean, record, *(self.out(name, s) for s in (".olean.private", ".olean.server", ".ir"))):
            old.unlink(missing_ok=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".lean-", dir=self.build) as tmp:
            new = Path(tmp) / "out.olean"
            # The text that the digest is of, whatever the file has become since.
            text = Path(tmp) / (name.replace(".", "/") + ".lean")
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(self.mods[name].text, encoding="utf-8")
            run = self._run_lean(name, text, Path(tmp), new)
            messages = [
                [m["severity"], m.get("kind", ""), m["pos"]["line"], m["pos"]["column"], m["data"]]
                for m in run.messages
            ]
            errors = any(m[0] == "error" for m in messages)
            compiled = run.status == 0 and not errors and new.is_file()
            if not compiled and not errors:
                messages.append(
                    ["error", "", 1, 0, f"Lean stopped with status {run.status} and no error message: {run.tail()}"]
                )
            if compiled:
                os.replace(new, olean)
        result = Result(compiled, has_sorry(messages), messages, round(time.monotonic() - start, 1))
        fields = {k: v for k, v in vars(result).items() if k != "cached"}
        fresh = record.with_suffix(".json.new")
        fresh.write_text(json.dumps({"digest": self.digest(name), **fields}))
        os.replace(fresh, record)
        return result

    def _run_lean(self, name: str, text: Path, root: Path, olean: Path) -> lean.Outcome:
        """In a server where many modules are to be compiled; alone where few are, or where the server failed.

        A failure in a server may be one of its memory, so it counts only when a fresh process agrees.
        """
        if self._use_servers:
            server = self._idle.pop() if self._idle else lean.Server(self.options, [self.build])
            outcome = server.compile(name, text, olean, self.timeout)
            if outcome.crashed or server.megabytes() > SERVER_MB:
                server.close()
            else:
                self._idle.append(server)
            if outcome.status == 0 or (server.served == 1 and not outcome.crashed):
                return outcome
        return lean.run(
            ["--json", "-R", root, "-j", "1", *(f"-D{o}" for o in self.options), "-o", olean, text],
            lean_path=[self.build],
            timeout=self.timeout,
        )

    def check(self, asked=(), jobs: int = 2, show_info: bool = False) -> Report:
        """Compile the modules `asked` (default: all) and what they import, printing each as it is done."""
        unknown = [a for a in asked if a not in self.mods]
        if unknown:
            raise Problem(f"no such module under {self.root}: {', '.join(unknown)}")
        todo = source.plan(self.mods, list(asked) or list(self.mods), install.installed_dir() / "lib")
        report = Report(failed=dict(todo.broken), skipped=todo.skipped)
        for name, why in sorted(todo.broken.items()):
            print(f"{self.mods[name].path}:1:0: error: {why}")
        for name, why in sorted(todo.skipped.items()):
            print(f"{name}: skipped: {why}")
        with locked(self.build), cf.ThreadPoolExecutor(jobs) as pool:
            self._use_servers = sum(self._stored(name) is None for name in todo.order) > jobs
            try:
                self._run(todo.order, report, pool, jobs, show_info)
            finally:
                while self._idle:
                    self._idle.pop().close()
        tail = f", {len(report.skipped)} skipped" if report.skipped else ""
        total = len(set(report.results) | set(report.failed))
        print(f"{total} modules checked, {len(report.failed)} failed{tail}")
        return report

    def _run(self, order: list[str], report: Report, pool: cf.Executor, jobs: int, show_info: bool) -> None:
        waiting, running = list(order), {}
        while waiting or running:
            for name in list(waiting):
                needs = [d for d in self.mods[name].imports if d in self.mods]
                bad = [
                    d for d in needs if d in report.failed and not (d in report.results and report.results[d].compiled)
                ]
                if bad:
                    waiting.remove(name)
                    report.failed[name] = f"not checked: its import {bad[0]} failed"
                    print(f"{self.mods[name].path}:1:0: error: {report.failed[name]}", flush=True)
                elif all(d in report.results for d in needs) and len(running) < jobs:
                    waiting.remove(name)
                    running[pool.submit(self.compile, name)] = name
            if running:
                for f in cf.wait(running, return_when=cf.FIRST_COMPLETED).done:
                    name = running.pop(f)
                    report.results[name] = f.result()
                    self._print(name, report, show_info)

    def _print(self, name: str, report: Report, show_info: bool) -> None:
        r = report.results[name]
        for severity, _, line, column, text in r.messages:
            if severity != "information" or show_info:
                print(f"{self.mods[name].path}:{line}:{column}: {severity}: {text}")
        if not r.ok:
            report.failed[name] = "sorry" if r.compiled else "errors"
        how = "up to date" if r.cached else f"{r.seconds:.1f} s"
        print(f"{name}: {'ok' if r.ok else 'FAILED (' + report.failed[name] + ')'} ({how})", flush=True)
