"""Adapters to agent frameworks, and helpers that they share. Each adapter needs the extra of the same name."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from recallflow.distribution import install
from recallflow.errors import DeliveryFailed, NothingWritten, QueryTimeout, UsageError
from recallflow.records import Position
from recallflow.responses import ListedMemory, MemoryVersion
from recallflow.verbs.results import SearchResults
from recallflow.verbs.verbs import AsyncCalls, SyncCalls

M = TypeVar("M", bound=ListedMemory | MemoryVersion)
WAIT_MS = 60_000  # longer than clients wait by default
# Fields of a recall without results, so that no memory counts as used.
_NO_RESULTS = MappingProxyType[str, Any]({"k": 1, "mode": "recency", "filters": {"session_ids": ["-"]}})


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Guard the imports of an extra. Raise ImportError with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        adapter = f"recallflow.integrations.{name.replace('-', '_')}"
        library = (error.name or "its library").partition(".")[0]
        raise ImportError(f"{adapter} needs {library}: {install(name)}") from None


def wait_applied(client: SyncCalls, user_id: str, position: Position) -> None:
    """Return once the write at a position is applied. Raise QueryTimeout after `WAIT_MS`; the write is stored then."""
    _check_fresh(client.search("-", user=user_id, **_NO_RESULTS, after=position, wait_timeout_ms=WAIT_MS))


async def await_applied(client: AsyncCalls, user_id: str, position: Position) -> None:
    """Return once the write at a position is applied, as `wait_applied` does."""
    _check_fresh(await client.search("-", user=user_id, **_NO_RESULTS, after=position, wait_timeout_ms=WAIT_MS))


@contextmanager
def guard_query_before_write() -> Iterator[None]:
    """Guard queries before a write. Raise NothingWritten if one fails; QueryTimeout would mean a stored write."""
    try:
        yield
    except (QueryTimeout, DeliveryFailed) as error:
        raise NothingWritten(error) from error


def _check_fresh(found: SearchResults) -> None:
    if any(warning.code == "stale_read" for warning in found.warnings):
        raise QueryTimeout(found.response.query_id, WAIT_MS / 1_000, "an earlier write is not applied yet")


def checked_untruncated(memory: M) -> M:
    """Return a memory. Raise UsageError if it was cut to fit the response topic."""
    if memory.truncated:
        raise UsageError(f"{memory.id} exceeds the limit of the response topic: raise the topic's max.message.bytes")
    return memory
