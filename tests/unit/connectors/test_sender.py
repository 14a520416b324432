"""The publisher over a fake client, and the progress that it reports."""

from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from recallflow.connectors.kafka import sender
from recallflow.connectors.kafka.admin import TopicConfig
from recallflow.connectors.kafka.messages import TRIMMINGS_BYTES
from recallflow.connectors.kafka.sender import Publisher
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import SinkError
from recallflow.kafka_options import KafkaOptions
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.connectors.fake_kafka import FakeProducer

TOPIC = "memory.events"
MOST_BYTES = 20_000


class Reached:
    """The reported progress of a publisher, and its producer."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.producer = FakeProducer()

    def connect(self, options: dict[str, Any]) -> FakeProducer:
        self.producer.options = options
        return self.producer


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Reached:
    made = Reached()
    monkeypatch.setattr(sender, "Producer", made.connect)
    kafka = FakeKafka(**{TOPIC: 1})
    monkeypatch.setattr(sender, "TopicReader", partial(TopicReader, new_consumer=kafka.consumer))
    monkeypatch.setattr(sender, "ask_configs", lambda _, topics: {topic: TopicConfig(MOST_BYTES) for topic in topics})
    return made


@pytest.fixture
def publisher(reached: Reached) -> Publisher:
    return Publisher(KafkaOptions("nowhere:1"), TOPIC, reached.told.append)


def test_progress_waits_for_the_first_record_that_is_open(publisher: Publisher, reached: Reached) -> None:
    for number in range(4):
        publisher.send(b"acme/ann", b"event %d" % number)
    reached.producer.acknowledge(2)  # another partition was quicker
    reached.producer.acknowledge(1)
    assert reached.told == []
    reached.producer.acknowledge(0)
    assert reached.told == [3]
    publisher.flush()
    assert reached.told == [3, 4]


def test_skipped_record_counts_as_progress(publisher: Publisher, reached: Reached) -> None:
    publisher.send(b"acme/ann", b"event 0")
    publisher.pass_over()
    publisher.send(b"acme/ann", b"event 2")
    assert reached.told == []
    reached.producer.acknowledge()
    assert reached.told == [2]
    publisher.pass_over()
    publisher.flush()
    assert reached.told == [2, 4]


def test_a_failed_delivery_is_an_error_and_no_progress(publisher: Publisher, reached: Reached) -> None:
    reached.producer.fails[b"event 1"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    for number in range(3):
        publisher.send(b"acme/ann", b"event %d" % number)
    with pytest.raises(SinkError, match="run the same command again"):
        publisher.flush()
    assert reached.told == [1]
    with pytest.raises(SinkError, match="was not delivered"):
        publisher.send(b"acme/ann", b"event 3")


def test_unacknowledged_records_fail_the_flush(
    publisher: Publisher, reached: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "FLUSH_S", 0.0)
    reached.producer.stuck = True
    publisher.send(b"acme/ann", b"event 0")
    with pytest.raises(SinkError, match="1 records"):
        publisher.flush()
    assert reached.told == []


def test_sender_knows_the_record_limit_of_the_topic(publisher: Publisher, reached: Reached) -> None:
    largest = MOST_BYTES - TRIMMINGS_BYTES - len(b"acme/ann")
    assert publisher.fits(b"acme/ann", b"x" * largest)
    assert not publisher.fits(b"acme/ann", b"x" * (largest + 1))
    assert reached.producer.options["message.max.bytes"] == MOST_BYTES
    assert reached.producer.options["batch.size"] == MOST_BYTES
