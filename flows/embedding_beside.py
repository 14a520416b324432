"""Texts of events that are embedded by a service before the dataflow takes them: a service that is slow, or away, holds
up nobody but the tenant whose texts it reads."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from recallflow.embedder import Matrix
from recallflow.events import MemoryEvent, MemoryFields, Message
from recallflow.flows.embedding import Ahead, text_of, with_vector
from recallflow.operators.events import Item, Write
from recallflow.records import Position

AT_ONCE = 32  # texts of one call: those that came while the one before it was under way
_Waiting = tuple[str, "asyncio.Future[Matrix | str]"]


class Beside:
    """Asks for vectors on the callers' event loop, and hands them to the dataflow by the positions of their records."""

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)  # by tenant
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._found: dict[Position, Matrix | str] = {}

    async def embed(self, event: MemoryEvent) -> Matrix | str | None:
        """The vector of an event's text, or the code of why there is none; None where none is wanted."""
        has_vector = isinstance(event, Message | MemoryFields) and event.embedding is not None
        if has_vector or (text := text_of(event)) is None:
            return None
        future: asyncio.Future[Matrix | str] = asyncio.get_running_loop().create_future()
        self._waiting[event.tenant_id].append((text, future))
        if event.tenant_id not in self._asking:
            self._asking[event.tenant_id] = asyncio.create_task(self._ask_all(event.tenant_id))
        return await future

    def keep(self, position: Position, found: Matrix | str) -> None:
        """What came of a record's text, until the dataflow has the record."""
        self._found[position] = found

    def attach(self, prepared: Sequence[Item]) -> list[Item]:
        """The items with what was found of them. On the dataflow's thread."""
        return [self._attached(item) for item in prepared]

    def _attached(self, item: Item) -> Item:
        found = self._found.pop(item.record.position, None)
        if found is None or not isinstance(item, Write) or item.analysis is None:
            return item
        return item if item.analysis.vectors is not None else with_vector(item, found)

    async def _ask_all(self, tenant_id: str) -> None:
        """One call after the other, until nothing of the tenant waits."""
        try:
            while waiting := self._waiting.pop(tenant_id, None):
                wanted = [one for one in waiting if not one[1].done()]  # who waited for another has given up
                self._waiting[tenant_id] = wanted[AT_ONCE:]
                if wanted:
                    await self._ask(tenant_id, wanted[:AT_ONCE])
        finally:
            del self._asking[tenant_id]

    async def _ask(self, tenant_id: str, waiting: Sequence[_Waiting]) -> None:
        try:
            found = await asyncio.wrap_future(self._ahead.start(tenant_id, [text for text, _ in waiting]))
        except Exception as error:  # noqa: BLE001 - the service's, or a defect: who waits is told, and others go on
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), one in zip(waiting, found, strict=True):
            if not future.done():  # who waited for it has given up
                future.set_result(one)
