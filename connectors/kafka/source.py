"""The Kafka source: one part per partition number, over the memory topic and the query topic."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from confluent_kafka import Consumer

from recallflow.brokers.options import KafkaOptions
from recallflow.checked import Checked
from recallflow.connectors.kafka.admin import Described
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.hub import Hub, Reader, gone
from recallflow.connectors.kafka.messages import headers_of, time_ms
from recallflow.connectors.kafka.metadata import Metadata, NewConsumer
from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.order import Lane, Order
from recallflow.errors import SourceError
from recallflow.records import Position, Record

_log = logging.getLogger(__name__)

QUERIES_MAX = 1_000
AT_ONCE = datetime.fromtimestamp(0, UTC)


class Offsets(Checked, dict[str, tuple[int, int]]):
    """`topic:partition` → the next offset, and the offset from which on outputs count."""

    def _fields(self) -> tuple[dict[str, tuple[int, int]]]:
        return (dict(self),)


class Progress:
    """Counts what the source gave, by topic, and what the state was done with, over all workers of the process: no
    back-pressure crosses an exchange within an epoch, so the source keeps its own."""

    def __init__(self) -> None:
        self.given: Counter[str] = Counter()
        self.through: Counter[str] = Counter()
        # One count lost between two workers would be in flight for ever.
        self._counting = threading.Lock()

    def gave(self, topic: str, records: int) -> None:
        with self._counting:
            self.given[topic] += records

    def done(self, topic: str, records: int) -> None:
        with self._counting:
            self.through[topic] += records

    def in_flight(self) -> int:
        with self._counting:
            return self.given.total() - self.through.total()


class KafkaSource(FixedPartitionedSource[Record, Offsets]):
    """Records of `memory_topic` and `query_topic`. A part's resume state is where it is in each of its partitions.

    Partition n belongs to part n % `parts`, also one that is added later: the parts are the same for ever, as Bytewax
    keeps the places in the log under their names.

    Without a resume state, memories are read from the beginning, and queries from where `begin` says the topic ended
    when the state directory was new; a partition of which it says nothing came later. `rewind` names, per
    `topic:partition`, an offset below the resume state to read from again, to rebuild state that was lost: those
    records come out silent. `given_up` names, by part, up to where queries that are gone from the topic are done
    without. `wake` and `failure`: see `Hub`.
    """

    def __init__(
        self,
        options: KafkaOptions,
        memory_topic: str,
        query_topic: str,
        progress: Progress,
        begin: Mapping[str, int],
        rewind: Mapping[str, int] | None = None,
        given_up: Mapping[str, int] | None = None,
        *,
        parts: int,
        catch_up: CatchUp | None = None,
        wake: threading.Event | None = None,
        failure: Callable[[], Exception | None] = lambda: None,
        new_consumer: NewConsumer = Consumer,
        closing: Closing | None = None,
    ) -> None:
        self.topics = (memory_topic, query_topic)
        self._options = options
        self._memory_topic = memory_topic
        self._query_topic = query_topic
        self._progress = progress
        self._begin = begin
        self._rewind = rewind or {}
        self._given_up = given_up or {}
        self._parts = parts
        self._catch_up = catch_up or CatchUp()
        self._wake = wake
        self._failure = failure
        self._new_consumer = new_consumer
        self._closing = closing or Closing()
        self._order = Order(lambda: progress.through[memory_topic])
        self._hubs: dict[int, Hub] = {}
        self._joining = threading.Lock()
        self._counts: dict[str, int] = {}  # by topic, when the parts were listed
        self._grown: dict[str, int] = {}  # … and with what was added since
        self._added: dict[int, deque[_Place]] = {number: deque() for number in range(parts)}
        self._built = 0
        self.first_offsets: dict[str, int] = {}  # `topic:partition` → the first offset of this run
        self.stopping = threading.Event()

    def list_parts(self) -> list[str]:
        """The same parts at every start. Raises SourceError where a topic is missing."""
        self._count_partitions()
        return [f"{number:05d}" for number in range(self._parts)]

    def build_part(self, step_id: str, for_part: str, resume_state: Offsets | None) -> "KafkaPart":  # noqa: ARG002
        number, counts = int(for_part), self._count_partitions()
        hub = self._hub()
        hub.join()
        part = KafkaPart(
            for_part,
            self._query_topic,
            hub,
            self._progress,
            self._catch_up,
            self.stopping,
            self._added[number],
            self._closing,
        )
        for topic in (self._query_topic, self._memory_topic):
            for partition in range(number, counts[topic], self._parts):
                next_offset, answered_from = (resume_state or Offsets()).get(f"{topic}:{partition}", (None, 0))
                place = self._place(topic, partition, next_offset)
                part.add(replace(place, answered_from=max(answered_from, next_offset or 0)))
        with self._joining:
            self._built += 1
            if self._built == self._parts:
                self._order.begin()
        return part

    def grow(self, found: Mapping[str, Described]) -> None:
        """Has partitions that were added to the topics read, from their beginning on. Called from another thread, once
        the parts are listed."""
        for topic, count in [*self._grown.items()]:
            for partition in range(count, found[topic].partitions):
                try:
                    place = self._place(topic, partition, None)
                except SourceError:  # no broker to be reached: the next look finds it as well
                    return
                self._grown[topic] = partition + 1
                self._added[partition % self._parts].append(place)

    def ready(self) -> bool:
        """Whether every part is there, and goes on."""
        return self._built == self._parts and not self.stopping.is_set()

    def readers(self) -> list[Reader]:
        """The readers of all workers."""
        return [reader for hub in [*self._hubs.values()] for reader in (hub.queries, hub.memories)]

    def close(self) -> None:
        """Stops the readers: their parts do not where the dataflow never began."""
        for reader in self.readers():
            reader.stop()

    def _count_partitions(self) -> dict[str, int]:
        """How many there were when this was first asked, by any worker: what came later comes through `grow`."""
        with self._joining:
            if not self._counts:
                with Metadata.open(self._options, new_consumer=self._new_consumer) as metadata:
                    found = metadata.partitions((self._memory_topic, self._query_topic))
                self._counts = {topic: len(numbers) for topic, numbers in found.items()}
                self._grown = dict(self._counts)
            return self._counts

    def _hub(self) -> Hub:
        """The calling worker's hub."""
        with self._joining:
            worker = threading.get_ident()
            if worker not in self._hubs:
                self._hubs[worker] = Hub(
                    self._options,
                    self._progress.in_flight,
                    self._order,
                    self._wake,
                    self._failure,
                    new_consumer=self._new_consumer,
                )
            return self._hubs[worker]

    def _place(self, topic: str, number: int, resumed: int | None) -> "_Place":
        """Where to read from. Raises SourceError where what comes next is gone."""
        with Metadata.open(self._options, new_consumer=self._new_consumer) as metadata:
            low, high = metadata.span(topic, number)
        queries = topic == self._query_topic
        if resumed is not None:
            wanted = min(resumed, self._rewind.get(f"{topic}:{number}", resumed))
        else:
            wanted = self._begin.get(part_name(topic, number), low) if queries else low
        if queries:
            wanted = max(wanted, self._given_up.get(part_name(topic, number), wanted))
        if wanted < low:
            raise SourceError(gone(f"{topic}:{number}", f"{low - wanted} records from offset {wanted} on are", queries))
        if wanted > high:
            raise SourceError(
                f"{topic}:{number} ends at offset {high}, and we were at {wanted}: the topic was made anew. "
                "Start with another state directory"
            )
        self.first_offsets[f"{topic}:{number}"] = wanted
        _log.info("%s:%d: reads on from offset %d of %d", topic, number, wanted, high)
        return _Place(topic, number, wanted, high)


