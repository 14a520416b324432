"""Tombstones of erased users: keyed hashes and times only (table 07), which outlive the erased data."""

from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.partition import Partition, Values


def erased_ms(partition: Partition, owner: Owner, key: bytes) -> int | None:
    """Return the event time up to which an owner, who has this key, was erased; None for one who never was."""
    user = partition.keyring.user(owner.tenant_id, owner.user_id)
    found = partition.get_many([keys.erased(user), keys.erased_in(user, key)])
    return max((int(value) for value in found if value is not None), default=None)


def tombstone(partition: Partition, tenant_id: str, user_id: str, environment: str | None, at_ms: int) -> Values:
    """Return the record of a user's erasure, in one environment or in all. The latest event time counts."""
    key = keys.erased(user := partition.keyring.user(tenant_id, user_id))
    if environment is not None:
        key = keys.erased_in(user, partition.keyring.owner(Owner(tenant_id, environment, user_id)))
    stored = partition.get(key)
    return {key: b"%d" % (at_ms if stored is None else max(at_ms, int(stored)))}
