"""POST /memory/query and POST /memory/events: any query, any event of memory; and events by the million."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from recallflow.connectors.http.asked import Described
from recallflow.connectors.http.batch import Results
from recallflow.connectors.http.bodies import check_content_type, credentials_of
from recallflow.connectors.http.door import Door, waits
from recallflow.connectors.http.openapi import LINES, json_body, operation, reference

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


def routes(door: Door) -> APIRouter:
    """The routes, for a service."""
    router = APIRouter(route_class=Described)

    @router.post("/memory/query", openapi_extra=operation("Ask", body=QUERIES, refusals=(404,)))
    async def query(request: Request) -> Response:
        return await door.ask(request, door.query(await door.body(request), credentials_of(request)))

    stored = operation("Store an event", waits=True, body=EVENTS, status=202, answer="Accepted", refusals=(404, 409))

    @router.post("/memory/events", status_code=202, openapi_extra=stored)
    async def events(request: Request) -> Response:
        waiting = waits(request)
        return await door.store(request, door.event(await door.body(request), credentials_of(request)), waits=waiting)

    lines = operation("Store many events, a line each", body={LINES: {"schema": {"type": "string"}}})
    lines["responses"]["200"] = {"description": _RESULTS, "content": {LINES: {"schema": {"type": "string"}}}}

    @router.post("/memory/events/batch", openapi_extra=lines)
    async def batch(request: Request) -> Response:
        check_content_type(request, LINES)
        door.admit(request)
        return Results(door, request, LINES)

    return router
