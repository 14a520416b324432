"""Talks to an MCP server with the SDK's own client."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import orjson
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from tests.starts import COMMAND

T = TypeVar("T")
GIVE_UP_S = 60.0
_MADE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z|0\.\d\d")  # what differs with each run


def run(calls: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(GIVE_UP_S):
            return await calls()

    return asyncio.run(bounded())


@asynccontextmanager
async def over_stdio(*flags: str | Path, errors: Path) -> AsyncIterator[Client]:
    """A client of `recallflow mcp` in a process of its own. `errors`: the file for standard error."""
    words = ["-c", COMMAND, "mcp", *map(str, flags)]
    with errors.open("w") as log:
        transport = stdio_client(StdioServerParameters(command=sys.executable, args=words), errlog=log)
        async with Client(transport) as client:
            yield client


@asynccontextmanager
async def over_http(address: str, **headers: str) -> AsyncIterator[Client]:
    """A client over streamable HTTP that sends these headers (`x_api_key` is x-api-key)."""
    sent = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    async with (
        httpx2.AsyncClient(headers=sent, timeout=GIVE_UP_S) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http)) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    return result


def text(result: CallToolResult) -> str:
    [block] = result.content
    assert block.type == "text"
    return block.text


class Recorded:
    """A documented session: lines with `→` are calls, the others their results. Ids, times and probabilities may
    differ."""

    def __init__(self, lines: list[str]) -> None:
        self._real: dict[str, str] = {}
        self.calls: list[tuple[str, str, list[str]]] = []
        for line in lines:
            if line.startswith("→ "):
                tool, _, arguments = line.removeprefix("→ ").partition(" ")
                self.calls.append((tool, arguments or "{}", []))
            elif line:
                self.calls[-1][2].append(line)

    async def replay(self, client: Client) -> None:
        for tool, arguments, expected in self.calls:
            given = orjson.loads(_MADE.sub(lambda found: self._real.get(found[0], found[0]), arguments))
            said = text(await call(client, tool, **given))
            shown = "\n".join(expected)
            assert _MADE.sub("*", said) == _MADE.sub("*", shown), f"{tool} {arguments}:\n{said}"
            self._real |= dict(zip(_MADE.findall(shown), _MADE.findall(said), strict=True))
