"""`recallflow pipe`: strict order, one response line per query line, and refused lines on standard error."""

import json
import os
import random
import select
import signal
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson
import pytest

from recallflow.cli import main
from tests.unit.cli.harness import Cli, Start, closed_reader, event, jsonl, on_files, parsed, streams

GIVE_UP_S = 60
NOT_JSON = b'{"type": "message", "tenant_id"'
HELLO = event("message", content="hello")
Pipe = Callable[..., tuple[list[Any], list[tuple[int, str]]]]


@pytest.fixture
def pipe(cli: Cli) -> Pipe:
    """Return a function that pipes events and returns the answers, and the lines and codes of the refused ones."""

    def run(*events: dict[str, Any] | bytes, state_dir: Path | None = None) -> tuple[list[Any], list[tuple[int, str]]]:
        options = () if state_dir is None else ("--state-dir", state_dir)
        done = cli("pipe", *options, stdin=jsonl(*events))
        assert done.returncode == 0
        return parsed(done.stdout), [(one["line"], one["error"]["code"]) for one in parsed(done.stderr)]

    return run


def write(stream: IO[bytes] | None, *events: dict[str, Any] | bytes) -> None:
    assert stream is not None
    stream.write(jsonl(*events))
    stream.flush()


def read(stream: IO[bytes] | None) -> Any:
    assert stream is not None
    return orjson.loads(stream.readline())


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", "4")


@pytest.mark.usefixtures("partitioned")
def test_answer_sees_exactly_the_writes_before_it(pipe: Pipe) -> None:
    """Use several partitions, which run at their own pace, and more lines than a batch has."""
    draw = random.Random(11)
    written: dict[str, list[str]] = defaultdict(list)
    lines, expected = [], []
    for number in range(300):
        user = draw.choice(["ann", "bob", "cy", "dee", "eve"])
        if draw.random() < 0.5:
            written[user].append(f"m{number}")
            lines.append(event("message", number, id=f"m{number}", user_id=user, content=f"word {number}"))
        else:
            lines.append(event("recall", 1_000, user_id=user, query="word", mode="recency", k=50, explain=False))
            expected.append(written[user][-50:][::-1])  # the newest 50, newest first
    answers, refused = pipe(*lines)
    assert [[memory["id"] for memory in answer["memories"]] for answer in answers] == expected
    assert refused == []


def test_query_sees_every_kind_of_write_before_it(pipe: Pipe) -> None:
    get = event("memory.get", memory_id="a")
    (first, second, third), _ = pipe(
        event("memory", id="a", content="tea"), get, event("memory.update", memory_id="a", content="coffee"), get,
        event("memory.forget", memory_id="a"), get,
    )  # fmt: skip
    assert (first["versions"][0]["content"], second["versions"][0]["content"]) == ("tea", "coffee")
    assert third["error"]["code"] == "not_found"


@pytest.mark.usefixtures("partitioned")
def test_each_query_line_gives_one_response_line_in_order(pipe: Pipe) -> None:
    draw = random.Random(5)
    lines, asked = [], []
    for number in range(120):
        user, query_id = draw.choice(["ann", "bob", "cy"]), f"q{number}"
        line = draw.choice(
            [
                event("message", user_id=user, content="hello"),
                event("message", user_id=user, role="nobody", content="refused"),
                event("recall", user_id=user, id=query_id, query="hello"),
                event("recall", user_id=user, id=query_id, query=""),  # malformed
                event("recall", user_id=user, id=query_id, query="hello", as_of={"event_time": -1e30}),
                event("memory.get", user_id=user, id=query_id, memory_id="nothing"),
                event("episodes.list", user_id=user, id=query_id),
            ]
        )
        lines.append(line)
        if "id" in line:
            answerable = line["type"] == "episodes.list" or (bool(line.get("query")) and "as_of" not in line)
            asked.append((query_id, "ok" if answerable else "error"))
    assert len(set(asked)) > 50
    answers, _ = pipe(*lines)
    assert [(answer["query_id"], answer["status"]) for answer in answers] == asked


