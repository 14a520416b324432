"""The Kafka sink: checked deliveries, and no output twice.

Each output carries its identity in headers: the position of the record it comes from, and its number among that
record's outputs. After a crash the dataflow sends again what it had sent since the last snapshot; on build a part
reads its partition's tail from the snapshotted offset on, and drops every output that is already there.

Outputs come in a size that their topic takes. One that the brokers refuse all the same is sent again alone, as a batch
is refused as a whole, then replaced by what stands in for it, so that no output stops the flow for good.

Bytewax's own Kafka sink is a `DynamicSink`: its progress is not part of the snapshot, and it ignores delivery errors.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes, tell_outage
from recallflow.checked import Checked
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.configs import producer_bounds
from recallflow.connectors.kafka.messages import headers_of
from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.outgoing import NUMBER_HEADER, SOURCE_HEADER, Identity, Outgoing
from recallflow.errors import SinkError

OUTAGE_S = 40.0  # so long a flow waits for brokers that are away, unless it is told
STOP_S = 4.0  # and so long once it is to stop
FLUSH_STEP_S = 0.5  # so often signals are seen while the brokers are away
FULL_QUEUE_WAIT_S = 0.05

# What is wrong with a record, and not with the brokers or our rights: without it, all else can be sent.
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,  # of the same batch
}
# Our own outputs are in no transaction; somebody else's that is open must not hide them.
UNCOMMITTED = {"isolation.level": "read_uncommitted"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivered(Checked):
    """A part's resume state: everything below `offset` is settled; `unclaimed` stands in the tail from before a crash,
    and the dataflow has not come by it again. All this is of the topic of that id, not of one made in its place."""

    offset: int
    unclaimed: tuple[Identity, ...]
    topic_id: str = ""  # of a part that has no snapshot yet


class KafkaSink(FixedPartitionedSink[Outgoing, Delivered]):
    """One part per partition of each output topic. Items are keyed by the part they go to (`part_name`)."""

    def __init__(
        self,
        options: KafkaOptions,
        partitions: Mapping[str, int],
        begin: Mapping[str, int],
        ids: Mapping[str, str],
        most_bytes: Mapping[str, int],
        *,
        may_send: "MaySend" = lambda _: None,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        closing: Closing | None = None,
    ) -> None:
        """`partitions`: topic → how many. `begin`: part → its offset when the state directory was new: what stands
        before is of no concern to a part that has no snapshot yet. `ids`: topic → its id as it is now, which changes
        where the topic is made anew. `most_bytes`: topic → how large a record it takes. `may_send` is asked before each
        send: it returns, or raises once its patience has ended. `outage_s`: so long an output waits for brokers that
        are away; once `stopping` is set, much shorter."""
        self._options = options
        self.most_bytes = most_bytes
        self._may_send = may_send
        self._outage_s = outage_s
        self._begin = begin
        self._ids = ids
        self._stopping = stopping or threading.Event()
        self._producers: dict[int, SharedProducer] = {}
        self._starting = threading.Lock()
        self._closing = closing or Closing()
        self.partitions = dict(partitions)
        self._index = {part: number for number, part in enumerate(self.list_parts())}

    def _producer(self) -> "SharedProducer":
        return SharedProducer(self._options, self.most_bytes, self._may_send, self._outage_s, self._stopping)

    def list_parts(self) -> list[str]:
        # Bytewax sorts parts by name and numbers them so: zero-padded, both orders are one.
        return sorted(part_name(topic, n) for topic, count in self.partitions.items() for n in range(count))

    def part_fn(self, item_key: str) -> int:
        return self._index[item_key]

    def build_part(self, step_id: str, for_part: str, resume_state: Delivered | None) -> "SinkPart":  # noqa: ARG002
        topic, number = for_part.rsplit(":", 1)
        with self._starting:
            worker = threading.get_ident()
            if worker not in self._producers:
                self._producers[worker] = self._producer()
            producer = self._producers[worker]
        resumed = resume_state or Delivered(self._begin.get(for_part, 0), ())
        return SinkPart(self._options, producer, topic, int(number), resumed, self._ids, self._stopping, self._closing)


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


MaySend = Callable[[Callable[[], Patience]], None]


class SharedProducer:
    """One idempotent producer for all parts of a worker. A failed delivery is kept until someone looks."""

    def __init__(
        self,
        options: KafkaOptions,
        most_bytes: Mapping[str, int],
        may_send: "MaySend",
        outage_s: float,
        stopping: threading.Event,
    ) -> None:
        expires = {"message.timeout.ms": round(1000 * outage_s)}
        chosen = producer_bounds(most_bytes) | expires | {"error_cb": self._on_error}
        self._producer = Producer(options.producer() | chosen)
        self._may_send = may_send
        self._outage_s = outage_s
        self._stopping = stopping
        self._error: SinkError | None = None
        self._refused: list[_Refused] = []

    def send(self, topic: str, partition: int, outgoing: Outgoing, delivered: Callable[[int], None]) -> None:
        """Hands one record to librdkafka, waiting while its queue is full. Raises SinkError for an earlier failure."""

        def report(error: KafkaError | None, message: Any) -> None:
            if error is None:
                delivered(message.offset())
            elif error.code() in _REFUSED:
                self._refused.append(_Refused(topic, partition, outgoing, delivered, error.str()))
            else:
                self._fail(f"{topic}:{partition}: an output was not delivered: {error.str()}")

        while True:
            self.check()
            self._may_send(self._patience)
            try:
                self._producer.produce(
                    topic,
                    value=outgoing.value,
                    key=outgoing.key,
                    partition=partition,
                    headers=[*outgoing.all_headers],
                    on_delivery=report,
                )
            except BufferError:
                self._producer.poll(FULL_QUEUE_WAIT_S)
            except KafkaException as error:
                report(error.args[0], None)
                self.check()
                return
            else:
                return

    def poll(self) -> None:
        self._producer.poll(0)
        self.check()
        if self._refused:
            self.flush()

    def flush(self) -> None:
        """Returns once every record sent so far is acknowledged by the brokers, or what stands in for it. Raises
        SinkError."""
        self._await()
        refused, self._refused = self._refused, []
        for one in refused:
            self._send_alone(one)

    def _send_alone(self, refused: "_Refused") -> None:
        topic, partition, outgoing, delivered, reason = refused
        where = f"{topic}:{partition}: an output of {outgoing.source}"
        if self._is_taken(refused):
            return
        _log.error("%s was refused: %s", where, reason)
        stand_in = outgoing.instead and outgoing.instead(reason)
        if stand_in is None or not self._is_taken(_Refused(topic, partition, stand_in, delivered, reason)):
            _log.error("%s is left out: the topic takes nothing in its place either; check the topic's settings", where)

    def _is_taken(self, refused: "_Refused") -> bool:
        """Sends one record with nothing else underway. Whether the brokers took it."""
        self.send(refused.topic, refused.partition, refused.outgoing, refused.delivered)
        self._await()
        return not (self._refused and self._refused.pop())

    def _await(self) -> None:
        """Returns once the brokers have acknowledged or refused every record sent so far. Raises SinkError."""
        patience = Patience(self._stopping, self._outage_s + FLUSH_STEP_S)  # what waits expires a moment before
        while left := self._producer.flush(FLUSH_STEP_S):
            self.check()
            if patience.ended():
                break
        self.check()
        if left:
            raise SinkError(f"{left} outputs were not acknowledged {patience}; they are sent again on restart")

    def _patience(self) -> Patience:
        return Patience(self._stopping, self._outage_s)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, why: str) -> None:
        """Keeps the first failure: those after it are of its making."""
        self._error = self._error or SinkError(f"{why}; it is sent again on restart")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(f"outputs are not delivered any more: {error.str()}")
        else:
            tell_outage(error)


class _Refused(NamedTuple):
    """A record that the brokers did not take, as it was sent, and why."""

    topic: str
    partition: int
    outgoing: Outgoing
    delivered: Callable[[int], None]
    reason: str


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
        closing: Closing,
    ) -> None:
        self._producer = producer
        self._closing = closing
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
        self._closing(self._producer.flush)

    def _heed_id(self) -> None:
        """A topic made anew holds nothing of what we knew, and what it may hold of ours by now begins anywhere."""
        if self._ids[self._topic] != self._id:
            self._id, self._offset, self._there = self._ids[self._topic], 0, set()

    def _delivered(self, offset: int) -> None:
        self._offset = max(self._offset, offset + 1)


def read_tail(
    options: KafkaOptions, topic: str, number: int, offset: int, stopping: threading.Event
) -> tuple[list[Identity], int]:
    """The identities of all our records from `offset` to the end of a partition, and the end: its high watermark."""
    # At the end of a partition the broker would hold a fetch back for half a second, and a start reads many tails.
    chosen = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10, **UNCOMMITTED}
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
    headers = dict(headers_of(message) or ())
    source, number = headers.get(SOURCE_HEADER), headers.get(NUMBER_HEADER)
    return [(source, number)] if source is not None and number is not None else []


def ends(
    options: KafkaOptions, topics: Sequence[str], chosen: Mapping[str, object] | None = None
) -> dict[str, dict[int, int]]:
    """The end offset of every partition of topics: where what is committed ends, or with `chosen` UNCOMMITTED all there
    is. Raises SourceError where a topic is missing."""
    with Metadata.open(options, chosen) as metadata:
        found = metadata.partitions(topics)
        return {topic: {n: metadata.span(topic, n)[1] for n in numbers} for topic, numbers in found.items()}
