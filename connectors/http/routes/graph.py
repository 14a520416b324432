"""/graph/…: what the graph is made of, what it adds to an answer, and whether it may."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from recallflow.connectors.http.asked import Described
from recallflow.connectors.http.bodies import credentials_of, with_fields
from recallflow.connectors.http.door import Door
from recallflow.connectors.http.errors import Problem
from recallflow.connectors.http.openapi import json_body, operation, reference
from recallflow.connectors.http.parameters import Parameters
from recallflow.connectors.http.routes.memory import ANN
from recallflow.parsing import raw_query
from recallflow.queries import GraphExplore, GraphStatus, GraphTrace

_FOUND = (404,)  # where nothing is called by a name that is asked for
_STATUS, _TRACE, _EXPLORE = Parameters(GraphStatus), Parameters(GraphTrace), Parameters(GraphExplore)
_TRACED = json_body(reference("GraphTrace"), trace={"type": "graph.trace", **ANN, "query": "What can't Ann eat?"})
_EXPLORED = json_body(reference("GraphExplore"), around={"type": "graph.explore", **ANN, "nodes": ["Ann"], "hops": 2})


def routes(door: Door) -> APIRouter:
    """The routes, for a service."""
    router = APIRouter(route_class=Described)

    @router.get("/graph/status", openapi_extra=operation("The graph in numbers, and its rollout", parameters=_STATUS))
    async def status(request: Request) -> Response:
        return await door.ask(request, door.query(_STATUS.event(request), credentials_of(request)))

    @router.get("/graph/trace", openapi_extra=operation("What the graph adds to an answer", parameters=_TRACE))
    async def trace(request: Request) -> Response:
        return await door.ask(request, door.query(_TRACE.event(request), credentials_of(request)))

    @router.post("/graph/trace", openapi_extra=operation("The same, with any filters", body=_TRACED))
    async def post_trace(request: Request) -> Response:
        return await _ask_typed(door, request, _TRACE.type)

    return router


def explore_routes(door: Door) -> APIRouter:
    """Return the routes of the explorer's query, which are known under more prefixes than the others."""
    router = APIRouter(route_class=Described)

    @router.get("/graph/explore", openapi_extra=operation("A part of the graph", parameters=_EXPLORE, refusals=_FOUND))
    async def explore(request: Request) -> Response:
        return await door.ask(request, door.query(_EXPLORE.event(request), credentials_of(request)))

    @router.post("/graph/explore", openapi_extra=operation("The same, of many nodes", body=_EXPLORED, refusals=_FOUND))
    async def post_explore(request: Request) -> Response:
        return await _ask_typed(door, request, _EXPLORE.type)

    return router


async def _ask_typed(door: Door, request: Request, kind: str) -> Response:
    """Asks a query of one type, which its body need not name."""
    body = await door.body(request)
    query = door.query(body if raw_query(body) else with_fields(body, {"type": kind}), credentials_of(request))
    if query.type != kind:
        raise Problem("invalid_event", f"give {kind}, or leave it out; POST /memory/query takes any", "type")
    return await door.ask(request, query)
