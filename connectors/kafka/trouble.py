"""Kafka's errors: which pass by themselves, and which mean that it refuses us."""

import logging
import time

from confluent_kafka import KafkaError

from recallflow.errors import SourceError

OUTAGE_LOG_S = 10.0

_log = logging.getLogger(__name__)
_DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
# What a broker that is away, starting or handing over says. librdkafka's own mark (`KafkaError.retriable`) is about
# transactions: it is on none of these.
_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._DESTROY,  # the connection that was asked is being replaced by another to the same broker
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
}


def passes(error: KafkaError) -> bool:
    """Whether it is worth trying again."""
    return error.code() in _PASSING


def denies(error: KafkaError) -> bool:
    """Whether it is about who we are: trying again does not help."""
    return error.code() in _DENIED


class Complaints:
    """What a client of librdkafka's has to say by itself (its `error_cb`). It goes on trying whatever happens; of what
    is about who we are, an error is kept."""

    def __init__(self) -> None:
        self.refused: SourceError | None = None
        self._logged_s: float | None = None

    def __call__(self, error: KafkaError) -> None:
        now_s = time.monotonic()
        if denies(error) or error.fatal():
            self.refused = SourceError(f"Kafka refuses us: {error.str()}; check the security settings")
        elif self._logged_s is None or now_s - self._logged_s > OUTAGE_LOG_S:
            self._logged_s = now_s
            _log.warning("Kafka: %s; retrying", error.str())

    def check(self) -> None:
        """Raises SourceError once Kafka has refused us."""
        if self.refused is not None:
            raise self.refused
