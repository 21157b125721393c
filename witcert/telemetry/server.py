"""A read-only HTTP server for the metrics, the snapshot and a live page; on this machine unless told otherwise."""

from __future__ import annotations

import errno
import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import TYPE_CHECKING, Any

from witcert.errors import InputError, WitCertError
from witcert.telemetry import prometheus

if TYPE_CHECKING:
    from witcert.telemetry.recorder import Telemetry

__all__ = ["Server", "page"]

LOCAL = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
SLOW = 10.0
"""Seconds after which a client that does not read or write is dropped."""
TICK = 2.0
"""Seconds between two points of the history."""


def page(data: dict[str, Any] | None = None) -> str:
    """The live page; with data, a snapshot's JSON, the page of that snapshot alone, which fetches nothing."""
    text = resources.files("witcert.telemetry").joinpath("page.html").read_text(encoding="utf-8")
    if data is None:
        return text
    # "<" ends a script element early in HTML, whatever the JSON around it says.
    inert = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    before, mark, after = text.partition("/*data*/null")
    assert mark
    return before + inert + after


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of three paths. Nothing of a request but its path and its Host header is looked at."""

    server_version, sys_version = "witcert", ""
    protocol_version = "HTTP/1.1"
    timeout = SLOW
    server: _Http

    def _answer(self) -> tuple[int, str, bytes]:
        host = self.headers.get("Host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.server.local and name.strip("[]").lower() not in LOCAL:
            # A page of another site that has its name resolve to this machine gets nothing.
            return 403, "text/plain", b"this server answers to localhost only\n"
        path = self.path.split("?", 1)[0]
        try:
            if path == "/":
                return 200, "text/html; charset=utf-8", self.server.page
            if path == "/snapshot.json":
                text = json.dumps(self.server.telemetry.recent().to_json(), allow_nan=False)
                return 200, "application/json", text.encode()
            if path == "/metrics":
                return 200, prometheus.CONTENT_TYPE, prometheus.exposition(self.server.telemetry)
        except Exception as e:
            # The process that is watched goes on; whoever asked sees that there is no answer.
            return 503, "text/plain; charset=utf-8", f"no snapshot: {type(e).__name__}: {e}\n".encode()
        return 404, "text/plain", b"there are /, /metrics and /snapshot.json\n"

    def _send(self, body: bool) -> None:
        status, kind, data = self._answer()
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **HEADERS}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def do_GET(self) -> None:
        """Answer with a body."""
        self._send(True)

    def do_HEAD(self) -> None:
        """Answer without one."""
        self._send(False)

    def _refuse(self) -> None:
        self.close_connection = True
        self.send_response(405)
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], telemetry: Telemetry) -> None:
        self.telemetry, self.local = telemetry, address[0] in LOCAL
        self.page = page().encode()
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking the name of this machine up."""
        import socketserver

        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours."""


class Server:
    """Serves a telemetry from a background thread until :meth:`close`.

    port : 0 takes a free one. host : an address of this machine; other than localhost, everybody who reaches it can read
    (there is nothing to write, and no request text in it). Raises WitCertError when the port is taken or not allowed.
    """

    def __init__(self, telemetry: Telemetry, port: int, host: str = "127.0.0.1") -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise InputError(f"port={port!r} is outside 0..65535")
        if not isinstance(host, str) or not host:
            raise InputError(f"host={host!r} is no address of this machine")
        prometheus.Collector(telemetry)  # the extra is there
        try:
            self._http = _Http((host, port), telemetry)
        except OSError as e:
            why = "it is taken" if e.errno == errno.EADDRINUSE else e.strerror or str(e)
            raise WitCertError(f"cannot serve on {host} port {port}: {why}") from e
        self.host, self.port = host, int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, name="witcert-telemetry-http", daemon=True)
        self._telemetry, self._stop = telemetry, threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="witcert-telemetry-history", daemon=True)
        for thread in (self._thread, self._ticker):
            thread.start()

    def _tick(self) -> None:
        """Keep the history going while nobody looks."""
        while not self._stop.wait(TICK):
            with suppress(Exception):
                self._telemetry.recent(age=TICK, wait=0.0)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://[{self.host}]:{self.port}/" if ":" in self.host else f"http://{self.host}:{self.port}/"

    def close(self) -> None:
        """Stop serving and free the port."""
        if not self._stop.is_set():
            self._stop.set()
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()
            self._ticker.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