def test_malformed_query_is_answered_and_refused(cli: Cli) -> None:
    done = cli("pipe", stdin=jsonl(HELLO, event("recall", id="q1", query="", k="many"), event("recall", query="")))
    (answer, unnamed), (refused, _) = parsed(done.stdout), parsed(done.stderr)
    assert (answer["query_id"], answer["status"], unnamed["query_id"]) == ("q1", "error", "stdin:0:2")
    assert {problem["field"] for problem in answer["error"]["fields"]} == {"query", "k"}
    assert refused == {"line": 2, "error": answer["error"]}


def test_query_with_an_escaped_type_or_a_mark_is_answered(pipe: Pipe) -> None:
    escaped = orjson.dumps(event("user.stats", id="q")).replace(b"user.stats", rb"user\u002estats")
    marked = b"\xef\xbb\xbf" + orjson.dumps(event("user.stats", id="q"))
    answers, _ = pipe(HELLO, escaped, HELLO, marked, HELLO)
    assert [answer["stats"]["memories"] for answer in answers] == [1, 2]


def test_date_of_another_tenant_moves_no_clock(pipe: Pipe) -> None:
    far = event("message", tenant_id="other", content="far") | {"timestamp": "9999-12-31T00:00:00Z"}
    near = event("message", id="m", content="A walnut.") | {"timestamp": "2026-05-20T09:00:00Z"}
    asked = event("recall", query="walnut", as_of={"ingestion_time": "2027-01-01T00:00:00Z"})
    (answer,), _ = pipe(far, near, asked | {"timestamp": "2027-01-01T00:00:00Z"})
    assert [memory["id"] for memory in answer["memories"]] == ["m"]


def test_writes_print_nothing(pipe: Pipe) -> None:
    assert pipe(HELLO | {"receipt": True}) == ([], [])


def test_lines_that_the_state_refuses_are_printed_in_line_order(pipe: Pipe) -> None:
    _, refused = pipe(
        event("memory", id="a", content="tea"), event("memory", id="a", content="coffee"), NOT_JSON,
        event("memory.update", memory_id="b", summary="no such memory"),
        event("memory.feedback", memory_id="b", useful=True), {"type": "message"},
    )  # fmt: skip
    codes = ["id_conflict", "invalid_json", "not_found", "not_found", "invalid_event"]
    assert refused == [*enumerate(codes, 2)]


def test_line_over_the_users_quota_is_refused(cli: Cli, tmp_path: Path) -> None:
    quota = {"type": "quota", "tenant_id": "acme", "name": "memories_per_user", "limit": 1, "timestamp": 0}
    (tmp_path / "control.jsonl").write_bytes(jsonl(quota))
    memories = jsonl(*(event("memory", content=content) for content in ("a bicycle in the cellar", "a key")))
    (refused,) = parsed(cli("pipe", "--control", tmp_path / "control.jsonl", stdin=memories).stderr)
    assert (refused["line"], refused["error"]["code"]) == (2, "over_quota")
    assert "memories_per_user" in refused["error"]["message"]


def converse(*turns: list[dict[str, Any]]) -> Iterator[Any]:
    """Write each turn to a pipe only after the answer to the turn before, and yield the answers."""
    (stdin, ours), (theirs, stdout) = os.pipe(), os.pipe()
    answers: list[bytes] = []

    def talk() -> None:
        with os.fdopen(ours, "wb", buffering=0) as writer, os.fdopen(theirs, "rb", buffering=0) as reader:
            for turn in turns:
                writer.write(jsonl(*turn))
                if not select.select([reader], [], [], GIVE_UP_S)[0]:
                    break
                answers.append(reader.readline())

    talker = threading.Thread(target=talk)
    talker.start()
    with Path(os.devnull).open("wb") as nowhere, streams(stdin, stdout, nowhere.fileno()):
        code = main(["pipe"])
    for opened in (stdin, stdout):
        os.close(opened)
    talker.join()
    assert (code, len(answers)) == (0, len(turns))
    return map(orjson.loads, answers)


