"""`recallflow replay --embedded`: conversation logs of several kinds, refused records, and repeated runs."""

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli.publish import ReplayProgress, Target, state_home
from recallflow.errors import RecallflowError
from tests.unit.cli.harness import Cli, assert_error, event, jsonl, parsed

OPENAI: list[dict[str, Any]] = [
    {
        "id": "chat-7",
        "created": 1_700_000_000,
        "messages": [
            {"role": "user", "content": "Which moss grows on the north wall?", "id": "moss"},
            {"role": "assistant", "content": "Silvergreen bryum, most likely."},
        ],
    },
    {"id": "chat-8", "messages": [{"role": "user", "content": "Remind me of the ferry at noon."}]},
]
HELLO = event("message", content="hello")
Replay = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def replay(cli: Cli, tmp_path: Path) -> Replay:
    """Return a function that replays logs into the state directory `s`."""
    return lambda *words: cli("replay", *words, "--embedded", "--state-dir", tmp_path / "s")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.fixture
def rejects(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl.rejects.jsonl"


def info(cli: Cli, tmp_path: Path) -> Any:
    return json.loads(cli("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)


def memory_of(cli: Cli, tmp_path: Path, memory_id: str, **owner: str) -> Any:
    query = event("memory.get", memory_id=memory_id) | owner
    answer = json.loads(cli("pipe", "--state-dir", tmp_path / "s", stdin=orjson.dumps(query)).stdout)
    return answer["versions"][0] if answer["status"] == "ok" else None


def replayed(done: subprocess.CompletedProcess[str], code: int = 0) -> list[str]:
    """Return the line of each log without its speed. `code`: 1 where a record was refused."""
    assert done.returncode == code, done.stderr
    lines = [re.fullmatch(r"(.+); [\d,]+ events/s", line) for line in done.stdout.splitlines()]
    return [line[1] for line in lines if line]


def refused_lines(file: Path) -> list[int]:
    return [reject["line"] for reject in parsed(file.read_bytes())]


def dry_run(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    _, names, counts, *_ = done.stdout.splitlines()
    return dict(zip(re.split(r" {2,}", names.strip()), counts.split(), strict=True))


def test_events_keep_their_ids_owners_and_times(cli: Cli, replay: Replay, log: Path, tmp_path: Path) -> None:
    log.write_bytes(jsonl(event("message", 1_000, id="a", content="hello"), event("recall", query="hello")))
    assert replayed(replay(log)) == ["log.jsonl: 2 events"]
    assert memory_of(cli, tmp_path, "a")["created_at"] == "1970-01-01T00:00:01Z"


def test_openai_chats_go_to_the_named_owner(cli: Cli, replay: Replay, log: Path, tmp_path: Path) -> None:
    log.write_bytes(jsonl(*OPENAI))
    owner = ["--tenant", "acme", "--user", "kim", "--environment", "staging"]
    assert replayed(replay(log, *owner)) == ["log.jsonl: 3 events"]
    assert "Silvergreen bryum" in cli("ask", "What moss is on the wall?", *owner, "--state-dir", tmp_path / "s").stdout
    stored = memory_of(cli, tmp_path, "moss", user_id="kim", environment="staging")
    assert (stored["session_id"], stored["created_at"]) == ("chat-7", "2023-11-14T22:13:20Z")


def test_moved_chats_without_ids_are_remembered_once(cli: Cli, replay: Replay, tmp_path: Path) -> None:
    first, second = tmp_path / "one.jsonl", tmp_path / "two.json"
    first.write_bytes(jsonl({"role": "user", "content": "hi"}, {"role": "user", "content": "Plums are ripe."}))
    second.write_bytes(b'[{"role":"user","content":"hi"},{"role":"user","content":"Pears are not."}]')
    assert replayed(replay(first, second)) == ["one.jsonl: 2 events", "two.json: 2 events"]
    with first.open("ab") as grown:
        grown.write(jsonl({"role": "user", "content": "Quinces are."}))
    (tmp_path / "moved").mkdir()
    moved = first.rename(tmp_path / "moved" / "one.jsonl")  # it is read from its beginning
    replay(moved, second)
    assert info(cli, tmp_path)["memories"] == 5


def test_dry_run_counts_and_stores_nothing(replay: Replay, log: Path, tmp_path: Path) -> None:
    log.write_bytes(jsonl(HELLO))
    done = replay(log, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("log.jsonl: events\n")
    assert (dry_run(done)["events"], dry_run(done)["refused"]) == ("1", "0")
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_dry_run_lists_the_columns_of_a_table(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,text,score\nu1,hello,1\nu2,hi,2\n")
    (told,) = parsed(cli("replay", tmp_path / "t.csv", "--dry-run", "--json").stdout)
    assert (told["users"], told["columns"]) == (2, {"user_id": "user", "content": "text"})
    assert told["unused_columns"] == ["score"]
    assert "unused columns (kept as metadata): score" in cli("replay", tmp_path / "t.csv", "--dry-run").stdout


def test_refused_records_go_to_rejects(cli: Cli, replay: Replay, log: Path, rejects: Path, tmp_path: Path) -> None:
    unknown = event("memory.update", memory_id="nobody", summary="s")
    log.write_bytes(jsonl(event("message", id="a", content="hello"), b"{", unknown, b"\xff"))
    assert replayed(replay(log), 1) == [f"log.jsonl: 1 events; 3 refused, see {rejects}"]
    noted = parsed(rejects.read_bytes())
    codes = [(reject["line"], reject["error"]["code"]) for reject in noted]
    assert codes == [(2, "invalid_json"), (3, "not_found"), (4, "invalid_json")]
    assert [reject["record"] for reject in noted] == ["{", orjson.dumps(unknown).decode(), "\ufffd"]
    assert memory_of(cli, tmp_path, "a") is not None


def test_reject_replaces_one_that_a_kill_cut_off(replay: Replay, log: Path, rejects: Path) -> None:
    log.write_bytes(jsonl(HELLO, b"{"))
    rejects.write_bytes(b'{"line":7}\n{"line":2,"err')
    replay(log)
    assert refused_lines(rejects) == [7, 2]


def test_refused_record_is_noted_once_over_replays(
    cli: Cli, replay: Replay, log: Path, rejects: Path, tmp_path: Path
) -> None:
    log.write_bytes(jsonl(b"{", HELLO, b"{", b"\xff"))
    for number in range(3):
        done = cli("replay", log, "--embedded", "--state-dir", tmp_path / f"s{number}")
        assert "3 refused" in done.stdout
        assert refused_lines(rejects) == [1, 3, 4]
    log.write_bytes(jsonl(b"{", b"[", event("message", content="bye")))  # another log under the same name
    replay(log)
    assert [(noted["line"], noted["record"]) for noted in parsed(rejects.read_bytes())][3:] == [(2, "[")]


def test_unwritable_rejects_file_stops_the_replay(replay: Replay, log: Path, rejects: Path) -> None:
    log.write_bytes(jsonl(HELLO, b"{"))
    rejects.mkdir()
    done = replay(log)
    done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("log.jsonl: "))
    assert_error(done, 1, str(rejects))


def test_second_replay_adds_nothing(cli: Cli, replay: Replay, log: Path, rejects: Path, tmp_path: Path) -> None:
    def state() -> tuple[Any, ...]:
        told = info(cli, tmp_path)
        return told["memories"], told["applied"], rejects.read_bytes()

    log.write_bytes(jsonl(HELLO, b"{", event("message", content="b")))
    replay(log)
    before, done = state(), replay(log)
    assert (done.returncode, done.stdout.startswith("log.jsonl: 0 events, 3 were stored by an earlier run")) == (
        0, True,
    )  # fmt: skip
    assert state() == before


@pytest.mark.parametrize("end", [b"\n", b""], ids=["complete", "without a line end"])
def test_grown_log_continues_at_its_end(
    cli: Cli, replay: Replay, log: Path, rejects: Path, tmp_path: Path, end: bytes
) -> None:
    """Lines without an id show whether one is applied twice."""
    line = jsonl(HELLO)
    log.write_bytes(line.removesuffix(b"\n") + end)
    replay(log)
    log.write_bytes(line * 2 + b"{\n" + line)
    done = replay(log)
    assert info(cli, tmp_path)["memories"] == 3
    assert done.stdout.startswith("log.jsonl: 2 events, 1 were stored by an earlier run")
    assert refused_lines(rejects) == [3]


def test_other_log_of_the_same_name_starts_anew(cli: Cli, replay: Replay, log: Path, tmp_path: Path) -> None:
    for content in ("monday", "tuesday"):
        log.write_bytes(jsonl(event("message", content=content)))
        replay(log)
    assert info(cli, tmp_path)["memories"] == 2


def test_several_logs_are_applied_in_order(cli: Cli, replay: Replay, tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_bytes(jsonl(event("memory", id="a", content="tea")))
    second.write_bytes(jsonl(event("memory.update", memory_id="a", content="coffee"), b"{"))
    rejects = tmp_path / "2.jsonl.rejects.jsonl"
    assert replayed(replay(first, second), 1) == ["1.jsonl: 1 events", f"2.jsonl: 1 events; 1 refused, see {rejects}"]
    assert (memory_of(cli, tmp_path, "a")["content"], refused_lines(rejects)) == ("coffee", [2])


def test_unreadable_file_stops_no_other(cli: Cli, replay: Replay, tmp_path: Path) -> None:
    """Events before the damage of a file are applied, and each damaged file is named at the end."""
    whole, cut, odd, last = (tmp_path / name for name in ("1.jsonl", "2.jsonl.gz", "3.odd", "4.jsonl"))
    whole.write_bytes(jsonl(HELLO))
    packed = gzip.compress(jsonl(*(event("message", id=f"{n}", content=f"{n * n}") for n in range(300))))
    cut.write_bytes(packed[: len(packed) * 2 // 3])
    odd.write_bytes(b"\x00\x01\x02")
    last.write_bytes(jsonl(event("message", id="last", content="last")))
    for options in (("--dry-run",), ()):
        done = replay(whole, cut, odd, last, *options)
        assert done.returncode == 1
        *_, first_broken, second_broken = done.stderr.splitlines()
        assert (str(odd) in first_broken, str(cut) in second_broken) == (True, True)
    assert memory_of(cli, tmp_path, "last") is not None
    assert memory_of(cli, tmp_path, "100") is not None


TARGET = Target("cluster", "memory.events", "topic-1", records=100, ends=100)


def progress(folder: Path, log: str = "log", target: Target = TARGET) -> ReplayProgress:
    return ReplayProgress(log, target, {"XDG_STATE_HOME": str(folder)})


def test_the_same_log_to_the_same_topic_goes_on(tmp_path: Path) -> None:
    progress(tmp_path).save(60, 50)
    again = progress(tmp_path)
    assert (again.events, again.sent, again.emptied) == (60, 50, False)
    assert again.path.is_relative_to(tmp_path / "recallflow" / "replay")


@pytest.mark.parametrize(
    ("log", "target"),
    [
        ("other", TARGET), ("log", TARGET._replace(cluster="another")), ("log", TARGET._replace(topic="another")),
        ("log", TARGET._replace(topic_id="made anew")),
    ],
)  # fmt: skip
def test_another_log_cluster_or_topic_begins_at_the_beginning(tmp_path: Path, log: str, target: Target) -> None:
    progress(tmp_path).save(60, 50)
    other = progress(tmp_path, log, target)
    assert (other.events, other.sent, other.emptied) == (0, 0, False)


@pytest.mark.parametrize(("records", "ends"), [(0, 100), (30, 30)])
def test_topic_that_lost_records_gets_them_again(tmp_path: Path, records: int, ends: int) -> None:
    progress(tmp_path).save(60, 50)
    lost = progress(tmp_path, target=TARGET._replace(records=records, ends=ends))
    assert (lost.events, lost.sent, lost.emptied) == (0, 0, True)


def test_a_log_of_refused_events_leaves_an_empty_topic_alone(tmp_path: Path) -> None:
    progress(tmp_path).save(60, 0)
    assert progress(tmp_path, target=TARGET._replace(records=0, ends=0)).events == 60


@pytest.mark.parametrize("given", ["", "relative/path"])
def test_unset_state_home_is_the_home_folder(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_home({"XDG_STATE_HOME": given}) == tmp_path / ".local" / "state" / "recallflow"


def test_unreadable_progress_file_is_one_line(tmp_path: Path) -> None:
    made = progress(tmp_path)
    made.save(1, 1)
    made.path.write_bytes(b"{")
    with pytest.raises(RecallflowError, match=r"cannot read .*; remove it"):
        progress(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RecallflowError, match=r"cannot write .*; set XDG_STATE_HOME"):
        progress(tmp_path / "file" / "below").save(1, 1)
