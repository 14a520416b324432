"""Kafka's errors: which pass by themselves, and which mean that it refuses us."""

import logging

import pytest
from confluent_kafka import KafkaError

from recallflow.connectors.kafka.trouble import Complaints, denies, passes
from recallflow.errors import SourceError


@pytest.mark.parametrize(
    ("code", "passing", "denied"),
    [
        (KafkaError._TRANSPORT, True, False),
        (KafkaError._DESTROY, True, False),
        (KafkaError._ALL_BROKERS_DOWN, True, False),
        (KafkaError.NOT_LEADER_FOR_PARTITION, True, False),
        (KafkaError._AUTHENTICATION, False, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False, False),
        (KafkaError._AUTO_OFFSET_RESET, False, False),
    ],
)
def test_an_error_passes_or_denies_or_is_for_good(code: int, passing: bool, denied: bool) -> None:
    error = KafkaError(code)
    assert (passes(error), denies(error)) == (passing, denied)


def test_an_outage_is_told_now_and_then_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    complaints = Complaints()
    for _ in range(3):
        complaints(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    complaints.check()
    assert [record.getMessage() for record in caplog.records] == ["Kafka: 1/1 brokers are down; retrying"]


def test_a_refusal_is_kept() -> None:
    complaints = Complaints()
    complaints(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    complaints(KafkaError(KafkaError._TRANSPORT, "disconnected"))
    with pytest.raises(SourceError, match="Kafka refuses us: wrong password; check the security settings"):
        complaints.check()
