"""`user.erase`: the removal of all data of a user in one write, and the rejection of earlier events that arrive later.

An erasure removes the user's owners with their keys: memories, indexes, graph, versions, work in progress and
undelivered outputs. A tombstone of keyed hashes remains. From then on, events whose time is not after the erasure have
no effect; events without any time count as new. An erasure has no effect if one with a later time was applied before.

A user with very many environments is erased in steps, some environments in each, and the rest with the event itself.
After a crash the event is read again, and continues with the rest."""

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
OWNERS_PER_STEP = 256  # ten thousand would delay other events for seconds
_ALL = 2**62  # more than the number of keys


class Erasure(NamedTuple):
    """The owners and data that an event erases. `values`: tombstones, and deletions of keys without an owner prefix."""

    event: UserErase
    owners: frozenset[Owner]
    values: Values
    counts: Counts  # of the erased owners and memories


def is_erased(hot: HotOwner, write: Write) -> bool:
    """Return whether an event precedes the erasure of its user."""
    at_ms, is_logged = event_time(write)
    return is_logged and hot.erased_ms is not None and at_ms <= hot.erased_ms


def plan(partition: Partition, write: Write, event: UserErase, part: Iterable[Owner] | None = None) -> Erasure:
    """Return the erasure of `part` of the user's owners, or of all owners together with the tombstone."""
    at_ms, is_logged = event_time(write)

    def is_due(owner: Owner) -> bool:
        erased_ms = partition.erased_ms(owner, partition.keyring.owner(owner))
        return not is_logged or erased_ms is None or at_ms > erased_ms

    candidates = partition.owners_of(event.tenant_id, event.user_id) if part is None else part
    owners = frozenset(owner for owner in candidates if event.covers(owner) and is_due(owner))
    prefixes = [*map(partition.keyring.owner, owners)]
    values: Values = {}
    if part is None:
        values |= partition.tombstone(event.tenant_id, event.user_id, event.environment, at_ms)
    values |= outbox.of_owners(partition, prefixes) | dict.fromkeys(map(keys.work, prefixes))
    counts = [count for count in (_memory_count(partition, prefix) for prefix in prefixes) if count is not None]
    return Erasure(event, owners, values, Counts(len(counts), sum(counts)))


def carry_out(
    partition: Partition, owners: Owners, erasure: Erasure, further: Values, position: Position | None, forget: Forget
) -> None:
    """Erase, and write `further` values and the `position` in the same batch. `forget` drops in-memory data."""
    event, counts = erasure.event, erasure.counts
    user = partition.keyring.user(event.tenant_id, event.user_id)
    prefixes = sorted(map(partition.keyring.owner, erasure.owners))
    difference = Counts(-counts.owners, -counts.memories)
    partition.erase(prefixes, user, erasure.values | further, position, difference)
    owners.drop_all(event.covers)
    forget(erasure.owners)


class LargeErasures:
    """The erasures of one state partition that take several steps."""

    def __init__(self, partition: Partition, owners: Owners, forget: Forget) -> None:
        self._partition, self._owners, self._forget = partition, owners, forget
        self._in_progress: dict[Owner, tuple[Write, UserErase, Iterator[Owner]]] = {}
        self._finished: set[Owner] = set()

    def __bool__(self) -> bool:
        """Return whether a step is due."""
        return bool(self._in_progress)

    def is_at_work(self, owner: Owner) -> bool:
        return owner in self._in_progress

    def begin(self, write: Write, event: UserErase) -> bool:
        """Register an erasure if it is new and needs steps. Return whether it has steps left."""
        if write.owner in self._finished or event.environment is not None:
            return False
        owners = self._partition.owners_of(event.tenant_id, event.user_id)
        if len(owners) > OWNERS_PER_STEP:
            self._in_progress[write.owner] = write, event, iter(owners)
        return write.owner in self._in_progress

    def advance(self) -> None:
        for owner, (write, event, owners) in self._in_progress.items():
            part, position = [*islice(owners, OWNERS_PER_STEP)], write.record.position
            if part:
                # An internal error or an unreadable tombstone only skips the step: the event itself is refused later.
                with suppress(InvalidRecord, DecryptionFailed):
                    erasure = retry_once(STEP, position, plan, self._partition, write, event, part)
                    carry_out(self._partition, self._owners, erasure, {}, None, self._forget)
            else:
                del self._in_progress[owner]
                self._finished.add(owner)
            return

    def end(self, owner: Owner) -> bool:
        """Note that the erasure is applied. Return whether it took steps."""
        took_steps = owner in self._finished
        self._finished.discard(owner)
        return took_steps


def erasure_state(partition: Partition, hot: HotOwner) -> Literal["erased", "purged"] | None:
    """Return `erased` while files may still contain data of an erased owner, then `purged`; None if never erased."""
    if hot.erased_ms is None:
        return None
    user = partition.keyring.user(hot.owner.tenant_id, hot.owner.user_id)
    return "erased" if partition.cleaning.is_pending(keys.uncleaned(hot.key, user)) else "purged"


def _memory_count(partition: Partition, owner: bytes) -> int | None:
    """Return the number of current memories, counted by keys if the encryption key is lost; None if never stored."""
    try:
        stored = partition.get(keys.head(owner))
    except DecryptionFailed:
        return len(partition.first_keys(keys.table(owner, keys.ENTRY), _ALL))
    return None if stored is None else OwnerHead.decode(stored).counts.memories
