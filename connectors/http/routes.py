"""Routes of the gateway, with their OpenAPI 3.1 description, whose schemas equal the schemas of the topics."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from recallflow import queries, responses
from recallflow.connectors.http.errors import JSON, STATUSES, Problem
from recallflow.connectors.http.handler import BatchResponse, RequestHandler, accepted, waits
from recallflow.connectors.http.requests import CheckedRoute, Parameters, check_type, credentials_of, with_fields
from recallflow.connectors.probes import exposition
from recallflow.control import DEFAULT, Rollout
from recallflow.events import Event, MemoryEvent, MemoryFields, MemoryForget, MemoryUpdate
from recallflow.parsing import QUERY_TYPES, parse_control, raw_event
from recallflow.service import Rollouts, RolloutShown, Service, check_forgotten

LINES = "application/x-ndjson"
_REFERENCE = "#/components/schemas/{model}"
_MODE: JsonSchemaMode = "validation"
_UNIONS: Mapping[str, Any] = {"MemoryEvent": MemoryEvent, "QueryEvent": queries.QueryEvent}
_MODELS = (
    responses.Response, responses.Receipt, responses.ErrorBody, responses.MemoryVersion, MemoryFields, RolloutShown,
)  # fmt: skip
_ERROR, _RECEIPT = ({"$ref": _REFERENCE.format(model=model)} for model in ("ErrorBody", "Receipt"))
_ERROR_EXAMPLE = {
    "code": "invalid_event", "message": "query: is blank", "fields": [{"field": "query", "problem": "is blank"}],
}  # fmt: skip


def _object(description: str, required: Sequence[str], properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": properties, "required": required, **more}


_STRING, _INTEGER = dict[str, Any](type="string"), {"type": "integer"}
_GATEWAY_SCHEMAS = {
    "Error": _object(
        "Reason of a failed request, with every wrong field. For a query, with the other fields of its response.",
        ["error"], {"error": _ERROR}, examples=[{"error": _ERROR_EXAMPLE}],
    ),
    "RolloutDecision": _object(
        "Decision about the effect of the graph on a tenant's answers; `by` whom and `why` are stored with it.",
        ["tenant_id", "mode", "by", "why"],
        {
            "tenant_id": _STRING | {"minLength": 1, "maxLength": 128}, "mode": {"enum": ["off", "shadow", "canary"]},
            "by": _STRING | {"minLength": 1, "maxLength": 512}, "why": _STRING | {"minLength": 1, "maxLength": 20_000},
        },
    ),
    "Accepted": _object(
        "Stored event. `position`: its position in the log, for `wait_for`, and the memory's id if the event has none. "
        "`applied`: whether it is applied; then the receipt states its effect.",
        ["position", "applied"], {"position": _STRING, "applied": {"type": "boolean"}, "receipt": _RECEIPT},
        examples=[{"position": "memory.events:3:1042", "applied": False}],
    ),
    "BatchResult": _object(
        "Result of one line of a batch, counted from 1: the `position` of its event, or an `error`.",
        ["line"], {"line": _INTEGER, "position": _STRING, "receipt": _RECEIPT, "error": _ERROR},
    ),
}  # fmt: skip
_COMMON_ERRORS = (400, 401, 403, 408, 429, 500, 503)  # possible statuses of any request
_REFUSALS = {
    400: "the request is invalid; the error names every wrong field",
    401: "no valid credentials",
    403: "the credentials do not permit this",
    404: "the memory does not exist",
    408: "a time limit has passed",
    409: "the id was used for other content",
    413: "the body is too large",
    415: "the body has another type",
    429: "too many concurrent requests, or a quota of the tenant is reached; repeat after `Retry-After` seconds",
    500: "a defect of recallflow, or memories whose key is lost",
    503: "Kafka or the engine is unavailable",
}


def _optional(location: str, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": location, "required": False, "description": description, "schema": schema}


_WAITS = "`applied`: respond once the event is applied, with its receipt, or after the time limit"
_WAIT = _optional("query", "wait", _WAITS, {"enum": ["stored", "applied"], "default": "stored"})
_ROUTED = "`auto`: the event or query goes to the workspace of its `project_id`, if it has one"
_ORGANISATIONS = "with `auto`: the organisations that the user is a member of, separated by commas"
_ROUTING = (
    _optional("header", "x-workspace-routing", _ROUTED, {"enum": ["auto"]}),
    _optional("header", "x-organisations", _ORGANISATIONS, {"type": "string", "pattern": "^[ -~]*$"}),
)


def operation(
    summary: str,
    *,
    parameters: Parameters | None = None,
    waits: bool = False,
    body: Mapping[str, Any] | None = None,  # request body by content type
    status: int = 200,
    answer: str = "Response",
    refusals: Sequence[int] = (),  # statuses in addition to the common ones
    routed: bool = True,  # whether the route takes the headers of workspace routing
) -> dict[str, Any]:
    """Return the OpenAPI description of a route."""
    described_parameters = []
    if parameters is not None:
        described_parameters = [one.description("path") for one in parameters.in_path]
        described_parameters += [one.description("query") for one in parameters.by_name.values()]
    statuses = {*_COMMON_ERRORS, *refusals} | (set() if body is None else {413, 415})
    described: dict[str, Any] = {"summary": summary, "responses": _responses(status, answer, sorted(statuses))}
    if waits:
        described_parameters.append(_WAIT)
    if routed:
        described_parameters += _ROUTING
    if described_parameters:
        described["parameters"] = described_parameters
    if body is not None:
        described["requestBody"] = {"required": True, "content": body}
    return described


def json_body(schema: Mapping[str, Any], **examples: Mapping[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": schema, "examples": {name: {"value": value} for name, value in examples.items()}}}


def reference(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=name)}


def _responses(status: int, answer: str, refusals: Sequence[int]) -> dict[str, Any]:
    success = {"description": "done" if status == 200 else "stored", "content": {JSON: {"schema": reference(answer)}}}
    error = {JSON: {"schema": reference("Error")}}
    return {str(status): success} | {str(one): {"description": _REFUSALS[one], "content": error} for one in refusals}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schemas of our models."""
    codes = ", ".join(f"`{code}` {status}" for code, status in STATUSES.items())
    text = f"Memory for chat platforms. Errors by their code, with the status of each: {codes}."
    document = get_openapi(title=app.title, version=app.version, description=text, routes=app.routes)
    components = document.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | _schemas()
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{}, {"token": []}, {"key": []}]
    return document


