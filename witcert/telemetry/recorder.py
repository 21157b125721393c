"""``Telemetry``: called after each attention call, it counts every cell on the device and never waits for it."""

from __future__ import annotations

import atexit
import math
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

import witcert
from witcert.errors import InputError, WitCertError
from witcert.guarantees import LABELS
from witcert.kernels.decode import Reading, ReadingBuffers
from witcert.kernels.telemetry.step import SAMPLES, StepRecord
from witcert.kernels.telemetry.step_reference import add_reference
from witcert.telemetry.calls import Waiting, checked, float32_above, masked, repairs_of, requests_of
from witcert.telemetry.history import History
from witcert.telemetry.jsonl import LINES, LineFile
from witcert.telemetry.samples import Call, Request, SampleLog
from witcert.telemetry.snapshot import Point, Snapshot
from witcert.telemetry.stage import Stage, Stages
from witcert.telemetry.unpack import tier_counts

__all__ = ["Telemetry"]

DRAIN = 32
"""Steps between two copies of the record to the host: the ring holds twice as many."""
TOTALS = 10.0
"""Seconds between two lines of totals."""
PENDING = 2**22
"""Cells that may wait for their step to end before they are counted."""


class Telemetry:
    """Counts of every meter of a serving process, by guarantee, layer and head.

    Call :meth:`record` after each attention call. The readings of one forward pass are counted together when its last layer
    is recorded (or a layer comes again): a :class:`~witcert.kernels.telemetry.StepRecord` on the device. That takes one
    launch where every layer was decoded into its place of :meth:`stage`, and two otherwise: a copy of all readings comes
    first. Nothing waits for the device except :meth:`snapshot` and :meth:`close`.

    Parameters
    ----------
    layers, heads : of the model; heads are query heads.
    tiers : labels of the guarantees that are counted, apart from each other.
    tau : a cell is certified when its meter is at most this.
    device : where the readings are.
    jsonl : file for sampled cells, one JSON line each; None writes nothing. See :class:`~witcert.telemetry.jsonl.LineFile`.
    sample : share of the cells that are sampled, in (0, 1]; at most 64 of a step. Every cell has its turn.
    rotate_bytes, keep : size at which the file is rotated, and how many rotated files are kept.

    Notes
    -----
    CUDA graphs: record one step before the capture, and whole steps inside it; replays are counted on the device. What
    only the host knows (request, repairs, bytes) is not counted by a replay. While another thread may read the record (a
    server is running), capture inside :meth:`exclusive`. Replay a graph whose steps go through the stage between steps only.
    """

    def __init__(
        self, layers: int, heads: int, *, tiers: Sequence[str] = ("proved", "proved-nonadaptive"), tau: float = 0.2,
        device: torch.device | str = "cpu", jsonl: Path | str | None = None, sample: float = 1 / 256,
        rotate_bytes: int = 64 * 2**20, keep: int = 8,
    ) -> None:  # fmt: skip
        known = [label.label for label in LABELS]
        tiers = tuple(tiers)
        if any(t not in known for t in tiers):
            raise InputError(f"tiers={tiers!r} must be labels of guarantees: {', '.join(known)}")
        if not isinstance(sample, (int, float)) or isinstance(sample, bool) or not 2.0**-29 <= sample <= 1.0:
            raise InputError(f"sample={sample!r} is outside [2^-29, 1]")
        self.device = torch.device(device)
        self._cuda = self.device.type == "cuda"
        if self._cuda:
            at = torch.cuda.current_device() if self.device.index is None else self.device.index
            self.device = torch.device("cuda", at)
        self._record = StepRecord.empty(tiers, layers, heads, tau=tau, capacity=2 * DRAIN * SAMPLES, device=self.device)
        self.layers, self.heads, self.tau, self.tiers = layers, heads, float(tau), tiers
        self.started = time.time()
        self._stride = max(1, round(1 / sample))
        self._tier = {t: i for i, t in enumerate(tiers)}
        self._promises: dict[str, dict[tuple[str, float], None]] = {t: {} for t in tiers}
        self._waiting: list[Waiting] = []
        self._stages = Stages(layers, heads, self._tier, self.device, PENDING)
        self._stage: Stage | None = None
        self._staged = 0  # layers of the step in progress, from the first one on, that lie in the stage
        self._shape: tuple[int, ...] = ()
        self._calls: dict[int, Call | None] = {}
        self._capturing = False
        self._indices: dict[tuple[int, ...], Tensor] = {}
        self._captured: dict[tuple[int, ...], Tensor] = {}  # those that graphs read
        self._token = 0
        self._repairs = self._bytes = self._violations = 0
        self._lock = threading.Lock()  # around what is enqueued on the record, never around waiting
        self._reading = threading.RLock()
        self._history = History()
        self._latest: Snapshot | None = None
        self._stream: torch.cuda.Stream | None = None
        self._copy: tuple[Tensor, Any] | None = None
        self._totals_at = self.started
        self._undrained = 0
        self._closed = False
        self._servers: list[Any] = []
        self._log: SampleLog | None = None
        if jsonl is not None:
            header = {
                "type": "run", "format": LINES, "run": uuid.uuid4().hex, "version": witcert.__version__,
                "started": self.started, "layers": layers, "heads": heads, "tiers": list(tiers), "tau": self.tau,
                "stride": self._stride,
            }  # fmt: skip
            file = LineFile(Path(jsonl), header, rotate_bytes=rotate_bytes, keep=keep)
            self._log = SampleLog(file, tiers, layers, heads)
        _OPEN.add(self)

    # ------------------------------------------------------------------ the hot path
    def _check(self, layer: int) -> None:
        if self._closed:
            raise WitCertError("this Telemetry is closed")
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise InputError(f"layer={layer!r} is outside 0..{self.layers - 1}")

    def stage(self, layer: int, batch: int, readings: int) -> ReadingBuffers | None:
        """Where to decode a layer's readings to (``into``), so that :meth:`record` need not copy them; None: nowhere.

        Parameters
        ----------
        layer : 0 .. layers - 1. Ask for each layer anew before its decode, and record it before the next.
        batch, readings : rows of the decode, and readings that its meter gives, at most one a tier.

        Notes
        -----
        All steps share one memory: readings in it hold until the next step's are written, so copy what is to be kept. Nothing
        is overwritten before it is counted as long as decode and :meth:`record` are on one stream, on which the launch that
        counts a step comes before the next decode; asking for a layer that is recorded already ends the step in progress.
        It is always right to record something else than what was decoded here, such as the readings after a repair: all of
        that step is then counted from a copy. None: no readings, a batch of 0, more than 2^22 cells in a step, another batch
        or number of readings than in the step in progress, or a CUDA graph capture before which no step as large was staged.
        """
        self._check(layer)
        stage = self._stage
        same = stage is not None and stage.shape[0] == batch and stage.readings == readings
        if not same:
            self._stages.check(batch, readings)
        if layer in self._calls and self._waiting:
            self.commit()
        if not same:
            if self._waiting:
                return None
            stage = self._stage = self._stages.of(batch, readings)
        return None if stage is None else stage.buffers[layer]

    def record(
        self, layer: int, readings: Sequence[Reading], *, repaired: Tensor | int | None = None, bytes: int = 0,
        request: Sequence[Request] | Request = None, lens: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Count the readings of one attention call.

        Parameters
        ----------
        layer : 0 .. layers - 1. Call it for every layer of a pass, in order, with () where nothing was metered: the last
            layer ends the step.
        readings : of what was served in the end (after repair), at most one a tier; float32 [batch, heads] of a decode or
            [batch, C, heads] of an extend (float64 on the CPU, rounded up). They are kept until the step ends, and must not
            be written to before, unless by a decode into :meth:`stage`.
        repaired : KV heads of a sequence that were repaired: how many, or bool [batch, Hkv] on the host. None: 0.
        bytes : paged in for this call.
        request : of each row of the batch, or of all; goes into records only, never into a metric.
        lens : int32 or int64 [batch] with [batch, C, heads]: queries of each row; what lies past them is not counted.
        """
        self._check(layer)
        if isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 0:
            raise InputError(f"bytes={bytes!r} is not a whole number >= 0")
        found = self._stage.find(layer, readings) if self._stage is not None and lens is None else None
        if found is not None and self._stage is not None:
            new, shape = found, self._stage.shape
        else:
            new, shape = checked(readings, layer, self._tier, (self.layers, self.heads), self.device, self._shape)
            if lens is not None and new:
                new = masked(new, lens, shape, self.device)
        batch = shape[0] if new else None
        count, flags = (0, False) if repaired is None else repairs_of(repaired, batch, self.heads)
        requests = None if request is None else requests_of(request, batch)
        if layer in self._calls or (new and self._waiting and shape != self._shape):
            self.commit()
        for r in readings:
            self._promises[r.meter.label].setdefault((r.meter.theorem, r.meter.delta))
        if new:
            capturing = self._cuda and torch.cuda.is_current_stream_capturing()
            if self._waiting and capturing != self._capturing:
                self._waiting, self._calls, self._staged = [], {}, 0
                raise WitCertError("a graph was captured around part of a step: it must hold whole steps, all layers")
            self._capturing, self._shape = capturing, shape
            self._waiting += new
            if found is not None and layer == self._staged:
                self._staged += 1
        self._repairs += count
        self._bytes += bytes
        if self._log is None:
            self._calls[layer] = None
        else:
            deltas = {r.meter.label: r.meter.delta for r in readings}
            self._calls[layer] = Call(requests, flags, shape[1] if len(shape) == 3 else 1, deltas)
        if layer == self.layers - 1 or (found is None and len(self._waiting) * math.prod(shape) > PENDING):
            self.commit()

    def commit(self) -> None:
        """End the step in progress: count what waits. Called by :meth:`record`; nothing waits for the device."""
        waiting, calls, self._waiting, self._calls = self._waiting, self._calls, [], {}
        staged, self._staged = self._staged, 0
        if not waiting:
            return
        capturing = self._cuda and torch.cuda.is_current_stream_capturing()
        if capturing != self._capturing:
            raise WitCertError("a graph was captured around part of a step: it must hold whole steps, all layers")
        partial = False
        if staged == self.layers and self._stage is not None:
            stage = self._stage.tensor
        else:
            partial = any(w.masked for w in waiting)
            both = torch.cat([w.meter for w in waiting] + [w.c_max for w in waiting])
            stage = float32_above(both).view(2, len(waiting), -1, self.heads)
        rows = self._index(tuple([w.row for w in waiting]), capturing)
        stride = max(self._stride, -(-(stage.numel() // 2) // SAMPLES))
        token, self._token = self._token, self._token + 1
        if self._log is not None:
            self._log.remember(token, {k: c for k, c in calls.items() if c is not None}, capturing)
        on_kernels = self._cuda or triton.knobs.runtime.interpret
        with self._lock:
            if on_kernels:
                self._record.add(stage, rows, token=token, stride=stride, masked=partial)
            else:
                add_reference(self._record, stage, rows, token=token, stride=stride, masked=partial)
            if self._cuda and not capturing:
                self._stream = torch.cuda.current_stream(self.device)
        if self._log is not None and not capturing:
            self._drain()

    def _index(self, rows: tuple[int, ...], capturing: bool) -> Tensor:
        """The rows of a step on the device; a model has few different sets of them."""
        index = self._indices.get(rows)
        if index is None:
            if capturing:
                raise WitCertError("record one step of these layers and tiers before a CUDA graph of it is captured")
            host = torch.tensor(rows, dtype=torch.int64)
            index = host.pin_memory().to(self.device, non_blocking=True) if self._cuda else host
            if len(self._indices) >= 1024:
                self._indices.clear()
            self._indices[rows] = index
        if capturing:
            self._captured[rows] = index
        return index

    def _drain(self) -> None:
        """Every few steps, start a copy to the host; hand it to the log once it has arrived."""
        assert self._log is not None
        if self._copy is not None and self._copy[1].query():
            host, self._copy = self._copy[0], None
            self._hand_over(host)
        self._undrained += 1
        if self._undrained < DRAIN or self._copy is not None:
            return
        self._undrained = 0
        if not self._cuda:
            self._hand_over(self._record.memory)
            return
        host = torch.empty(self._record.memory.shape, dtype=torch.int64, pin_memory=True)
        with self._lock:
            host.copy_(self._record.memory, non_blocking=True)
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._copy = (host, event)

    def _hand_over(self, host: Tensor) -> None:
        assert self._log is not None
        parts = self._record.view(host)
        self._log.submit(parts["state"].numpy().copy(), parts["ring"].numpy().copy())
        now = time.time()
        if now - self._totals_at >= TOTALS:
            self._totals_at = now
            point = self._unpacked(host, now).point()
            self._history.add(point)
            self._log.write({"type": "totals", **point.to_json()})

    # ------------------------------------------------------------------ reading
    def _unpacked(self, host: Tensor, now: float) -> Snapshot:
        parts = {name: part.numpy() for name, part in self._record.view(host).items()}
        tiers = tuple(tier_counts(parts, i, t, self.layers, tuple(self._promises[t])) for i, t in enumerate(self.tiers))
        return Snapshot(
            time=now, started=self.started, layers=self.layers, heads=self.heads, tau=self.tau,
            steps=int(parts["state"][0]), tiers=tiers, repairs=self._repairs, pagein_bytes=self._bytes,
            violations=self._violations + sum(int(t.violations.sum()) for t in tiers),
            samples=0 if self._log is None else int(parts["state"][1]), dropped=0 if self._log is None else self._log.dropped,
            jsonl_error=None if self._log is None else self._log.error,
        )  # fmt: skip

    def read(self) -> Snapshot:
        """What was counted so far, without the step in progress; waits for the device. From any thread."""
        with self._reading:
            if not self._cuda:
                with self._lock:
                    host = self._record.memory.clone()
            else:
                stream = self._stream or torch.cuda.default_stream(self.device)
                with torch.cuda.device(self.device), torch.cuda.stream(stream):
                    host = torch.empty(self._record.memory.shape, dtype=torch.int64, pin_memory=True)
                    with self._lock:
                        host.copy_(self._record.memory, non_blocking=True)
                        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                        event.record(stream)
                    event.synchronize()
            now = time.time()
            if self._log is not None and not self._closed:
                parts = self._record.view(host)
                self._log.submit(parts["state"].numpy().copy(), parts["ring"].numpy().copy())
            bare = self._unpacked(host, now)
            self._history.add(bare.point())
            self._latest = replace(bare, history=self._history.points())
            return self._latest

    def snapshot(self) -> Snapshot:
        """End the step in progress, wait for the device, and return everything that was counted; records are flushed."""
        self.commit()
        if self._cuda:
            torch.cuda.synchronize(self.device)  # whatever the streams on which graphs were replayed
        taken = self.read()
        if self._log is None:
            return taken
        self._log.flush()
        return replace(taken, dropped=self._log.dropped, jsonl_error=self._log.error)

    def recent(self, age: float = 0.5, wait: float = 2.0) -> Snapshot:
        """A snapshot of at most that age (seconds), or the latest one if :meth:`exclusive` is held for ``wait`` seconds."""
        latest = self._latest
        if latest is not None and (self._closed or 0.0 <= time.time() - latest.time < age):
            return latest
        if self._reading.acquire(timeout=wait):
            try:
                return self.read()
            finally:
                self._reading.release()
        if latest is None:
            raise WitCertError("the device is busy with a capture and nothing was read before it; try again")
        return latest

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """While this is held no other thread touches the device for telemetry: for CUDA graph captures."""
        with self._reading:
            yield

    def history(self) -> tuple[Point, ...]:
        """Totals over time, at most a few hundred points."""
        return self._history.points()

    def count_violations(self, number: int = 1) -> None:
        """Add violations that a checker of yours found, such as a comparison with the exact attention."""
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InputError(f"number={number!r} is not a whole number >= 0")
        self._violations += number

    # ------------------------------------------------------------------ serving and end
    def collector(self) -> Any:
        """A Prometheus collector; see :mod:`witcert.telemetry.prometheus`."""
        from witcert.telemetry.prometheus import Collector

        return Collector(self)

    def serve(self, port: int, host: str = "127.0.0.1") -> Any:
        """Serve a live page, ``/metrics`` and ``/snapshot.json`` from a thread; see :mod:`witcert.telemetry.server`."""
        from witcert.telemetry.server import Server

        server = Server(self, port, host)
        self._servers.append(server)
        return server

    def close(self) -> None:
        """Count what waits, write and close the records, stop serving; raises WitCertError if records were lost."""
        if self._closed:
            return
        try:
            final = self.snapshot()
        finally:
            self._closed = True
            for server in self._servers:
                server.close()
        if self._log is not None:
            self._log.close({"type": "end", "snapshot": final.to_json()})

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


_OPEN: weakref.WeakSet[Telemetry] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for telemetry in list(_OPEN):
        with suppress(Exception):
            telemetry.close()
