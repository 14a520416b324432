"""Rows of memory versions, and their index entries, made from events."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recallflow.caching import Kept
from recallflow.events import MemoryAdd, MemoryUpdate, Message
from recallflow.language import stems
from recallflow.operators import derived
from recallflow.operators.events import Analysis
from recallflow.operators.view import View
from recallflow.state.labels import metadata_labels
from recallflow.state.rows import Entry, MemoryRow, Vectors

DEFAULT_KIND = "fact"
MESSAGE_KIND = "message"
# Event field → column, if the names differ.
_COLUMNS = {"valid_from": "valid_from_ms", "valid_to": "valid_to_ms", "expires_at": "expires_ms"}
_CLEARED: dict[str, Any] = {
    "kind": DEFAULT_KIND,
    "layer": "long_term",
    "tags": [],
    "topics": [],
    "entities": [],
    "relations": [],
    "importance": 0.5,
    "confidence": 1.0,
}


def new_row(view: View, event: Message | MemoryAdd, memory_id: str, created: tuple[int, bool]) -> MemoryRow:
    """Return the first version of a memory."""
    created_ms, created_logged = created
    role: str | None
    if isinstance(event, Message):
        content, kind, role = event.text(), MESSAGE_KIND, event.role
    else:
        content, kind, role = event.content, DEFAULT_KIND, None
    row = MemoryRow(
        id=memory_id,
        seq=view.next_seq(),
        version=0,
        change=view.change,
        content=content,
        created_ms=created_ms,
        ingested_ms=view.ingested_ms,
        created_logged=created_logged,
        ingested_logged=view.ingested_logged,
        kind=kind,
        role=role,
        name=event.name,
        session_id=event.session_id,
        project_id=event.project_id,
        metadata=event.metadata,
    )
    if isinstance(event, Message):
        return row
    made_from = None if event.derived_from is None else derived.columns(view, event.derived_from)
    return replace(row, derived_from=made_from, **dict(_columns(event)))


def changed_columns(before: MemoryRow, event: MemoryUpdate) -> dict[str, Any]:
    """Return the columns that an update changes. Derived values only fill empty columns, and are removed with their
    text."""
    columns = dict(_columns(event))
    if event.derived_from is not None:
        columns = {name: value for name, value in columns.items() if getattr(before, name) in (None, [])}
        return columns | {"filled": [*before.filled, *columns]} if columns else {}
    if before.role is not None and "kind" in columns and event.kind is None:
        columns["kind"] = MESSAGE_KIND  # the default of a message
    filled = [name for name in before.filled if name not in columns]
    if event.content not in (None, before.content):
        columns |= {name: [] if isinstance(getattr(before, name), list) else None for name in filled}
        filled = []
    return columns | {"filled": filled}


def _columns(event: MemoryAdd | MemoryUpdate) -> Iterator[tuple[str, Any]]:
    """Yield row columns of the fields that an event names. Null resets a field to its default."""
    for field, value in event.given().items():
        if field == "embedding":
            continue
        if field in ("entities", "relations") and value is not None:
            value = [item.model_dump(exclude_none=True) for item in value]
        yield _COLUMNS.get(field, field), _CLEARED.get(field) if value is None else value


def entry_of(row: MemoryRow, episode: int, analysis: Analysis) -> Entry:
    """Return the index entry of a version, for ranking and filtering."""
    return Entry(  # positional, because keywords take twice the time
        row.seq,
        row.version,
        row.change,
        row.id,
        row.created_ms,
        row.created_logged,
        row.ingested_ms,
        episode,
        analysis.flags,
        row.author,
        _author_stems[row.author or ""],
        analysis.stems,
        row.kind,
        row.layer,
        row.role,
        row.session_id,
        row.project_id,
        row.category,
        row.tags,
        row.importance,
        row.confidence,
        row.valid_from_ms,
        row.valid_to_ms,
        row.expires_ms,
        metadata_labels(row.metadata),
        row.edited_ms,
    )


_author_stems: Kept[str, str] = Kept(
    lambda author: " ".join(stems(author)), 1024 * 1024
)  # few distinct authors occur often


def vectors_of(analysis: Analysis, model: str) -> Vectors | None:
    """Return the vectors of a text; None if the model gave none."""
    if analysis.vectors is None:
        return None
    return Vectors(model, analysis.vectors, analysis.tokens, analysis.sizes)
