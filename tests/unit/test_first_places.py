"""Outputs sent earlier by another state directory, as a new one finds them."""

import pytest

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.topic_reader import TAIL, TopicReader
from recallflow.flows import first_places
from recallflow.flows.first_places import DeliveredOffsets, sent_before, since_first_record
from tests.unit.connectors.fake_consumer import FakeKafka

RECEIPTS, LETTERS, REQUESTS = "receipts:0", "letters:0", "requests:0"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Ten memories in each of two partitions, appended at 100 ms and later."""
    monkeypatch.setattr(first_places, "COMPARED", 3)
    made = FakeKafka(memories=2, receipts=1, letters=1, requests=1)
    for number in range(20):
        made.append("memories", number % 2, b"{}", append_ms=100 + number)
    return made


def found(kafka: FakeKafka, *, enriches: bool = False) -> DeliveredOffsets:
    outputs = ("receipts", "letters", *(["requests"] if enriches else []))
    return sent_before(KafkaOptions("nowhere:1"), "memories", outputs, kafka.consumer)


def test_empty_topics_have_no_sent_outputs(kafka: FakeKafka) -> None:
    assert found(kafka) == DeliveredOffsets({}, {})


def test_last_outputs_alone_are_compared(kafka: FakeKafka) -> None:
    for offset in range(8):
        kafka.append_output("receipts", 0, f"memories:0:{offset}")
    kafka.append_output("letters", 0, "memories:1:0")
    kafka.append_output("letters", 0, "memories:0:9")
    # Of 0:7, 0:8 and 0:9 each is compared, and of partition 1 all that there is.
    assert found(kafka) == DeliveredOffsets({"memories:0": 7, "memories:1": 0}, {RECEIPTS: 7, LETTERS: 0})


@pytest.mark.parametrize(
    ("source", "at_ms"),
    [
        ("memories:0:3", 99),  # sent before the first record was there: of a topic that was deleted
        ("memories:0:10", 500),  # of a record that is not there
        ("memories:7:0", 500),
        ("queries:0:3", 500),
        ("nonsense", 500),
        ("memories:\u0663:1:x", 500),
    ],
)
def test_outputs_of_other_records_say_nothing(kafka: FakeKafka, source: str, at_ms: int) -> None:
    kafka.append_output("receipts", 0, source, at_ms)
    kafka.append("receipts", 0, b"somebody else's", append_ms=500)
    assert found(kafka) == DeliveredOffsets({}, {})


def test_requests_count_where_there_are_any(kafka: FakeKafka) -> None:
    for offset in range(5):
        kafka.append_output("requests", 0, f"memories:0:{offset}")
    assert found(kafka) == DeliveredOffsets({}, {})
    assert found(kafka, enriches=True) == DeliveredOffsets({"memories:0": 2}, {REQUESTS: 2})


def test_tails_begin_with_the_first_record_of_added_partitions(kafka: FakeKafka) -> None:
    """Its records may have been rerouted since, by a member whose offsets Kafka has lost."""
    tails = {"memories": {0: 10}, "receipts": {0: 2}}
    kafka.append_output("receipts", 0, "memories:0:0", 100)
    kafka.append_output("receipts", 0, "memories:0:2", 104)
    with TopicReader(KafkaOptions("nowhere:1"), TAIL, new_consumer=kafka.consumer) as reader:
        assert since_first_record(reader, tails, []) == tails
        assert since_first_record(reader, tails, [("memories", 1)]) == {"memories": {0: 1}, "receipts": {0: 1}}
