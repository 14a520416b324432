"""The same log gives the same state and the same answers: whole, in pieces, by one worker or two, killed and continued.

A different log gives another hash, and what queries and refused lines do leaves no trace in it.
"""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

MakeLog = Callable[..., list[bytes]]
Pipe = Callable[[Path, Sequence[bytes]], list[dict[str, Any]]]
Replay = Callable[..., None]
Start = Callable[..., subprocess.Popen[bytes]]
HashOf = Callable[[Path], str]
Applied = Callable[[Path], int]
Comparable = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

QUERIES = ("recall", "memory.get", "memory.history", "episodes.list", "user.stats")
CHANGES = ("memory.update", "memory.forget", "memory.feedback", "graph.edges", "graph.archive", "episode.end")
CREATIONS = ("message", "memory")
REPLAYED_LINES = 4_000


class Whole(NamedTuple):
    """A log, and what a run that nothing disturbed made of it."""

    lines: list[bytes]
    answers: list[dict[str, Any]]
    state_hash: str
    final_answers: list[dict[str, Any]]


@pytest.fixture(scope="module")
def run_whole(
    tmp_path_factory: pytest.TempPathFactory, pipe: Pipe, hash_of: HashOf, final_questions: list[bytes]
) -> Callable[[list[bytes]], Whole]:
    def run(lines: list[bytes]) -> Whole:
        state_dir = tmp_path_factory.mktemp("whole") / "s"
        answers = pipe(state_dir, lines)
        return Whole(lines, answers, hash_of(state_dir), pipe(state_dir, final_questions))

    return run


@pytest.fixture(scope="module")
def whole(make_log: MakeLog, run_whole: Callable[[list[bytes]], Whole]) -> Whole:
    """Some changes and queries have no id. What creates a memory has one, as its default would differ by source."""
    return run_whole(make_log(seed=1, nameless=[*CHANGES, *QUERIES]))


@pytest.fixture(scope="module")
def named(make_log: MakeLog, run_whole: Callable[[list[bytes]], Whole]) -> Whole:
    """Every event has an id, so that the log can be sent again without counting twice."""
    return run_whole(make_log(seed=2))


class Replayed(NamedTuple):
    """A log of which most lines have no id, so that one that is applied twice shows, and what a replay made of it."""

    log: Path
    state_hash: str
    rejects: list[bytes]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, make_log: MakeLog, replay: Replay, hash_of: HashOf) -> Replayed:
    folder = tmp_path_factory.mktemp("replayed")
    log, rejects = folder / "log.jsonl", folder / "rejects.jsonl"
    log.write_bytes(b"\n".join(make_log(seed=5, count=REPLAYED_LINES, nameless=[*CREATIONS, *CHANGES, *QUERIES])))
    replay(folder / "s", log, "--rejects", str(rejects))
    return Replayed(log, hash_of(folder / "s"), rejects.read_bytes().splitlines())


@pytest.fixture
def assert_same(
    hash_of: HashOf, pipe: Pipe, comparable: Comparable, final_questions: list[bytes]
) -> Callable[..., None]:
    def check(state_dir: Path, whole: Whole) -> None:
        assert hash_of(state_dir) == whole.state_hash
        assert comparable(pipe(state_dir, final_questions)) == comparable(whole.final_answers)

    return check


