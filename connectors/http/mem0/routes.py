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
Answer = Callable[[Request], Coroutine[Any, Any, Response]]


class _Answered(AddressedRoute):
    """Route whose errors contain `detail`, which mem0's clients read."""

    def get_route_handler(self) -> Answer:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except RecallflowError as error:
                body = error.error if isinstance(error, QueryFailed) else body_of(error)
                content = {"detail": body.message, "error": body.model_dump(exclude={"truncated"})}
                return Response(orjson.dumps(content), status_of(body.code), headers_of(body.code), JSON)

        return answered


def routes(handler: RequestHandler) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    for prefix in PREFIXES:
        router.include_router(_below(prefix, handler))
    return router


def _below(prefix: str, handler: RequestHandler) -> APIRouter:
    router = APIRouter(prefix=prefix, route_class=_Answered, include_in_schema=False)
    for methods_and_paths, operation, parameters in OPERATIONS:
        for one in methods_and_paths.split(", "):
            method, path = one.split(" ")
            router.add_api_route(path, _answer_of(handler, operation, parameters), methods=[method])
    router.add_api_route("/{rest:path}", _refuse_others, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    return router


def _answer_of(handler: RequestHandler, operation: Operation, parameters: type[BaseModel]) -> Answer:
    async def answer(request: Request) -> Response:
        requests.read_parameters(parameters, request.query_params)
        content = await operation(Mem0Calls(handler, request), request)
        return Response(orjson.dumps(content), media_type=JSON)

    return answer


async def _refuse_others(rest: str) -> Response:  # noqa: ARG001 FastAPI passes it
    message = "recallflow has no such part of mem0; docs/how-to/mem0-clients.md says which there are"
    return Response(orjson.dumps({"detail": message}), 501, media_type=JSON)


async def _add_memories(calls: Mem0Calls, request: Request) -> Any:
    return await operations.add(calls, requests.read(requests.Add, await calls.body(request)))


async def _search(calls: Mem0Calls, request: Request) -> Any:
    return await operations.search(calls, requests.read(requests.Search, await calls.body(request)))


async def _get_all(calls: Mem0Calls, request: Request) -> Any:
    body = requests.merged(await calls.body(request), request.query_params)
    return await operations.get_all(calls, requests.read(requests.GetAll, body))


async def _list_by_parameters(calls: Mem0Calls, request: Request) -> Any:
    return await operations.get_all(calls, requests.read_parameters(requests.GetAll, request.query_params))


async def _delete_all(calls: Mem0Calls, request: Request) -> Any:
    return await operations.delete_all(calls, requests.read_parameters(requests.DeleteAll, request.query_params))


async def _get(calls: Mem0Calls, request: Request) -> Any:
    return await operations.get(calls, request.path_params["memory_id"])


async def _update(calls: Mem0Calls, request: Request) -> Any:
    body = requests.read(requests.Update, await calls.body(request))
    return await operations.update(calls, request.path_params["memory_id"], body)


async def _delete(calls: Mem0Calls, request: Request) -> Any:
    if requests.read_parameters(requests.Delete, request.query_params).delete_linked:
        raise Problem("invalid_event", "is not supported: delete each memory by its own id", "delete_linked")
    return await operations.delete(calls, request.path_params["memory_id"])


async def _list_versions(calls: Mem0Calls, request: Request) -> Any:
    return await operations.list_versions(calls, request.path_params["memory_id"])


async def _ping(calls: Mem0Calls, _: Request) -> Any:
    await calls.check_key()
    return {"status": "ok", "org_id": calls.tenant_id, "project_id": calls.environment, "user_email": None}


# Methods and paths, the operation behind them, and the model of the URL parameters.
OPERATIONS: tuple[tuple[str, Operation, type[BaseModel]], ...] = (
    ("GET /v1/ping/", _ping, requests.IgnoredParameters),
    ("POST /v3/memories/add/, POST /v1/memories/, POST /memories", _add_memories, requests.IgnoredParameters),
    (
        "POST /v3/memories/search/, POST /v2/memories/search/, POST /v1/memories/search/, POST /search",
        _search,
        requests.IgnoredParameters,
    ),
    ("POST /v3/memories/, POST /v2/memories/", _get_all, requests.GetAll),
    ("GET /v1/memories/, GET /memories", _list_by_parameters, requests.GetAll),
    ("DELETE /v1/memories/, DELETE /memories", _delete_all, requests.DeleteAll),
    ("GET /v1/memories/{memory_id}/, GET /memories/{memory_id}", _get, requests.IgnoredParameters),
    ("PUT /v1/memories/{memory_id}/, PUT /memories/{memory_id}", _update, requests.IgnoredParameters),
    ("DELETE /v1/memories/{memory_id}/, DELETE /memories/{memory_id}", _delete, requests.Delete),
    (
        "GET /v1/memories/{memory_id}/history/, GET /memories/{memory_id}/history",
        _list_versions,
        requests.IgnoredParameters,
    ),
)
