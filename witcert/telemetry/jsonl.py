"""Append-only JSON lines that a kill leaves whole, with rotation by size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from witcert.errors import InputError, WitCertError

__all__ = ["LINES", "LineFile", "line"]

LINES = "witcert-telemetry-lines/1"
"""Format that the first line of every file names."""
CHUNK = 4096
"""Most bytes of one write, unless a single line is longer."""


def line(record: dict[str, Any]) -> bytes:
    """One record as one line of standard JSON."""
    return json.dumps(record, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _ours(path: Path) -> bool:
    """Whether a file is empty or begins as one of ours does."""
    with path.open("rb") as f:
        start = f.readline(CHUNK)
    if not start:
        return True
    try:
        return bool(json.loads(start).get("format") == LINES)
    except (ValueError, AttributeError):
        return False


class LineFile:
    """A file of JSON lines: whole lines only, in one write each or several together.

    Before a file grows past ``rotate_bytes`` it becomes ``PATH.1`` (and ``PATH.1`` becomes ``PATH.2``, ...), at most ``keep``
    of them; a file that is already there when the run begins is moved aside the same way. Every file begins with a copy of
    the header, with its number in the run as ``piece``. A write that fails halfway, as on a full disk, is cut off again.

    Parameters
    ----------
    path : the file. header : JSON object of the first line.
    rotate_bytes : at least 4096; keep : rotated files that are kept, at least 1.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, rotate_bytes: int = 64 * 2**20, keep: int = 8) -> None:
        for name, value, least in (("rotate_bytes", rotate_bytes, CHUNK), ("keep", keep, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}={value!r} is not a whole number >= {least}")
        if not path.parent.is_dir():
            raise InputError(f"jsonl: the folder {path.parent} does not exist")
        if path.exists() and not path.is_file():
            raise InputError(f"jsonl: {path} is not a file")
        self.path, self.header, self.rotate_bytes, self.keep = path, header, rotate_bytes, keep
        self.piece = -1
        self.size = 0
        self._fd: int | None = None
        self._begin()

    def _numbered(self, n: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{n}")

    def _begin(self) -> None:
        """Move what is there aside and start the next piece."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self.path.exists():
            there = [n for n in range(1, self.keep + 1) if self._numbered(n).exists()]
            first_free = next((n for n in range(1, self.keep + 1) if n not in there), None)
            for n in range(0, first_free or self.keep + 1):
                file = self._numbered(n) if n else self.path
                if not _ours(file):
                    raise InputError(f"jsonl: {file} is there and is no telemetry file; name another one")
            if first_free is None:
                self._numbered(self.keep).unlink()
            for n in range((first_free or self.keep) - 1, -1, -1):
                os.replace(self._numbered(n) if n else self.path, self._numbered(n + 1))
        # The name appears with the header in it, so that a kill leaves no empty file.
        part = self.path.with_name(self.path.name + ".part")
        part.unlink(missing_ok=True)
        self._fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.size = 0
        self.piece += 1
        try:
            self._put(line(self.header | {"piece": self.piece}))
            os.replace(part, self.path)
        except BaseException:
            os.close(self._fd)
            self._fd = None
            part.unlink(missing_ok=True)
            raise

    def _put(self, data: bytes) -> None:
        assert self._fd is not None
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(0, f"{written} of {len(data)} bytes were written")
        except OSError as e:
            os.ftruncate(self._fd, self.size)
            raise WitCertError(f"cannot write {self.path}: {e.strerror or e}") from e
        self.size += len(data)

    def write(self, lines: list[bytes]) -> None:
        """Append whole lines, rotating before the size limit; raises WitCertError when the disk refuses."""
        if self._fd is None:
            raise WitCertError(f"{self.path} is closed")
        batch = b""
        for one in lines:
            full = self.size + len(batch) + len(one) > self.rotate_bytes
            if batch and (full or len(batch) + len(one) > CHUNK):
                self._put(batch)
                batch = b""
            if full:
                self._begin()
            batch += one
        if batch:
            self._put(batch)

    def close(self) -> None:
        """To the disk; nothing can be written afterwards."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                os.fsync(fd)
            except OSError as e:
                raise WitCertError(f"cannot write {self.path}: {e.strerror or e}") from e
            finally:
                os.close(fd)
