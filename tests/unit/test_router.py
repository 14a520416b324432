"""Outputs of any record, their topics, and the cutting of large ones."""

import hashlib
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.connectors.kafka.messages import KEY_BYTES, Headers, Letter, Outgoing, headers_bytes
from recallflow.control import GateVerdict
from recallflow.credentials import ApiKeyText, is_signed
from recallflow.errors import FieldProblem, InvalidRecord, UsageError
from recallflow.events import EnrichmentRequest
from recallflow.flows.router import Router, letter
from recallflow.flows.settings import AuthSettings, TopicNames
from recallflow.flows.topic_checks import RECORD_BYTES_MIN
from recallflow.operators import guard
from recallflow.operators.large import decode_record, encode_record
from recallflow.outputs import (
    Ack,
    Answer,
    DeadLetter,
    EventOutput,
    Output,
    ReceiptOutput,
    Reroute,
    ResultOutput,
    TaskRequest,
    Verdict,
)
from recallflow.parsing import parse_control
from recallflow.queries import ReplyTo
from recallflow.records import Position, Record
from recallflow.responses import Receipt, Response
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness

TOPICS = TopicNames(replies=("replies",))
AT = Position(TOPICS.queries, 0, 7)
ONE_EACH = defaultdict[str, int](lambda: 1)
WHY = InvalidRecord("invalid_event", [FieldProblem("content", "is blank")])


def router(most_bytes: int = RECORD_BYTES_MIN, partitions: int = 1) -> Router:
    written = TOPICS.written_topics(enriches=True)
    return Router(TOPICS, defaultdict(lambda: partitions), dict.fromkeys(written, most_bytes))


def refused(value: bytes = b"{}", key: bytes | None = b"acme/ann", headers: Headers | None = ()) -> DeadLetter:
    return DeadLetter(Record(AT, value, 5, key, headers=headers), 0, WHY, "decode")


def size_bytes(outgoing: Outgoing) -> int:
    return 97 + len(outgoing.key or b"") + len(outgoing.value or b"") + headers_bytes(outgoing.all_headers)


def test_a_verdict_goes_where_operators_decisions_come_from() -> None:
    event = GateVerdict(type="gate.verdict", tenant_id="acme", name="3", blocked=True, windows={"error_rate": 0.1})
    *place, outgoing = router().route(Verdict(AT, 2, 5, event))
    assert place == [TOPICS.control, 0]
    assert (outgoing.key, outgoing.source, outgoing.number) == (b"acme/gate.verdict/3", "query.events:0:7", 2)
    assert outgoing.value is not None
    assert parse_control(outgoing.value) == event


def test_record_too_large_to_forward_is_a_dead_letter() -> None:
    most_bytes, at = 2 * RECORD_BYTES_MIN, Position(TOPICS.memory, 1, 7)
    made = Router(TOPICS, ONE_EACH, dict.fromkeys((TOPICS.memory, TOPICS.dead_letters), most_bytes))
    became: list[type[Output]] = []
    for size in range(most_bytes - 400, most_bytes):
        record = Record(at, b"x" * size, 5, None, headers=(("own", b"1"),))
        output = made.fitted(Reroute(record, b"acme/ann", 0))
        became.append(type(output))
        assert isinstance(output, Reroute | DeadLetter)
        assert size_bytes(made.route(output).outgoing) <= most_bytes
    assert became == sorted(became, key=[Reroute, DeadLetter].index)
    assert (became[0], became[-1]) == (Reroute, DeadLetter)


def test_verdict_is_signed_and_event_has_our_key() -> None:
    secret, key = "s" * 32, ApiKeyText.new().text()
    auth = AuthSettings(api_key=key, control_secret=secret)
    topics = dict.fromkeys((*TOPICS.written_topics(), *TOPICS.enrichment_output_topics()), RECORD_BYTES_MIN)
    ours = Router(TOPICS, ONE_EACH, topics, auth)
    event = GateVerdict(type="gate.verdict", tenant_id="acme", name="3", blocked=True)
    verdict = ours.route(Verdict(AT, 2, 5, event)).outgoing
    assert is_signed(secret, verdict.key, verdict.value, verdict.all_headers)
    derived = ours.route(EventOutput(AT, 3, b"acme/ann", b"{}")).outgoing
    assert derived.headers == (("x-api-key", key.encode()),)
    others = (ResultOutput(AT, 0, b"acme/ann", b"{}", b"bare"), ReceiptOutput(AT, 0, b"acme/ann", b"{}"), refused())
    for output in others:  # what nobody judges needs no key
        assert key.encode() not in [value for _, value in ours.route(output).outgoing.all_headers]


