"""Any key, headers and value of a record end in an output that can be sent and repeats after a kill."""

import tempfile
from collections import defaultdict
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.connectors.kafka.messages import Headers, Letter, Outgoing
from recallflow.flows.router import Router
from recallflow.flows.settings import TopicNames
from recallflow.operators import guard
from recallflow.operators.large import decode_record, encode_record
from recallflow.outputs import Answer, DeadLetter, Done, Output, Receipted
from recallflow.records import Position, Record
from tests.groups import share
from tests.unit.connectors.fake_consumer import Message
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness

MOST_BYTES = 100_000
TOPICS = TopicNames(memory=MEMORIES, queries=QUERIES)
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
    return Message(topic, 0, 0, outgoing.value, outgoing.key, headed=outgoing.all_headers)  # type: ignore[arg-type]


def routed(outputs: list[Output]) -> list[tuple[Output, str, Outgoing]]:
    router = Router(TOPICS, defaultdict(lambda: 3), dict.fromkeys(TOPICS.written(), MOST_BYTES))
    fitted = [router.fitted(output) for output in outputs]
    return [(one, (sent := router.route(one)).topic, sent.outgoing) for one in fitted if not isinstance(one, Done)]


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
            assert not isinstance(output, Done)
            own = came[output.position.offset]
            if isinstance(output, Receipted | Answer):
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