def _schemas() -> dict[str, Any]:
    models = {**_UNIONS, **{model.__name__: model for model in _MODELS}}
    inputs = [(name, _MODE, TypeAdapter[Any](model)) for name, model in models.items()]
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
    for schema in definitions["$defs"].values():
        if "properties" in schema and schema.get("additionalProperties") is True:
            del schema["additionalProperties"]  # the default; generated types would accept misspelt fields
    version = {"type": "array", "items": reference("MemoryVersion")}  # the model has dicts, which it does not validate
    definitions["$defs"]["Response"]["properties"]["versions"]["anyOf"][0] = version
    return {**definitions["$defs"], **{name: schemas[name, _MODE] for name in _UNIONS}, **_GATEWAY_SCHEMAS}


def probe_routes(service: Service, registry: CollectorRegistry) -> APIRouter:
    router = APIRouter()

    def state(name: str, reason: str) -> Response:
        return PlainTextResponse(f"not {name}: {reason}\n" if reason else f"{name}\n", 503 if reason else 200)

    @router.get("/livez", response_class=PlainTextResponse)
    async def livez() -> Response:
        return state("alive", service.stop_reason())

    @router.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        return state("ready", service.obstacle())

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
_RESULTS = "one `BatchResult` in a line for each event, in their order"


def event_routes(handler: RequestHandler) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute)

    @router.post("/memory/query", openapi_extra=operation("Ask", body=QUERIES, refusals=(404,)))
    async def query(request: Request) -> Response:
        return await handler.ask(request, await handler.body(request))

    stored = operation("Store an event", waits=True, body=EVENTS, status=202, answer="Accepted", refusals=(404, 409))

    @router.post("/memory/events", status_code=202, openapi_extra=stored)
    async def events(request: Request) -> Response:
        return accepted(await handler.store(request, waits=waits(request), body=await handler.body(request)))

    lines = operation("Store many events, a line each", body={LINES: {"schema": {"type": "string"}}})
    lines["responses"]["200"] = {"description": _RESULTS, "content": {LINES: {"schema": {"type": "string"}}}}

    @router.post("/memory/events/batch", response_class=Response, openapi_extra=lines)
    async def batch(request: Request) -> Response:
        check_type(request, LINES)
        handler.admit(request, credentials_of(request))
        return BatchResponse(handler, request, LINES)

    return router


_MEMORY_ID = ("memory_id",)
_UPDATE = Parameters(MemoryUpdate, only=Event.model_fields, in_path=_MEMORY_ID)
_FORGET = Parameters(MemoryForget, only=Event.model_fields, in_path=_MEMORY_ID)
_CHANGE_BODY = json_body(reference("MemoryFields"), change={"content": "Ann is allergic to nuts.", "tags": ["health"]})


