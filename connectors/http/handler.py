"""Handling of gateway requests: admission, concurrency shares, queries, events and workspace routing."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar, cast

import orjson
from fastapi import Request
from fastapi.responses import Response

from recallflow import responses
from recallflow.connectors.http.errors import JSON, Problem, headers_of, status_of
from recallflow.connectors.http.requests import Limits, check_content_type, credentials_of, read_body, with_fields
from recallflow.connectors.http.server import mark_admitted
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, Headers
from recallflow.errors import InvalidRecord, QueryTimeout
from recallflow.events import Event, MemoryEvent
from recallflow.owner import workspace_of
from recallflow.parsing import QUERY_TYPES, parse, raw_event
from recallflow.queries import QueryEvent
from recallflow.service import Admission, Service, StoredEvent
from recallflow.tracing import TRACE_HEADER

ROUTING_HEADER, ORGANISATIONS_HEADER = "x-workspace-routing", "x-organisations"
_MODE = "auto"

AnyEvent = TypeVar("AnyEvent", bound=Event)
Mappings = Callable[[str], Mapping[str, str | None]]  # of a tenant: project owner → workspace


def without_mappings(_: str) -> Mapping[str, str | None]:
    """Return no mappings, for a gateway without decisions."""
    return {}


def route_to_workspace(
    request: Request, event: AnyEvent, headers: Headers, mappings: Mappings
) -> tuple[AnyEvent, Headers]:
    """Return the event and its credentials, addressed to the workspace of the event's project.

    `x-end-user-id` follows where it names the event's user, so that both still name one owner. Admission judges the
    result: credentials for a user alone do not reach a workspace.

    Raises:
        Problem: one of the headers cannot be read.
    """
    mode = _header(request, ROUTING_HEADER)
    if mode is None:
        return event, headers
    if mode != _MODE:
        raise Problem("invalid_event", f"give {_MODE}, or leave it out", ROUTING_HEADER)
    organisations = [name.strip() for name in (_header(request, ORGANISATIONS_HEADER) or "").split(",")]
    user_id = event.user_id
    workspace = workspace_of(event.project_id, mappings(event.tenant_id), organisations, user_id)
    if workspace == user_id:
        return event, headers
    named, routed = (USER_HEADER, user_id.encode()), (USER_HEADER, workspace.encode())
    return (
        event.model_copy(update={"user_id": workspace}),
        tuple(routed if header == named else header for header in headers),
    )


def _header(request: Request, name: str) -> str | None:
    """Return a header's value. Raise Problem where it is given twice or is not ASCII."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Problem("invalid_event", "is given twice; give it once", name)
    if values and not values[0].isascii():
        raise Problem("invalid_event", "must be ASCII", name)
    return values[0].strip() if values else None


ACCEPTED = 202
REQUIRED_IDS, OPTIONAL_IDS = frozenset(("tenant_id", "user_id")), frozenset(("environment", "project_id"))
_WAITS = {None: False, "stored": False, "applied": True}


