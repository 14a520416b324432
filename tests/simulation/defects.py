"""Defects of membership, ownership and delivery that can be planted, to see whether the simulation finds them."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from recallflow.connectors.kafka.delivery import OutputSender, Sent
from recallflow.connectors.kafka.group import Lease
from recallflow.connectors.kafka.group_consumer import GroupConsumer
from recallflow.connectors.kafka.membership import Membership, PreviousStaticMember
from recallflow.connectors.kafka.order import Lane
from recallflow.flows.ownership import Ownership
from recallflow.operators import outbox
from recallflow.state.directory import StateDirectory
from recallflow.state.partition import Partition
from tests.simulation import world as simulated
from tests.simulation.world import Patches


def skip_the_fence_after_a_pause(patches: Patches) -> None:
    """A member that was away for longer than its session goes on as if it were still the owner."""
    patches.replace(Membership, "check", lambda *_: None)


def drop_the_lease_check(patches: Patches) -> None:
    """An output may be sent with so little of the lease left that it arrives after its end."""
    patches.replace(Lease, "may_send", property(lambda self: self.seconds_left() > 0))
    patches.replace(Lease, "ran_out", property(lambda _: False))


def commit_before_delivery(patches: Patches) -> None:
    """Marks are committed although outputs before them are not acknowledged."""
    patches.replace(OutputSender, "first_open", lambda _: sys.maxsize)
    patches.replace(OutputSender, "flush_outputs", OutputSender.poll)


def commit_before_the_sync(patches: Patches) -> None:
    """Marks are committed although the state before them is not synced."""
    patches.replace(StateDirectory, "begin_sync", lambda *_: lambda: True)


def commit_positions_before_effects(patches: Patches) -> None:
    """Applied positions are written before the effects of their events."""

    def commit(self: Partition, batch: Any, *others: Any) -> None:
        held, self._pending = self._pending, {}
        real(self, batch, *others)
        self._pending = held
        simulated.sleep(0.01)
        real(self, type(batch)(raw_mode=True), *others)

    real = Partition._commit
    patches.replace(Partition, "_commit", commit)


def forget_the_outbox(patches: Patches) -> None:
    """An event that was applied before a restart gives no output when it comes again."""
    patches.replace(outbox, "read", lambda *_: [])


def reuse_a_generation(patches: Patches) -> None:
    """A member that lost its place goes on with what it owned before."""

    def commit(self: GroupConsumer, committed: Any, note: str) -> frozenset[int]:
        return real(self, committed, note) or frozenset(committed)

    real = GroupConsumer.commit
    patches.replace(GroupConsumer, "commit", commit)


def forget_what_was_sent(patches: Patches) -> None:
    """Outputs of an earlier owner are sent again."""
    patches.replace(Sent, "claim", lambda *_: False)


def gain_before_the_commit(patches: Patches) -> None:
    """A partition is worked on before the coordinator has accepted a commit of its new owner."""

    def gain(self: Membership) -> None:
        if (found := self._consumer.read(self._coming)) is not None:
            self._owned.update({number: one.committed for number, one in found.items()})
            self._coming.clear()
            self._lease.renew(self._clock_s())
            self._assignee.gain({number: one.committed.text or None for number, one in found.items()})

    patches.replace(Membership, "_gain", gain)


def hand_over_at_once(patches: Patches) -> None:
    """A partition moves on while records of it are still under way."""

    def give_up(self: Ownership, partitions: Any) -> Any:
        for number in partitions:
            if (handed := self._handed.get(number)) is not None:
                handed.set()
        return real(self, partitions)

    real = Ownership.give_up
    patches.replace(Ownership, "give_up", give_up)


def leave_a_place_clean(patches: Patches) -> None:
    """Nothing says that outputs may have been sent since the partition came."""
    patches.replace(Ownership, "begun", lambda _, at: at)


def forget_the_previous_static_member(patches: Patches) -> None:
    """A static member begins although the lease of another process of its name may still run."""
    patches.replace(PreviousStaticMember, "has_left", lambda _, found: set(found))


def answer_what_was_answered(patches: Patches) -> None:
    """Records below the committed place give outputs again."""
    patches.replace(Lane, "was_given", lambda *_: False)


def forget_open_queries(patches: Patches) -> None:
    """A query that waits counts as done with the records around it."""
    real = Ownership._place

    def place(self: Ownership, mark: Any, given: Any) -> Any:
        return real(self, replace(mark, open={}), given)

    patches.replace(Ownership, "_place", place)


def ignore_what_expired(patches: Patches) -> None:
    """An output that the brokers did not take in time counts as delivered."""
    patches.replace(OutputSender, "_fail", lambda *_: None)


DEFECTS: tuple[Callable[[Patches], None], ...] = (
    skip_the_fence_after_a_pause,
    drop_the_lease_check,
    commit_before_delivery,
    commit_before_the_sync,
    commit_positions_before_effects,
    forget_the_outbox,
    reuse_a_generation,
    forget_what_was_sent,
    gain_before_the_commit,
    hand_over_at_once,
    leave_a_place_clean,
    forget_the_previous_static_member,
    answer_what_was_answered,
    forget_open_queries,
    ignore_what_expired,
)
