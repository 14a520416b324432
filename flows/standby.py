"""Standby copies of other members' partitions, and the folders of partitions that were released to other members.

A standby applies the memories of a partition silently, up to where its owner has delivered the outputs. So it has
little left to read when it becomes the owner. Every member computes from the public assignment which partitions it
would get if their owner were lost, and keeps copies of these. Members need not agree: where their views differ for a
moment, a partition has two standby copies or none.

The folder of a released partition is marked: no command reads it or writes to it. It is kept for a day: if the
partition comes back, only the tail of its log is read. Then it is removed, because later erasures do not reach it.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from heapq import heapify, heapreplace

from confluent_kafka import KafkaException, TopicPartition

from recallflow.background import beside
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.group import GroupShares, Shares
from recallflow.connectors.kafka.order import Lane
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.topic_reader import ASK_S, TopicReader
from recallflow.errors import RecallflowError
from recallflow.flows.checkpointing import Restore
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import elsewhere_since_ms, mark_elsewhere, partition_folder, unmark_elsewhere

RELEASED_LOOK_S = 2.0
KEPT_MS = 24 * 3_600_000
Numbers = Callable[[], frozenset[int]]
LOOK_S = 1.0
NEVER = 2**63 - 1  # no output of what is followed is ours to send

_log = logging.getLogger(__name__)


class ReleasedPartitions:
    """Of one member's state directory. `StateDirectory` ignores the mark where `run` opens it; whoever opens a
    partition as its own takes the mark away."""

    def __init__(
        self,
        directory: StateDirectory,
        *,
        others: Numbers,
        ours: Numbers,
        warm: Numbers,
        can_come_again: Callable[[int], bool],
        stopping: threading.Event,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`others`: the partitions that other members have, as they said last. `ours`: ours by now, or about to be.
        `warm`: those that we keep warm, whose folders stay. `can_come_again`: whether all that a folder holds is kept
        outside of any member's directory."""
        self._directory, self._others, self._ours, self._warm = directory, others, ours, warm
        self._can_come_again, self._stopping, self._clock_ms = can_come_again, stopping, clock_ms
        self._seen: frozenset[int] = frozenset()  # what others had at the last look
        self._ending = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        """Look at intervals, on a thread of its own."""
        return beside(self._run, "elsewhere", self._ending)

    def _run(self) -> None:
        while not self._ending.wait(RELEASED_LOOK_S):
            with suppress(KafkaException, RecallflowError, OSError):  # it is looked again
                self.look()

    def look(self) -> None:
        """Marks folders, and removes those whose time is over. What others had for one look alone may be about to come
        back: then nobody has begun with it."""
        others = self._others()
        lasting, self._seen = others & self._seen, others
        for number in self._directory.existing_numbers():
            if number in lasting - self._ours() and not self._stopping.is_set():
                self._look_at(number)

    def _look_at(self, number: int) -> None:
        folder, now_ms = partition_folder(self._directory.path, number), self._clock_ms()
        since_ms, warm = elsewhere_since_ms(folder), number in self._warm()
        if since_ms is None or (warm and now_ms - since_ms >= KEPT_MS // 2):
            mark_elsewhere(folder, now_ms)
            if number in self._ours():  # it came meanwhile, and its mark was taken away before we made it
                unmark_elsewhere(folder)
            return
        over = not warm and now_ms - since_ms >= KEPT_MS and self._can_come_again(number)
        if over and self._directory.forget_closed(number):
            _log.info("partition %d went to another member a day ago: its folder here is removed", number)


class Standby:
    """What one member follows. `count`: so many members stand by for each partition."""

    def __init__(
        self,
        options: KafkaOptions,
        name: str,
        memory_topic: str,
        directory: StateDirectory,
        source: OwnedSource,
        member_id: Callable[[], str | None],
        count: int,
        *,
        restore: Restore | None = None,
        expected: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        """`name`: of the group. `member_id`: how it knows us. `restore`: gives a partition a folder from elsewhere.
        `expected`: what is ours, or about to be: others see to those folders."""
        self._options, self._name, self._topic = options, name, memory_topic
        self._directory, self._source, self._member_id, self._count = directory, source, member_id, count
        self._restore, self._expected = restore, expected
        self._shares = GroupShares(options, name, memory_topic)
        self._seen: tuple[str | None, Shares] = None, {}
        self._wanted: frozenset[int] = frozenset()  # by what was seen
        self._stopping = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        """Look at intervals, on a thread of its own."""
        return beside(self._run, "standby", self._stopping)

    def _run(self) -> None:
        with TopicReader(self._options, {"group.id": self._name}) as reader:
            while not self._stopping.wait(LOOK_S):
                try:
                    self._look(reader)
                except (KafkaException, RecallflowError) as error:
                    _log.warning("nothing is known of whom to stand by for: %s", error)

    def _look(self, reader: TopicReader) -> None:
        reader.consumer.list_topics(self._topic, timeout=ASK_S)  # who is away now is not asked for a description
        if (seen := (self._member_id(), self._shares.look())) != self._seen:
            self._seen, self._wanted = seen, warm_at(*seen, self._count)
        wanted = self._wanted - self._source.partitions()
        for number in self._source.kept_warm() - wanted:
            self._source.cool(number)
        if not wanted:
            return
        asked = [TopicPartition(self._topic, number) for number in sorted(wanted)]
        for found in reader.consumer.committed(asked, timeout=ASK_S):
            if found.error is None and found.offset >= 0:
                self._go_on(reader, found.partition, found.offset)

    def _go_on(self, reader: TopicReader, number: int, limit: int) -> None:
        """Follows a partition up to `limit`."""
        if number in self._source.kept_warm():
            self._source.allow(number, limit)
            return
        if self._restore is not None:
            self._restore(number, lambda: number not in self._expected())
        applied = self._directory.partition(number).applied.get(f"{self._topic}:{number}", -1)
        low, high = reader.span(self._topic, number)
        if applied + 1 < low:
            _log.warning("partition %d cannot be kept warm: its log begins at offset %d", number, low)
            return
        lane = Lane(self._topic, number, applied + 1, high, answered_from=NEVER, limit=limit)
        self._source.warm(number, lane)


def warm_at(me: str | None, assigned: Shares, count: int) -> frozenset[int]:
    """The partitions that come to this member if their owner is lost; with a higher `count` also if whoever comes next
    is lost as well, up to so many members."""
    if me not in assigned:
        return frozenset()
    others = ((owner, share) for owner, share in assigned.items() if owner != me)
    return frozenset().union(*(_coming(me, assigned, owner, share, count) for owner, share in others))


def _coming(me: str, assigned: Shares, lost: str, share: frozenset[int], count: int) -> frozenset[int]:
    """Those of a lost member's share that come to us, now or with the losses after it."""
    left = without(assigned, lost)
    coming = left[me] & share
    if count > 1:
        next_shares = {other: has & share for other, has in left.items() if other != me and has & share}
        coming = coming.union(*(_coming(me, left, other, has, count - 1) for other, has in next_shares.items()))
    return coming


def without(assigned: Shares, lost: str) -> Shares:
    """What every member has once the group does without one. librdkafka's cooperative-sticky assignor shares out the
    highest partition first, each to whoever has the fewest, of equals to the one whose id comes first."""
    left = {member: set(share) for member, share in assigned.items() if member != lost}
    by_load = [(len(share), member) for member, share in left.items()]
    heapify(by_load)
    for partition in sorted(assigned[lost], reverse=True) if by_load else ():
        load, member = by_load[0]
        left[member].add(partition)
        heapreplace(by_load, (load + 1, member))
    return {member: frozenset(share) for member, share in left.items()}