def _add_query(
    router: APIRouter,
    handler: RequestHandler,
    path: str,
    name: str,
    parameters: Parameters,
    summary: str,
    refusals: Sequence[int] = (),
    post: Mapping[str, Any] | None = None,
) -> None:
    """Add a GET route for a query that path and parameters describe. `post` is the description of a POST route for the
    same query, whose body may omit the type."""

    async def ask(request: Request) -> Response:
        return await handler.ask(request, parameters.event(request))

    async def ask_by_body(request: Request) -> Response:
        body, kind = await handler.body(request), parameters.type
        has_type = raw_event(body, QUERY_TYPES) is not None
        return await handler.ask(request, body if has_type else with_fields(body, {"type": kind}), kind)

    described = operation(summary, parameters=parameters, refusals=refusals)
    router.add_api_route(path, ask, name=name, methods=["GET"], openapi_extra=described)
    if post is not None:
        router.add_api_route(path, ask_by_body, name=f"post_{name}", methods=["POST"], openapi_extra={**post})


def memory_routes(handler: RequestHandler) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute)
    path = "/memories/{memory_id}"
    accepting = partial(operation, waits=True, status=202, answer="Accepted", refusals=(404, 409))
    get, history = (Parameters(model, in_path=_MEMORY_ID) for model in (queries.MemoryGet, queries.MemoryHistory))
    _add_query(router, handler, "/memories", "memories", Parameters(queries.MemoriesList), "Memories, the newest first")
    _add_query(router, handler, path, "get", get, "One memory", (404,))
    _add_query(router, handler, f"{path}/history", "history", history, "Its versions", (404,))

    described = accepting("Change a memory", parameters=_UPDATE, body=_CHANGE_BODY)

    @router.patch(path, status_code=202, openapi_extra=described)
    async def update(request: Request) -> Response:
        fields, must_wait = _UPDATE.fields(request), waits(request)
        body = with_fields(await handler.body(request), fields)
        return accepted(await handler.store(request, waits=must_wait, body=body))

    @router.delete(path, status_code=202, openapi_extra=accepting("Forget a memory", parameters=_FORGET))
    async def forget(request: Request) -> Response:
        stored = await handler.store(request, body=_FORGET.event(request), waits=waits(request))
        check_forgotten(stored.receipt)
        return accepted(stored)

    _add_query(router, handler, "/episodes", "episodes", Parameters(queries.EpisodesList), "Episodes, the newest first")
    return router


_TRACED = json_body(reference("GraphTrace"), trace={"type": "graph.trace", **ANN, "query": "What can't Ann eat?"})
_EXPLORED = json_body(reference("GraphExplore"), around={"type": "graph.explore", **ANN, "nodes": ["Ann"], "hops": 2})


def graph_routes(handler: RequestHandler) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute)
    status, trace = Parameters(queries.GraphStatus), Parameters(queries.GraphTrace)
    _add_query(router, handler, "/graph/status", "status", status, "Figures of the graph, and its rollout")
    post = operation("The same, with any filters", body=_TRACED)
    _add_query(router, handler, "/graph/trace", "trace", trace, "Effect of the graph on an answer", post=post)
    return router


def explore_routes(handler: RequestHandler) -> APIRouter:
    """Return the routes of /graph/explore, which are mounted under more prefixes than the others."""
    router = APIRouter(route_class=CheckedRoute)
    explore = Parameters(queries.GraphExplore)
    post = operation("The same, of many nodes", body=_EXPLORED, refusals=(404,))
    _add_query(router, handler, "/graph/explore", "explore", explore, "A part of the graph", (404,), post)
    return router


_TENANT = Parameters(Rollout, only=("tenant_id",))
_DECISION_BODY = json_body(
    reference("RolloutDecision"),
    shadow={"tenant_id": "acme", "mode": "shadow", "by": "kim", "why": "measure it for a week"},
)


def rollout_routes(handler: RequestHandler, rollouts: Rollouts) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute)
    described = operation("Rollout of a tenant's graph", parameters=_TENANT, answer="RolloutShown", routed=False)

    @router.get("/graph/rollout", openapi_extra=described)
    async def state(request: Request) -> Response:
        fields = _TENANT.fields(request)
        if "tenant_id" not in fields:
            raise Problem("invalid_event", "is missing", "tenant_id")
        shown = rollouts.state(fields["tenant_id"], credentials_of(request))
        return Response(shown.model_dump_json(), media_type=JSON)

    described = operation("Change the rollout", body=_DECISION_BODY, status=202, answer="RolloutDecision", routed=False)

    @router.post("/graph/rollout", status_code=202, openapi_extra=described)
    async def decide(request: Request) -> Response:
        now_ms = time.time_ns() // 1_000_000
        fields = {"type": "graph.rollout", "name": DEFAULT, "timestamp": now_ms}
        rollout = cast(Rollout, parse_control(with_fields(await handler.body(request), fields)))
        for name in ("by", "why"):
            if not getattr(rollout, name):
                raise Problem("invalid_event", "is missing: the decision is stored with its author and reason", name)
        await rollouts.decide(rollout, credentials_of(request), handler.limits.timeout_s)
        content = {name: getattr(rollout, name) for name in ("tenant_id", "mode", "by", "why")}
        return Response(orjson.dumps(content), 202, media_type=JSON)

    return router
