"""Memories as the events that bring them: what `recallflow export --memories` writes, and `recallflow replay` reads."""

from collections.abc import Iterator
from typing import Any

from recallflow.fields import format_time
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.logical import owners
from recallflow.state.partition import Partition
from recallflow.state.rows import Entry, MemoryRow

Event = dict[str, Any]

ID_CHARACTERS = 128
_TIMES = {"valid_from_ms": "valid_from", "valid_to_ms": "valid_to", "expires_ms": "expires_at"}
_PLAIN = (
    "summary", "kind", "layer", "category", "tags", "topics", "entities", "relations", "importance", "confidence",
    "metadata",
)  # fmt: skip
_OF_A_MESSAGE = frozenset(("metadata",))
_DEFAULTS = {"kind": "message", "layer": "long_term", "importance": 0.5, "confidence": 1.0, "tags": [], "topics": [],
             "entities": [], "relations": []}  # fmt: skip


def memory_events(directory: StateDirectory, tenant_id: str | None = None, user_id: str | None = None,
                  environments: frozenset[str] = frozenset()) -> Iterator[Event]:  # fmt: skip
    """The events that bring all memories that are held, every version of each: of everybody, of a tenant, of a user, or
    of some environments. Partition by partition, owner by owner, in the order in which memories came."""
    for partition in directory.existing_partitions():
        for key, head in owners(partition):
            owner = head.owner
            is_wanted = tenant_id in (None, owner.tenant_id) and user_id in (None, owner.user_id)
            if is_wanted and (not environments or owner.environment in environments):
                yield from _of_owner(partition, key, owner)


def _of_owner(partition: Partition, key: bytes, owner: Owner) -> Iterator[Event]:
    for _, stored in partition.scan(keys.table(key, keys.ENTRY)):
        name = partition.keyring.name(key, Entry.decode(stored).id)
        before: Event | None = None
        for _, value in partition.scan(keys.rows(key, name)):
            row = MemoryRow.decode(value)
            fields = _fields(row)
            if before is None:
                yield from _brought(owner, row, fields)
            else:
                changed = {field: value for field, value in fields.items() if value != before[field]}
                yield from _updated(owner, row, changed)
            before = fields


def _fields(row: MemoryRow) -> Event:
    """All that an update can change, cleared fields as null."""
    found = {name: getattr(row, name) for name in ("content", *_PLAIN)}
    for column, name in _TIMES.items():
        value = getattr(row, column)
        found[name] = None if value is None else format_time(value)
    return found


def _brought(owner: Owner, row: MemoryRow, fields: Event) -> Iterator[Event]:
    """The event that brought a memory. A message has fewer fields: the others come as an update of the same moment."""
    given = {name: value for name, value in fields.items() if value is not None and value != _DEFAULTS.get(name)}
    is_message = row.kind == "message" and row.role is not None
    event = {"type": "message" if is_message else "memory", "id": row.id, **_place(owner, row)}
    event |= {"timestamp": format_time(row.created_ms)}
    event |= {name: value for name in ("role", "name") if (value := getattr(row, name)) is not None}
    if not is_message:
        event.pop("role", None)
        yield event | {"kind": row.kind} | given | _derived(row)
        return
    yield event | {"content": row.content} | {name: given[name] for name in _OF_A_MESSAGE & given.keys()}
    if more := {name: value for name, value in given.items() if name not in _OF_A_MESSAGE | {"content"}}:
        yield from _updated(owner, row, more)


def _updated(owner: Owner, row: MemoryRow, changed: Event) -> Iterator[Event]:
    if changed:
        at = row.created_ms if row.edited_ms is None else row.edited_ms
        event = {"type": "memory.update", "id": _update_id(row), "memory_id": row.id, **_place(owner, row)}
        yield event | {"timestamp": format_time(at)} | changed


def _update_id(row: MemoryRow) -> str:
    suffix = f"@{row.version}"
    return row.id[: ID_CHARACTERS - len(suffix)] + suffix


def _place(owner: Owner, row: MemoryRow) -> Event:
    named = {"session_id": row.session_id, "project_id": row.project_id}
    return owner._asdict() | {name: value for name, value in named.items() if value is not None}


def _derived(row: MemoryRow) -> Event:
    """Of which memories it was made, without what they said then: later versions of them come before it here."""
    if not row.derived_from:
        return {}
    kept = {name: value for name, value in row.derived_from.items() if name not in ("content_hash", "others", "source")}
    others = [{"memory_id": one["memory_id"]} for one in row.derived_from.get("others") or ()]
    return {"derived_from": kept | ({"others": others} if others else {})}
