"""Probes of a process over HTTP: /metrics, /livez, /readyz."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from recallflow.errors import UsageError

TEXT = "text/plain; charset=utf-8"
CLOSE_S = 0.1
CONNECTION_S = 5.0  # limit of a request and its response, however slow
CONNECTIONS_MOST = 32  # each has a thread and a descriptor
PASSED = "fd://"


class Probes(contextlib.AbstractContextManager["Probes"]):
    """Server of the probes, on a thread. /readyz answers 503 with the reason while `obstacle()` returns one."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, obstacle: Callable[[], str]) -> None:
        """Create the server. Raise UsageError where it cannot listen.

        Args:
            host: an address, or `fd://N` for a socket that the parent process listens at, with its port.
            port: 0 chooses a free port."""
        try:
            self._server = _server(host, port, _handler(registry, obstacle))
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(f"cannot serve metrics at {host}:{port}: {error}; give another port or host") from error
        self.port: int = self._server.server_address[1]
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(CLOSE_S,), daemon=True, name="recallflow-probes")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _BoundedServer(ThreadingHTTPServer):
    """Server that closes old connections, and the oldest connection above a limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # when each was accepted, the oldest first
        self._opening = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            self._open[request] = time.monotonic()
            surplus = [*self._open][:-CONNECTIONS_MOST]
        for one in surplus:
            self._end(one)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        before_s = time.monotonic() - CONNECTION_S
        with self._opening:
            late = [one for one, accepted_s in self._open.items() if accepted_s <= before_s]
        for one in late:
            self._end(one)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client is gone, or we closed the connection
            super().handle_error(request, client_address)

    def _end(self, connection: socket.socket) -> None:
        with self._opening:
            self._open.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _server(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    if not host.startswith(PASSED):
        return _BoundedServer((host, port), handler)
    passed = socket.socket(fileno=int(host.removeprefix(PASSED)))
    server = _BoundedServer(passed.getsockname(), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = passed
    return server


def exposition(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Return content type and body of /metrics. OpenMetrics is preferred, because only it has exemplars."""
    encode, content_type = choose_encoder(_liked(accept))
    return content_type, encode(registry)


def _liked(accept: str) -> str:
    """Return the preferred types of an Accept header, down to plain text. The library ignores quality values."""
    offered = [(one, _quality(one)) for one in accept.split(",")]
    liked = sorted((one for one in offered if one[1] > 0), key=lambda one: (-one[1], _is_text(one[0])))
    ends = next((place for place, (one, _) in enumerate(liked) if _is_text(one)), len(liked))
    return ",".join(one for one, _ in liked[: ends + 1])


def _is_text(offered: str) -> bool:
    return offered.partition(";")[0].strip().lower() == "text/plain"


def _quality(offered: str) -> float:
    """Return the quality value of a type; 0 is a refusal."""
    for parameter in offered.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _handler(registry: CollectorRegistry, obstacle: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_S

        def do_GET(self) -> None:
            match urlsplit(self.path).path:
                case "/metrics":
                    self._answer(HTTPStatus.OK, *exposition(registry, self.headers.get("Accept", "")))
                case "/livez":
                    self._answer(HTTPStatus.OK, TEXT, b"alive\n")
                case "/readyz" if reason := obstacle():
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"not ready: {reason}\n".encode())
                case "/readyz":
                    self._answer(HTTPStatus.OK, TEXT, b"ready\n")
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, TEXT, b"there are /metrics, /livez and /readyz\n")

        def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
            with contextlib.suppress(ConnectionError):  # the client has disconnected
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler
