"""Memories of mem0, Zep and Graphiti, saved as JSON.

mem0: results of `get_all`, an export or `history`.

    {"results": [memory]}, {"memories": [memory]}, [memory], or a memory a line
    memory: {"id", "memory", "user_id" | "agent_id" | "app_id" | "run_id", "metadata", "categories", "created_at",
             "updated_at", "expiration_date"?}
    history: {"id", "memory_id", "event": "ADD" | "UPDATE" | "DELETE", "old_memory", "new_memory", "created_at", …}

Sources of the format: docs.mem0.ai (api-reference/memory/get-memory, v2-get-memories, create-memory-export and
cookbooks/essentials/exporting-memories). Owners and fields match the gateway's mem0 interface
(docs/how-to/mem0-clients.md), so both ways of migration give the same memories.

Zep's threads (formerly sessions) and facts, and Graphiti's data, in the JSON of their interfaces.

    {"thread_id" | "session_id", "user_id", "messages": [message]}, or {"threads" | "sessions": [such]}
    message: {"uuid", "role" (a name if "role_type" exists, in v2), "name"?, "content", "created_at", "metadata"}
    {"edges" | "facts": [edge], "nodes": [node], "episodes": [episode]}
    edge:    {"uuid", "fact", "name", "source_node_uuid", "target_node_uuid", "valid_at", "invalid_at", "expired_at",
              "created_at", "group_id"?}
    node:    {"uuid", "name", "summary"}
    episode: {"uuid", "content", "source": "message" | "text" | "json", "role"?, "role_type"?, "valid_at", "created_at",
              "thread_id" | "session_id"?, "group_id"?}

A fact that became untrue has an `invalid_at`: it is imported as the fact, and as an update that ends it. Sources of the
format: help.getzep.com/sdk-reference (thread/get-messages-of-a-thread), its version 2
(deprecated/memory/get-session-message, graph/node/get-entity-edges-for-a-node) and mintlify.com/getzep/graphiti
(api/edges, api/episodes)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from recallflow.connectors.http.mem0_requests import ENTITIES, owner_and_fields
from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs import owners
from recallflow.connectors.logs.documents import elements, first_objects, members
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile
from recallflow.errors import InvalidRecord, UsageError

_MEM0_LISTS = ("results", "memories", "history")
_FIRST_BYTES = 64 * 1024  # in which the names of the lists appear


def _first_items(start: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in first_objects(start):
        lists = [one[name] for name in _MEM0_LISTS if isinstance(one.get(name), list)]
        found += [item for items in lists for item in items if isinstance(item, dict)] if lists else [one]
    return found


def _is_memory(one: dict[str, Any]) -> bool:
    if "memory_id" in one:
        return "new_memory" in one
    return isinstance(one.get("memory"), str) and "id" in one


def _read_mem0(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    start = first_objects(source.start(_FIRST_BYTES))
    list_name = next((name for one in start for name in _MEM0_LISTS if name in one), None)
    for number, value in _numbered_values(source, *filter(None, [list_name])):
        pages = log.field_of(value, list_name) if list_name else None  # a line may be a further page
        for one in pages if isinstance(pages, list) else [value]:
            yield from memory_events(one, scope, f"{source.name}, {number}")
    if any("relations" in one or "entities" in one for one in start):
        scope.leave_out("relations of mem0's graph")


MEM0 = LogFormat(
    "mem0",
    "memories of mem0",
    lambda head: any(map(_is_memory, _first_items(head.start))),
    _read_mem0,
    fields=("memory", "results", "memories", "agent_id", "app_id", "run_id", "categories", "old_memory", "new_memory"),
)


def memory_events(memory: Any, scope: ImportScope, where: str) -> Iterable[bytes]:
    """Return the events of a memory and its last change, or the event of one step of a memory's history."""
    if not isinstance(memory, dict) or not _is_memory(memory):
        return [log.broken(where, "is no memory of mem0", memory)]
    try:
        owner, fields = _mem0_owner(memory, scope)
    except InvalidRecord as error:
        return [log.broken(where, str(error), memory)]
    if unclear := _unclear_owners(memory, scope):
        problem = f"has {', '.join(unclear)}, but none of {', '.join(ENTITIES)}: give --user NAME"
        return [log.broken(where, problem, memory)]
    if "memory_id" in memory:
        return [_history_event(memory, owner, fields, scope)]
    memory_id = log.valid_id(memory["id"])
    created, updated = log.time_text(memory.get("created_at")), log.time_text(memory.get("updated_at"))
    content = {"content": memory["memory"], **_categories_and_expiry(memory)}
    event = scope.encode_owned_event(owner, {"type": "memory", "id": memory_id, **fields, **content}, created)
    if updated is None or updated == created:
        return [event]
    return [event, scope.update_event(owner, memory_id, (updated, updated), content)]


