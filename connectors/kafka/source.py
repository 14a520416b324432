"""The Kafka source: one part per partition number, over the memory topic and the query topic."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from confluent_kafka import Consumer

from recallflow.brokers.options import KafkaOptions
from recallflow.checked import Checked
from recallflow.connectors.kafka.admin import Described
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.hub import IN_FLIGHT_MAX, WAYS, Hub, Reader, Ways, gone
from recallflow.connectors.kafka.messages import record_of
from recallflow.connectors.kafka.order import Lane, Place
from recallflow.connectors.kafka.topic_reader import NewConsumer, TopicReader
from recallflow.errors import SourceError
from recallflow.records import Record

_log = logging.getLogger(__name__)

BATCH_BYTES = 4 * 1024 * 1024
AT_ONCE = datetime.fromtimestamp(0, UTC)


class Offsets(Checked, dict[str, Place]):
    """`topic:partition` → where it is read on."""

    def _fields(self) -> tuple[dict[str, Place]]:
        return (dict(self),)


class Progress:
    """Counts what the source gave, by topic, and what the state was done with, over all workers of the process: no
    back-pressure crosses an exchange within an epoch, so the source keeps its own."""

    def __init__(self) -> None:
        self.given: Counter[str] = Counter()
        self.through: Counter[str] = Counter()
        self._began_s = time.time()
        self._snapshots_s: dict[str, float] = {}  # by part, the time of its last one
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

    def snapped(self, part: str) -> None:
        """A part is asked for a snapshot: all of the epoch before is through."""
        self._snapshots_s[part] = time.time()

    def oldest_snapshot_s(self) -> float:
        """When the part that is the furthest behind had its last one; until there is any, when this began."""
        return min([*self._snapshots_s.values()], default=self._began_s)


class KafkaSource(FixedPartitionedSource[Record, Offsets]):
    """Records of `memory_topic` and `query_topic`. A part's resume state is where it is in each of its partitions.

    Partition n belongs to part n % `parts`, also one that is added later: the parts are the same for ever, as Bytewax
    keeps the places in the log under their names.
    """

    def __init__(
        self,
        options: KafkaOptions,
        memory_topic: str,
        query_topic: str,
        *,
        parts: int,
        sent: Mapping[str, int] | None = None,
        progress: Progress | None = None,
        catch_up: CatchUp | None = None,
        wake: threading.Event | None = None,
        failure: Callable[[], Exception | None] = lambda: None,
        in_flight_max: int = IN_FLIGHT_MAX,
        ways: Ways = WAYS,
        new_consumer: NewConsumer = Consumer,
        closing: Closing | None = None,
    ) -> None:
        """Without a resume state, topics are read from their beginning. `sent`: per `topic:partition`, the offset below
        which another directory sent what comes of records. `wake`, `failure` and `in_flight_max`: see `Hub`. `ways`:
        what to do where records are gone."""
        self.topics = (memory_topic, query_topic)
        self.memory_topic = memory_topic
        self.query_topic = query_topic
        self.progress = progress or Progress()
        self.catch_up = catch_up or CatchUp()
        self.closing = closing or Closing()
        self.stopping = threading.Event()
        self.first_offsets: dict[str, int] = {}  # `topic:partition` → the first offset that is new to this run …
        self.given_before: dict[str, frozenset[int]] = {}  # … and those behind it that are not
        self._options = options
        self._sent = sent or {}
        self._parts = parts
        self._wake = wake
        self._failure = failure
        self._in_flight_max = in_flight_max
        self._ways = ways
        self._new_consumer = new_consumer
        self._hubs: dict[int, Hub] = {}
        self._joining = threading.Lock()
        self._counts: dict[str, int] = {}  # by topic, when the parts were listed
        self._grown: dict[str, int] = {}  # … and with what was added since
        self._added: dict[int, deque[Lane]] = {number: deque() for number in range(parts)}
        self._built = 0

    def list_parts(self) -> list[str]:
        """The same parts at every start. Raises SourceError where a topic is missing."""
        self._count_partitions()
        return [f"{number:05d}" for number in range(self._parts)]

    def build_part(self, step_id: str, for_part: str, resume_state: Offsets | None) -> "KafkaPart":  # noqa: ARG002
        number, counts = int(for_part), self._count_partitions()
        part = KafkaPart(self, for_part, self._hub(), self._added[number])
        for topic in (self.query_topic, self.memory_topic):
            for partition in range(number, counts[topic], self._parts):
                place = (resume_state or Offsets()).get(f"{topic}:{partition}")
                part.add(self._lane(topic, partition, None if place is None else Place(*place)))
        with self._joining:
            self._built += 1
        return part

    def grow(self, found: Mapping[str, Described]) -> None:
        """Has partitions that were added to the topics read, from their beginning on. Called from another thread, once
        the parts are listed."""
        for topic, count in [*self._grown.items()]:
            for partition in range(count, found[topic].partitions):
                try:
                    lane = self._lane(topic, partition)
                except SourceError:  # no broker to be reached: the next look finds it as well
                    return
                self._grown[topic] = partition + 1
                self._added[partition % self._parts].append(lane)

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
                with TopicReader(self._options, new_consumer=self._new_consumer) as reader:
                    found = reader.partitions(self.topics)
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
                    self.progress.in_flight,
                    self._wake,
                    self._failure,
                    in_flight_max=self._in_flight_max,
                    ways=self._ways,
                    new_consumer=self._new_consumer,
                )
            return self._hubs[worker]

    def _lane(self, topic: str, number: int, place: Place | None = None) -> Lane:
        """A partition to be read, from the right offset on. Raises SourceError where what comes next is gone."""
        with TopicReader(self._options, new_consumer=self._new_consumer) as reader:
            low, high = reader.span(topic, number)
        source, place = f"{topic}:{number}", place or Place(low)
        self._check_there(topic, number, place.next_offset, low, high)
        self.first_offsets[source] = place.next_offset
        self.given_before[source] = frozenset()
        _log.info("%s: reads on from offset %d of %d", source, place.next_offset, high)
        answered_from = max(place.answered_from, place.next_offset, self._sent.get(source, 0))
        return Lane(topic, number, place.next_offset, high, answered_from, place.since_ms)

    def _check_there(self, topic: str, number: int, wanted: int, low: int, high: int) -> None:
        """Raises SourceError where a partition of this span cannot be read from an offset on."""
        source = f"{topic}:{number}"
        if wanted < low:
            way = self._ways.queries if topic == self.query_topic else self._ways.memories
            raise SourceError(gone(source, f"{low - wanted} records from offset {wanted} on are", way))
        if wanted > high:
            raise SourceError(
                f"{source} ends at offset {high}, and we were at {wanted}: the topic was made anew. "
                "Start with another state directory"
            )


class KafkaPart(StatefulSourcePartition[Record, Offsets]):
    """The partitions of one part: queries first, then as many memory events as the hub allows."""

    def __init__(self, source: KafkaSource, name: str, hub: Hub, added: "deque[Lane]") -> None:
        """`added`: partitions to read as well, as they come."""
        self._source = source
        self._name = name
        self._hub = hub
        self._added = added
        self._queries: list[Lane] = []
        self._memories: list[Lane] = []
        hub.add_part()

    def add(self, lane: Lane) -> None:
        """Reads one more partition."""
        queries = lane.topic == self._source.query_topic
        reader, lanes = (self._hub.queries, self._queries) if queries else (self._hub.memories, self._memories)
        if not queries:
            self._source.catch_up.begin(lane.source, lane.next_offset)
        reader.add(lane)
        reader.start()
        lanes.append(lane)

    def next_batch(self) -> list[Record]:
        if self._source.stopping.is_set():
            raise StopIteration
        while self._added:
            self.add(self._added.popleft())
        self._hub.begin(self._name)
        most = self._hub.queries_allowed()
        queries = [record for lane in self._queries for record in records_of(lane, most)]
        self._hub.count_asked(len(queries))
        memories = []
        if allowed := self._hub.memories_allowed():
            memories = [record for lane in self._memories for record in self._memory_records(lane, allowed)]
            self._hub.count_given(len(memories))
        for records in (queries, memories):
            if records:
                self._source.progress.gave(records[0].position.topic, len(records))
        if not queries and not memories:
            self._hub.wait(self._name)
        return [*queries, *memories]

    def _memory_records(self, lane: Lane, most: int) -> list[Record]:
        catch_up = self._source.catch_up
        if records := records_of(lane, most):
            catch_up.gave(lane.source, [record.position.offset for record in records], lane.next_offset)
        elif catch_up.behind and not lane.held():
            catch_up.passed_over(lane.source, lane.reached)
        return records

    def next_awake(self) -> datetime:
        # The hub paces; without this Bytewax would rest 1 ms after each empty batch.
        return AT_ONCE

    def snapshot(self) -> Offsets:
        self._source.progress.snapped(self._name)
        lanes = (*self._queries, *self._memories)
        return Offsets({lane.source: lane.place() for lane in lanes})

    def close(self) -> None:
        self._source.closing(self._hub.remove_part)


def records_of(lane: Lane, most: int) -> list[Record]:
    """The next records of a lane, at most so many, and no more of large ones than fit into a batch."""
    records: list[Record] = []
    end_bytes = lane.given_bytes + BATCH_BYTES
    while len(records) < most and lane.given_bytes < end_bytes and lane.givable():
        message = lane.take()
        unread = 0 if lane.barriers is None else lane.barriers.take(message)
        records.append(record_of(message, silent=lane.was_given(message.offset()), unread=unread))
    return records
