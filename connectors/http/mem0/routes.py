"""Routes of mem0's REST interface, below /mem0/TENANT: the routes of its platform and of its open-source server."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from recallflow.connectors.http.errors import JSON, Problem, body_of, headers_of, status_of
from recallflow.connectors.http.handler import RequestHandler
from recallflow.connectors.http.mem0 import operations, requests
from recallflow.connectors.http.mem0.operations import Mem0Calls
from recallflow.connectors.http.requests import AddressedRoute
from recallflow.errors import QueryFailed, RecallflowError

# The second prefix also matches paths of the first, so the first comes first.
PREFIXES = ("/mem0/{tenant_id}/environments/{environment}", "/mem0/{tenant_id}")
Operation = Callable[[Mem0Calls, Request], Awaitable[Any]]


class _Answered(AddressedRoute):
    """Route whose errors contain `detail`, which mem0's clients read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except RecallflowError as error:
                body = error.error if isinstance(error, QueryFailed) else body_of(error)
                content = {"detail": body.message, "error": body.model_dump(exclude={"truncated"})}
                return Response(orjson.dumps(content), status_of(body.code), headers_of(body.code), JSON)

        return answered


def routes(door: RequestHandler) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    for prefix in PREFIXES:
        router.include_router(_below(prefix, door))
    return router


def _below(prefix: str, door: RequestHandler) -> APIRouter:
    router = APIRouter(prefix=prefix, route_class=_Answered, include_in_schema=False)

    def add(
        methods_and_paths: str, operation: Operation, parameters: type[BaseModel] = requests.IgnoredParameters
    ) -> None:
        """Add one operation under its paths. `parameters` is the model of its URL parameters."""

        async def answer(request: Request) -> Response:
            requests.read_parameters(parameters, request.query_params)
            content = await operation(Mem0Calls(door, request), request)
            return Response(orjson.dumps(content), media_type=JSON)

        for one in methods_and_paths.split(", "):
            method, path = one.split(" ")
            router.add_api_route(path, answer, methods=[method])

    async def add_memories(calls: Mem0Calls, request: Request) -> Any:
        return await operations.add(calls, requests.read(requests.Add, await calls.body(request)))

    async def search(calls: Mem0Calls, request: Request) -> Any:
        return await operations.search(calls, requests.read(requests.Search, await calls.body(request)))

    async def get_all(calls: Mem0Calls, request: Request) -> Any:
        body = requests.merged(await calls.body(request), request.query_params)
        return await operations.get_all(calls, requests.read(requests.GetAll, body))

    async def list_by_parameters(calls: Mem0Calls, request: Request) -> Any:
        return await operations.get_all(calls, requests.read_parameters(requests.GetAll, request.query_params))

    async def delete_all(calls: Mem0Calls, request: Request) -> Any:
        return await operations.delete_all(calls, requests.read_parameters(requests.DeleteAll, request.query_params))

    async def get(calls: Mem0Calls, request: Request) -> Any:
        return await operations.get(calls, request.path_params["memory_id"])

    async def update(calls: Mem0Calls, request: Request) -> Any:
        body = requests.read(requests.Update, await calls.body(request))
        return await operations.update(calls, request.path_params["memory_id"], body)

    async def delete(calls: Mem0Calls, request: Request) -> Any:
        if requests.read_parameters(requests.Delete, request.query_params).delete_linked:
            raise Problem("invalid_event", "is not supported: delete each memory by its own id", "delete_linked")
        return await operations.delete(calls, request.path_params["memory_id"])

    async def list_versions(calls: Mem0Calls, request: Request) -> Any:
        return await operations.list_versions(calls, request.path_params["memory_id"])

    async def ping(calls: Mem0Calls, _: Request) -> Any:
        await calls.check_key()
        return {"status": "ok", "org_id": calls.tenant_id, "project_id": calls.environment, "user_email": None}

    add("GET /v1/ping/", ping)
    add("POST /v3/memories/add/, POST /v1/memories/, POST /memories", add_memories)
    add("POST /v3/memories/search/, POST /v2/memories/search/, POST /v1/memories/search/, POST /search", search)
    add("POST /v3/memories/, POST /v2/memories/", get_all, requests.GetAll)
    add("GET /v1/memories/, GET /memories", list_by_parameters, requests.GetAll)
    add("DELETE /v1/memories/, DELETE /memories", delete_all, requests.DeleteAll)
    add("GET /v1/memories/{memory_id}/, GET /memories/{memory_id}", get)
    add("PUT /v1/memories/{memory_id}/, PUT /memories/{memory_id}", update)
    add("DELETE /v1/memories/{memory_id}/, DELETE /memories/{memory_id}", delete, requests.Delete)
    add("GET /v1/memories/{memory_id}/history/, GET /memories/{memory_id}/history", list_versions)

    @router.api_route("/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def others(rest: str) -> Response:  # noqa: ARG001 FastAPI passes it
        message = "recallflow has no such part of mem0; docs/how-to/mem0-clients.md says which there are"
        return Response(orjson.dumps({"detail": message}), 501, media_type=JSON)

    return router
