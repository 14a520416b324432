"""What a URL asks for: the segments of its path, apart however they are quoted, and the parameters that a route has."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from recallflow.connectors.http.errors import Problem
from recallflow.parts import fix

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Segments:
    """ASGI middleware. Has routes see a path whose segments are decoded, but for `/` and `%` within one: a server
    decodes the whole, and an id that holds a slash would be two segments."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = "/".join(map(_routed, scope["raw_path"].split(b"/")))
        await self._app(scope, receive, send)


def _routed(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode().replace("%", "%25").replace("/", "%2F")
    except UnicodeDecodeError:  # the route that it leads to refuses it
        return segment.decode("ascii")


class Addressed(APIRoute):
    """A route whose path has the segments of `Segments`. Raises Problem for what is not UTF-8, and for a parameter that
    is given twice."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def judged(request: Request) -> Response:
            request.scope["path_params"] = {name: _text(value) for name, value in request.path_params.items()}
            _text(request.scope["query_string"].decode("latin-1"))
            self.check(request)
            return await handle(request)

        return judged

    def check(self, request: Request, often: Collection[str] = ()) -> None:
        """Judges the parameters. `often`: those that may be given more than once."""
        given = request.query_params
        for name in given:
            if name not in often and len(given.getlist(name)) > 1:
                raise Problem("invalid_event", "is given twice; give it once", name)


class Described(Addressed):
    """One that takes the parameters that its description names, each once unless it is a list, and no other: passed
    over, one that is misspelt would do something else than what is asked for."""

    def check(self, request: Request, often: Collection[str] = ()) -> None:
        listed = {one["name"]: one["schema"] for one in (self.openapi_extra or {}).get("parameters", ())
                  if one["in"] == "query"}  # fmt: skip
        for name in request.query_params:
            if name not in listed:
                raise Problem("invalid_event", f"no such parameter; {_instead(name, listed)}", name)
        super().check(request, {*often, *(name for name, schema in listed.items() if schema.get("type") == "array")})


def _instead(name: str, known: Collection[str]) -> str:
    return fix(name, known) if known else "there are none here: what is asked for stands in the body"


def _text(quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise Problem("invalid_event", "path and parameters must be UTF-8") from None
