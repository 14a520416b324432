"""Execution of the tools: each makes one event of its arguments and the caller, and sends it to the service."""

import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import orjson

from recallflow.connectors.mcp import tools
from recallflow.connectors.mcp.tools import (
    AddArguments,
    Arguments,
    EpisodesArguments,
    ForgetArguments,
    Result,
    SearchArguments,
)
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, Headers
from recallflow.errors import FieldProblem, InvalidRecord, QueryFailed
from recallflow.events import MemoryEvent
from recallflow.parsing import parse
from recallflow.queries import QueryEvent
from recallflow.responses import EpisodeInfo, Receipt, Response
from recallflow.service import Admission, Service
from recallflow.tracing import trace_headers

_CREDENTIALS = {name.encode(): name for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER)}


class ServerScope(NamedTuple):
    """Tenant, environment and project of a server. With a `project_id` it reads and stores that project's memories
    only."""

    tenant_id: str
    environment: str
    project_id: str | None = None


class Caller(NamedTuple):
    """User of a tool call, with credentials."""

    place: ServerScope
    user_id: str
    headers: Headers

    def scope(self) -> dict[str, str]:
        """Return the owner fields of an event."""
        named = self.place._asdict() | {"user_id": self.user_id}
        return {name: value for name, value in named.items() if value is not None}


def caller_of(place: ServerScope, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
    """Return the caller of an HTTP request: the user in x-end-user-id. Repeated credentials stay repeated, and are
    refused later. Raise InvalidRecord."""
    given = tuple((_CREDENTIALS[name], value) for name, value in headers if name in _CREDENTIALS)
    users = [value for name, value in given if name == USER_HEADER]
    if len(users) != 1:
        raise _refused("is missing: it names the user whose memory this is" if not users else "is given twice")
    try:
        return Caller(place, users[0].decode(), given)
    except UnicodeDecodeError:
        raise _refused("is not UTF-8") from None


def _refused(problem: str) -> InvalidRecord:
    return InvalidRecord("unauthenticated", [FieldProblem(USER_HEADER, problem)])


# Event field → tool argument, where the names differ.
_ARGUMENTS = {"k": "limit", "filters.session_ids": "session_id", "filters.categories": "category",
              "filters.kinds": "kind"}  # fmt: skip


class Performer:
    """Executor of tools."""

    def __init__(self, service: Service, admission: Admission, timeout_s: float) -> None:
        self._service, self._admission, self._timeout_s = service, admission, timeout_s

    async def perform(self, caller: Caller, arguments: Arguments) -> Result:
        """Run a tool. Raise RecallflowError."""
        match arguments:
            case SearchArguments():
                return tools.found(await self._ask(caller, _recall(arguments)))
            case AddArguments():
                memory_id = str(uuid.uuid4())
                event = {"type": "memory", "id": memory_id} | _given(arguments)
                return tools.added(memory_id, applied=await self._apply(caller, event) is not None)
            case ForgetArguments():
                event = {"type": "memory.forget", "memory_id": arguments.memory_id}
                receipt = await self._apply(caller, event)
                if receipt is not None and receipt.outcome == "unchanged":
                    raise InvalidRecord("not_found", [FieldProblem("memory_id", "no memory has this id")])
                return tools.forgotten(arguments.memory_id, applied=receipt is not None)
            case EpisodesArguments():
                response = await self._ask(caller, {"type": "episodes.list"} | _given(arguments))
                return tools.episodes(cast(list[EpisodeInfo], response.episodes or []))
        raise TypeError(f"no tool takes {type(arguments).__name__}")

    async def _ask(self, caller: Caller, fields: dict[str, Any]) -> Response:
        query = cast(QueryEvent, _event(caller, fields))
        self._admission.check(query, caller.headers)
        response = await self._service.ask(query, (*caller.headers, *trace_headers()), self._timeout_s)
        if response.error is not None:
            raise QueryFailed(response.query_id, response.error)
        return response

    async def _apply(self, caller: Caller, fields: dict[str, Any]) -> Receipt | None:
        """Store an event. Return its receipt if it comes in time."""
        event = cast(MemoryEvent, _event(caller, fields))
        self._admission.check(event, caller.headers)
        return (await self._service.apply(event, (*caller.headers, *trace_headers()), self._timeout_s)).receipt


def _recall(arguments: SearchArguments) -> dict[str, Any]:
    given = _given(arguments)
    filters: dict[str, Any] = {name: given[name] for name in ("created_after", "created_before") if name in given}
    listed = (("session_id", "session_ids"), ("category", "categories"), ("kind", "kinds"))
    filters |= {several: [given[one]] for one, several in listed if one in given}
    return {"type": "recall", "query": arguments.query, "k": arguments.limit, "filters": filters}


def _given(arguments: Arguments) -> dict[str, Any]:
    """Return the arguments that are set."""
    return {name: value for name, value in arguments.model_dump().items() if value != ""}


def _event(caller: Caller, fields: dict[str, Any]) -> Any:
    """Return the event. Raise InvalidRecord, which names the wrong arguments."""
    try:
        return parse(orjson.dumps(fields | caller.scope()))
    except InvalidRecord as error:
        raise InvalidRecord(error.code, [FieldProblem(_argument(f), problem) for f, problem in error.fields]) from None


def _argument(field: str) -> str:
    """Return the argument of an event field: `session_id` for `filters.session_ids.0`."""
    named = field.removesuffix(".0")
    return _ARGUMENTS.get(named, named.removeprefix("filters."))
