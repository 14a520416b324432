"""Reading the ends of topics: outputs, dead letters and whole partitions."""

import threading
from functools import partial

import pytest

from recallflow.connectors.kafka import tails
from recallflow.connectors.kafka.dead_letters import Letter
from recallflow.connectors.kafka.place import Tails
from recallflow.connectors.kafka.tails import SKEW_MS, Ends, earliest, read_tails
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Position
from tests.unit.connectors.fake_consumer import FakeKafka, Message

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


def test_records_after_a_position_are_found(kafka: FakeKafka) -> None:
    fill(kafka, "responses", 5)
    fill(kafka, "responses", 3, partition=1)
    fill(kafka, "receipts", 2)
    begin = {"responses": {0: 3, 1: 3}, "receipts": {0: 0}}
    assert seen(begin, {"responses": {0: 5, 1: 3}, "receipts": {0: 2}}) == [
        "receipts:0", "receipts:1", "responses:3", "responses:4",
    ]  # fmt: skip
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


OURS = [("error.code", b"invalid_event"), ("error.detail", b"no content"), ("error.source", b"memory.events:3:7")]


def message(headers: list[tuple[str, bytes]]) -> Message:
    return Message("dead.letters", 0, 5, b"{", b"acme/ann", headed=tuple(headers))


def test_own_headers_of_a_record_stay_separate() -> None:
    own = [("error.code", b"of somebody else"), ("error.source", b"elsewhere:0:1")]
    letter = Letter.of(message([*own, *OURS]))
    assert letter is not None
    assert letter.headers == tuple(own)
    assert letter.error["code"] == "invalid_event"
    assert letter.source == Position("memory.events", 3, 7)
    assert letter.missing == []


@pytest.mark.parametrize("source", [[], [("error.source", b"")], [("error.source", b"somewhere")]])
def test_a_foreign_record_with_an_error_code_is_no_letter(source: list[tuple[str, bytes]]) -> None:
    assert Letter.of(message([("error.code", b"500"), *source])) is None
    assert Letter.of(message([])) is None


@pytest.mark.parametrize(
    "headers", [[OURS[0], OURS[2]], [*OURS, ("error.size", b"9")], [*OURS, ("error.sha256", b"9")]]
)
def test_foreign_record_without_all_headers_is_no_letter(headers: list[tuple[str, bytes]]) -> None:
    assert Letter.of(message(headers)) is None


def letters(count: int) -> list[Letter]:
    at = Position("dead.letters", 0, 5)
    return [
        Letter(at, Position("memory.events", 0, n), b"acme/ann", b"%d" % n, (("a", b"b"),), {}) for n in range(count)
    ]


def test_letter_with_fields_names_each_problem() -> None:
    wrong = ("error.fields", b'[["content","is blank"],["id","is there"]]')
    of_before, of_now = Letter.of(message(OURS)), Letter.of(message([*OURS, wrong]))
    assert of_before is not None
    assert of_now is not None
    assert (of_before.refusal.code, of_before.refusal.fields) == ("invalid_event", (("", "no content"),))
    assert of_now.refusal.fields == (("content", "is blank"), ("id", "is there"))
