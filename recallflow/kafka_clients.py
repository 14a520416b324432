"""Kafka clients: retriable errors and refusals; producer and reader of the client and the gateway."""

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from recallflow.credentials import Headers
from recallflow.errors import DeliveryFailed, InvalidRecord, RegistryUnavailable, SourceError, UsageError
from recallflow.kafka_options import KafkaOptions, log_outage, log_registry_outage
from recallflow.limits import RECORD_BYTES
from recallflow.queries import ReplyTo
from recallflow.records import Position
from recallflow.schema_registry import RETRY_S as REGISTRY_RETRY_S

_log = logging.getLogger(__name__)
_REFUSALS = {
    KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}  # fmt: skip
# Errors of an unavailable, starting or busy broker: retriable errors of Kafka's protocol, and librdkafka's own errors.
# Unknown topics are excluded. `KafkaError.retriable` concerns transactions, and is false for all of these.
_RETRIABLE = {
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,  # no connection for the request, for example after this process was suspended
    KafkaError._RETRY, KafkaError._OUTDATED, KafkaError._WAIT_CACHE, KafkaError._WAIT_COORD,
    KafkaError._DESTROY,  # the connection is being replaced by another one to the same broker
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR, KafkaError.NOT_CONTROLLER, KafkaError.LISTENER_NOT_FOUND,
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.FETCH_SESSION_ID_NOT_FOUND,
    KafkaError.INVALID_FETCH_SESSION_EPOCH, KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}  # fmt: skip
POLL_S = 0.05  # poll interval; an expired deadline is noticed at most this late
METADATA_S = 1.0  # time limit of a metadata request
RETRY_S = 0.2
METADATA_INTERVAL_S = 2.0  # interval of the checks for added partitions and for a reachable Kafka
RECORD_OVERHEAD_BYTES = 4_096  # of a record's key, headers and batch, in addition to the value
DeliveryCallback = Callable[[Position | DeliveryFailed], None]


def is_retriable(error: KafkaError) -> bool:
    """Return whether a retry may succeed."""
    return error.code() in _RETRIABLE or is_login_outage(error)


# Login failures that a retry may solve: the token endpoint or the broker is unavailable, the last login was moments
# ago, or the token has expired. Brokers answer an expired token like any unacceptable one, so both are retried; at a
# start, retries end soon. A request that fails because of the login contains no reason: `error_cb` receives the reason.
_LOGIN_OUTAGES = re.compile(
    "^Failed to acquire SASL OAUTHBEARER token|failed: (Local: |Broker: Request not valid)"
    '|"status":"invalid_token"|Local: Authentication failure$'
)
# Error codes of a token endpoint that refuses the credentials (RFC 6749, section 5.2).
_TOKEN_REFUSALS = re.compile("invalid_(client|grant|scope|request)|unauthorized_client|unsupported_|access_denied")
# A broker refuses our certificate after the handshake, so that librdkafka reports a broken connection.
_CERTIFICATE_REFUSALS = re.compile("alert (certificate|bad certificate|unknown ca)")


def is_refusal(error: KafkaError) -> bool:
    """Return whether the broker refuses our credentials or rights: a retry cannot succeed."""
    refused = error.code() in _REFUSALS and not is_login_outage(error)
    return refused or _CERTIFICATE_REFUSALS.search(error.str()) is not None


def is_login_outage(error: KafkaError) -> bool:
    """Return whether a login failed for another reason than its credentials."""
    is_login = error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
    return is_login and bool(_LOGIN_OUTAGES.search(error.str())) and not _TOKEN_REFUSALS.search(error.str())


_REMEDIES = tuple((re.compile(pattern), remedy) for pattern, remedy in (
    ("invalid_client|unauthorized_client", "correct sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"),
    ("invalid_scope", "correct sasl.oauthbearer.scope"),
    ('"status":"invalid_token"', "compare issuer, audience and scope of the token with the broker's, and the clocks"),
    ("OAUTHBEARER token", "correct sasl.oauthbearer.token.endpoint.url, or start the token endpoint"),
    ("Unsupported SASL mechanism", "set sasl.mechanism to a mechanism of the broker"),
    ("invalid credentials|Authentication failed", "correct sasl.username and sasl.password"),
    ("alert ", "the broker refuses the certificate: renew it (ssl.certificate.location) at an authority it knows"),
    ("certificate verify failed", "set ssl.ca.location to the authority of the brokers"),
    ("PLAINTEXT broker listener", "the port has no TLS: give another, or security.protocol without SSL"),
    ("uthorization failed", "grant the user this right"),
))  # fmt: skip


def remedy_of(reason: str, other: str = "check the security settings") -> str:
    """Return the remedy for a failed login or connection, `other` for an unknown reason."""
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(reason)), other)


