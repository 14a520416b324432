"""MCP server over HTTP. Credentials are checked before the body is read; the body is read whole, with a time limit."""

from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from mcp.server.lowlevel import Server
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recallflow.connectors.http.errors import Problem, body_of, refusal
from recallflow.connectors.http.middleware import PROBES
from recallflow.connectors.http.requests import Limits, read_body
from recallflow.connectors.http.server import mark_admitted
from recallflow.connectors.mcp.perform import Caller, ServerScope, caller_of
from recallflow.connectors.mcp.server import Context
from recallflow.errors import RecallflowError
from recallflow.parsing import parse
from recallflow.service import Admission

PATH = "/mcp"
_BODY_BYTES = 256 * 1024  # of a request: the longest that a tool takes, escaped, fits in well


def build_http(
    server: Server[Any], place: ServerScope, admission: Admission, host: str, limits: Limits, probes: APIRouter
) -> ASGIApp:
    """Return the server as an app, with the routes of probes.

    It keeps no sessions: each request brings its own credentials, and any of several processes may answer it.

    Args:
        host: listening host; on a loopback address the server answers under local names only, so that foreign
            pages cannot reach it through a browser.
    """
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=_BODY_BYTES,
        host=host,
    )
    return _Judged(app, probes, place, admission, replace(limits, body_bytes=_BODY_BYTES))


def caller_in(place: ServerScope, context: Context) -> Caller:
    """Return the caller of an HTTP request. Raise InvalidRecord."""
    request: Any = context.request
    return caller_of(place, request.scope["headers"])


class _Judged:
    """Admission of requests with valid credentials. GET is refused: it would hold a connection for server messages,
    and there are none."""

    def __init__(
        self, app: ASGIApp, probes: APIRouter, place: ServerScope, admission: Admission, limits: Limits
    ) -> None:
        self._app, self._place, self._admission, self._limits = app, place, admission, limits
        self._probes = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self._probes.include_router(probes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in PROBES:
            await self._probes(scope, receive, send)
            return
        try:
            caller = caller_of(self._place, scope["headers"])
            question: Any = parse(orjson.dumps({"type": "user.stats"} | caller.scope()))
            self._admission.check(question, caller.headers)
            mark_admitted(scope)
            if scope["method"] != "POST":
                raise Problem("method_not_allowed", "this server keeps no sessions: POST each message")
            body = await read_body(Request(scope, receive), self._limits)
        except RecallflowError as error:
            await refusal(body_of(error))(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body already read, and then further messages."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return unread.pop() if unread else await receive()

    return next_message
