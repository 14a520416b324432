"""Every format yields lines for the decode step, and loses nothing."""

import io
import random
import re
from codecs import BOM_UTF8
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from recallflow.connectors.local_inputs import batches_of_lines, bounded_lines
from recallflow.connectors.logs.documents import is_document
from recallflow.connectors.logs.log_format import EVENT_BYTES, ImportScope
from recallflow.connectors.logs.registry import Registry
from recallflow.connectors.logs.sources import GZIP, ZSTANDARD, open_source
from recallflow.errors import InvalidRecord, UsageError
from recallflow.events import MemoryEvent
from recallflow.parsing import parse

SCOPE = ImportScope("acme", "ann", "test")
EVENT = b'{"type":"message","tenant_id":"acme","user_id":"ann","content":"hello"}'
MESSAGE = b'{"role":"user","content":"hello"}'
LOCOMO = [
    {
        "sample_id": "pair-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bo",
            "session_10_date_time": "12:05 am on 3 March, 2024",
            "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "Much later."}],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                {"speaker": "Ann", "dia_id": "D2:1", "text": "Look!", "blip_caption": "a kite over a beach"},
                {"speaker": "Bo", "dia_id": "D2:2", "text": "Lovely."},
            ],
        },
    }
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write_log(content: bytes) -> Path:
        path = tmp_path / "log"
        path.write_bytes(content)
        return path

    return write_log


def read_log(path: Path, log_format: str | None = None) -> list[bytes]:
    (log,), others = Registry(log_format).logs_of(open_source(path))
    assert others == []
    return [*log.read(SCOPE)]


def detect_format(path: Path) -> str:
    (log,), _ = Registry().logs_of(open_source(path))
    return log.format.name


def events(path: Path, log_format: str | None = None) -> list[dict[str, Any]]:
    return [orjson.loads(value) for value in read_log(path, log_format)]


