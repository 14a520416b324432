"""Routes of the gateway: probes, queries and events, memories and episodes, the graph and its rollout."""

import time
from collections.abc import Sequence
from typing import cast

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.errors import JSON, Problem
from recallflow.connectors.http.handler import ACCEPTED, RequestHandler, Results, accepted, waits
from recallflow.connectors.http.openapi import LINES, json_body, operation, reference
from recallflow.connectors.http.requests import (
    DescribedRoute,
    Parameters,
    check_content_type,
    credentials_of,
    with_fields,
)
from recallflow.connectors.probes import exposition
from recallflow.control import DEFAULT, Rollout
from recallflow.events import Event, MemoryForget, MemoryUpdate
from recallflow.parsing import parse_control, raw_query
from recallflow.queries import (
    EpisodesList,
    GraphExplore,
    GraphStatus,
    GraphTrace,
    MemoriesList,
    MemoryGet,
    MemoryHistory,
)
from recallflow.service import Rollouts, Service, check_forgotten


def probe_routes(service: Service, registry: CollectorRegistry) -> APIRouter:
    """Return the routes of /livez, /readyz and /metrics."""
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


ANN = {"tenant_id": "acme", "user_id": "ann"}
QUERIES = json_body(
    reference("QueryEvent"),
    recall={"type": "recall", **ANN, "query": "What can't Ann eat?", "k": 5},
    one_memory={"type": "memory.get", **ANN, "memory_id": "m-1"},
    what_she_has={"type": "user.stats", **ANN},
)
EVENTS = json_body(
    reference("MemoryEvent"),
    message={"type": "message", **ANN, "session_id": "s-1", "role": "user", "content": "I am allergic to peanuts."},
    fact={"type": "memory", **ANN, "id": "m-1", "content": "Ann is allergic to peanuts.", "kind": "fact"},
    forget={"type": "memory.forget", **ANN, "memory_id": "m-1"},
)
_RESULTS = "one line for each event, in their order: `line`, and `position` or `error`"


def event_routes(handler: RequestHandler) -> APIRouter:
    """Return the routes of /memory/query, /memory/events and /memory/events/batch."""
    router = APIRouter(route_class=DescribedRoute)

    @router.post("/memory/query", openapi_extra=operation("Ask", body=QUERIES, refusals=(404,)))
    async def query(request: Request) -> Response:
        return await handler.ask(request, handler.query(await handler.body(request), credentials_of(request)))

    stored = operation("Store an event", waits=True, body=EVENTS, status=202, answer="Accepted", refusals=(404, 409))

    @router.post("/memory/events", status_code=202, openapi_extra=stored)
    async def events(request: Request) -> Response:
        waiting = waits(request)
        return await handler.store(
            request, handler.event(await handler.body(request), credentials_of(request)), waits=waiting
        )

    lines = operation("Store many events, a line each", body={LINES: {"schema": {"type": "string"}}})
    lines["responses"]["200"] = {"description": _RESULTS, "content": {LINES: {"schema": {"type": "string"}}}}

    @router.post("/memory/events/batch", openapi_extra=lines)
    async def batch(request: Request) -> Response:
        check_content_type(request, LINES)
        handler.admit(request)
        return Results(handler, request, LINES)

    return router


_MEMORY_ID = ("memory_id",)
_UPDATE, _FORGET = (
    Parameters(model, only=Event.model_fields, in_path=_MEMORY_ID) for model in (MemoryUpdate, MemoryForget)
)
_CHANGES = json_body(reference("MemoryFields"), change={"content": "Ann is allergic to nuts.", "tags": ["health"]})
_FOUND, _STORED = (404,), (404, 409)


def _add_query(
    router: APIRouter,
    handler: RequestHandler,
    path: str,
    name: str,
    parameters: Parameters,
    summary: str,
    refusals: Sequence[int] = (),
) -> None:
    """Add a GET route for a query that path and parameters describe."""

    async def ask(request: Request) -> Response:
        body = parameters.event(request, **request.path_params)
        return await handler.ask(request, handler.query(body, credentials_of(request)))

    described = operation(summary, parameters=parameters, refusals=refusals)
    router.add_api_route(path, ask, name=name, methods=["GET"], openapi_extra=described)


