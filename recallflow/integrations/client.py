"""What adapters need of a client: `RecallClient` and `AsyncRecallClient` have it, and so may one without Kafka."""

from typing import Any, Protocol

from recallflow.records import Position
from recallflow.responses import Response


class Client(Protocol):
    """Remembers and recalls; every call waits for its outcome, on any thread. `fields`: any other of the event."""

    def remember(self, user_id: str, content: str, **fields: Any) -> Position: ...

    def update(self, user_id: str, memory_id: str, **fields: Any) -> Position: ...

    def forget(self, user_id: str, memory_id: str) -> Position: ...

    def recall(self, user_id: str, query: str, **fields: Any) -> Response: ...

    def memories(self, user_id: str, **fields: Any) -> Response: ...


class AsyncClient(Protocol):
    """The same, awaited."""

    async def remember(self, user_id: str, content: str, **fields: Any) -> Position: ...

    async def message(self, user_id: str, content: str | None, **fields: Any) -> Position: ...

    async def forget(self, user_id: str, memory_id: str | None = None, **fields: Any) -> Position: ...

    async def recall(self, user_id: str, query: str, **fields: Any) -> Response: ...

    async def memories(self, user_id: str, **fields: Any) -> Response: ...
