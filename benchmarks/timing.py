"""Time of a step on the GPU: CUDA graph replays over inputs that together exceed the cache several times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

CACHE = 256 * 2**20
"""Bytes that one graph goes through before it reads an input again; several times the L2."""


WARM = 0.2
"""Seconds of replays before anything is timed."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of one step, and half the distance between the 10th and 90th percentile relative to it."""

    seconds: float
    spread: float


def rounds_for(size: int) -> int:
    """How many input sets of that size are needed to go past the cache."""
    return max(1, min(64, -(-CACHE // max(size, 1))))


def _marks(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]


def timed(calls: Sequence[Callable[[], Any]], repeats: int = 20) -> Timing:
    """Time per call of a graph that makes all the calls once; replayed a number of times."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    until = time.perf_counter() + WARM
    while time.perf_counter() < until:  # clocks settle
        graph.replay()
        torch.cuda.synchronize()
    marks = _marks(repeats + 1)
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) / 1e3 / len(calls) for a, b in pairwise(marks))
    del kept, graph
    low, high = times[len(times) // 10], times[-1 - len(times) // 10]
    middle = median(times)
    return Timing(middle, (high - low) / (2 * middle))


def copy_bandwidth(size: int = 4 * 2**30) -> float:
    """Bytes read plus bytes written per second by a large device-to-device copy."""
    source = torch.empty(size // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    marks = _marks(11)
    target.copy_(source)
    marks[0].record()
    for mark in marks[1:]:
        target.copy_(source)
        mark.record()
    torch.cuda.synchronize()
    return 2 * size / (float(median(a.elapsed_time(b) for a, b in pairwise(marks))) / 1e3)
