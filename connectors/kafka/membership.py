"""Membership in a deployment's consumer group, which owns partitions of the memory topic.

The group assigns partitions, or the operator does (`own`). In both cases the group's coordinator decides: each accepted
commit lets the member send for a while (`Lease`). A partition that moves is handed over before its next owner gets it.
A member that did not renew its lease for a session has lost all partitions.

The consumer serves one call at a time, so one thread makes all calls. While that thread waits in a callback for a
hand-over, it continues to commit, so that the other partitions stay active."""

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
from recallflow.connectors.kafka.group_consumer import COOPERATIVE, MANUAL, Committed, CommittedEntry, GroupConsumer
from recallflow.connectors.kafka.lease import MARGIN_MIN_S, Holder, Lease, await_removals, boottime_s
from recallflow.errors import DeploymentLost, MembershipLost, RecallflowError, SinkError, SourceError, UsageError
from recallflow.kafka_options import SESSION_S, KafkaOptions
from recallflow.process import TimeLimit

HAND_OVER_MIN_S = 30.0  # minimum time limit of a handover, after which the member gives up all partitions
REBALANCE_MIN_S = 300.0
POLL_S = 0.05
PAUSE_S = 0.01
SETTINGS_PARTITION = 0  # its owner commits the settings of a new deployment
COMMIT_RETRY_S = 0.05  # pause before a commit that failed during a rebalance is repeated
LEAVE_TIMEOUT_S = 5.0  # because leaving the group waits for unavailable brokers

_log = logging.getLogger(__name__)


class Assignee(Protocol):
    """Owner of the work on the partitions."""

    def gain(self, texts: dict[int, str | None]) -> None:
        """Begin work on partitions, with the text that the last owner committed for each, or None. Return at once."""

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        """Finish work on partitions. Return the final progress of each started one, once nothing is in flight."""


