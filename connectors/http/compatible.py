"""Common parts of the interfaces of mem0 and Zep: calls of the service, errors, and routes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from recallflow import responses
from recallflow.connectors.http.errors import JSON
from recallflow.connectors.http.handler import RequestHandler
from recallflow.connectors.http.mem0_requests import PAGE_MAX, invalid, read
from recallflow.connectors.http.requests import CheckedRoute, credentials_of
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER
from recallflow.events import PRODUCTION, MemoryEvent
from recallflow.fields import EPOCH_MS_MAX, format_time
from recallflow.parsing import parse
from recallflow.responses import MemoryPage, QueryFailed, Receipt

_SCHEMES = (b"token ", b"api-key ")  # prefixes of API keys of mem0 and Zep in the Authorization header
PAGED_MEMORIES_MAX = 20_000  # of an owner, readable by page number: each page reads all earlier ones
EVERYTHING = {"older_than": format_time(EPOCH_MS_MAX)}  # filter of memories to forget
Operation = Callable[[Any], Awaitable[Any]]
Operations = Sequence[tuple[str, Operation, type[BaseModel]]]  # methods and paths, and the model of URL parameters


class ClientCalls:
    """Calls of the service for a request. Its path names the tenant; `parameters` are its parsed URL parameters."""

    def __init__(self, handler: RequestHandler, request: Request, parameters: Any) -> None:
        self._handler, self.request, self.parameters = handler, request, parameters
        self.tenant_id = request.path_params["tenant_id"]
        self.environment = request.path_params.get("environment", PRODUCTION)
        self._headers = tuple(map(_converted_header, credentials_of(request)))

    async def body(self) -> bytes:
        return await self._handler.body(self.request, self._headers)

    async def ask(self, user_id: str, fields: dict[str, Any]) -> responses.Response:
        """Return the response to a query. Raise RecallflowError, also for an error response."""
        return (await self._handler.answer(self._event(user_id, fields), self._headers)).checked()

    async def apply(self, user_id: str, events: Sequence[dict[str, Any]]) -> list[tuple[MemoryEvent, Receipt | None]]:
        """Store events in order, and wait for each receipt; check all events before storing the first. A receipt
        that does not come in time is None. Raise RecallflowError."""
        checked: list[MemoryEvent] = [self.check(user_id, fields) for fields in events]
        service, timeout_s = self._handler.service, self._handler.limits.timeout_s
        with self._handler.slot(self.tenant_id):
            return [(event, (await service.apply(event, self._headers, timeout_s)).receipt) for event in checked]

    async def version(self, user_id: str, memory_id: str) -> dict[str, Any]:
        response = await self.ask(user_id, {"type": "memory.get", "memory_id": memory_id})
        return (response.versions or [{}])[0]

    async def recall(self, user_id: str, query: str, min_score: float = 0.0, **fields: Any) -> list[dict[str, Any]]:
        """Return the current versions of the best memories with their owners and scores."""
        response = await self.ask(user_id, {"type": "recall", "query": query, **fields})
        scores = {memory.id: memory.relevance for memory in response.memories or [] if memory.relevance >= min_score}
        versions = await asyncio.gather(*(self._version_if_any(user_id, memory_id) for memory_id in scores))
        return [one | {"score": scores[one["id"]], "owner": user_id} for one in versions if one is not None]

    async def _version_if_any(self, user_id: str, memory_id: str) -> dict[str, Any] | None:
        try:
            return await self.version(user_id, memory_id)
        except QueryFailed as error:
            if error.error.code == "not_found":
                return None
            raise

    def check(self, user_id: str, fields: dict[str, Any]) -> Any:
        """Return an event of a user, once it and the credentials are valid. Raise InvalidRecord."""
        event = self._event(user_id, fields)
        self._handler.admission.check(event, self._headers)
        return event

    def _event(self, user_id: str, fields: dict[str, Any]) -> Any:
        try:
            scope = {"tenant_id": self.tenant_id, "environment": self.environment, "user_id": user_id}
            return parse(orjson.dumps(fields | scope))
        except orjson.JSONEncodeError as error:
            raise invalid("", f"cannot be written as JSON: {error}") from None


def _converted_header(header: tuple[str, bytes | None]) -> tuple[str, bytes | None]:
    """Return a header; an `authorization` with an API key becomes an `x-api-key`."""
    name, value = header
    if name == TOKEN_HEADER and value is not None and value.lower().startswith(_SCHEMES):
        return KEY_HEADER, value.partition(b" ")[2].strip(b" ")
    return header


async def pages(calls: ClientCalls, user_id: str, filters: dict[str, Any], limit: int) -> AsyncIterator[MemoryPage]:
    """Yield the pages of an owner's memories, up to a number of memories."""
    query: dict[str, Any] = {"type": "memories.list", "filters": filters}
    while limit > 0 and (page := (await calls.ask(user_id, query | {"limit": min(limit, PAGE_MAX)})).memory_page):
        yield page
        limit, query["after"] = limit - len(page.memories), page.after
        if page.after is None:
            return


def routes(
    handler: RequestHandler, product: str, calls: type[ClientCalls], error_field: str, operations: Operations
) -> APIRouter:
    """Return the routes of a product's interface below /PRODUCT/TENANT; all other paths there answer 501. `error_field`
    is the product's field for the message of an error."""

    class Route(CheckedRoute):
        message_field = error_field

    name = product.lower()
    router = APIRouter(route_class=Route, include_in_schema=False)

    async def answer(operation: Operation, parameters: type[BaseModel], request: Request) -> Response:
        content = await operation(calls(handler, request, read(parameters, request.query_params)))
        return Response(orjson.dumps(content), media_type=JSON)

    async def refuse(request: Request) -> Response:
        problem = f"{request.method} {request.url.path} of {product} is not supported"
        remedy = f"the client's URL must end in /{name}/TENANT; docs/how-to/{name}-clients.md lists what is supported"
        return Response(orjson.dumps({error_field: f"{problem}; {remedy}"}), 501, media_type=JSON)

    # Routes are tried in order. The second prefix also matches the paths of the first, and so it is added later.
    for prefix in (f"/{name}/{{tenant_id}}/environments/{{environment}}", f"/{name}/{{tenant_id}}"):
        for methods_and_paths, operation, parameters in operations:
            for one in methods_and_paths.split(", "):
                method, path = one.split(" ")
                router.add_api_route(prefix + path, partial(answer, operation, parameters), methods=[method])
        router.add_api_route(prefix + "/{rest:path}", refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    return router
