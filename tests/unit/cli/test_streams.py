"""Where the output of commands goes: terminals and pipes of any encoding, and disks that are full."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

TEXT = "Köln 😀 “Łódź”"
# Python's own ways out of a locale without UTF-8 are closed, as a program may close them that runs the command.
ASCII: dict[str, Any] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
DIRECTORY = "DIR"
# Commands that print, each its own way: text, tables, JSON lines, bytes, by a library, by the parser.
PRINT = {
    words: tuple(words.split())
    for words in (
        "--help",
        "demo",
        "remember tea --state-dir DIR",
        "ask Köln --state-dir DIR",
        "list --state-dir DIR",
        "list --json --state-dir DIR",
        "export default user --state-dir DIR",
        "state info --state-dir DIR",
        "replay LOG --dry-run",
        "pipe --state-dir DIR",
        "mcp --state-dir DIR",
        "serve --state-dir DIR --print-config",
        "schema",
    )
}
FULL = "recallflow: the system refuses: No space left on device"
STDIN = {
    "pipe": b'{"type": "user.stats", "tenant_id": "default", "user_id": "user"}\n',
    "mcp": b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
}


def command(
    *words: str, stdout: int = subprocess.PIPE, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "recallflow", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        input=stdin,
        env=os.environ | environment,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, and a state directory whose memory has characters that are not in every encoding."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "log.jsonl").write_bytes(orjson.dumps({"role": "user", "content": TEXT}) + b"\n")
    made = command("remember", TEXT, "--id", "city", "--state-dir", str(folder / "memory"), "--create")
    assert made.returncode == 0, made.stderr
    return folder


def filled(words: tuple[str, ...], folder: Path) -> list[str]:
    places = {DIRECTORY: str(folder / "memory"), "LOG": str(folder / "log.jsonl")}
    return [places.get(word, word) for word in words]


@pytest.fixture
def full() -> Iterator[int]:
    """Where nothing can be written."""
    opened = os.open("/dev/full", os.O_WRONLY)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("name", PRINT)
def test_a_full_disk_is_told_and_a_failure(folder: Path, full: int, name: str) -> None:
    words = filled(PRINT[name], folder)
    done = command(*words, stdout=full, stdin=STDIN.get(words[0], b""), PYTHONUNBUFFERED="")
    told = done.stderr.decode().splitlines()
    assert (done.returncode, [line for line in told if " WARNING " not in line]) == (1, [FULL])


@pytest.mark.parametrize("words", [("--help",), ("demo", "--json")], ids=" ".join)
def test_so_is_one_that_takes_nothing_from_the_beginning(full: int, words: tuple[str, ...]) -> None:
    done = command(*words, stdout=full, PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr.decode().splitlines()) == (1, [FULL])


@pytest.mark.parametrize("name", PRINT)
def test_no_character_ends_a_command(folder: Path, name: str) -> None:
    words = filled(PRINT[name], folder)
    done = command(*words, stdin=STDIN.get(words[0], b""), PYTHONIOENCODING="ascii")
    assert (done.returncode, b"recallflow:" in done.stderr) == (0, False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_is_the_same_value_in_every_encoding(folder: Path, encoding: str) -> None:
    done = command("list", "--json", "--state-dir", str(folder / "memory"), PYTHONIOENCODING=encoding)
    page: dict[str, Any] = orjson.loads(done.stdout.decode(encoding))["memory_page"]
    assert TEXT in [memory["content"] for memory in page["memories"]]


def test_what_no_encoding_has_is_escaped_in_text(folder: Path) -> None:
    done = command("ask", "Leipzig", "--min-relevance", "0", "--state-dir", str(folder / "memory"), **ASCII)
    assert rb"K\u00f6ln \ud83d\ude00 \u201c\u0141\u00f3d\u017a\u201d" in done.stdout


@pytest.mark.parametrize(
    ("word", "environment", "says"),
    [("Köln".encode(), ASCII, "arguments are ascii"), ("Köln".encode("latin-1"), {}, "arguments are utf-8")],
    ids=["of a locale that is not set", "of a terminal of another encoding"],
)
def test_an_argument_of_another_encoding_is_told(folder: Path, word: bytes, environment: Any, says: str) -> None:
    done = command("remember", os.fsdecode(word), "--state-dir", str(folder / "memory"), **environment)
    assert (done.returncode, done.stdout) == (2, b"")
    _, said = done.stderr.decode().splitlines()
    assert says in said
    assert "LC_ALL=C.UTF-8" in said


@pytest.mark.parametrize("words", [["--dry-run"], ["--dry-run", "--json"], ["--embedded", "--json", "--create"]])
def test_a_log_may_have_a_name_of_any_bytes(tmp_path: Path, words: list[str]) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / os.fsdecode("café.jsonl".encode("latin-1"))).write_bytes(b'{"role": "user", "content": "tea"}\n')
    done = command("replay", str(logs), *words, "--state-dir", str(tmp_path / "memory"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\\xe9.jsonl" in done.stdout or rb"caf\xe9.jsonl" in done.stdout
