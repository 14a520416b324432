"""`user.erase`: the removal of all data of a user in one write, and the rejection of earlier events that arrive later.

It removes the user's owners with their keys: memories, indexes, graph, versions, work in progress and undelivered
outputs. A tombstone of keyed hashes remains. From then on, events whose time is not after the erasure have no effect;
events without any time count as new. An erasure that arrives after a later one has no effect.

A user with very many environments is erased in steps, some environments in each, and the rest with the event itself.
After a crash the event is read again, and continues with the rest.

In-memory data is dropped, and queries in progress start again. Files are cleaned in the background
(`state/database.py`)."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Literal, NamedTuple

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.events import UserErase
from recallflow.operators import outbox
from recallflow.operators.events import Write, event_time
from recallflow.operators.guard import retry_once
from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner, Owners
from recallflow.state.partition import Counts, Partition, Values
from recallflow.state.rows import OwnerHead

Forget = Callable[[Collection[Owner]], None]  # drops all in-memory data of owners
STEP = "state"
AT_ONCE = 256  # owners per write; ten thousand would delay other events for seconds
_ALL = 2**62  # keys


class Erasure(NamedTuple):
    """The owners and data that an event erases. `values`: tombstones, and deletions outside of the owners' key
    prefixes."""

    event: UserErase
    owners: frozenset[Owner]
    values: Values
    counts: Counts  # of the erased owners and memories


def is_erased(hot: HotOwner, write: Write) -> bool:
    """Return whether an event precedes the erasure of its user."""
    at_ms, is_known = event_time(write)
    return is_known and hot.erased_ms is not None and at_ms <= hot.erased_ms


def plan(partition: Partition, write: Write, event: UserErase, part: Iterable[Owner] | None = None) -> Erasure:
    """Return the erasure of a part of the owners of the user, or of all of them with the tombstone. It only reads."""
    at_ms, is_known = event_time(write)

    def is_new(owner: Owner) -> bool:
        before_ms = partition.erased_ms(owner, partition.keyring.owner(owner))
        return not is_known or before_ms is None or at_ms > before_ms

    known = partition.owners_of(event.tenant_id, event.user_id) if part is None else part
    owners = frozenset(owner for owner in known if event.covers(owner) and is_new(owner))
    prefixes = [*map(partition.keyring.owner, owners)]
    values: Values = {}
    if part is None:
        values |= partition.tombstone(event.tenant_id, event.user_id, event.environment, at_ms)
    values |= outbox.of_owners(partition, prefixes) | dict.fromkeys(map(keys.work, prefixes))
    counts = [count for count in (_memories(partition, prefix) for prefix in prefixes) if count is not None]
    return Erasure(event, owners, values, Counts(len(counts), sum(counts)))


def carry_out(
    partition: Partition, owners: Owners, erasure: Erasure, kept: Values, position: Position | None, forget: Forget
) -> None:
    """Erase, with the `kept` values and the `position` in the same write. `forget` drops in-memory data."""
    event, counts = erasure.event, erasure.counts
    user = partition.keyring.user(event.tenant_id, event.user_id)
    gone = sorted(map(partition.keyring.owner, erasure.owners))
    added = Counts(-counts.owners, -counts.memories)
    partition.erase(gone, user, erasure.values | kept, position, added)
    owners.drop_all(event.covers)
    forget(erasure.owners)


class LargeErasures:
    """The erasures of one state partition that take several steps."""

    def __init__(self, partition: Partition, owners: Owners, forget: Forget) -> None:
        self._partition, self._owners, self._forget = partition, owners, forget
        self._left: dict[Owner, tuple[Write, UserErase, Iterator[Owner]]] = {}
        self._ended: set[Owner] = set()

    def __bool__(self) -> bool:
        """Return whether a step is due."""
        return bool(self._left)

    def is_at_work(self, owner: Owner) -> bool:
        return owner in self._left

    def begin(self, write: Write, event: UserErase) -> bool:
        """Return whether an erasure has steps left, and register it if it is new."""
        if write.owner in self._ended or event.environment is not None:
            return False
        known = self._partition.owners_of(event.tenant_id, event.user_id)
        if len(known) > AT_ONCE:
            self._left[write.owner] = write, event, iter(known)
        return write.owner in self._left

    def advance(self) -> None:
        for owner, (write, event, owners) in self._left.items():
            part, position = [*islice(owners, AT_ONCE)], write.record.position
            if part:
                # After an internal error or an unreadable tombstone, the event itself is refused in the end.
                with suppress(InvalidRecord, DecryptionFailed):
                    erasure = retry_once(STEP, position, plan, self._partition, write, event, part)
                    carry_out(self._partition, self._owners, erasure, {}, None, self._forget)
            else:
                del self._left[owner]
                self._ended.add(owner)
            return

    def end(self, owner: Owner) -> bool:
        """Note that the event is applied. Return whether it took steps."""
        was_large = owner in self._ended
        self._ended.discard(owner)
        return was_large


def erasure_state(partition: Partition, hot: HotOwner) -> Literal["erased", "purged"] | None:
    """Return `erased` while files may still hold data of an erased owner, then `purged`; None if never erased."""
    if hot.erased_ms is None:
        return None
    user = partition.keyring.user(hot.owner.tenant_id, hot.owner.user_id)
    return "erased" if partition.cleaning.is_pending(keys.uncleaned(hot.key, user)) else "purged"


def _memories(partition: Partition, owner: bytes) -> int | None:
    """Return the number of current memories, counted if the owner's key is lost; None for an unknown owner."""
    try:
        stored = partition.get(keys.head(owner))
    except DecryptionFailed:
        return len(partition.first_keys(keys.table(owner, keys.ENTRY), _ALL))
    return None if stored is None else OwnerHead.decode(stored).counts.memories
