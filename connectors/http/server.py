"""HTTP/1.1 server of the gateway, and the middleware of every request: limits, metrics, error responses and spans."""

import asyncio
import logging
import os
import signal
import socket
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from ipaddress import ip_address
from itertools import chain
from typing import Any

import uvicorn
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from recallflow import process
from recallflow.connectors.http.errors import Problem, body_of, own_failure, refusal
from recallflow.connectors.http.requests import Limits
from recallflow.errors import UsageError
from recallflow.responses import ErrorBody
from recallflow.telemetry import TRACE_HEADER, fail, parent_in, trace_headers, tracer

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_MISDIRECTED = ErrorBody(
    code="misdirected",
    message="host: this server listens on this machine only, and accepts the hosts localhost, 127.0.0.1, [::1] and its "
    "--host; send one of them in the Host header, and configure proxies to do so",
)
PROBES = ("/livez", "/readyz", "/metrics")  # answered under any load
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NO_ROUTE = "none"
_TRACE_HEADER = TRACE_HEADER.encode()
_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))


def restrict_hosts(app: ASGIApp, listening: socket.socket, host: str) -> ASGIApp:
    """Wrap an app on a loopback socket so that it accepts local host names and `host` only, against DNS rebinding."""
    address = listening.getsockname()[0]
    if not is_loopback(address):
        return app
    names = LOCAL_HOSTS | {bracketed(address), bracketed(host)}

    async def restricted(scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1").lower() for name, value in scope.get("headers", ()) if name == b"host"]
        accepted = scope["type"] != "http" or (hosts and all(_without_port(one) in names for one in hosts))
        await (app if accepted else refusal(_MISDIRECTED))(scope, receive, send)

    return restricted


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address. A name other than localhost may be public."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracketed(host: str) -> str:
    """Return a host for use before a port: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host.lower()


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and not port.endswith("]") else host


HEADERS_BYTES = 64 * 1024  # size limit of the request line and headers
HEADERS_S = 10.0  # time limit for complete headers, and of an idle connection without an admitted request
KEEP_ALIVE_S = 75  # longer than the minute of most proxies: they must not reuse a connection that is closed
UNREAD_S = 30.0  # total time that a client may leave a response unread
READ_BYTES_PER_S = 16 * 1024  # a client that reads a long response at least this fast has more time
DRAINED_BYTES = 48 * 1024  # a client has read this many when writing resumes: the distance of uvloop's water marks
_ADMITTED = "recallflow.admitted"  # key in a request's state
LOG_INTERVAL_S = 60.0
_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b'content-length: 79\r\n\r\n{"error":{"code":"unavailable","message":"too many connections: try it again"}}'
)
_log = logging.getLogger(__name__)


def mark_admitted(scope: Scope) -> None:
    """Note that a request's credentials are valid: its connection may stay open longer."""
    scope.setdefault("state", {})[_ADMITTED] = True


class ConnectionPool:
    """Idle connections of a server, and the limit of open ones. A connection is idle while it has no request in
    flight. Above the limit, the longest idle connection is closed for each new one, but first those without an admitted
    request."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._unadmitted: dict[HttpConnection, None] = {}  # in the order in which they became idle
        self._admitted: dict[HttpConnection, None] = {}
        self._logged_s = float("-inf")

    def add_idle(self, connection: "HttpConnection") -> None:
        (self._admitted if connection.is_admitted else self._unadmitted)[connection] = None

    def remove(self, connection: "HttpConnection") -> None:
        self._unadmitted.pop(connection, None)
        self._admitted.pop(connection, None)

    def make_room(self) -> bool:
        """Close an idle connection. Return False if there is none."""
        if (now_s := time.monotonic()) >= self._logged_s + LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.warning("%s connections are open, which is the limit: idle ones are closed", f"{self.limit:,}")
        connection = next(chain(self._unadmitted, self._admitted), None)
        if connection is not None:
            self.remove(connection)
            connection.transport.abort()
        return connection is not None


class HttpConnection(HttpToolsProtocol):
    """Connection with limits: of its headers in time and size, of unread responses, and of its idle time."""

    def __init__(self, pool: ConnectionPool, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_admitted = False  # a request of this connection was admitted
        self._pool = pool
        self._is_in_headers = False  # of a request
        self._headers_bytes = 0
        self._headers_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread_since_s = 0.0
        self._unread_left_s = UNREAD_S  # remaining time in which the response may be unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._pool.limit and not self._pool.make_room():
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
            return
        self._pool.add_idle(self)
        self._limit_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self)
        for timer in (self._headers_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_headers:
            self._headers_bytes += len(data)
            if self._headers_bytes > HEADERS_BYTES:
                self.transport.close()
        elif self.cycle is None or self.cycle.response_complete:
            self._limit_headers()  # bytes between two requests, or the rest of a body that is not read

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_headers, self._headers_bytes = True, 0
        self._limit_headers()

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._pool.remove(self)
        self._unread_left_s = UNREAD_S
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.is_admitted = self.is_admitted or _ADMITTED in self.cycle.scope["state"]
        self.timeout_keep_alive = KEEP_ALIVE_S if self.is_admitted else HEADERS_S  # type: ignore[assignment]
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._pool.add_idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since_s = self.loop.time()
        self._unread_timer = self.loop.call_later(self._unread_left_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
            unread_s = self.loop.time() - self._unread_since_s
            self._unread_left_s = min(UNREAD_S, self._unread_left_s - unread_s + DRAINED_BYTES / READ_BYTES_PER_S)

    def _limit_headers(self) -> None:
        """Close the connection unless complete headers arrive in time."""
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(HEADERS_S, self.transport.close)


class Server(uvicorn.Server):
    """Server until `should_exit` is set. Its caller handles signals: uvicorn's handler loses the exit code."""

    def __init__(self, app: ASGIApp, stop_timeout_s: float) -> None:
        protocol: Any = partial(HttpConnection, ConnectionPool(process.max_connections()))
        config = uvicorn.Config(
            app, loop="uvloop", http=protocol, ws="none", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, backlog=process.max_backlog(), timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_timeout_s,  # type: ignore[arg-type] # uvicorn also takes a fraction
        )  # fmt: skip
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.warning("stopping after the requests in progress; a second signal stops at once")
        await super().shutdown(sockets)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port. Raise UsageError where it cannot listen."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=process.max_backlog())
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen at {host}:{port}: {error}; give another port or host") from error


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{bracketed(host)}:{port}"


def serve(app: ASGIApp, listening: socket.socket, host: str, stop_timeout_s: float) -> None:
    """Serve until SIGTERM or SIGINT, then finish requests in flight for at most `stop_timeout_s`."""
    server = Server(restrict_hosts(app, listening, host), stop_timeout_s)

    def stop(number: int, _: object) -> None:
        if server.should_exit:
            os._exit(128 + number)
        server.should_exit = True  # no log call here: the signal may interrupt one

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it logs each malformed request
    _log.info("serving at %s", address(listening))
    server.run([listening])


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        labels, text = ("route", "method", "status"), "Time until a request was answered"
        self.requests = Counter("recallflow_http_requests", "Requests answered", labels, registry=registry)
        name = "recallflow_http_request_seconds"
        self.seconds = Histogram(name, text, labels[:1], buckets=_BOUNDS_S, registry=registry)
        self.in_progress = Gauge("recallflow_http_requests_under_way", "Requests under way", registry=registry)


class ConcurrencyLimit:
    """ASGI middleware that refuses requests above a number in progress, and counts all. Probes pass without either."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: RequestMetrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        status, began_s = 0, time.perf_counter()

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._in_progress += 1
        self._metrics.in_progress.inc()
        try:
            if self._in_progress > self._limits.concurrency:
                problem = Problem("too_many_requests", "too many requests are in progress: send it again in a second")
                await refusal(body_of(problem))(scope, receive, send_noting_status)
            else:
                await self._app(scope, receive, send_noting_status)
        except Exception as error:  # noqa: BLE001 an error of a request must not reveal the request's content
            body = own_failure(route_of(scope), error)
            if not status:
                await refusal(body)(scope, receive, send_noting_status)
        finally:
            self._in_progress -= 1
            self._metrics.in_progress.dec()
            route = route_of(scope)
            self._metrics.requests.labels(route, scope["method"], status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began_s)


def route_of(scope: Scope) -> str:
    """Return the route's template, without the values of the request."""
    return getattr(scope.get("route"), "path", _NO_ROUTE)


class TracingMiddleware:
    """ASGI middleware for spans. They contain the route's template, and no ids or parameters of users."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        headers = tuple((name.decode("latin-1"), value) for name, value in scope["headers"] if name == _TRACE_HEADER)
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = tracer.start_span(method, parent_in(headers), SpanKind.SERVER, {"http.request.method": method})

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                if (path := route_of(scope)) != _NO_ROUTE:
                    span.update_name(f"{method} {path}")
                    span.set_attribute("http.route", path)
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    fail(span, str(message["status"]))
                names = [(name.encode(), value) for name, value in trace_headers() if value is not None]
                message = {**message, "headers": [*message.get("headers", ()), *names]}
            await send(message)

        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                await self._app(scope, receive, send_traced)
            except Exception as error:
                fail(span, type(error).__name__)
                raise
