"""Requests of the gateway: limits, URL parameters, path segments, credentials and bodies."""

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

import orjson
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from recallflow import limits
from recallflow.connectors.http.errors import JSON, Problem
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, Headers
from recallflow.fields import suggest_name
from recallflow.parsing import without_bom
from recallflow.telemetry import trace_headers

TENANT_SHARE, TENANT_LEAST = 4, 16  # one tenant may use a quarter of all slots, and at least 16
_NO_PARAMETERS = {"type", "reply_to", "receipt", "schema_version"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_BOOLEANS = {"true": True, "false": False}
_CREDENTIALS = {name.encode(): name for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER)}
_READ_FACTOR = 8  # a body is read up to this many times its limit, because a client sends all before it reads an error
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    `timeout_s` limits the answer to a query, or the application of an event; `body_timeout_s` limits the body.
    `concurrency` is the number of requests in flight. `body_bytes` limits one event, or one line of a batch."""

    timeout_s: float = 10.0
    body_timeout_s: float = 10.0
    concurrency: int = 512
    body_bytes: int = limits.RECORD_BYTES

    @property
    def batches(self) -> int:
        """Return the limit of batches in flight: a part of `concurrency`, because one may take minutes."""
        return max(1, self.concurrency // 4)

    @property
    def tenant_concurrency(self) -> int:
        """Return the limit of one tenant's requests in flight, which leaves slots for others."""
        return max(self.concurrency // TENANT_SHARE, min(self.concurrency, TENANT_LEAST))


class Parameter(NamedTuple):
    """URL parameter. `schema` describes its value, or each value of a repeated parameter."""

    name: str
    schema: Mapping[str, Any]
    repeated: bool
    required: bool

    def value(self, text: str) -> object:
        """Return a text as a JSON value of the parameter's type. Any other text stays a string, for the event's model
        to accept or refuse."""
        kinds = {one.get("type") for one in self.schema.get("anyOf", [self.schema])}
        if "boolean" in kinds:
            return _BOOLEANS.get(text, text)
        if ("integer" in kinds and _WHOLE.fullmatch(text)) or ("number" in kinds and _NUMBER.fullmatch(text)):
            return float(text) if "." in text else int(text)
        return text

    def description(self, location: str) -> dict[str, Any]:
        """Return the OpenAPI description. `location` is `path` or `query`."""
        schema = {"type": "array", "items": self.schema} if self.repeated else self.schema
        return {"name": self.name, "in": location, "required": self.required, "schema": schema}


class Parameters:
    """URL parameters of a route whose event or query has one model."""

    def __init__(
        self, model: type[BaseModel], only: Collection[str] | None = None, in_path: Collection[str] = ()
    ) -> None:
        """`only` limits the fields that may be parameters. `in_path` are the fields in the path."""
        self.type: str = model.model_json_schema()["properties"]["type"]["const"]
        fields = (set(model.model_fields) if only is None else set(only)) - set(in_path)
        every = [*_parameters(model)]
        self.by_name = {one.name: one for one in every if one.name.partition(".")[0] in fields}
        self.in_path = [one._replace(required=True) for one in every if one.name in in_path]

    def event(self, request: Request) -> bytes:
        """Return the event of a request's URL as JSON. Raise Problem."""
        return as_json(self.fields(request))

    def fields(self, request: Request) -> dict[str, Any]:
        """Return the fields of the event of a request's URL. Other parameters are left to the route."""
        event: dict[str, Any] = {"type": self.type, **request.path_params}
        parameters = request.query_params
        for name, parameter in self.by_name.items():
            if name not in parameters:
                continue
            values = [parameter.value(text) for text in parameters.getlist(name)]
            outer, _, field = name.rpartition(".")
            (event.setdefault(outer, {}) if outer else event)[field] = values if parameter.repeated else values[0]
        return event


def as_json(fields: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:  # a lone surrogate, from bytes that are not UTF-8
        raise Problem("invalid_event", "path and parameters must be UTF-8") from None


def _parameters(model: type[BaseModel]) -> Iterator[Parameter]:
    schema = model.model_json_schema()
    objects, required = schema.get("$defs", {}), schema.get("required", [])
    for name, field in schema["properties"].items():
        if name in _NO_PARAMETERS:
            continue
        kind = _without_null(field).get("$ref", "").rpartition("/")[2]
        if kind in objects:  # fields one level deep; nested conditions need a body
            for inner_name, inner_field in objects[kind]["properties"].items():
                yield from _parameter(f"{name}.{inner_name}", inner_field, False)
        else:
            yield from _parameter(name, field, name in required)


def _parameter(name: str, field: Mapping[str, Any], required: bool) -> Iterator[Parameter]:
    schema = _without_null(field)
    repeated = schema.get("type") == "array"
    if repeated:
        schema = schema["items"]
    if "$ref" not in str(schema) and schema.get("type") not in ("object", "array"):
        yield Parameter(name, schema, repeated, required)


def _without_null(field: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if not choices:
        return {name: value for name, value in field.items() if name not in ("title", "default")}
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def credentials_in(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((_CREDENTIALS[name], value) for name, value in headers if name in _CREDENTIALS)


def credentials_of(request: Request) -> Headers:
    """Return credentials and trace headers of a request. Repeated credentials are refused later."""
    return (*credentials_in(request.scope["headers"]), *trace_headers())


def check_type(request: Request, expected: str = JSON) -> None:
    """Raise Problem for a body of another type, or in another charset than UTF-8. Thus a foreign web page cannot send
    events: it can make a browser send forms and plain text to this machine, but not JSON."""
    content_types = request.headers.getlist("content-type")
    if len(content_types) > 1:
        raise Problem("unsupported_media_type", f"content-type is given twice: send content-type: {expected}")
    kind, *details = "".join(content_types).lower().split(";")
    if kind.strip() != expected:
        raise Problem("unsupported_media_type", f"send content-type: {expected}")
    for name, _, value in (detail.partition("=") for detail in details):
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise Problem("unsupported_media_type", "send UTF-8, and charset=utf-8 or no charset")


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the whole body. Raise Problem for one that is too large or too slow."""
    chunks: list[bytes] = []
    size, most_bytes = 0, limits.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > _READ_FACTOR * most_bytes:
        raise too_large(most_bytes)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= most_bytes:
                    chunks.append(chunk)
                elif size > _READ_FACTOR * most_bytes:
                    break
    except TimeoutError:
        raise Problem("slow_body", f"the body did not arrive within {limits.body_timeout_s:g} s") from None
    except ClientDisconnect:
        raise Problem("slow_body", "the client disconnected before its body arrived") from None
    if size > most_bytes:
        raise too_large(most_bytes)
    return b"".join(chunks)


def too_large(most_bytes: int) -> Problem:
    return Problem("too_large", f"over {most_bytes} bytes; split it, or store a reference")


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return the JSON object of a body with `fields` before its own; a duplicate field is refused later. A body that is
    no object is returned unchanged, and is refused later."""
    inner = without_bom(body).strip()
    if not inner.startswith(b"{"):
        return body
    inner = inner[1:].lstrip()
    return as_json(fields)[:-1] + (b"" if inner.startswith(b"}") else b",") + inner


class PathDecoder:
    """ASGI middleware that decodes each path segment, so that an id may contain an encoded slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = "/".join(map(_decoded, scope["raw_path"].split(b"/")))
        await self._app(scope, receive, send)


def _decoded(segment: bytes) -> str:
    """Return a path segment, with only `%` and `/` still encoded: a route decodes these after the path is split."""
    try:
        return unquote_to_bytes(segment).decode().replace("%", "%25").replace("/", "%2F")
    except UnicodeDecodeError:  # the route refuses the segment
        return segment.decode("ascii")


class CheckedRoute(APIRoute):
    """Route with decoded path segments. It refuses invalid UTF-8, repeated parameters, and parameters that its
    description lacks, which may be misspelt. A route without a description checks the names itself."""

    message_field: str | None = None  # field for the message in error responses, as other products name it

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            request.scope["path_params"] = {name: _unquoted(value) for name, value in request.path_params.items()}
            _unquoted(request.scope["query_string"].decode("latin-1"))  # raises for invalid UTF-8
            self._check_parameters(request)
            return await handle(request)

        return checked

    def _check_parameters(self, request: Request) -> None:
        parameters, described = request.query_params, (self.openapi_extra or {}).get("parameters", ())
        schemas = {one["name"]: one["schema"] for one in described if one["in"] == "query"}
        for name in parameters:
            if self.openapi_extra is not None and name not in schemas:
                no_parameters = "the route takes no parameters; put the fields in the body"
                remedy = suggest_name(name, schemas) if schemas else no_parameters
                raise Problem("invalid_event", f"no such parameter; {remedy}", name)
            if schemas.get(name, {}).get("type") != "array" and len(parameters.getlist(name)) > 1:
                raise Problem("invalid_event", "is given twice; give it once", name)


def _unquoted(quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise Problem("invalid_event", "path and parameters must be UTF-8") from None
