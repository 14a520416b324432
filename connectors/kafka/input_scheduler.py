"""Reading of a source: one reader thread each for queries and memory events, and the order of their delivery.

Queries are delivered to the dataflow first, in batches that fit a time budget: the first queries of a long backlog are
answered early, and queries of other partitions and tenants (`RoundRobinQueue`) are served in between. Memory events are
delivered when no query waits, in smaller batches, and at least every `STARVED_S`, so that steady queries cannot starve
writes. With a backlog of 60,000 events at 1 ms each, queries had a p50 of 3 ms, against 6 s with Bytewax's source."""

import collections
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from recallflow.connectors.kafka.messages import size_bytes
from recallflow.connectors.kafka.partition import Lane
from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S, NewConsumer
from recallflow.errors import RegistryUnavailable, SourceError
from recallflow.kafka_clients import ClientErrors, is_refusal, is_retriable
from recallflow.kafka_options import KafkaOptions, log_registry_outage
from recallflow.schema_registry import RETRY_S

WAIT_S = 0.005  # longest wait of the dataflow for a record
POLL_S = 0.1
READ_AHEAD, READ_AHEAD_BYTES = 2_000, 32 * 1024 * 1024  # limits of the queued records of a reader
READ_AHEAD_AWAITED = 20_000  # READ_AHEAD while a query waits for records that are not read
READ_BATCH = 500
PAUSE_RECORDS = 1_000  # queued records at which a lane with a `stop_offset` is paused
MEMORIES_BUDGET_S, QUERIES_BUDGET_S = 0.005, 0.01  # time of a batch of memory events, and of queries
BATCH_MAX = 500
FIRST_QUERIES_MAX = 20  # batch limit while the cost of a query is unknown
COST_DECAY = 0.9  # factor per batch by which the assumed cost of an event or a query may fall
STARVED_S = 0.02  # longest time for which queries delay waiting memory events
IN_FLIGHT_MAX = 2_000  # records in the dataflow at which no more memory events are delivered

_log = logging.getLogger(__name__)

TopicPart = tuple[str, int]  # topic and partition
MemoryEnds = Callable[[Collection[int]], Mapping[int, int]]  # partitions → end offsets in the memory topic


class Remedies(NamedTuple):
    """Remedies for records that retention removed: unread queries, unread memories, outputs since the last commit."""

    queries: str = "a checkpoint does not help: continue without them (recallflow run --give-up-unanswered)"
    memories: str = "restore a checkpoint that contains the removed records"
    outputs: str = "restore nothing, and allow repeated outputs: recallflow run --accept-repeats"


REMEDIES = Remedies()


def describe_removal(source: str, removed: str, remedy: str) -> str:
    """Describe the loss of records. `removed` is the subject of the sentence, with its verb: "the records … are"."""
    return f"{source}: {removed} gone from the topic, and nothing is skipped silently: {remedy}"


