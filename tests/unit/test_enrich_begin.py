"""What a new state directory of the enrichment flow finds done already."""

import pytest

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.outgoing import Outgoing
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.flows import enrich_begin
from recallflow.flows.enrich_begin import answered_requests, is_answered
from recallflow.flows.topics import Topics
from recallflow.records import Position
from tests.unit.connectors.fake_consumer import FakeKafka

TOPICS = Topics(enrichment="requests", results="results", dead_letters="letters")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Ten requests in each of two partitions, appended at 100 ms and later."""
    made = FakeKafka(requests=2, results=2, letters=1)
    monkeypatch.setattr(enrich_begin, "TopicReader", lambda *chosen: TopicReader(*chosen, new_consumer=made.consumer))
    for number in range(20):
        made.append("requests", number % 2, b"{}", append_ms=100 + number)
    return made


def put(kafka: FakeKafka, topic: str, partition: int, source: str, at_ms: int = 500) -> None:
    headers = Outgoing(source, 0, None, None).all_headers
    headed = tuple((name, value or b"") for name, value in headers)
    kafka.append(topic, partition, b"{}", append_ms=at_ms, headed=headed)


def found() -> dict[str, list[list[int]]]:
    return answered_requests(KafkaOptions("nowhere:1"), TOPICS)


@pytest.mark.usefixtures("kafka")
def test_where_there_is_no_result_nothing_is_answered() -> None:
    assert found() == {}


def test_requests_with_a_result_or_a_dead_letter_are_answered(kafka: FakeKafka) -> None:
    for offset in (0, 1, 2, 9):
        put(kafka, "results", offset % 2, f"requests:0:{offset}")
    put(kafka, "letters", 0, "requests:1:4")
    put(kafka, "letters", 0, "memories:1:5")
    put(kafka, "results", 0, "nonsense")
    put(kafka, "results", 0, "requests:7:1")
    answered = found()
    assert answered == {"requests:0": [[0, 3], [9, 10]], "requests:1": [[4, 5]]}
    assert [is_answered(answered, Position("requests", 0, offset)) for offset in (2, 3, 9)] == [True, False, True]
    assert not is_answered(answered, Position("requests", 2, 0))


def test_requests_older_than_what_is_left_of_the_results_count_as_answered(kafka: FakeKafka) -> None:
    kafka.topics["results"][0].low = 5
    kafka.append("results", 0, b"{}", at=5, append_ms=110)
    # Those of 100 to 109 ms: five in each partition.
    assert found() == {"requests:0": [[0, 5]], "requests:1": [[0, 5]]}


def test_where_no_requests_are_left_nothing_is_answered(kafka: FakeKafka) -> None:
    for log in kafka.topics["requests"]:
        log.low = log.end
    put(kafka, "results", 0, "requests:0:1")
    assert found() == {}
