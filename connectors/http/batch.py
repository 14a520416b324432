"""Batch requests: one event per line, and one result per line, in the same order.

Lines in flight are limited in number and in bytes. The body is read no faster than events are stored, and results read.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import orjson
from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from recallflow.connectors.http.errors import Problem, body_of, own_failure
from recallflow.connectors.http.handler import RequestHandler, route_to_workspace, shown
from recallflow.connectors.http.requests import credentials_of, too_large
from recallflow.credentials import Headers
from recallflow.errors import RecallflowError
from recallflow.responses import ErrorBody

LINES_UNDER_WAY = 1_024
BYTES_UNDER_WAY = 4 * 1024 * 1024
BODY_BYTES_PER_S = 16 * 1024  # a body may take longer than `body_timeout_s` if lines come at least this fast
LINE_S = 0.1  # and each line earns so much: a client may wait for its result before it sends the next
BODY_S = 1_800.0  # but no longer than this, without the time in which nothing is read of it
BLANK_BYTES = 64 * 1024  # of blank lines, beyond as many as the other lines have


class Results(Response):
    """Stream of batch results. Starlette's StreamingResponse detects a disconnect by reading the body, and would
    consume its lines."""

    def __init__(self, handler: RequestHandler, request: Request, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._handler, self._request = handler, request

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        with self._handler.batch_slot(credentials_of(self._request)):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for ready in results(self._handler, self._request):
                await send({"type": "http.response.body", "body": ready, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Stored(NamedTuple):
    size: int
    result: "asyncio.Task[bytes]"


class _UnderWay:
    """Lines that are being stored, in order. Adding a line waits above the limits."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[_Stored | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()

    async def add(self, size: int, result: "asyncio.Task[bytes]") -> None:
        self._lines.put_nowait(_Stored(size, result))
        self._bytes += size
        while self._lines.qsize() >= LINES_UNDER_WAY or self._bytes >= BYTES_UNDER_WAY:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._lines.put_nowait(None)

    async def ready(self) -> bytes | None:
        """Return the next results once the first of them is available; None after the last."""
        found: list[bytes] = []
        while (one := await self._lines.get()) is not None:
            found.append(await one.result)
            self._bytes -= one.size
            self._room.set()
            if self._lines.empty() or len(found) >= LINES_UNDER_WAY:
                return b"".join(found)
        if found:
            self.end()
        return b"".join(found) or None


async def results(handler: RequestHandler, request: Request) -> AsyncIterator[bytes]:
    """Yield the result of each line; available results go together."""
    under_way = _UnderWay()
    reading = asyncio.create_task(_read(handler, request, under_way))
    try:
        while (ready := await under_way.ready()) is not None:
            yield ready
        await reading
    finally:
        reading.cancel()


async def _read(handler: RequestHandler, request: Request, under_way: _UnderWay) -> None:
    """Store every line. The client may disconnect before the end: stored events stay."""
    credentials = credentials_of(request)
    try:
        async for number, line in lines(request, handler.limits.body_bytes, handler.limits.body_timeout_s):
            size = 0 if isinstance(line, Problem) else len(line)
            await under_way.add(size, asyncio.create_task(_result(handler, request, number, line, credentials)))
    finally:
        under_way.end()


class _BodyClock:
    """Time limit of a batch's body. Time in which nothing is read does not count against the client; blank lines do
    not extend it."""

    def __init__(self, within_s: float) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._within_s = within_s
        self._waited_s = 0.0
        self._since_s = 0.0
        self._lines = self._bytes = self._blank_bytes = 0

    def begin_waiting(self) -> float:
        """Return the time on the event loop's clock by which the next bytes have to come."""
        self._since_s = self._now_s()
        may_take_s = min(BODY_S, self._within_s + self._bytes / BODY_BYTES_PER_S + self._lines * LINE_S)
        return self._since_s + may_take_s - self._waited_s

    def end_waiting(self, size: int) -> None:
        self._waited_s += self._now_s() - self._since_s
        self._bytes += size

    def add_line(self) -> None:
        self._lines += 1

    def add_blank(self, size: int) -> Problem | None:
        """Count a blank line. Return the problem where there are too many."""
        self._bytes -= size
        self._blank_bytes += size
        if self._blank_bytes <= BLANK_BYTES + max(0, self._bytes):
            return None
        return Problem("invalid_event", "has more blank lines than events: leave them out")


async def lines(request: Request, most: int, within_s: float) -> AsyncIterator[tuple[int, bytes | Problem]]:
    """Yield the lines of a body that are not blank, each with its number, and a Problem for a line that is too long.
    A body that is too slow or mostly blank ends with a Problem."""
    stream, clock = request.stream(), _BodyClock(within_s)
    held, size, number = list[bytes](), 0, 1
    while True:
        try:
            async with asyncio.timeout_at(clock.begin_waiting()):
                chunk = await anext(stream, None)
        except TimeoutError:
            yield number, Problem("slow_body", f"lines came too slowly ({within_s:g} s): send what is left anew")
            return
        except ClientDisconnect:
            return
        clock.end_waiting(len(chunk or b""))
        *ends, rest = [b"", b""] if chunk is None else chunk.split(b"\n")  # a last line needs no end
        for end in ends:
            size += len(end)
            line = b"".join([*held, end]) if size <= most else too_large(most)
            if isinstance(line, Problem) or line.strip():
                clock.add_line()
                yield number, line
            elif (problem := clock.add_blank(size + 1)) is not None:
                yield number, problem
                return
            held, size, number = [], 0, number + 1
        if chunk is None:
            return
        size += len(rest)
        if size <= most:
            held.append(rest)
        else:
            held.clear()


async def _result(
    handler: RequestHandler, request: Request, number: int, line: bytes | Problem, credentials: Headers
) -> bytes:
    """Return the result of one line, as a line."""
    try:
        said = _said(line.body) if isinstance(line, Problem) else await _stored(handler, request, line, credentials)
    except RecallflowError as error:
        said = _said(body_of(error))
    except Exception as error:  # noqa: BLE001 one line costs no other, and asyncio's log would quote it
        said = _said(own_failure("a line of a batch", error))
    return orjson.dumps({"line": number, **said}) + b"\n"


async def _stored(handler: RequestHandler, request: Request, line: bytes, credentials: Headers) -> dict[str, object]:
    """Store the event of a line. Return its position. Raise RecallflowError."""
    event, credentials = route_to_workspace(request, handler.event(line, credentials), credentials, handler.mappings)
    handler.admission.check(event, credentials)
    said = shown(await handler.service.store(event, credentials))
    said.pop("applied")
    return said


def _said(body: ErrorBody) -> dict[str, object]:
    return {"error": body.model_dump(exclude_unset=True)}
