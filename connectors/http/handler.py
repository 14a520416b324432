"""Handling of gateway requests: admission, concurrency shares, queries, events, batches and workspace routing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar, cast

import orjson
from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from recallflow import responses
from recallflow.connectors.http.errors import JSON, Problem, body_of, error_fields, error_response, own_failure
from recallflow.connectors.http.requests import Limits, check_type, credentials_of, read_body, too_large, with_fields
from recallflow.connectors.http.server import mark_admitted
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, Headers
from recallflow.errors import InvalidRecord, QueryTimeout, RecallflowError
from recallflow.events import Event, MemoryEvent
from recallflow.owner import workspace_of
from recallflow.parsing import QUERY_TYPES, parse, raw_event
from recallflow.queries import QueryEvent
from recallflow.service import Admission, Service, StoredEvent
from recallflow.telemetry import TRACE_HEADER

ROUTING_HEADER, ORGANISATIONS_HEADER = "x-workspace-routing", "x-organisations"
_AUTO = "auto"
AnyEvent = TypeVar("AnyEvent", bound=Event)
Mappings = Callable[[str], Mapping[str, str | None]]  # tenant → its mapping of project owners to workspaces
REQUIRED_IDS, OPTIONAL_IDS = frozenset(("tenant_id", "user_id")), frozenset(("environment", "project_id"))
_WAITS = {None: False, "stored": False, "applied": True}
PENDING_LINES = 1_024
PENDING_BYTES = 4 * 1024 * 1024
BODY_BYTES_PER_S = 16 * 1024  # a body may take longer than `body_timeout_s` if lines come at least this fast
LINE_S = 0.1  # extra time per line, because a client may wait for its result before it sends the next
BODY_S = 1_800.0  # limit of the whole time, without the time in which nothing is read
BLANK_BYTES = 64 * 1024  # blank lines may have this many bytes more than other lines


def route_to_workspace(
    request: Request, event: AnyEvent, headers: Headers, mappings: Mappings
) -> tuple[AnyEvent, Headers]:
    """Return the event and its credentials, addressed to the workspace of the event's project. Raise Problem.

    If `x-end-user-id` names the event's user, it is changed too, so that both still name one owner. Admission checks
    the result, and refuses credentials that are valid for the user only."""
    mode = _header(request, ROUTING_HEADER)
    if mode is None:
        return event, headers
    if mode != _AUTO:
        raise Problem("invalid_event", f"give {_AUTO}, or leave it out", ROUTING_HEADER)
    organisations = [name.strip() for name in (_header(request, ORGANISATIONS_HEADER) or "").split(",")]
    user_id = event.user_id
    workspace = workspace_of(event.project_id, mappings(event.tenant_id), organisations, user_id)
    if workspace == user_id:
        return event, headers
    user_header, workspace_header = (USER_HEADER, user_id.encode()), (USER_HEADER, workspace.encode())
    changed = tuple(workspace_header if header == user_header else header for header in headers)
    return event.model_copy(update={"user_id": workspace}), changed


def _header(request: Request, name: str) -> str | None:
    """Return a header's value. Raise Problem where it is given twice or is not ASCII."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Problem("invalid_event", "is given twice; give it once", name)
    if values and not values[0].isascii():
        raise Problem("invalid_event", "must be ASCII", name)
    return values[0].strip() if values else None


