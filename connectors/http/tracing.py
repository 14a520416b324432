"""A span for each request, as a child of the caller's, and its place in the trace as a header of the answer."""

from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recallflow.connectors.http.gate import PROBES
from recallflow.tracing import TRACE_HEADER, fail, parent_in, trace_headers, tracer

_FAILED = 500  # from here on it is our own fault
_HEADER = TRACE_HEADER.encode()
_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))


class Traced:
    """ASGI middleware. What users name (paths with ids, parameters) is in no span: only the route's template is."""

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
