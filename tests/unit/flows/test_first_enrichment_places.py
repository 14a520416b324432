"""Requests that a new deployment of the enrichment flow finds answered."""

import pytest

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.place import LogProgress
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.flows import first_places
from recallflow.flows.first_places import answered_requests
from recallflow.flows.settings import TopicNames
from tests.unit.connectors.fake_consumer import FakeKafka

TOPICS = TopicNames(enrichment="requests", results="results", dead_letters="letters")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka(requests=2, results=2, letters=1)
    monkeypatch.setattr(first_places, "TopicReader", lambda *chosen: TopicReader(*chosen, new_consumer=made.consumer))
    for number in range(20):
        made.append("requests", number % 2, b"{}", append_ms=100 + number)
    return made


def found() -> dict[int, LogProgress]:
    return answered_requests(KafkaOptions("nowhere:1"), TOPICS)


@pytest.mark.usefixtures("kafka")
def test_requests_without_results_are_read_from_the_first() -> None:
    assert found() == {0: LogProgress(0), 1: LogProgress(0)}


def test_requests_with_a_result_or_a_dead_letter_are_answered(kafka: FakeKafka) -> None:
    for offset in (0, 1, 2, 9):
        kafka.append_output("results", offset % 2, f"requests:0:{offset}")
    kafka.append_output("letters", 0, "requests:1:4")
    kafka.append_output("letters", 0, "memories:1:5")
    kafka.append_output("results", 0, "nonsense")
    kafka.append_output("results", 0, "requests:7:1")
    assert found() == {0: LogProgress(10, open=(3, 4, 5, 6, 7, 8)), 1: LogProgress(5, open=(0, 1, 2, 3))}


def test_requests_older_than_the_first_result_left_count_as_answered(kafka: FakeKafka) -> None:
    kafka.topics["results"][0].low = 5
    kafka.append("results", 0, b"{}", at=5, append_ms=110)
    # Those of 100 to 109 ms: five in each partition.
    assert found() == {0: LogProgress(5), 1: LogProgress(5)}


def test_topics_without_requests_have_nothing_answered(kafka: FakeKafka) -> None:
    for log in kafka.topics["requests"]:
        log.low = log.end
    kafka.append_output("results", 0, "requests:0:1")
    assert found() == {}
