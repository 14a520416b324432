"""Kafka's errors: which pass by themselves, and which mean that it refuses us."""

import logging
import threading

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from recallflow import kafka_clients
from recallflow.errors import SourceError
from recallflow.kafka_clients import LOG_PAUSE_S, ClientLog, Complaints, Seldom, denies, passes
from recallflow.kafka_options import KafkaOptions
from tests.unit.connectors.clock import Clock


@pytest.mark.parametrize(
    ("code", "passing", "denied"),
    [
        (KafkaError._TRANSPORT, True, False), (KafkaError._DESTROY, True, False),
        (KafkaError._ALL_BROKERS_DOWN, True, False), (KafkaError.NOT_LEADER_FOR_PARTITION, True, False),
        (KafkaError._AUTHENTICATION, False, True), (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False, False), (KafkaError._AUTO_OFFSET_RESET, False, False),
    ],
)  # fmt: skip
def test_an_error_passes_or_denies_or_is_for_good(code: int, passing: bool, denied: bool) -> None:
    error = KafkaError(code)
    assert (passes(error), denies(error)) == (passing, denied)


# https://kafka.apache.org/protocol: the error codes that are retriable there. Not among them here: broken records (2),
# and topics that are unknown (3, 100, 103, 106), of which each caller says more.
RETRIABLE = (5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 88, 89)
NOBODY_ANSWERED = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_WAIT_COORD",
                   "_WAIT_CACHE", "_DESTROY", "_RETRY", "_OUTDATED")  # fmt: skip


@pytest.mark.parametrize("code", [*RETRIABLE, *(getattr(KafkaError, name) for name in NOBODY_ANSWERED)])
def test_retriable_errors_are_retried(code: int) -> None:
    assert passes(KafkaError(code))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(kafka_clients, "_seldom", Seldom(clock))
    return clock


def test_long_outage_is_logged_seldom(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clients = [Complaints() for _ in range(4)]
    for _ in range(3_600):
        for complaints in clients:
            complaints(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            complaints.check()
        clock.now_s += 1
    said = [record.getMessage() for record in caplog.records]
    assert set(said) == {"Kafka: 1/1 brokers are down; retrying"}
    assert len(said) == 11  # at 0, 10, 30, 70, 150, 310, 630 and 1270 s, and every 640 s from then on


def test_new_outage_is_reported_at_once(clock: Clock) -> None:
    seldom = Seldom(clock)
    assert [seldom.allows("outage"), seldom.allows("outage"), seldom.allows("other")] == [True, False, True]
    clock.now_s += LOG_PAUSE_S + 1
    assert seldom.allows("outage")


@pytest.mark.usefixtures("clock")
def test_line_of_the_library_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = ClientLog()
    for _ in range(50):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#1", "Connection refused")
        log.log(logging.WARNING, "%s [%s] %s", "REQTMOUT", "rdkafka#1", "Timed out 1 in-flight requests")
    assert [record.getMessage() for record in caplog.records] == ["REQTMOUT [rdkafka#1] Timed out 1 in-flight requests"]


def test_clients_of_the_library_write_nothing_themselves(capfd: pytest.CaptureFixture[str]) -> None:
    options = KafkaOptions("127.0.0.1:1")
    told = threading.Event()

    def complain(_: KafkaError) -> None:
        told.set()

    consumer = Consumer(options.consumer() | {"error_cb": complain})
    producer = Producer(options.producer() | {"error_cb": complain})
    while not told.is_set():
        consumer.poll(0.05)
        producer.poll(0.05)
    told.clear()
    while not told.is_set():
        producer.poll(0.05)
        consumer.poll(0.05)
    consumer.close()
    assert capfd.readouterr() == ("", "")


def test_a_refusal_is_kept() -> None:
    complaints = Complaints()
    complaints(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    complaints(KafkaError(KafkaError._TRANSPORT, "disconnected"))
    with pytest.raises(SourceError, match="Kafka refuses us: wrong password; check the security settings"):
        complaints.check()
