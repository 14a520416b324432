"""A write that is over once it is applied: what reads after it, in any process, sees it."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from recallflow.errors import DeliveryFailed, NothingWritten, QueryTimeout
from recallflow.integrations.client import AsyncClient, Client
from recallflow.records import Position
from recallflow.verbs.results import Found

WAIT_MS = 60_000  # longer than clients wait by themselves
# A recall that finds nothing, and so counts as no use of a memory.
_NOTHING = MappingProxyType[str, Any]({"k": 1, "mode": "recency", "filters": {"session_ids": ["-"]}, "explain": False})


def wait(client: Client, user_id: str, position: Position) -> None:
    """Returns once the write at a position is applied. Raises QueryTimeout where that is not known in time: the write
    is stored all the same."""
    _check(client.search("-", user=user_id, **_NOTHING, after=position, wait_timeout_ms=WAIT_MS))


async def await_applied(client: AsyncClient, user_id: str, position: Position) -> None:
    """The same, awaited."""
    _check(await client.search("-", user=user_id, **_NOTHING, after=position, wait_timeout_ms=WAIT_MS))


@contextmanager
def before_a_write() -> Iterator[None]:
    """What a write has to ask first. Raises NothingWritten where that has no answer: QueryTimeout would say that the
    write is stored."""
    try:
        yield
    except (QueryTimeout, DeliveryFailed) as error:
        raise NothingWritten(error) from error


def _check(found: Found) -> None:
    if any(warning.code == "stale_read" for warning in found.warnings):
        raise QueryTimeout(found.response.query_id, WAIT_MS / 1_000, "a write before it is not applied yet")
