"""Adapters to agent frameworks, each with the extra of its name, and the helpers that they share."""

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


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Guard the imports of an extra. Raise ImportError with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        adapter = f"recallflow.integrations.{name.replace('-', '_')}"
        library = (error.name or "its library").partition(".")[0]
        raise ImportError(f"{adapter} needs {library}: {install(name)}") from None


Whole = TypeVar("Whole", bound=ListedMemory | MemoryVersion)
WAIT_MS = 60_000  # longer than clients wait by themselves
# A recall without results, which therefore counts as no use of a memory.
_NOTHING = MappingProxyType[str, Any]({"k": 1, "mode": "recency", "filters": {"session_ids": ["-"]}})


def wait_applied(client: SyncCalls, user_id: str, position: Position) -> None:
    """Return once a write is applied. Raise QueryTimeout if that is unknown in time; it is stored all the same."""
    _check(client.search("-", user=user_id, **_NOTHING, after=position, wait_timeout_ms=WAIT_MS))


async def await_applied(client: AsyncCalls, user_id: str, position: Position) -> None:
    """Return once the write at a position is applied, as `wait_applied` does."""
    _check(await client.search("-", user=user_id, **_NOTHING, after=position, wait_timeout_ms=WAIT_MS))


@contextmanager
def guard_query_before_write() -> Iterator[None]:
    """Guard queries before a write. Raise NothingWritten if they fail: QueryTimeout would mean a stored write."""
    try:
        yield
    except (QueryTimeout, DeliveryFailed) as error:
        raise NothingWritten(error) from error


def _check(found: SearchResults) -> None:
    if any(warning.code == "stale_read" for warning in found.warnings):
        raise QueryTimeout(found.response.query_id, WAIT_MS / 1_000, "a write before it is not applied yet")


def checked_untruncated(memory: Whole) -> Whole:
    """Return a memory. Raise UsageError if it was cut to fit the response topic."""
    if memory.truncated:
        raise UsageError(f"{memory.id} is larger than its response topic takes: raise its max.message.bytes")
    return memory
