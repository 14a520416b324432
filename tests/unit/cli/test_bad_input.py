"""Whatever comes in on stdin: what is wrong is named with its field and its fix, and all good lines are applied."""

import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

MIB = 1024 * 1024
YEAR_30000_MS = 884_541_340_800_000
TIMES = "RFC 3339 (2026-01-31T12:00:00Z) or epoch milliseconds"


class Refused(NamedTuple):
    """A line, and what its refusal has to say."""

    line: bytes
    code: str
    fields: tuple[str, ...]
    says: str


def event(**fields: Any) -> bytes:
    return orjson.dumps({"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "hello"} | fields)


def ask(kind: str = "recall", **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "tenant_id": "acme", "user_id": "ann"} | fields)


def without(field: str) -> bytes:
    complete = orjson.loads(event())
    del complete[field]
    return orjson.dumps(complete)


def raw(json_fields: bytes, kind: bytes = b"message") -> bytes:
    """A message with fields as JSON text, for what no JSON library writes."""
    text = b"query" if kind == b"recall" else b"content"
    said = b"" if b'"%s":' % text in json_fields else b'"%s": "hello", ' % text
    return b'{"type": "%s", "tenant_id": "acme", "user_id": "ann", %s' % (kind, said) + json_fields + b"}"


def sized(size_bytes: int) -> bytes:
    return event(content="x" * (size_bytes - len(event(content=""))))


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


MEMORY = {"type": "memory"}

UNMARKED_UTF16, UNMARKED_UTF32 = (event().decode().encode(f"utf-{bits}-le") for bits in (16, 32))
SECONDS = "looks like epoch seconds; give milliseconds"

REFUSED = {
    "UTF-16": Refused(event().decode().encode("utf-16"), "invalid_json", ("",), "is UTF-16; send UTF-8"),
    "UTF-16 without a mark": Refused(UNMARKED_UTF16, "invalid_json", ("",), "is UTF-16"),
    "a later line of UTF-16": Refused(b"\0" + UNMARKED_UTF16, "invalid_json", ("",), "is UTF-16"),
    "UTF-16, big end first": Refused(event().decode().encode("utf-16-be"), "invalid_json", ("",), "is UTF-16"),
    "UTF-32": Refused(event().decode().encode("utf-32"), "invalid_json", ("",), "is UTF-32"),
    "UTF-32 without a mark": Refused(UNMARKED_UTF32, "invalid_json", ("",), "is UTF-32"),
    "framed by a schema registry": Refused(b"\0\0\0\1\7" + event(), "invalid_json", ("",), "registry (schema 263)"),
    "framed Avro": Refused(b"\0\0\0\0\1\x08acme", "invalid_json", ("",), "plain JSON, without the registry's"),
    "epoch seconds": Refused(event(timestamp=1_767_225_600), "invalid_event", ("timestamp",), SECONDS),
    "a fraction of epoch seconds": Refused(event(timestamp=1_767_225_600.5), "invalid_event", ("timestamp",), SECONDS),
    "epoch seconds of validity": Refused(
        event(**MEMORY, valid_from=1_000_000_000, expires_at=9_999_999_999),
        "invalid_event", ("expires_at", "valid_from"), SECONDS,
    ),
    "truncated JSON": Refused(event()[:-10], "invalid_json", ("",), "JSON"),
    "binary": Refused(bytes(range(128, 255)), "invalid_json", ("",), "JSON"),
    "not UTF-8 within a text": Refused(raw(b'"name": "\xe9t\xe9"'), "invalid_json", ("",), "unicode"),
    "zero bytes": Refused(b"\x00" * 100, "invalid_json", ("",), "JSON"),
    "an empty line": Refused(b"", "invalid_json", ("",), "empty; send one JSON object"),
    "blanks": Refused(b" \t ", "invalid_json", ("",), "empty; send one JSON object"),
    "two objects in a line": Refused(event() + event(), "invalid_json", ("",), "trailing characters"),
    "5 MB": Refused(sized(5_000_000), "too_large", ("",), "over 1048576 bytes; split it"),
    "a byte over 1 MiB": Refused(sized(MIB + 1), "too_large", ("",), "over 1048576 bytes; split it"),
    "a lone surrogate": Refused(raw(rb'"name": "\ud800"'), "invalid_json", ("",), "hex escape"),
    "1,000 levels": Refused(raw(b'"metadata": {"a": ' + nested(1_000) + b"}"), "invalid_json", ("",), "201 levels"),
    "100,000 levels": Refused(nested(100_000), "invalid_json", ("",), "201 levels"),
    "an array": Refused(b"[" + event() + b"]", "invalid_event", ("",), "object"),
    "a number": Refused(b"17", "invalid_event", ("",), "object"),
    "a string": Refused(b'"message"', "invalid_event", ("",), "object"),
    "null": Refused(b"null", "invalid_event", ("",), "object"),
    "an unknown type": Refused(event(type="memo"), "unknown_type", ("type",), "give one of category.summary, "),
    "no type": Refused(without("type"), "unknown_type", ("type",), "missing; give one of category.summary, "),
    "no tenant": Refused(without("tenant_id"), "invalid_event", ("tenant_id",), "required"),
    "no user": Refused(without("user_id"), "invalid_event", ("user_id",), "required"),
    "no content": Refused(without("content"), "invalid_event", ("content",), "required"),
    "an empty user": Refused(event(user_id=""), "invalid_event", ("user_id",), "is empty; give some text"),
    "an id of 129 characters": Refused(event(id="x" * 129), "invalid_event", ("id",), "at most 128 characters"),
    "an id with a newline": Refused(event(id="a\nb"), "invalid_event", ("id",), "control"),
    "a newline at an id's end": Refused(event(user_id="a\n"), "invalid_event", ("user_id",), "control"),
    "a text of blanks": Refused(event(**MEMORY, content="  "), "invalid_event", ("content",), ""),
    "NaN in an embedding": Refused(raw(b'"embedding": [NaN, 1]'), "invalid_event", ("embedding.0",), "finite"),
    "Infinity in an embedding": Refused(raw(b'"embedding": [-Infinity]'), "invalid_event", ("embedding.0",), "finite"),
    "an embedding of words": Refused(
        event(embedding=["one", None, *["two"] * 14]), "invalid_event", ("embedding.0",), "not a number"
    ),
    "a hash that is none": Refused(
        event(type="memory.embedding", memory_id="a", embedding=[1.0], model="m", content_hash="zz"),
        "invalid_event", ("content_hash",), "64 hexadecimal digits",
    ),
    "an embedding of another size": Refused(
        event(embedding=[0.5] * 3), "wrong_dimension", ("embedding",), "3 numbers; hash-384 has 384. Leave it out"
    ),
    "an integer beyond 64 bits in metadata": Refused(
        raw(b'"metadata": {"a": %d}' % 10**30), "invalid_event", ("metadata",), "64-bit"
    ),
    "true as a timestamp": Refused(event(timestamp=True), "invalid_event", ("timestamp",), TIMES),
    "a word as a timestamp": Refused(event(timestamp="yesterday"), "invalid_event", ("timestamp",), TIMES),
    "the year 30000 in milliseconds": Refused(
        event(timestamp=YEAR_30000_MS), "invalid_event", ("timestamp",), "outside the years 1 to 9999"
    ),
    "the year 30000": Refused(event(timestamp="30000-01-01T00:00:00Z"), "invalid_event", ("timestamp",), TIMES),
    "NaN in metadata": Refused(raw(b'"metadata": {"a": NaN}'), "invalid_event", ("metadata",), "JSON does not have"),
    "a timestamp of NaN": Refused(raw(b'"timestamp": NaN'), "invalid_event", ("timestamp",), "outside the years"),
    "a timestamp of 1e400": Refused(raw(b'"timestamp": 1e400'), "invalid_event", ("timestamp",), "outside the years"),
    "an end before its beginning": Refused(
        event(**MEMORY, valid_from=10, valid_to=5), "invalid_event", ("valid_to",), "before valid_from"
    ),
    "wrong types in many fields": Refused(
        event(
            **MEMORY, id=5, content=7, tags="a", importance=3, confidence="high", layer="attic", metadata=[1],
            entities=[{"name": 1}], embedding="no", valid_from="tomorrow",
        ),
        "invalid_event",
        (
            "confidence", "content", "embedding", "entities.0.name", "id",
            "importance", "layer", "metadata", "tags", "valid_from",
        ),
        "layer: Input should be 'rule', 'working' or 'long_term'",
    ),
    "wrong content parts": Refused(
        event(content=[{"type": 1}, 5], role="king"),
        "invalid_event",
        ("content.0.type", "content.1", "role"),
        "role: Input should be 'system'",
    ),
    "a change of nothing": Refused(
        event(type="memory.update", memory_id="a", content=None), "invalid_event", ("content",), "memory.forget"
    ),
    "nothing to forget": Refused(ask("memory.forget"), "invalid_event", ("",), "give either memory_id or"),
}  # fmt: skip


class Piped(NamedTuple):
    """What a run gave in which every bad line stood between good ones."""

    code: int
    told: dict[str, list[dict[str, Any]]]
    found: list[str]  # the status of asking for each good line


@pytest.fixture(scope="module")
def piped(start: Callable[..., subprocess.Popen[bytes]]) -> Piped:
    """All bad lines in one run, in a process of its own: a good line, a bad line, a good line, …"""
    lines = [event(id="g0")]
    for number, refused in enumerate(REFUSED.values(), 1):
        lines += [refused.line, event(id=f"g{number}")]
    lines += [ask("memory.get", memory_id=f"g{number}") for number in range(len(REFUSED) + 1)]
    pipe = start("pipe")
    out, err = pipe.communicate(b"\n".join(lines))
    names = {2 * number: name for number, name in enumerate(REFUSED, 1)}
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in REFUSED}
    for line in map(orjson.loads, err.splitlines()):
        told[names[line["line"]]].append(line["error"])
    answers = map(orjson.loads, out.splitlines())
    return Piped(pipe.returncode, told, [answer["status"] for answer in answers])


