"""`recallflow pipe`: strict order, one response line per query line, refused lines told on stderr."""

import json
import random
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import orjson
import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[bytes]]
MakeEvent = Callable[..., dict[str, Any]]
Jsonl = Callable[..., bytes]
Parsed = Callable[[str | bytes], list[Any]]

NOT_JSON = b'{"type": "message", "tenant_id"'


def say(stream: IO[bytes] | None, line: bytes) -> None:
    assert stream is not None
    stream.write(line)
    stream.flush()


def hear(stream: IO[bytes] | None) -> Any:
    """The next line; waits for it."""
    assert stream is not None
    return orjson.loads(stream.readline())


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_sees_exactly_the_writes_before_it(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    """Users live on several state partitions that run at their own pace, and 600 lines span several batches."""
    draw = random.Random(11)
    written: dict[str, list[str]] = defaultdict(list)
    lines, expected = [], []
    for number in range(600):
        user = draw.choice(["ann", "bob", "cy", "dee", "eve"])
        if draw.random() < 0.5:
            written[user].append(f"m{number}")
            lines.append(make_event("message", number, id=f"m{number}", user_id=user, content=f"word {number}"))
        else:
            lines.append(make_event("recall", 1_000, user_id=user, query="word", mode="recency", k=50, explain=False))
            expected.append(written[user][-50:][::-1])  # the newest 50, newest first
    done = cli("pipe", stdin=jsonl(*lines))
    assert [[memory["id"] for memory in answer["memories"]] for answer in parsed(done.stdout)] == expected
    assert done.stderr == ""


def test_a_write_and_the_query_after_it_in_one_go_hold_for_every_kind_of_write(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    get = make_event("memory.get", memory_id="a")
    lines = [
        make_event("memory", id="a", content="tea"),
        get,
        make_event("memory.update", memory_id="a", content="coffee"),
        get,
        make_event("memory.forget", memory_id="a"),
        get,
    ]
    first, second, third = parsed(cli("pipe", stdin=jsonl(*lines)).stdout)
    assert (first["versions"][0]["content"], second["versions"][0]["content"]) == ("tea", "coffee")
    assert third["error"]["code"] == "not_found"


# ── one response line per query line ──────────────────────────────────────────────────────────────────────────────


def test_each_query_line_gives_one_response_line_in_query_order(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    draw = random.Random(5)
    lines, asked = [], []
    for number in range(120):
        user, query_id = draw.choice(["ann", "bob", "cy"]), f"q{number}"
        line = draw.choice(
            [
                make_event("message", user_id=user, content="hello"),
                make_event("message", user_id=user, role="nobody", content="refused"),
                make_event("recall", user_id=user, id=query_id, query="hello"),
                make_event("recall", user_id=user, id=query_id, query=""),  # malformed
                make_event("recall", user_id=user, id=query_id, query="hello", as_of={"event_time": -1e30}),
                make_event("memory.get", user_id=user, id=query_id, memory_id="nothing"),
                make_event("episodes.list", user_id=user, id=query_id),
            ]
        )
        lines.append(line)
        if "id" in line:
            answerable = line["type"] == "episodes.list" or (bool(line.get("query")) and "as_of" not in line)
            asked.append((query_id, "ok" if answerable else "error"))
    assert len(set(asked)) > 50
    done = cli("pipe", stdin=jsonl(*lines))
    assert [(answer["query_id"], answer["status"]) for answer in parsed(done.stdout)] == asked
    assert done.returncode == 0


def test_a_malformed_query_is_answered_with_its_errors_and_told_on_stderr(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    wrong = make_event("recall", id="q1", query="", k="many")
    done = cli("pipe", stdin=jsonl(make_event("message", content="hello"), wrong))
    (answer,), (told,) = parsed(done.stdout), parsed(done.stderr)
    assert (answer["query_id"], answer["status"]) == ("q1", "error")
    assert {problem["field"] for problem in answer["error"]["fields"]} == {"query", "k"}
    assert told == {"line": 2, "error": answer["error"]}


def test_a_malformed_query_without_an_id_is_answered_under_its_position(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    (answer,) = parsed(
        cli("pipe", stdin=jsonl(make_event("message", content="a"), make_event("recall", query=""))).stdout
    )
    assert answer["query_id"] == "stdin:0:1"


def test_a_query_asked_twice_is_answered_twice(cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed) -> None:
    query = make_event("recall", id="q", query="hello")
    assert [answer["query_id"] for answer in parsed(cli("pipe", stdin=jsonl(query, query)).stdout)] == ["q", "q"]


def test_writes_say_nothing_on_stdout(cli: Cli, make_event: MakeEvent, jsonl: Jsonl) -> None:
    done = cli("pipe", stdin=jsonl(make_event("message", content="hello", receipt=True)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ── refused lines ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_refused_lines_are_told_by_number_counted_from_one(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    good = make_event("message", content="hello")
    done = cli("pipe", stdin=jsonl(NOT_JSON, good, {"type": "memo"}, good, good, make_event("message")))
    told = parsed(done.stderr)
    assert [(refused["line"], refused["error"]["code"]) for refused in told] == [
        (1, "invalid_json"),
        (3, "unknown_type"),
        (6, "invalid_event"),
    ]
    assert all(refused.keys() == {"line", "error"} and refused["error"]["message"] for refused in told)


def test_lines_that_the_state_refuses_are_told_in_line_order_with_the_others(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    lines = [
        make_event("memory", id="a", content="tea"),
        make_event("memory", id="a", content="coffee"),
        NOT_JSON,
        make_event("memory.update", memory_id="b", summary="no such memory"),
        make_event("memory.feedback", memory_id="b", useful=True),
        {"type": "message"},
    ]
    told = parsed(cli("pipe", stdin=jsonl(*lines)).stderr)
    assert [(refused["line"], refused["error"]["code"]) for refused in told] == [
        (2, "id_conflict"),
        (3, "invalid_json"),
        (4, "not_found"),
        (5, "not_found"),
        (6, "invalid_event"),
    ]


# ── talking to it ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_comes_before_the_next_line_is_written(start: Start, make_event: MakeEvent, jsonl: Jsonl) -> None:
    pipe = start("pipe")
    for number in range(20):
        say(pipe.stdin, jsonl(make_event("message", number, id=f"m{number}", content="hello")))
        say(pipe.stdin, jsonl(make_event("user.stats", id=f"q{number}")))
        answer = hear(pipe.stdout)
        assert (answer["query_id"], answer["stats"]["memories"]) == (f"q{number}", number + 1)
    say(pipe.stdin, jsonl(NOT_JSON))
    assert hear(pipe.stderr)["line"] == 41
    assert pipe.communicate() == (b"", b"")
    assert pipe.returncode == 0


def test_a_question_that_waits_for_what_never_comes_is_answered_in_its_place(
    start: Start, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    """A line that is not there when its turn comes comes after it, or never: nobody writes it before the answer."""
    pipe = start("pipe")
    say(pipe.stdin, jsonl(make_event("message", id="m", content="a bicycle")))
    for number, position in enumerate(["stdin:0:0", "stdin:0:99", ["elsewhere:3:0", "stdin:0:0"], "stdin:0:4"]):
        say(pipe.stdin, jsonl(make_event("recall", id=f"q{number}", query="bicycle", wait_for=position)))
        answer = hear(pipe.stdout)
        waited = number == 0
        assert (answer["query_id"], answer["status"]) == (f"q{number}", "ok" if waited else "degraded")
        assert [w["code"] for w in answer.get("warnings", [])] == ([] if waited else ["stale_read"])
    assert pipe.communicate() == (b"", b"")


def test_a_query_is_a_query_however_its_type_is_written(
    cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    write = make_event("message", content="hello")
    escaped = orjson.dumps(make_event("user.stats", id="q")).replace(b"user.stats", rb"user\u002estats")
    marked = b"\xef\xbb\xbf" + orjson.dumps(make_event("user.stats", id="q"))
    answers = parsed(cli("pipe", stdin=jsonl(write, escaped, write, marked, write)).stdout)
    assert [answer["stats"]["memories"] for answer in answers] == [1, 2]


def test_an_interrupt_at_the_keyboard_ends_a_waiting_pipe_without_a_word(
    start: Start, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    pipe = start("pipe")
    say(pipe.stdin, jsonl(make_event("recall", query="hello")))
    hear(pipe.stdout)  # it is up, and waits for the next line
    pipe.send_signal(signal.SIGINT)
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    assert (pipe.wait(), pipe.stdout.read(), pipe.stderr.read()) == (130, b"", b"")


def test_a_reader_that_leaves_ends_the_pipe_without_a_traceback(
    start: Start, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    pipe = start("pipe")
    query = jsonl(make_event("recall", query="hello"))
    say(pipe.stdin, query)
    hear(pipe.stdout)
    assert pipe.stdout is not None
    pipe.stdout.close()
    pipe.stdout = None
    _, err = pipe.communicate(query * 50)
    assert (pipe.returncode, err) == (141, b"")


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_run_remembers_what_the_first_was_told(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    cli("pipe", "--state-dir", tmp_path / "s", stdin=jsonl(make_event("message", id="a", content="a red bicycle")))
    done = cli("pipe", "--state-dir", tmp_path / "s", stdin=jsonl(make_event("recall", query="bicycle")))
    assert [memory["id"] for memory in parsed(done.stdout)[0]["memories"]] == ["a"]


def test_positions_go_on_in_the_second_run(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    def applied() -> Any:
        return json.loads(cli("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)["applied"]

    line = jsonl(make_event("message", content="hello"))
    cli("pipe", "--state-dir", tmp_path / "s", stdin=line * 3)
    assert applied() == {"stdin:0": 2}
    done = cli("pipe", "--state-dir", tmp_path / "s", stdin=line + NOT_JSON + b"\n" + line)
    assert applied() == {"stdin:0": 5}
    assert [refused["line"] for refused in parsed(done.stderr)] == [2]  # lines are this run's


def test_default_ids_of_a_second_run_are_new(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    """Whatever the first run ended with: a write, a query or a refused line."""
    given: list[str] = []
    write, query = make_event("message", content="hello"), make_event("recall", query="hello", k=50)
    for last in (write, query, NOT_JSON, write):
        answers = parsed(cli("pipe", "--state-dir", tmp_path / "s", stdin=jsonl(write, query, last)).stdout)
        given += [answer["query_id"] for answer in answers]
    (answer,) = parsed(cli("pipe", "--state-dir", tmp_path / "s", stdin=jsonl(make_event("recall", query="hi"))).stdout)
    given += [answer["query_id"], *(memory["id"] for memory in answer["memories"])]
    assert len(answer["memories"]) == 6
    assert len(set(given)) == len(given)


def test_without_a_state_directory_nothing_is_left_behind(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = cli("pipe", stdin=jsonl(make_event("message", content="hello")))
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_lines_at_all_are_no_failure(cli: Cli) -> None:
    done = cli("pipe")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_refused_lines_are_no_failure(cli: Cli) -> None:
    assert cli("pipe", stdin=NOT_JSON).returncode == 0


def test_a_last_line_without_a_line_end_counts(cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed) -> None:
    lines = jsonl(make_event("message", content="hello"), make_event("recall", id="q", query="hello"))
    assert [answer["query_id"] for answer in parsed(cli("pipe", stdin=lines[:-1]).stdout)] == ["q"]


def test_lines_may_end_as_windows_ends_them(cli: Cli, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed) -> None:
    lines = jsonl(make_event("message", id="a", content="hello"), make_event("memory.get", memory_id="a"))
    (answer,) = parsed(cli("pipe", stdin=lines.replace(b"\n", b"\r\n")).stdout)
    assert answer["status"] == "ok"


def test_an_unknown_option_is_a_usage_error(cli: Cli) -> None:
    done = cli("pipe", "--state-folder", "s")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no option --state-folder; did you mean --state-dir?" in done.stderr
