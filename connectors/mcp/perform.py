"""What the tools do: each makes one event of its arguments and the caller, and puts it to the service."""

import uuid
from typing import Any, cast

import orjson

from recallflow.connectors.mcp import shown
from recallflow.connectors.mcp.caller import Caller
from recallflow.connectors.mcp.shown import Result
from recallflow.connectors.mcp.tools import (
    AddArguments,
    Arguments,
    EpisodesArguments,
    ForgetArguments,
    SearchArguments,
)
from recallflow.errors import FieldProblem, InvalidRecord, QueryFailed
from recallflow.events import MemoryEvent
from recallflow.parsing import parse
from recallflow.queries import QueryEvent
from recallflow.responses import EpisodeInfo, Receipt, Response
from recallflow.service import Admission, Service
from recallflow.tracing import trace_headers

# Field of an event → argument that it is made of, where the two are called differently.
_ARGUMENTS = {"k": "limit", "filters.session_ids": "session_id", "filters.categories": "category",
              "filters.kinds": "kind"}  # fmt: skip


class Performer:
    """Performs tools for callers."""

    def __init__(self, service: Service, admission: Admission, timeout_s: float) -> None:
        self._service, self._admission, self._timeout_s = service, admission, timeout_s

    async def perform(self, caller: Caller, arguments: Arguments) -> Result:
        """Raises RecallflowError."""
        match arguments:
            case SearchArguments():
                return shown.found(await self._ask(caller, _recall(arguments)))
            case AddArguments():
                memory_id = str(uuid.uuid4())
                event = {"type": "memory", "id": memory_id} | _given(arguments)
                return shown.added(memory_id, applied=await self._apply(caller, event) is not None)
            case ForgetArguments():
                event = {"type": "memory.forget", "memory_id": arguments.memory_id}
                receipt = await self._apply(caller, event)
                if receipt is not None and receipt.outcome == "unchanged":
                    raise InvalidRecord("not_found", [FieldProblem("memory_id", "no memory has this id")])
                return shown.forgotten(arguments.memory_id, applied=receipt is not None)
            case EpisodesArguments():
                response = await self._ask(caller, {"type": "episodes.list"} | _given(arguments))
                return shown.episodes(cast(list[EpisodeInfo], response.episodes or []))
        raise TypeError(f"no tool takes {type(arguments).__name__}")

    async def _ask(self, caller: Caller, fields: dict[str, Any]) -> Response:
        query = cast(QueryEvent, _event(caller, fields))
        self._admission.check(query, caller.headers)
        response = await self._service.ask(query, (*caller.headers, *trace_headers()), self._timeout_s)
        if response.error is not None:
            raise QueryFailed(response.query_id, response.error)
        return response

    async def _apply(self, caller: Caller, fields: dict[str, Any]) -> Receipt | None:
        """What became of an event, where that is known in time."""
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
    """The arguments that say anything."""
    return {name: value for name, value in arguments.model_dump().items() if value != ""}


def _event(caller: Caller, fields: dict[str, Any]) -> Any:
    """The event. Raises InvalidRecord, which names the arguments that are wrong."""
    try:
        return parse(orjson.dumps(fields | caller.scope()))
    except InvalidRecord as error:
        raise InvalidRecord(error.code, [FieldProblem(_argument(f), problem) for f, problem in error.fields]) from None


def _argument(field: str) -> str:
    """`filters.session_ids.0` of an event is the argument `session_id`."""
    named = field.removesuffix(".0")
    return _ARGUMENTS.get(named, named.removeprefix("filters."))
