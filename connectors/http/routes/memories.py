"""/memories and /episodes: a user's memories as things that have an address."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from recallflow.connectors.http.asked import Described
from recallflow.connectors.http.bodies import credentials_of, with_fields
from recallflow.connectors.http.door import Door, accepted, waits
from recallflow.connectors.http.openapi import json_body, operation, reference
from recallflow.connectors.http.parameters import Parameters
from recallflow.events import Event, MemoryForget, MemoryUpdate
from recallflow.queries import EpisodesList, MemoriesList, MemoryGet, MemoryHistory
from recallflow.service import check_forgotten

_ID = ("memory_id",)
_GET, _HISTORY = Parameters(MemoryGet, in_path=_ID), Parameters(MemoryHistory, in_path=_ID)
_UPDATE, _FORGET = (Parameters(model, only=Event.model_fields, in_path=_ID) for model in (MemoryUpdate, MemoryForget))
_EPISODES, _LIST = Parameters(EpisodesList), Parameters(MemoriesList)
_CHANGES = json_body(reference("MemoryFields"), change={"content": "Ann is allergic to nuts.", "tags": ["health"]})
_FOUND = (404,)


def routes(door: Door) -> APIRouter:
    """The routes, for a service."""
    router = APIRouter(route_class=Described)
    one = "/memories/{memory_id}"

    @router.get("/memories", openapi_extra=operation("Memories, the newest first", parameters=_LIST))
    async def memories(request: Request) -> Response:
        return await door.ask(request, door.query(_LIST.event(request), credentials_of(request)))

    @router.get(one, openapi_extra=operation("One memory", parameters=_GET, refusals=_FOUND))
    async def get(request: Request) -> Response:
        return await door.ask(request, door.query(_GET.event(request, **request.path_params), credentials_of(request)))

    @router.get(f"{one}/history", openapi_extra=operation("Its versions", parameters=_HISTORY, refusals=_FOUND))
    async def history(request: Request) -> Response:
        asked = _HISTORY.event(request, **request.path_params)
        return await door.ask(request, door.query(asked, credentials_of(request)))

    changed = operation("Change it", parameters=_UPDATE, waits=True, body=_CHANGES, status=202, answer="Accepted",
                        refusals=(404, 409))  # fmt: skip

    @router.patch(one, status_code=202, openapi_extra=changed)
    async def update(request: Request) -> Response:
        scope, waiting = _UPDATE.fields(request, **request.path_params), waits(request)
        event = door.event(with_fields(await door.body(request), scope), credentials_of(request))
        return await door.store(request, event, waits=waiting)

    forgotten = operation("Forget it, for good", parameters=_FORGET, waits=True, status=202, answer="Accepted",
                          refusals=(404, 409))  # fmt: skip

    @router.delete(one, status_code=202, openapi_extra=forgotten)
    async def forget(request: Request) -> Response:
        waiting = waits(request)
        event = door.event(_FORGET.event(request, **request.path_params), credentials_of(request))
        stored = await door.stored(request, event, waits=waiting)
        check_forgotten(stored.receipt)
        return accepted(stored)

    @router.get("/episodes", openapi_extra=operation("Episodes, the newest first", parameters=_EPISODES))
    async def episodes(request: Request) -> Response:
        return await door.ask(request, door.query(_EPISODES.event(request), credentials_of(request)))

    return router
