"""Run the WebAssembly build of Lean that install.py installed, once or as a server that compiles many modules."""

import json
import os
import resource
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import install

STACK_KB = 60_000  # V8's stack for Lean's recursion on the first thread
THREAD_STACK_KB = 200_000  # and Lean's own stack on the others
WORKER = Path(__file__).with_name("Worker.lean")


@dataclass
class Outcome:
    """How one run of Lean ended: its messages (from --json) and all else that it printed."""

    status: int
    messages: list[dict] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    crashed: bool = False

    def tail(self) -> str:
        """The end of what it printed, for an error message."""
        return " | ".join(line[:300] for line in self.other[-8:])[-1500:]


def _deep_stack() -> bool:
    """Raise this process's stack limit, which Lean's process inherits, to what STACK_KB needs."""
    want = (STACK_KB + 4_000) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < want:
        if hard != resource.RLIM_INFINITY and hard < want:
            return False
        resource.setrlimit(resource.RLIMIT_STACK, (want, hard))
    return True


def _command() -> list[str]:
    tool = install.installed_dir()
    return [str(tool / "node"), *([f"--stack-size={STACK_KB}"] if _deep_stack() else []), str(tool / "lean.js")]


def _environment(lean_path) -> dict[str, str]:
    env = dict(os.environ, LEAN_PATH=os.pathsep.join(map(str, [install.installed_dir() / "lib", *lean_path])))
    env.pop("NODE_OPTIONS", None)
    return env


def _take(line: str, outcome: Outcome) -> None:
    """Sort one line of Lean's output into messages and the rest."""
    if line.startswith('{"') and '"severity"' in line:
        try:
            outcome.messages.append(json.loads(line))
            return
        except ValueError:
            pass
    if line.strip() and not line.startswith("[DEBUG:"):  # this build prints what it is about to do
        outcome.other.append(line)


def run(args, lean_path=(), timeout: float | None = None, cwd: Path | None = None) -> Outcome:
    """Run Lean with these arguments; `lean_path` comes after the core library."""
    scratch = tempfile.mkdtemp(prefix="witcert-lean-")  # this build drops default.profraw where it runs
    try:
        p = subprocess.run(
            [*_command(), *map(str, args)],
            env=_environment(lean_path),
            cwd=cwd or scratch,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        status, raw = p.returncode, p.stdout
    except subprocess.TimeoutExpired as e:
        status, raw = 124, (e.stdout or b"") + f"\nstopped after {timeout} s\n".encode()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    outcome = Outcome(status)
    for line in raw.decode("utf-8", "replace").splitlines():
        _take(line, outcome)
    return outcome


def script(path: Path, args, lean_path=(), timeout: float | None = None) -> Outcome:
    """Run the `main` of a Lean file."""
    return run(["-j", "1", "-s", THREAD_STACK_KB, "--run", path, *args], lean_path, timeout)


class Server:
    """One Lean process that compiles module after module (Worker.lean)."""

    def __init__(self, options, lean_path):
        self.served = 0
        self._scratch = Path(tempfile.mkdtemp(prefix="witcert-lean-"))
        self._inbox = self._scratch / "job"
        self._process = subprocess.Popen(
            [*_command(), "-j", "1", "-s", str(THREAD_STACK_KB), "--run", str(WORKER), str(self._inbox), *options],
            text=True,
            encoding="utf-8",
            errors="replace",
            env=_environment(lean_path),
            cwd=self._scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def compile(self, module: str, source: Path, olean: Path, timeout: float) -> Outcome:
        """The outcome; `crashed` is set where the process ended before it had one."""
        self.served += 1
        outcome = Outcome(1)
        timer = threading.Timer(timeout, self._process.kill)
        timer.start()
        new = self._inbox.with_suffix(".new")
        new.write_text(f"{module}\n{source}\n{olean}\n", encoding="utf-8")
        os.replace(new, self._inbox)
        try:
            for line in self._process.stdout:
                if line.startswith('{"done"'):
                    outcome.status = 0 if json.loads(line)["ok"] else 1
                    return outcome
                _take(line.rstrip("\n"), outcome)
        finally:
            timer.cancel()
        outcome.crashed = True
        return outcome

    def megabytes(self) -> float:
        """How much memory the process holds."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except OSError:
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._scratch, ignore_errors=True)
