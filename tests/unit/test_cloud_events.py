"""Records as CloudEvents, written and read with the official SDK."""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka, to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from recallflow.cli.records import record_of as shown
from recallflow.cloud_events import RESPONSE_FORMATS, response_json
from recallflow.connectors.kafka.messages import Outgoing, record_of
from recallflow.errors import UsageError
from recallflow.flows.config import RunSettings
from recallflow.flows.router import Router, letter
from recallflow.flows.settings import TopicNames
from recallflow.operators.events import Ask, Refused, Write, decode
from recallflow.operators.large import decode_record, encode_record
from recallflow.outputs import Answer, DeadLetter, Reroute
from recallflow.records import Position, Record
from recallflow.responses import Response
from tests.unit.test_router import as_message

GIVEN = {"type": "recallflow.message", "source": "/chat", "id": "7", "subject": "acme/ann/b"}
BINARY = (("ce_specversion", b"1.0"), ("ce_type", b"message"), ("ce_source", b"/chat"), ("ce_id", b"7"))
STRUCTURED = (("Content-Type", b"application/cloudevents+json; charset=UTF-8"),)
MODES = [to_binary_event, to_structured_event]


def read(value: bytes | None, headers: Any) -> Record:
    return record_of(as_message("memory.events", Outgoing("a:0:1", 0, b"acme/ann", value, tuple(headers))))


def sent(mode: Any, data: Any, **attributes: Any) -> Record:
    message = mode(CloudEvent(GIVEN | {"time": datetime(2026, 1, 2, tzinfo=UTC)} | attributes, data))
    return read(message.value, message.headers.items())


@pytest.mark.parametrize("mode", MODES)
def test_attributes_fill_absent_fields_of_the_event(mode: Any) -> None:
    item = decode(sent(mode, {"content": "Ann likes té"}))
    assert isinstance(item, Write)
    event: Any = item.event
    assert (event.type, event.id, event.content, event.timestamp) == (
        "message",
        "/chat#7",
        "Ann likes té",
        1767312000000,
    )
    assert item.owner.record_key == b"acme/ann/b"
    whole = {"type": "memory.forget", "id": "own", "tenant_id": "t", "user_id": "u", "timestamp": 5_000_000_000_000}
    own: Any = decode(sent(mode, whole | {"memory_id": "m"}))
    assert (own.event.type, own.event.id, own.owner.record_key) == ("memory.forget", "own", b"t/u")
    asked = decode(sent(mode, {"query": "tea?"}, type="recall"))
    assert isinstance(asked, Ask)
    assert asked.query_id == "7"
    long: Any = decode(sent(mode, {"content": "tea"}, id="é" * 200))
    assert len(long.event.id) == 64


def test_absent_time_and_unknown_attributes_change_nothing() -> None:
    item: Any = decode(read(b'{"content": "tea"}', (*BINARY, ("ce_subject", b"acme/ann"), ("ce_trace", b"x"))))
    assert (item.event.timestamp, item.event.model_extra) == (None, {})
    assert read(None, BINARY).refusal is None  # a tombstone


@pytest.mark.parametrize(
    ("value", "headers", "named"),
    [
        (b"{}", BINARY[:-1], "ce_id"), (b"{}", (*BINARY, ("ce_time", b"yesterday")), "ce_time"),
        (b"{}", (*BINARY[1:], ("ce_specversion", b"0.3")), "ce_specversion"), (b"{}", BINARY[:1], "ce_type"),
        (b"\x0a\x01x", (*BINARY, ("content-type", b"application/protobuf")), "content-type"),
        (b"[1]", STRUCTURED, ""), (b"\xff", STRUCTURED, ""), (b"{" * 9_000, STRUCTURED, ""),
        (b"{}", STRUCTURED, "source"),
        (b"[]", (("content-type", b"application/cloudevents-batch+json"),), "content-type"),
        (b'{"specversion": "1.0", "type": "a", "source": "b", "id": "c", "data": "text"}', STRUCTURED, "data"),
        (b'{"specversion": "1.0", "type": ["a"], "source": {}, "id": 1, "time": 5}', STRUCTURED, ""),
    ],
)  # fmt: skip
def test_invalid_cloud_event_is_a_dead_letter(value: bytes, headers: Any, named: str) -> None:
    item = decode(read(value, headers))
    assert isinstance(item, Refused)
    assert (item.error.code, item.step, item.record.value) == ("invalid_event", "decode", value)
    assert named in str(item.error)


def test_binary_data_that_is_no_json_is_named_as_such() -> None:
    item = decode(read(b"{broken", BINARY))
    assert isinstance(item, Refused)
    assert item.error.code == "invalid_json"


@pytest.mark.parametrize("mode", MODES)
def test_forwarded_and_refused_cloud_events_keep_their_bytes(mode: Any) -> None:
    record = decode_record(orjson.loads(orjson.dumps(encode_record(sent(mode, {"content": "tea"})))))
    made = Router(TopicNames(), defaultdict(lambda: 1), defaultdict(lambda: 9_999))
    moved = made.route(Reroute(record, b"acme/ann", 0)).outgoing
    refused = decode(sent(mode, {"content": ""}))
    assert isinstance(refused, Refused)
    kept = letter(DeadLetter(refused.record, 0, refused.error, "decode"), 9_999)
    assert (moved.value, kept.value) == (record.encoded, refused.record.encoded)
    assert read(moved.value, moved.headers).value == record.value


@pytest.mark.parametrize("chosen", RESPONSE_FORMATS[1:])
def test_responses_are_cloud_events_within_the_size_limit(chosen: str) -> None:
    at = Position("query.events", 0, 7)
    router = Router(TopicNames(), defaultdict(lambda: 1), defaultdict(lambda: 9_999), response_format=chosen)
    response = Response(query_id="q", status="ok", versions=[{"id": "m", "content": "é" * 20_000}])
    answer = router.fitted(Answer(at, 0, b"acme/ann", response.model_dump_json(exclude_unset=True).encode(), response))
    assert isinstance(answer, Answer)
    one, again = (router.route(answer).outgoing for _ in range(2))
    assert (one.value, one.headers) == (again.value, again.headers)
    assert 0 <= one.room_bytes(9_999) - len(one.value or b"") < 250
    event = from_kafka(
        KafkaMessage({name: value or b"" for name, value in one.headers}, None, one.value or b""), JSONFormat()
    )
    found = event.get_type(), event.get_source(), event.get_id(), event.get_subject(), event.get_time()
    assert found[:4] == ("recallflow.response", "/recallflow/recall.responses", "query.events:0:7/0", "acme/ann")
    assert shown(as_message("recall.responses", one))["record"] == orjson.loads(answer.body)
    assert orjson.loads(response_json(one.value or b"")) == orjson.loads(answer.body) == event.get_data()


def test_unknown_response_format_is_refused() -> None:
    with pytest.raises(UsageError, match="cloudevents-binary"):
        RunSettings(response_format="cloudevents")