@dataclass(frozen=True, slots=True)
class _Place:
    """A Kafka partition to be read: from where on, where it ends now, and the offset from which on outputs count."""

    topic: str
    number: int
    first: int
    end: int
    answered_from: int = 0


@dataclass(slots=True)
class _Log:
    """One Kafka partition being read: what was read, the next offset, and the offset from which on outputs count."""

    source: str
    lane: Lane
    next_offset: int
    answered_from: int


class KafkaPart(StatefulSourcePartition[Record, Offsets]):
    """The partitions of one part: queries first, then as many memory events as the hub allows."""

    def __init__(
        self,
        name: str,
        query_topic: str,
        hub: Hub,
        progress: Progress,
        catch_up: CatchUp,
        stopping: threading.Event,
        added: "deque[_Place]",
        closing: Closing,
    ) -> None:
        """`added`: partitions to read as well, as they come."""
        self._name = name
        self._query_topic = query_topic
        self._hub = hub
        self._progress = progress
        self._catch_up = catch_up
        self._stopping = stopping
        self._added = added
        self._closing = closing
        self.queries: list[_Log] = []
        self.memories: list[_Log] = []

    def add(self, place: _Place) -> None:
        """Reads one more partition."""
        queries = place.topic == self._query_topic
        reader, logs = (self._hub.queries, self.queries) if queries else (self._hub.memories, self.memories)
        lane = reader.add((place.topic, place.number), place.first, place.end)
        reader.start()
        source = f"{place.topic}:{place.number}"
        logs.append(_Log(source, lane, place.first, place.answered_from))
        if not queries:
            self._catch_up.begin(source, place.first)

    def next_batch(self) -> list[Record]:
        if self._stopping.is_set():
            raise StopIteration
        while self._added:
            self.add(self._added.popleft())
        self._hub.begin(self._name)
        records = [record for log in self.queries for record in _take(log, QUERIES_MAX)]
        if not records and (allowed := self._hub.memories_allowed()):
            records = [record for log in self.memories for record in self._take_memories(log, allowed)]
            self._hub.gave(len(records))
        if records:
            self._progress.gave(records[0].position.topic, len(records))
        else:
            self._hub.rest(self._name)
        return records

    def _take_memories(self, log: _Log, most: int) -> list[Record]:
        if records := _take(log, most):
            self._catch_up.gave(log.source, [record.position.offset for record in records], log.next_offset)
        elif self._catch_up.behind and (reached := self._hub.emptied(log.lane)) is not None:
            self._catch_up.passed_over(log.source, reached)
        return records

    def next_awake(self) -> datetime:
        # The hub paces; without this Bytewax would rest 1 ms after each empty batch.
        return AT_ONCE

    def snapshot(self) -> Offsets:
        places = {log.source: (log.next_offset, log.answered_from) for log in (*self.queries, *self.memories)}
        return Offsets(places)

    def close(self) -> None:
        self._closing(self._hub.leave)


def _take(log: _Log, most: int) -> list[Record]:
    records: list[Record] = []
    while log.lane.queue and len(records) < most:
        records.append(_record(log, log.lane.queue.popleft()))
    return records


def _record(log: _Log, message: Any) -> Record:
    offset: int = message.offset()
    log.next_offset = offset + 1
    return Record(
        position=Position(message.topic(), message.partition(), offset),
        value=message.value() or b"",
        append_ms=time_ms(message),
        key=message.key(),
        headers=headers_of(message),
        silent=offset < log.answered_from,
        tombstone=message.value() is None,
    )
