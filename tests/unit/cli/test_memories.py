"""`list`, `show`, `forget` and `episodes`, of an engine in this process; and texts that a terminal must not obey."""

import json
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from rich.cells import cell_len

from recallflow.cli.memories import relative_time
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from tests.unit.cli.harness import Cli, event, jsonl, on_terminal, parsed, without_colours

OWNER = {"tenant_id": "default", "user_id": "user"}
# It would clear the screen, ring, set the title, and write from right to left.
HOSTILE = "before\x1b[2J\x07\x1b]0;owned\x07\u009b31m\u202eafter\r\nnext\x00"
WIDE = "東京の天気は晴れです。" * 12
HEBREW = "שלום, אני גר בתל אביב " * 8
SHOW_HOSTILE = (("list",), ("show", "m0"), ("ask", "what was before and after?"), ("episodes",))
ALL = ["m2", "m1", "m0", *(f"f{n}" for n in reversed(range(25)))]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with 25 facts, one of them changed, a conversation, and texts that are hard to show."""
    facts: list[dict[str, Any]] = [
        event("memory", id=f"f{n}", content=f"fact {n}") | {"timestamp": f"2025-01-01T00:{n:02}:00Z"} for n in range(25)
    ]
    facts[3] |= {"category": "food", "tags": ["sweet", "cold"], "session_id": "s1", "importance": 0.9}
    facts[4] |= {"category": "food", "tags": ["sweet"]}
    said = [
        event("message", id=f"m{n}", name="Ann", session_id="chat", content=text)
        | {"timestamp": f"2025-02-01T00:0{n}:00Z"}
        for n, text in enumerate((HOSTILE, WIDE, HEBREW))
    ]
    changed = event("memory.update", memory_id="f3", content="ice cream") | {"timestamp": "2025-01-02T00:00:00Z"}
    lines = jsonl(*(one | OWNER for one in (*facts, changed, *said))).splitlines()
    state_dir = tmp_path_factory.mktemp("memories") / "s"
    assert process(lines, Settings(partitions=1), state_dir).rejected == []
    return state_dir


@pytest.fixture(scope="module")
def directory(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(pristine, tmp_path_factory.mktemp("queried") / "s")


Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(cli: Cli, directory: Path) -> Run:
    return lambda *words: cli(*words, "--state-dir", directory)


@pytest.fixture
def own(pristine: Path, tmp_path: Path) -> Path:
    """Return a copy that no other test has queried."""
    return shutil.copytree(pristine, tmp_path / "own")


def listed(done: CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t")[1] for line in done.stdout.splitlines() if "\t" in line]


@pytest.mark.parametrize(
    ("narrowed", "ids"),
    [
        ((), ALL[:20]),
        (("--limit", "3"), ALL[:3]),
        (("--all",), ALL),
        (("--category", "food"), ["f4", "f3"]),
        (("--tag", "cold"), ["f3"]),
        (("--session", "chat"), ["m2", "m1", "m0"]),
        (("--session", "chat", "--session", "s1"), ["m2", "m1", "m0", "f3"]),
        (("--kind", "message", "--limit", "1"), ["m2"]),
        (("--category", "food", "--as-of", "2025-01-01T00:03:30Z"), ["f3"]),
        (("--tag", "x"), []),
    ],
)
def test_list_shows_the_newest_that_fit(run: Run, narrowed: tuple[str, ...], ids: list[str]) -> None:
    assert listed(run("list", *narrowed)) == ids


def test_list_continues_over_pages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.cli.memories.PAGE_MOST", 4)
    assert listed(run("list", "--limit", 10)) == ALL[:10]
    assert listed(run("list", "--all")) == ALL
    pages = parsed(run("list", "--limit", 10, "--json").stdout)
    assert [len(page["memory_page"]["memories"]) for page in pages] == [4, 4, 2]


def test_memory_is_shown_with_its_fields_and_versions(run: Run) -> None:
    done = run("show", "f3")
    assert (done.returncode, done.stderr) == (0, "")
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert shown[0] == "fact: ice cream"
    assert {"id f3", "category food", "tags sweet, cold", "session s1", "importance 0.9"} <= {*shown}
    assert any(line.startswith("version 0 ") and line.endswith(": fact 3") for line in shown)


def test_memory_in_json_is_its_current_version_and_history(run: Run) -> None:
    now, history = parsed(run("show", "f3", "--json").stdout)
    assert [one["content"] for one in now["versions"]] == ["ice cream"]
    assert [one["content"] for one in history["versions"]] == ["fact 3", "ice cream"]


def test_unknown_memory_is_refused(run: Run) -> None:
    done = run("show", "nix")
    assert (done.returncode, done.stdout, "'nix'" in done.stderr) == (1, "", True)


def test_episodes_are_listed(run: Run) -> None:
    (line,) = run("episodes", "--session", "chat").stdout.splitlines()
    begun, ended, episode, session, messages, _ = line.split("\t")
    assert (begun, ended, session, messages) == ("2025-02-01T00:00:00Z", "2025-02-01T00:02:00Z", "chat", "3")
    assert episode in [one["id"] for one in json.loads(run("episodes", "--json").stdout)["episodes"]]


def test_show_tells_when_a_memory_was_used(cli: Cli, own: Path) -> None:
    assert "used         never" in cli("show", "f3", "--state-dir", own).stdout
    cli("ask", "Who has ice cream?", "--state-dir", own)
    assert "used         once, last today" in cli("show", "f3", "--state-dir", own).stdout


def test_ask_shows_how_a_score_came_about(run: Run) -> None:
    first = json.loads(run("ask", "ice cream", "--json", "--explain").stdout)["memories"][0]
    assert first["id"] == "f3"
    shown = re.search(r"score ([\d.]+) \(semantic ", run("ask", "ice cream", "--explain").stdout)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(first["score"], abs=0.01)


def test_forgotten_memories_are_gone(cli: Cli, own: Path) -> None:
    assert cli("forget", "f4", "--state-dir", own).stdout == "forgotten\n"
    assert "f4" not in listed(cli("list", "--all", "--state-dir", own))
    assert json.loads(cli("forget", "--session", "chat", "--json", "--state-dir", own).stdout)["outcome"] == "forgotten"
    assert listed(cli("list", "--session", "chat", "--state-dir", own)) == []
    assert cli("forget", "--session", "chat", "--state-dir", own).stdout == "no memories to forget\n"


@pytest.mark.parametrize("named", [(), ("f3", "--tag", "sweet")])
def test_forget_needs_either_an_id_or_options(run: Run, named: tuple[str, ...]) -> None:
    done = run("forget", *named)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "typed", "asks", "left"),
    [
        (("--category", "food"), b"\n", "all 2", ["f4", "f3"]), (("--category", "food"), b"y\n", "all 2", []),
        (("f3",), b"y\n", "[y/N]", ["f4"]), (("f3", "--yes"), b"", "", ["f4"]),
    ],
)  # fmt: skip
def test_forget_on_a_terminal_asks_first(
    cli: Cli, own: Path, words: tuple[str, ...], typed: bytes, asks: str, left: list[str]
) -> None:
    shown = on_terminal(80, "forget", *words, "--state-dir", own, typed=typed)
    assert ("[y/N]" in shown, "ice cream" in shown) == (bool(asks), bool(asks))
    assert asks in shown
    assert listed(cli("list", "--category", "food", "--state-dir", own)) == left


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_table_fits_the_terminal_in_every_script(directory: Path, columns: int) -> None:
    plain = without_colours(on_terminal(columns, "list", "--state-dir", directory)).splitlines()
    assert [line for line in plain if cell_len(line) > columns] == []
    assert len([line for line in plain if "2025" in line]) == 20
    assert any("東京" in line and line.rstrip().endswith("…") for line in plain)
    assert any("שלום" in line for line in plain)


@pytest.mark.parametrize("command", SHOW_HOSTILE, ids=" ".join)
def test_hostile_text_does_not_control_the_terminal(run: Run, directory: Path, command: tuple[str, ...]) -> None:
    shown = without_colours(on_terminal(100, *command, "--state-dir", directory))
    assert [character for character in shown if character < " " and character != "\n"] == []
    assert not {*"\x7f\u009b\u202e"} & {*shown}
    piped = run(*command).stdout
    assert not {*"\x00\x07\x1b\r\u009b\u202e"} & {*piped}
    assert "before" in shown
    assert "before" in piped


def test_words_of_the_question_are_highlighted(directory: Path) -> None:
    shown = on_terminal(100, "ask", "Who has ice cream?", "-k", "1", "--state-dir", directory)
    assert "\x1b[1;33mice\x1b[0m" in shown
    assert len([line for line in without_colours(shown).splitlines() if "because: " in line]) == 1


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("2026-03-10T09:05:00Z", "today 09:05"), ("2026-03-09T23:59:00Z", "yesterday 23:59"),
        ("2026-03-04T12:00:00Z", "6 days ago"), ("2026-03-03T12:00:00Z", "3 March"),
        ("2025-12-24T12:00:00Z", "24 December 2025"), ("2026-03-12T12:00:00Z", "12 March"),
        ("0001-01-01T00:00:00Z", "0001-01-01"), ("9999-12-31T23:59:59Z", "9999-12-31"),
    ],
)  # fmt: skip
def test_time_is_shown_relative_to_now(at: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert relative_time(at, datetime(2026, 3, 10, 12, tzinfo=UTC)) == said