def test_a_result_and_its_events_go_where_they_are_read() -> None:
    topics = dict.fromkeys(TOPICS.enrichment_output_topics(), RECORD_BYTES_MIN)
    enriching = Router(TOPICS, ONE_EACH, topics)
    *place, result = enriching.route(ResultOutput(AT, 0, b"acme/ann", b"{}", b"bare"))
    assert (place, result.key, result.value) == ([TOPICS.results, 0], b"acme/ann", b"{}")
    assert result.replacement is not None
    assert result.replacement("it is too large") == replace(result, value=b"bare", replacement=None)
    *place, event = enriching.route(EventOutput(AT, 3, b"acme/ann", b"{}"))
    assert (place, event.key, event.number) == ([TOPICS.memory, 0], b"acme/ann", 3)


def test_result_too_large_is_sent_bare() -> None:
    enriching = Router(TOPICS, ONE_EACH, dict.fromkeys(TOPICS.enrichment_output_topics(), RECORD_BYTES_MIN))
    sent = enriching.route(ResultOutput(AT, 0, b"acme/ann", b"x" * RECORD_BYTES_MIN, b"bare")).outgoing
    assert (sent.value, sent.replacement) == (b"bare", None)


def test_dead_letter_holds_the_record_and_its_error() -> None:
    own: Headers = (("traceparent", b"00-1"), ("error.code", b"mine"), ("empty", None))
    outgoing = router().route(refused(b"{broken", headers=own)).outgoing
    assert (outgoing.key, outgoing.value, outgoing.headers[:3]) == (b"acme/ann", b"{broken", own)
    assert dict(outgoing.headers[3:]) == {
        "error.code": b"invalid_event", "error.detail": b"content: is blank",
        "error.fields": b'[["content","is blank"]]', "error.step": b"decode", "error.source": b"query.events:0:7",
        "error.time": b"5",
    }  # fmt: skip


def test_a_tombstone_stays_null() -> None:
    tombstone = refused(b"")
    assert router().route(tombstone).outgoing.value == b""
    assert router().route(replace(tombstone, record=tombstone.record._replace(tombstone=True))).outgoing.value is None


@given(
    st.binary(max_size=50), st.integers(0, 40_000), st.one_of(st.none(), st.integers(0, 9_000)),
    st.lists(st.tuples(st.text(max_size=9), st.one_of(st.none(), st.binary(max_size=5_000))), max_size=4),
    st.integers(RECORD_BYTES_MIN, 30_000),
)  # fmt: skip
def test_any_dead_letter_fits_and_names_cut_parts(
    begins: bytes, length: int, key_bytes: int | None, headers: list[tuple[str, bytes | None]], most_bytes: int
) -> None:
    value, key = begins + b"x" * length, None if key_bytes is None else b"k" * key_bytes
    outgoing = letter(refused(value, key, tuple(headers)), most_bytes)
    told, kept = dict(outgoing.headers), outgoing.value or b""
    assert size_bytes(outgoing) <= most_bytes
    assert value.startswith(kept)
    assert (kept == value) is ("error.size" not in told)
    if kept != value:
        assert told["error.size"] == str(len(value)).encode()
        assert told["error.sha256"] == hashlib.sha256(value).hexdigest().encode()
        assert most_bytes - size_bytes(outgoing) <= 31  # nothing is cut that would have fitted
    assert (outgoing.key == key) is ("error.key_size" not in told)
    assert (outgoing.headers[: len(headers)] == tuple(headers)) is ("error.headers_dropped" not in told)


