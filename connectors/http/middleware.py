"""Middleware of every request: concurrency limit, metrics, error responses and spans."""

import time
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recallflow.connectors.http.errors import Problem, body_of, own_failure, refusal
from recallflow.connectors.http.requests import Limits
from recallflow.tracing import TRACE_HEADER, fail, parent_in, trace_headers, tracer

PROBES = ("/livez", "/readyz", "/metrics")  # answered under any load
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NO_ROUTE = "none"


class Traffic:
    """Metrics of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "recallflow_http_requests", "Requests answered", ("route", "method", "status"), registry=registry
        )
        self.seconds = Histogram(
            "recallflow_http_request_seconds",
            "Time until a request was answered",
            ("route",),
            buckets=_BOUNDS_S,
            registry=registry,
        )
        self.under_way = Gauge("recallflow_http_requests_under_way", "Requests under way", registry=registry)


class ConcurrencyLimit:
    """Concurrency limit: requests above it are refused."""

    def __init__(self, app: ASGIApp, limits: Limits, traffic: Traffic) -> None:
        self._app, self._limits, self._traffic = app, limits, traffic
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        status, began_s = 0, time.perf_counter()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._under_way += 1
        self._traffic.under_way.inc()
        try:
            if self._under_way > self._limits.concurrency:
                problem = Problem("too_many_requests", "too many requests are under way: come back in a second")
                await refusal(body_of(problem))(scope, receive, note)
            else:
                await self._app(scope, receive, note)
        except Exception as error:  # noqa: BLE001 an error of a request must not reveal the request's content
            body = own_failure(route_of(scope), error)
            if not status:
                await refusal(body)(scope, receive, note)
        finally:
            self._under_way -= 1
            self._traffic.under_way.dec()
            route = route_of(scope)
            self._traffic.requests.labels(route, scope["method"], status).inc()
            self._traffic.seconds.labels(route).observe(time.perf_counter() - began_s)


def route_of(scope: Scope) -> str:
    """Return the route's template, without the values of the request."""
    return getattr(scope.get("route"), "path", _NO_ROUTE)


_FAILED = 500  # statuses from here on are server errors
_HEADER = TRACE_HEADER.encode()
_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))


class Traced:
    """ASGI middleware for spans. They contain the route's template, and no ids or parameters of users."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        given = tuple((name.decode("latin-1"), value) for name, value in scope["headers"] if name == _HEADER)
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = tracer.start_span(method, parent_in(given), SpanKind.SERVER, {"http.request.method": method})

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                _tell(span, method, scope, message["status"])
                names = [(name.encode(), value) for name, value in trace_headers() if value is not None]
                message = {**message, "headers": [*message.get("headers", ()), *names]}
            await send(message)

        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                await self._app(scope, receive, send_traced)
            except Exception as error:
                fail(span, type(error).__name__)
                raise


def _tell(span: trace.Span, method: str, scope: Scope, status: int) -> None:
    route: Any = scope.get("route")
    if (path := getattr(route, "path", None)) is not None:
        span.update_name(f"{method} {path}")
        span.set_attribute("http.route", path)
    span.set_attribute("http.response.status_code", status)
    if status >= _FAILED:
        fail(span, str(status))
