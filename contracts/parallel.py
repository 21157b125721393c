"""Runs checks and mutants in several processes, longest first; one that dies or hangs loses its own task and no other.

Each process works off one task after the other. What a task costs is dominated by compiling kernels, which processes do side
by side and whose results they share on disk. Nothing here imports PyTorch or Triton before a process knows whether its
kernels are interpreted: Triton decides that once, when it is imported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from contracts.interruption import REASON

__all__ = ["CHECK", "INTERPRETER", "MUTANT", "Group", "Task", "in_parallel"]

CHECK, MUTANT = "check", "mutant"

INTERPRETER: Mapping[str, str] = {
    "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
"""Environment of a process whose kernels are interpreted: no GPU, and one thread, since there are many processes."""

NO_MEMORY = "OutOfMemoryError"


@dataclass(frozen=True)
class Task:
    """A check or a mutant (kind), by name."""

    kind: str
    name: str


@dataclass(frozen=True)
class Group:
    """Tasks for processes of one kind: the environment that they set first, and their device, "cuda" or "cpu".

    full : whether the amounts of the checks are full. jobs : most processes at a time; idle : whether the group may also use
    the places that other groups leave.
    """

    tasks: Sequence[Task]
    jobs: int
    device: str
    interpreted: bool
    full: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    idle: bool = False


def _serve(pipe: Connection, group: Group) -> None:
    """A process: answers each task with a Result or a MutantResult, until there is no more."""
    os.environ.update(group.environment)
    import torch

    from contracts import checks, running
    from contracts.discharge import CHECKS, Setting
    from contracts.interpreter import mend

    assert checks.__file__
    if group.interpreted:
        mend()
        warnings.filterwarnings("ignore", category=RuntimeWarning)  # the interpreter's, on NaN and overflow
    torch.set_num_threads(1 if group.interpreted else 2)
    setting = Setting(torch.device(group.device), group.interpreted, group.full)
    while (task := pipe.recv()) is not None:
        if task.kind == MUTANT:
            from contracts import mutants

            answer: object = mutants.run(setting, [task.name])[0]
        else:
            answer = running.run([CHECKS[task.name]], setting, lambda _: None)[0]
        if group.device == "cuda":
            torch.cuda.empty_cache()  # the others need it
        pipe.send(answer)


class _Worker:
    """One process and the task that it is at, if any."""

    def __init__(self, group: Group) -> None:
        self.group, self.task, self.since = group, None, time.monotonic()  # type: Group, Task | None, float
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, group), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        self.task, self.since = task, time.monotonic()
        with contextlib.suppress(OSError):  # if it has ended, its pipe tells so next
            self.pipe.send(task)

    def stop(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        else:
            with contextlib.suppress(OSError):
                self.pipe.send(None)
        self.process.join(10.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


class _Run:
    def __init__(
        self, groups: Sequence[Group], lost: Callable[[Task, str, float], Any], tick: Callable[[Any], None], limit: float
    ) -> None:
        self.queues = [(group, list(group.tasks)) for group in groups]
        self.lost, self.tick, self.limit = lost, tick, limit
        self.places = sum(group.jobs for group in groups)
        self.workers: list[_Worker] = []
        self.answers: list[Any] = []
        self.alone: list[tuple[Group, Task]] = []
        self.again: set[Task] = set()

    def answer(self, value: Any) -> None:
        self.answers.append(value)
        self.tick(value)

    def fill(self) -> None:
        """Give every process without a task the next one, and start processes where there are places."""
        for group, queue in self.queues:
            for worker in [w for w in self.workers if w.group is group and w.task is None]:
                if queue:
                    worker.give(queue.pop(0))
                else:
                    self.workers.remove(worker)
                    worker.stop()
        for group, queue in self.queues:
            mine = sum(w.group is group for w in self.workers)
            free = self.places - len(self.workers)
            for _ in range(min(len(queue), free if group.idle else min(free, group.jobs - mine))):
                self.workers.append(_Worker(group))
                self.workers[-1].give(queue.pop(0))
        if not self.workers and self.alone:
            group, task = self.alone.pop(0)
            self.workers.append(_Worker(group))
            self.workers[-1].give(task)

    def drop(self, worker: _Worker, reason: str) -> None:
        """The process is gone, or is sent away: what it was at is lost, for this reason."""
        task, seconds = worker.task, time.monotonic() - worker.since
        self.workers.remove(worker)
        worker.stop(kill=True)
        if task is not None:
            self.answer(self.lost(task, reason, seconds))

    def read(self, worker: _Worker) -> None:
        try:
            value = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(5.0)
            self.drop(worker, f"its process ended with exit code {worker.process.exitcode}")
            return
        task, worker.task = worker.task, None
        assert task is not None
        said = getattr(value, "message", "") or getattr(value, "error", "") or ""
        if NO_MEMORY in said and task not in self.again:
            self.again.add(task)
            self.alone.append((worker.group, task))  # once more, when nothing else is there
        else:
            self.answer(value)

    def go(self, deadline: float) -> list[Any]:
        try:
            while True:
                self.fill()
                if not self.workers:
                    return self.answers
                now = time.monotonic()
                ends = min([deadline, *(w.since + self.limit for w in self.workers)])
                pipes = {w.pipe: w for w in self.workers}
                for pipe in wait(list(pipes), max(0.0, ends - now)):
                    self.read(pipes[pipe])  # type: ignore[index]
                now = time.monotonic()
                for worker in [w for w in self.workers if now >= w.since + self.limit]:
                    self.drop(worker, f"stopped after {self.limit:.0f} s")
                if now >= deadline:
                    self.give_up("the time of the whole run was over")
        except KeyboardInterrupt:
            self.give_up(REASON)
            return self.answers
        finally:
            for worker in list(self.workers):
                worker.stop(kill=True)

    def give_up(self, reason: str) -> None:
        """Everything that is left is lost, for this reason."""
        for worker in list(self.workers):
            self.drop(worker, reason)
        left = [task for _, queue in self.queues for task in queue] + [task for _, task in self.alone]
        for task in left:
            self.answer(self.lost(task, f"not begun: {reason}", 0.0))
        self.queues, self.alone = [(group, []) for group, _ in self.queues], []


def in_parallel(
    groups: Sequence[Group], lost: Callable[[Task, str, float], Any], tick: Callable[[Any], None], *, limit: float,
    deadline: float,
) -> list[Any]:  # fmt: skip
    """The answers to all tasks, in the order in which they came, each also given to ``tick``.

    lost : the answer to a task whose process ended, hung or was not begun, for the reason and after the seconds given.
    limit : seconds for one task. deadline : of the whole, on ``time.monotonic``. An interruption loses what is left.
    """
    return _Run(groups, lost, tick, limit).go(deadline)
