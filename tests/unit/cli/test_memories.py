"""`list`, `show`, `forget` and `episodes`, of an engine in this process; and what no terminal is to be given."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.cells import cell_len

from recallflow.cli.memory_text import one_line, said_at
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[bytes]]

OWNER = {"tenant_id": "default", "user_id": "user"}
# It would clear the screen, ring, set the title, and write from right to left what follows.
HOSTILE = "before\x1b[2J\x07\x1b]0;owned\x07\u009b31m\u202eafter\r\nnext\x00"
WIDE = "東京の天気は晴れです。" * 12
HEBREW = "שלום, אני גר בתל אביב " * 8


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 facts of the first days of 2025, one of them changed, a conversation, and texts that are hard to show."""
    state_dir = tmp_path_factory.mktemp("memories") / "s"
    facts: list[dict[str, Any]] = [
        {"type": "memory", "id": f"f{n}", "content": f"fact {n}", "timestamp": f"2025-01-01T00:{n:02}:00Z"}
        for n in range(25)
    ]
    facts[3] |= {"category": "food", "tags": ["sweet", "cold"], "session_id": "s1", "importance": 0.9}
    facts[4] |= {"category": "food", "tags": ["sweet"]}
    said = [
        {
            "type": "message",
            "id": f"m{n}",
            "name": "Ann",
            "session_id": "chat",
            "content": text,
            "timestamp": f"2025-02-01T00:0{n}:00Z",
        }
        for n, text in enumerate((HOSTILE, WIDE, HEBREW))
    ]
    changed = {"type": "memory.update", "memory_id": "f3", "content": "ice cream", "timestamp": "2025-01-02T00:00:00Z"}
    lines = [orjson.dumps(event | OWNER) for event in (*facts, changed, *said)]
    assert process(lines, Settings(), state_dir).rejected == []
    return state_dir


