"""GET /livez, /readyz and /metrics: what a supervisor and Prometheus ask."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry

from recallflow.connectors.probes import exposition
from recallflow.service import Service


def routes(service: Service, registry: CollectorRegistry) -> APIRouter:
    """The routes, for a service and the numbers that are kept of it."""
    router = APIRouter()

    @router.get("/livez", response_class=PlainTextResponse)
    async def livez() -> Response:
        if reason := service.stopped():
            return PlainTextResponse(f"not alive: {reason}\n", 503)
        return PlainTextResponse("alive\n")

    @router.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        if reason := service.obstacle():
            return PlainTextResponse(f"not ready: {reason}\n", 503)
        return PlainTextResponse("ready\n")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        content_type, body = exposition(registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return router
