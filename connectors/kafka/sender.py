"""Senders of records, and the sink of a process that owns some partitions.

The brokers acknowledge each record, or an error states the reason. The sink sends each output once, and commits a
barrier once everything before it is synced and delivered. Each output carries its identity in headers: the position of
its record, and its number among the outputs of that record. The previous owner of a partition may have sent some
outputs already. Those were found in the tails of the output topics, and are not sent again."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from recallflow.connectors.kafka import messages
from recallflow.connectors.kafka.admin import topic_configs
from recallflow.connectors.kafka.messages import REPLAYED_HEADER, Headers, Identity, Letter, Outgoing
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import MembershipLost, RecallflowError, SinkError
from recallflow.kafka_options import KafkaOptions, log_outage
from recallflow.outputs import OutputBarrier
from recallflow.process import CloseErrors, TimeLimit
from recallflow.records import Position

FLUSH_STEP_S = 0.5  # interval of signal checks while the brokers are unavailable
FULL_QUEUE_WAIT_S = 0.05
BATCH_BYTES = 1_000_000  # librdkafka's own batch.size
ANY_PARTITION = -1  # the hash of the key chooses the partition
# Errors of a single record, not of the brokers or our rights: the other records can still be sent.
_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,  # another record of the same batch is invalid
}
FLUSH_S, RESEND_S = 60.0, 30.0
REPLAYED_AT_ONCE = 500  # dead letters of one transaction
REPLAY_BYTES, REPLAY_BATCH_BYTES = 100 * 1024 * 1024, 16 * 1024
LINGER_MS = 5  # bulk sending: fuller batches are worth a wait


class Sender:
    """One idempotent producer. Once a delivery has failed, every later call raises the error of the first failure."""

    def __init__(
        self,
        options: KafkaOptions,
        most_bytes: Mapping[str, int],  # topic → record size limit
        *,
        remedy: str,  # what an error states after its reason
        permit: Callable[[], None] = lambda: None,  # called before each attempt to send; it returns, or raises
        expiry_error: Callable[[str], RecallflowError] = SinkError,  # for a record that waited too long for brokers
        producer_options: Mapping[str, object] | None = None,  # further options of librdkafka
    ) -> None:
        bounds = {
            # It accepts the limit of the largest topic, and fills a batch up to the limit of the smallest.
            "message.max.bytes": max(most_bytes.values()),
            "batch.size": min(BATCH_BYTES, *most_bytes.values()),
            "error_cb": self._on_error,
        }
        self._producer = Producer(options.producer() | bounds | dict(producer_options or {}))
        self._remedy, self._permit, self._expiry_error = remedy, permit, expiry_error
        self._error: RecallflowError | None = None

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        partition: int = ANY_PARTITION,
        headers: Headers = (),
        sent_ms: int = 0,  # time of the record, for topics that keep producers' times; 0: now
        delivered: Callable[[Any], None] = lambda _: None,  # called with the record as a message
        refused: Callable[[str], None] | None = None,  # called with a refusal of this very record; None: it is an error
    ) -> None:
        """Hand one record to librdkafka; wait while its queue is full. Raise the error of an earlier record."""

        def report(error: KafkaError | None, message: Any) -> None:
            if error is None:
                delivered(message)
            elif refused is not None and error.code() in _REFUSALS:
                refused(error.str())
            else:
                where = topic if partition == ANY_PARTITION else f"{topic}:{partition}"
                is_late = error.code() == KafkaError._MSG_TIMED_OUT
                error_type = self._expiry_error if is_late else SinkError
                self._fail(f"{where}: a record was not delivered: {error.str()}", error_type)

        while True:
            self.check()
            self._permit()
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=report, timestamp=sent_ms, headers=[*headers]
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
        """Serve delivery reports. Raise as `check`."""
        self._producer.poll(0)
        self.check()

    def flush(self, time_limit: TimeLimit) -> None:
        """Return once the brokers have acknowledged or refused every record. Raise as `check`."""
        self.check()
        while remaining := self._producer.flush(FLUSH_STEP_S):
            self.check()
            if time_limit.poll_expired():
                raise self._expiry_error(f"{remaining} records were not acknowledged {time_limit}; {self._remedy}")
        self.check()

    def check(self) -> None:
        """Raise the error of the first record that was not delivered: SinkError, or `expiry_error`."""
        if self._error is not None:
            raise self._error

    def _fail(self, why: str, error_type: Callable[[str], RecallflowError] = SinkError) -> None:
        self._error = self._error or error_type(f"{why}; {self._remedy}")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(f"records are not delivered any more: {error.str()}")
        else:
            log_outage(error)


class DeadLetterReplay(Sender):
    """Sender of dead letters, each exactly once. A record and a marker next to its letter (in the topic of dead
    letters) are sent in one transaction. A later replay, also after a crash, first fences this one and aborts its open
    transaction. Then it reads the markers. Raise SinkError."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        """Raise SourceError if Kafka is unreachable, refuses us, or lacks the topic."""
        with TopicReader(options) as reader:
            reader.partitions([topic])
        timeout = {"transaction.timeout.ms": round(RESEND_S * 1000)}
        # The size limits of the target topics are unknown: a small batch keeps several records below each of them.
        own = {"transactional.id": f"recallflow-replay-{topic}", "batch.size": REPLAY_BATCH_BYTES, **timeout}
        remedy = "replay again: records that were sent are left out"
        super().__init__(options, {topic: REPLAY_BYTES}, remedy=remedy, producer_options=own)
        self._topic = topic
        self._transact(lambda: self._producer.init_transactions(RESEND_S))

    def send_again(self, letters: Sequence[Letter], credentials: Headers, authorised_topics: Collection[str]) -> int:
        """Send records to their source topics again, with their bytes, keys, headers and times. Return their number.
        Dead letters hold no credentials, so records for `authorised_topics`, which check them, get `credentials`."""
        for begin in range(0, len(letters), REPLAYED_AT_ONCE):
            self._transact(self._producer.begin_transaction)
            try:
                for letter in letters[begin : begin + REPLAYED_AT_ONCE]:
                    topic, sent_ms = letter.source.topic, letter.record_ms
                    headers = (*letter.replay_headers, *(credentials if topic in authorised_topics else ()))
                    self.send(topic, letter.value, letter.key, headers=headers, sent_ms=sent_ms)
                    partition, marker = letter.position.partition, str(letter.position).encode()
                    self.send(self._topic, b"", marker, partition=partition, headers=((REPLAYED_HEADER, marker),))
                    self.poll()
                self.flush(TimeLimit(RESEND_S))
            except BaseException:  # an open transaction would hold up readers of the topic until its timeout
                with suppress(KafkaException):
                    self._producer.abort_transaction(RESEND_S)
                raise
            self._transact(lambda: self._producer.commit_transaction(RESEND_S))
        return len(letters)

    def _transact(self, step: Callable[[], object]) -> None:
        try:
            step()
        except KafkaException as error:
            self._fail(f"{self._topic}: the transaction of the replay failed: {error.args[0].str()}")
        self.check()


class Publisher:
    """Sender of ordered records. `reached(n)` is called once the first n records are acknowledged."""

    def __init__(self, options: KafkaOptions, topic: str, reached: Callable[[int], None], credentials: Headers) -> None:
        """`credentials`: headers of each record. Raise SourceError if Kafka cannot be reached or refuses."""
        with TopicReader(options) as reader:
            reader.partitions([topic])
        self.most_bytes = topic_configs(options, [topic])[topic].most_bytes
        remedy, linger = "run the same command again", {"linger.ms": LINGER_MS}
        self._sender = Sender(options, {topic: self.most_bytes}, remedy=remedy, producer_options=linger)
        self._topic, self._credentials = topic, credentials
        self._overhead_bytes = messages.RECORD_OVERHEAD_BYTES + messages.headers_bytes(credentials)
        self._reached = reached
        self._next_number = 0
        self._acknowledged: set[int] = set()  # acknowledged records after the first unacknowledged one
        self._through = 0  # number of leading records that are acknowledged

    def fits(self, key: bytes, value: bytes) -> bool:
        return len(key) + len(value) + self._overhead_bytes <= self.most_bytes

    def send(self, key: bytes, value: bytes) -> None:
        """Send one record that fits. Raise SinkError if a record was not delivered."""
        number = self._next_number
        self._next_number += 1
        self._sender.send(
            self._topic, value, key, headers=self._credentials, delivered=lambda _: self._acknowledge(number)
        )
        self._sender.poll()

    def skip(self) -> None:
        """Count an unsent record as acknowledged."""
        self._next_number += 1
        self._acknowledge(self._next_number - 1)

    def _acknowledge(self, number: int) -> None:
        """Note an acknowledgement; different partitions acknowledge in any order."""
        self._acknowledged.add(number)
        before = self._through
        while self._through in self._acknowledged:
            self._acknowledged.remove(self._through)
            self._through += 1
        if self._through != before:
            self._reached(self._through)

    def flush(self) -> None:
        """Wait for every acknowledgement. Raise SinkError."""
        self._sender.flush(TimeLimit(FLUSH_S))


_log = logging.getLogger(__name__)

SendPermit = Callable[[Callable[[], TimeLimit]], None]  # waits for the permit; its argument creates the time limit


class ToSend(NamedTuple):
    topic: str
    partition: int
    outgoing: Outgoing


class EarlierOutputs:
    """Outputs that earlier owners of our partitions sent, and that this process has not produced again yet."""

    def __init__(self) -> None:
        self._by_partition: dict[int, set[Identity]] = {}
        # (partition, barrier) → a copy, because later records claim outputs before the barrier is committed
        self._unclaimed_at_barrier: dict[tuple[int, int], frozenset[Identity]] = {}

    def add(self, partition: int, found: set[Identity]) -> None:
        """Add the outputs found for a partition. Called before the partition is opened."""
        self._by_partition[partition] = found

    def claim(self, identity: Identity) -> bool:
        """Return whether an output was sent already. Only the first call for it returns True."""
        if not self._by_partition:
            return False
        found = self._by_partition.get(int(identity[0].rsplit(b":", 2)[1]))
        if not found or identity not in found:
            return False
        found.remove(identity)
        return True

    def note_barrier(self, barrier: OutputBarrier) -> None:
        """Keep the unclaimed outputs at a barrier."""
        if found := self._by_partition.get(barrier.partition):
            self._unclaimed_at_barrier[barrier.partition, barrier.number] = frozenset(found)

    def forget_barrier(self, barrier: OutputBarrier, done: Callable[[Position], bool]) -> bool:
        """Forget a barrier, and outputs of finished records. Return whether outputs of others were unclaimed at it."""

        def is_done(identity: Identity) -> bool:
            return done(Position.parse(identity[0].decode()))

        found = self._by_partition.pop(barrier.partition, ())
        if remaining := {one for one in found if not is_done(one)}:
            self._by_partition[barrier.partition] = remaining
        return not all(map(is_done, self._unclaimed_at_barrier.pop((barrier.partition, barrier.number), ())))


@dataclass(eq=False)
class DeliverySink:
    """Sink that delivers outputs, and commits each barrier once everything before it is synced and acknowledged."""

    sender: "OutputSender"
    earlier_outputs: EarlierOutputs
    commit_barriers: Callable[[list[OutputBarrier]], None]  # called on the dataflow's thread
    closing: CloseErrors = field(default_factory=CloseErrors)
    # Barriers that are not committed, by their sequence numbers in the sender.
    _pending: dict[int, OutputBarrier] = field(default_factory=dict, init=False)

    def write_batch(self, items: list[ToSend | OutputBarrier]) -> None:
        for item in items:
            if isinstance(item, OutputBarrier):
                self.earlier_outputs.note_barrier(item)
                self._pending[self.sender.next_barrier()] = item
            elif not self.earlier_outputs.claim(item.outgoing.identity):
                self.sender.deliver(item)
        if any(barrier.last for barrier in self._pending.values()):
            self.sender.flush_outputs()  # a partition is handed over, so nothing of it may be in flight
        self.settle()

    def settle(self) -> None:
        """Serve delivery reports, and commit the barriers that are synced and delivered. The dataflow's thread calls it
        between batches, because the next output may come much later. Raise as `poll_outputs`."""
        self.sender.poll_outputs()
        if not self._pending:
            return
        first_unacknowledged, passed = self.sender.first_unacknowledged_barrier(), list[int]()
        for sequence, barrier in self._pending.items():
            if sequence < first_unacknowledged and barrier.is_synced():
                passed.append(sequence)
        if passed:
            self.commit_barriers([self._pending.pop(sequence) for sequence in passed])

    def close(self) -> None:
        self.closing(self.sender.flush_outputs)
        self.sender.drop()  # before our partitions go to other members


class OutputSender(Sender):
    """Sender of outputs. Brokers refuse whole batches, so a refused one is resent alone, or else replaced."""

    def __init__(
        self,
        options: KafkaOptions,
        most_bytes: Mapping[str, int],
        permit: SendPermit,
        outage_s: float,
        stopping: threading.Event,
    ) -> None:
        """`permit` is called before each send; it returns, or raises once the time limit has expired. `outage_s` limits
        the wait of an output for unavailable brokers; it is much shorter once `stopping` is set."""
        super().__init__(
            options,
            most_bytes,
            remedy="it is sent again on restart",
            permit=lambda: permit(lambda: TimeLimit(outage_s, stopping)),
            # An expired output ends the membership, because another member may own its partition by now. That owner
            # finds the sent outputs. While stopping, the error ends the process.
            expiry_error=lambda why: SinkError(why) if stopping.is_set() else MembershipLost(why),
            producer_options={"message.timeout.ms": round(1000 * outage_s)},
        )
        self._stopping, self._outage_s = stopping, outage_s
        self._refused: list[tuple[ToSend, str]] = []  # refused outputs, with the reason
        self._sequence = 0  # number of the next barrier
        self._unacknowledged = Counter[int]()  # outputs that are not acknowledged, by the next barrier after them

    def next_barrier(self) -> int:
        """Return the sequence number of a barrier after all outputs sent so far."""
        self._sequence += 1
        return self._sequence - 1

    def first_unacknowledged_barrier(self) -> int:
        """Return the number of the first barrier before which an output is not acknowledged."""
        return min(self._unacknowledged, default=self._sequence)

    def deliver(self, item: ToSend) -> None:
        """Hand over one output. Raise SinkError if an earlier one failed."""
        outgoing, barrier = item.outgoing, self._sequence

        def acknowledged(message: Any) -> None:
            self._unacknowledged[barrier] -= 1
            if not self._unacknowledged[barrier]:
                del self._unacknowledged[barrier]
            if outgoing.delivered is not None:
                outgoing.delivered(messages.time_ms(message))

        self._unacknowledged[barrier] += 1
        self.send(
            item.topic,
            outgoing.value,
            outgoing.key,
            partition=item.partition,
            headers=outgoing.all_headers,
            delivered=acknowledged,
            refused=lambda why: self._refused.append((item, why)),
        )

    def flush_outputs(self) -> None:
        """Return when the brokers acknowledged every output or its replacement. Raise SinkError."""
        self._flush()
        refused, self._refused = self._refused, []
        for item, reason in refused:
            self._deliver_alone(item, reason)
        self._unacknowledged.clear()  # includes outputs that were left out

    def poll_outputs(self) -> None:
        """Serve delivery reports and resend refused outputs. Raise SinkError."""
        self.poll()
        if self._refused:
            self.flush_outputs()

    def drop(self) -> None:
        """Drop queued outputs, and return once sent ones are acknowledged or expired, or the process stops."""
        self._producer.purge(in_flight=False)
        while self._producer.flush(FLUSH_STEP_S) and not self._stopping.is_set():
            self._producer.purge(in_flight=False)  # includes records that wait for a retry

    def _deliver_alone(self, item: ToSend, reason: str) -> None:
        if self._try_delivery(item):
            return
        where = f"{item.topic}:{item.partition}: an output of {item.outgoing.source}"
        _log.error("%s was refused: %s", where, reason)
        replacement = item.outgoing.replacement and item.outgoing.replacement(reason)
        if replacement is None or not self._try_delivery(item._replace(outgoing=replacement)):
            _log.error("%s is left out: the topic takes nothing in its place either; check the topic's settings", where)

    def _try_delivery(self, item: ToSend) -> bool:
        self.deliver(item)
        self._flush()
        return not (self._refused and self._refused.pop())

    def _flush(self) -> None:
        self.flush(TimeLimit(self._outage_s + FLUSH_STEP_S, self._stopping))  # queued records expire a moment before
