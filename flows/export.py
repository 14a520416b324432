"""Everything that a state directory holds on a person, as records that anybody can read: `recallflow export`."""

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
from recallflow.state.person_graph import PersonGraph

# What senders put in: their own names may end as our times do.
_SENDERS_OWN = frozenset(("metadata", "properties", "entities", "derived_from", "event", "output"))
_PERIODS = frozenset(("valid_from", "valid_to", "until"))


def export(
    directory: StateDirectory,
    tenant_id: str,
    user_id: str,
    environments: Collection[str] = (),
    *,
    vectors: bool = False,
) -> Iterator[Fields]:
    """All records of a user, one after the other, each time in the same order; none of a user of whom nothing is known.
    `environments`: only what is of these."""
    number = state_partition(tenant_id, user_id, directory.fingerprint.partitions)
    partition = directory.partition(number)
    wanted = frozenset(environments)
    for owner in sorted(partition.owners_of(tenant_id, user_id)):
        if not wanted or owner.environment in wanted:
            yield {"type": "person", **owner._asdict()}
            yield from _of_owner(partition, owner, vectors=vectors)
            yield from _pending_outputs(partition, owner)
    yield from _erasures(partition, tenant_id, user_id, environments)


def _of_owner(partition: Partition, owner: Owner, *, vectors: bool) -> Iterator[Fields]:
    person = Person(partition, partition.keyring.owner(owner), vectors=vectors)
    for records in (person.records(), PersonGraph(person).records()):
        for kind, shown in records:
            yield {"type": kind, "environment": owner.environment} | readable(shown)


def _erasures(partition: Partition, tenant_id: str, user_id: str, environments: Collection[str]) -> Iterator[Fields]:
    """That the user was erased, and up to which time. Environments are kept as hashes: only those that are asked about,
    and the one that events name none of, can be told by name."""
    keyring = partition.keyring
    user = keyring.user(tenant_id, user_id)
    names = {keyring.owner(Owner(tenant_id, one, user_id)): one for one in (*environments, PRODUCTION)}
    for key, until_ms in partition.scan(keys.erased(user)):
        owner = key[len(keys.erased(user)) :]
        where = {"environment": names.get(owner)} if owner else {}
        yield {"type": "erased", **where, "until": format_time(int(until_ms))}


def _pending_outputs(partition: Partition, owner: Owner) -> Iterator[Fields]:
    """Receipts and requests of enrichment that are not known to be delivered. Whose they are is not told by their keys:
    senders choose those, and `a/b` with `c` has the same one as `a` with `b/c`."""
    wanted = partition.keyring.owner(owner).hex()
    for _, value in partition.scan(keys.OUTBOX):
        whose, *outputs = orjson.loads(value)
        for output in outputs if whose == wanted else ():
            if output[0] != "dead":  # which holds nothing of the event
                shown = {"kind": output[0], "output": orjson.loads(output[3])}
                yield {"type": "pending_output", "environment": owner.environment, **shown}


def readable(shown: Fields) -> Fields:
    """The fields with times as RFC 3339, under names that say so: `created_ms` is `created_at`."""
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
