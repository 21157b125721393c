"""Decode steps as CUDA graphs: what a layer writes, reads and compares with tau, launched as one.

In an eager step most of the time is Python between small launches. Everything that a layer's step does before the host has to
know something (write, read from one store or two, merge, compare) is the same launches each time, over tensors that are
updated in place; so it is captured once per layer and replayed. Repairs, which depend on what was read, stay outside.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from witcert.kernels.decode import DecodeOutput

__all__ = ["Replays"]

Body = Callable[[Tensor, Tensor, Tensor, Tensor, "Tensor | None"], "tuple[DecodeOutput, Tensor | None]"]


@dataclass(eq=False)
class _Captured:
    graph: Any
    given: tuple[Tensor, ...]
    result: tuple[DecodeOutput, Tensor | None]


class Replays:
    """Graphs of the layers of one batch; they are dropped when another batch, or other page tables, come.

    A step is captured when it is seen for the second time: the first one compiles what has to be compiled. All graphs share
    one memory; what a replay returns is overwritten by the next replay of that layer. ``captured``, ``replayed`` count.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.captured = self.replayed = 0
        self._graphs: dict[tuple[Any, ...], _Captured | None] = {}
        self._of: tuple[Any, ...] = ()
        self._slots: Tensor | None = None
        self._filled_from: weakref.ref[Tensor] | None = None
        self._pool: Any = None
        self._stream: Any = None

    def run(
        self, key: tuple[Any, ...], of: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, slots: Tensor, sinks: Tensor | None,
        body: Body, replayed: Callable[[], None],
    ) -> tuple[DecodeOutput, Tensor | None]:  # fmt: skip
        """What ``body(q, k, v, slots, sinks)`` gives, by a replay where there is one.

        Parameters
        ----------
        key : all that decides which launches the body makes, the layer first. of : what all keys have in common (the page
            tables' memory); another one drops every graph.
        q, k, v, slots, sinks : on a CUDA device. slots is the same object for all layers of a step, and another for another.
        body : makes launches only, and does not wait for the device. replayed : called after a replay instead, for what
            body does on the host.
        """
        if not self.enabled or not q.is_cuda or torch.cuda.is_current_stream_capturing():
            return body(q, k, v, slots, sinks)
        if of != self._of:
            self._graphs.clear()
            # memory whose last graph is gone cannot be captured into again
            self._of, self._slots, self._pool = of, None, None
        if key not in self._graphs:
            self._graphs[key] = None
            return body(q, k, v, slots, sinks)
        entry = self._graphs[key]
        if entry is None:
            made = self._capture(q, k, v, slots, sinks, body)
            if made is None:
                return body(q, k, v, slots, sinks)
            entry = self._graphs[key] = made
        else:
            replayed()
        self._fill(slots)
        for to, x in zip(entry.given, (q, k, v) if sinks is None else (q, k, v, sinks), strict=True):
            to.copy_(x)
        entry.graph.replay()
        self.replayed += 1
        return entry.result

    def _fill(self, slots: Tensor) -> None:
        """The slots of this step in the memory that all graphs read them from."""
        last = None if self._filled_from is None else self._filled_from()
        if self._slots is not None and last is not slots:
            self._slots.copy_(slots)
            self._filled_from = weakref.ref(slots)

    def _capture(
        self, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, sinks: Tensor | None, body: Body
    ) -> _Captured | None:
        """The graph of the body; None, and no graphs any more, if it cannot be captured."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:
            self._stream = torch.cuda.Stream(q.device)  # type: ignore[no-untyped-call]
        if self._slots is None:
            self._slots, self._filled_from = torch.empty_like(slots), None
        asked = (q, k, v) if sinks is None else (q, k, v, sinks)
        given = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in asked)
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(q.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                # other threads (a telemetry server) may go on using the device
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = body(given[0], given[1], given[2], self._slots, None if sinks is None else given[3])
                finally:
                    graph.capture_end()
        except Exception as e:
            self.enabled = False
            self._graphs.clear()
            warnings.warn(f"decode steps run without CUDA graphs: a capture failed ({e})", RuntimeWarning, stacklevel=2)
            return None
        current.wait_stream(self._stream)
        self.captured += 1
        return _Captured(graph, given, result)
