"""The MCP server over HTTP: who a request is for is judged before anything is read of it, and its body is read whole
and in time before the server has it."""

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
from recallflow.connectors.mcp.perform import Caller, Place, caller_of
from recallflow.connectors.mcp.server import Context
from recallflow.errors import RecallflowError
from recallflow.parsing import parse
from recallflow.service import Admission

PATH = "/mcp"
_BODY_BYTES = 256 * 1024  # of a request: the longest that a tool takes, escaped, fits in well


def build_http(
    server: Server[Any], place: Place, admission: Admission, host: str, limits: Limits, probes: APIRouter
) -> ASGIApp:
    """The server as an app, with the routes of probes. It keeps no sessions: each request brings its own credentials,
    and any process of several may answer it. `host`: where it listens; on a loopback address it answers under local
    names alone, so that no page of another site reaches it through a browser."""
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=_BODY_BYTES,
        host=host,
    )
    return _Judged(app, probes, place, admission, replace(limits, body_bytes=_BODY_BYTES))


def caller_in(place: Place, context: Context) -> Caller:
    """Who a call is for that came over HTTP. Raises InvalidRecord."""
    request: Any = context.request
    return caller_of(place, request.scope["headers"])


class _Judged:
    """Lets in only requests that may at least ask for their user's memory. A GET would hold a place open for messages
    of the server, which has none to send."""

    def __init__(self, app: ASGIApp, probes: APIRouter, place: Place, admission: Admission, limits: Limits) -> None:
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
    """Return a `receive` that gives a body that was read, and then what else comes."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return unread.pop() if unread else await receive()

    return next_message
