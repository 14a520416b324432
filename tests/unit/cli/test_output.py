"""What commands print for people: as wide as the terminal, whole lines elsewhere, colours where they are wanted."""

import io
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from unittest.mock import Mock

import orjson
import pytest

from recallflow.cli.output import json_line
from recallflow.cli.pace import Meter
from recallflow.cli.tail_text import line_of

LONG = "The spare key hangs behind the third jar from the left, where nobody but Ann would look for it at all. " * 2
SHOW = f"""
from recallflow.cli.output import heading, note, error, paragraph, table
heading("Keys")
print(paragraph({LONG!r}, "  "))
table(["name", "count", "text"], [("a", 1234, {LONG!r}), ("b", 5, "tea\\x1b[2J")])
note("beside")
error("wrong")
"""
Shown = Callable[..., str]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a program of Python writes to a terminal of so many columns."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def shown(columns: int, **environment: str) -> str:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, columns))
        named = os.environ | {"TERM": "xterm-256color"} | environment
        with subprocess.Popen([sys.executable, "-c", SHOW], stdout=theirs, stderr=theirs, env=named):
            os.close(theirs)
            written = bytearray()
            try:
                while piece := os.read(ours, 65536):
                    written += piece
            except OSError:  # the other side is closed
                pass
        os.close(ours)
        return written.decode().replace("\r\n", "\n")

    return shown


def piped(**environment: str) -> subprocess.CompletedProcess[str]:
    named = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")} | environment
    return subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True, env=named)


@pytest.mark.parametrize("columns", [50, 120])
def test_lines_are_as_wide_as_the_terminal(on_terminal: Shown, columns: int) -> None:
    lines = on_terminal(columns, NO_COLOR="1").splitlines()
    widest = max(len(line) for line in lines)
    assert columns - 12 < widest <= columns


def test_a_terminal_shows_colours(on_terminal: Shown) -> None:
    shown = on_terminal(80)
    assert "\x1b[1mKeys" in shown
    assert "\x1b[1;31mrecallflow:" in shown


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"CLICOLOR": "0"}, {"TERM": "dumb"}])
def test_who_wants_no_colours_has_none(on_terminal: Shown, environment: dict[str, str]) -> None:
    assert "\x1b[3" not in on_terminal(80, **environment)
    assert "31m" not in on_terminal(80, **environment)


def test_lines_stay_whole_and_plain_where_they_are_piped() -> None:
    done = piped()
    text = " ".join(LONG.split())
    assert done.stdout.splitlines() == [
        "Keys",
        f"  {text}",
        "name  count  text",
        f"a     1,234  {LONG.rstrip()}",
        "b         5  tea\N{REPLACEMENT CHARACTER}[2J",
    ]
    assert done.stderr == "recallflow: beside\nrecallflow: wrong\n"


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_colours_can_be_had_in_a_pipe(name: str) -> None:
    done = piped(**{name: "1", "TERM": "xterm-256color"})
    assert "\x1b[1mKeys" in done.stdout
    assert len(done.stdout.splitlines()) == 5


def test_a_line_of_json_moves_no_terminal_and_is_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = "tea\x1b[2J \x9b2J \x7f\n"
    json_line({"content": text})
    line = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x7f"} & {*line}
    assert orjson.loads(line) == {"content": text}


def test_a_log_with_any_name_is_metered_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Meter("chats [2024] [/old]\x1b[2J.json", lambda: 1, 2):
        pass
    assert "chats [2024] [/old]\N{REPLACEMENT CHARACTER}[2J.json" in stream.getvalue()


def test_a_record_of_any_time_is_one_line() -> None:
    message = Mock(**{"timestamp.return_value": (1, 2**62), "key.return_value": b"acme/ann",
                      "value.return_value": b"{}"})  # fmt: skip
    assert "acme/ann" in line_of(message, "memory", goes_in=True).plain
