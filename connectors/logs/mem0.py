"""Memories of mem0: results of `get_all`, an export or `history`, saved as JSON.

    {"results": [memory]}, {"memories": [memory]}, [memory], or a memory a line
    memory: {"id", "memory", "user_id" | "agent_id" | "app_id" | "run_id", "metadata", "categories", "created_at",
             "updated_at", "expiration_date"?}
    history: {"id", "memory_id", "event": "ADD" | "UPDATE" | "DELETE", "old_memory", "new_memory", "created_at", …}

Sources of the format: docs.mem0.ai (api-reference/memory/get-memory, v2-get-memories, create-memory-export and
cookbooks/essentials/exporting-memories). Owners and fields match the gateway's mem0 interface
(docs/how-to/mem0-clients.md), so both ways of migration give the same memories.
"""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from recallflow.connectors.http.mem0.requests import ENTITIES, owned
from recallflow.connectors.logs.building import (
    broken,
    edit,
    encode_owned_event,
    identifier,
    leave_out,
    lenient,
    stamp,
    word,
)
from recallflow.connectors.logs.documents import elements, first_objects
from recallflow.connectors.logs.model import ImportScope, LogFormat, LogHead, LogSource, start_of
from recallflow.connectors.logs.owners import identifier_text, is_scalar, unclear_identities
from recallflow.errors import InvalidRecord

_LISTS = ("results", "memories", "history")
_NOT_MEMORIES = ("relations", "entities")


def _recognises(head: LogHead) -> bool:
    return not head.members and any(map(_is_memory, _first(head.start)))


def _first(start: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in first_objects(start):
        lists = [one[name] for name in _LISTS if isinstance(one.get(name), list)]
        found += [item for given in lists for item in given if isinstance(item, dict)] if lists else [one]
    return found


def _is_memory(one: dict[str, Any]) -> bool:
    if "memory_id" in one:
        return "new_memory" in one
    return isinstance(one.get("memory"), str) and "id" in one


def _read(source: LogSource, scope: ImportScope) -> Iterator[bytes]:
    with source.open() as opened:
        start = first_objects(start_of(opened, 64 * 1024))
    listed = next((name for one in start for name in _LISTS if name in one), None)
    with source.open() as opened:
        path = () if listed is None else (listed,)
        for number, text in enumerate(elements(opened, *path), start=1):
            value, where = lenient(text), f"{source.name}, {number}"
            pages = value.get(listed) if listed and isinstance(value, dict) else None  # a further page, in a line
            for one in pages if isinstance(pages, list) else [value]:
                yield from memory_events(one, scope, where)
    if any(name in one for one in start for name in _NOT_MEMORIES):
        leave_out(scope, "relations of mem0's graph")


MEM0 = LogFormat(
    "mem0",
    "memories of mem0",
    _recognises,
    _read,
    fields=("memory", "results", "memories", "agent_id", "app_id", "run_id", "categories", "old_memory", "new_memory"),
)


def memory_events(memory: Any, scope: ImportScope, where: str) -> Iterator[bytes]:
    """Yield a memory, with the update that changed it last; or a step of its history."""
    if not isinstance(memory, dict) or not _is_memory(memory):
        yield broken(where, "is no memory of mem0", memory)
        return
    try:
        owner, fields = _owned(memory, scope)
    except InvalidRecord as error:
        yield broken(where, str(error), memory)
        return
    if unclear := _unclear(memory, scope):
        yield broken(where, f"has none of {', '.join(ENTITIES)}, and {', '.join(unclear)}: give --user NAME", memory)
        return
    if "memory_id" in memory:
        yield _step(memory, owner, fields, scope)
        return
    memory_id, created, updated = (
        identifier(memory["id"]),
        stamp(memory.get("created_at")),
        stamp(memory.get("updated_at")),
    )
    labels = _labels(memory)
    given = {"content": memory["memory"], **labels}
    event = {"type": "memory", "id": memory_id, **fields, **given}
    yield encode_owned_event(scope, owner, event | ({} if created is None else {"timestamp": created}))
    if updated is not None and updated != created:
        yield edit(scope, owner, memory_id, (updated, updated), given)


def _owned(memory: dict[str, Any], scope: ImportScope) -> tuple[str, dict[str, Any]]:
    named = {kind: name for kind in ENTITIES if isinstance(name := identifier_text(memory.get(kind)), str) and name}
    metadata = memory.get("metadata")
    found = owned(named or {ENTITIES[0]: scope.user_id}, metadata if isinstance(metadata, dict) else None)
    return (scope.user_id if scope.user_given else found.user_id), found.fields


def _unclear(memory: dict[str, Any], scope: ImportScope) -> list[str]:
    """Return the fields that look like the owner of a memory without one."""
    if scope.user_given or any(is_scalar(memory.get(kind)) and memory[kind] != "" for kind in ENTITIES):
        return []
    return unclear_identities(name for name, value in memory.items() if value)


def _labels(memory: dict[str, Any]) -> dict[str, object]:
    categories = memory.get("categories")
    named = [one for one in categories if isinstance(one, str)] if isinstance(categories, list) else []
    labels: dict[str, object] = {"category": named[0]} if named else {}
    if len(named) > 1:
        labels["tags"] = named
    if expires := memory.get("expiration_date"):
        labels["expires_at"] = _expires(word(expires)[:64])
    return labels


def _expires(last_day: str) -> str:
    """Return the expiry time after a last valid date."""
    try:
        return (date.fromisoformat(last_day[:10]) + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return last_day


def _step(step: dict[str, Any], owner: str, fields: dict[str, Any], scope: ImportScope) -> bytes:
    """Return the event of a history step: added, changed or forgotten."""
    memory_id, kind = identifier(step["memory_id"]), step.get("event")
    time = stamp(step.get("updated_at")) or stamp(step.get("created_at"))
    if kind == "ADD":
        event = {"type": "memory", "id": memory_id, **fields, "content": step.get("new_memory")}
        time = stamp(step.get("created_at")) or time
    else:
        event = {"type": "memory.forget", "id": identifier(step.get("id")), "memory_id": memory_id}
        if kind != "DELETE":
            event |= {"type": "memory.update", "content": step.get("new_memory")}
    return encode_owned_event(scope, owner, event | ({} if time is None else {"timestamp": time}))
