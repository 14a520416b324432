"""Adapters to agent frameworks, each with the extra of its name, and the client interface and helpers that they share.

`Memory` and `RecallClient` are clients, `AsyncMemory` and `AsyncRecallClient` asynchronous ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

from recallflow.distribution import install
from recallflow.errors import DeliveryFailed, NothingWritten, QueryTimeout, UsageError
from recallflow.records import Position
from recallflow.verbs.results import Added, Found, Page
from recallflow.verbs.verbs import Content


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Guard the imports of an extra. Raise ImportError with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        adapter = f"recallflow.integrations.{name.replace('-', '_')}"
        library = (error.name or "its library").partition(".")[0]
        raise ImportError(f"{adapter} needs {library}: {install(name)}") from None


class Client(Protocol):
    """Synchronous client for any thread; every call waits for its outcome. `fields` are other fields of the event."""

    def add(self, content: Content, *, user: str, **fields: Any) -> Added: ...

    def update(self, memory_id: str, *, user: str, **fields: Any) -> Position: ...

    def forget(self, memory_id: str, *, user: str) -> Position: ...

    def search(self, query: str, *, user: str, **fields: Any) -> Found: ...

    def all(self, *, user: str, **fields: Any) -> Page: ...


class AsyncClient(Protocol):
    """Asynchronous client."""

    async def add(self, content: Content, *, user: str, **fields: Any) -> Added: ...

    async def forget(
        self, memory_id: str | None = None, *, user: str, where: Mapping[str, Any] | None = None
    ) -> Position: ...

    async def search(self, query: str, *, user: str, **fields: Any) -> Found: ...

    async def all(self, *, user: str, **fields: Any) -> Page: ...


WAIT_MS = 60_000  # longer than clients wait by themselves
# A recall without results, which therefore counts as no use of a memory.
_NOTHING = MappingProxyType[str, Any]({"k": 1, "mode": "recency", "filters": {"session_ids": ["-"]}})


def wait(client: Client, user_id: str, position: Position) -> None:
    """Return once a write is applied. Raise QueryTimeout if that is unknown in time; it is stored all the same."""
    _check(client.search("-", user=user_id, **_NOTHING, after=position, wait_timeout_ms=WAIT_MS))


async def await_applied(client: AsyncClient, user_id: str, position: Position) -> None:
    """Return once the write at a position is applied, as `wait` does."""
    _check(await client.search("-", user=user_id, **_NOTHING, after=position, wait_timeout_ms=WAIT_MS))


@contextmanager
def before_a_write() -> Iterator[None]:
    """Guard queries before a write. Raise NothingWritten if they fail: QueryTimeout would mean a stored write."""
    try:
        yield
    except (QueryTimeout, DeliveryFailed) as error:
        raise NothingWritten(error) from error


def _check(found: Found) -> None:
    if any(warning.code == "stale_read" for warning in found.warnings):
        raise QueryTimeout(found.response.query_id, WAIT_MS / 1_000, "a write before it is not applied yet")


PAGE = 1_000


def listed_whole(page: Page) -> Page:
    """Return the page. Raise UsageError where a memory was cut to fit the response topic."""
    if cut := [memory.id for memory in page if memory.truncated]:
        raise UsageError(f"{cut[0]} is larger than its response topic takes: raise its max.message.bytes")
    return page