def wrong_fields(event: object) -> set[str]:
    """The fields that make an event invalid, as the decode step would name them."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(MemoryEvent).validate_python(event)
    return {str(error["loc"][1]) for error in caught.value.errors()}


def is_valid(event: object) -> bool:
    TypeAdapter(MemoryEvent).validate_python(event)
    return True


@given(lines=st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), min_size=1), ended=st.booleans())
def test_event_lines_round_trip(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ended: bool) -> None:
    # What is packed is told by its first bytes, and a byte order mark is none of the line's.
    assume(not lines[0].startswith((GZIP, ZSTANDARD, b"PK", BOM_UTF8)))
    ended = ended or not lines[-1]  # an empty last line exists only through its line feed
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(b"\n".join(lines) + b"\n" * ended)
    assume(not is_document(path.read_bytes()))  # such as an array
    assert read_log(path, "events") == lines
    assert len(read_log(path, "events")) == len(lines)


def test_broken_and_blank_event_lines_pass_through(write: Callable[[bytes], Path]) -> None:
    lines = [b"{broken", b"", EVENT, b"\xff\xfe", b"  "]
    path = write(b"\n".join(lines))
    assert read_log(path) == lines


@pytest.mark.parametrize("excess", [-1, 0, 1, 5 * 1024 * 1024])
def test_overlong_line_is_cut_behind_the_limit(write: Callable[[bytes], Path], excess: int) -> None:
    path = write(b"x" * (EVENT_BYTES + excess) + b"\n" + EVENT + b"\n")
    first, second = read_log(path, "events")
    assert len(first) == min(EVENT_BYTES, EVENT_BYTES + excess)
    assert second == EVENT


@pytest.mark.parametrize(
    ("content", "log_format"),
    [
        (EVENT, "events"), (b"{broken\n\n" + EVENT, "events"), (b"[broken\n" + EVENT, "events"),
        (b"x" * 200_000 + b"\n" + EVENT, "events"), (b'{"type":["message"],"tenant_id":"acme"}', "events"),
        (b'{"type":"episode.end"}', "events"), (b"[" + EVENT + b"]", "events"), (b"[\n" + EVENT + b"\n]", "events"),
        (MESSAGE, "openai"), (b"\xef\xbb\xbf" + MESSAGE, "openai"),
        (b'{"tenant_id":"acme","messages":[' + MESSAGE + b"]}", "openai"), (b"[" + MESSAGE + b"]", "openai"),
        (b'{\n  "messages": [\n' + MESSAGE + b",\n" + MESSAGE + b"\n]}", "openai"),
        (b'{"id":"a","conversations":[{"from":"human","value":"hello"}]}', "sharegpt"),
        (b'[{"items":[{"from":"human","value":"hello"}]}]', "sharegpt"),
        (b'{"conversation":[{"role":"user","content":"hello"}]}', "sharegpt"),
        (b'{"role":"user","content":"hello","items":[{"role":"user","content":"hello"}]}', "openai"),
        (orjson.dumps(LOCOMO), "locomo"), (orjson.dumps(LOCOMO, option=orjson.OPT_INDENT_2), "locomo"),
    ],
)  # fmt: skip
def test_format_is_detected(write: Callable[[bytes], Path], content: bytes, log_format: str) -> None:
    assert detect_format(write(content)) == log_format


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "empty"), (b"\n \n", "blank lines only"), (b'{"rows":{},"title":"t"}', "the fields rows, title"),
        (b'{"mapping_v2":1,"title":"t","conversation_id":"c"}', "nearest to chatgpt"),
        (b'{"uuid":"u","chats":[{"sender":"human","words":"w"}]}', "nearest to claude"),
        (b'{"guild":"g","dateRange":{},"exportedAt":"e"}', "nearest to discord"),
        (b'{"number":1,"text":"t"}', "--column content=text"),
        (b'{"data":[{"words":"w","at":1}]}', "its data have the fields words, at"), (b"a,b\n1,2\n", "'a,b'"),
        (b'{"type":7}', "the fields type"),
    ],
)  # fmt: skip
def test_unknown_file_format_is_reported(write: Callable[[bytes], Path], content: bytes, found: str) -> None:
    path = write(content)
    with pytest.raises(UsageError) as caught:
        detect_format(path)
    assert found in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_invalid_path_is_reported(tmp_path: Path) -> None:
    for path, told in (
        (tmp_path / "missing", "no such file"),
        (tmp_path, "a folder without files"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / ("x" * 1000), "File name too long"),
    ):
        with pytest.raises(UsageError, match=told):
            open_source(path)


def test_unreadable_file_is_reported(write: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    path = write(EVENT)
    monkeypatch.setattr(io, "FileIO", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        read_log(path)


@pytest.mark.parametrize("log_format", ["events", "openai", "locomo"])
def test_torn_document_is_read_and_its_end_refused(write: Callable[[bytes], Path], log_format: str) -> None:
    whole = {"events": EVENT, "openai": MESSAGE, "locomo": orjson.dumps(LOCOMO[0])}[log_format]
    *read, torn = read_log(write(b"[\n" + whole + b',\n{"messages": [{"role": "us'), log_format)
    assert (len(read), torn) == (3 if log_format == "locomo" else 1, b'{"messages": [{"role": "us')


def test_messages_inherit_fields_of_their_conversation(write: Callable[[bytes], Path]) -> None:
    conversation = {
        "id": "trip",
        "created": 1767225600.5,
        "user_id": "bo",
        "messages": [
            {"role": "user", "content": "hello", "name": "Bo"},
            {"role": "assistant", "content": "hi", "id": "own-id", "create_time": 1767225601000},
        ],
    }
    first, second = events(write(orjson.dumps(conversation)))
    assert first == {
        "type": "message", "tenant_id": "acme", "user_id": "bo", "environment": "test", "id": first["id"],
        "session_id": "trip", "timestamp": 1767225600500, "role": "user", "content": "hello", "name": "Bo",
    }  # fmt: skip
    assert re.fullmatch("trip-1-[0-9a-f]{16}", first["id"])
    assert (second["id"], second["timestamp"], second["role"]) == ("own-id", 1767225601000, "assistant")


@pytest.mark.parametrize(
    "content",
    [
        MESSAGE + b"\n\n" + MESSAGE + b"\n", b"[" + MESSAGE + b"," + MESSAGE + b"]",
        b'{"messages":[' + MESSAGE + b"," + MESSAGE + b"]}", b'[{"messages":[' + MESSAGE + b"," + MESSAGE + b"]}]",
        b'{\n"messages":[\n' + MESSAGE + b",\n" + MESSAGE + b"\n]}",
    ],
)  # fmt: skip
def test_every_layout_says_the_same(write: Callable[[bytes], Path], content: bytes) -> None:
    path = write(content)
    found = events(path)
    assert [(event["session_id"], event["id"], event["content"]) for event in found] == [
        ("log-1", "log-1-1-6c4347392d3cddf8", "hello"), ("log-1", "log-1-2-3f98406314678c05", "hello"),
    ]  # fmt: skip
    assert all(is_valid(event) for event in found)
    assert len(read_log(path)) == 2


def ids(path: Path) -> list[str]:
    return [event["id"] for event in events(path)]


def messages(*said: str) -> list[bytes]:
    return [orjson.dumps({"role": "user", "content": one}) for one in said]


@pytest.mark.parametrize("layout", [b"\n".join, lambda said: b'{"messages":[' + b",".join(said) + b"]}"])
def test_logs_without_ids_do_not_collide(tmp_path: Path, layout: Callable[[list[bytes]], bytes]) -> None:

    def written(name: str, *said: str) -> list[str]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(layout(messages(*said)))
        return ids(path)

    one = written("one.jsonl", "hi", "A")
    assert {*one}.isdisjoint(written("two.jsonl", "hi", "A"))
    assert {*one}.isdisjoint(written("elsewhere/one.jsonl", "hello", "A"))
    assert written("again/one.jsonl", "hi", "A") == one
    assert written("one.jsonl", "hi", "A", "B")[:2] == one  # it grew


def test_conversations_have_different_sessions(write: Callable[[bytes], Path]) -> None:
    line = b'{"messages":[' + MESSAGE + b"]}\n"
    ids = [
        event["id"].rpartition("-")[0]
        for event in events(write(line * 2 + b'{"thread_id":7,"messages":[' + MESSAGE + b"]}"))
    ]
    assert ids == ["log-1-1", "log-2-1", "7-1"]


def test_bare_messages_may_name_their_conversation(write: Callable[[bytes], Path]) -> None:
    path = write(b'{"role":"user","content":"a","conversation_id":"x","timestamp":"2026-01-01T00:00:00Z"}\n' + MESSAGE)
    first, second = events(path)
    assert (first["session_id"], first["timestamp"]) == ("x", "2026-01-01T00:00:00Z")
    assert second["session_id"] == "log-1"
    assert [one["id"].rpartition("-")[0] for one in (first, second)] == ["x-1", "log-1-2"]


def test_tool_calls_go_into_metadata(write: Callable[[bytes], Path]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "tool_calls": [call], "metadata": {"model": "m"}},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    asked, answered = events(write(orjson.dumps(messages)))
    assert asked["content"] is None
    assert asked["metadata"] == {"model": "m", "tool_calls": [call]}
    assert answered["metadata"] == {"tool_call_id": "c1"}
    assert is_valid(asked)
    assert is_valid(answered)


@pytest.mark.parametrize(
    ("element", "fields"),
    [
        ({"role": "user"}, {"content"}), ({"content": "who says so?"}, {"role"}),
        ({"role": "user", "content": 5}, {"content"}),
        ({"role": "user", "content": "x", "created": True}, {"timestamp"}),
        ({"role": "user", "content": "x", "id": {"a": 1}}, {"id"}),
        ({"role": "user", "content": "x", "session_id": ["a"]}, {"session_id"}),
        ({"role": "user", "content": "x", "metadata": ""}, {"metadata"}), ({"unrelated": 1}, {"role", "content"}),
        ("just text", {"role", "content"}), (None, {"role", "content"}),
        ([{"role": "user", "content": "x"}], {"role", "content"}), ({"messages": "none"}, {"role", "content"}),
        ({"messages": [None]}, {"role", "content"}),
    ],
)  # fmt: skip
def test_malformed_element_is_rejected(write: Callable[[bytes], Path], element: object, fields: set[str]) -> None:
    good = orjson.loads(MESSAGE)
    before, malformed, after = events(write(orjson.dumps([good, element, good])))
    assert is_valid(before)
    assert wrong_fields(malformed) == fields
    assert is_valid(after)


def test_malformed_lines_are_kept(write: Callable[[bytes], Path]) -> None:
    _, malformed = events(write(b"[" + MESSAGE + b', "just text"]'))
    assert malformed["metadata"] == {"malformed": "just text"}


def test_an_openai_line_that_is_no_json_passes_through(write: Callable[[bytes], Path]) -> None:
    path = write(b"{torn\n" + MESSAGE + b"\nnull\n" + b"x" * (EVENT_BYTES + 7) + b"\n" + MESSAGE)
    values = read_log(path)
    assert len(values) == len(read_log(path)) == 5
    assert (values[0], values[2], len(values[3])) == (b"{torn", b"null", EVENT_BYTES)


@pytest.mark.parametrize("line", [MESSAGE, EVENT])
def test_byte_order_mark_is_skipped(write: Callable[[bytes], Path], line: bytes) -> None:
    marked = read_log(write(b"\xef\xbb\xbf" + line + b"\n" + line))
    assert len(marked) == 2
    assert marked == read_log(write(line + b"\n" + line))


def test_nesting_deeper_than_can_be_written_is_refused_as_that(write: Callable[[bytes], Path]) -> None:
    deep = b"[" * 500 + b"]" * 500
    path = write(b'{"role":"user","content":"x","metadata":{"a":' + deep + b"}}")
    (event,) = events(path)
    assert (event["session_id"], event["role"], event["content"]) == ("log-1", "user", "x")
    (value,) = read_log(path)
    with pytest.raises(InvalidRecord, match="nested more than 201 levels deep"):
        parse(value)


def test_a_log_in_utf_16_is_named(write: Callable[[bytes], Path]) -> None:
    with pytest.raises(UsageError, match="is UTF-16; send UTF-8"):
        detect_format(write((EVENT + b"\n").decode().encode("utf-16")))


def test_ambiguous_seconds_are_written_as_text(write: Callable[[bytes], Path]) -> None:
    (event,) = events(write(b'{"role":"user","content":"x","created":2678400}'))
    assert event["timestamp"] == "1970-02-01T00:00:00Z"
    assert is_valid(event)


def test_locomo_turns_become_messages(write: Callable[[bytes], Path]) -> None:
    path = write(orjson.dumps(LOCOMO))
    found = events(path)
    assert found[0] == {
        "type": "message", "tenant_id": "acme", "user_id": "pair-1", "environment": "test", "id": "D2:1",
        "session_id": "session_2", "timestamp": "2023-05-08T13:56:00+00:00", "role": "user", "name": "Ann",
        "content": "Look! [image: a kite over a beach]",
    }  # fmt: skip
    assert [event["id"] for event in found] == ["D2:1", "D2:2", "D10:1"]  # session 2 comes before session 10
    assert found[2]["timestamp"] == "2024-03-03T00:05:00+00:00"
    assert all(is_valid(event) for event in found)
    assert len(read_log(path)) == 3


@pytest.mark.parametrize(
    ("sample", "fields"),
    [
        ("no sample", {"role", "content"}),
        ({"sample_id": "s", "conversation": []}, {"role", "content"}),
        ({"sample_id": "s", "conversation": {"session_1": "none"}}, {"role", "content"}),
        ({"sample_id": "s", "conversation": {"session_1": ["none"]}}, {"role", "content"}),
        ({"sample_id": "s", "conversation": {"session_1": [{"speaker": "Ann"}]}}, {"content"}),
        ({"sample_id": 7, "conversation": {"session_1": [{"speaker": "Ann", "text": "x"}]}}, {"user_id"}),
        (
            {
                "sample_id": "s",
                "conversation": {"session_1_date_time": "noon", "session_1": [{"speaker": "Ann", "text": "x"}]},
            },
            {"timestamp"},
        ),
    ],
)
def test_malformed_sample_is_rejected(write: Callable[[bytes], Path], sample: object, fields: set[str]) -> None:
    malformed, *after = events(write(orjson.dumps([sample, *LOCOMO])))
    assert (wrong_fields(malformed), len(after)) == (fields, 3)


def test_sharegpt_conversations_are_messages(write: Callable[[bytes], Path]) -> None:
    said = [("system", "Be brief."), ("human", "hello"), ("gpt", "hi"), ("observation", "rain")]
    talk = {"id": "a", "conversations": [{"from": who, "value": text} for who, text in said]}
    for content in (orjson.dumps([talk]), orjson.dumps(talk, option=orjson.OPT_INDENT_2), orjson.dumps(talk)):
        found = events(write(content))
        assert [one["role"] for one in found] == ["system", "user", "assistant", "tool"]
        assert [one["content"] for one in found] == [text for _, text in said]
        assert {one["session_id"] for one in found} == {"a"}
        assert all(is_valid(one) for one in found)


LIMIT = 10


class SlowFile(io.BytesIO):
    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(min(7, size or 0))


@pytest.mark.parametrize("seed", range(50))
def test_batched_lines_equal_single_lines(seed: int) -> None:
    data = bytes(random.Random(seed).choices(b"\nabc", weights=[1, 3, 3, 3], k=seed * 3))
    expected = [*bounded_lines(io.BytesIO(data), LIMIT)]
    for file in (io.BytesIO(data), SlowFile(data)):
        assert [*chain.from_iterable(batches_of_lines(file, LIMIT))] == expected
