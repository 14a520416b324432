"""The Kafka sink: checked deliveries, and no output twice.

Each output carries its identity in headers: the position of the record it comes from, and its number among that
record's outputs. After a crash the dataflow sends again what it had sent since the last snapshot; on build a part
reads its partition's tail from the snapshotted offset on, and drops every output that is already there.

Bytewax's own Kafka sink is a `DynamicSink`: its progress is not part of the snapshot, and it ignores delivery errors.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.connectors.kafka.trouble import passes, tell_outage
from recallflow.errors import SinkError

SOURCE_HEADER = "recallflow-source"
NUMBER_HEADER = "recallflow-output"
OUTAGE_S = 40.0  # so long a flow waits for brokers that are away, unless it is told
STOP_S = 4.0  # and so long once it is to stop
FLUSH_STEP_S = 0.5  # so often signals are seen while the brokers are away
FULL_QUEUE_WAIT_S = 0.05

Identity = tuple[bytes, bytes]
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True, frozen=True)
class Outgoing:
    """One record to deliver. `source` and `number` are its identity."""

    source: str
    number: int
    key: bytes | None
    value: bytes
    headers: Headers = ()

    @property
    def identity(self) -> Identity:
        return self.source.encode(), b"%d" % self.number


class Delivered(NamedTuple):
    """A part's resume state: everything below `offset` is settled; `unclaimed` stands in the tail from before a crash,
    and the dataflow has not come by it again. All this is of the topic of that id, not of one made in its place."""

    offset: int
    unclaimed: tuple[Identity, ...]
    topic_id: str = ""  # of snapshots from before ids were kept


class KafkaSink(FixedPartitionedSink[Outgoing, Delivered]):
    """One part per partition of each output topic. Items are keyed by the part they go to (`part_name`)."""

    def __init__(
        self,
        options: KafkaOptions,
        partitions: Mapping[str, int],
        begin: Mapping[str, int],
        ids: Mapping[str, str],
        *,
        may_send: Callable[[], None] = lambda: None,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
    ) -> None:
        """`partitions`: topic → how many. `begin`: part → its offset when the state directory was new: what stands
        before is of no concern to a part that has no snapshot yet. `ids`: topic → its id as it is now, which changes
        where the topic is made anew. `may_send` is asked before each send: it returns, or raises. `outage_s`: so long
        an output waits for brokers that are away; once `stopping` is set, much shorter."""
        self._options = options
        self._may_send = may_send
        self._outage_s = outage_s
        self._begin = begin
        self._ids = ids
        self._stopping = stopping or threading.Event()
        self._producers: dict[int, SharedProducer] = {}
        self._starting = threading.Lock()
        self.partitions = dict(partitions)
        self._index = {part: number for number, part in enumerate(self.list_parts())}

    def list_parts(self) -> list[str]:
        # Bytewax sorts parts by name and numbers them so: zero-padded, both orders are one.
        return sorted(part_name(topic, n) for topic, count in self.partitions.items() for n in range(count))

    def part_fn(self, item_key: str) -> int:
        return self._index[item_key]

    def build_part(self, step_id: str, for_part: str, resume_state: Delivered | None) -> "SinkPart":  # noqa: ARG002
        topic, number = for_part.rsplit(":", 1)
        with self._starting:
            worker = threading.get_ident()
            producer = self._producers.setdefault(
                worker, SharedProducer(self._options, self._may_send, self._outage_s, self._stopping)
            )
        resumed = resume_state or Delivered(self._begin.get(for_part, 0), ())
        return SinkPart(self._options, producer, topic, int(number), resumed, self._ids, self._stopping)


class Patience:
    """How long brokers that are away are waited for: an outage's length, and much less once somebody wants us to stop,
    as supervisors kill what does not end soon."""

    def __init__(
        self, stopping: threading.Event, outage_s: float = OUTAGE_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stopping = stopping
        self._outage_s = outage_s
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._stopped_s: float | None = None

    def ended(self) -> bool:
        now_s = self._clock_s()
        if self._stopping.is_set() and self._stopped_s is None:
            self._stopped_s = now_s
        stopped = self._stopped_s is not None and now_s - self._stopped_s >= STOP_S
        return stopped or now_s - self._began_s >= self._outage_s

    def __str__(self) -> str:
        if self._stopped_s is None:
            return f"within {self._outage_s:.0f} s"
        return f"within {STOP_S:.0f} s of the signal to stop"


class SharedProducer:
    """One idempotent producer for all parts of a worker. A failed delivery is kept until someone looks."""

    def __init__(
        self, options: KafkaOptions, may_send: Callable[[], None], outage_s: float, stopping: threading.Event
    ) -> None:
        expires = {"message.timeout.ms": round(1000 * outage_s)}
        self._producer = Producer(options.producer() | expires | {"error_cb": self._on_error})
        self._may_send = may_send
        self._outage_s = outage_s
        self._stopping = stopping
        self._error: KafkaError | None = None

    def send(self, topic: str, partition: int, outgoing: Outgoing, delivered: Callable[[int], None]) -> None:
        """Hands one record to librdkafka, waiting while its queue is full. Raises SinkError for an earlier failure."""
        identity = ((SOURCE_HEADER, outgoing.identity[0]), (NUMBER_HEADER, outgoing.identity[1]))

        def report(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._error = error
            else:
                delivered(message.offset())

        while True:
            self.check()
            self._may_send()
            try:
                self._producer.produce(
                    topic,
                    value=outgoing.value,
                    key=outgoing.key,
                    partition=partition,
                    headers=[*outgoing.headers, *identity],
                    on_delivery=report,
                )
            except BufferError:
                self._producer.poll(FULL_QUEUE_WAIT_S)
            except KafkaException as error:
                raise SinkError(
                    f"{topic}:{partition}: an output of {outgoing.source} cannot be sent: {error}"
                ) from error
            else:
                return

    def poll(self) -> None:
        self._producer.poll(0)
        self.check()

    def flush(self) -> None:
        """Returns once every record sent so far is acknowledged by the brokers. Raises SinkError."""
        patience = Patience(self._stopping, self._outage_s + FLUSH_STEP_S)  # what waits expires a moment before
        while left := self._producer.flush(FLUSH_STEP_S):
            self.check()
            if patience.ended():
                break
        self.check()
        if left:
            raise SinkError(f"{left} outputs were not acknowledged {patience}; they are sent again on restart")

    def check(self) -> None:
        if self._error is not None:
            raise SinkError(f"an output was not delivered: {self._error.str()}; it is sent again on restart")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._error = error
        else:
            tell_outage(error)


class SinkPart(StatefulSinkPartition[Outgoing, Delivered]):
    """One Kafka partition."""

    def __init__(
        self,
        options: KafkaOptions,
        producer: SharedProducer,
        topic: str,
        number: int,
        resumed: Delivered,
        ids: Mapping[str, str],
        stopping: threading.Event,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._number = number
        self._ids = ids
        self._id = ids[topic]
        if resumed.topic_id not in ("", self._id):
            resumed = Delivered(0, ())
        tail, self._offset = read_tail(options, topic, number, resumed.offset, stopping)
        self._there = set(tail) | set(resumed.unclaimed)

    def write_batch(self, values: Sequence[Outgoing]) -> None:
        self._heed_id()
        for outgoing in values:
            if outgoing.identity in self._there:
                self._there.remove(outgoing.identity)
            else:
                self._producer.send(self._topic, self._number, outgoing, self._delivered)
        self._producer.poll()

    def snapshot(self) -> Delivered:
        # The offset alone would be unsound: what the tail held and was not sent again yet could be sent twice later.
        self._producer.flush()
        self._heed_id()
        return Delivered(self._offset, tuple(sorted(self._there)), self._id)

    def close(self) -> None:
        self._producer.flush()

    def _heed_id(self) -> None:
        """A topic made anew holds nothing of what we knew, and what it may hold of ours by now begins anywhere."""
        if self._ids[self._topic] != self._id:
            self._id, self._offset, self._there = self._ids[self._topic], 0, set()

    def _delivered(self, offset: int) -> None:
        self._offset = max(self._offset, offset + 1)


def read_tail(
    options: KafkaOptions, topic: str, number: int, offset: int, stopping: threading.Event
) -> tuple[list[Identity], int]:
    """The identities of all our records from `offset` to the end of a partition, and the end."""
    # At the end of a partition the broker would hold a fetch back for half a second, and a start reads many tails.
    chosen = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
    # Bytewax builds a part with its first output, which may fall into an outage: as patient as a flush.
    with Metadata.open(options, chosen, OUTAGE_S, stopping=stopping) as metadata:
        reader = metadata.consumer
        low, high = metadata.span(topic, number)
        start = max(offset, low)
        if start >= high:
            return [], high
        reader.assign([TopicPartition(topic, number, start)])
        found: list[Identity] = []
        patience = Patience(stopping)
        while True:
            message: Any = reader.poll(FLUSH_STEP_S)
            if message is None:
                if patience.ended():
                    raise SinkError(f"{topic}:{number}: what was delivered before could not be read {patience}")
                continue
            patience = Patience(stopping)
            error = message.error()
            if error is None:
                found += _identity(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found, message.offset()
            elif not passes(error):
                raise SinkError(f"{topic}:{number}: cannot read what was delivered before: {error.str()}")


def _identity(message: Any) -> list[Identity]:
    headers = dict(message.headers() or ())
    source, number = headers.get(SOURCE_HEADER), headers.get(NUMBER_HEADER)
    return [(source, number)] if source is not None and number is not None else []


def ends(options: KafkaOptions, topics: Sequence[str]) -> dict[str, dict[int, int]]:
    """The end offset of every partition of output topics. Raises SourceError where a topic is missing."""
    with Metadata.open(options) as metadata:
        found = metadata.partitions(topics)
        return {topic: {n: metadata.span(topic, n)[1] for n in numbers} for topic, numbers in found.items()}