def _mem0_owner(memory: dict[str, Any], scope: ImportScope) -> tuple[str, dict[str, Any]]:
    """Return the owner, and the event fields that mem0's other entities become. Raise InvalidRecord."""
    ids = {kind: one for kind in ENTITIES if isinstance(one := owners.identifier_text(memory.get(kind)), str) and one}
    metadata = memory.get("metadata")
    labels = metadata if isinstance(metadata, dict) else None
    owner, fields = owner_and_fields(ids or {ENTITIES[0]: scope.user_id}, labels)
    return (scope.user_id if scope.user_given else owner), fields


def _unclear_owners(memory: dict[str, Any], scope: ImportScope) -> list[str]:
    """Return the fields that look like the owner of a memory without any of mem0's entities."""
    if scope.user_given or any(owners.is_scalar(memory.get(kind)) and memory[kind] != "" for kind in ENTITIES):
        return []
    return owners.unclear_identities(name for name, value in memory.items() if value)


def _categories_and_expiry(memory: dict[str, Any]) -> dict[str, object]:
    categories = [one for one in log.list_of(memory, "categories") if isinstance(one, str)]
    fields: dict[str, object] = {"category": categories[0]} if categories else {}
    if len(categories) > 1:
        fields["tags"] = categories
    if expires := memory.get("expiration_date"):
        fields["expires_at"] = _next_day(log.as_text(expires)[:64])
    return fields


def _next_day(last_day: str) -> str:
    """Return the day after the last day on which a memory is valid. An invalid date stays."""
    try:
        return (date.fromisoformat(last_day[:10]) + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return last_day


def _history_event(step: dict[str, Any], owner: str, fields: dict[str, Any], scope: ImportScope) -> bytes:
    memory_id, kind = log.valid_id(step["memory_id"]), step.get("event")
    time = log.time_text(step.get("updated_at")) or log.time_text(step.get("created_at"))
    if kind == "ADD":
        event = {"type": "memory", "id": memory_id, **fields, "content": step.get("new_memory")}
        time = log.time_text(step.get("created_at")) or time
    else:
        event = {"type": "memory.forget", "id": log.valid_id(step.get("id")), "memory_id": memory_id}
        if kind != "DELETE":
            event |= {"type": "memory.update", "content": step.get("new_memory")}
    return scope.encode_owned_event(owner, event, time)


_THREAD_LISTS, _FACT_LISTS = ("threads", "sessions"), ("edges", "facts")
_ZEP_LISTS = (*_THREAD_LISTS, "messages", "episodes", *_FACT_LISTS)
_OWNER_FIELDS = ("user_id", "group_id", "graph_id")
_SPEAKER_AND_TEXT = re.compile(r"(?P<name>[^:\n]{1,100}): ?(?P<text>.*)", re.DOTALL)


def _is_zep(one: dict[str, Any]) -> bool:
    first_items = {name: _first_of(one.get(name)) for name in _ZEP_LISTS}
    if _is_thread(one) or any(_is_thread(first_items[name]) for name in _THREAD_LISTS):
        return True
    return any("fact" in item or _is_episode(item) for item in (one, *first_items.values()))


def _first_of(items: object) -> dict[str, Any]:
    """Return the first item of a list; an empty object if the list is empty, or the item no object."""
    return items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}


