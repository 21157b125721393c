"""Load the contracts, run their checks on this machine's kernels, and report: ``python -m contracts``, ``make contracts``.

On a GPU the compiled kernels run at real shapes, in several processes, while faulty variants are tried in Triton's
interpreter; then the tests marked ``gpu`` run. Without a GPU the same checks run through the interpreter at reduced amounts,
and the summary says so: that validates no GPU.
The report of the checks and mutants is written before those tests begin, and again at the end; Ctrl-C and the TERM signal
end the run, and what is known by then is written.
Exit status: 0 all well, 1 something failed or the run was interrupted, 2 it could not run.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.book import Book
    from contracts.discharge import Check, Setting
    from contracts.mutants import MutantResult
    from contracts.running import Result

BUDGET = 460.0
"""Seconds for a whole run on a GPU: under eight minutes."""

LIMIT = 300.0
"""Seconds for one check or mutant where there are several processes."""


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    ap = argparse.ArgumentParser(
        prog="python -m contracts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--only", nargs="+", metavar="NAME", default=[], help="checks, modules of checks, mutants, `mutants`")
    ap.add_argument("--no-mutants", action="store_true", help="leave the faulty variants out")
    ap.add_argument("--no-tests", action="store_true", help="on a GPU: leave `pytest -m gpu` out")
    ap.add_argument("--out", type=Path, metavar="FILE", help="write the report as JSON")
    ap.add_argument("--resume", type=Path, metavar="FILE", help="continue this report: run only what it lacks or what failed")
    ap.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is a GPU")
    ap.add_argument("--jobs", type=int, metavar="N", help="processes; default: up to 12 on a GPU, one on a CPU")
    ap.add_argument("--limit", type=float, metavar="S", help=f"seconds for one check or mutant (default {LIMIT:.0f}); "
                    "not where all run in this process")  # fmt: skip
    ap.add_argument("--budget", type=float, metavar="S", help=f"seconds for the whole run (default on a GPU {BUDGET:.0f}): "
                    "what has not ended by then, tests included, is stopped and reported as not passed")  # fmt: skip
    ap.add_argument("--commit", metavar="HASH", help="commit of a tree without git, for the report")
    ap.add_argument("--load", action="store_true", help="only compare contracts, theorems, checks and sources")
    ap.add_argument("--write-docs", action="store_true", help="only rewrite docs/contracts.md from contracts/report.json")
    return ap.parse_args(argv)


def _stop(message: str) -> int:
    print(f"contracts: error: {message}", file=sys.stderr)
    return 2


def _book() -> Book | None:
    from contracts.book import BookError, load

    try:
        book = load()
    except BookError as e:
        for reason in e.reasons:
            print(f"contracts: {reason}", file=sys.stderr)
        print(f"contracts: FAILED: {len(e.reasons)} reasons why contracts and system do not fit", file=sys.stderr)
        return None
    theorems = len(book.contracts)
    print(f"contracts: {theorems} theorems, {theorems} contracts, {len(book.facts.checks)} checks: they fit", flush=True)
    return book


def _asked(
    args: argparse.Namespace, book: Book, mutants: list[str], earlier: dict[str, Any] | None
) -> tuple[list[Check], list[str]]:
    """The checks and mutants to run; KeyError with a name of ``--only`` that is neither."""
    from contracts.running import select

    own = [n for n in args.only if n == "mutants" or n in mutants]
    others = [n for n in args.only if n not in own]
    checks = select(dict(book.facts.checks), others) if others or not args.only else []
    chosen = [] if args.no_mutants or (args.only and not own) else [m for m in mutants if not own or {m, "mutants"} & set(own)]
    if earlier is not None:
        done = {c["name"] for c in earlier["checks"] if c["status"] == "passed"}
        killed = {m["name"] for m in earlier["mutants"] if m["killed_by"]}
        checks, chosen = [c for c in checks if c.name not in done], [m for m in chosen if m not in killed]
    return checks, chosen


def _run(args: argparse.Namespace, book: Book, setting: Setting, start: float) -> int:
    from rich.console import Console

    from contracts import report

    faulty = importlib.import_module("contracts.mutants")
    names = [m.name for m in faulty.MUTANTS]
    try:
        earlier = report.load(args.resume) if args.resume else None
    except (OSError, ValueError) as e:
        return _stop(f"--resume: {e}")
    if earlier is not None and (differing := report.other_machine(earlier, setting)):
        return _stop(f"--resume: {args.resume} is of another machine or of other sources: {', '.join(differing)} differ")
    try:
        checks, mutants = _asked(args, book, names, earlier)
    except KeyError as e:
        return _stop(f"--only: no check, module of checks or mutant is called {e.args[0]!r}; choose from "
                     f"{', '.join([*sorted(book.facts.checks), 'mutants', *names])}")  # fmt: skip
    deadline = start + (args.budget or (BUDGET if setting.device.type == "cuda" else math.inf))
    results, killed, interrupted = _all(args, setting, checks, mutants, deadline)

    def build(tests: dict[str, Any] | None) -> dict[str, Any]:
        return report.build(
            book, setting, results, mutants=killed, every_mutant=names, tests=tests, seconds=time.monotonic() - start,
            commit=args.commit, earlier=earlier,
        )  # fmt: skip

    tested = earlier is not None and earlier["tests"] is not None and earlier["tests"]["exit"] == 0
    tests = None
    if setting.device.type == "cuda" and not (args.no_tests or args.only or tested or interrupted):
        from contracts.suite import gpu_tests

        if args.out is not None:  # should the tests take this process with them
            report.write(args.out, report.dump(build(None)))
            print(f"contracts: {args.out} written: checks and mutants; the tests follow", flush=True)
        tests = gpu_tests(_jobs(args, setting), deadline - time.monotonic())
    data = build(tests)
    if args.out is not None:
        report.write(args.out, report.dump(data))
    console = Console(highlight=False)
    report.print_results(data, console if console.is_terminal else Console(highlight=False, width=132))
    return 0 if data["passed"] and not interrupted else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _jobs(args: argparse.Namespace, setting: Setting) -> int:
    return int(args.jobs or (min(12, _cores()) if setting.device.type == "cuda" else 1))


def _all(
    args: argparse.Namespace, setting: Setting, checks: list[Check], mutants: list[str], deadline: float
) -> tuple[list[Result], list[MutantResult], bool]:
    """Run them here, one after the other, or in processes: the checks on the device, mutants in the interpreter.

    Last, whether that was interrupted; what was left then is among the results, lost for that reason.
    """
    from contracts import mutants as faulty
    from contracts.interruption import REASON
    from contracts.parallel import CHECK, INTERPRETER, MUTANT, Group, Task, in_parallel
    from contracts.running import Result, longest_first, run

    what = {m.name: m.what for m in faulty.MUTANTS}
    start, total, done, interrupted = time.monotonic(), len(checks) + len(mutants), 0, False

    def tick(r: Result | faulty.MutantResult) -> None:
        nonlocal done
        done += 1
        said = f"{r.name}: {r.status}" if isinstance(r, Result) else f"mutant {r.name}: {r.killed_by or 'SURVIVED'}"
        bad = r.message if isinstance(r, Result) else r.error
        print(f"[{done}/{total}, {time.monotonic() - start:.0f} s] {said} ({r.seconds:.1f} s)" + (f": {bad}" if bad else ""),
              file=sys.stderr, flush=True)  # fmt: skip

    def lost(task: Task, reason: str, seconds: float) -> Result | faulty.MutantResult:
        nonlocal interrupted
        interrupted |= reason.endswith(REASON)
        if task.kind == CHECK:
            return Result(task.name, "error", seconds, None, reason)
        return faulty.MutantResult(task.name, what[task.name], None, seconds, reason)

    jobs = _jobs(args, setting)
    if setting.device.type == "cpu" and jobs == 1:
        results, killed = list[Result](), list[faulty.MutantResult]()
        try:
            for check in checks:
                results += run([check], setting, tick)
            for name in mutants:
                killed += faulty.run(setting, [name])
                tick(killed[-1])
        except KeyboardInterrupt:
            interrupted = True
        return results, killed, interrupted
    tasks = [Task(CHECK, name) for name in longest_first([c.name for c in checks])]
    faults = [Task(MUTANT, name) for name in mutants]
    if setting.device.type == "cpu":
        groups = [Group([*tasks, *faults], jobs, "cpu", True, False, INTERPRETER)]
    else:
        groups = [
            Group(tasks, jobs, "cuda", setting.interpreted, setting.full),
            Group(faults, max(1, _cores() - jobs), "cpu", True, False, INTERPRETER, idle=True),
        ]
    answers = in_parallel(groups, lost, tick, limit=args.limit or LIMIT, deadline=deadline)
    return [a for a in answers if isinstance(a, Result)], [a for a in answers if not isinstance(a, Result)], interrupted


def main(argv: list[str] | None = None) -> int:
    """Run what the arguments say; returns the exit status."""
    from contracts.interruption import interruptible

    try:
        with interruptible():
            return _main(argv, time.monotonic())
    except KeyboardInterrupt:
        print("contracts: interrupted", file=sys.stderr)
        return 1


def _main(argv: list[str] | None, start: float) -> int:
    args = _arguments(argv)
    for name in ("jobs", "limit", "budget"):
        if (value := getattr(args, name)) is not None and not value > 0:
            return _stop(f"--{name}: {value} is not above 0")
    # Triton decides when it is imported whether it interprets.
    import torch

    cuda = torch.cuda.is_available()
    if args.device == "cuda" and not cuda:
        return _stop("--device cuda, and PyTorch sees no CUDA GPU here: it takes an NVIDIA GPU (compute capability 8.0 or "
                     "newer) and a CUDA build of PyTorch")  # fmt: skip
    device = torch.device(args.device or ("cuda" if cuda else "cpu"))
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    if args.out is not None and args.out.is_dir():
        return _stop(f"--out: {args.out} is a folder; name a file")
    book = _book()
    if book is None:
        return 1
    if args.write_docs:
        from contracts.document import PATH, refresh

        refresh(book)
        print(f"contracts: {PATH.name} written")
        return 0
    if args.load:
        return 0
    from contracts.discharge import Setting

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted:
        from contracts.interpreter import mend

        mend()
        print("contracts: no GPU: kernels are INTERPRETED, amounts reduced; this does not validate a GPU", flush=True)
    return _run(args, book, Setting(device, interpreted, full=device.type == "cuda" and not interpreted), start)


if __name__ == "__main__":
    sys.exit(main())
