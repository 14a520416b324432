"""Whose memory it is: the hard scope of every key."""

from typing import NamedTuple

from recallflow.caching import Kept
from recallflow.partitioning import hash_of


class Owner(NamedTuple):
    """The person (or workspace) remembered, within a tenant and an environment."""

    tenant_id: str
    environment: str
    user_id: str

    @property
    def record_key(self) -> bytes:
        """The Kafka key of the owner's records: they go to one partition, in order."""
        return user_key(self.tenant_id, self.user_id)


def user_key(tenant_id: str, user_id: str) -> bytes:
    """The Kafka key of a user's records."""
    return f"{tenant_id}/{user_id}".encode()


def key_tenant(key: bytes | None) -> bytes:
    """What a record's key says of its tenant: the same for all records of one tenant, and a hint only, as anybody can
    write any key."""
    return (key or b"").partition(b"/")[0]


def state_partition(tenant_id: str, user_id: str, partitions: int) -> int:
    """The state partition of a user, 0 ≤ p < `partitions`: that of the Kafka key of the user's records.

    The environment has no part in it: a record that could not be decoded still names `tenant_id/user_id` in its
    Kafka key, and must find the partition of the user who waits for it.
    """
    return _hashes[tenant_id, user_id] % partitions


def _hash(user: tuple[str, str]) -> int:
    return hash_of(user_key(*user))


_hashes = Kept(_hash, 8 * 1024 * 1024)  # by name: to make the key anew for each record takes longer than all the rest
