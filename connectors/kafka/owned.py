"""Source of a process that owns a changing set of partitions.

It emits the records of its partitions, and signals: a partition opens, or a barrier with the progress of a partition.
For Bytewax it is a single part, because the parts of a dataflow are fixed, and the owned partitions change."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from recallflow.connectors.kafka.cluster import CatchUp
from recallflow.connectors.kafka.input_scheduler import (
    BATCH_MAX,
    REMEDIES,
    InputScheduler,
    LaneReader,
    MemoryEnds,
    Remedies,
)
from recallflow.connectors.kafka.messages import record_of
from recallflow.connectors.kafka.partition import Lane, LogProgress, TopicOffsets
from recallflow.connectors.kafka.topic_reader import NewConsumer
from recallflow.kafka_options import KafkaOptions
from recallflow.process import CloseErrors
from recallflow.records import Barrier, PartitionStart, Record, Signal

BATCH_BYTES = 4 * 1024 * 1024
STANDBY_BARRIER = -1  # number of the last barrier of a standby partition, whose progress is never looked up
IDLE_S = 10.0  # sync interval of a partition without new records

_log = logging.getLogger(__name__)


class RecordCounters:
    """Counters of the records that the source emitted and that the flow finished, by topic. The source limits their
    difference, because a dataflow has no back-pressure."""

    def __init__(self) -> None:
        self.emitted: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self._counting = threading.Lock()  # a lost increment would count as a record in flight for ever

    def count_emitted(self, topic: str, records: int) -> None:
        with self._counting:
            self.emitted[topic] += records

    def count_finished(self, topic: str, records: int) -> None:
        with self._counting:
            self.finished[topic] += records

    def in_flight(self, topic: str | None = None) -> int:
        """Return the number of unfinished records, of one topic or of all."""
        with self._counting:
            if topic is None:
                return self.emitted.total() - self.finished.total()
            return self.emitted[topic] - self.finished[topic]


class BarrierProgress(NamedTuple):
    """Progress of one partition at a barrier. Outputs after it have at least the offsets `tails`, of `tails_ms`."""

    memory: LogProgress
    queries: LogProgress
    tails: TopicOffsets
    tails_ms: int


@dataclass(slots=True)
class _Owned:
    memory: Lane
    queries: Lane
    barrier_s: float  # Unix time of the last barrier, or of the opening
    barrier_clock_s: float  # the same by the source's clock
    barriers: int = 0  # number of the next barrier
    has_news: bool = True  # whether records were emitted since the last barrier, or are still open
    progress: bytes | None = None  # progress that the next barrier stores with the state


class OwnedSource:
    """Source of the memory and query records of owned partitions: those of `own`, until `give_up`."""

    def __init__(
        self,
        options: KafkaOptions,
        memory_topic: str,
        query_topic: str,
        *,
        sync_s: float,  # interval of syncs of each partition, which barriers start
        tails: Callable[[], tuple[TopicOffsets, int]],  # returns end offsets of the output topics, and their time
        completions: Callable[[], list[Any]] = list,  # returns completed calls to emit; a new one sets `wake`
        wake: threading.Event | None = None,
        stopping: threading.Event | None = None,  # event that ends the source
        failure: Callable[[], Exception | None] = lambda: None,  # returns another error that must stop the source
        queries_in_flight_max: int | None = None,  # limit of queries in the dataflow; None is unlimited
        remedies: Remedies = REMEDIES,
        new_consumer: NewConsumer = Consumer,
        closing: CloseErrors | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        memory_ends: MemoryEnds | None = None,  # with it, a query waits for the memory records before it
        settle: Callable[[], None] = lambda: None,  # commits barriers that are synced and delivered, before each batch
    ) -> None:
        self.topics = (memory_topic, query_topic)
        self.counters = RecordCounters()
        self.catch_up, self.stopping = CatchUp(), stopping or threading.Event()
        self.outputs_from: dict[str, int] = {}  # `topic:partition` → first offset whose outputs this run sends
        self.done_before: dict[str, Collection[int]] = {}  # `topic:partition` → later offsets that are done already
        self._sync_s, self._tails, self._clock_s = sync_s, tails, clock_s
        self._completions, self._closing, self._settle = completions, closing or CloseErrors(), settle
        self._owned: dict[int, _Owned] = {}
        self._standbys: dict[int, Lane] = {}  # standby partitions, owned by another member
        self._barriers: dict[tuple[int, int], BarrierProgress] = {}
        self._changes: deque[Callable[[], Iterator[Signal]]] = deque()
        self._queries_max = queries_in_flight_max
        wake = wake or threading.Event()
        queries = LaneReader("queries", options, wake, new_consumer, remedies.queries, memory_ends=memory_ends)
        memories = LaneReader("memories", options, wake, new_consumer, remedies.memories, ends=True)
        self._scheduler = InputScheduler(queries, memories, wake, self.counters.in_flight, self._queries_room, failure)
        self._waits_for_writes = memory_ends is not None
        self._began = self._ended = False

    # ------------------------------------------------------------------ called by other threads

    def own(self, partition: int, memory: Lane, queries: Lane) -> None:
        self._changes.append(lambda: self._open(partition, memory, queries))
        self._scheduler.wake.set()

    def give_up(self, partitions: Collection[int]) -> None:
        """Stop emitting records of these partitions, and emit their last barriers."""
        self._changes.append(lambda: self._close(partitions))
        self._scheduler.wake.set()

    def add_standby(self, partition: int, memory: Lane) -> None:
        """Apply the memories of another member's partition, without outputs, as a standby."""
        self._changes.append(lambda: self._open_standby(partition, memory))
        self._scheduler.wake.set()

    def limit_standby(self, partition: int, stop_offset: int) -> None:
        """Set the offset before which the records of a standby partition are applied."""
        if (lane := self._standbys.get(partition)) is not None:
            lane.stop_offset = stop_offset
            self._scheduler.wake.set()

    def drop_standby(self, partition: int) -> None:
        self._changes.append(lambda: self._close_standby(partition))
        self._scheduler.wake.set()

    def standbys(self) -> frozenset[int]:
        return frozenset(self._standbys)

    def barrier_progress(self, partition: int, number: int) -> BarrierProgress | None:
        """Return the progress of a partition at a barrier; each barrier can be looked up once."""
        return self._barriers.pop((partition, number), None)

    def set_progress(self, partition: int, progress: bytes, *, has_open: bool) -> None:
        """Set the progress that the next barrier stores with the state. `has_open`: some records are unfinished."""
        if (owned := self._owned.get(partition)) is not None:
            owned.progress = progress
            owned.has_news |= has_open

    def partitions(self) -> frozenset[int]:
        return frozenset(self._owned)

    def oldest_barrier_s(self) -> float:
        """Return the earliest time of the owned partitions' last barriers; the present if none is owned."""
        return min((owned.barrier_s for owned in [*self._owned.values()]), default=time.time())

    def ready(self) -> bool:
        return self._began and not self.stopping.is_set()

    def readers(self) -> list[LaneReader]:
        return [self._scheduler.queries, self._scheduler.memories]

    def close(self) -> None:
        """Stop the readers. The dataflow calls it as well, if it has started."""
        self._closing(self._scheduler.stop)

    # ------------------------------------------------------------------ called by the dataflow

    def open(self) -> None:
        for reader, topic in zip((self._scheduler.memories, self._scheduler.queries), self.topics, strict=True):
            reader.look_up(topic)
        self._began = True

    def next_batch(self) -> list[Any]:
        if self._ended:
            raise StopIteration
        self._settle()
        signals: list[Signal] = []
        while self._changes:
            signals += self._changes.popleft()()
        if self.stopping.is_set():
            self._ended = True
            signals += self._close([*self._owned])
            for partition in [*self._standbys]:
                signals += self._close_standby(partition)
            return [*signals, *self._completions()]
        self._scheduler.begin()
        records, completions, barriers = self._records(), self._completions(), [*self._due_barriers()]
        if not (records or signals or barriers or completions):
            self._scheduler.wait()
        return [*completions, *signals, *records, *barriers]

    def _queries_room(self) -> int:
        limit = self._queries_max
        return BATCH_MAX if limit is None else limit - self.counters.in_flight(self.topics[1])

    def _records(self) -> list[Record]:
        """Return queries first, then as many memory events as the scheduler allows."""
        scheduler, owned = self._scheduler, self._owned
        limit = scheduler.queries_allowed()
        queries = [record for one in owned.values() for record in self._take(one, one.queries, limit)]
        scheduler.add_queries(len(queries))
        memories: list[Record] = []
        if allowed := scheduler.memories_allowed():
            memories = [record for one in owned.values() for record in self._memories(one, allowed)]
            if not memories:  # standby partitions are read only if owned partitions have no records
                memories = [record for lane in self._standbys.values() for record in records_of(lane, allowed)]
            scheduler.add_memories(len(memories))
        for records in (queries, memories):
            if records:
                self.counters.count_emitted(records[0].position.topic, len(records))
        return [*queries, *memories]

    def _take(self, owned: _Owned, lane: Lane, limit: int) -> list[Record]:
        records = records_of(lane, limit)
        owned.has_news |= bool(records)
        return records

    def _memories(self, owned: _Owned, limit: int) -> list[Record]:
        lane = owned.memory
        if records := self._take(owned, lane, self._scheduler.allowed_of(lane, limit)):
            self.catch_up.count_emitted(lane.source, [record.position.offset for record in records], lane.next_offset)
        elif self.catch_up.is_behind and not lane.queue:
            self.catch_up.skip_to(lane.source, lane.reached)
        return records

    def _open_standby(self, partition: int, memory: Lane) -> Iterator[Signal]:
        if partition in self._owned or partition in self._standbys:
            return
        self._standbys[partition] = memory
        self._scheduler.memories.add(memory)
        self._scheduler.memories.start()
        _log.info("partition %d has a standby copy, from offset %d on", partition, memory.next_offset)
        yield PartitionStart(partition)

    def _close_standby(self, partition: int) -> Iterator[Signal]:
        if (lane := self._standbys.pop(partition, None)) is not None:
            self._scheduler.memories.remove(lane)
            yield Barrier(partition, STANDBY_BARRIER, last=True)

    def _open(self, partition: int, memory: Lane, queries: Lane) -> Iterator[Signal]:
        standby = self._standbys.pop(partition, None)
        if standby is not None:
            self._scheduler.memories.remove(standby)
        if self._waits_for_writes:
            queries.wait_for_writes(memory, self._clock_s)
        for lane, reader in ((queries, self._scheduler.queries), (memory, self._scheduler.memories)):
            self.outputs_from[lane.source] = lane.outputs_from
            self.done_before[lane.source] = lane.done_before
            reader.add(lane)
            reader.start()
        self.catch_up.add(memory.source, memory.next_offset, memory.end)
        self._owned[partition] = _Owned(memory, queries, time.time(), self._clock_s())
        if standby is None:
            yield PartitionStart(partition)

    def _close(self, partitions: Collection[int]) -> Iterator[Signal]:
        for partition in partitions:
            if (owned := self._owned.get(partition)) is None:
                continue
            self._scheduler.queries.remove(owned.queries)
            self._scheduler.memories.remove(owned.memory)
            self.catch_up.remove(owned.memory.source)
            yield self._barrier(partition, owned, last=True)
            del self._owned[partition]

    def _due_barriers(self) -> Iterator[Signal]:
        now_s = self._clock_s()
        for partition, owned in self._owned.items():
            if (partition, owned.barriers - 1) in self._barriers:
                continue  # the previous barrier is not synced and delivered yet
            if now_s - owned.barrier_clock_s >= (self._sync_s if owned.has_news else IDLE_S):
                yield self._barrier(partition, owned)
                owned.barrier_clock_s, owned.has_news = now_s, False

    def _barrier(self, partition: int, owned: _Owned, *, last: bool = False) -> Barrier:
        tails, tails_ms = self._tails()
        memory, queries = lane_progress(owned.memory), lane_progress(owned.queries)
        self._barriers[partition, owned.barriers] = BarrierProgress(memory, queries, tails, tails_ms)
        barrier = Barrier(partition, owned.barriers, owned.progress, last)
        owned.barriers, owned.progress, owned.barrier_s = owned.barriers + 1, None, time.time()
        return barrier


