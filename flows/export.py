"""`recallflow export`: a person's data in a state directory as readable records, and memories as events."""

from collections.abc import Collection, Iterator
from typing import Any

import orjson

from recallflow.events import PRODUCTION
from recallflow.fields import EPOCH_MS_MIN, format_time
from recallflow.owner import Owner, state_partition
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.partition import Partition
from recallflow.state.person import Fields, Person
from recallflow.state.rows import Entry, MemoryRow
from recallflow.state.state_hash import owners

# Fields with names from senders. They stay unchanged, because such names may end in `_ms` too.
_FREE_FORM = frozenset(("metadata", "properties", "entities", "derived_from", "event", "output"))
_TIMES_WITHOUT_SUFFIX = frozenset(("valid_from", "valid_to", "until"))
Event = dict[str, Any]
ID_CHARACTERS = 128
_TIME_COLUMNS = {"valid_from_ms": "valid_from", "valid_to_ms": "valid_to", "expires_ms": "expires_at"}
_COLUMNS = (
    "content", "summary", "kind", "layer", "category", "tags", "topics", "entities", "relations", "importance",
    "confidence", "metadata",
)  # fmt: skip
_MESSAGE_FIELDS = frozenset(("content", "metadata"))  # the others need an update
_DEFAULTS = {"kind": "message", "layer": "long_term", "importance": 0.5, "confidence": 1.0, "tags": [], "topics": [],
             "entities": [], "relations": []}  # fmt: skip


def export(directory: StateDirectory, tenant_id: str, user_id: str, environments: Collection[str] = (), *,
           vectors: bool = False) -> Iterator[Fields]:  # fmt: skip
    """Yield all records of a user, optionally of some environments, in a deterministic order."""
    number = state_partition(tenant_id, user_id, directory.fingerprint.partitions)
    partition = directory.partition(number)
    for owner in sorted(partition.owners_of(tenant_id, user_id)):
        if not environments or owner.environment in environments:
            yield {"type": "person", **owner._asdict()}
            person = Person(partition, partition.keyring.owner(owner), vectors=vectors)
            for kind, fields in person.records():
                yield {"type": kind, "environment": owner.environment} | readable(fields)
            yield from _pending_outputs(partition, owner)
    yield from _erasures(partition, tenant_id, user_id, environments)


def _erasures(partition: Partition, tenant_id: str, user_id: str, environments: Collection[str]) -> Iterator[Fields]:
    """Yield the erasures of the user. The state has only hashes of environments, so the name is known for
    `environments` and the default one only."""
    keyring = partition.keyring
    user = keyring.user(tenant_id, user_id)
    names = {keyring.owner(Owner(tenant_id, one, user_id)): one for one in (*environments, PRODUCTION)}
    for key, until_ms in partition.scan(keys.erased(user)):
        owner = key[len(keys.erased(user)) :]
        where = {"environment": names.get(owner)} if owner else {}
        yield {"type": "erased", **where, "until": format_time(int(until_ms))}


def _pending_outputs(partition: Partition, owner: Owner) -> Iterator[Fields]:
    """Yield receipts and requests without confirmed delivery. The owner's hash identifies them, because two owners may
    have the same record key: the tenant `a/b` with the user `c`, and `a` with `b/c`."""
    own_hash = partition.keyring.owner(owner).hex()
    for _, value in partition.scan(keys.OUTBOX):
        owner_hash, *outputs = orjson.loads(value)
        for output in outputs if owner_hash == own_hash else ():
            if output[0] != "dead":  # a dead letter in the outbox holds no data of the event
                fields = {"kind": output[0], "output": orjson.loads(output[3])}
                yield {"type": "pending_output", "environment": owner.environment, **fields}


def readable(fields: Fields) -> Fields:
    """Return the fields with times in RFC 3339 under the suffix `_at`: `created_ms` becomes `created_at`."""
    return dict(_readable(name, value) for name, value in fields.items())