class PreviousStaticMember:
    """A process that joined earlier with the same `group.instance.id` and whose lease may still be valid. The
    coordinator refuses its commits and assigns its partitions to us at once, but it may send for one more session."""

    def __init__(self, successor: Holder, lease: Lease) -> None:
        self._successor, self._lease = successor, lease
        self._until_s = 0.0
        self._is_wait_logged = False

    def fence(self) -> None:
        """Fence our partitions for one session, because the earlier process may send for as long."""
        if self._successor.instance:
            self._until_s = self._lease.clock_s() + self._lease.session_s

    @property
    def has_expired(self) -> bool:
        return self._lease.clock_s() >= self._until_s

    def unfenced(self, entries: dict[int, CommittedEntry]) -> set[int]:
        """Return the partitions whose outputs the earlier process can no longer send."""
        if self.has_expired:
            return set(entries)
        fenced = {partition for partition, entry in entries.items() if self._may_send(Holder.parse(entry.note))}
        if fenced and not self._is_wait_logged:
            self._is_wait_logged = True
            name = self._successor.instance
            _log.warning("waiting until the lease of an earlier process with instance id %s has expired", name)
        return set(entries) - fenced

    def _may_send(self, writer: Holder | None) -> bool:
        """Return whether a note's writer may be running. It has exited if its directory is ours: we hold the lock."""
        us = self._successor
        if writer is None or writer.released or writer.instance != us.instance or writer.run == us.run:
            return False
        return writer.directory_id != us.directory_id or not writer.directory_id


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
        initial_commit: Callable[[Committed], Committed] = lambda committed: committed,
        settings: Mapping[str, object] = MappingProxyType({}),
        clock_s: Callable[[], float] = boottime_s,
        new_consumer: Callable[..., Any] = Consumer,
        is_rebalancing: Callable[[], bool] | None = None,
    ) -> None:
        """`topics` are the memory topic and the query topic; `state_dir` is the directory whose lock we hold.
        `instance_id` is the id of a static member, which keeps its partitions during a restart; `own` are partitions
        that are assigned by hand. `initial_commit` returns the first commit of a gained partition, from the last one.
        `is_rebalancing` returns whether the group is between two generations."""
        if own is not None and instance_id is not None:
            raise UsageError("--instance-id cannot be combined with --own, whose partitions form the instance id")
        self.name, self._options, self._topics = name, options, topics
        self._assignee, self._own, self._initial_commit = assignee, own, initial_commit
        self._instance_id = instance_id if own is None else group_members.instance_id_of(own)
        self._clock_s = clock_s
        self._holder = Holder.here(state_dir, self._instance_id or "", settings)
        self._is_agreed = not settings  # whether our settings are known to equal the deployment's
        self._lease = Lease(session_s, clock_s)
        self._is_rebalancing = is_rebalancing or group_members.RebalanceProbe(options, name).is_rebalancing
        self._hand_over_s = max(HAND_OVER_MIN_S, session_s)
        self._hand_overs = ThreadPoolExecutor(1, "recallflow-hand-over")  # the membership thread renews meanwhile
        self._consumer = GroupConsumer(
            options,
            name,
            topics,
            self,
            session_s=session_s,
            # A member that exceeds this time is removed, and its lease must have expired by then.
            rebalance_s=max(REBALANCE_MIN_S, self._hand_over_s + 3 * session_s),
            instance_id=self._instance_id,
            strategy=COOPERATIVE if own is None else MANUAL,
            new_consumer=new_consumer,
        )
        self._error: Exception | None = None
        self._lock = threading.RLock()  # guards the next two fields; released before a wait
        self._owned: dict[int, Committed] = {}  # progress of each partition, committed or not
        self._uncommitted: set[int] = set()
        self._pending: set[int] = set()  # assigned, but not yet owned
        self._member_id: str | None = None
        self._is_wait_logged = False  # whether the wait for the deployment's settings was logged
        self._is_alone = False  # whether a check found no other owner of partitions by hand
        self._previous = PreviousStaticMember(self._holder, self._lease)
        self._renew_at_s, self._renewals = 0.0, 0  # time of the next renewal, and the number of renewals
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
        return self.partitions | frozenset(self._pending)

    @property
    def partitions(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._owned)

    @property
    def outage_s(self) -> float:
        return self._lease.outage_s

    def failure(self) -> Exception | None:
        return self._error

    def check(self, time_limit: Callable[[], TimeLimit]) -> None:
        """Return once sending is permitted; wait for a renewal of the lease if necessary. Raise MembershipLost if
        another member may own our partitions, or `time_limit` has expired; SinkError if it expired while stopping."""
        limit: TimeLimit | None = None
        while True:
            self._raise_failure()
            if self._lease.may_send:
                return
            if self._lease.has_expired:  # the membership thread may be in a call, and has not noticed
                raise self._loss_error()
            limit = limit or time_limit()
            if limit.poll_expired():
                problem = f"membership in deployment {self.name} could not be renewed {limit}: check the brokers"
                if limit.is_stopping:
                    raise SinkError(f"{problem}. Unsent outputs are sent after the next start")
                raise MembershipLost(problem)
            time.sleep(PAUSE_S)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        """Schedule a commit of progress. Partitions that are no longer ours are ignored. Do not wait."""
        with self._lock:
            owned = {partition: progress for partition, progress in committed.items() if partition in self._owned}
            self._owned.update(owned)
            self._uncommitted.update(owned)

    def is_committed(self, partitions: Collection[int]) -> bool:
        """Return whether the last progress of our partitions is committed. Raise the membership's error."""
        self._raise_failure()
        with self._lock:
            return self._uncommitted.isdisjoint(partitions)

    def start(self) -> None:
        """Begin to join the group. Raise SourceError, and UsageError for unfit topics or other owners by hand."""
        group_members.check_topics(self._options, self._topics, self._own)
        if self._own is not None:
            group_members.check_alone(self._options, self.name, self._own)
        self._thread.start()

    def release(self) -> None:
        """Hand over all partitions and leave. Partitions of a static member move only when its session ends."""
        self._releasing = True
        self.close()

    def close(self) -> None:
        """Leave without handing over; nothing may be in flight. A second call has no effect."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * LEAVE_TIMEOUT_S if self._releasing else LEAVE_TIMEOUT_S)

    # --------------------------------------------------------- called by the membership thread

    def _run(self) -> None:
        with self._recorded_failures():
            await_removals(self._options, self.name, self._topics[1], self._holder, self._lease, self._closing)
            if not self._closing.is_set():
                self._consumer.join(self._is_new())
            while not self._closing.is_set():
                self.step()
            if self._releasing and self._error is None:
                self._hand_over(self.partitions)
        self._closing.wait()  # outputs may be in flight until the flow has ended
        self._lease.end()
        self._leaving = True
        with self._recorded_failures():
            self._consumer.leave()

    def _is_new(self) -> bool:
        if self._instance_id is None:
            return True
        with suppress(SourceError):
            return self._instance_id not in group_members.static_members(self._options, self.name)
        return False

    def step(self) -> None:
        """Serve callbacks, and renew the lease when due. Raise RecallflowError."""
        self._consumer.poll(POLL_S)
        self._renew_and_gain()

    def _renew_and_gain(self) -> None:
        self._raise_failure()
        self._renew()
        if self._pending:
            self._gain()

    def assigned(self, partitions: frozenset[int]) -> None:
        """Begin work on partitions. `GroupConsumer.poll` calls this, `revoked` and `lost`, also at its end."""
        if self._leaving:
            return  # a commit would renew the lease that has ended
        with self._recorded_failures():
            if self._consumer.member_id != self._member_id:
                if self._owned:
                    raise self._loss_error()
                self._member_id = self._consumer.member_id
                self._previous.fence()
                self._pending |= partitions if self._own is None else self._own
            elif self._own is None:
                self._pending |= partitions
            self._renew_and_gain()

    def revoked(self, partitions: frozenset[int]) -> None:
        if self._own is not None or self._leaving:
            return
        if self._error is None and not self._has_flow_ended:
            with self._recorded_failures():
                # Partitions that are still fenced by our predecessor must not be reassigned yet.
                self._renew_until(lambda: not self._pending & partitions or self._previous.has_expired)
                self._pending -= partitions
                if moving := self.partitions & partitions:
                    self._await_receiver()
                    self._hand_over(moving)
        if self._error is not None:
            self._closing.wait()  # outputs may be in flight until the flow has ended

    def lost(self) -> None:
        self._lease.end()
        self._fail(self._loss_error())
        self._closing.wait()

    def _await_receiver(self) -> None:
        """Return once the member that receives our partitions has started the next rebalance, or its session must have
        expired. If we started it first, the coordinator would refuse our commits until that member joins it."""
        until_s = self._clock_s() + self._lease.session_s + MARGIN_MIN_S
        self._renew_until(lambda: self._is_rebalancing() or self._clock_s() >= until_s)

    def _hand_over(self, moving: frozenset[int]) -> None:
        if not moving:
            return
        until_s = self._clock_s() + self._hand_over_s
        hand_over = self._hand_overs.submit(self._assignee.give_up, moving)
        self._renew_until(lambda: hand_over.done() or self._clock_s() >= until_s)
        if not hand_over.done():
            raise MembershipLost(f"deployment {self.name}: a hand-over took longer than {self._hand_over_s:.0f} s")
        progress = hand_over.result()
        with self._lock:
            final = {partition: self._owned.pop(partition) for partition in moving} | progress
            self._uncommitted -= moving
        # Without this commit the next owner has to search all outputs since the last commit.
        while self._lease.may_send and final.keys() - self._consumer.commit(final, self._note(released=True)):
            time.sleep(COMMIT_RETRY_S)

    def _renew_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, or the end of the flow, and renew the lease meanwhile."""
        while not condition():
            if self._has_flow_ended:
                return
            time.sleep(PAUSE_S)
            self._renew()

    @property
    def _has_flow_ended(self) -> bool:
        """Return whether the flow has ended, so that it can hand over nothing."""
        return self._closing.is_set() and not self._releasing

    def _gain(self) -> None:
        entries = self._consumer.read(self._pending | ({SETTINGS_PARTITION} if not self._is_agreed else set()))
        if entries is None or not self._settings_agree(entries):
            return
        if self._own is not None and not self._is_alone:
            group_members.check_alone(self._options, self.name, self._own)
            self._is_alone = True
        ready = self._previous.unfenced({partition: entries[partition] for partition in self._pending})
        commits = {partition: self._initial_commit(entries[partition].committed) for partition in ready}
        sent_s = self._clock_s()
        gained = self._consumer.commit(commits, self._note()) if commits else frozenset()
        if not gained:
            return
        self._lease.renew(sent_s)
        with self._lock:
            self._owned.update({partition: commits[partition] for partition in gained})
        self._pending -= gained  # after `_owned` has them, so that `expected` always contains them
        self._assignee.gain({partition: entries[partition].committed.text or None for partition in gained})

    def _settings_agree(self, entries: Mapping[int, CommittedEntry]) -> bool:
        """Return whether the settings in the notes allow us to gain partitions. Raise UsageError if they differ.

        The owner of the first partition commits the settings of a new deployment, and all others wait for them. So of
        members that start together with different settings, at most one begins."""
        holders = [holder for entry in entries.values() if (holder := Holder.parse(entry.note)) is not None]
        self._is_agreed |= group_members.check_settings(self.name, self._holder.settings, holders)
        if not self._is_agreed and SETTINGS_PARTITION not in self._pending and not self._is_wait_logged:
            self._is_wait_logged = True
            _log.info(
                "waiting for the owner of partition %d, which commits the deployment's settings", SETTINGS_PARTITION
            )
        return self._is_agreed or SETTINGS_PARTITION in self._pending

    def _renew(self) -> None:
        """Commit new progress. If a renewal is due, repeat one commit, in turn, so that none expires."""
        if self._owned and self._lease.has_expired:
            raise self._loss_error()
        with self._lock:
            owned, due = sorted(self._owned), set(self._uncommitted)
            if owned and self._clock_s() >= self._renew_at_s:
                due.add(owned[self._renewals % len(owned)])
            commits = {partition: self._owned[partition] for partition in due}
        if not commits:
            return
        sent_s = self._clock_s()
        accepted = self._consumer.commit(commits, self._note())
        if accepted:
            self._lease.renew(sent_s)
            self._renew_at_s = sent_s + self._lease.renew_s
            self._renewals += 1
        with self._lock:  # a newer commit may exist
            self._uncommitted -= {partition for partition in accepted if self._owned[partition] is commits[partition]}

    def _note(self, released: bool = False) -> str:
        self._holder = replace(self._holder, renewals=self._holder.renewals + 1)
        return replace(self._holder, released=released).encode()

    @contextmanager
    def _recorded_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._lease.end()

    def _loss_error(self) -> RecallflowError:
        """Return MembershipLost, or DeploymentLost if a process with our instance id owns our partitions."""
        with suppress(RecallflowError):
            if self._instance_id is not None:
                members = group_members.static_members(self._options, self.name)
                if members.get(self._instance_id, self._consumer.member_id) != self._consumer.member_id:
                    return self.replacement_error()
        problem = f"deployment {self.name}: this member could not renew its lease within a session"
        return MembershipLost(f"{problem}, so its partitions belong to others")

    def replacement_error(self) -> DeploymentLost:
        """Return the error of a static member whose instance id another process has taken."""
        joined = f"another process has joined deployment {self.name} with the same instance id, {self._instance_id}"
        return DeploymentLost(f"{joined}: run only one of them")

    def assignment_mode_error(self) -> UsageError:
        members = "members without --own" if self._own is not None else "members with --own"
        remedy = "stop them first; the group removes them after their session timeout"
        return UsageError(f"deployment {self.name} has {members}: {remedy}")

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
