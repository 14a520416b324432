"""Standby copies of other members' partitions, and the folders of partitions that were released to other members.

A standby applies the memories of a partition without outputs, up to the offset that its owner has delivered. So little
is left to read when it becomes the owner. Every member computes from the public assignment which partitions it would
receive if their owner failed, and keeps copies of these. During a rebalance the views may differ; then a partition
briefly has two standby copies or none.

The folder of a released partition is marked, and no command uses it. It is kept for a day: if the partition returns,
only the tail of its log is read. Then it is removed, because later erasures do not reach it."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from heapq import heapify, heapreplace

from confluent_kafka import KafkaException, TopicPartition

from recallflow.connectors.kafka.group import GroupShares, Shares
from recallflow.connectors.kafka.order import Lane
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.topic_reader import ASK_S, TopicReader
from recallflow.errors import RecallflowError
from recallflow.flows.checkpointing import Restore
from recallflow.kafka_options import KafkaOptions
from recallflow.process import beside
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import elsewhere_since_ms, mark_elsewhere, partition_folder, unmark_elsewhere

RELEASED_INTERVAL_S = 2.0
KEPT_MS = 24 * 3_600_000
Numbers = Callable[[], frozenset[int]]
STANDBY_INTERVAL_S = 1.0
NEVER = 2**63 - 1  # a standby sends no outputs

_log = logging.getLogger(__name__)


class ReleasedPartitions:
    """The released partitions of one member's state directory. `StateDirectory` ignores the mark of a released folder,
    and `run` removes it when the partition is assigned again."""

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
        """Args:
        directory: The state directory.
        others: Returns the partitions that other members own, as they last reported.
        ours: Returns the partitions that are or will be ours.
        warm: Returns the partitions with a standby copy here, whose folders stay.
        can_come_again: Returns whether the data of a folder also exists outside of all state directories.
        stopping: Set while the process stops.
        clock_ms: Returns the time.
        """
        self._directory, self._others, self._ours, self._warm = directory, others, ours, warm
        self._can_come_again, self._stopping, self._clock_ms = can_come_again, stopping, clock_ms
        self._seen: frozenset[int] = frozenset()  # partitions of others at the last check
        self._ending = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        """Check periodically on a separate thread."""
        return beside(self._run, "elsewhere", self._ending)

    def _run(self) -> None:
        while not self._ending.wait(RELEASED_INTERVAL_S):
            with suppress(KafkaException, RecallflowError, OSError):  # the next check retries
                self.check()

    def check(self) -> None:
        """Mark the folders of released partitions, and remove expired ones. A partition that others own for one check
        only is ignored, because it may return."""
        others = self._others()
        lasting, self._seen = others & self._seen, others
        for number in self._directory.existing_numbers():
            if number in lasting - self._ours() and not self._stopping.is_set():
                self._mark_or_remove(number)

    def _mark_or_remove(self, number: int) -> None:
        folder, now_ms = partition_folder(self._directory.path, number), self._clock_ms()
        since_ms, warm = elsewhere_since_ms(folder), number in self._warm()
        if since_ms is None or (warm and now_ms - since_ms >= KEPT_MS // 2):
            mark_elsewhere(folder, now_ms)
            if number in self._ours():  # the partition was assigned concurrently
                unmark_elsewhere(folder)
            return
        over = not warm and now_ms - since_ms >= KEPT_MS and self._can_come_again(number)
        if over and self._directory.forget_closed(number):
            _log.info("partition %d moved to another member a day ago: its local folder was removed", number)


class Standby:
    """The standby copies of one member."""

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
        """Args:
        options: The Kafka connection.
        name: The name of the group.
        memory_topic: The topic to follow.
        directory: The state directory.
        source: The source of records.
        member_id: Returns our member id in the group.
        count: The number of standby copies of each partition.
        restore: Restores the folder of a partition from a checkpoint.
        expected: Returns the partitions that are or will be ours, whose folders are not touched here.
        """
        self._options, self._name, self._topic = options, name, memory_topic
        self._directory, self._source, self._member_id, self._count = directory, source, member_id, count
        self._restore, self._expected = restore, expected
        self._shares = GroupShares(options, name, memory_topic)
        self._seen: tuple[str | None, Shares] = None, {}
        self._wanted: frozenset[int] = frozenset()  # partitions to follow, by the last assignment
        self._stopping = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        """Check periodically on a separate thread."""
        return beside(self._run, "standby", self._stopping)

    def _run(self) -> None:
        with TopicReader(self._options, {"group.id": self._name}) as reader:
            while not self._stopping.wait(STANDBY_INTERVAL_S):
                try:
                    self._check(reader)
                except (KafkaException, RecallflowError) as error:
                    _log.warning("the partitions for standby copies cannot be determined: %s", error)

    def _check(self, reader: TopicReader) -> None:
        reader.consumer.list_topics(self._topic, timeout=ASK_S)  # fails early if Kafka is down
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
        """Follow a partition up to `limit`."""
        if number in self._source.kept_warm():
            self._source.allow(number, limit)
            return
        if self._restore is not None:
            self._restore(number, lambda: number not in self._expected())
        applied = self._directory.partition(number).applied.get(f"{self._topic}:{number}", -1)
        low, high = reader.span(self._topic, number)
        if applied + 1 < low:
            _log.warning("partition %d has no standby copy here: its log starts only at offset %d", number, low)
            return
        lane = Lane(self._topic, number, applied + 1, high, answered_from=NEVER, limit=limit)
        self._source.warm(number, lane)


def warm_at(me: str | None, assigned: Shares, count: int) -> frozenset[int]:
    """Return the partitions that this member receives if their owner fails. With a higher `count`, further successive
    failures of new owners are included."""
    if me not in assigned:
        return frozenset()
    others = ((owner, share) for owner, share in assigned.items() if owner != me)
    return frozenset().union(*(_coming(me, assigned, owner, share, count) for owner, share in others))


def _coming(me: str, assigned: Shares, lost: str, share: frozenset[int], count: int) -> frozenset[int]:
    """Return the partitions of a failed member that this member receives, after it or its successors failed."""
    left = without(assigned, lost)
    coming = left[me] & share
    if count > 1:
        next_shares = {other: has & share for other, has in left.items() if other != me and has & share}
        coming = coming.union(*(_coming(me, left, other, has, count - 1) for other, has in next_shares.items()))
    return coming


def without(assigned: Shares, lost: str) -> Shares:
    """Return the assignment without one member. librdkafka's cooperative-sticky assignor assigns the highest partition
    first, each to the member with the fewest partitions, and of equals to the least id."""
    left = {member: set(share) for member, share in assigned.items() if member != lost}
    by_load = [(len(share), member) for member, share in left.items()]
    heapify(by_load)
    for partition in sorted(assigned[lost], reverse=True) if by_load else ():
        load, member = by_load[0]
        left[member].add(partition)
        heapreplace(by_load, (load + 1, member))
    return {member: frozenset(share) for member, share in left.items()}
