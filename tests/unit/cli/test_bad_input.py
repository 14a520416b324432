"""Lines of `recallflow pipe` that are wrong, unusual or hostile: each is refused or applied, and stops no other."""

from typing import Any, NamedTuple, get_args

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.queries import Mode
from tests.unit.cli.harness import on_files, parsed

MIB = 1024 * 1024
YEAR_30000_MS = 884_541_340_800_000
MEMORY = {"type": "memory"}


class Refused(NamedTuple):
    """A line and its error. `token`: part of the message, where code and fields do not tell the problem."""

    line: bytes
    code: str
    fields: list[str]
    token: str = ""


def event(**fields: Any) -> bytes:
    return orjson.dumps({"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "hello"} | fields)


def ask(kind: str = "recall", **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "tenant_id": "acme", "user_id": "ann"} | fields)


def without(field: str) -> bytes:
    complete = orjson.loads(event())
    del complete[field]
    return orjson.dumps(complete)


def raw(json_fields: bytes, kind: bytes = b"message") -> bytes:
    """Return a message with fields as JSON text that no JSON library writes."""
    text = b"query" if kind == b"recall" else b"content"
    said = b"" if b'"%s":' % text in json_fields else b'"%s": "hello", ' % text
    return b'{"type": "%s", "tenant_id": "acme", "user_id": "ann", %s' % (kind, said) + json_fields + b"}"


def sized(size_bytes: int) -> bytes:
    return event(content="x" * (size_bytes - len(event(content=""))))


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def encoded(encoding: str) -> bytes:
    return event().decode().encode(encoding)


def not_json(line: bytes, token: str = "") -> Refused:
    return Refused(line, "invalid_json", [""], token)


def not_valid(line: bytes, *fields: str, token: str = "") -> Refused:
    return Refused(line, "invalid_event", [*fields], token)


REFUSED = {
    "UTF-16": not_json(encoded("utf-16"), "UTF-16"),
    "UTF-16 without a mark": not_json(encoded("utf-16-le"), "UTF-16"),
    "a later line of UTF-16": not_json(b"\0" + encoded("utf-16-le"), "UTF-16"),
    "UTF-16, big end first": not_json(encoded("utf-16-be"), "UTF-16"),
    "UTF-32": not_json(encoded("utf-32"), "UTF-32"),
    "UTF-32 without a mark": not_json(encoded("utf-32-le"), "UTF-32"),
    "framed by a schema registry": not_json(b"\0\0\0\1\7" + event(), "schema 263"),
    "framed Avro": not_json(b"\0\0\0\0\1\x08acme", "registry"),
    "truncated JSON": not_json(event()[:-10]),
    "binary": not_json(bytes(range(128, 255))),
    "not UTF-8 within a text": not_json(raw(b'"name": "\xe9t\xe9"')),
    "zero bytes": not_json(b"\x00" * 100),
    "an empty line": not_json(b"", "empty"),
    "blanks": not_json(b" \t ", "empty"),
    "two objects in a line": not_json(event() + event()),
    "a lone surrogate": not_json(raw(rb'"name": "\ud800"')),
    "1,000 levels": not_json(raw(b'"metadata": {"a": ' + nested(1_000) + b"}"), "201 levels"),
    "100,000 levels": not_json(nested(100_000), "201 levels"),
    "5 MB": Refused(sized(5_000_000), "too_large", [""], "1048576"),
    "a byte over 1 MiB": Refused(sized(MIB + 1), "too_large", [""], "1048576"),
    "an unknown type": Refused(event(type="memo"), "unknown_type", ["type"], "category.summary"),
    "no type": Refused(without("type"), "unknown_type", ["type"], "category.summary"),
    "an embedding of another size": Refused(event(embedding=[0.5] * 3), "wrong_dimension", ["embedding"], "384"),
    "epoch seconds": not_valid(event(timestamp=1_767_225_600), "timestamp", token="milliseconds"),
    "a fraction of epoch seconds": not_valid(event(timestamp=1_767_225_600.5), "timestamp", token="milliseconds"),
    "epoch seconds of validity": not_valid(
        event(**MEMORY, valid_from=1_000_000_000, expires_at=9_999_999_999), "expires_at", "valid_from"
    ),
    "an array": not_valid(b"[" + event() + b"]", "", token="object"),
    "a number": not_valid(b"17", "", token="object"),
    "a string": not_valid(b'"message"', "", token="object"),
    "null": not_valid(b"null", "", token="object"),
    "no tenant": not_valid(without("tenant_id"), "tenant_id"),
    "no user": not_valid(without("user_id"), "user_id"),
    "no content": not_valid(without("content"), "content"),
    "an empty user": not_valid(event(user_id=""), "user_id", token="empty"),
    "an id of 129 characters": not_valid(event(id="x" * 129), "id", token="128"),
    "an id with a newline": not_valid(event(id="a\nb"), "id", token="control"),
    "a newline at an id's end": not_valid(event(user_id="a\n"), "user_id", token="control"),
    "a text of blanks": not_valid(event(**MEMORY, content="  "), "content"),
    "an empty message": not_valid(event(content=""), "content"),
    "a message of blanks": not_valid(event(content=" \n\t\u00a0"), "content"),
    "a message of no parts": not_valid(event(content=[]), "content"),
    "a message of blank parts": not_valid(event(content=[{"type": "text", "text": " "}] * 2), "content"),
    "a user's message of null": not_valid(event(content=None), "content"),
    "a blank content of another message": not_valid(event(type="memory.update", memory_id="a", content=" "), "content"),
    "NaN in an embedding": not_valid(raw(b'"embedding": [NaN, 1]'), "embedding.0", token="finite"),
    "Infinity in an embedding": not_valid(raw(b'"embedding": [-Infinity]'), "embedding.0", token="finite"),
    "an embedding of words": not_valid(event(embedding=["one", None, *["two"] * 14]), "embedding.0"),
    "a hash that is none": not_valid(
        event(type="memory.embedding", memory_id="a", embedding=[1.0], model="m", content_hash="zz"), "content_hash"
    ),
    "an integer beyond 64 bits in metadata": not_valid(raw(b'"metadata": {"a": %d}' % 10**30), "metadata"),
    "an integer beyond 64 bits in a relation": not_valid(
        raw(b'"relations": [{"source": "a", "type": "b", "target": "c", "properties": {"x": %d}}]' % 10**30, b"memory"),
        "relations",
    ),
    "true as a timestamp": not_valid(event(timestamp=True), "timestamp", token="RFC 3339"),
    "a word as a timestamp": not_valid(event(timestamp="yesterday"), "timestamp", token="RFC 3339"),
    "the year 30000 in milliseconds": not_valid(event(timestamp=YEAR_30000_MS), "timestamp", token="9999"),
    "the year 30000": not_valid(event(timestamp="30000-01-01T00:00:00Z"), "timestamp", token="RFC 3339"),
    "NaN in metadata": not_valid(raw(b'"metadata": {"a": NaN}'), "metadata"),
    "a timestamp of NaN": not_valid(raw(b'"timestamp": NaN'), "timestamp", token="9999"),
    "a timestamp of 1e400": not_valid(raw(b'"timestamp": 1e400'), "timestamp", token="9999"),
    "an end before its beginning": not_valid(event(**MEMORY, valid_from=10, valid_to=5), "valid_to"),
    "wrong types in many fields": not_valid(
        event(
            **MEMORY, id=5, content=7, tags="a", importance=3, confidence="high", layer="attic", metadata=[1],
            entities=[{"name": 1}], embedding="no", valid_from="tomorrow",
        ),
        "confidence", "content", "embedding", "entities.0.name", "id", "importance", "layer", "metadata", "tags",
        "valid_from", token="long_term",
    ),
    "wrong content parts": not_valid(
        event(content=[{"type": 1}, 5], role="king"), "content.0.type", "content.1", "role", token="system"
    ),
    "a change of nothing": not_valid(event(type="memory.update", memory_id="a", content=None), "content"),
    "nothing to forget": not_valid(ask("memory.forget"), ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def errors() -> dict[str, list[dict[str, Any]]]:
    """Return the errors of each bad line, of a run in which each follows and precedes a good line."""
    lines = [event(id="g0")]
    for number, refused in enumerate(REFUSED.values(), 1):
        lines += [refused.line, event(id=f"g{number}")]
    lines += [ask("memory.get", memory_id=f"g{number}") for number in range(len(REFUSED) + 1)]
    done = on_files("pipe", "--partitions", "1", stdin=b"\n".join(lines))
    assert done.returncode == 0
    assert [answer["status"] for answer in parsed(done.stdout)] == ["ok"] * (len(REFUSED) + 1)
    names = {2 * number: name for number, name in enumerate(REFUSED, 1)}
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in REFUSED}
    for line in parsed(done.stderr):
        told[names[line["line"]]].append(line["error"])
    return told


@pytest.mark.parametrize("name", REFUSED)
def test_bad_line_is_refused_once_with_its_fields(errors: dict[str, list[dict[str, Any]]], name: str) -> None:
    (error,) = errors[name]
    wanted = REFUSED[name]
    assert (error["code"], sorted(field["field"] for field in error["fields"])) == (wanted.code, wanted.fields)
    assert wanted.token in error["message"]
    assert "pattern" not in error["message"]  # a regular expression does not tell the remedy


ACCEPTED = {
    "an id with slashes": event(id="a/b//c"),
    "ids of emoji": event(id="🦦🦦", tenant_id="🏔️", user_id="😀", session_id="🎈"),
    "an id of 128 characters": event(id="é" * 128), "1 MiB": sized(MIB),
    "a byte order mark before the event": b"\xef\xbb\xbf" + event(), "a negative epoch": event(timestamp=-1_000),
    "nine digits of milliseconds": event(timestamp=999_999_999),
    "eleven digits of milliseconds": event(timestamp=10_000_000_000),
    "text in the months whose milliseconds look like seconds": event(timestamp="1970-02-01T00:00:00Z"),
    "the first moment": event(timestamp="0001-01-01T00:00:00Z"),
    "the last moment": event(timestamp="9999-12-31T23:59:59.999Z"),
    "a time without offset": event(timestamp="2025-06-01T12:00:00"),
    "an embedding of zeros": event(embedding=[0] * 384),
    "190 levels in metadata": raw(b'"metadata": {"a": ' + nested(190) + b"}"), "an unknown field": event(mood="good"),
    "unknown fields that the engine has words for": event(text="a", given=1, model_dump=2, model_extra=3, seq=4),
    "a byte order mark in the text": event(content="\ufeffhello"), "a zero in the text": event(content="a\u0000b"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_unusual_line_is_remembered_and_found(name: str) -> None:
    said = orjson.loads(ACCEPTED[name].removeprefix(b"\xef\xbb\xbf"))
    asks = {key: said[key] for key in ("tenant_id", "user_id")} | {"timestamp": "9999-12-31T23:59:59.999Z"}
    memory_id = said.get("id", "lines:0:0")
    queries = [
        asks | {"type": "memory.get", "memory_id": memory_id}, asks | {"type": "recall", "query": "hello"},
        asks | {"type": "episodes.list"},
    ]  # fmt: skip
    lines = [ACCEPTED[name], *map(orjson.dumps, queries)]
    done = process(lines, Settings(partitions=1))
    assert done.rejected == []
    got, recalled, listed = done.responses
    assert got["versions"][0]["content"] == said["content"]
    assert [memory["id"] for memory in recalled["memories"]] == [memory_id]
    assert [episode["messages"] for episode in listed["episodes"]] == [1]


TEXTLESS: dict[str, dict[str, Any]] = {
    "an assistant that calls a tool": {"role": "assistant", "content": None},
    "a tool without output": {"role": "tool", "content": None, "metadata": {"tool_call_id": "1"}},
    "a message with a vector": {"role": "assistant", "content": None, "embedding": [0.5] * 384},
}


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("name", TEXTLESS)
def test_a_textless_message_is_stored_and_never_ranked(name: str, mode: str) -> None:
    lines = [
        event(id="textless", timestamp=1, session_id="s", **TEXTLESS[name]),
        event(id="told", timestamp=2, session_id="s"), ask("memory.get", memory_id="textless"), ask("memories.list"),
        ask(query="hello", mode=mode, k=50, max_tokens=500, strategy="hybrid_graph"),
    ]  # fmt: skip
    got, listed, recalled = process(lines, Settings(partitions=1)).responses
    assert got["versions"][0]["content"] == ""
    assert [memory["id"] for memory in listed["memory_page"]["memories"]] == ["told", "textless"]
    assert [memory["id"] for memory in recalled["memories"]] == ["told"]
    assert [item["id"] for item in recalled["context"]["relevant_items"]] == ["told"]


def test_a_textless_message_that_gets_a_text_is_ranked() -> None:
    textless = event(id="a", role="assistant", content=None)
    change = {"type": "memory.update", "tenant_id": "acme", "user_id": "ann", "memory_id": "a", "content": "hello"}
    (answer,) = process([textless, orjson.dumps(change), ask(query="hello")], Settings(partitions=1)).responses
    assert [memory["id"] for memory in answer["memories"]] == ["a"]


def test_memory_from_the_future_is_kept_with_a_warning() -> None:
    lines = [event(id="a", timestamp="2999-01-01T00:00:00Z"), ask(query="tea", timestamp="2025-01-01T00:00:00Z")]
    (answer,) = process(lines, Settings(partitions=1)).responses
    assert (answer["status"], [memory["id"] for memory in answer["memories"]]) == ("ok", ["a"])
    assert [warning["code"] for warning in answer["warnings"]] == ["future_timestamp"]


INVALID = "invalid_event"
BAD_QUERIES = {
    "no question": (ask(), INVALID, ["query"]),
    "a question of blanks": (ask(query=" \n"), INVALID, ["query"]),
    "an unknown mode": (ask(query="a", mode="best"), INVALID, ["mode"]),
    "a wrong decay": (
        ask(query="a", decay={"function": "cliff", "tau_days": 0}), INVALID, ["decay.function", "decay.tau_days"]
    ),
    "a wrong filter": (
        ask(query="a", filters={"layers": ["attic"], "min_confidence": 2}),
        INVALID, ["filters.layers.0", "filters.min_confidence"],
    ),
    "300 digits of tokens": (raw(b'"max_tokens": ' + b"9" * 300, b"recall"), INVALID, ["max_tokens"]),
    "300 digits of a timestamp": (raw(b'"timestamp": ' + b"9" * 300, b"recall"), INVALID, ["timestamp"]),
    "more tokens than a record holds": (ask(query="a", max_tokens=1_000_001), INVALID, ["max_tokens"]),
    "a query with a byte order mark": (b"\xef\xbb\xbf" + ask(), INVALID, ["query"]),
    "no position to wait for": (ask(query="a", wait_for="soon"), INVALID, ["wait_for"]),
    "one wrong position of two": (ask(query="a", wait_for=["memories:0:1", "soon"]), INVALID, ["wait_for.1"]),
    "a moment that names no time": (ask(query="a", as_of={}), INVALID, ["as_of"]),
    "100,000 levels": (raw(b'"filters": {"tags": ' + nested(100_000) + b"}", b"recall"), None, []),
    "a question over 1 MiB": (ask(query="x" * MIB), "too_large", [""]),
    "a control character in the id": (ask(query="a", id="a\nb"), INVALID, ["id"]),
    "no tenant": (orjson.dumps({"type": "recall", "query": "a"}), INVALID, ["tenant_id", "user_id"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_QUERIES)
def test_bad_query_gets_one_error_response_with_all_its_fields(name: str) -> None:
    line, code, fields = BAD_QUERIES[name]
    *errors, last = process([line, ask(query="hello", id="last")], Settings(partitions=1)).responses
    answered = [(e["status"], e["error"]["code"], [f["field"] for f in e["error"]["fields"]]) for e in errors]
    assert answered == ([] if code is None else [("error", code, fields)])  # an unreadable line is no query
    assert (last["query_id"], last["status"]) == ("last", "ok")


STUMBLING = {
    "a message of one emoji": event(content="👍"), "a message of punctuation": event(content="。！？ …"),
    "a memory of one emoji": event(**MEMORY, content="👍"), "a question of one emoji": ask(query="👍"),
    "the episodes of a stranger": ask("episodes.list", user_id="nobody"),
    "the counts of a stranger": ask("user.stats", user_id="nobody"),
    "a memory of a stranger": ask("memory.get", user_id="nobody", memory_id="a"),
    "the history of a stranger": ask("memory.history", user_id="nobody", memory_id="a"),
    "a question of a stranger": ask(user_id="nobody", query="hello"), "a list as type": event(type=["message"]),
    "an object as type": event(type={"message": 1}), "a timestamp of 400 digits": raw(b'"timestamp": %d' % 10**400),
    "a time of 400 digits in a query": raw(b'"filters": {"created_after": %d}' % 10**400, b"recall"),
    "an embedding of numbers beyond float32": event(embedding=[1e300] * 384),
    "an embedding where none belongs": ask("episode.end", embedding=5),
    "a wrong memory id where none belongs": ask("episode.end", memory_id=5),
    "a wrong receipt where none belongs": ask("episodes.list", receipt=True, memory_id=5),
}  # fmt: skip


@pytest.mark.parametrize("name", STUMBLING)
def test_odd_line_stops_no_other(name: str) -> None:
    before, after = event(id="before", timestamp=1), event(id="after", timestamp=2)
    questions = [ask(query="hello", filters={"session_ids": ["s"]}), ask(query="hello", id="last", timestamp=3)]
    for lines in ([STUMBLING[name]], [before, STUMBLING[name], after, *questions]):
        done = process(lines, Settings(partitions=1))
    last = done.responses[-1]
    assert (last["query_id"], last["status"]) == ("last", "ok")
    assert {"before", "after"} <= {memory["id"] for memory in last["memories"]}
