"""Output of commands on terminals, pipes and full disks, and log lines."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from recallflow.cli.output import error, heading, json_line, note, paragraph, table
from recallflow.cli.records import line_of
from recallflow.cli.replay_jobs import ProgressMeter
from recallflow.connectors.logs.sources import LogFile
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.operators import writes
from recallflow.telemetry import JsonFormatter, TextFormatter, set_up_logging
from tests.unit.cli.harness import Cli, event, jsonl, on_files, terminal

TEXT = "Köln 😀 “Łódź”"
# Python's own ways out of a locale without UTF-8 are closed, as a program may close them that runs the command.
ASCII: dict[str, Any] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# Commands that print, each its own way: text, tables, JSON lines, bytes, by a library, by the parser.
PRINT = (
    "--help", "demo", "remember tea --state-dir DIR", "ask Köln --state-dir DIR", "list --state-dir DIR",
    "list --json --state-dir DIR", "export default user --state-dir DIR", "state info --state-dir DIR",
    "replay LOG --dry-run", "pipe --state-dir DIR", "mcp --state-dir DIR", "serve --state-dir DIR --print-config",
    "schema",
)  # fmt: skip
STDIN = {
    "pipe": b'{"type": "user.stats", "tenant_id": "default", "user_id": "user"}\n',
    "mcp": b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
}
LONG = "The spare key hangs behind the third jar from the left, where nobody but Ann would look for it at all. " * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "log.jsonl").write_bytes(orjson.dumps({"role": "user", "content": TEXT}) + b"\n")
    made = event("memory", id="city", content=TEXT, tenant_id="default", user_id="user")
    process([jsonl(made)], Settings(partitions=1), folder / "memory")
    return folder


@pytest.fixture
def full() -> Iterator[int]:
    """Return a file descriptor on which every write fails."""
    opened = os.open("/dev/full", os.O_WRONLY)
    yield opened
    os.close(opened)


def run(folder: Path, line: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    names = {"DIR": folder / "memory", "LOG": folder / "log.jsonl"}
    words = [str(names.get(word, word)) for word in line.split()]
    return on_files(*words, stdin=STDIN.get(words[0], b""), **options)


def command(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a new interpreter, whose encodings the environment decides."""
    line = [sys.executable, "-m", "recallflow", *map(str, words)]
    return subprocess.run(line, capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.usefixtures("mcp")
@pytest.mark.parametrize("line", PRINT)
def test_full_disk_fails_a_command_with_one_line(folder: Path, full: int, line: str) -> None:
    done = run(folder, line, stdout=full)
    told = [one for one in done.stderr.splitlines() if b" WARNING " not in one]
    assert (done.returncode, len(told), b"No space left" in told[0]) == (1, 1, True), told


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--help"], ["demo", "--json"]], ids=" ".join)
def test_full_disk_leaves_no_traceback_of_the_interpreter(full: int, words: list[str]) -> None:
    line = [sys.executable, "-m", "recallflow", *words]
    done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr.count(b"\n"), b"No space left" in done.stderr) == (1, 1, True)


@pytest.mark.usefixtures("mcp")
@pytest.mark.parametrize("line", PRINT)
def test_output_in_ascii_fails_no_command(folder: Path, line: str) -> None:
    done = run(folder, line, encoding="ascii")
    assert (done.returncode, b"recallflow:" in done.stderr) == (0, False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_has_the_same_value_in_every_encoding(folder: Path, encoding: str) -> None:
    done = run(folder, "list --json --state-dir DIR", encoding=encoding)
    page: dict[str, Any] = orjson.loads(done.stdout.decode(encoding))["memory_page"]
    assert TEXT in [memory["content"] for memory in page["memories"]]


def test_characters_outside_the_encoding_are_escaped_in_text(folder: Path) -> None:
    done = run(folder, "ask Leipzig --min-relevance 0 --state-dir DIR", encoding="ascii")
    assert rb"K\u00f6ln \ud83d\ude00 \u201c\u0141\u00f3d\u017a\u201d" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("word", "environment", "encoding"), [("Köln".encode(), ASCII, b"ascii"), ("Köln".encode("latin-1"), {}, b"utf-8")],
    ids=["locale without UTF-8", "terminal of another encoding"],
)  # fmt: skip
def test_argument_of_another_encoding_is_refused(folder: Path, word: bytes, environment: Any, encoding: bytes) -> None:
    done = command("remember", os.fsdecode(word), "--state-dir", folder / "memory", **environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert encoding in done.stderr
    assert b"LC_ALL=C.UTF-8" in done.stderr


def test_argument_that_is_no_unicode_is_refused(folder: Path) -> None:
    done = on_files("remember", "K\udcf6ln", "--state-dir", folder / "memory")
    assert (done.returncode, done.stdout, b"LC_ALL=C.UTF-8" in done.stderr) == (2, b"", True)


@pytest.mark.parametrize("words", [["--dry-run"], ["--dry-run", "--json"], ["--embedded", "--json", "--create"]])
def test_log_may_have_a_name_of_any_bytes(tmp_path: Path, words: list[str]) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / os.fsdecode("café.jsonl".encode("latin-1"))).write_bytes(b'{"role": "user", "content": "tea"}\n')
    done = on_files("replay", logs, *words, "--state-dir", tmp_path / "memory")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\\xe9.jsonl" in done.stdout or rb"caf\xe9.jsonl" in done.stdout


def show() -> None:
    """Print one of each kind of output."""
    heading("Keys")
    print(paragraph(LONG, "  "))
    table(["name", "count", "text"], [("a", 1234, LONG), ("b", 5, "tea\x1b[2J")])
    note("beside")
    error("wrong")