@pytest.fixture
def own(directory: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    subprocess.run(["cp", "-r", directory, tmp_path / "own"], check=True)
    return tmp_path / "own"


def listed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The ids of what `list` printed where nobody reads it on a terminal."""
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t")[1] for line in done.stdout.splitlines()]


def on_terminal(columns: int, *arguments: str | Path, typed: bytes = b"") -> str:
    """What a command shows on a terminal of so many columns."""
    main, terminal = pty.openpty()
    script = "import sys; from recallflow.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    shown = subprocess.Popen(
        words,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment | {"COLUMNS": str(columns), "TERM": "xterm"},
    )
    os.close(terminal)
    os.write(main, typed)
    found = b""
    while True:
        try:
            part = os.read(main, 65_536)
        except OSError:  # its end, on Linux
            break
        if not part:
            break
        found += part
    shown.wait()
    os.close(main)
    return found.decode().replace("\r\n", "\n")


# ── list ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_twenty_are_listed_and_all_where_all_are_asked_for(cli: Cli, directory: Path) -> None:
    everything = ["m2", "m1", "m0", *(f"f{n}" for n in reversed(range(25)))]
    assert listed(cli("list", "--state-dir", directory)) == everything[:20]
    assert listed(cli("list", "--limit", 3, "--state-dir", directory)) == everything[:3]
    assert listed(cli("list", "--all", "--state-dir", directory)) == everything


def test_a_list_goes_on_over_pages(cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.cli.memories.PAGE_MOST", 4)
    assert len(listed(cli("list", "--limit", 10, "--state-dir", directory))) == 10
    assert len(set(listed(cli("list", "--all", "--state-dir", directory)))) == 28
    pages = [
        json.loads(line) for line in cli("list", "--limit", 10, "--json", "--state-dir", directory).stdout.splitlines()
    ]
    assert [len(page["memory_page"]["memories"]) for page in pages] == [4, 4, 2]


@pytest.mark.parametrize(
    ("narrowed", "ids"),
    [
        (("--category", "food"), ["f4", "f3"]),
        (("--tag", "cold"), ["f3"]),
        (("--session", "chat"), ["m2", "m1", "m0"]),
        (("--session", "chat", "--session", "s1"), ["m2", "m1", "m0", "f3"]),
        (("--kind", "message", "--limit", "1"), ["m2"]),
        (("--category", "food", "--as-of", "2025-01-01T00:03:30Z"), ["f3"]),
    ],
)
def test_a_list_is_narrowed(cli: Cli, directory: Path, narrowed: tuple[str, ...], ids: list[str]) -> None:
    assert listed(cli("list", *narrowed, "--state-dir", directory)) == ids


def test_an_empty_list_says_whose_it_is(cli: Cli, directory: Path) -> None:
    stranger = cli("list", "--user", "bbo", "--state-dir", directory)
    assert (stranger.returncode, stranger.stdout) == (
        0,
        "nothing remembered yet of user bbo of tenant default; --user and --tenant name another\n",
    )
    assert cli("list", "--tag", "x", "--state-dir", directory).stdout == "nothing remembered that fits\n"


# ── show, episodes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_memory_is_shown_with_its_fields_and_versions(cli: Cli, directory: Path) -> None:
    done = cli("show", "f3", "--state-dir", directory)
    assert (done.returncode, done.stderr) == (0, "")
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert shown[0] == "fact: ice cream"
    assert {"id f3", "category food", "tags sweet, cold", "session s1", "importance 0.9"} <= {*shown}
    assert any(line.startswith("version 0 ") and line.endswith(": fact 3") for line in shown)


def test_a_memory_in_json_is_what_is_there_now_and_its_history(cli: Cli, directory: Path) -> None:
    now, history = map(json.loads, cli("show", "f3", "--json", "--state-dir", directory).stdout.splitlines())
    assert [one["content"] for one in now["versions"]] == ["ice cream"]
    assert [one["content"] for one in history["versions"]] == ["fact 3", "ice cream"]


def test_a_memory_that_is_not_there_is_told(cli: Cli, directory: Path) -> None:
    done = cli("show", "nix", "--state-dir", directory)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no current memory has the id 'nix'" in done.stderr


def test_episodes_are_listed(cli: Cli, directory: Path) -> None:
    (line,) = cli("episodes", "--session", "chat", "--state-dir", directory).stdout.splitlines()
    begun, ended, episode, session, messages, _ = line.split("\t")
    assert (begun, ended, session, messages) == ("2025-02-01T00:00:00Z", "2025-02-01T00:02:00Z", "chat", "3")
    response = json.loads(cli("episodes", "--json", "--state-dir", directory).stdout)
    assert episode in [one["id"] for one in response["episodes"]]


# ── forget ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_forgotten_is_gone(cli: Cli, own: Path) -> None:
    assert cli("forget", "f4", "--state-dir", own).stdout == "forgotten\n"
    assert "f4" not in listed(cli("list", "--all", "--state-dir", own))
    assert json.loads(cli("forget", "--session", "chat", "--json", "--state-dir", own).stdout)["outcome"] == "forgotten"
    assert cli("list", "--session", "chat", "--state-dir", own).stdout == "nothing remembered that fits\n"
    assert cli("forget", "--session", "chat", "--state-dir", own).stdout == "nothing there to forget\n"


def test_all_that_is_named_must_hold_of_what_is_forgotten(cli: Cli, own: Path) -> None:
    cli("forget", "--category", "food", "--tag", "cold", "--state-dir", own)
    assert listed(cli("list", "--category", "food", "--state-dir", own)) == ["f4"]


@pytest.mark.parametrize("named", [(), ("f3", "--tag", "sweet")])
def test_what_is_to_be_forgotten_is_named_one_way(cli: Cli, directory: Path, named: tuple[str, ...]) -> None:
    done = cli("forget", *named, "--state-dir", directory)
    assert (done.returncode, done.stdout) == (2, "")
    assert "give either an ID, or" in done.stderr


def test_a_person_is_asked_before_anything_is_forgotten(cli: Cli, own: Path) -> None:
    asked = on_terminal(80, "forget", "--category", "food", "--state-dir", own, typed=b"\n")
    assert "ice cream" in asked
    assert "Forget all 2 of them for good? [y/N]" in asked
    assert "nothing is forgotten" in asked
    assert len(listed(cli("list", "--category", "food", "--state-dir", own))) == 2
    assert "forgotten" in on_terminal(80, "forget", "f3", "--state-dir", own, typed=b"y\n")
    assert listed(cli("list", "--category", "food", "--state-dir", own)) == ["f4"]
    unasked = on_terminal(80, "forget", "f4", "--yes", "--state-dir", own)
    assert "[y/N]" not in unasked
    assert cli("list", "--category", "food", "--state-dir", own).stdout == "nothing remembered that fits\n"


# ── terminals ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_is_as_wide_as_the_terminal_in_every_script(directory: Path, columns: int) -> None:
    lines = on_terminal(columns, "list", "--state-dir", directory).splitlines()
    plain = [strip_colours(line) for line in lines]
    assert [line for line in plain if cell_len(line) > columns] == []
    assert len([line for line in plain if "2025" in line]) == 20
    assert any("東京" in line and line.rstrip().endswith("…") for line in plain)
    assert any("שלום" in line for line in plain)


@pytest.mark.parametrize(
    "command", [("list",), ("show", "m0"), ("ask", "what was before and after?"), ("episodes",)], ids=" ".join
)
def test_no_text_of_anybody_moves_the_terminal(directory: Path, command: tuple[str, ...]) -> None:
    shown = strip_colours(on_terminal(100, *command, "--state-dir", directory))
    assert "before" in shown
    assert [character for character in shown if character < " " and character != "\n"] == []
    assert not {*"\x7f\u009b\u202e"} & {*shown}


def test_nothing_moves_whoever_reads_the_lines_elsewhere(cli: Cli, directory: Path) -> None:
    for command in (("list",), ("show", "m0"), ("ask", "what was before and after?"), ("episodes",)):
        shown = cli(*command, "--state-dir", directory).stdout
        assert "before" in shown
        assert not {*"\x00\x07\x1b\r\u009b\u202e"} & {*shown}


def test_words_that_were_asked_for_stand_out_and_the_reason_is_one_clause(directory: Path) -> None:
    shown = on_terminal(100, "ask", "Who has ice cream?", "-k", "1", "--state-dir", directory)
    assert "\x1b[1;33mice\x1b[0m" in shown
    assert len([line for line in strip_colours(shown).splitlines() if "because: " in line]) == 1


def test_whoever_stops_reading_ends_the_command_quietly(start: Start, directory: Path) -> None:
    listing = start("list", "--all", "--state-dir", directory)
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.stderr is not None
    assert listing.stderr.read() == b""
    assert listing.wait() == 141


def strip_colours(text: str) -> str:
    """Without what rich says of colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("2026-03-10T09:05:00Z", "today 09:05"),
        ("2026-03-09T23:59:00Z", "yesterday 23:59"),
        ("2026-03-04T12:00:00Z", "6 days ago"),
        ("2026-03-03T12:00:00Z", "3 March"),
        ("2025-12-24T12:00:00Z", "24 December 2025"),
        ("2026-03-12T12:00:00Z", "12 March"),
        ("0001-01-01T00:00:00Z", "0001-01-01"),
        ("9999-12-31T23:59:59Z", "9999-12-31"),
    ],
)
def test_times_as_a_person_says_them(at: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert said_at(at, NOW) == said


def test_places_in_a_text_stay_what_they_are() -> None:
    assert len(one_line(HOSTILE)) == len(HOSTILE)


def test_a_table_of_a_response_that_says_more_is_no_error(cli: Cli, directory: Path) -> None:
    found: dict[str, Any] = json.loads(cli("ask", "ice cream", "--json", "--explain", "--state-dir", directory).stdout)
    assert found["memories"][0]["id"] == "f3"
    shown = cli("ask", "ice cream", "--explain", "--state-dir", directory).stdout
    assert f"score {found['memories'][0]['score']:.3f} (semantic " in shown


def test_what_answers_made_of_a_memory_is_shown(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "The keys are under the fern", "--id", "k", "--state-dir", tmp_path / "s")
    assert "used         never" in cli("show", "k", "--state-dir", tmp_path / "s").stdout
    cli("ask", "Where are the keys?", "--state-dir", tmp_path / "s")
    assert "used         once, last today" in cli("show", "k", "--state-dir", tmp_path / "s").stdout