def records_of(lane: Lane, limit: int) -> list[Record]:
    """Return the next records of a lane: at most `limit`, and about BATCH_BYTES."""
    records: list[Record] = []
    end_bytes = lane.delivered_bytes + BATCH_BYTES
    while len(records) < limit and lane.delivered_bytes < end_bytes and lane.has_ready():
        message = lane.take()
        unapplied = 0 if lane.barriers is None else lane.barriers.take(message)
        records.append(record_of(message, silent=lane.was_done(message.offset()), unapplied=unapplied))
    return records


def lane_progress(lane: Lane) -> LogProgress:
    """Return the progress of a lane. Open records of an earlier owner stay open until they are delivered again."""
    still_open = tuple(sorted(offset for offset in lane.open if offset >= lane.next_offset))
    return LogProgress(max(lane.next_offset, lane.outputs_from), lane.since_ms, still_open, lane.delivered_ahead())


def lane_at(topic: str, number: int, at: LogProgress, end: int, first: int | None = None) -> Lane:
    """Return a lane that begins at its committed progress, or at `first` if that is earlier, to rebuild state."""
    begins = at.first if first is None else min(first, at.first)
    return Lane(topic, number, begins, end, at.next_offset, at.since_ms, frozenset(at.ahead), frozenset(at.open))
