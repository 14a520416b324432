"""One request of a mem0 client, put to the service: judged, asked, stored."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import orjson
from fastapi import Request

from recallflow.connectors.http.bodies import credentials_of
from recallflow.connectors.http.door import Door
from recallflow.connectors.http.mem0.entities import invalid
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER
from recallflow.errors import InvalidRecord, QueryFailed
from recallflow.events import PRODUCTION, MemoryEvent
from recallflow.parsing import parse
from recallflow.queries import QueryEvent
from recallflow.responses import Receipt, Response

_SCHEME = b"token "  # mem0's, before an API key


class Calls:
    """What a request asks for, of the tenant that its path names."""

    def __init__(self, door: Door, request: Request) -> None:
        self._door = door
        self.tenant_id = request.path_params["tenant_id"]
        self.environment = request.path_params.get("environment", PRODUCTION)
        self._headers = tuple(map(_ours, credentials_of(request)))

    async def body(self, request: Request) -> bytes:
        """The JSON that came with a request. Raises Problem and InvalidRecord."""
        return await self._door.body(request, self._headers)

    async def ask(self, user_id: str, fields: dict[str, Any]) -> Response:
        """Raises RecallflowError, also for an answer that is an error."""
        query = cast(QueryEvent, self._event(user_id, fields))
        response = await self._door.answer(query, self._headers)
        if response.error is not None:
            raise QueryFailed(response.query_id, response.error)
        return response

    async def apply(self, user_id: str, events: Sequence[dict[str, Any]]) -> list[tuple[MemoryEvent, Receipt | None]]:
        """Stores events in their order, and waits for each; all are checked before the first is stored. No receipt
        where it is not known in time what became of one. Raises RecallflowError."""
        parsed = [cast(MemoryEvent, self._event(user_id, fields)) for fields in events]
        for event in parsed:
            self._door.admission.check(event, self._headers)
        applied = []
        with self._door.slot(self.tenant_id):
            for event in parsed:
                stored = await self._door.service.apply(event, self._headers, self._door.limits.timeout_s)
                applied.append((event, stored.receipt))
        return applied

    async def version(self, user_id: str, memory_id: str) -> dict[str, Any]:
        """A memory as it is now. Raises RecallflowError."""
        response = await self.ask(user_id, {"type": "memory.get", "memory_id": memory_id})
        return (response.versions or [{}])[0]

    async def versions(self, user_id: str, memory_ids: Iterable[str]) -> list[dict[str, Any] | None]:
        """Memories as they are now; None for one that was forgotten meanwhile."""
        return await asyncio.gather(*(self._version_if_any(user_id, memory_id) for memory_id in memory_ids))

    async def _version_if_any(self, user_id: str, memory_id: str) -> dict[str, Any] | None:
        try:
            return await self.version(user_id, memory_id)
        except QueryFailed as error:
            if error.error.code == "not_found":
                return None
            raise

    async def check_key(self) -> None:
        """Raises InvalidRecord for credentials that nobody has, whatever else they are for."""
        question = cast(QueryEvent, self._event("anyone", {"type": "user.stats"}))
        try:
            self._door.admission.check(question, self._headers)
        except InvalidRecord as error:
            if error.code != "forbidden":  # for one user alone: which one, a ping does not say
                raise

    def _event(self, user_id: str, fields: dict[str, Any]) -> Any:
        try:
            scope = {"tenant_id": self.tenant_id, "environment": self.environment, "user_id": user_id}
            return parse(orjson.dumps(fields | scope))
        except orjson.JSONEncodeError as error:
            raise invalid("", f"cannot be written as JSON: {error}") from None


def _ours(header: tuple[str, bytes | None]) -> tuple[str, bytes | None]:
    """`authorization: Token KEY` is an API key."""
    name, value = header
    if name == TOKEN_HEADER and value is not None and value[: len(_SCHEME)].lower() == _SCHEME:
        return KEY_HEADER, value[len(_SCHEME) :].strip(b" ")
    return header