def memory_routes(handler: RequestHandler) -> APIRouter:
    """Return the routes of /memories and /episodes."""
    router = APIRouter(route_class=DescribedRoute)
    one = "/memories/{memory_id}"
    get, history = (Parameters(model, in_path=_MEMORY_ID) for model in (MemoryGet, MemoryHistory))
    _add_query(router, handler, "/memories", "memories", Parameters(MemoriesList), "Memories, the newest first")
    _add_query(router, handler, one, "get", get, "One memory", _FOUND)
    _add_query(router, handler, f"{one}/history", "history", history, "Its versions", _FOUND)

    changed = operation(
        "Change it", parameters=_UPDATE, waits=True, body=_CHANGES, status=202, answer="Accepted", refusals=_STORED
    )

    @router.patch(one, status_code=202, openapi_extra=changed)
    async def update(request: Request) -> Response:
        scope, waiting = _UPDATE.fields(request, **request.path_params), waits(request)
        event = handler.event(with_fields(await handler.body(request), scope), credentials_of(request))
        return await handler.store(request, event, waits=waiting)

    forgotten = operation(
        "Forget it, for good", parameters=_FORGET, waits=True, status=202, answer="Accepted", refusals=_STORED
    )

    @router.delete(one, status_code=202, openapi_extra=forgotten)
    async def forget(request: Request) -> Response:
        waiting = waits(request)
        event = handler.event(_FORGET.event(request, **request.path_params), credentials_of(request))
        stored = await handler.stored(request, event, waits=waiting)
        check_forgotten(stored.receipt)
        return accepted(stored)

    _add_query(router, handler, "/episodes", "episodes", Parameters(EpisodesList), "Episodes, the newest first")
    return router


_TRACED = json_body(reference("GraphTrace"), trace={"type": "graph.trace", **ANN, "query": "What can't Ann eat?"})
_EXPLORED = json_body(reference("GraphExplore"), around={"type": "graph.explore", **ANN, "nodes": ["Ann"], "hops": 2})


def graph_routes(handler: RequestHandler) -> APIRouter:
    """Return the routes of /graph/status and /graph/trace."""
    router = APIRouter(route_class=DescribedRoute)
    status, trace = Parameters(GraphStatus), Parameters(GraphTrace)
    _add_query(router, handler, "/graph/status", "status", status, "The graph in numbers, and its rollout")
    _add_query(router, handler, "/graph/trace", "trace", trace, "What the graph adds to an answer")

    @router.post("/graph/trace", openapi_extra=operation("The same, with any filters", body=_TRACED))
    async def post_trace(request: Request) -> Response:
        return await _ask_typed(handler, request, trace.type)

    return router


def explore_routes(handler: RequestHandler) -> APIRouter:
    """Return the routes of /graph/explore, which are mounted under more prefixes than the others."""
    router = APIRouter(route_class=DescribedRoute)
    explore = Parameters(GraphExplore)
    _add_query(router, handler, "/graph/explore", "explore", explore, "A part of the graph", _FOUND)

    @router.post("/graph/explore", openapi_extra=operation("The same, of many nodes", body=_EXPLORED, refusals=_FOUND))
    async def post_explore(request: Request) -> Response:
        return await _ask_typed(handler, request, explore.type)

    return router


async def _ask_typed(handler: RequestHandler, request: Request, kind: str) -> Response:
    """Answer a query of one type; its body may omit the type."""
    body = await handler.body(request)
    query = handler.query(body if raw_query(body) else with_fields(body, {"type": kind}), credentials_of(request))
    if query.type != kind:
        raise Problem("invalid_event", f"give {kind}, or leave it out; POST /memory/query takes any", "type")
    return await handler.ask(request, query)


_TENANT_PARAMETERS = Parameters(Rollout, only=("tenant_id",))
_DECISION = json_body(
    reference("RolloutDecision"),
    shadow={"tenant_id": "acme", "mode": "shadow", "by": "kim", "why": "measure it for a week"},
)


def rollout_routes(handler: RequestHandler, rollouts: Rollouts) -> APIRouter:
    """Return the routes of /graph/rollout."""
    router = APIRouter(route_class=DescribedRoute)
    shown = operation(
        "What was decided of a tenant's graph", parameters=_TENANT_PARAMETERS, answer="RolloutShown", routed=False
    )

    @router.get("/graph/rollout", openapi_extra=shown)
    async def state(request: Request) -> Response:
        fields = _TENANT_PARAMETERS.fields(request)
        if "tenant_id" not in fields:
            raise Problem("invalid_event", "is missing", "tenant_id")
        found = rollouts.state(fields["tenant_id"], credentials_of(request))
        return Response(found.model_dump_json(), media_type=JSON)

    decided = operation("Decide it anew", body=_DECISION, status=202, answer="RolloutDecision", routed=False)

    @router.post("/graph/rollout", status_code=202, openapi_extra=decided)
    async def decide(request: Request) -> Response:
        now_ms = time.time_ns() // 1_000_000
        fields = {"type": "graph.rollout", "name": DEFAULT, "timestamp": now_ms}
        rollout = cast(Rollout, parse_control(with_fields(await handler.body(request), fields)))
        for name in ("by", "why"):
            if not getattr(rollout, name):
                raise Problem("invalid_event", "is missing: decisions are kept, with who made them and why", name)
        await rollouts.decide(rollout, credentials_of(request), handler.limits.timeout_s)
        content = {name: getattr(rollout, name) for name in ("tenant_id", "mode", "by", "why")}
        return Response(orjson.dumps(content), ACCEPTED, media_type=JSON)

    return router