@pytest.mark.parametrize(("count", "said"), [(1, b"1 headers of 1000011 bytes"), (200_000, b"200000 headers of ")])
def test_headers_too_large_are_dropped_and_said(count: int, said: bytes) -> None:
    headers = (("h", b"x" * (1_000_000 // count)),) * count
    outgoing = letter(refused(headers=headers), 1_048_588)
    assert dict(outgoing.headers)["error.headers_dropped"].startswith(said)  # type: ignore[union-attr]
    assert outgoing.value == b"{}"


def test_headers_that_cannot_be_read_are_said() -> None:
    outgoing = letter(refused(headers=None), RECORD_BYTES_MIN)
    assert dict(outgoing.headers)["error.headers_dropped"] == b"a header's name is not UTF-8"


def answer(content: str, key: bytes = b"acme/ann") -> Answer:
    response = Response(query_id="q", status="ok", versions=[{"id": "m", "content": content}])
    return Answer(AT, 0, key, response.model_dump_json(exclude_unset=True).encode(), response)


@pytest.mark.parametrize("key", [b"acme/ann", b"k" * 100_000])
def test_an_answer_fits_with_key_and_headers(key: bytes) -> None:
    fitted = router().fitted(answer("x" * 50_000, key))
    assert isinstance(fitted, Answer)
    outgoing = router().route(fitted).outgoing
    assert RECORD_BYTES_MIN - 250 < size_bytes(outgoing) <= RECORD_BYTES_MIN
    assert outgoing.key == key[:KEY_BYTES]
    assert [warning.code for warning in fitted.response.warnings] == ["content_cut"]


@pytest.mark.parametrize("partition", [0, 7])
def test_requested_reply_partition_is_used(partition: int) -> None:
    keys = [b"k%d" % number for number in range(20)]
    reply_to = ReplyTo(topic="replies", partition=partition)
    parts = {router(partitions=8).route(replace(answer("x", key), reply_to=reply_to))[:2] for key in keys}
    assert parts == {("replies", partition)}


def test_a_key_that_is_cut_still_says_which_partition() -> None:
    keys = [b"k" * 100_000 + b"%d" % number for number in range(20)]
    parts = {router(partitions=8).route(answer("x", key))[:2] for key in keys}
    assert len(parts) > 1


def test_substitute_for_a_refused_answer_gives_the_reason() -> None:
    outgoing = router().route(answer("x")).outgoing
    assert outgoing.replacement is not None
    told = outgoing.replacement("Broker: Message size too large")
    assert (told.identity, told.key) == (outgoing.identity, outgoing.key)
    assert told.value is not None
    body = orjson.loads(told.value)
    assert (body["query_id"], body["status"], body["error"]["code"]) == ("q", "error", "too_large")
    assert "Broker: Message size too large" in body["error"]["message"]


def test_stand_in_of_a_dead_letter_has_no_value() -> None:
    made = letter(refused(b"value", key=None), RECORD_BYTES_MIN)
    assert made.replacement is not None
    told = made.replacement("Broker: Broker failed to validate record")
    headers = dict(told.headers)
    assert (told.key, told.value) == (b"query.events:0:7", b"")
    assert (headers["error.refused"], headers["error.size"]) == (b"Broker: Broker failed to validate record", b"5")
    assert headers["error.code"] == b"invalid_event"


def test_longest_names_fit_the_smallest_topic() -> None:
    widest, topic = "\U0001f6b2" * 128, "t" * 249
    at = Position(topic, 999_999_999, 10**18)
    receipt = Receipt(id=widest, position=str(at), outcome="created", memory_id=widest, code="C" * 64, detail="d" * 500)
    sent = router().route(ReceiptOutput(at, 0, widest.encode() * 2, receipt.model_dump_json().encode())).outgoing
    assert size_bytes(sent) <= RECORD_BYTES_MIN
    windows = {f"window_{number}": 0.123456789 for number in range(50)}
    event = GateVerdict(
        type="gate.verdict", tenant_id=widest, name="\U0001f6b2" * 512, blocked=True, windows=windows, why="w" * 500
    )
    assert size_bytes(router().route(Verdict(at, 2, 5, event)).outgoing) <= RECORD_BYTES_MIN


def test_positions_to_skip_are_read() -> None:
    read = TOPICS.parse_skips(["memory.events:3:12", "query.events:0:7"])
    assert read == {Position("memory.events", 3, 12), AT}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory.events", "TOPIC:PARTITION:OFFSET"), ("memory.events:1", "TOPIC:PARTITION:OFFSET"),
        ("memory.events:1:-2", "TOPIC:PARTITION:OFFSET"), ("memory.events:one:2", "TOPIC:PARTITION:OFFSET"),
        ("memory.events:1:2_0", "TOPIC:PARTITION:OFFSET"), ("", "TOPIC:PARTITION:OFFSET"),
        ("recall.responses:0:1", "memory.events and query.events"),
    ],
)  # fmt: skip
def test_invalid_position_is_a_usage_error(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TOPICS.parse_skips([text])


def requested(characters: str, beside: int) -> TaskRequest:
    shown = {"content_hash": "h", "kind": "message", "role": "user", "created_at": 5}
    others = [shown | {"memory_id": f"m{n}", "content": characters * 2_000} for n in range(beside)]
    request = {
        "type": "enrichment.request", "tenant_id": "acme", "user_id": "ann", "tasks": ["embed", "facts"],
        "source": "memory.events:0:3", "memories": [shown | {"memory_id": "own", "content": characters * 8_000}],
        "recent": others, "similar": others, "text": characters * 8_000,
    }  # fmt: skip
    return TaskRequest(Position(TOPICS.memory, 0, 3), 10, b"acme/ann", orjson.dumps(request), ("embed", "facts"))


@pytest.mark.parametrize("characters", ["a", "\x01", "\U0001f600", '"'])
def test_request_is_cut_to_fit_its_topic(characters: str) -> None:
    given = requested(characters, beside=20)
    fitted = router().fitted(given)
    assert isinstance(fitted, TaskRequest)
    *place, outgoing = router().route(fitted)
    assert place == [TOPICS.enrichment, 0]
    assert (outgoing.key, outgoing.source, outgoing.number) == (b"acme/ann", "memory.events:0:3", 10)
    assert size_bytes(outgoing) <= RECORD_BYTES_MIN
    assert outgoing.value is not None
    request = EnrichmentRequest.model_validate_json(outgoing.value)
    (memory,) = request.memories
    assert (memory.memory_id, request.tasks) == ("own", ["embed", "facts"])
    assert memory.content
    assert (characters * 8_000).startswith(memory.content)


def test_a_request_that_fits_stays_as_it_is() -> None:
    given = requested("a", beside=2)
    assert router(most_bytes=1024 * 1024).fitted(given) is given


def test_credentials_in_a_refused_record_are_masked_and_said() -> None:
    key = ApiKeyText.new().text()
    body = orjson.dumps({"type": "message", "content": f"my key: {key}", "metadata": {"auth": {"api_key": "walnut"}}})
    sent = letter(refused(body, key.encode()), RECORD_BYTES_MIN)
    assert sent.value is not None
    assert key.encode() not in sent.value + (sent.key or b"")
    assert orjson.loads(sent.value)["metadata"] == {"auth": {"api_key": "***"}}
    assert dict(sent.headers)["error.masked"] == b"3"
    assert "error.masked" not in dict(letter(refused(b'{"content": "tea"}'), RECORD_BYTES_MIN).headers)


MOST_BYTES = 100_000
HARNESS_TOPICS = TopicNames(memory=MEMORIES, queries=QUERIES)
OWNER = {"tenant_id": "acme", "user_id": "ann"}
# One event for each way an output is made.
EVENTS = [
    OWNER | fields
    for fields in (
        {"type": "message", "content": "The bicycle is red.", "receipt": True},
        {"type": "memory.update", "memory_id": "nobody's", "content": "x"},  # the state refuses it
        {"type": "memory", "content": ""},  # decoding refuses it
        {"type": "user.stats"},
        {"type": "memory.get", "memory_id": "nobody's"},
        {"type": "recall", "query": "Where?", "wait_for": f"{MEMORIES}:0:9999"},
        {"type": "recall", "query": 5},
    )
]

anything = st.binary(max_size=40)
keys = st.one_of(st.none(), anything, st.builds(bytes.__mul__, anything, st.just(200)))
headers = st.one_of(
    st.none(), st.lists(st.tuples(st.text(max_size=9), st.one_of(st.none(), anything)), max_size=3).map(tuple)
)
Found = tuple[bytes | None, Headers | None, bytes]


def records(found: Found) -> list[Record]:
    """Records with this key and these headers, of each kind of event and of the bytes, on both topics."""
    key, own, value = found
    sent = [(topic, text) for topic in (MEMORIES, QUERIES) for text in (*map(orjson.dumps, EVENTS), value)]
    return [
        Record(Position(topic, 0, at), text, at, key, headers=own, tombstone=not text)
        for at, (topic, text) in enumerate(sent)
    ]


def as_message(topic: str, outgoing: Outgoing) -> Message:
    return Message(topic, 0, 0, outgoing.key, outgoing.value, [*outgoing.all_headers])


def routed(outputs: list[Output]) -> list[tuple[Output, str, Outgoing]]:
    router = Router(HARNESS_TOPICS, defaultdict(lambda: 3), dict.fromkeys(HARNESS_TOPICS.written_topics(), MOST_BYTES))
    fitted = [router.fitted(output) for output in outputs]
    return [(one, (sent := router.route(one)).topic, sent.outgoing) for one in fitted if not isinstance(one, Ack)]


def plain(output: Output) -> object:
    """An output as far as it is the same when it comes again: a query is answered anew."""
    match output:
        case Answer():
            return output.position, output.key
        case DeadLetter():
            return output.record, str(output.error), output.step
    return output


@pytest.fixture
def no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our own code fails at a record, the test does: the guard would make a dead letter of it."""

    def fail(step: str, position: Position, error: Exception, undo: object) -> None:  # noqa: ARG001
        raise error

    monkeypatch.setattr(guard, "report", fail)


@pytest.mark.usefixtures("no_failure")
@settings(max_examples=share(0.5))
@given(st.tuples(keys, headers, anything))
def test_outputs_of_any_record_can_be_sent_and_repeat(found: Found) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = Harness(Path(folder) / "s")
        came = records(found)
        first = engine.take(came)
        for output, part, outgoing in routed(first):
            assert {type(outgoing.key), type(outgoing.value)} <= {bytes, type(None)}
            assert not isinstance(output, Ack)
            own = came[output.position.offset]
            if isinstance(output, ReceiptOutput | Answer):
                assert outgoing.key in ((b"acme/ann", b"") if own.key is None else (own.key[:4_096],))
            elif isinstance(output, DeadLetter):
                letter = Letter.of(as_message(part, outgoing))
                assert letter is not None
                assert letter.value == (None if own.tombstone else own.value)
                assert letter.key == (own.key and own.key[:4_096])
                assert letter.headers == (() if own.headers is None else own.headers)
                assert ("key_size" in letter.error) is (own.key is not None and len(own.key) > 4_096)
        engine.kill()  # everything was applied and committed, nothing delivered
        again = engine.take(came)
        assert [*map(plain, again)] == [*map(plain, first)]
        place = engine.mark()
        assert place.unfinished
        engine.kill(place)
        assert engine.mark() == place
        engine.stop()


@given(st.tuples(keys, headers, anything))
def test_any_record_is_the_same_after_it_was_kept(found: Found) -> None:
    for record in records(found):
        assert decode_record(orjson.loads(orjson.dumps(encode_record(record)))) == record


@given(
    st.lists(st.tuples(st.text(max_size=9), st.one_of(st.none(), anything)), max_size=3),
    st.lists(st.sampled_from(["code", "detail", "step", "source", "time", "size", "sha256", "key_size"]), max_size=8),
    anything,
)
def test_any_dead_letter_record_is_a_letter_or_none(
    own: list[tuple[str, bytes | None]], names: list[str], value: bytes
) -> None:
    theirs = [(f"error.{name}", b"a:0:1" if name == "source" else value) for name in names]
    letter = Letter.of(as_message("dead.letters", Outgoing("a:0:1", 0, value, value, (*own, *theirs))))
    if letter is not None:
        assert letter.missing is not None
        assert letter.error["detail"] == value.decode(errors="replace")
