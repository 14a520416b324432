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

TENANT_SHARE, TENANT_LEAST = 4, 16


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


_NO_PARAMETERS = {"type", "reply_to", "receipt", "schema_version"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_TRUTHS = {"true": True, "false": False}


class Parameter(NamedTuple):
    """URL parameter. `schema` describes its value, or each value of a repeated parameter."""

    name: str
    schema: Mapping[str, Any]
    repeated: bool
    required: bool

    def value(self, text: str) -> object:
        """Return the JSON value of a text. Other text stays a string, which the event's model then refuses."""
        kinds = {one.get("type") for one in self.schema.get("anyOf", [self.schema])}
        if "boolean" in kinds:
            return _TRUTHS.get(text, text)
        if ("integer" in kinds and _WHOLE.fullmatch(text)) or ("number" in kinds and _NUMBER.fullmatch(text)):
            return orjson.loads(text.removeprefix("+").encode()) if "." in text else int(text)
        return text


class Parameters:
    """URL parameters that make an event of one model."""

    def __init__(
        self, model: type[BaseModel], only: Collection[str] | None = None, in_path: Collection[str] = ()
    ) -> None:
        """`only` limits the fields that a URL may name. `in_path` are the fields in the path."""
        self.type: str = model.model_json_schema()["properties"]["type"]["const"]
        fields = (set(model.model_fields) if only is None else set(only)) - set(in_path)
        known = [*_parameters(model)]
        self.all = {one.name: one for one in known if one.name.partition(".")[0] in fields}
        self.in_path = [one._replace(required=True) for one in known if one.name in in_path]

    def event(self, request: Request, **in_path: object) -> bytes:
        """Return the event of a URL as unparsed JSON. Raise Problem."""
        return as_json(self.fields(request, **in_path))

    def fields(self, request: Request, **in_path: object) -> dict[str, Any]:
        """Return the fields of that event. All other parameters belong to the route; unknown ones are refused."""
        event: dict[str, Any] = {"type": self.type, **in_path}
        given = request.query_params
        for name, parameter in self.all.items():
            if name not in given:
                continue
            values = [parameter.value(text) for text in given.getlist(name)]
            part, _, field = name.rpartition(".")
            (event.setdefault(part, {}) if part else event)[field] = values if parameter.repeated else values[0]
        return event


def as_json(fields: Mapping[str, Any]) -> bytes:
    """Return fields as JSON. Raise Problem."""
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:  # a lone surrogate, from bytes that are not UTF-8
        raise Problem("invalid_event", "path and parameters must be UTF-8") from None


def _parameters(model: type[BaseModel]) -> Iterator[Parameter]:
    schema = model.model_json_schema()
    parts = schema.get("$defs", {})
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if name in _NO_PARAMETERS:
            continue
        part = _without_null(field).get("$ref", "").rpartition("/")[2]
        if part in parts:  # fields one level deep; nested conditions need a body
            inner = parts[part]["properties"].items()
            yield from (one for field_name, found in inner for one in _parameter(f"{name}.{field_name}", found, False))
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
    """Return a field's schema without null."""
    choices = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if not choices:
        return {name: value for name, value in field.items() if name not in ("title", "default")}
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


_CREDENTIALS = {name.encode(): name for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER)}
_UTF_8 = ("utf-8", "utf8")
_DRAINED = 8  # a body is read and dropped up to this many times its limit, so that the sender receives the error


def credentials_in(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((_CREDENTIALS[name], value) for name, value in headers if name in _CREDENTIALS)


def credentials_of(request: Request) -> Headers:
    """Return credentials and trace headers of a request. Repeated credentials are refused later."""
    return (*credentials_in(request.scope["headers"]), *trace_headers())


def check_content_type(request: Request, wanted: str = JSON) -> None:
    """Raise Problem for a body of another type, or in another charset than UTF-8. A foreign page can make a browser
    send forms and plain text to this machine, but not JSON."""
    given = request.headers.getlist("content-type")
    if len(given) > 1:
        raise Problem("unsupported_media_type", f"content-type is given twice: send content-type: {wanted}")
    kind, *details = "".join(given).lower().split(";")
    if kind.strip() != wanted:
        raise Problem("unsupported_media_type", f"send content-type: {wanted}")
    for name, _, value in (detail.partition("=") for detail in details):
        if name.strip() == "charset" and value.strip().strip('"') not in _UTF_8:
            raise Problem("unsupported_media_type", "send UTF-8, and charset=utf-8 or no charset")


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the whole body. Raise Problem for one that is too large or too slow."""
    chunks: list[bytes] = []
    size, most = 0, limits.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > _DRAINED * most:
        raise too_large(most)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= most:
                    chunks.append(chunk)
                elif size > _DRAINED * most:
                    break
    except TimeoutError:
        raise Problem("slow_body", f"the body was not there within {limits.body_timeout_s:g} s") from None
    except ClientDisconnect:
        raise Problem("slow_body", "the client left before its body was there") from None
    if size > most:
        raise too_large(most)
    return b"".join(chunks)


def too_large(most: int) -> Problem:
    return Problem("too_large", f"over {most} bytes; split it, or store a reference")


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object with fields added before its own. A duplicate field is refused later. A body that is no
    object is returned unchanged, and refused later."""
    inner = without_bom(body).strip()
    if not inner.startswith(b"{"):
        return body
    inner = inner[1:].lstrip()
    return as_json(fields)[:-1] + (b"" if inner.startswith(b"}") else b",") + inner


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PathSegments:
    """ASGI middleware that decodes each path segment, so that an id may contain an encoded slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = "/".join(map(_routed, scope["raw_path"].split(b"/")))
        await self._app(scope, receive, send)


def _routed(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode().replace("%", "%25").replace("/", "%2F")
    except UnicodeDecodeError:  # the route refuses it
        return segment.decode("ascii")


class CheckedRoute(APIRoute):
    """Route with decoded path segments. Raise Problem for invalid UTF-8, and for repeated and undescribed parameters: a
    misspelt one would give an unintended result. A route without a description checks the names itself."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            request.scope["path_params"] = {name: _text(value) for name, value in request.path_params.items()}
            _text(request.scope["query_string"].decode("latin-1"))
            self._check_parameters(request)
            return await handle(request)

        return checked

    def _check_parameters(self, request: Request) -> None:
        given, extra = request.query_params, self.openapi_extra
        listed = {one["name"]: one["schema"] for one in (extra or {}).get("parameters", ()) if one["in"] == "query"}
        for name in given:
            if extra is not None and name not in listed:
                none = "the route takes none; the body states what is asked for"
                remedy = suggest_name(name, listed) if listed else none
                raise Problem("invalid_event", f"no such parameter; {remedy}", name)
            if listed.get(name, {}).get("type") != "array" and len(given.getlist(name)) > 1:
                raise Problem("invalid_event", "is given twice; give it once", name)


def _text(quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise Problem("invalid_event", "path and parameters must be UTF-8") from None