def test_bad_lines_stop_nothing(piped: Piped) -> None:
    assert piped.code == 0
    assert piped.found == ["ok"] * (len(REFUSED) + 1)


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_line_is_told_once_with_its_fields_and_what_to_do(piped: Piped, name: str) -> None:
    (error,) = piped.told[name]
    wanted = REFUSED[name]
    assert (error["code"], sorted(field["field"] for field in error["fields"])) == (wanted.code, [*wanted.fields])
    assert wanted.says in error["message"]
    assert "pattern" not in error["message"]  # a regular expression tells nobody what to do


def test_an_integer_beyond_64_bits_is_told_of_the_field_that_holds_it() -> None:
    line = raw(
        b'"relations": [{"source": "a", "type": "b", "target": "c", "properties": {"x": %d}}]' % 10**30, b"memory"
    )
    (refused,) = process([line], Settings(partitions=1)).rejected
    assert [field["field"].partition(".")[0] for field in refused["error"]["fields"]] == ["relations"]


# ── good, though it may not look it ───────────────────────────────────────────────────────────────────────────────

ACCEPTED = {
    "an id with slashes": event(id="a/b//c"),
    "ids of emoji": event(id="🦦🦦", tenant_id="🏔️", user_id="😀", session_id="🎈"),
    "an id of 128 characters": event(id="é" * 128),
    "1 MiB": sized(MIB),
    "a byte order mark before the event": b"\xef\xbb\xbf" + event(),
    "a negative epoch": event(timestamp=-1_000),
    "nine digits of milliseconds": event(timestamp=999_999_999),
    "eleven digits of milliseconds": event(timestamp=10_000_000_000),
    "text in the months whose milliseconds look like seconds": event(timestamp="1970-02-01T00:00:00Z"),
    "the first moment": event(timestamp="0001-01-01T00:00:00Z"),
    "the last moment": event(timestamp="9999-12-31T23:59:59.999Z"),
    "a time without offset": event(timestamp="2025-06-01T12:00:00"),
    "an embedding of zeros": event(embedding=[0] * 384),
    "190 levels in metadata": raw(b'"metadata": {"a": ' + nested(190) + b"}"),
    "an unknown field": event(mood="good"),
    "unknown fields that the engine has words for": event(text="a", given=1, model_dump=2, model_extra=3, seq=4),
    "an empty text": event(content=""),
    "no content, as where only tools are called": event(role="assistant", content=None),
    "a byte order mark in the text": event(content="\ufeffhello"),
    "a zero in the text": event(content="a\u0000b"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_unusual_but_right_is_remembered_and_found(name: str) -> None:
    said = orjson.loads(ACCEPTED[name].removeprefix(b"\xef\xbb\xbf"))
    asks = {key: said[key] for key in ("tenant_id", "user_id")} | {"timestamp": "9999-12-31T23:59:59.999Z"}
    memory_id = said.get("id", "lines:0:0")
    queries = [
        asks | {"type": "memory.get", "memory_id": memory_id},
        asks | {"type": "recall", "query": "hello"},
        asks | {"type": "episodes.list"},
    ]
    lines = [ACCEPTED[name], *map(orjson.dumps, queries)]
    done = process(lines, Settings(partitions=1))
    assert done.rejected == []
    got, recalled, listed = done.responses
    assert got["versions"][0]["content"] == (said["content"] or "")
    assert [memory["id"] for memory in recalled["memories"]] == [memory_id]
    assert [episode["messages"] for episode in listed["episodes"]] == [1]


def test_a_negative_epoch_is_the_time_before_1970() -> None:
    done = process([event(id="a", timestamp=-1_000), ask(query="hello")], Settings(partitions=1))
    assert done.responses[0]["memories"][0]["created_at"] == "1969-12-31T23:59:59Z"


def test_a_memory_from_the_future_is_kept_and_the_answer_warns_of_it() -> None:
    lines = [event(id="a", timestamp="2999-01-01T00:00:00Z"), ask(query="tea", timestamp="2025-01-01T00:00:00Z")]
    (answer,) = process(lines, Settings(partitions=1)).responses
    assert (answer["status"], [memory["id"] for memory in answer["memories"]]) == ("ok", ["a"])
    assert [warning["code"] for warning in answer["warnings"]] == ["future_timestamp"]


# ── queries ───────────────────────────────────────────────────────────────────────────────────────────────────────


BAD_QUERIES = {
    "no question": (ask(), "invalid_event", ["query"]),
    "a question of blanks": (ask(query=" \n"), "invalid_event", ["query"]),
    "a mode that there is not": (ask(query="a", mode="best"), "invalid_event", ["mode"]),
    "a wrong decay": (
        ask(query="a", decay={"function": "cliff", "tau_days": 0}),
        "invalid_event",
        ["decay.function", "decay.tau_days"],
    ),
    "a wrong filter": (
        ask(query="a", filters={"layers": ["attic"], "min_confidence": 2}),
        "invalid_event",
        ["filters.layers.0", "filters.min_confidence"],
    ),
    "300 digits of tokens": (raw(b'"max_tokens": ' + b"9" * 300, b"recall"), "invalid_event", ["max_tokens"]),
    "300 digits of a timestamp": (raw(b'"timestamp": ' + b"9" * 300, b"recall"), "invalid_event", ["timestamp"]),
    "more tokens than a record holds": (ask(query="a", max_tokens=1_000_001), "invalid_event", ["max_tokens"]),
    "a query with a byte order mark": (b"\xef\xbb\xbf" + ask(), "invalid_event", ["query"]),
    "no position to wait for": (ask(query="a", wait_for="soon"), "invalid_event", ["wait_for"]),
    "a list of positions with a wrong one": (
        ask(query="a", wait_for=["memories:0:1", "soon"]),
        "invalid_event",
        ["wait_for.1"],
    ),
    "a moment that names no time": (ask(query="a", as_of={}), "invalid_event", ["as_of"]),
    "a million levels": (raw(b'"filters": {"tags": ' + nested(100_000) + b"}", b"recall"), None, []),
    "a question over 1 MiB": (ask(query="x" * MIB), "too_large", [""]),
    "a control character in the id": (ask(query="a", id="a\nb"), "invalid_event", ["id"]),
    "no tenant": (orjson.dumps({"type": "recall", "query": "a"}), "invalid_event", ["tenant_id", "user_id"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_QUERIES)
def test_a_bad_query_gets_one_error_response_that_names_every_wrong_field(name: str) -> None:
    line, code, fields = BAD_QUERIES[name]
    *errors, last = process([line, ask(query="hello", id="last")], Settings(partitions=1)).responses
    answered = [(e["status"], e["error"]["code"], [f["field"] for f in e["error"]["fields"]]) for e in errors]
    assert answered == ([] if code is None else [("error", code, fields)])  # what cannot be read is no query to answer
    assert (last["query_id"], last["status"]) == ("last", "ok")


def test_too_large_a_k_and_too_long_a_question_are_cut_and_warned_of() -> None:
    line = raw(b'"k": %d, "query": "%s"' % (10**30, b"tea " * 3_000), b"recall")
    (answer,) = process([*[event(id=f"m{n}") for n in range(50)], line], Settings(partitions=1)).responses
    assert (answer["status"], [w["code"] for w in answer["warnings"]]) == (
        "ok",
        ["k_clamped", "query_cut", "nothing_relevant"],
    )


# ── lines that a step could stumble over ──────────────────────────────────────────────────────────────────────────

STUMBLING = {
    "a message of one emoji": event(content="👍"),
    "a message of punctuation": event(content="。！？ …"),
    "a memory of one emoji": event(**MEMORY, content="👍"),
    "a question of one emoji": ask(query="👍"),
    "the episodes of a stranger": ask("episodes.list", user_id="nobody"),
    "the counts of a stranger": ask("user.stats", user_id="nobody"),
    "a memory of a stranger": ask("memory.get", user_id="nobody", memory_id="a"),
    "the history of a stranger": ask("memory.history", user_id="nobody", memory_id="a"),
    "a question of a stranger": ask(user_id="nobody", query="hello"),
    "a list as type": event(type=["message"]),
    "an object as type": event(type={"message": 1}),
    "a timestamp of 400 digits": raw(b'"timestamp": %d' % 10**400),
    "a time of 400 digits in a query": raw(b'"filters": {"created_after": %d}' % 10**400, b"recall"),
    "an embedding of numbers beyond float32": event(embedding=[1e300] * 384),
    "an embedding where none belongs": ask("episode.end", embedding=5),
    "a wrong memory id where none belongs": ask("episode.end", memory_id=5),
    "a wrong receipt where none belongs": ask("episodes.list", receipt=True, memory_id=5),
}


@pytest.mark.parametrize("name", STUMBLING)
def test_no_single_line_stops_the_flow(name: str) -> None:
    """Neither when it comes, nor when what it left behind is read."""
    before, after = event(id="before", timestamp=1), event(id="after", timestamp=2)
    questions = [ask(query="hello", filters={"session_ids": ["s"]}), ask(query="hello", id="last", timestamp=3)]
    # Alone in its batch of texts, then among others.
    for lines in ([STUMBLING[name]], [before, STUMBLING[name], after, *questions]):
        done = process(lines, Settings(partitions=1))
    last = done.responses[-1]
    assert (last["query_id"], last["status"]) == ("last", "ok")
    assert {"before", "after"} <= {memory["id"] for memory in last["memories"]}


def test_the_lists_of_a_user_who_was_forgotten_are_empty() -> None:
    forget = ask("memory.forget", filter={"older_than": "9999-01-01"})
    lines = [event(id="a"), forget, ask("episodes.list"), ask("user.stats"), ask(query="hello")]
    listed, counted, recalled = process(lines, Settings(partitions=1)).responses
    assert (listed["episodes"], counted["stats"]["memories"], recalled["memories"]) == ([], 0, [])
