"""MCP server over standard input and output, and over HTTP."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recallflow.connectors.http.errors import Problem, RefusalPace, body_of, refusal
from recallflow.connectors.http.requests import Limits, read_body
from recallflow.connectors.http.server import PROBES, mark_admitted
from recallflow.connectors.mcp.tools import INSTRUCTIONS, TOOLS, Caller, ServerScope, ToolRunner, caller_of
from recallflow.distribution import __version__
from recallflow.errors import DefectLog, DeliveryFailed, InvalidRecord, QueryTimeout, RecallflowError, SourceError
from recallflow.parsing import parse
from recallflow.responses import QueryFailed
from recallflow.service import Admission

_ADVICE = {
    "catching_up": "Call again in a moment: the memory has just started, and has not read all of its data.",
    "not_found": "Search again, and take a memory_id from the result.",
    "unauthenticated": "You cannot fix this: tell the user that the memory's credentials are not accepted.",
    "forbidden": "You cannot fix this: tell the user that the credentials do not permit this.",
    "over_quota": "Tell the user that the memory's limit is reached; do not try again at once.",
    "too_large": "Ask for less, or add several shorter memories.",
    "internal_error": "Do not try again with the same arguments.",
    "unreadable": "You cannot fix this: tell the user that the memory cannot be read at present.",
}
_ARGUMENT_PROBLEMS = {"extra_forbidden": "there is no such argument"}
_CORRECT_ARGUMENTS = "Correct the arguments and call again."
_defects = DefectLog(logging.getLogger(__name__))
Context = ServerRequestContext[Any, Any]
PATH = "/mcp"
_BODY_BYTES = 256 * 1024  # size limit of a request, into which the longest arguments fit even if all is escaped


def explain(error: Exception) -> str:
    """Return the description of a failure for a model. The message of an unexpected error may quote a memory, and is
    left out."""
    match error:
        case ValidationError():
            problems = [
                f"{'.'.join(map(str, one['loc']))}: {_ARGUMENT_PROBLEMS.get(one['type'], one['msg'])}"
                for one in error.errors()
            ]
            return f"invalid_arguments: {'; '.join(problems)}. {_CORRECT_ARGUMENTS}"
        case InvalidRecord():
            return f"{error.code}: {error}. {_ADVICE.get(error.code, _CORRECT_ARGUMENTS)}"
        case QueryFailed():
            code = error.error.code
            return f"{code}: {error.error.message}. {_ADVICE.get(code, _CORRECT_ARGUMENTS)}"
        case QueryTimeout():
            return f"no_answer: the memory did not answer within {error.timeout_s:g} s. Call again in a moment."
        case DeliveryFailed():
            return f"not_stored: {error}. Before you call again, search for the memory: it may have been stored."
        case SourceError():
            return f"unavailable: {error}. Tell the user that the memory is not available at present."
    error_id = uuid.uuid4().hex[:12]
    _defects.report(error_id, "a tool", error)
    return f"internal_error: internal error {error_id} of the memory. {_ADVICE['internal_error']}"


def build_server(tools: ToolRunner, caller_in: Callable[[Context], Caller]) -> Server[Any]:
    """Return the server without a transport. `caller_in` returns the caller of a request; it raises InvalidRecord."""

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.info(name) for name, tool in TOOLS.items()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            return _result(f"unknown_tool: there are {', '.join(TOOLS)}.", is_error=True)
        try:
            arguments = tool.arguments.model_validate(params.arguments or {})
            result = await tools.run(caller_in(context), arguments)
        except Exception as error:  # noqa: BLE001 - the model gets any error, and the server continues
            return _result(explain(error), is_error=True)
        return _result(result.text, structured_content=result.structured.model_dump(mode="json"))

    def _result(text: str, **fields: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=text)], **fields)

    return Server(
        "recallflow", version=__version__, title="recallflow", instructions=INSTRUCTIONS,
        on_list_tools=list_tools, on_call_tool=call_tool,
    )  # fmt: skip


async def serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (messages, answers):
        await server.run(messages, answers, server.create_initialization_options())


def build_http(
    server: Server[Any], server_scope: ServerScope, admission: Admission, host: str, limits: Limits, probes: APIRouter
) -> ASGIApp:
    """Return the server as an app, with the routes of `probes`. The app keeps no sessions: each request brings its own
    credentials, and any of several processes may answer it. If `host` is a loopback address, the server accepts local
    host names only, so that foreign web pages cannot reach it through a browser."""
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, max_request_body_size=_BODY_BYTES, host=host
    )
    return _AdmissionMiddleware(app, probes, server_scope, admission, replace(limits, body_bytes=_BODY_BYTES))


class _AdmissionMiddleware:
    """Admission of requests with valid credentials. GET is refused: such a request would wait for messages for ever."""

    def __init__(
        self, app: ASGIApp, probes: APIRouter, server_scope: ServerScope, admission: Admission, limits: Limits
    ) -> None:
        self._app, self._server_scope, self._admission, self._limits = app, server_scope, admission, limits
        self._pace = RefusalPace()
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
            caller = caller_of(self._server_scope, scope["headers"])
            query: Any = parse(orjson.dumps({"type": "user.stats"} | caller.owner_fields()))
            self._admission.check(query, caller.headers)
            mark_admitted(scope)
            if scope["method"] != "POST":
                raise Problem("method_not_allowed", "this server keeps no sessions: send each message by POST")
            body = await read_body(Request(scope, receive), self._limits)
        except RecallflowError as error:
            refused = body_of(error)
            await self._pace.wait(refused.code)
            await refusal(refused)(scope, receive, send)
            return
        await self._app(scope, _prepend_body(body, receive), send)


def _prepend_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body, which was already read, and then the further messages."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return first.pop() if first else await receive()

    return next_message
