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
CLOSE_S = 0.1  # interval of checks whether the server is closed
CONNECTION_S = 5.0  # limit of a request with its response
MAX_CONNECTIONS = 32  # each has a thread and a descriptor
PASSED_SOCKET = "fd://"


class Probes(contextlib.AbstractContextManager["Probes"]):
    """Server of the probes, on a thread. /readyz answers 503 while `obstacle()` returns why it is not ready."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, obstacle: Callable[[], str]) -> None:
        """Create the server; port 0 chooses a free port. Raise UsageError if it cannot listen.

        `host` is an address, or `fd://N` for a listening socket of the parent process, which determines the port."""
        try:
            self._server = _server(host, port, _handler(registry, obstacle))
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(f"cannot serve metrics at {host}:{port}: {error}; give another port or host") from error
        self.port: int = self._server.server_address[1]
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(CLOSE_S,), daemon=True, name="recallflow-probes")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _BoundedServer(ThreadingHTTPServer):
    """Server that closes connections after `CONNECTION_S`, and the oldest ones above `MAX_CONNECTIONS`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._accepted_s: dict[socket.socket, float] = {}  # time of each connection, the oldest first
        self._lock = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._accepted_s[request] = time.monotonic()
            surplus = [*self._accepted_s][:-MAX_CONNECTIONS]
        for one in surplus:
            self._close_connection(one)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        before_s = time.monotonic() - CONNECTION_S
        with self._lock:
            late = [one for one, accepted_s in self._accepted_s.items() if accepted_s <= before_s]
        for one in late:
            self._close_connection(one)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._accepted_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # client or server closed the connection
            super().handle_error(request, client_address)

    def _close_connection(self, connection: socket.socket) -> None:
        with self._lock:
            self._accepted_s.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _server(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    if not host.startswith(PASSED_SOCKET):
        return _BoundedServer((host, port), handler)
    passed = socket.socket(fileno=int(host.removeprefix(PASSED_SOCKET)))
    server = _BoundedServer(passed.getsockname(), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = passed
    return server


def exposition(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Return content type and body of /metrics, according to the Accept header of the request."""
    encode, content_type = choose_encoder(_sort_accepted(accept))
    return content_type, encode(registry)


def _sort_accepted(accept: str) -> str:
    """Return the types of an Accept header by preference, up to plain text: the library ignores quality values. Other
    types of equal quality precede plain text, because only OpenMetrics has exemplars."""
    qualities = {one: _quality(one) for one in accept.split(",")}
    accepted = [one for one in qualities if qualities[one] > 0]
    accepted.sort(key=lambda one: (-qualities[one], _is_text(one)))
    end = next((number for number, one in enumerate(accepted, 1) if _is_text(one)), len(accepted))
    return ",".join(accepted[:end])


def _is_text(media_type: str) -> bool:
    return media_type.partition(";")[0].strip().lower() == "text/plain"


def _quality(media_type: str) -> float:
    """Return the quality value of a type; 0 is a refusal."""
    _, *parameters = media_type.replace(" ", "").lower().split(";")
    value = next((one.removeprefix("q=") for one in parameters if one.startswith("q=")), "1")
    try:
        return float(value)
    except ValueError:
        return 0.0


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
