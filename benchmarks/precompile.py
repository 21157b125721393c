"""Compile what a benchmark run needs in several processes: the compiler's cache on disk is shared."""

from __future__ import annotations

import subprocess
import sys

import torch

from benchmarks.cases import VARIANTS, Shape, page_table, queries, random_store, step


def compile_one(index: int, heads: tuple[int, int, int], page_size: int) -> None:
    """One tiny step of one variant."""
    shape = Shape(1, 256, *heads)
    variant = VARIANTS[index]
    step(queries(shape), random_store(shape, variant, page_size), page_table(shape, page_size), variant, shape)
    torch.cuda.synchronize()


def precompile(heads: tuple[tuple[int, int, int], ...], page_size: int, jobs: int) -> None:
    """Every variant on every head geometry, as many processes at a time as jobs; failures show in the run itself."""
    waiting = [(i, h) for h in heads for i in range(len(VARIANTS))]
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [p for p in running if p.poll() is None]
        if waiting and len(running) < jobs:
            index, (hkv, group, d) = waiting.pop()
            words = [str(x) for x in (index, hkv, group, d, page_size)]
            running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.precompile", *words]))
        elif running:
            running[0].wait()


if __name__ == "__main__":
    which, hkv, group, d, page = (int(x) for x in sys.argv[1:6])
    compile_one(which, (hkv, group, d), page)
