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

# Fields with names chosen by senders, which may end in `_ms` too.
_SENDERS_OWN = frozenset(("metadata", "properties", "entities", "derived_from", "event", "output"))
_PERIODS = frozenset(("valid_from", "valid_to", "until"))
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


def export(directory: StateDirectory, tenant_id: str, user_id: str, environments: Collection[str] = (), *,
           vectors: bool = False) -> Iterator[Fields]:  # fmt: skip
    """Yield all records of a user, optionally of some environments, in a deterministic order."""
    number = state_partition(tenant_id, user_id, directory.fingerprint.partitions)
    partition = directory.partition(number)
    for owner in sorted(partition.owners_of(tenant_id, user_id)):
        if not environments or owner.environment in environments:
            yield {"type": "person", **owner._asdict()}
            person = Person(partition, partition.keyring.owner(owner), vectors=vectors)
            for kind, shown in person.records():
                yield {"type": kind, "environment": owner.environment} | readable(shown)
            yield from _pending_outputs(partition, owner)
    yield from _erasures(partition, tenant_id, user_id, environments)


def _erasures(partition: Partition, tenant_id: str, user_id: str, environments: Collection[str]) -> Iterator[Fields]:
    """Yield the erasures of the user. Stored environments are hashes: only given ones and the default have names."""
    keyring = partition.keyring
    user = keyring.user(tenant_id, user_id)
    names = {keyring.owner(Owner(tenant_id, one, user_id)): one for one in (*environments, PRODUCTION)}
    for key, until_ms in partition.scan(keys.erased(user)):
        owner = key[len(keys.erased(user)) :]
        where = {"environment": names.get(owner)} if owner else {}
        yield {"type": "erased", **where, "until": format_time(int(until_ms))}


def _pending_outputs(partition: Partition, owner: Owner) -> Iterator[Fields]:
    """Yield receipts and requests without confirmed delivery. `a/b` with `c` has the key of `a` with `b/c`."""
    wanted = partition.keyring.owner(owner).hex()
    for _, value in partition.scan(keys.OUTBOX):
        whose, *outputs = orjson.loads(value)
        for output in outputs if whose == wanted else ():
            if output[0] != "dead":  # a dead letter here holds no data of the event
                shown = {"kind": output[0], "output": orjson.loads(output[3])}
                yield {"type": "pending_output", "environment": owner.environment, **shown}


def readable(shown: Fields) -> Fields:
    """Return the fields with times in RFC 3339 under the suffix `_at`: `created_ms` becomes `created_at`."""
    return dict(_readable(name, value) for name, value in shown.items())


def _readable(name: str, value: Any) -> tuple[str, Any]:
    plain = name.removesuffix("_ms")
    if name in _SENDERS_OWN:
        return name, value
    if (plain != name or name in _PERIODS) and (value is None or isinstance(value, int)):
        known = value is not None and value > EPOCH_MS_MIN
        return plain if plain in _PERIODS else f"{plain}_at", format_time(value) if known else None
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
    found = {name: getattr(row, name) for name in ("content", *_PLAIN)}
    for column, name in _TIMES.items():
        value = getattr(row, column)
        found[name] = None if value is None else format_time(value)
    return found


def _created(owner: Owner, row: MemoryRow, fields: Event) -> Iterator[Event]:
    """Yield the events that create a memory: a message has few fields, and an update carries the others."""
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
        suffix = f"@{row.version}"
        update_id = row.id[: ID_CHARACTERS - len(suffix)] + suffix
        event = {"type": "memory.update", "id": update_id, "memory_id": row.id, **_place(owner, row)}
        yield event | {"timestamp": format_time(at)} | changed


def _place(owner: Owner, row: MemoryRow) -> Event:
    named = {"session_id": row.session_id, "project_id": row.project_id}
    return owner._asdict() | {name: value for name, value in named.items() if value is not None}


def _derived(row: MemoryRow) -> Event:
    """Return the derivation of a memory without content hashes: later versions of its sources may precede it here."""
    if not row.derived_from:
        return {}
    kept = {name: value for name, value in row.derived_from.items() if name not in ("content_hash", "others", "source")}
    others = [{"memory_id": one["memory_id"]} for one in row.derived_from.get("others") or ()]
    return {"derived_from": kept | ({"others": others} if others else {})}
