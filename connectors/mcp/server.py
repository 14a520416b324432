"""MCP server: lists the tools, and runs the called ones."""

import logging
import uuid
from collections.abc import Callable
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from recallflow.connectors.mcp.perform import Caller, Performer
from recallflow.connectors.mcp.tools import INSTRUCTIONS, TOOLS
from recallflow.errors import DefectLog, DeliveryFailed, InvalidRecord, QueryFailed, QueryTimeout, SourceError
from recallflow.version import __version__

_ADVICE = {
    "catching_up": "Call again in a moment: the memory has just started, and has not read all that it holds.",
    "not_found": "Search again, and take a memory_id from the result.",
    "unauthenticated": "You cannot mend this: tell the user that the memory's credentials are not accepted.",
    "forbidden": "You cannot mend this: tell the user that the credentials are not for this.",
    "over_quota": "Tell the user that the memory's limit is reached; do not try again at once.",
    "too_large": "Ask for less, or add several shorter memories.",
    "internal_error": "Do not try again with the same arguments.",
    "unreadable": "You cannot mend this: tell the user that the memory cannot be read at present.",
}
_CORRECT = "Correct the arguments and call again."

_defects = DefectLog(logging.getLogger(__name__))


def explain(error: Exception) -> str:
    """Return the text of a failure. The message of an unexpected error is left out: it may quote a memory."""
    match error:
        case ValidationError():
            problems = [f"{'.'.join(map(str, one['loc']))}: {_problem(one)}" for one in error.errors()]
            return f"invalid_arguments: {'; '.join(problems)}. {_CORRECT}"
        case InvalidRecord():
            return f"{error.code}: {error}. {_ADVICE.get(error.code, _CORRECT)}"
        case QueryFailed():
            code = error.error.code
            return f"{code}: {error.error.message}. {_ADVICE.get(code, _CORRECT)}"
        case QueryTimeout():
            return f"no_answer: the memory did not answer within {error.timeout_s:g} s. Call again in a moment."
        case DeliveryFailed():
            return f"not_stored: {error} Search for it before you call again: it may be stored all the same."
        case SourceError():
            return f"unavailable: {error}. Tell the user that the memory is not available at present."
    error_id = uuid.uuid4().hex[:12]
    _defects.report(error_id, "a tool", error)
    return f"internal_error: internal error {error_id} of the memory. {_ADVICE['internal_error']}"


def _problem(one: ErrorDetails) -> str:
    return "there is no such argument" if one["type"] == "extra_forbidden" else one["msg"]


Context = ServerRequestContext[Any, Any]


def build_server(performer: Performer, caller_in: Callable[[Context], Caller]) -> Server[Any]:
    """Return the server without a transport. `caller_in` returns the caller of a request; it raises InvalidRecord."""

    async def listed(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.info(name) for name, tool in TOOLS.items()])

    async def called(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            return _failed(f"unknown_tool: there are {', '.join(TOOLS)}.")
        try:
            arguments = tool.arguments.model_validate(params.arguments or {})
            result = await performer.perform(caller_in(context), arguments)
        except Exception as error:  # noqa: BLE001 - the model gets any error, and the server continues
            return _failed(explain(error))
        return CallToolResult(
            content=[_text(result.text)], structured_content=result.structured.model_dump(mode="json")
        )

    return Server(
        "recallflow",
        version=__version__,
        title="recallflow",
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


async def serve_stdio(server: Server[Any]) -> None:
    """Serve on standard input and output until the input ends."""
    async with stdio_server() as (messages, answers):
        await server.run(messages, answers, server.create_initialization_options())


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[_text(text)], is_error=True)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
