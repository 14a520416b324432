"""Kafka errors: retriable errors, refusals, and their logging."""

import logging
import time
from collections.abc import Callable

from confluent_kafka import KafkaError

from recallflow.errors import SourceError

LOG_PAUSE_S = 10.0  # minimum time between two log lines about one problem; it doubles while the problem lasts
LOG_PAUSE_MAX_S = 640.0

_log = logging.getLogger(__name__)
_DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
# Errors of an unavailable, starting or busy broker: retriable errors of Kafka's protocol, and librdkafka's own errors.
# Unknown topics are excluded. `KafkaError.retriable` concerns transactions, and is false for all of these.
_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,  # no connection for the request, as after a pause of this process
    KafkaError._RETRY,
    KafkaError._OUTDATED,
    KafkaError._WAIT_CACHE,
    KafkaError._DESTROY,  # the connection is being replaced by another one to the same broker
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.LISTENER_NOT_FOUND,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.FETCH_SESSION_ID_NOT_FOUND,
    KafkaError.INVALID_FETCH_SESSION_EPOCH,
    KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


def passes(error: KafkaError) -> bool:
    """Return whether a retry may succeed."""
    return error.code() in _PASSING


def denies(error: KafkaError) -> bool:
    """Return whether the brokers refuse our identity or rights: a retry does not help."""
    return error.code() in _DENIED


class Seldom:
    """Rate limit of log lines about one error: at once, then with doubling pauses, and anew after a quiet time.
    Every client of a process reports unavailable brokers several times a second. Thread-safe enough: a race costs a
    line."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._pauses: dict[str, tuple[float, float, float]] = {}  # kind → last seen, next line due, pause after it

    def allows(self, kind: str) -> bool:
        now_s = self._clock_s()
        seen_s, due_s, pause_s = self._pauses.get(kind, (now_s, now_s, LOG_PAUSE_S))
        if now_s - seen_s > LOG_PAUSE_S:
            due_s, pause_s = now_s, LOG_PAUSE_S
        allowed = now_s >= due_s
        if allowed:
            due_s, pause_s = now_s + pause_s, min(2 * pause_s, LOG_PAUSE_MAX_S)
        self._pauses[kind] = now_s, due_s, pause_s
        return allowed


_seldom = Seldom()


def log_outage(error: KafkaError) -> None:
    """Log an error of a client, once for all clients of the process."""
    if _seldom.allows("outage"):
        _log.warning("Kafka: %s; retrying", error.str())


# A failed connection is also reported as an error to the client's owner. Warnings about producer options in a consumer
# are useless where one set of options serves both.
_REPORTED_ELSEWHERE = frozenset({"FAIL", "ERROR", "FATAL", "CONFWARN"})


class ClientLog:
    """Logger of librdkafka's own lines, which would go to standard error (its option `logger`)."""

    def log(self, level: int, text: str, facility: str, client: str, message: str) -> None:
        if facility not in _REPORTED_ELSEWHERE and _seldom.allows(f"librdkafka {facility}"):
            _log.log(level, text, facility, client, message)


class Complaints:
    """Errors that a client of librdkafka reports itself (its `error_cb`). The client retries all of them; a refusal
    of our identity is kept, and `check` raises it."""

    def __init__(self) -> None:
        self.refused: SourceError | None = None

    def __call__(self, error: KafkaError) -> None:
        if denies(error) or error.fatal():
            self.refused = SourceError(f"Kafka refuses us: {error.str()}; check the security settings")
        else:
            log_outage(error)

    def check(self) -> None:
        """Raise SourceError if Kafka has refused us."""
        if self.refused is not None:
            raise self.refused
