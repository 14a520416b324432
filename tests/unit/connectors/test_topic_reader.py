"""Reading a partition to its end, over a Kafka in this process."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from recallflow import process
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import SourceError
from recallflow.kafka_options import KafkaOptions
from tests.unit.connectors.fake_consumer import FakeKafka


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka(letters=2)


@pytest.fixture
def reader(kafka: FakeKafka) -> Iterator[TopicReader]:
    with TopicReader(KafkaOptions("nowhere:1"), new_consumer=kafka.consumer) as made:
        yield made


def test_reported_end_ends_the_partition(kafka: FakeKafka, reader: TopicReader) -> None:
    for value, at in ((b"a", 3), (b"b", 9)):
        kafka.append("letters", 1, value, at=at)
    kafka.topics["letters"][1].end = 12  # a marker of a transaction stands behind the last record
    assert [message.value() for message in reader.read_to_end("letters", 1, 0)] == [b"a", b"b"]
    assert reader.ends == {1: 12}
    assert [message.value() for message in reader.read_to_end("letters", 1, 4)] == [b"b"]


def test_first_read_looks_its_topic_up(kafka: FakeKafka, reader: TopicReader) -> None:
    for _ in range(2):
        assert [*reader.read_to_end("letters", 0, 0)] == []
    reader.add("letters", 1, 0)
    assert kafka.consumers[0].looked_up == ["letters"]


def test_an_error_that_passes_is_read_over(kafka: FakeKafka, reader: TopicReader) -> None:
    kafka.fail("letters", 0, KafkaError._TRANSPORT)
    kafka.append("letters", 0, b"after")
    assert [message.value() for message in reader.read_to_end("letters", 0, 0)] == [b"after"]


def test_an_error_for_good_names_the_partition(kafka: FakeKafka, reader: TopicReader) -> None:
    kafka.fail("letters", 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(SourceError, match="letters:0: cannot be read"):
        next(reader.read_to_end("letters", 0, 0))


def test_silent_brokers_end_a_stopped_reader(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.0)
    stopping = threading.Event()
    stopping.set()
    reader = TopicReader(KafkaOptions("nowhere:1"), new_consumer=kafka.consumer, stopping=stopping)
    kafka.append("letters", 0, b"a")
    kafka.consumers[0].options = {}  # it reports no end
    records = reader.read_to_end("letters", 0, 0)
    assert next(records).value() == b"a"
    with pytest.raises(SourceError, match="letters:0: could not be read to its end within 0 s"):
        next(records)