def _is_thread(one: dict[str, Any]) -> bool:
    """Return whether an object is a thread of Zep, whose messages have a `uuid`; those of other chats have none."""
    message = _first_of(one.get("messages"))
    return "content" in message and ("uuid" in message or "role_type" in message)


def _is_episode(one: dict[str, Any]) -> bool:
    return {"uuid", "content", "source"} <= one.keys()


def _read_zep(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    start = first_objects(source.start(_FIRST_BYTES))
    list_names = [name for name in _ZEP_LISTS if any(name in one for one in start)]
    # The owner may follow any number of messages.
    thread = members(source, without="messages") if any("messages" in one for one in start) else {}
    if list_names and not any("thread_id" in one or "session_id" in one for one in start):
        entities = dict(_entity_names(source))
        for name in ("episodes", "messages", *_THREAD_LISTS, *_FACT_LISTS):  # messages before the facts about them
            if name in list_names:
                for number, value in _numbered_values(source, name):
                    yield from _zep_events(name, value, thread, entities, scope, f"{source.name}, {name} {number}")
        return
    for number, value in _numbered_values(source):
        yield from _zep_events("", value, {}, {}, scope, f"{source.name}, {number}")


ZEP = LogFormat(
    "zep",
    "threads and facts of Zep and Graphiti",
    lambda head: any(map(_is_zep, first_objects(head.start))),
    _read_zep,
    fields=("uuid", "role_type", "thread_id", "fact", "edges", "nodes", "episodes", "valid_at", "group_id", "graph_id"),
)


def _numbered_values(source: LogFile, *path: str) -> Iterator[tuple[int, Any]]:
    for number, text in enumerate(elements(source, *path), start=1):
        yield number, log.parse(text)


def _entity_names(source: LogFile) -> Iterator[tuple[str, str]]:
    """Yield the id and the name of each entity, because edges contain ids."""
    for _, node in _numbered_values(source, "nodes"):
        if isinstance(node, dict) and (name := log.valid_name(node.get("name"))):
            yield log.as_text(node.get("uuid")), name


def _zep_events(
    list_name: str, value: Any, thread: dict[str, Any], entities: Mapping[str, str], scope: ImportScope, where: str
) -> Iterable[bytes]:
    """Return the events of an element of a list. `thread`: the other fields of the thread, if the list has messages."""
    if not isinstance(value, dict):
        return [log.broken(where, "is no object of Zep's", value)]
    messages = value.get("messages")
    if list_name == "messages" and not isinstance(messages, list):  # a list would be a further page
        return _zep_message(value, _session(thread, where), _owner(thread, scope), scope, where)
    if isinstance(messages, list):
        return _thread_events(value, messages, scope, where)
    if "fact" in value:
        return fact_events(value, entities, scope)
    if _is_episode(value):
        return _episode_events(value, scope, where)
    return [log.broken(where, "is no thread, fact or episode of Zep's", value)]


def _thread_events(thread: dict[str, Any], messages: list[Any], scope: ImportScope, where: str) -> Iterator[bytes]:
    for number, message in enumerate(messages, start=1):
        session, owner = _session(thread, where), _owner(thread, scope)
        yield from _zep_message(message, session, owner, scope, f"{where}, message {number}")


def _session(thread: dict[str, Any], where: str) -> str:
    written_id = thread.get("thread_id") or thread.get("session_id") or thread.get("uuid")
    return str(written_id) if isinstance(written_id, str) else log.file_name(where.partition(",")[0])


def _owner(record: dict[str, Any], scope: ImportScope) -> str:
    """Return a thread's user or a graph's group. Raise UsageError if another field looks like the owner."""
    if scope.user_given:
        return scope.user_id
    roles = owners.field_roles(record)
    names = (*(name for name in _OWNER_FIELDS if name in record), *roles.owners)
    if (key := owners.first_named(record, names)) is not None and (owner := log.valid_name(log.as_text(record[key]))):
        return log.valid_id(owner)
    if unclear := [name for name in roles.people if record[name]]:
        raise UsageError(f"{', '.join(unclear)} of a record may be its owner: name it user_id, or give --user NAME")
    return scope.user_id


def _zep_message(message: Any, session: str, owner: str, scope: ImportScope, where: str) -> Iterable[bytes]:
    if not isinstance(message, dict):
        return [log.broken(where, "is no message", message)]
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        return scope.leave_out(log.EMPTY)
    role, role_type = message.get("role"), message.get("role_type")
    other_name = role if role_type is not None and role != role_type else None
    return scope.message_events(
        owner,
        message_id=log.as_text(message.get("uuid")) or where,
        session=session,
        role=_role(role_type or role),
        content=content,
        time=log.time_text(message.get("created_at")),
        name=log.valid_name(message.get("name"), other_name),
        metadata={"source": "zep"},
    )


def _role(written: object) -> object:
    return owners.ZEP_ROLES.get(written, written) if isinstance(written, str) else written


def fact_events(edge: dict[str, Any], entities: Mapping[str, str], scope: ImportScope) -> Iterator[bytes]:
    """Yield a fact with the names of its entities (id → name), and the update that ends it."""
    owner, memory_id = _owner(edge, scope), log.valid_id(edge.get("uuid"))
    created, begins, ends = (log.time_text(edge.get(name)) for name in ("created_at", "valid_at", "invalid_at"))
    ends = ends or log.time_text(edge.get("expired_at"))
    source, target = (
        log.valid_name(edge.get(f"{end}_node_name")) or entities.get(log.as_text(edge.get(f"{end}_node_uuid")))
        for end in ("source", "target")
    )
    relation = {"source": source, "type": log.valid_name(edge.get("name")) or "relates_to", "target": target}
    begin = {} if begins is None else {"valid_from": begins}
    event = {"type": "memory", "id": memory_id, "kind": "fact", "content": edge.get("fact"), **begin}
    if source and target:
        event["relations"] = [relation | begin]
    yield scope.encode_owned_event(owner, event, created)
    if ends is not None:
        changed: dict[str, object] = {"valid_to": ends}
        if source and target:
            changed["relations"] = [relation | begin | {"valid_to": ends}]
        yield scope.update_event(owner, memory_id, (ends, log.time_text(edge.get("expired_at")) or ends), changed)


def _episode_events(episode: dict[str, Any], scope: ImportScope, where: str) -> Iterable[bytes]:
    """Return the event of a Graphiti episode: a message with its speaker, or a memory of text or data."""
    content, kind = episode.get("content"), log.as_text(episode.get("source"))
    if not isinstance(content, str) or not content.strip():
        return scope.leave_out(log.EMPTY)
    times = (log.time_text(episode.get(name)) for name in ("valid_at", "reference_time", "created_at"))
    time = next(filter(None, times), None)
    owner, key = _owner(episode, scope), log.as_text(episode.get("uuid")) or where
    if kind != "message":
        event = {"type": "memory", "id": log.valid_id(key), "kind": kind[:100], "content": content}
        return [scope.encode_owned_event(owner, event, time)]
    spoken = _SPEAKER_AND_TEXT.fullmatch(content) if episode.get("role") is None else None
    name = log.valid_name(spoken["name"] if spoken else episode.get("role"))
    has_session = episode.get("thread_id") or episode.get("session_id")
    role = _role(episode.get("role_type") or (name if name in ("assistant", "system", "tool") else "user"))
    return scope.message_events(
        owner,
        message_id=key,
        session=_session({**episode, "uuid": None}, where) if has_session else owner,
        role=role,
        content=spoken["text"] if spoken else content,
        time=time,
        name=None if name in ("user", "assistant", "system", "tool") else name,
        metadata={"source": "zep"},
    )
