"""Ctrl-C and the TERM signal end a run early, and once: what is known is still written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["REASON", "interruptible"]

REASON = "the run was interrupted"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # `timeout` signals twice, and what is known must be written all the same
    raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first of either signal into KeyboardInterrupt and ignore what follows; outside the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {each: signal.signal(each, _interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