class RequestHandler:
    def __init__(self, service: Service, admission: Admission, limits: Limits, mappings: Mappings) -> None:
        self.service, self.admission, self.limits, self.mappings = service, admission, limits, mappings
        self._in_progress = Counter[tuple[str, object]]()  # requests by tenant, bodies and batches by credential

    def slot(self, tenant_id: str) -> AbstractContextManager[None]:
        """Count a request of a tenant in progress. Raise Problem (`too_many_requests`) above the tenant's limit."""
        return self._share("this tenant's requests", tenant_id, self.limits.tenant_concurrency)

    @contextmanager
    def _share(self, kind: str, holder: object, limit: int) -> Iterator[None]:
        if self._in_progress[kind, holder] >= limit:
            raise Problem("too_many_requests", f"{limit} of {kind} are in progress: send it again in a second")
        self._in_progress[kind, holder] += 1
        try:
            yield
        finally:
            self._in_progress[kind, holder] -= 1
            if not self._in_progress[kind, holder]:
                del self._in_progress[kind, holder]

    @contextmanager
    def batch_slot(self, headers: Headers) -> Iterator[None]:
        """Count a batch in progress; one credential has at most half of the slots. Raise Problem as `slot` does."""
        limit = self.limits.batches
        with self._share("all batches", "", limit), self._credential_share("batches", headers, max(1, limit // 2)):
            yield

    def body_slot(self, headers: Headers) -> AbstractContextManager[None]:
        """Count a body of a credential that is being read. Raise Problem as `slot` does."""
        return self._credential_share("bodies", headers, self.limits.tenant_concurrency)

    def _credential_share(self, kind: str, headers: Headers, limit: int) -> AbstractContextManager[None]:
        """Limit the requests of one credential, because its tenant is not known yet. Without one there is no limit."""
        secrets = tuple(value for name, value in headers if name in (TOKEN_HEADER, KEY_HEADER))
        return self._share(f"this credential's {kind}", secrets, limit) if secrets else nullcontext()

    def admit(self, request: Request, headers: Headers) -> None:
        """Authenticate a request before its body is read. Raise InvalidRecord (`unauthenticated`)."""
        self.admission.authenticate(headers)
        mark_admitted(request.scope)

    async def body(self, request: Request, headers: Headers | None = None) -> bytes:
        """Return the JSON body of an authenticated request. `headers` are the credentials of an interface that defines
        other headers. Raise Problem and InvalidRecord."""
        check_type(request)
        credentials = credentials_of(request) if headers is None else headers
        self.admit(request, credentials)
        with self.body_slot(credentials):
            return await read_body(request, self.limits)

    async def ask(self, request: Request, body: bytes, expected_type: str | None = None) -> Response:
        """Return the response to a query, of the expected type if one is given. Raise RecallflowError."""
        credentials = credentials_of(request)
        query = cast(QueryEvent, self._parse(body, credentials))
        if query.type not in QUERY_TYPES:
            raise Problem("invalid_event", "names an event, and no query: send it to POST /memory/events", "type")
        if query.type != (expected_type or query.type):
            remedy = "POST /memory/query accepts every type"
            raise Problem("invalid_event", f"must be {expected_type} or absent; {remedy}", "type")
        if query.reply_to is not None:
            raise Problem("invalid_event", "is not for HTTP, which returns the response: leave it out", "reply_to")
        query, credentials = route_to_workspace(request, query, credentials, self.mappings)
        response = await self.answer(query, credentials)
        mark_admitted(request.scope)
        content = response.model_dump_json(exclude_unset=True).encode()
        if response.error is None:
            return Response(content, media_type=JSON)
        return error_response(response.error.code, content)

    async def answer(self, query: QueryEvent, headers: Headers) -> responses.Response:
        """Return the engine's answer for these credentials, errors included. Raise RecallflowError."""
        self.admission.check(query, headers)
        try:
            with self.slot(query.tenant_id):
                return await self.service.ask(query, headers, self.limits.timeout_s)
        except QueryTimeout as error:
            if obstacle := self.service.obstacle():
                raise Problem("unavailable", f"no answer in time: {obstacle}") from error
            raise

    async def store(self, request: Request, *, waits: bool, body: bytes) -> StoredEvent:
        """Store an event; with `waits`, wait for its receipt. Raise RecallflowError."""
        credentials = credentials_of(request)
        event, headers = route_to_workspace(request, self.event(body, credentials), credentials, self.mappings)
        self.admission.check(event, headers)
        mark_admitted(request.scope)
        with self.slot(event.tenant_id):
            if waits:
                return await self.service.apply(event, headers, self.limits.timeout_s)
            return await self.service.store(event, headers)

    def event(self, body: bytes, headers: Headers) -> MemoryEvent:
        """Parse an event, with missing ids from its credentials. Raise InvalidRecord, and Problem for a query."""
        event = self._parse(body, headers)
        if event.type in QUERY_TYPES:  # type: ignore[attr-defined]
            raise Problem("invalid_event", "names a query, and no event: send it to POST /memory/query", "type")
        return cast(MemoryEvent, event)

    def _parse(self, body: bytes, headers: Headers) -> Event:
        """Parse an event or query, with missing ids from its credentials. Raise InvalidRecord."""
        try:
            event = parse(body)
        except InvalidRecord as error:
            fields = raw_event(body)
            ids = {} if fields is None else self._ids(REQUIRED_IDS - fields.keys(), headers)
            if not ids:
                raise error from None
            event = parse(with_fields(body, ids))
        ids = self._ids((OPTIONAL_IDS & type(event).model_fields.keys()) - event.model_fields_set, headers)
        return event.model_copy(update=ids) if ids else event

    def _ids(self, missing: Collection[str], headers: Headers) -> dict[str, str]:
        if not missing or all(name == TRACE_HEADER for name, _ in headers):
            return {}
        return {field: one for field, one in self.admission.ids(headers).items() if field in missing}


def accepted(stored: StoredEvent) -> Response:
    return Response(orjson.dumps(stored_fields(stored)), 202, media_type=JSON)


def stored_fields(stored: StoredEvent) -> dict[str, object]:
    receipt = {} if stored.receipt is None else {"receipt": stored.receipt.model_dump(exclude_none=True)}
    return {"position": str(stored.position), "applied": stored.receipt is not None, **receipt}


def waits(request: Request) -> bool:
    """Return whether a request waits until its event is applied. Raise Problem."""
    wait = request.query_params.get("wait")
    if wait not in _WAITS:
        raise Problem("invalid_event", "give stored or applied", "wait")
    return _WAITS[wait]


class BatchResponse(Response):
    """Stream of batch results. Starlette's StreamingResponse would consume lines to detect a disconnect."""

    def __init__(self, handler: RequestHandler, request: Request, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._handler, self._request = handler, request

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        with self._handler.batch_slot(credentials_of(self._request)):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            pending = _PendingLines()
            reading = asyncio.create_task(_read(self._handler, self._request, pending))
            try:
                while (ready := await pending.ready()) is not None:
                    await send({"type": "http.response.body", "body": ready, "more_body": True})
                await reading
            finally:
                reading.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _PendingLines:
    """Lines that are being stored, in order. Adding a line waits while there are too many lines or bytes."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[tuple[int, asyncio.Task[bytes]] | None] = asyncio.Queue()  # size, and result
        self._bytes = 0
        self._room = asyncio.Event()

    async def add(self, size: int, result: "asyncio.Task[bytes]") -> None:
        self._lines.put_nowait((size, result))
        self._bytes += size
        while self._lines.qsize() >= PENDING_LINES or self._bytes >= PENDING_BYTES:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._lines.put_nowait(None)

    async def ready(self) -> bytes | None:
        """Return the next results once the first of them is available; None after the last."""
        results: list[bytes] = []
        while (one := await self._lines.get()) is not None:
            size, result = one
            results.append(await result)
            self._bytes -= size
            self._room.set()
            if self._lines.empty() or len(results) >= PENDING_LINES:
                return b"".join(results)
        if results:
            self.end()
        return b"".join(results) or None


async def _read(handler: RequestHandler, request: Request, pending: _PendingLines) -> None:
    """Store every line. The client may disconnect before the end: stored events stay."""
    credentials = credentials_of(request)
    try:
        async for number, line in lines(request, handler.limits.body_bytes, handler.limits.body_timeout_s):
            size = 0 if isinstance(line, Problem) else len(line)
            await pending.add(size, asyncio.create_task(_result(handler, request, number, line, credentials)))
    finally:
        pending.end()


async def lines(request: Request, line_bytes: int, timeout_s: float) -> AsyncIterator[tuple[int, bytes | Problem]]:
    """Yield the lines of a body that are not blank, each with its number, and a Problem for a line of more bytes than
    `line_bytes`. A body that is too slow or mostly blank ends with a Problem. Only the time of waiting for the client
    counts. Each line and its bytes extend the time limit, but no blank lines do."""
    stream, now_s = request.stream(), asyncio.get_running_loop().time
    pieces, size, number = list[bytes](), 0, 1  # of the current line
    waited_s, count, text_bytes, blank_bytes = 0.0, 0, 0, 0
    while True:
        since_s = now_s()
        allowed_s = min(BODY_S, timeout_s + text_bytes / BODY_BYTES_PER_S + count * LINE_S)
        try:
            async with asyncio.timeout_at(since_s + allowed_s - waited_s):
                chunk = await anext(stream, None)
        except TimeoutError:
            yield number, Problem("slow_body", f"the body is too slow (over {timeout_s:g} s): resend from this line on")
            return
        except ClientDisconnect:
            return
        waited_s += now_s() - since_s
        text_bytes += len(chunk or b"")
        *ends, rest = [b"", b""] if chunk is None else chunk.split(b"\n")  # the last line needs no line feed
        for end in ends:
            size += len(end)
            line = b"".join([*pieces, end]) if size <= line_bytes else too_large(line_bytes)
            if isinstance(line, Problem) or line.strip():
                count += 1
                yield number, line
            else:
                text_bytes -= size + 1
                blank_bytes += size + 1
                if blank_bytes > BLANK_BYTES + max(0, text_bytes):
                    yield number, Problem("invalid_event", "has more blank lines than events: leave them out")
                    return
            pieces, size, number = [], 0, number + 1
        if chunk is None:
            return
        size += len(rest)
        if size <= line_bytes:
            pieces.append(rest)
        else:
            pieces.clear()


async def _result(
    handler: RequestHandler, request: Request, number: int, line: bytes | Problem, credentials: Headers
) -> bytes:
    """Store the event of a line. Return the line of the response."""
    try:
        if isinstance(line, Problem):
            result = error_fields(line.body)
        else:
            event = handler.event(line, credentials)
            event, credentials = route_to_workspace(request, event, credentials, handler.mappings)
            handler.admission.check(event, credentials)
            result = stored_fields(await handler.service.store(event, credentials))
            del result["applied"]
    except RecallflowError as error:
        result = error_fields(body_of(error))
    except Exception as error:  # noqa: BLE001 - other lines are still stored, and asyncio's log would quote this one
        result = error_fields(own_failure("a line of a batch", error))
    return orjson.dumps({"line": number, **result}) + b"\n"
