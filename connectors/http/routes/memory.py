"""POST /memory/query and POST /memory/events: any query, any event of memory."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from recallflow.connectors.http.door import Door, parse_event, parse_query
from recallflow.connectors.http.errors import Problem

WAITS = {None: False, "stored": False, "applied": True}


def routes(door: Door) -> APIRouter:
    """The routes, for a service."""
    router = APIRouter()

    @router.post("/memory/query")
    async def query(request: Request) -> Response:
        return await door.ask(request, parse_query(await door.body(request)))

    @router.post("/memory/events", status_code=202)
    async def events(request: Request) -> Response:
        wait = request.query_params.get("wait")
        if wait not in WAITS:
            raise Problem("invalid_event", "give stored or applied", "wait")
        return await door.store(request, parse_event(await door.body(request)), waits=WAITS[wait])

    return router
