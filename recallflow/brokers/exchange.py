"""Sends records and reads what comes of them: what the client and the gateway share."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.reader import POLL_S, Inbox, Reader, reason_of
from recallflow.brokers.trouble import log_outage
from recallflow.credentials import Headers
from recallflow.errors import DeliveryFailed, FieldProblem, InvalidRecord, UsageError
from recallflow.limits import RECORD_BYTES
from recallflow.queries import ReplyTo
from recallflow.records import Position

TRIMMINGS_BYTES = 4_096  # a record's key, headers and batch, beyond its value

Delivered = Callable[[Position | DeliveryFailed], None]


class Exchange:
    """One producer and one reader, each with a thread. Thread-safe."""

    def __init__(
        self,
        kafka: KafkaOptions,
        inboxes: Sequence[Inbox],
        delivery_timeout_s: float,
        receive: Callable[[Any], None],
        fail: Callable[[Exception], None],
        fail_due: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """`inboxes`: what is read; the first is where answers come. `receive` is given each message of them, `fail` why
        no more can be read, and `fail_due`, again and again, what Kafka last complained of; all on threads of ours.
        Does not wait for Kafka. Raises UsageError where librdkafka does not take the options."""
        self._servers = kafka.bootstrap_servers
        self._replies, self._fail, self._fail_due = inboxes[0], fail, fail_due
        self._trouble: str | None = None
        self._sending = threading.Lock()
        self._stopping = threading.Event()
        # An outcome within our own time: librdkafka would otherwise go on trying for five minutes.
        bounded = {"delivery.timeout.ms": round(delivery_timeout_s * 1000), "error_cb": self._on_error}
        # The bound is the engine's, and then the topic's own: not librdkafka's, which is below both.
        largest = {"message.max.bytes": RECORD_BYTES + TRIMMINGS_BYTES}
        try:
            self._producer = Producer(largest | bounded | kafka.producer())
            self._reader = Reader(kafka, inboxes, receive, fail)
        except KafkaException as error:
            raise UsageError(f"Kafka options: {reason_of(error)}") from error
        self.ready = self._reader.ready
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-deliveries")
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """What Kafka last complained of, if nothing has gone well since."""
        return self._reader.trouble or self._trouble

    @property
    def away(self) -> str | None:
        """Why Kafka did not answer a moment ago; None where it did."""
        return self._reader.away

    @property
    def reply_to(self) -> ReplyTo | None:
        """Where answers are to go, once it is `ready`: None where that is the response topic."""
        if not self._replies.one:
            return None
        return ReplyTo(topic=self._replies.topic, partition=self._reader.chosen[self._replies.topic])

    @contextmanager
    def open(self) -> Iterator[None]:
        """What begins in here, close() sees to its end. Raises UsageError once it is closed."""
        with self._sending:
            if self._stopping.is_set():
                raise UsageError("the client is closed")
            yield

    def send(self, topic: str, value: bytes, key: bytes, headers: Headers, delivered: Delivered) -> None:
        """`delivered` is called once, with the record's position or why there is none, perhaps before this returns.
        Raises InvalidRecord for what is too large, and UsageError once it is closed."""

        def reported(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                delivered(self._undelivered(topic, error))
            elif message.offset() < 0:  # Kafka knows the retry as a copy, and not of which record
                delivered(DeliveryFailed(f"{topic}: stored, but Kafka does not say where"))
            else:
                self._trouble = None
                delivered(Position(topic, message.partition(), message.offset()))

        if len(value) > RECORD_BYTES:
            problem = f"over {RECORD_BYTES} bytes; split it, or store a reference"
            raise InvalidRecord("too_large", [FieldProblem("", problem)])
        try:
            with self.open():
                self._producer.produce(topic, value, key, on_delivery=reported, headers=[*headers])
        except BufferError:
            delivered(DeliveryFailed(f"{topic}: too many records are underway: await some; this one is not"))
        except KafkaException as error:
            delivered(self._undelivered(topic, error.args[0]))

    def _undelivered(self, topic: str, error: KafkaError) -> DeliveryFailed:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return DeliveryFailed(f"{topic} takes no record of this size: split it, or raise its max.message.bytes")
        trouble = f" ({self._trouble})" if self._trouble else ""
        return DeliveryFailed(
            f"{topic} at {self._servers}: {error.str()}{trouble}; is Kafka reachable, and is there such a topic "
            "(recallflow topics create)?"
        )

    def _run(self) -> None:
        """Serves delivery reports, and has what did not come in time failed."""
        while not self._stopping.is_set():
            self._producer.poll(POLL_S)
            self._fail_due(self.trouble)

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = error.str()
        log_outage(error)

    def close(self) -> None:
        """Sees every record sent so far to its end, and fails what is still waited for with UsageError. Blocks for at
        most about the delivery timeout. A second call does nothing."""
        with self._sending:
            if self._stopping.is_set():
                return
            self._stopping.set()
        self._thread.join()
        self._producer.flush()  # ends by itself: every record has its delivery timeout
        del self._producer  # ends librdkafka's threads now: its callbacks refer to us, and we to it
        self._reader.stop()
        self._fail(UsageError("the client was closed before a response came"))
