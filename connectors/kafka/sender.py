"""Senders of records: the brokers acknowledge each record, or an error states the reason."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from recallflow.connectors.kafka.admin import ask_configs
from recallflow.connectors.kafka.messages import TRIMMINGS_BYTES, Headers, headers_bytes
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import RecallflowError, SinkError
from recallflow.kafka_clients import log_outage
from recallflow.kafka_options import KafkaOptions
from recallflow.process import Patience

FLUSH_STEP_S = 0.5  # interval of signal checks while the brokers are unavailable
FULL_QUEUE_WAIT_S = 0.05
BATCH_BYTES = 1_000_000  # librdkafka's own batch.size
ANY_PARTITION = -1  # chosen by the hash of the key
# Errors of a single record, not of the brokers or our rights: the other records can still be sent.
_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,  # of the same batch
}
FLUSH_S = 60.0
LINGER_MS = 5  # bulk: fuller batches are worth a wait


class Sender:
    """One idempotent producer. The first record that is not delivered is the error of every later call, because later
    failures follow from it."""

    def __init__(
        self,
        options: KafkaOptions,
        most_bytes: Mapping[str, int],
        *,
        then: str,
        permit: Callable[[], None] = lambda: None,
        expired: Callable[[str], RecallflowError] = SinkError,
        chosen: Mapping[str, object] | None = None,
    ) -> None:
        """Create the producer.

        Args:
            most_bytes: topic → record size limit.
            then: remedy that an error states after its reason.
            permit: called before each attempt to send; it returns, or raises.
            expired: makes the error of a record that waited too long for unavailable brokers.
            chosen: further options of librdkafka.
        """
        bounds = {
            # It accepts the limit of the largest topic, and fills a batch up to the limit of the smallest.
            "message.max.bytes": max(most_bytes.values()),
            "batch.size": min(BATCH_BYTES, *most_bytes.values()),
            "error_cb": self._on_error,
        }
        self._producer = Producer(options.producer() | bounds | dict(chosen or {}))
        self._then = then
        self._permit = permit
        self._expired = expired
        self._error: RecallflowError | None = None

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        partition: int = ANY_PARTITION,
        headers: Headers = (),
        delivered: Callable[[Any], None] = lambda _: None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Hand one record to librdkafka; wait while its queue is full. Raise the error of an earlier record.

        Args:
            delivered: called with the record as a message.
            refused: called with the reason where the brokers refuse this very record; without it, that is an
                error.
        """

        def report(error: KafkaError | None, message: Any) -> None:
            if error is None:
                delivered(message)
            elif refused is not None and error.code() in _REFUSALS:
                refused(error.str())
            else:
                where = topic if partition == ANY_PARTITION else f"{topic}:{partition}"
                is_late = error.code() == KafkaError._MSG_TIMED_OUT
                made = self._expired if is_late else SinkError
                self._fail(f"{where}: a record was not delivered: {error.str()}", made)

        while True:
            self.check()
            self._permit()
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=report, headers=[*headers])
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

    def flush(self, patience: Patience) -> None:
        """Return once the brokers have acknowledged or refused every record. Raise as `check`."""
        self.check()
        while left := self._producer.flush(FLUSH_STEP_S):
            self.check()
            if patience.ended():
                break
        self.check()
        if left:
            raise self._expired(f"{left} records were not acknowledged {patience}; {self._then}")

    def drop(self, stopping: threading.Event) -> None:
        """Drop queued records, and return once sent records are acknowledged or expired, or `stopping` is set."""
        self._producer.purge(in_flight=False)
        while self._producer.flush(FLUSH_STEP_S) and not stopping.is_set():
            self._producer.purge(in_flight=False)  # includes records that wait for a retry

    def check(self) -> None:
        """Raise the error of the first record that was not delivered: SinkError, or the result of `expired`."""
        if self._error is not None:
            raise self._error

    def _fail(self, why: str, made: Callable[[str], RecallflowError] = SinkError) -> None:
        self._error = self._error or made(f"{why}; {self._then}")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(f"records are not delivered any more: {error.str()}")
        else:
            log_outage(error)


class Publisher:
    """Sender of ordered records. `reached(n)` is called once the first n records are acknowledged."""

    def __init__(
        self, options: KafkaOptions, topic: str, reached: Callable[[int], None], credentials: Headers = ()
    ) -> None:
        """`credentials` are headers of each record. Raise SourceError where Kafka cannot be reached, refuses us, or
        lacks the topic."""
        with TopicReader(options) as reader:
            reader.partitions([topic])
        self.most_bytes = ask_configs(options, [topic])[topic].most_bytes
        chosen = {"linger.ms": LINGER_MS}
        self._sender = Sender(options, {topic: self.most_bytes}, then="run the same command again", chosen=chosen)
        self._topic = topic
        self._credentials = credentials
        self._trimmings_bytes = TRIMMINGS_BYTES + headers_bytes(credentials)
        self._reached = reached
        self._given = 0
        self._acknowledged: set[int] = set()  # acknowledged records after the first unacknowledged one
        self._through = 0  # number of leading records that are acknowledged

    def fits(self, key: bytes, value: bytes) -> bool:
        return len(key) + len(value) + self._trimmings_bytes <= self.most_bytes

    def send(self, key: bytes, value: bytes) -> None:
        """Send one record that fits. Raise SinkError where a record was not delivered."""
        number = self._given
        self._given += 1
        self._sender.send(
            self._topic, value, key, headers=self._credentials, delivered=lambda _: self._acknowledge(number)
        )
        self._sender.poll()

    def pass_over(self) -> None:
        self._given += 1
        self._acknowledge(self._given - 1)

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
        self._sender.flush(Patience(FLUSH_S))