def shown(columns: int) -> str:
    with terminal(columns) as written:
        show()
    return written[0]


@pytest.mark.parametrize("columns", [50, 120])
def test_terminal_sets_the_width_of_lines(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    widest = max(len(line) for line in shown(columns).splitlines())
    assert columns - 12 < widest <= columns


def test_terminal_shows_colours() -> None:
    text = shown(80)
    assert "\x1b[1mKeys" in text
    assert "\x1b[1;31mrecallflow:" in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")])
def test_terminal_without_colours_shows_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    text = shown(80)
    assert not [code for code in ("\x1b[3", "31m") if code in text]


def test_pipe_gets_whole_lines_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    show()
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "Keys", f"  {' '.join(LONG.split())}", "name  count  text", f"a     1,234  {LONG.rstrip()}",
        "b         5  tea\N{REPLACEMENT CHARACTER}[2J",
    ]  # fmt: skip
    assert said.err == "recallflow: beside\nrecallflow: wrong\n"


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_pipe_gets_colours_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "1")
    show()
    lines = capsys.readouterr().out.splitlines()
    assert ("\x1b[1mKeys" in lines[0], len(lines)) == (True, 5)


def test_json_line_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = "tea\x1b[2J \x9b2J \x7f\n"
    json_line({"content": text})
    line = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x7f"} & {*line}
    assert orjson.loads(line) == {"content": text}


def test_meter_shows_the_name_of_any_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    ProgressMeter("chats [2024] [/old]\x1b[2J.json", LogFile("chats", "chats", 2)).close()
    assert "chats [2024] [/old]\N{REPLACEMENT CHARACTER}[2J.json" in stream.getvalue()


def test_record_of_any_time_is_shown() -> None:
    named = {"timestamp.return_value": (1, 2**62), "key.return_value": b"acme/ann"}
    named |= {"value.return_value": b"{}", "headers.return_value": []}
    assert "acme/ann" in line_of(Mock(**named), "memory").plain


SECRET = "aubergine"
STORY: list[dict[str, Any]] = [
    event("message", id="m1", content=f"The {SECRET} is in the kitchen", receipt=True),
    event("memory", id="m2", content=f"Ann grows one {SECRET} a year", tags=[SECRET]),
    event("memory", id="m3", content=5, tags=SECRET),
    event("memory", id="m4", content=f"our own code fails at this {SECRET}"),
    event("memory.update", memory_id="m2", content=f"Ann grows two of the {SECRET}"),
    event("memory.update", memory_id="nobody", content=SECRET),
    event("recall", id="q1", query=f"Where is the {SECRET}?", explain=True),
    event("recall", id="q2", query=f"The {SECRET}?", mode=SECRET), event("graph.facts", id="q3", query=SECRET),
    event(SECRET, id="x"), event("memory.forget", memory_id="m1"), event("user.erase"),
]  # fmt: skip


def record(level: int, text: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("recallflow.connectors.kafka.source", level, "file", 1, text, args, None)
    made.created = 1_767_225_600.1234
    return made


def test_text_line_has_time_level_and_logger() -> None:
    line = TextFormatter().format(record(logging.WARNING, "%s is unavailable", "Kafka"))
    assert line == "2026-01-01T00:00:00.123Z WARNING connectors.kafka.source: Kafka is unavailable"


def test_json_line_holds_a_traceback_in_one_object() -> None:
    failed = record(logging.ERROR, "two\nlines")
    failed.exc_info = (ValueError, ValueError("what"), None)
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("message").startswith("two\nlines\nValueError: what")
    assert told == {"time": "2026-01-01T00:00:00.123Z", "level": "error", "logger": "connectors.kafka.source"}


def test_json_line_names_its_trace() -> None:
    assert "trace_id" not in json.loads(JsonFormatter().format(record(logging.INFO, "said")))
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False))
    token = context.attach(trace.set_span_in_context(span))
    try:
        told = json.loads(JsonFormatter().format(record(logging.INFO, "said")))
    finally:
        context.detach(token)
    assert (told["trace_id"], told["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")


def test_other_libraries_log_from_warnings_on(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text")
    logging.getLogger("recallflow.flows.kafka").info("ours")
    logging.getLogger("others").info("theirs")
    logging.getLogger("others").warning("their trouble")
    said = capfd.readouterr().err
    assert "INFO flows.kafka: ours" in said
    assert "WARNING others: their trouble" in said
    assert "theirs" not in said


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_error_that_ends_a_run_is_a_log_line(cli: Cli, tmp_path: Path, log_format: str) -> None:
    done = cli("run", "--state-dir", tmp_path / "s", "--standby", "-1", "--log-format", log_format)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "standby" in (json.loads(line)["message"] if log_format == "json" else line)


def test_no_log_line_has_a_text_of_a_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply a story of good and refused records, and one at which an operator fails, and log at every level."""
    apply = vars(writes)["apply"]

    def fails(view: object, write: object, *rest: object) -> object:
        if getattr(getattr(write, "event", None), "id", None) == "m4":
            raise ValueError(f"cannot read {SECRET}")
        return apply(view, write, *rest)

    monkeypatch.setattr(writes, "apply", fails)
    caplog.set_level(logging.DEBUG)
    lines = [*map(orjson.dumps, STORY), b"{" + SECRET.encode()]
    done = process(lines, Settings(partitions=1), tmp_path / "s")
    assert {response["query_id"] for response in done.responses} >= {"q1", "q2", "q3"}
    assert len(done.rejected) >= 4
    told = [JsonFormatter().format(one) for one in caplog.records]
    assert any(json.loads(line).get("code") == "internal_error" for line in told)
    assert not [line for line in told if SECRET in line.lower()]
