"""Partitions that this process keeps warm for another: it applies their memories silently, up to what their owner has
delivered the outputs of, and has little left to read when they become its own.

Who stands by for what follows from what everybody can see, the partitions of each member: whoever the group would give
a partition to, were its owner lost, keeps it warm. Nobody has to agree on it, and where two views differ for a moment,
a partition is warm twice or nowhere.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
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

LOOK_S = 1.0
NEVER = 2**63 - 1  # no output of what is followed is ours to send

_log = logging.getLogger(__name__)


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
        """Looks every LOOK_S seconds, on a thread of its own."""
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
