"""FastAPI application of the gateway."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, cast

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware

from recallflow.connectors.http import errors, explorer, mem0_routes, routes, zep_routes
from recallflow.connectors.http.handler import ORGANISATIONS_HEADER, ROUTING_HEADER, Mappings, RequestHandler
from recallflow.connectors.http.requests import Limits, PathDecoder
from recallflow.connectors.http.server import ConcurrencyLimit, RequestMetrics, TracingMiddleware
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER
from recallflow.distribution import __version__
from recallflow.service import Admission, Rollouts, Service
from recallflow.telemetry import TRACE_HEADER

# FastAPI's own spans contain URLs with parameters, and exception messages: questions and user ids.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
# Prefixes of the routes for clients of memories.sh: its SDK, and its dashboard, which uses `explore` only.
SDK_PREFIX, DASHBOARD_PREFIX = "/api/sdk/v1", "/api"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REQUEST_HEADERS = (
    "content-type", TOKEN_HEADER, KEY_HEADER, USER_HEADER, ROUTING_HEADER, ORGANISATIONS_HEADER, TRACE_HEADER,
)  # fmt: skip


def build_app(
    service: Service,
    admission: Admission,
    rollouts: Rollouts,
    limits: Limits,
    registry: CollectorRegistry,  # the metrics of /metrics
    mappings: Mappings = lambda _: {},  # the owner mappings of a tenant, for workspace routing
    origins: Sequence[str] = (),  # the web pages that may call the gateway
) -> FastAPI:
    # No documentation pages: FastAPI's load scripts from other hosts.
    app = FastAPI(title="recallflow", version=__version__, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY)
    errors.add_handlers(app)
    handler = RequestHandler(service, admission, limits, mappings)
    app.include_router(routes.probe_routes(service, registry))
    app.include_router(routes.event_routes(handler))
    app.include_router(routes.memory_routes(handler))
    explore = routes.explore_routes(handler)
    for prefix in ("", SDK_PREFIX):
        for router in (routes.graph_routes(handler), explore, routes.rollout_routes(handler, rollouts)):
            app.include_router(router, prefix=prefix)
    app.include_router(explore, prefix=DASHBOARD_PREFIX)
    for module in (explorer, mem0_routes, zep_routes):
        app.include_router(module.routes(handler))
    app.add_middleware(PathDecoder)
    app.add_middleware(ConcurrencyLimit, limits=limits, metrics=RequestMetrics(registry))
    app.add_middleware(TracingMiddleware)  # outside of the limit, so that refusals are traced too
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=METHODS, allow_headers=REQUEST_HEADERS,
            expose_headers=["retry-after"],
        )  # fmt: skip
    app.openapi = cache(partial(routes.openapi_document, app))  # type: ignore[method-assign]
    return app


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a gateway without a service: describing a route does not call it."""
    unused = cast(Any, None)
    return build_app(unused, unused, unused, Limits(), CollectorRegistry()).openapi()
