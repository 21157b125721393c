"""Totals over time in bounded memory: when it is full, every second point goes and the spacing doubles."""

from __future__ import annotations

import threading

from witcert.telemetry.snapshot import Point

__all__ = ["History"]

POINTS = 480


class History:
    """At most ``POINTS`` totals, evenly spaced; the newest is always among them."""

    def __init__(self, spacing: float = 1.0) -> None:
        self.spacing = spacing
        self._points: list[Point] = []
        self._newest: Point | None = None
        self._lock = threading.Lock()

    def add(self, point: Point) -> None:
        """Keep a point, if it is far enough from the one before."""
        with self._lock:
            self._newest = point
            if self._points and point.time - self._points[-1].time < self.spacing:
                return
            self._points.append(point)
            if len(self._points) > POINTS:
                self._points = self._points[::2]
                self.spacing *= 2

    def points(self) -> tuple[Point, ...]:
        """Oldest first."""
        with self._lock:
            extra = () if self._newest is None or self._newest in self._points[-1:] else (self._newest,)
            return (*self._points, *extra)