def _readable(name: str, value: Any) -> tuple[str, Any]:
    stem = name.removesuffix("_ms")
    if name in _FREE_FORM:
        return name, value
    if (stem != name or name in _TIMES_WITHOUT_SUFFIX) and (value is None or isinstance(value, int)):
        is_known = value is not None and value > EPOCH_MS_MIN
        return stem if stem in _TIMES_WITHOUT_SUFFIX else f"{stem}_at", format_time(value) if is_known else None
    if isinstance(value, dict):
        return name, readable(value)
    if isinstance(value, list | tuple):
        return name, [_readable("", one)[1] for one in value]
    return name, value


def memory_events(directory: StateDirectory, tenant_id: str | None = None, user_id: str | None = None,
                  environments: frozenset[str] = frozenset()) -> Iterator[Event]:  # fmt: skip
    """Yield events that recreate every version of stored memories, in the order of partition, owner, and arrival."""
    for partition in directory.existing_partitions():
        for key, head in owners(partition):
            owner = head.owner
            is_wanted = tenant_id in (None, owner.tenant_id) and user_id in (None, owner.user_id)
            if is_wanted and (not environments or owner.environment in environments):
                yield from _events_of(partition, key, owner)


def _events_of(partition: Partition, key: bytes, owner: Owner) -> Iterator[Event]:
    for _, stored in partition.scan(keys.table(key, keys.ENTRY)):
        name = partition.keyring.name(key, Entry.decode(stored).id)
        before: Event | None = None
        for _, value in partition.scan(keys.rows(key, name)):
            row = MemoryRow.decode(value)
            fields = _fields(row)
            if before is None:
                yield from _created(owner, row, fields)
            else:
                changed = {field: value for field, value in fields.items() if value != before[field]}
                yield from _updated(owner, row, changed)
            before = fields


def _fields(row: MemoryRow) -> Event:
    """Return the fields that an update can change. Cleared fields are null."""
    times = ((name, getattr(row, column)) for column, name in _TIME_COLUMNS.items())
    fields = {name: getattr(row, name) for name in _COLUMNS}
    return fields | {name: None if time_ms is None else format_time(time_ms) for name, time_ms in times}


def _created(owner: Owner, row: MemoryRow, fields: Event) -> Iterator[Event]:
    """Yield the events that create a memory. A message event has few fields; an update has the others."""
    stated = {name: value for name, value in fields.items() if value is not None and value != _DEFAULTS.get(name)}
    event: Event = {"id": row.id, **_scope(owner, row), "timestamp": format_time(row.created_ms)}
    author = {} if row.name is None else {"name": row.name}
    if row.kind != "message" or row.role is None:
        yield {"type": "memory", **event, **author, "kind": row.kind, **stated, **_derived(row)}
        return
    message = {name: stated[name] for name in _MESSAGE_FIELDS & stated.keys()}
    yield {"type": "message", **event, "role": row.role, **author, "content": row.content, **message}
    yield from _updated(owner, row, {name: value for name, value in stated.items() if name not in _MESSAGE_FIELDS})


def _updated(owner: Owner, row: MemoryRow, changed: Event) -> Iterator[Event]:
    if changed:
        at = row.created_ms if row.edited_ms is None else row.edited_ms
        suffix = f"@{row.version}"
        update_id = row.id[: ID_CHARACTERS - len(suffix)] + suffix
        event = {"type": "memory.update", "id": update_id, "memory_id": row.id, **_scope(owner, row)}
        yield event | {"timestamp": format_time(at)} | changed


def _scope(owner: Owner, row: MemoryRow) -> Event:
    ids = {"session_id": row.session_id, "project_id": row.project_id}
    return owner._asdict() | {name: value for name, value in ids.items() if value is not None}


def _derived(row: MemoryRow) -> Event:
    """Return the derivation of a memory, without the content hashes of its sources, because later versions of the
    sources may precede the memory in the export."""
    if not row.derived_from:
        return {}
    omitted = ("content_hash", "others", "source")
    derivation = {name: value for name, value in row.derived_from.items() if name not in omitted}
    others = [{"memory_id": one["memory_id"]} for one in row.derived_from.get("others") or ()]
    return {"derived_from": derivation | ({"others": others} if others else {})}
