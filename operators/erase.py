"""`user.erase`: all that is held of a user goes in one write, and what its events said up to then does not come back.

What goes are the owners that the user is, with their keys: memories, indexes, graph, versions, work under way, outputs
not known to be delivered. What stays is a tombstone of keyed hashes. An event whose time is not after the erasure's has
no effect from then on, whenever it comes; one without any time of its own, or of its log's, is new. An erasure that
comes after a later one changes nothing: whatever is there by then was said after both.

In memory nothing is left that an answer could be made of: questions under way begin anew. Files are cleaned in the
background (`state/cleaning.py`).
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from recallflow.errors import DecryptionFailed
from recallflow.events import UserErase
from recallflow.operators import outbox
from recallflow.operators.events import Write, event_time
from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.responses import Outcome, Receipt
from recallflow.state import keys
from recallflow.state.erasure import erased_ms, tombstone
from recallflow.state.hot_owner import HotOwner, Owners
from recallflow.state.partition import Counts, Partition, Values
from recallflow.state.rows import Head

Forget = Callable[[Collection[Owner]], None]  # whatever is kept in memory of owners
_ALL = 2**62  # keys


class Erasure(NamedTuple):
    """What an event erases: owners, and what they held. `values`: what is stored, and what of theirs is deleted that
    does not stand under their prefix."""

    event: UserErase
    owners: frozenset[Owner]
    values: Values
    held: Counts

    @property
    def outcome(self) -> Outcome:
        return "erased" if self.owners else "unchanged"


def is_erased(hot: HotOwner, write: Write) -> bool:
    """Whether an event comes too late: its user was erased up to a time that it is not after."""
    at_ms, is_known = event_time(write)
    return is_known and hot.erased_ms is not None and at_ms <= hot.erased_ms


def plan(partition: Partition, write: Write, event: UserErase) -> Erasure:
    """What is to be erased. Only reads."""
    at_ms, is_known = event_time(write)

    def is_new(owner: Owner) -> bool:
        before_ms = erased_ms(partition, owner)
        return not is_known or before_ms is None or at_ms > before_ms

    known = partition.owners_of(event.tenant_id, event.user_id)
    owners = frozenset(owner for owner in known if event.covers(owner) and is_new(owner))
    prefixes = [*map(partition.keyring.owner, owners)]
    values = tombstone(partition, event.tenant_id, event.user_id, event.environment, at_ms)
    values |= outbox.of_owners(partition, prefixes) | dict.fromkeys(map(keys.work, prefixes))
    held = [count for count in (_memories(partition, prefix) for prefix in prefixes) if count is not None]
    return Erasure(event, owners, values, Counts(len(held), sum(held)))


def carry_out(
    partition: Partition, owners: Owners, erasure: Erasure, kept: Values, position: Position, forget: Forget
) -> None:
    """Erases. `kept`: what is stored beside it; `forget`: has others forget what they hold of owners."""
    event, held = erasure.event, erasure.held
    user = partition.keyring.user(event.tenant_id, event.user_id)
    gone = sorted(map(partition.keyring.owner, erasure.owners))
    brought = Counts(-held.owners, -held.memories)
    partition.erase(gone, user, erasure.values | kept, position, brought)
    owners.drop_all(event.covers)
    forget(erasure.owners)


def receipt(write: Write, outcome: Outcome, memory_id: str | None = None) -> Receipt | None:
    """The receipt, if the event asks for one."""
    if not write.event.receipt:
        return None
    position = str(write.record.position)
    return Receipt(id=write.event.id or position, position=position, outcome=outcome, memory_id=memory_id)


def _memories(partition: Partition, owner: bytes) -> int | None:
    """How many current memories an owner has; None for one of whom nothing is stored. Where the owner's key is lost,
    they are counted."""
    try:
        stored = partition.get(keys.head(owner))
    except DecryptionFailed:
        return len(partition.first_keys(keys.table(owner, keys.ENTRY), _ALL))
    return None if stored is None else Head.decode(stored).held.memories