def kind_of(line: bytes) -> str | None:
    """The event's type, or None for a line that is no event."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event.get("type") if isinstance(event, dict) else None


def is_query(line: bytes) -> bool:
    return kind_of(line) in QUERIES


def test_the_log_has_all_that_a_log_may_have(whole: Whole, replayed: Replayed) -> None:
    """Or else the other tests would compare too little."""
    codes = {orjson.loads(line)["error"]["code"] for line in replayed.rejects}
    assert codes >= {"invalid_json", "invalid_event", "unknown_type", "wrong_dimension", "id_conflict", "not_found"}
    kinds = [kind_of(line) for line in whole.lines]
    assert all(kinds.count(kind) > 10 for kind in (*QUERIES, *CHANGES, *CREATIONS))
    assert len(whole.answers) == sum(map(is_query, whole.lines))
    assert {answer["status"] for answer in whole.answers} == {"ok", "error"}
    counts = [answer["stats"] for answer in whole.final_answers if answer.get("stats")]
    assert all(count["memories"] > 30 and count["episodes"] > 10 and count["expired"] > 0 for count in counts)


# ── undisturbed, in several ways ──────────────────────────────────────────────────────────────────────────────────


def test_ten_runs_of_pipe_are_as_good_as_one(
    whole: Whole, tmp_path: Path, pipe: Pipe, comparable: Comparable, assert_same: Callable[..., None]
) -> None:
    cuts = sorted(random.Random(3).sample(range(1, len(whole.lines)), 9))
    answers: list[dict[str, Any]] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole.lines)], strict=True):
        answers += pipe(tmp_path / "s", whole.lines[start:end])
    assert comparable(answers) == comparable(whole.answers)
    assert_same(tmp_path / "s", whole)


def test_default_ids_are_the_same_however_often_pipe_is_started(
    make_log: MakeLog, tmp_path: Path, pipe: Pipe, hash_of: HashOf
) -> None:
    """Also where a run ends with a query or a refused line, which leave nothing in the state but have a position."""
    lines = make_log(seed=4, count=100, nameless=[*CREATIONS, *CHANGES, *QUERIES])
    pipe(tmp_path / "whole", lines)
    ends = [0, *(n for n, line in enumerate(lines, 1) if kind_of(line) in ("recall", None)), len(lines)]
    for start, end in pairwise(ends):
        pipe(tmp_path / "pieces", lines[start:end])
    assert hash_of(tmp_path / "pieces") == hash_of(tmp_path / "whole")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_replayed_file_is_as_good_as_a_pipe(
    whole: Whole, tmp_path: Path, replay: Replay, assert_same: Callable[..., None], workers: str
) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(whole.lines))
    replay(tmp_path / "s", tmp_path / "log.jsonl", "--workers", workers)
    assert_same(tmp_path / "s", whole)


def test_queries_and_refused_lines_leave_no_trace(
    whole: Whole, tmp_path: Path, pipe: Pipe, hash_of: HashOf, final_questions: list[bytes]
) -> None:
    silent = [line for line in whole.lines if kind_of(line) is not None and not is_query(line)]
    assert len(silent) < len(whole.lines) - 150
    assert pipe(tmp_path / "s", silent) == []
    assert hash_of(tmp_path / "s") == whole.state_hash
    pipe(tmp_path / "s", final_questions)
    assert hash_of(tmp_path / "s") == whole.state_hash


# ── another log ───────────────────────────────────────────────────────────────────────────────────────────────────

OWNER = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2025-01-01T00:00:00Z"}
SHORT: list[dict[str, Any]] = [
    {"type": "message", "id": "a", "content": "a red bicycle", "session_id": "s"} | OWNER,
    {"type": "message", "id": "b", "content": "a blue kettle", "session_id": "s"} | OWNER,
    {"type": "memory", "id": "c", "content": "likes tea", "tags": ["x"]} | OWNER,
    {"type": "memory.update", "memory_id": "c", "importance": 0.9} | OWNER,
    {"type": "memory.forget", "memory_id": "b"} | OWNER,
    {"type": "episode.end", "session_id": "s"} | OWNER,
]
OTHER: dict[str, tuple[int, dict[str, Any]]] = {
    "a word": (0, {"content": "a red tricycle"}),
    "the author": (0, {"name": "Bo"}),
    "a time": (0, {"timestamp": "2025-01-01T00:00:00.001Z"}),
    "the session": (0, {"session_id": "t"}),
    "a hidden field": (0, {"metadata": {"a": 1}}),
    "an id": (0, {"id": "z"}),
    "the owner": (0, {"user_id": "bob"}),
    "the environment": (0, {"environment": "staging"}),
    "a tag": (2, {"tags": ["y"]}),
    "the vector": (2, {"embedding": [1.0] + [0.0] * 383}),
    "what was changed": (3, {"importance": 0.8}),
    "what was forgotten": (4, {"memory_id": "a"}),
}


@pytest.fixture
def hash_of_events(tmp_path: Path, hash_of: HashOf) -> Callable[[list[dict[str, Any]]], str]:
    def run(events: list[dict[str, Any]]) -> str:
        state_dir = tmp_path / f"s{len(list(tmp_path.iterdir()))}"
        process([orjson.dumps(event) for event in events], Settings(partitions=1), state_dir)
        return hash_of(state_dir)

    return run


def test_the_same_events_have_the_same_hash_in_another_directory(
    hash_of_events: Callable[[list[dict[str, Any]]], str],
) -> None:
    assert hash_of_events(SHORT) == hash_of_events(SHORT)


@pytest.mark.parametrize("name", OTHER)
def test_a_log_that_says_something_else_has_another_hash(
    hash_of_events: Callable[[list[dict[str, Any]]], str], name: str
) -> None:
    number, fields = OTHER[name]
    other = [*SHORT]
    other[number] = SHORT[number] | fields
    assert hash_of_events(other) != hash_of_events(SHORT)


@pytest.mark.parametrize("number", range(len(SHORT)))
def test_a_log_that_lacks_an_event_has_another_hash(
    hash_of_events: Callable[[list[dict[str, Any]]], str], number: int
) -> None:
    assert hash_of_events(SHORT[:number] + SHORT[number + 1 :]) != hash_of_events(SHORT)


# ── killed ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pipe_killed_between_two_lines_goes_on_with_the_first_that_was_not_applied(
    whole: Whole,
    tmp_path: Path,
    start: Start,
    applied: Applied,
    pipe: Pipe,
    comparable: Comparable,
    assert_same: Callable[..., None],
) -> None:
    queries = [number for number, line in enumerate(whole.lines) if is_query(line)]
    asked = queries[len(queries) // 2]
    engine = start("pipe", "--state-dir", tmp_path / "s")
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(b"".join(line + b"\n" for line in whole.lines[: asked + 1]))
    engine.stdin.flush()
    answers = [orjson.loads(engine.stdout.readline()) for number in queries if number <= asked]
    engine.kill()
    engine.wait()
    assert comparable(answers) == comparable(whole.answers[: len(answers)])

    first = applied(tmp_path / "s") + 1
    assert first <= asked + 1
    assert all(map(is_query, whole.lines[first : asked + 1]))  # a query changes nothing: there is nothing to apply
    rest = pipe(tmp_path / "s", whole.lines[first:])[asked + 1 - first :]  # those before see what they left behind
    assert comparable(rest) == comparable(whole.answers[-len(rest) :])
    assert_same(tmp_path / "s", whole)


@pytest.mark.parametrize("heard", [1, 60])
def test_a_pipe_killed_at_full_speed_can_be_fed_its_log_again(
    named: Whole,
    tmp_path: Path,
    start: Start,
    applied: Applied,
    pipe: Pipe,
    assert_same: Callable[..., None],
    heard: int,
) -> None:
    engine = start("pipe", "--state-dir", tmp_path / "s")
    feeder = feed(engine, named.lines)
    assert engine.stdout is not None
    for _ in range(heard):
        assert engine.stdout.readline()
    engine.kill()
    engine.wait()
    feeder.join()
    assert applied(tmp_path / "s") < len(named.lines) - 1  # it was in the middle
    pipe(tmp_path / "s", named.lines)
    assert_same(tmp_path / "s", named)


def test_what_an_answer_acknowledged_is_there_after_a_kill(tmp_path: Path, start: Start, pipe: Pipe) -> None:
    """An answer says that every line before it is applied, of whatever user and state partition."""
    owners = [{"tenant_id": "acme", "user_id": f"user{n}"} for n in range(9)]
    said = [{"type": "message", "id": f"m{n}", "content": f"word {n}"} | owners[n % 9] for n in range(3_000)]
    lines = [orjson.dumps(event) for event in said]
    asks = [
        orjson.dumps({"type": "memory.get", "id": f"q{n}", "memory_id": f"m{n}"} | owners[n % 9]) for n in range(3_000)
    ]
    acknowledged = 1_000
    engine = start("pipe", "--state-dir", tmp_path / "s")
    feeder = feed(engine, [*lines[:acknowledged], asks[0], *lines[acknowledged:]])
    assert engine.stdout is not None
    assert orjson.loads(engine.stdout.readline())["status"] == "ok"
    engine.kill()
    engine.wait()
    feeder.join()
    answers = pipe(tmp_path / "s", asks)
    assert {answer["status"] for answer in answers[:acknowledged]} == {"ok"}
    assert answers[-1]["status"] == "error"  # it was killed in the middle


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_replay_killed_and_continued_ends_as_one_that_never_was(
    workers: str, tmp_path: Path, replayed: Replayed, start: Start, replay: Replay, hash_of: HashOf
) -> None:
    state_dir, noted = tmp_path / "s", tmp_path / "rejects.jsonl"
    options = ["--workers", workers, "--rejects", str(noted)]
    for share in (0.1, 0.4):
        engine = start("replay", replayed.log, "--embedded", "--create", "--state-dir", state_dir, *options)
        wait_for_progress(engine, noted, int(share * len(replayed.rejects)))
        engine.kill()
        assert engine.wait() == -signal.SIGKILL
    assert hash_of(state_dir) != replayed.state_hash  # it was killed in the middle
    replay(state_dir, replayed.log, *options)
    assert hash_of(state_dir) == replayed.state_hash
    assert sorted(noted.read_bytes().splitlines()) == sorted(replayed.rejects)


def wait_for_progress(engine: subprocess.Popen[bytes], noted: Path, lines: int) -> None:
    """Until a replay has noted so many lines that it refused."""
    while not noted.exists() or noted.read_bytes().count(b"\n") < lines:
        assert engine.poll() is None
        time.sleep(0.01)


def feed(engine: subprocess.Popen[bytes], lines: Sequence[bytes]) -> threading.Thread:
    """Writes lines as fast as they are taken, until the process is gone."""

    def write() -> None:
        assert engine.stdin is not None
        try:
            engine.stdin.write(b"".join(line + b"\n" for line in lines))
            engine.stdin.flush()
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=write)
    thread.start()
    return thread
