"""Membership in a deployment's consumer group, which owns partitions of the memory topic.

The group assigns partitions, or the operator does (`own`). Either way the group's coordinator decides: each accepted
commit lets the member send for a while (`Lease`), and a partition that moves is handed over before its next owner gets
it. A member that was away for longer than its session has lost all partitions.

One thread makes every call of the consumer, which serves one call at a time. While that thread waits in a callback for
a hand-over, it continues to commit, so that the other partitions stay active."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from confluent_kafka import Consumer

from recallflow.connectors.kafka import group_members
from recallflow.connectors.kafka.group_consumer import (
    BY_HAND,
    SHARING,
    Committed,
    CommittedEntry,
    GroupConsumer,
)
from recallflow.connectors.kafka.lease import MARGIN_MIN_S, Holder, Lease, await_silent, boottime_s
from recallflow.errors import DeploymentLost, MembershipLost, RecallflowError, SinkError, SourceError, UsageError
from recallflow.kafka_options import SESSION_S, KafkaOptions
from recallflow.process import TimeLimit

HAND_OVER_MIN_S = 30.0  # minimum time limit of a handover, after which the member gives up all partitions
REBALANCE_MIN_S = 300.0
POLL_S = 0.05
PAUSE_S = 0.01
FIRST = 0  # the partition whose owner commits the settings of a new deployment
AGAIN_S = 0.05  # delay before a commit that met a rebalance is repeated
CLOSE_S = 5.0  # limit of a leave, which waits for unavailable brokers

_log = logging.getLogger(__name__)


class Assignee(Protocol):
    """Owner of the work on the partitions."""

    def gain(self, texts: dict[int, str | None]) -> None:
        """Begin work on partitions, with the text that the last owner committed for each, or None. Return at once."""

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        """Hand over partitions. Return the final commit of each started one, once nothing of them is in flight."""


class PreviousStaticMember:
    """A process that joined earlier with the same `group.instance.id` and whose lease may still be valid. The
    coordinator refuses its commits and assigns its partitions to us at once, but it may send for one more session."""

    def __init__(self, me: Holder, lease: Lease) -> None:
        self._me, self._lease = me, lease
        self._until_s = 0.0
        self._warned = False

    def replaced(self) -> None:
        if self._me.instance:
            self._until_s = self._lease.clock_s() + self._lease.session_s

    @property
    def is_through(self) -> bool:
        return self._lease.clock_s() >= self._until_s

    def has_left(self, found: dict[int, CommittedEntry]) -> set[int]:
        """Return the partitions that it cannot be working on."""
        if self.is_through:
            return set(found)
        working = {partition for partition, at in found.items() if self._wrote(Holder.parse(at.note))}
        if working and not self._warned:
            self._warned = True
            _log.warning("waiting until the right of another process, also %s, has run out", self._me.instance)
        return set(found) - working

    def _wrote(self, last: Holder | None) -> bool:
        """Return whether a live predecessor wrote a note. We hold the lock of our directory, so its writer has
        exited."""
        if last is None or last.released or last.instance != self._me.instance or last.run == self._me.run:
            return False
        return last.directory_id != self._me.directory_id or not last.directory_id


class Membership:
    """Membership: `start`, then `check` before each send, and at the end `release` or `close`."""

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        topics: tuple[str, str],
        assignee: Assignee,
        state_dir: Path,
        session_s: float = SESSION_S,
        *,
        instance_id: str | None = None,
        own: frozenset[int] | None = None,
        initial_commit: Callable[[Committed], Committed] = lambda at: at,
        settings: Mapping[str, object] = MappingProxyType({}),
        clock_s: Callable[[], float] = boottime_s,
        new_consumer: Callable[..., Any] = Consumer,
        is_rebalancing: Callable[[], bool] | None = None,
    ) -> None:
        """`topics` are the memory topic and the query topic; `state_dir` is the directory whose lock we hold.
        `instance_id` is the id of a static member, which keeps its partitions during a restart; `own` are partitions
        that are assigned by hand. `initial_commit` returns the progress of a new partition, which is committed first.
        `is_rebalancing` returns whether the group is between two generations."""
        if own is not None and instance_id is not None:
            raise UsageError("give an instance id or partitions of one's own: they are an instance's name already")
        self.name, self._options, self._topics = name, options, topics
        self._assignee, self._own, self._initial_commit = assignee, own, initial_commit
        self._static = instance_id if own is None else group_members.name_of(own)
        self._clock_s = clock_s
        self._me = Holder.here(state_dir, self._static or "", settings)
        self._agreed = not settings  # whether the deployment's settings are known to equal ours
        self._lease = Lease(session_s, clock_s)
        self._is_rebalancing = is_rebalancing or group_members.RebalanceProbe(options, name).is_rebalancing
        self._hand_over_s = max(HAND_OVER_MIN_S, session_s)
        self._handing_over = ThreadPoolExecutor(1, "recallflow-hand-over")  # the membership thread renews meanwhile
        self._consumer = GroupConsumer(
            options,
            name,
            topics,
            self,
            session_s=session_s,
            # A member that exceeds this time is removed, and its lease must have expired by then.
            rebalance_s=max(REBALANCE_MIN_S, self._hand_over_s + 3 * session_s),
            instance_id=self._static,
            strategy=SHARING if own is None else BY_HAND,
            new_consumer=new_consumer,
        )
        self._error: Exception | None = None
        self._state = threading.RLock()  # guards the next two fields; never held during a wait
        self._owned: dict[int, Committed] = {}  # last commit of each partition, or the next one
        self._dirty: set[int] = set()
        self._coming: set[int] = set()  # assigned, but not yet owned
        self._member_id: str | None = None
        self._waits = False  # whether we wait for the deployment's settings
        self._alone = False  # whether a check has excluded other owners by hand
        self._previous = PreviousStaticMember(self._me, self._lease)
        self._renew_at_s, self._turn = 0.0, 0  # time of the next renewal, and the number of renewals
        self._releasing = self._leaving = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-membership")

    # ------------------------------------------------------------ called by other threads

    @property
    def member_id(self) -> str | None:
        return self._consumer.member_id  # None before the first join

    @property
    def expected(self) -> frozenset[int]:
        """Return the partitions that are owned, or that will be once the checks pass."""
        return self.partitions | frozenset(self._coming)

    @property
    def partitions(self) -> frozenset[int]:
        with self._state:
            return frozenset(self._owned)

    @property
    def outage_s(self) -> float:
        return self._lease.outage_s

    def failure(self) -> Exception | None:
        return self._error

    def check(self, patience: Callable[[], TimeLimit]) -> None:
        """Return once sending is permitted; wait for a renewal where that is uncertain. Raise MembershipLost where
        another member may own our partitions, SinkError where `patience` with unavailable brokers has ended."""
        waiting: TimeLimit | None = None
        while True:
            self._raise_failure()
            if self._lease.may_send:
                return
            if self._lease.ran_out:  # the other thread may be in the middle of a call
                raise self._lost()
            waiting = waiting or patience()
            if waiting.poll_expired():
                raise SinkError(
                    f"membership in deployment {self.name} could not be renewed {waiting}: are the brokers away? "
                    "Outputs that were not sent are sent after the next start"
                )
            time.sleep(PAUSE_S)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        """Schedule a commit of progress. Partitions that are no longer ours are ignored. Do not wait."""
        with self._state:
            mine = {partition: at for partition, at in committed.items() if partition in self._owned}
            self._owned.update(mine)
            self._dirty.update(mine)

    def is_committed(self, partitions: Collection[int]) -> bool:
        """Return whether the last progress of our partitions is committed. Raise the membership's error."""
        self._raise_failure()
        with self._state:
            return self._dirty.isdisjoint(partitions)

    def start(self) -> None:
        """Join; partitions come one by one. Raise UsageError for unfit topics or assignment mode, and SourceError."""
        group_members.check_topics(self._options, self._topics, self._own)
        if self._own is not None:
            group_members.check_alone(self._options, self.name, self._own)
        self._thread.start()

    def release(self) -> None:
        """Hand over all partitions and leave, with nothing else in flight. A static member's move after its session."""
        self._releasing = True
        self.close()

    def close(self) -> None:
        """Leave without handing over; nothing may be in flight. A second call has no effect."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * CLOSE_S if self._releasing else CLOSE_S)

    # --------------------------------------------------------- called by the membership thread

    def _run(self) -> None:
        with self._keeping_failures():
            await_silent(self._options, self.name, self._topics[1], self._me, self._lease, self._closing)
            if not self._closing.is_set():
                self.enter(self._is_new())
            while not self._closing.is_set():
                self.step()
            if self._releasing and self._error is None:
                self._hand_over(self.partitions)
        self._closing.wait()  # outputs may be in flight until the flow has ended
        self._lease.end()
        self._leaving = True
        with self._keeping_failures():
            self._consumer.leave()

    def enter(self, is_new: bool = True) -> None:
        """Join the group; `step` completes it. `is_new`: the group has no static member with our instance id."""
        self._consumer.join(is_new)

    def _is_new(self) -> bool:
        if self._static is None:
            return True
        with suppress(SourceError):
            return self._static not in group_members.static_members(self._options, self.name)
        return False

    def step(self) -> None:
        """Serve callbacks, and renew the lease when due. Raise RecallflowError."""
        self._consumer.poll(POLL_S)
        self._work()

    def _work(self) -> None:
        self._raise_failure()
        self._renew()
        if self._coming:
            self._gain()

    def assigned(self, partitions: frozenset[int]) -> None:
        """Begin work on partitions. `GroupConsumer.poll` calls this, `revoked` and `lost`, also at its end."""
        if self._leaving:
            return  # a commit would renew the lease that has ended
        with self._keeping_failures():
            if self._consumer.member_id != self._member_id:
                if self._owned:
                    raise self._lost()
                self._member_id = self._consumer.member_id
                self._previous.replaced()
                self._coming |= partitions if self._own is None else self._own
            elif self._own is None:
                self._coming |= partitions
            self._work()

    def revoked(self, partitions: frozenset[int]) -> None:
        if self._own is not None or self._leaving:
            return
        if self._error is None and not self._is_over:
            with self._keeping_failures():
                # Partitions that are still fenced by our predecessor must not be reassigned yet.
                self._renew_until(lambda: not self._coming & partitions or self._previous.is_through)
                self._coming -= partitions
                if moving := self.partitions & partitions:
                    self._await_receiver()
                    self._hand_over(moving)
        if self._error is not None:
            self._closing.wait()  # outputs may be in flight until the flow has ended

    def lost(self) -> None:
        self._lease.end()
        self._fail(self._lost())
        self._closing.wait()

    def _await_receiver(self) -> None:
        """Return once the next rebalance has started: by a new member (`GroupConsumer`), or by the coordinator when the
        session of the new member has expired. If we started it, the coordinator would keep us in it until then, and
        refuse our commits."""
        until_s = self._clock_s() + self._lease.session_s + MARGIN_MIN_S
        self._renew_until(lambda: self._is_rebalancing() or self._clock_s() >= until_s)

    def _hand_over(self, moving: frozenset[int]) -> None:
        if not moving:
            return
        until_s = self._clock_s() + self._hand_over_s
        handed_over = self._handing_over.submit(self._assignee.give_up, moving)
        self._renew_until(lambda: handed_over.done() or self._clock_s() >= until_s)
        if not handed_over.done():
            raise MembershipLost(f"deployment {self.name}: what moves was not through within {self._hand_over_s:.0f} s")
        through = handed_over.result()
        with self._state:
            final = {partition: self._owned.pop(partition) for partition in moving} | through
            self._dirty -= moving
        # Without this text the next owner has to search all outputs since the previous one.
        while self._lease.may_send and final.keys() - self._consumer.commit(final, self._note(released=True)):
            time.sleep(AGAIN_S)

    def _renew_until(self, true: Callable[[], bool]) -> None:
        """Wait, and renew the remaining partitions; end with the flow."""
        while not true():
            if self._is_over:
                return
            time.sleep(PAUSE_S)
            self._renew()

    @property
    def _is_over(self) -> bool:
        """Return whether the flow that could hand over has ended."""
        return self._closing.is_set() and not self._releasing

    def _gain(self) -> None:
        found = self._consumer.read(self._coming | ({FIRST} if not self._agreed else set()))
        if found is None or not self._settings_agree(found):
            return
        if self._own is not None and not self._alone:
            group_members.check_alone(self._options, self.name, self._own)
            self._alone = True
        coming = {partition: found[partition] for partition in self._coming}
        commits = {
            partition: self._initial_commit(coming[partition].committed)
            for partition in self._previous.has_left(coming)
        }
        sent_s = self._clock_s()
        gained = self._consumer.commit(commits, self._note()) if commits else frozenset()
        if not gained:
            return
        self._lease.renew(sent_s)
        with self._state:
            self._owned.update({partition: commits[partition] for partition in gained})
        self._coming -= gained  # after `_owned` has them, so that `expected` always contains them
        self._assignee.gain({partition: coming[partition].committed.text or None for partition in gained})

    def _settings_agree(self, found: Mapping[int, CommittedEntry]) -> bool:
        """Return whether the settings in the notes allow a start of partitions. Raise UsageError where they differ.

        The owner of the first partition commits the settings of a new deployment, and all others wait for them. So of
        members that start together with different settings, one begins at most."""
        holders = [holder for at in found.values() if (holder := Holder.parse(at.note)) is not None]
        self._agreed |= group_members.agree(self.name, self._me.settings, holders)
        if not self._agreed and FIRST not in self._coming and not self._waits:
            self._waits = True
            _log.info("waiting for the owner of partition %d, which commits the deployment's settings", FIRST)
        return self._agreed or FIRST in self._coming

    def _renew(self) -> None:
        """Commit new progress, or one partition in turn when due, because Kafka expires uncommitted offsets."""
        if self._owned and self._lease.ran_out:
            raise self._lost()
        with self._state:
            owned, chosen = sorted(self._owned), set(self._dirty)
            if owned and self._clock_s() >= self._renew_at_s:
                chosen.add(owned[self._turn % len(owned)])
            commits = {partition: self._owned[partition] for partition in chosen}
        if not commits:
            return
        sent_s = self._clock_s()
        accepted = self._consumer.commit(commits, self._note())
        if accepted:
            self._lease.renew(sent_s)
            self._renew_at_s = sent_s + self._lease.renew_s
            self._turn += 1
        with self._state:  # a newer commit may exist
            self._dirty -= {partition for partition in accepted if self._owned[partition] is commits[partition]}

    def _note(self, released: bool = False) -> str:
        self._me = replace(self._me, renewals=self._me.renewals + 1)
        return replace(self._me, released=released).encode()

    # ----------------------------------------------------------- failures

    @contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._lease.end()

    def _lost(self) -> RecallflowError:
        """Return the error; DeploymentLost where a process with our instance id owns our partitions."""
        with suppress(RecallflowError):
            if self._static is not None:
                members = group_members.static_members(self._options, self.name)
                if members.get(self._static, self._consumer.member_id) != self._consumer.member_id:
                    return self.replaced()
        return MembershipLost(f"deployment {self.name}: cut off for longer than a session: what was owned is another's")

    def replaced(self) -> DeploymentLost:
        """Return the error of a static member whose instance id another process has taken."""
        joined = f"another process has joined deployment {self.name} as {self._static}"
        return DeploymentLost(f"{joined}: let one of them run")

    def other_assignment_mode(self) -> UsageError:
        theirs = "whose partitions the group assigns" if self._own is not None else "that own theirs by --own"
        remedy = "stop them first; a session timeout later the group has forgotten them"
        return UsageError(f"deployment {self.name} has members {theirs}: {remedy}")

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