def test_answer_is_printed_before_the_next_line_is_written() -> None:
    turns = [[event("message", n, id=f"m{n}", content="hi"), event("user.stats", id=f"q{n}")] for n in range(20)]
    found = [(answer["query_id"], answer["stats"]["memories"]) for answer in converse(*turns)]
    assert found == [(f"q{number}", number + 1) for number in range(20)]


def test_query_waiting_for_a_later_line_is_answered_without_it() -> None:
    """The line cannot come first: a program may write it only after the answer."""
    positions = ["stdin:0:0", "stdin:0:99", ["elsewhere:3:0", "stdin:0:0"], "stdin:0:4"]
    questions = [[event("recall", id=f"q{n}", query="bicycle", wait_for=at)] for n, at in enumerate(positions)]
    answers = [*converse([event("message", content="a bicycle"), *questions[0]], *questions[1:])]
    assert [(one["query_id"], one["status"]) for one in answers] == [
        ("q0", "ok"), ("q1", "degraded"), ("q2", "degraded"), ("q3", "degraded"),
    ]  # fmt: skip
    codes = [[warning["code"] for warning in one.get("warnings", ())] for one in answers]
    assert codes == [[], ["stale_read"], ["stale_read"], ["stale_read"]]


@pytest.mark.processes
def test_interrupt_ends_a_waiting_pipe_quietly(start: Start) -> None:
    process = start("pipe")
    write(process.stdin, event("recall", query="hello"))
    read(process.stdout)  # it is up, and waits for the next line
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stderr is not None
    assert (process.wait(), process.stdout.read(), process.stderr.read()) == (130, b"", b"")


def test_closed_output_ends_the_pipe_quietly() -> None:
    with closed_reader() as unread:
        done = on_files("pipe", stdin=jsonl(*[event("recall", query="hello")] * 50), stdout=unread)
    assert (done.returncode, done.stderr) == (141, b"")


def test_second_run_continues_the_positions(cli: Cli, pipe: Pipe, tmp_path: Path) -> None:
    def applied() -> Any:
        return json.loads(cli("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)["applied"]

    pipe(HELLO, HELLO, HELLO, state_dir=tmp_path / "s")
    assert applied() == {"stdin:0": 2}
    _, refused = pipe(HELLO, NOT_JSON, HELLO, state_dir=tmp_path / "s")
    assert applied() == {"stdin:0": 5}
    assert refused == [(2, "invalid_json")]  # lines are numbered per run


def test_later_runs_give_new_default_ids(pipe: Pipe, tmp_path: Path) -> None:
    """End each run with another kind of line: a write, a query, or a refused line."""
    given: list[str] = []
    query = event("recall", query="hello", k=50)
    for last in (HELLO, query, NOT_JSON, HELLO):
        answers, _ = pipe(HELLO, query, last, state_dir=tmp_path / "s")
        given += [answer["query_id"] for answer in answers]
    (answer,), _ = pipe(query, state_dir=tmp_path / "s")
    given += [answer["query_id"], *(memory["id"] for memory in answer["memories"])]
    assert len(answer["memories"]) == 6
    assert len(set(given)) == len(given)


def test_without_a_state_directory_no_file_remains(pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipe(HELLO)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["no line end", "ends of Windows"])
def test_line_ends_of_every_kind_are_read(cli: Cli, end: bytes) -> None:
    lines = jsonl(event("message", id="a", content="hello"), event("memory.get", memory_id="a")).splitlines()
    (answer,) = parsed(cli("pipe", stdin=(end or b"\n").join(lines) + end).stdout)
    assert answer["status"] == "ok"
