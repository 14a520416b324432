"""What every request goes through: how many there may be at once, how long they take, and what is said where our own
code fails."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recallflow.connectors.http.errors import Problem, body_of, own_failure, refusal
from recallflow.connectors.http.limits import Limits

PROBES = ("/livez", "/readyz", "/metrics")  # they are answered however much there is to do
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NO_ROUTE = "none"


class Traffic:
    """The numbers of requests."""

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


class Gate:
    """The app behind this one is asked while there is room."""

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
        except Exception as error:  # noqa: BLE001 one request, whatever is wrong with it, must not tell what it holds
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
    """The path as the app knows it, without what a request put into it."""
    return getattr(scope.get("route"), "path", _NO_ROUTE)
