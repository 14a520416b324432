"""What stands at the ends of output topics, over a Kafka in this process."""

import threading
from functools import partial

import pytest

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka import tails
from recallflow.connectors.kafka.place import Tails
from recallflow.connectors.kafka.tails import SKEW_MS, Ends, earliest, read_tails
from recallflow.connectors.kafka.topic_reader import TopicReader
from tests.unit.connectors.fake_consumer import FakeKafka

NOWHERE = KafkaOptions("127.0.0.1:1", {"log_level": "0"})


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka(responses=2, receipts=1)
    monkeypatch.setattr(tails, "TopicReader", partial(TopicReader, new_consumer=made.consumer))
    return made


def seen(begin: Tails, end: Tails) -> list[str]:
    found: list[str] = []
    read_tails(NOWHERE, begin, end, threading.Event(), lambda one: found.append(f"{one.topic()}:{one.offset()}"))
    return sorted(found)


def fill(kafka: FakeKafka, topic: str, count: int, partition: int = 0, begin_ms: int = 0) -> None:
    for number in range(count):
        kafka.append(topic, partition, b"{}", append_ms=begin_ms + number)


def test_what_stands_behind_a_place_is_seen(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 5)
    fill(kafka, "responses", 3, partition=1)
    fill(kafka, "receipts", 2)
    begin = {"responses": {0: 3, 1: 3}, "receipts": {0: 0}}
    assert seen(begin, {"responses": {0: 5, 1: 3}, "receipts": {0: 2}}) == [
        "receipts:0",
        "receipts:1",
        "responses:3",
        "responses:4",
    ]
    assert seen(begin, {"responses": {0: 3, 1: 3}}) == []
    assert kafka.consumers[-1].closed


def test_an_end_behind_the_last_record_is_reached(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 2)
    kafka.topics["responses"][0].end = 5
    assert seen({"responses": {0: 1}}, {"responses": {0: 5}}) == ["responses:1"]


def test_earliest_known_tail_is_taken() -> None:
    ends = {"responses": {0: 50, 1: 60}, "receipts": {0: 70}}
    known = [{"responses": {0: 9, 1: 8}, "receipts": {0: 3}}, {"responses": {0: 7}, "receipts": {0: 4}}]
    assert earliest(known, ends) == {"responses": {0: 7, 1: 0}, "receipts": {0: 3}}
    assert earliest([], ends) == ends  # nothing is to be looked for


def test_time_leads_to_outputs_since_it_with_skew(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 4, begin_ms=SKEW_MS)
    ends = Ends(NOWHERE, {"responses": 2, "receipts": 1})
    assert ends.at(2 * SKEW_MS + 2) == {"responses": {0: 2, 1: 0}, "receipts": {0: 0}}


@pytest.mark.parametrize(
    ("low", "begin", "at_ms", "lost"),
    [
        (0, 3, 100, False),
        (5, 5, 100, False),
        (5, 3, 100, True),  # what is left is from since then, and so may be what is gone
        (5, 3, 500, False),  # what is left is older, and so is what is gone
        (5, 0, 100, False),  # the partition held nothing of ours
        (8, 3, 100, True),  # nobody knows what was there
    ],
)
def test_lost_tail_is_reported_where_it_matters(kafka: FakeKafka, low: int, begin: int, at_ms: int, lost: bool) -> None:
    fill(kafka, "responses", 8, begin_ms=200)
    log = kafka.topics["responses"][0]
    log.low, log.messages = low, log.messages[low:]
    ends = Ends(NOWHERE, {"responses": 2, "receipts": 1})
    assert ends.lost({"responses": {0: begin, 1: 0}}, at_ms) == ("responses:0" if lost else None)
