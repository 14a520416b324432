"""The MCP server over HTTP: who a request is for is judged before anything is read of it."""

from typing import Any

import orjson
from mcp.server.lowlevel import Server
from starlette.types import ASGIApp, Receive, Scope, Send

from recallflow.connectors.http.errors import refusal
from recallflow.connectors.mcp.caller import Caller, Place, caller_of
from recallflow.connectors.mcp.server import Context
from recallflow.errors import InvalidRecord
from recallflow.parsing import parse
from recallflow.responses import ErrorBody
from recallflow.service import Admission

PATH = "/mcp"
_BODY_BYTES = 256 * 1024  # of a request: the longest that a tool takes, escaped, fits in well


def build_http(server: Server[Any], place: Place, admission: Admission, host: str) -> ASGIApp:
    """The server as an app. It keeps no sessions: each request brings its own credentials, and any process of several
    may answer it. `host`: where it listens; on a loopback address it answers under local names alone, so that no page
    of another site reaches it through a browser."""
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=_BODY_BYTES,
        host=host,
    )
    return _Judged(app, place, admission)


def caller_in(place: Place, context: Context) -> Caller:
    """Who a call is for that came over HTTP. Raises InvalidRecord."""
    request: Any = context.request
    return caller_of(place, request.scope["headers"])


class _Judged:
    """Lets in only requests that may at least ask for their user's memory."""

    def __init__(self, app: ASGIApp, place: Place, admission: Admission) -> None:
        self._app, self._place, self._admission = app, place, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                caller = caller_of(self._place, scope["headers"])
                question: Any = parse(orjson.dumps({"type": "user.stats"} | caller.scope()))
                self._admission.check(question, caller.headers)
            except InvalidRecord as error:
                await refusal(ErrorBody.of(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)
