"""The MCP server: lists the tools, and performs those that are called."""

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

from recallflow.connectors.mcp import failures
from recallflow.connectors.mcp.caller import Caller
from recallflow.connectors.mcp.perform import Performer
from recallflow.connectors.mcp.tools import INSTRUCTIONS, TOOLS
from recallflow.version import __version__

Context = ServerRequestContext[Any, Any]


def build_server(performer: Performer, caller_in: Callable[[Context], Caller]) -> Server[Any]:
    """The server, before it has a transport. `caller_in`: for whom a request is; it raises InvalidRecord."""

    async def listed(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.info(name) for name, tool in TOOLS.items()])

    async def called(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            return _failed(f"unknown_tool: there are {', '.join(TOOLS)}.")
        try:
            arguments = tool.arguments.model_validate(params.arguments or {})
            result = await performer.perform(caller_in(context), arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the model is told, and the server goes on
            return _failed(failures.explain(error))
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
    """Serves on standard input and output until the input ends."""
    async with stdio_server() as (messages, answers):
        await server.run(messages, answers, server.create_initialization_options())


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[_text(text)], is_error=True)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
