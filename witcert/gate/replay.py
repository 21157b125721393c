"""Decode steps as CUDA graphs: what a layer writes, reads and compares with tau, launched as one.

In an eager step most of the time is Python between small launches. What a layer does before the host has to know something
(write, read from one store or two, merge, compare) is the same launches each time, over tensors that are updated in place; so
it is captured once per layer and replayed. Only what depends on what was read, the choice of what to page in, stays outside.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Replays"]

T = TypeVar("T")


@dataclass(eq=False)
class _Captured:
    graph: Any
    given: tuple[Tensor, ...]
    result: Any


class Replays:
    """Graphs of the layers of one batch; they are dropped when another batch, or other page tables, come.

    A body is captured when it is asked for the second time, or when one of its kind has run: the first time compiles what has
    to be compiled. All graphs share
    one memory: what a replay returns holds until the next replay of any key, unless the body put it into memory that was
    there before the capture. ``captured``, ``replayed`` count, by name.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.captured: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self._graphs: dict[tuple[Any, ...], tuple[tuple[Any, ...], _Captured | None]] = {}
        self._kinds: set[tuple[Any, ...]] = set()
        self._of: tuple[Any, ...] = ()
        self._shared: Tensor | None = None
        self._filled_from: weakref.ref[Tensor] | None = None
        self._pool: Any = None
        self._stream: Any = None

    def begin(self, of: tuple[Any, ...]) -> bool:
        """What all keys from now on have in common, such as the memory of the page tables; another one drops every graph,
        and is answered by True."""
        if of == self._of:
            return False
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).synchronize()  # the last of them may still be running
        self._graphs.clear()
        self._kinds.clear()
        self._of, self._shared = of, None
        return True

    def run(
        self, key: tuple[Any, ...], given: tuple[Tensor, ...], body: Callable[..., T], *, shared: Tensor | None = None,
        replayed: Callable[[], None] | None = None, version: tuple[Any, ...] = (), kind: tuple[Any, ...] | None = None,
    ) -> T:  # fmt: skip
        """What ``body(*given)``, or ``body(*given, shared)``, gives; by a replay where there is one.

        Parameters
        ----------
        key : a name, and all that decides which launches the body makes, shapes and types of ``given`` apart.
        given : its inputs, on a CUDA device, copied for each replay. shared : one more, copied once for all keys: the same
            object for all layers of a step, another one in another step.
        version : of the body under this key; the graph of another one is dropped.
        kind : what bodies have in common that launch the same kernels over other tensors: once one of them has run, the
            others are captured at their first call.
        body : makes launches only, and does not wait for the device. replayed : called after a replay instead, for what
            body does on the host.
        """
        more = () if shared is None else (shared,)
        if not self.enabled or not given[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return body(*given, *more)
        shapes = tuple((x.shape, x.dtype) for x in given)
        key = (*key, *shapes)
        version = (*version, None if shared is None else shared.shape)
        seen, entry = self._graphs.get(key, (None, None))
        if seen != version:
            self._graphs[key] = version, None
            entry = None
            if kind is None or (*kind, *shapes) not in self._kinds:
                if kind is not None:
                    self._kinds.add((*kind, *shapes))
                return body(*given, *more)
        if entry is None:
            entry = self._capture(key[0], given, shared, body)
            if entry is None:
                return body(*given, *more)
            self._graphs[key] = version, entry
        elif replayed is not None:
            replayed()
        if shared is not None:
            self._fill(shared)
        torch._foreach_copy_(entry.given, given)
        entry.graph.replay()
        self.replayed[key[0]] += 1
        result: T = entry.result
        return result

    def _fill(self, shared: Tensor) -> None:
        """The shared input of this step in the memory that all graphs read it from."""
        last = None if self._filled_from is None else self._filled_from()
        if self._shared is not None and last is not shared:
            self._shared.copy_(shared)
            self._filled_from = weakref.ref(shared)

    def _capture(
        self, name: str, given: tuple[Tensor, ...], shared: Tensor | None, body: Callable[..., Any]
    ) -> _Captured | None:
        """The graph of the body; None, and no graphs any more, if it cannot be captured."""
        device = given[0].device
        if not any(entry for _, entry in self._graphs.values()):
            # memory whose last graph is gone cannot be captured into again
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if shared is not None and self._shared is None:
            self._shared, self._filled_from = torch.empty_like(shared), None
        own = tuple(torch.empty(x.shape, dtype=x.dtype, device=device) for x in given)
        more = () if shared is None else (self._shared,)
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                # other threads (a telemetry server) may go on using the device
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = body(*own, *more)
                finally:
                    graph.capture_end()
        except Exception as e:
            self.enabled = False
            self._graphs.clear()
            warnings.warn(f"decode steps run without CUDA graphs: a capture failed ({e})", RuntimeWarning, stacklevel=2)
            return None
        current.wait_stream(self._stream)
        self.captured[name] += 1
        return _Captured(graph, own, result)
