"""OpenAPI 3.1 description of the gateway. Its schemas equal the schemas of the topics."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from recallflow.connectors.http.errors import JSON, STATUSES
from recallflow.connectors.http.requests import Parameter, Parameters
from recallflow.events import MemoryEvent, MemoryFields
from recallflow.queries import QueryEvent
from recallflow.responses import ErrorBody, Receipt, Response
from recallflow.service import RolloutShown

LINES = "application/x-ndjson"
_REFERENCE = "#/components/schemas/{model}"
_MODE: JsonSchemaMode = "validation"
_UNIONS: Mapping[str, Any] = {"MemoryEvent": MemoryEvent, "QueryEvent": QueryEvent}
_MODELS = (Response, Receipt, ErrorBody, MemoryFields, RolloutShown)
_OWN = {
    "Error": {
        "type": "object",
        "description": "Why a request could not be done, every wrong field at once. Of a query, with its answer's "
        "other fields.",
        "properties": {"error": {"$ref": "#/components/schemas/ErrorBody"}},
        "required": ["error"],
        "examples": [
            {
                "error": {
                    "code": "invalid_event",
                    "message": "query: is blank",
                    "fields": [{"field": "query", "problem": "is blank"}],
                }
            }
        ],
    },
    "RolloutDecision": {
        "type": "object",
        "description": "What is to become of what the graph adds to a tenant's answers; `by` whom and `why` are kept.",
        "properties": {
            "tenant_id": {"type": "string", "minLength": 1, "maxLength": 128},
            "mode": {"enum": ["off", "shadow", "canary"]},
            "by": {"type": "string", "minLength": 1, "maxLength": 512},
            "why": {"type": "string", "minLength": 1, "maxLength": 20_000},
        },
        "required": ["tenant_id", "mode", "by", "why"],
    },
    "Accepted": {
        "type": "object",
        "description": "An event that is stored. `position`: where it stands in its log, which is what `wait_for` "
        "takes, and its memory's id where it brings none. `applied`: whether it is known to be; then the receipt says "
        "what became of it.",
        "properties": {
            "position": {"type": "string"},
            "applied": {"type": "boolean"},
            "receipt": {"$ref": "#/components/schemas/Receipt"},
        },
        "required": ["position", "applied"],
        "examples": [{"position": "memory.events:3:1042", "applied": False}],
    },
}
_ALWAYS = (400, 401, 403, 408, 429, 500, 503)  # possible errors of any request
_REFUSALS = {
    400: "something is wrong with it: every wrong field at once",
    401: "no credentials, or none that hold",
    403: "the credentials are not for this",
    404: "there is no such memory",
    408: "it took too long",
    409: "the id was used for other content",
    413: "it is too large",
    415: "its body is of another type",
    429: "too many at once, or over a tenant's quota: after `Retry-After` seconds there may be room",
    500: "a defect of ours, or memories whose key is lost",
    503: "Kafka, or the engine, is away",
}
_WAIT = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "`applied`: answer once the event is applied, with its receipt, or after the time limit",
    "schema": {"enum": ["stored", "applied"], "default": "stored"},
}
_ROUTING = (
    {
        "name": "x-workspace-routing",
        "in": "header",
        "required": False,
        "description": "`auto`: the event or query goes to the workspace of its `project_id`, if that has one",
        "schema": {"enum": ["auto"]},
    },
    {
        "name": "x-organisations",
        "in": "header",
        "required": False,
        "description": "with `auto`: the organisations that the user is a member of, separated by commas",
        "schema": {"type": "string", "pattern": "^[ -~]*$"},
    },
)


def operation(
    summary: str,
    *,
    parameters: Parameters | None = None,
    waits: bool = False,
    body: Mapping[str, Any] | None = None,
    status: int = 200,
    answer: str = "Response",
    refusals: Sequence[int] = (),
    routed: bool = True,
) -> dict[str, Any]:
    """Return the OpenAPI description of a route.

    Args:
        body: request body by content type.
        refusals: statuses in addition to the common ones.
        routed: whether the route takes the headers of workspace routing.
    """
    listed = [] if parameters is None else [_parameter("path", one) for one in parameters.in_path]
    listed += [] if parameters is None else [_parameter("query", one) for one in parameters.all.values()]
    why = {*_ALWAYS, *refusals} | (set() if body is None else {413, 415})
    described: dict[str, Any] = {"summary": summary, "responses": _responses(status, answer, sorted(why))}
    if waits:
        listed.append(_WAIT)
    if routed:
        listed += _ROUTING
    if listed:
        described["parameters"] = listed
    if body is not None:
        described["requestBody"] = {"required": True, "content": body}
    return described


def json_body(schema: Mapping[str, Any], **examples: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON body with named examples."""
    named = {name: {"value": value} for name, value in examples.items()}
    return {JSON: {"schema": schema, "examples": named}}


def reference(name: str) -> dict[str, str]:
    """Return a reference to a named schema."""
    return {"$ref": _REFERENCE.format(model=name)}


def _parameter(where: str, one: Parameter) -> dict[str, Any]:
    schema = {"type": "array", "items": one.schema} if one.often else one.schema
    return {"name": one.name, "in": where, "required": one.required, "schema": schema}


def _responses(status: int, answer: str, refusals: Sequence[int]) -> dict[str, Any]:
    done = {"description": "done" if status == 200 else "stored", "content": {JSON: {"schema": reference(answer)}}}
    error = {JSON: {"schema": reference("Error")}}
    return {str(status): done} | {str(one): {"description": _REFUSALS[one], "content": error} for one in refusals}


def describe(app: FastAPI) -> None:
    """Make /openapi.json return the schemas of our models."""
    app.openapi = cache(partial(_document, app))  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
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
    found, shared = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
    return {**shared["$defs"], **{name: found[name, _MODE] for name in _UNIONS}, **_OWN}