class ClientErrors:
    """Error callback (`error_cb`) of a client. Refusals and fatal errors are raised by `check`, all others retried."""

    def __init__(self) -> None:
        self.refused: SourceError | None = None
        self.last_reason = ""  # of the last error, in parentheses, to append to a message

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last_reason = f" ({error.str()})"
        if is_refusal(error) or error.fatal():
            self.refused = SourceError(f"Kafka refuses us: {error.str()}; {remedy_of(error.str())}")
        elif self.refused is None:
            log_outage(error)

    def check(self) -> None:
        """Raise SourceError after a refusal or a fatal error."""
        if self.refused is not None:
            raise self.refused


class Inbox(NamedTuple):
    """Topic to read: all partitions. With `single`, only `partition`, or a random one if `partition` is None."""

    topic: str
    single: bool = False
    partition: int | None = None


def reason_of(error: Exception) -> str:
    return str(error.args[0].str() if isinstance(error, KafkaException) else error)


class ProducerAndReader:
    """A producer, and a consumer that reads topics from their current end, each with a thread. Thread-safe.

    Partitions that are added later are read from their beginning. `ready` is done once the first partitions are
    assigned: an answer to an earlier query could be missed. `metadata_error` is that of the last request, or None."""

    def __init__(
        self,
        kafka: KafkaOptions,
        inboxes: Sequence[Inbox],
        delivery_timeout_s: float,
        receive: Callable[[Any], None],
        fail: Callable[[Exception], None],
        fail_due: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """Start without waiting for Kafka. Raise UsageError for invalid options of librdkafka.

        Args:
            inboxes: topics to read; the first receives the answers.
            receive: called with each message, on the reader's thread.
            fail: called with an error that fails all open requests, on the reader's thread or by `close`.
            fail_due: called repeatedly with the last error of Kafka, for overdue requests."""
        self._servers, self._inboxes = kafka.bootstrap_servers, inboxes
        self._receive, self._fail, self._fail_due = receive, fail, fail_due
        self._registry = kafka.registry
        self.ready: Future[None] = Future()
        self.metadata_error: str | None = None
        self._read_error: str | None = None  # None after a received record or a successful assignment
        self._send_error: str | None = None  # None after an acknowledged record
        self._chosen: dict[str, int] = {}  # topic → chosen partition, for inboxes with `single`
        self._assigned: set[tuple[str, int]] = set()
        self._sending = threading.Lock()
        self._stopping, self._flushed = threading.Event(), threading.Event()  # responses are read until all is sent
        producer_options = {
            # Bound the delivery time: librdkafka's default is five minutes.
            "delivery.timeout.ms": round(delivery_timeout_s * 1000), "error_cb": self._on_send_error,
            # The engine and the topic limit the size; both limits are above librdkafka's default.
            "message.max.bytes": RECORD_BYTES + RECORD_OVERHEAD_BYTES,
        }  # fmt: skip
        # Our topics have no transactions; an open transaction of another producer must not delay reading.
        consumer_options = {"isolation.level": "read_uncommitted", "error_cb": self._on_read_error}
        try:
            self._producer = Producer(producer_options | kafka.producer())
            self._consumer = Consumer(kafka.consumer() | consumer_options)
        except KafkaException as error:
            raise UsageError(f"Kafka options: {reason_of(error)}") from error
        works = (self._read, "recallflow-responses"), (self._deliver, "recallflow-deliveries")
        self._reader, self._deliverer = (threading.Thread(target=run, daemon=True, name=name) for run, name in works)
        self._reader.start()
        self._deliverer.start()

    @property
    def last_error(self) -> str | None:
        """Return the last error of Kafka, if nothing has succeeded since."""
        return self._read_error or self._send_error

    @property
    def reply_to(self) -> ReplyTo | None:
        """Return the reply address of queries; None for the response topic. Call it once `ready` is done."""
        topic, single, _ = self._inboxes[0]
        return ReplyTo(topic=topic, partition=self._chosen[topic]) if single else None

    def _read(self) -> None:
        while not self._flushed.is_set() and not self._assign():
            self._flushed.wait(RETRY_S)
        if not self._flushed.is_set():
            self.ready.set_result(None)
        check_s = time.monotonic() + METADATA_INTERVAL_S
        while not self._flushed.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None:
                self._take(message)
            if time.monotonic() >= check_s:
                self._assign_added_partitions()
                check_s = time.monotonic() + METADATA_INTERVAL_S

    def _assign(self) -> bool:
        """Read every partition from its end. If Kafka does not answer, return False and set `_read_error`."""
        try:
            partitions = [TopicPartition(*partition) for partition in self._wanted()]
            for partition in partitions:
                partition.offset = self._consumer.get_watermark_offsets(partition, timeout=METADATA_S)[1]
            self._consumer.assign(partitions)
        except (KafkaException, SourceError) as error:
            self._read_error = reason_of(error)
        else:
            self._assigned = {(partition.topic, partition.partition) for partition in partitions}
            self._read_error = None
        return self._read_error is None

    def _wanted(self) -> list[tuple[str, int]]:
        """Return every partition to read. Raise KafkaException, and SourceError for a missing topic or partition."""
        partitions: list[tuple[str, int]] = []
        for inbox in self._inboxes:
            topic = self._consumer.list_topics(inbox.topic, timeout=METADATA_S).topics[inbox.topic]
            if topic.error is not None:
                raise SourceError(f"{inbox.topic}: {topic.error.str()}")
            numbers = sorted(topic.partitions)
            chosen = [self._choose(inbox, numbers)] if inbox.single else numbers
            partitions += [(inbox.topic, number) for number in chosen]
        return partitions

    def _choose(self, inbox: Inbox, numbers: Sequence[int]) -> int:
        """Return the partition of an inbox for one partition: the same in every call."""
        first = random.choice(numbers) if inbox.partition is None else inbox.partition  # noqa: S311  not a secret
        chosen = self._chosen.setdefault(inbox.topic, first)
        if chosen not in numbers:
            raise SourceError(f"{inbox.topic} has {len(numbers)} partitions; partition {chosen} does not exist")
        return chosen

    def _assign_added_partitions(self) -> None:
        """Add partitions that were created since the last check, and read them from their beginning."""
        try:
            added = sorted({*self._wanted()} - self._assigned)
            self._consumer.incremental_assign([TopicPartition(*part, OFFSET_BEGINNING) for part in added])
        except (KafkaException, SourceError) as error:  # retried at the next check; `_on_read_error` logs the error
            self.metadata_error = reason_of(error)
        else:
            self._assigned.update(added)
            self.metadata_error = None

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self._read_error = None
            if self._decode(message):
                self._receive(message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention deleted unread records. Their queries time out.
            _log.warning("%s: records were removed before they were read: %s", message.topic(), error.str())
            self._assign()
        else:
            self._on_read_error(error)
            if not is_retriable(error):
                topics = message.topic() or ", ".join(inbox.topic for inbox in self._inboxes)
                self._fail(SourceError(f"cannot read {topics}: {error.str()}"))

    def _decode(self, message: Any) -> bool:
        """Decode a record of the schema registry; wait while it is unavailable. Return False if it refuses us."""
        while self._registry is not None and not self._flushed.is_set():
            try:
                self._registry.open(message)
            except RegistryUnavailable as error:
                self._read_error = str(error)
                log_registry_outage(error)
                self._flushed.wait(REGISTRY_RETRY_S)
            except SourceError as error:
                self._fail(error)
                return False
            else:
                break
        return True

    def _on_read_error(self, error: KafkaError) -> None:
        self._read_error = error.str()
        log_outage(error)

    @contextmanager
    def delay_close(self) -> Iterator[None]:
        """Delay close() until the block ends. Raise UsageError after close()."""
        with self._sending:
            if self._stopping.is_set():
                raise UsageError("the client is closed")
            yield

    def send(self, topic: str, value: bytes, key: bytes, headers: Headers, callback: DeliveryCallback) -> None:
        """Send a record. `callback` is called once with the record's position or an error, perhaps before `send`
        returns. Raise InvalidRecord for a record that is too large, and UsageError after close()."""

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                callback(self._delivery_failure(topic, error))
            elif message.offset() < 0:  # Kafka has the record already, and refused this duplicate
                callback(DeliveryFailed(f"{topic}: stored as a duplicate; the original position is unknown"))
            else:
                self._send_error = None
                callback(Position(topic, message.partition(), message.offset()))

        if len(value) > RECORD_BYTES:
            raise InvalidRecord.of("too_large", f"over {RECORD_BYTES} bytes; split it, or store a reference")
        try:
            with self.delay_close():
                self._producer.produce(topic, value, key, on_delivery=on_delivery, headers=[*headers])
        except BufferError:
            callback(DeliveryFailed(f"{topic}: not sent, because the queue is full; await earlier records and retry"))
        except KafkaException as error:
            callback(self._delivery_failure(topic, error.args[0]))

    def _delivery_failure(self, topic: str, error: KafkaError) -> DeliveryFailed:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return DeliveryFailed(f"{topic} refuses a record of this size: split it, or raise its max.message.bytes")
        last_error = f" ({self._send_error})" if self._send_error else ""
        remedy = remedy_of(
            last_error, "check that Kafka is reachable, and that the topic exists (recallflow topics create)"
        )
        return DeliveryFailed(f"{topic} at {self._servers}: {error.str()}{last_error}; {remedy}")

    def _deliver(self) -> None:
        """Serve delivery reports, and report overdue requests."""
        while not self._stopping.is_set():
            self._producer.poll(POLL_S)
            self._fail_due(self.last_error)

    def _on_send_error(self, error: KafkaError) -> None:
        self._send_error = error.str()
        log_outage(error)

    def close(self) -> None:
        """Wait for sent records, about the delivery timeout at most, and fail requests. A second call has no effect."""
        with self._sending:
            if self._stopping.is_set():
                return
            self._stopping.set()
        self._deliverer.join()
        self._producer.flush()  # terminates, because every record has a delivery timeout
        del self._producer  # ends librdkafka's threads now: a reference cycle through the callbacks would delay this
        self._flushed.set()
        self._reader.join()
        self._consumer.close()
        if self._registry is not None:
            self._registry.close()
        self._fail(UsageError("the client was closed before a response came"))
