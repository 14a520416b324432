"""What adapters need of a client: `Memory`, `AsyncMemory`, `RecallClient` and `AsyncRecallClient` have it."""

from collections.abc import Mapping
from typing import Any, Protocol

from recallflow.records import Position
from recallflow.verbs.results import Added, Found, Page
from recallflow.verbs.verbs import Content


class Client(Protocol):
    """Remembers and finds; every call waits for its outcome, on any thread. `fields`: any other of the event."""

    def add(self, content: Content, *, user: str, **fields: Any) -> Added: ...

    def update(self, memory_id: str, *, user: str, **fields: Any) -> Position: ...

    def forget(self, memory_id: str, *, user: str) -> Position: ...

    def search(self, query: str, *, user: str, **fields: Any) -> Found: ...

    def all(self, *, user: str, **fields: Any) -> Page: ...


class AsyncClient(Protocol):
    """The same, awaited."""

    async def add(self, content: Content, *, user: str, **fields: Any) -> Added: ...

    async def forget(
        self, memory_id: str | None = None, *, user: str, where: Mapping[str, Any] | None = None
    ) -> Position: ...

    async def search(self, query: str, *, user: str, **fields: Any) -> Found: ...

    async def all(self, *, user: str, **fields: Any) -> Page: ...
