"""Whose memory it is: the hard scope of every key."""

import hashlib
from functools import lru_cache
from typing import NamedTuple


class Owner(NamedTuple):
    """The person (or workspace) remembered, within a tenant and an environment."""

    tenant_id: str
    environment: str
    user_id: str


@lru_cache(maxsize=65_536)
def state_partition(tenant_id: str, user_id: str, partitions: int) -> int:
    """The state partition of a user, 0 ≤ p < `partitions`.

    The environment has no part in it: a record that could not be decoded still names `tenant_id/user_id` in its
    Kafka key, and must find the partition of the user who waits for it.
    """
    digest = hashlib.blake2b(f"{tenant_id}/{user_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions
