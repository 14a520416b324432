"""What counts as a dead letter of ours, whoever else writes into the topic."""

import pytest
from confluent_kafka import KafkaError

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka import dead_letters, sender
from recallflow.connectors.kafka.admin import TopicConfig
from recallflow.connectors.kafka.dead_letters import Letter, send_again
from recallflow.errors import SinkError
from recallflow.records import Position
from tests.unit.connectors.fake_consumer import Message
from tests.unit.connectors.fake_kafka import FakeProducer

OURS = [("error.code", b"invalid_event"), ("error.detail", b"no content"), ("error.source", b"memory.events:3:7")]


def message(headers: list[tuple[str, bytes]]) -> Message:
    return Message("dead.letters", 0, 5, b"{", b"acme/ann", headed=tuple(headers))


def test_a_record_s_own_headers_stay_apart_whatever_their_names() -> None:
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


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()
    monkeypatch.setattr(sender, "Producer", lambda _: made)
    monkeypatch.setattr(dead_letters, "ask_configs", lambda _, topics: {topic: TopicConfig() for topic in topics})
    return made


def letters(count: int) -> list[Letter]:
    at = Position("dead.letters", 0, 5)
    return [
        Letter(at, Position("memory.events", 0, n), b"acme/ann", b"%d" % n, (("a", b"b"),), {}) for n in range(count)
    ]


def test_a_full_queue_is_waited_for(producer: FakeProducer) -> None:
    producer.room = 2
    assert send_again(KafkaOptions("nowhere:1"), letters(7)) == 7
    assert [(record.topic, record.value) for record in producer.log] == [("memory.events", b"%d" % n) for n in range(7)]
    assert producer.log[0].headers == {"a": b"b"}


def test_what_is_not_delivered_is_named_with_topic_and_reason(producer: FakeProducer) -> None:
    producer.fails[b"1"] = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    with pytest.raises(SinkError, match=r"^memory\.events: a record was not delivered: .*timed out"):
        send_again(KafkaOptions("nowhere:1"), letters(3))


def test_letter_with_fields_names_each_problem() -> None:
    wrong = ("error.fields", b'[["content","is blank"],["id","is there"]]')
    of_before, of_now = Letter.of(message(OURS)), Letter.of(message([*OURS, wrong]))
    assert of_before is not None
    assert of_now is not None
    assert (of_before.refusal.code, of_before.refusal.fields) == ("invalid_event", (("", "no content"),))
    assert of_now.refusal.fields == (("content", "is blank"), ("id", "is there"))