class LaneReader:
    """One consumer on one thread, with a lane per Kafka partition."""

    def __init__(
        self,
        name: str,
        options: KafkaOptions,
        wake: threading.Event,
        new_consumer: NewConsumer = Consumer,
        remedy: str = "",  # remedy for records that were removed before they were read
        *,
        ends: bool = False,  # whether to read the ends of partitions, which may follow the last records
        memory_ends: MemoryEnds | None = None,  # returns the end offsets that the queries just read must wait for
    ) -> None:
        self.lanes: dict[TopicPart, Lane] = {}
        self.error: Exception | None = None
        self.retried = 0  # number of errors after which reading was retried
        self._wake, self._remedy, self._memory_ends = wake, remedy, memory_ends
        self._stopping = threading.Event()
        self._registry = options.registry
        self._registry_retries: dict[TopicPart, float] = {}  # partition that waits for the registry → time of the retry
        self._client_errors = ClientErrors()
        self._changes: collections.deque[tuple[Lane, bool]] = collections.deque()  # a lane, and whether to add it
        # Without this option, an end that follows transaction markers is not reported.
        reader_options = {"enable.partition.eof": ends, "error_cb": self._client_errors}
        self._consumer = new_consumer(options.consumer() | reader_options)
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"recallflow-{name}")

    def add(self, lane: Lane) -> None:
        """Begin to read a partition, from the lane's next offset."""
        self._changes.append((lane, True))

    def remove(self, lane: Lane) -> None:
        """Stop reading a partition. The dataflow drops its queued records."""
        self._changes.append((lane, False))

    def look_up(self, topic: str) -> None:
        """Look up a topic's leaders before `start`, because a look-up by the assignment takes a second."""
        with suppress(KafkaException):  # the assignment looks them up again
            self._consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S)

    def start(self) -> None:
        if self._thread.ident is None:  # a thread that ended with an error cannot start again
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()

    def has_ready(self) -> bool:
        """Return whether a record may be delivered."""
        return any(lane.has_ready() for lane in self.lanes.values())

    def lag(self) -> dict[TopicPart, int]:
        """Return how many records of each partition the dataflow has yet to receive, as of the last fetch."""
        return {part: max(0, lane.end - lane.reached) + len(lane.queue) for part, lane in self.lanes.items()}

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.read()
        except KafkaException as error:
            self._fail(SourceError(f"cannot continue to read: {error.args[0].str()}"))
        except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
            self._fail(error)

    def read(self) -> None:
        """Read available messages into the queues of the lanes, unless these are full."""
        while self._changes:
            # Not in `add`, because an assignment hangs while another thread polls.
            self._change(*self._changes.popleft())
        self._retry_registry()
        self._pause_full_lanes()
        if self._is_full():
            self._stopping.wait(0.001)
            return
        message = self._consumer.poll(POLL_S)
        self._client_errors.check()
        messages = [] if message is None else [message, *self._consumer.consume(READ_BATCH, 0)]
        if messages:
            self._queue(messages)
        self._note_ends()

    def _change(self, lane: Lane, is_added: bool) -> None:
        part = lane.topic, lane.number
        if is_added:
            self.lanes = self.lanes | {part: lane}  # a copy, because other threads iterate over it
            self._consumer.incremental_assign([TopicPartition(*part, lane.next_offset)])
        else:
            self.lanes = {key: one for key, one in self.lanes.items() if one is not lane}
            if self._registry_retries.pop(part, None) is not None:
                return  # it is not assigned
            if lane.paused:  # the next reader of the partition would find it paused
                self._consumer.resume([TopicPartition(*part)])
            self._consumer.incremental_unassign([TopicPartition(*part)])

    def _is_full(self) -> bool:
        """Return whether the queues are full. Lanes with a stop offset do not count, because they would block all
        others. If a query waits for an empty lane, more is read: the client may return other lanes' records first."""
        lanes = [lane for lane in self.lanes.values() if lane.stop_offset is None]
        queued, queued_bytes = sum(len(lane.queue) for lane in lanes), sum(lane.queued_bytes() for lane in lanes)
        most = READ_AHEAD_AWAITED if any(one.waiting_queries and not one.queue for one in lanes) else READ_AHEAD
        return queued >= most or queued_bytes >= READ_AHEAD_BYTES

    def _pause_full_lanes(self) -> None:
        """Pause lanes with a stop offset and many queued records. Resume them at half as many."""
        for part, lane in self.lanes.items():
            if lane.stop_offset is None or part in self._registry_retries:
                continue
            is_full = len(lane.queue) >= (PAUSE_RECORDS // 2 if lane.paused else PAUSE_RECORDS)
            if is_full != lane.paused:
                (self._consumer.pause if is_full else self._consumer.resume)([TopicPartition(*part)])
                lane.paused = is_full

    def _note_ends(self) -> None:
        """Store the end offsets for `lag`. Other threads call it, and must not use the consumer during a poll."""
        for part, lane in self.lanes.items():
            if part not in self._registry_retries:
                lane.end = max(lane.end, self._consumer.get_watermark_offsets(TopicPartition(*part), cached=True)[1])

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._wake.set()

    def _queue(self, messages: list[Any]) -> None:
        self._add_barriers(messages)
        for message in messages:
            error, lane = message.error(), self.lanes.get((message.topic(), message.partition()))
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._raise_unless_retriable(error, f"{message.topic()}:{message.partition()}")
            elif lane is None or (lane.topic, lane.number) in self._registry_retries:
                continue  # the partition was removed meanwhile, or will be read again from this record
            elif error is not None:  # the end, which transaction markers may separate from the last record
                lane.reached = message.offset()
            elif self._try_decode(message, lane):
                lane.read_bytes += size_bytes(message)
                lane.queue.append(message)
                if lane.last_of_key is not None:
                    lane.note_key(message.key(), message.offset())
                lane.reached = message.offset() + 1
        self._wake.set()

    def _try_decode(self, message: Any, lane: Lane) -> bool:
        """Decode a record with a registered schema. Without the registry, return False: it will be read again."""
        if self._registry is None:
            return True
        try:
            self._registry.open(message)
        except RegistryUnavailable as error:
            log_registry_outage(error)
            self._registry_retries[lane.topic, lane.number] = time.monotonic() + RETRY_S
            self._consumer.incremental_unassign([TopicPartition(lane.topic, lane.number)])
            return False
        return True

    def _retry_registry(self) -> None:
        for part in [part for part, due_s in self._registry_retries.items() if due_s <= time.monotonic()]:
            del self._registry_retries[part]
            self._consumer.incremental_assign([TopicPartition(*part, self.lanes[part].reached)])

    def _add_barriers(self, messages: list[Any]) -> None:
        """Add the barrier of each query before the query is queued."""
        if self._memory_ends is None:
            return
        read = [(message, self.lanes.get((message.topic(), message.partition()))) for message in messages]
        queries = [(message, lane) for message, lane in read if message.error() is None and lane and lane.barriers]
        if not queries:
            return
        ends = self._memory_ends({lane.number for _, lane in queries})
        for message, lane in queries:
            if lane.barriers is not None and not lane.was_done(message.offset()):
                lane.barriers.add(message.offset(), ends.get(lane.number, 0))

    def _raise_unless_retriable(self, error: KafkaError, where: str) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise SourceError(describe_removal(where, f"the next record ({error.str()}) is", self._remedy))
        if is_refusal(error) or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise SourceError(f"{where}: {error.str()}; create the topic (recallflow topics create) or grant the right")
        if not is_retriable(error):
            raise SourceError(f"{where}: cannot be read: {error.str()}")
        self.retried += 1
        _log.warning("%s: %s; retrying", where, error.str())


def _batch_size(budget_s: float, cost_s: float) -> int:
    """Return how many items of this cost fit a time budget."""
    return max(1, min(BATCH_MAX, int(budget_s / max(cost_s, 1e-6))))


class InputScheduler:
    """Order of the records of two readers: how many queries and memory events the source delivers next."""

    def __init__(
        self,
        queries: LaneReader,
        memories: LaneReader,
        wake: threading.Event,  # event that ends a wait; the readers and other threads with news set it
        in_flight: Callable[[], int],  # returns the number of records in the dataflow
        queries_room: Callable[[], int],  # returns how many more queries may be in flight
        failure: Callable[[], Exception | None],  # returns another error that must stop the source
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.queries, self.memories, self.wake = queries, memories, wake
        self._in_flight, self._queries_room, self._failure, self._clock_s = in_flight, queries_room, failure, clock_s
        self._memories_batch, self._queries_batch = 1, FIRST_QUERIES_MAX  # batch limits
        self._memory_cost_s = self._query_cost_s = 0.0
        self._memories = self._queries = 0  # numbers of records of this batch
        self._batch_began_s = self._last_memories_s = clock_s()

    def stop(self) -> None:
        self.queries.stop()
        self.memories.stop()

    def begin(self) -> None:
        """Begin the next batch, and measure the cost of the last one's records. Raise the error of a reader."""
        for error in (self.queries.error, self.memories.error, self._failure()):
            if error is not None:
                raise error
        now_s = self._clock_s()
        if self._memories or self._queries:
            cost_s = (now_s - self._batch_began_s) / (self._memories + self._queries)
            # The assumed cost falls slowly, because costly queries may follow cheap ones, such as refused ones.
            if not self._queries:
                self._memory_cost_s = max(cost_s, COST_DECAY * self._memory_cost_s)
                self._memories_batch = _batch_size(MEMORIES_BUDGET_S, self._memory_cost_s)
            elif not self._memories:
                self._query_cost_s = max(cost_s, COST_DECAY * self._query_cost_s)
                self._queries_batch = _batch_size(QUERIES_BUDGET_S, self._query_cost_s)
        self._memories, self._queries, self._batch_began_s = 0, 0, now_s

    def queries_allowed(self) -> int:
        """Return how many queries of each partition may be delivered now."""
        busy = max(1, sum(1 for lane in self.queries.lanes.values() if lane.queue))
        return max(0, -(-min(self._queries_batch, self._queries_room()) // busy))

    def add_queries(self, delivered: int) -> None:
        self._queries += delivered

    def memories_allowed(self) -> int:
        """Return how many memory events of each partition may be delivered now. See `allowed_of` for an exception."""
        lanes = self.memories.lanes.values()
        queries_first = (self._queries or self._has_query()) and not any(lane.waiting_queries for lane in lanes)
        if queries_first and self._clock_s() - self._last_memories_s < STARVED_S:
            return 0
        busy = max(1, sum(1 for lane in lanes if lane.has_ready()))
        return max(0, min(-(-self._memories_batch // busy), self._memories_room()))

    def allowed_of(self, lane: Lane, share: int) -> int:
        """Return how many memory events of a partition may be delivered: its share; a batch if queries wait for it."""
        return max(share, min(self._memories_batch, self._memories_room())) if lane.waiting_queries else share

    def add_memories(self, delivered: int) -> None:
        self._memories += delivered
        self._last_memories_s = self._clock_s()

    def wait(self) -> None:
        """Wait until a record can be delivered, at most `WAIT_S`, because the dataflow has other work."""
        has_ready = self.memories.has_ready() and self._memories_room() > 0
        if not (self._has_query() or has_ready):
            self.wake.wait(WAIT_S)
        self.wake.clear()

    def _has_query(self) -> bool:
        """Return whether a query may be delivered now."""
        return self._queries_room() > 0 and self.queries.has_ready()

    def _memories_room(self) -> int:
        return IN_FLIGHT_MAX - self._in_flight()
