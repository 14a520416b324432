"""Memories whose text cannot be decrypted: fields of the index are shown, text and summary are redacted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeGuard

from recallflow.errors import InvalidRecord
from recallflow.queries import QueryEvent, Recall
from recallflow.responses import Response, Warn
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow
from recallflow.state.segment import COLUMNS

REDACTED = "[REDACTED — DECRYPTION FAILED]"
RowsReader = Callable[[list[int]], list[MemoryRow | None]]  # reads slots; unreadable rows are `Redacted`


@dataclass(slots=True)
class Redacted(MemoryRow):
    """A substitute for an unreadable row."""


def version(memory_id: str, seq: int, number: int) -> Redacted:
    """Return a substitute for a version, with its known ids and number only."""
    return Redacted(
        id=memory_id, seq=seq, version=number, change=0, content=REDACTED, summary=REDACTED, created_ms=0, ingested_ms=0
    )


def memory(index: OwnerIndex, slot: int) -> Redacted:
    """Return a substitute for the memory of a slot, from the index, where an author is a name or else a role."""
    fact, strings = {name: index.facts[name][slot] for name in COLUMNS}, index.names.strings

    def text(column: str) -> str | None:
        return strings[fact[column]] if fact[column] >= 0 else None

    author, role = text("author"), text("role")
    return replace(
        version(index.ids[slot], int(fact["seq"]), int(fact["version"])),
        created_ms=int(fact["created_ms"]),
        kind=text("kind") or "",
        layer=text("layer") or "",
        role=role,
        name=None if author == role else author,
        session_id=text("session"),
        project_id=text("project"),
        category=text("category"),
        tags=index.tags[slot],
        importance=float(fact["importance"]),
        confidence=float(fact["confidence"]),
    )


def is_readable(row: MemoryRow | None) -> TypeGuard[MemoryRow]:
    """Return whether a row exists and has its text."""
    return row is not None and not isinstance(row, Redacted)


def unreadable() -> InvalidRecord:
    problem = "the stored data of the user cannot be decrypted: restore the key or a checkpoint, or erase the user"
    return InvalidRecord.of("unreadable", problem)


def unreadable_answer(query: QueryEvent, query_id: str) -> Response:
    """Return the answer if all data of the user is unreadable."""
    found = Response(query_id=query_id, status="ok")
    if isinstance(query, Recall):
        found = found.model_copy(update={"memories": []})
    return found.warned([Warn(code="decryption_failed", detail="the stored data of the user could not be decrypted")])


def warnings_of(rows: Iterable[MemoryRow | None]) -> list[Warn]:
    """Return the warning for an answer with redacted memories."""
    if not (count := sum(isinstance(row, Redacted) for row in rows)):
        return []
    return [Warn(code="decryption_failed", detail=f"{count} memories could not be decrypted and are redacted")]