class RequestHandler:
    """Service with its admission and limits."""

    def __init__(self, service: Service, admission: Admission, limits: Limits, mappings: Mappings) -> None:
        self.service, self.admission, self.limits, self.mappings = service, admission, limits, mappings
        self._batches = 0
        self._under_way = Counter[tuple[str, object]]()  # requests by tenant, bodies and batches by credential

    def slot(self, tenant_id: str) -> AbstractContextManager[None]:
        """Count a request of a tenant in flight. Raise Problem above the tenant's limit."""
        return self._share(("tenant", tenant_id), self.limits.tenant_concurrency)

    @contextmanager
    def _share(self, holder: tuple[str, object], most: int) -> Iterator[None]:
        """Count a request of one holder in flight. Raise Problem (`too_many_requests`) above the limit."""
        if self._under_way[holder] >= most:
            raise Problem("too_many_requests", f"{most} requests of this {holder[0]} are under way: come back later")
        self._under_way[holder] += 1
        try:
            yield
        finally:
            self._under_way[holder] -= 1
            if not self._under_way[holder]:
                del self._under_way[holder]

    @contextmanager
    def batch_slot(self, headers: Headers) -> Iterator[None]:
        """Hold one of the batch slots; one credential has at most half of them. Raise Problem (`too_many_requests`)
        where they are taken."""
        if self._batches >= self.limits.batches:
            raise Problem("too_many_requests", "too many batches are under way: come back in a second")
        self._batches += 1
        try:
            with self._credential_share("batch", headers, max(1, self.limits.batches // 2)):
                yield
        finally:
            self._batches -= 1

    def body_slot(self, headers: Headers) -> AbstractContextManager[None]:
        """Count a body of a credential that is being read. Raise Problem as `slot` does."""
        return self._credential_share("body", headers, self.limits.tenant_concurrency)

    def _credential_share(self, kind: str, headers: Headers, most: int) -> AbstractContextManager[None]:
        """Limit the requests of one credential before its tenant is known. Requests without credentials have no
        limit here."""
        secrets = tuple(value for name, value in headers if name in (TOKEN_HEADER, KEY_HEADER))
        return self._share((f"credential's {kind}", secrets), most) if secrets else nullcontext()

    def admit(self, request: Request, headers: Headers | None = None) -> None:
        """Authenticate a request before its body is read. Raise InvalidRecord (`unauthenticated`).

        Args:
            headers: credentials of an interface that defines other headers.
        """
        self.admission.authenticate(credentials_of(request) if headers is None else headers)
        mark_admitted(request.scope)

    async def body(self, request: Request, headers: Headers | None = None) -> bytes:
        """Return the JSON body of a request; see `admit`. Raise Problem and InvalidRecord."""
        check_content_type(request)
        self.admit(request, headers)
        given = credentials_of(request) if headers is None else headers
        with self.body_slot(given):
            return await read_body(request, self.limits)

    async def ask(self, request: Request, query: QueryEvent) -> Response:
        """Return the response to a query, with the request's credentials. Raise RecallflowError."""
        query, headers = route_to_workspace(request, query, credentials_of(request), self.mappings)
        response = await self.answer(query, headers)
        mark_admitted(request.scope)
        content = response.model_dump_json(exclude_unset=True).encode()
        if response.error is None:
            return Response(content, media_type=JSON)
        code = response.error.code
        return Response(content, status_of(code), headers_of(code), JSON)

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

    async def store(self, request: Request, event: MemoryEvent, *, waits: bool) -> Response:
        """Store an event and return its position; with `waits` also its receipt. Raise RecallflowError."""
        return accepted(await self.stored(request, event, waits=waits))

    async def stored(self, request: Request, event: MemoryEvent, *, waits: bool) -> StoredEvent:
        """Store an event as `store` does, without a response."""
        event, headers = route_to_workspace(request, event, credentials_of(request), self.mappings)
        self.admission.check(event, headers)
        mark_admitted(request.scope)
        with self.slot(event.tenant_id):
            if waits:
                return await self.service.apply(event, headers, self.limits.timeout_s)
            return await self.service.store(event, headers)

    def query(self, body: bytes, headers: Headers) -> QueryEvent:
        """Parse a query; missing ids are taken from its credentials. Raise InvalidRecord for an invalid query, and
        Problem for an event of memory."""
        query = self._completed(body, headers)
        if query.type not in QUERY_TYPES:  # type: ignore[attr-defined]
            raise Problem("invalid_event", "stores, and asks nothing: POST /memory/events takes it", "type")
        found = cast(QueryEvent, query)
        if found.reply_to is not None:
            raise Problem("invalid_event", "the answer comes back here: leave it out", "reply_to")
        return found

    def event(self, body: bytes, headers: Headers) -> MemoryEvent:
        """Parse an event of memory likewise. Raise InvalidRecord for an invalid event, and Problem for a query."""
        event = self._completed(body, headers)
        if event.type in QUERY_TYPES:  # type: ignore[attr-defined]
            raise Problem("invalid_event", "asks, and stores nothing: POST /memory/query takes it", "type")
        return cast(MemoryEvent, event)

    def _completed(self, body: bytes, headers: Headers) -> Event:
        try:
            event = parse(body)
        except InvalidRecord as error:
            given = raw_event(body)
            ids = {} if given is None else self._ids(REQUIRED_IDS - given.keys(), headers)
            if not ids:
                raise error from None
            event = parse(with_fields(body, ids))
        ids = self._ids((OPTIONAL_IDS & type(event).model_fields.keys()) - event.model_fields_set, headers)
        return event.model_copy(update=ids) if ids else event

    def _ids(self, lacking: Collection[str], headers: Headers) -> dict[str, str]:
        """Return the missing ids that the credentials contain."""
        if not lacking or all(name == TRACE_HEADER for name, _ in headers):
            return {}
        return {field: one for field, one in self.admission.ids(headers).items() if field in lacking}


def accepted(stored: StoredEvent) -> Response:
    """Return the response for a stored event."""
    return Response(orjson.dumps(shown(stored)), ACCEPTED, media_type=JSON)


def shown(stored: StoredEvent) -> dict[str, object]:
    """Return the response body for a stored event."""
    receipt = {} if stored.receipt is None else {"receipt": stored.receipt.model_dump(exclude_none=True)}
    return {"position": str(stored.position), "applied": stored.receipt is not None, **receipt}


def waits(request: Request) -> bool:
    """Return whether a request waits until its event is applied. Raise Problem."""
    wait = request.query_params.get("wait")
    if wait not in _WAITS:
        raise Problem("invalid_event", "give stored or applied", "wait")
    return _WAITS[wait]
