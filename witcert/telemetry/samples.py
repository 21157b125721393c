"""From the ring of the device to lines of a file: a background thread that never touches the device."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from witcert.errors import WitCertError
from witcert.telemetry.jsonl import LineFile, line

__all__ = ["Call", "SampleLog", "floats"]

Integers = npt.NDArray[np.int64]
Request = int | str | None
CAPTURES = 256
"""Most captured steps whose calls are remembered."""


class Call(NamedTuple):
    """What the host knew when a layer was recorded.

    requests : of each row, if named. repaired : bool [batch, any], False (none is), or None (unknown which). queries : of a
    row. deltas : by tier, the failure probability that the reading carries.
    """

    requests: tuple[Request, ...] | None
    repaired: Tensor | bool | None
    queries: int
    deltas: dict[str, float]


def floats(pair: Integers) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The two float32 numbers that each int64 carries (exact in float64)."""
    both = pair.astype(np.uint64)
    high = (both >> np.uint64(32)).astype(np.uint32).view(np.float32).astype(np.float64)
    return high, (both & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32).astype(np.float64)


class SampleLog:
    """Turns copies of the ring into lines, each sample once, in order."""

    def __init__(self, file: LineFile, tiers: tuple[str, ...], layers: int, heads: int) -> None:
        self.file, self.tiers, self.layers, self.heads = file, tiers, layers, heads
        self.error: str | None = None
        self.dropped = 0
        self._done = 0  # samples taken over so far
        self._calls: dict[int, tuple[float | None, dict[int, Call]]] = {}
        self._captured: dict[int, dict[int, Call]] = {}
        self._queue: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="witcert-telemetry", daemon=True)
        self._thread.start()

    def remember(self, token: int, calls: dict[int, Call], captured: bool) -> None:
        """What the host knows of a step; of a captured one, whose replays it does not see, only the shapes."""
        if not captured:
            self._calls[token] = (time.time(), calls)
            return
        self._captured[token] = {layer: Call(None, None, c.queries, c.deltas) for layer, c in calls.items()}
        while len(self._captured) > CAPTURES:
            self._captured.pop(next(iter(self._captured)))

    def submit(self, state: Integers, ring: Integers) -> None:
        """Hand over a consistent copy of state and ring."""
        self._queue.put((state, ring))

    def write(self, record: dict[str, Any]) -> None:
        """Append a line of another kind, after all that was submitted."""
        self._queue.put(record)

    def flush(self) -> None:
        """Wait until everything submitted is written."""
        self._queue.join()

    def close(self, record: dict[str, Any]) -> None:
        """Write a last line and close the file; raises WitCertError if anything could not be written."""
        self.write(record)
        self._queue.put(None)
        self._thread.join()
        try:
            self.file.close()
        except WitCertError as e:
            self.error = self.error or str(e)
        if self.error is not None:
            raise WitCertError(self.error)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            try:
                if item is None:
                    return
                lines = [line(item)] if isinstance(item, dict) else self._lines(*item)
                if self.error is None:
                    self.file.write(lines)
            except Exception as e:
                # Telemetry must not end the process it watches: the snapshot shows the error and close() raises it.
                self.error = str(e) if isinstance(e, WitCertError) else f"{type(e).__name__}: {e}"
                with contextlib.suppress(Warning):
                    warnings.warn(f"telemetry records stop here: {self.error}", RuntimeWarning, stacklevel=1)
            finally:
                self._queue.task_done()

    def _lines(self, state: Integers, ring: Integers) -> list[bytes]:
        """The samples that were not taken over yet, oldest first."""
        written, capacity = int(state[1]), len(ring)
        if written <= self._done:
            return []
        first = max(self._done, written - capacity)
        self.dropped += first - self._done
        self._done = written
        new = ring[np.arange(first, written) % capacity]
        new = new[new[:, 2] >= 0]
        meters, c_max = floats(new[:, 4])
        now = time.time()
        out = []
        for (step, token, row, cell, _), meter, c in zip(new.tolist(), meters.tolist(), c_max.tolist(), strict=True):
            when, calls = self._calls.get(token) or (None, self._captured.get(token, {}))
            tier, layer = divmod(row, self.layers)
            out.append(line(self._cell(when or now, step, tier, layer, cell, meter, c, calls.get(layer))))
        last = int(state[3])
        for token in [t for t in list(self._calls) if t <= last]:
            del self._calls[token]
        return out

    def _cell(
        self, when: float, step: int, tier: int, layer: int, cell: int, meter: float, c_max: float, call: Call | None
    ) -> dict[str, Any]:
        """One sampled cell. A meter that is no number in [0, 1] is written as 1, with ``nan`` or ``outside`` beside it."""
        at, head = divmod(cell, self.heads)
        row, query = divmod(at, call.queries if call else 1)
        record: dict[str, Any] = {
            "type": "cell", "time": round(when, 6), "step": step, "layer": layer, "head": head, "row": row,
            "request": call.requests[row] if call and call.requests else None, "tier": self.tiers[tier],
            "meter": meter, "c_max": c_max, "repaired": None,
        }  # fmt: skip
        if call is None:
            record["row"] = None
        elif call.queries > 1:
            record["query"] = query
        if call is not None and call.deltas.get(self.tiers[tier]):
            record["delta"] = call.deltas[self.tiers[tier]]
        if call is not None and isinstance(call.repaired, Tensor):
            flags = call.repaired[row]
            record["repaired"] = bool(flags[head * len(flags) // self.heads])
        elif call is not None and call.repaired is False:
            record["repaired"] = False
        if not np.isfinite(c_max) or np.isnan(meter):
            record |= {"meter": 1.0, "c_max": c_max if np.isfinite(c_max) else None, "nan": True}
        elif not 0.0 <= meter <= 1.0:
            record |= {"meter": 1.0, "outside": True}
        return record
