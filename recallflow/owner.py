"""Owners of memories: their record keys, partitions and workspaces.

Partitions follow Kafka's own hash: an owner's state partition has the number of the topic partition with the owner's
records, for any producer. A workspace is an owner like a user, with the same isolation and the same kind of names, so
within a tenant no workspace may have the name of a user. The producer chooses the owner, because the owner is part of
the record's key. Existing memories stay where they are when a project's owner is mapped to a workspace."""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from recallflow.caching import BoundedCache

_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995
NUMBER_MAX = 65_535  # larger numbers are mistakes: no topic has as many partitions


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Java producers and librdkafka's `murmur2_random` choose it."""
    return _key_hashes[key] % partitions


def key_hash(key: bytes) -> int:
    """Return the hash of a key: the lower 31 bits of MurmurHash2, with the seed of Kafka's `Utils.murmur2`."""
    h = _SEED ^ len(key)
    whole = len(key) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return (h ^ h >> 15) & _POSITIVE


_key_hashes = BoundedCache(key_hash, 4 * 1024 * 1024)


class Owner(NamedTuple):
    """A user or a workspace with memories, in one environment of a tenant."""

    tenant_id: str
    environment: str
    user_id: str

    @property
    def record_key(self) -> bytes:
        """Return the Kafka key of the owner's records, which keeps them in one partition, in order."""
        return user_key(self.tenant_id, self.user_id)


def user_key(tenant_id: str, user_id: str) -> bytes:
    return f"{tenant_id}/{user_id}".encode()


def key_tenant(key: bytes | None) -> bytes:
    """Return the tenant in a record's key. It is only a hint: producers may write any key."""
    return (key or b"").partition(b"/")[0]


def state_partition(tenant_id: str, user_id: str, partitions: int) -> int:
    """Return the state partition of a user, 0 ≤ p < `partitions`: the partition of the user's Kafka key. The key does
    not contain the environment: a record that cannot be decoded has only the key, and must still reach the partition
    where its user waits for an answer."""
    return _user_hashes[tenant_id, user_id] % partitions


# Cached by tenant and user, because making the key for each record takes longer than the rest of `state_partition`.
_user_hashes: BoundedCache[tuple[str, str], int] = BoundedCache(lambda user: key_hash(user_key(*user)), 8 * 1024 * 1024)
# `github.com/OWNER/REPOSITORY` as an id, a URL (also with credentials and a port), or the SSH remote of a clone.
_PROJECT = re.compile(
    r"(?:(?:https?|ssh|git|git\+ssh)://)?(?:[^@/\s]+@)?(?:www\.)?github\.com(?::\d+)?[/:]/?(?P<owner>[^/:\s]+)/[^/\s]",
    re.IGNORECASE,
)


def workspace_of(
    project_id: str | None, mappings: Mapping[str, str | None], organisations: Collection[str], user_id: str
) -> str:
    """Return the `user_id` for events about a project, under workspace routing `auto`.

    The owner of a project is taken from `github.com/<owner>/…`, from a URL, or from the SSH remote of a clone
    (`git@github.com:<owner>/…`), in upper or lower case. Every other project is personal.

    Args:
        mappings: project owner → workspace, by the tenant's `owner.mapping` events; None revokes a mapping.
        organisations: the user's organisations. Each has a workspace of the same name; mappings take precedence."""
    match = _PROJECT.match(project_id or "")
    if match is None:
        return user_id
    owner = match["owner"].casefold()
    mapped = {name.casefold(): workspace for name, workspace in mappings.items()}.get(owner)
    return mapped or {name.casefold(): name for name in organisations}.get(owner, user_id)


def parse_ranges(text: str) -> frozenset[int]:
    """Parse `0-7,9` as a set of numbers. Raise ValueError."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"{text!r} is no list of numbers and ranges such as 0-7,9")
        low, high = int(first), int(last or first)
        if not low <= high <= NUMBER_MAX:
            raise ValueError(f"{text!r}: {part.strip()} ends before it begins, or beyond {NUMBER_MAX:,}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def ranges_of(numbers: Collection[int]) -> str:
    """Return numbers in the shortest notation that `parse_ranges` reads: `0-7,9`."""
    words: list[str] = []
    first = last = -2
    for number in [*sorted(numbers), None]:
        if number is not None and number == last + 1:
            last = number
            continue
        if last >= 0:
            words.append(str(first) if first == last else f"{first}-{last}")
        first = last = -2 if number is None else number
    return ",".join(words)
