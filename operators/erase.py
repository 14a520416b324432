"""`user.erase`: all that is held of a user goes in one write, and what its events said up to then does not come back.

What goes are the owners that the user is, with their keys: memories, indexes, graph, versions, work under way, outputs
not known to be delivered. What stays is a tombstone of keyed hashes. An event whose time is not after the erasure's has
no effect from then on, whenever it comes; one without any time of its own, or of its log's, is new. An erasure that
comes after a later one changes nothing: whatever is there by then was said after both.

A user in very many environments is erased in steps, some environments in each, and the rest with the event itself.
After a kill the event comes again, and goes on with what is left.

In memory nothing is left that an answer could be made of: questions under way begin anew. Files are cleaned in the
background (`state/cleaning.py`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Literal, NamedTuple

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.events import UserErase
from recallflow.operators import outbox
from recallflow.operators.events import Write, event_time
from recallflow.operators.guard import twice
from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.responses import Outcome, Receipt
from recallflow.state import keys
from recallflow.state.erasure import erased_ms, tombstone
from recallflow.state.hot_owner import HotOwner, Owners
from recallflow.state.partition import Counts, Partition, Values
from recallflow.state.rows import Head

Forget = Callable[[Collection[Owner]], None]  # whatever is kept in memory of owners
STEP = "state"
AT_ONCE = 256  # owners in one write: with ten thousand, others would wait for seconds
_ALL = 2**62  # keys


class Erasure(NamedTuple):
    """What an event erases: owners, and what they held. `values`: what is stored, and what of theirs is deleted that
    does not stand under their prefix."""

    event: UserErase
    owners: frozenset[Owner]
    values: Values
    held: Counts


def is_erased(hot: HotOwner, write: Write) -> bool:
    """Whether an event comes too late: its user was erased up to a time that it is not after."""
    at_ms, is_known = event_time(write)
    return is_known and hot.erased_ms is not None and at_ms <= hot.erased_ms


def plan(partition: Partition, write: Write, event: UserErase, some: Iterable[Owner] | None = None) -> Erasure:
    """What is to be erased, of `some` owners that the user is; of all of them, with the tombstone. Only reads."""
    at_ms, is_known = event_time(write)

    def is_new(owner: Owner) -> bool:
        before_ms = erased_ms(partition, owner, partition.keyring.owner(owner))
        return not is_known or before_ms is None or at_ms > before_ms

    known = partition.owners_of(event.tenant_id, event.user_id) if some is None else some
    owners = frozenset(owner for owner in known if event.covers(owner) and is_new(owner))
    prefixes = [*map(partition.keyring.owner, owners)]
    values: Values = {}
    if some is None:
        values |= tombstone(partition, event.tenant_id, event.user_id, event.environment, at_ms)
    values |= outbox.of_owners(partition, prefixes) | dict.fromkeys(map(keys.work, prefixes))
    held = [count for count in (_memories(partition, prefix) for prefix in prefixes) if count is not None]
    return Erasure(event, owners, values, Counts(len(held), sum(held)))


def carry_out(
    partition: Partition, owners: Owners, erasure: Erasure, kept: Values, position: Position | None, forget: Forget
) -> None:
    """Erases. `kept`: what is stored beside it; `position`: that which is applied by it; `forget`: has others forget
    what they hold of owners."""
    event, held = erasure.event, erasure.held
    user = partition.keyring.user(event.tenant_id, event.user_id)
    gone = sorted(map(partition.keyring.owner, erasure.owners))
    brought = Counts(-held.owners, -held.memories)
    partition.erase(gone, user, erasure.values | kept, position, brought)
    owners.drop_all(event.covers)
    forget(erasure.owners)


class LargeErasures:
    """The erasures of one state partition that take steps."""

    def __init__(self, partition: Partition, owners: Owners, forget: Forget) -> None:
        self._partition = partition
        self._owners = owners
        self._forget = forget
        self._left: dict[Owner, tuple[Write, UserErase, Iterator[Owner]]] = {}
        self._ended: set[Owner] = set()

    def __bool__(self) -> bool:
        """Whether there is a step to do."""
        return bool(self._left)

    def is_at_work(self, owner: Owner) -> bool:
        """Whether steps of an erasure are still to be done."""
        return owner in self._left

    def begin(self, write: Write, event: UserErase) -> bool:
        """Whether an erasure takes steps that are not done yet."""
        if write.owner in self._ended or event.environment is not None:
            return False
        known = self._partition.owners_of(event.tenant_id, event.user_id)
        if len(known) > AT_ONCE:
            self._left[write.owner] = write, event, iter(known)
        return write.owner in self._left

    def advance(self) -> None:
        """Does one step."""
        for owner, (write, event, owners) in self._left.items():
            some, position = [*islice(owners, AT_ONCE)], write.record.position
            if some:
                # Where our own code fails, or a tombstone does not open, the event itself is refused in the end.
                with suppress(InvalidRecord, DecryptionFailed):
                    erasure = twice(STEP, position, plan, self._partition, write, event, some)
                    carry_out(self._partition, self._owners, erasure, {}, None, self._forget)
            else:
                del self._left[owner]
                self._ended.add(owner)
            return

    def end(self, owner: Owner) -> bool:
        """The event is applied. Returns whether steps of it were."""
        was_large = owner in self._ended
        self._ended.discard(owner)
        return was_large


def erasure_state(partition: Partition, hot: HotOwner) -> Literal["erased", "purged"] | None:
    """Return `erased` while files may still hold something of an owner that was erased, and then `purged`; None for one
    that never was."""
    if hot.erased_ms is None:
        return None
    user = partition.keyring.user(hot.owner.tenant_id, hot.owner.user_id)
    return "erased" if partition.cleaning.is_pending(keys.uncleaned(hot.key, user)) else "purged"


def receipt(write: Write, outcome: Outcome, memory_id: str | None = None) -> Receipt | None:
    """The receipt, if the event asks for one."""
    if not write.event.receipt:
        return None
    position = str(write.record.known_as)
    found = Receipt(id=write.event.id or position, position=position, outcome=outcome, memory_id=memory_id)
    is_erasure = outcome == "erased" and isinstance(write.event, UserErase)
    return found.model_copy(update={"purged": False}) if is_erasure else found


def _memories(partition: Partition, owner: bytes) -> int | None:
    """How many current memories an owner has; None for one of whom nothing is stored. Where the owner's key is lost,
    they are counted."""
    try:
        stored = partition.get(keys.head(owner))
    except DecryptionFailed:
        return len(partition.first_keys(keys.table(owner, keys.ENTRY), _ALL))
    return None if stored is None else Head.decode(stored).held.memories
