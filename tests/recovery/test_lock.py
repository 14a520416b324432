"""One process at a time has a state directory: whoever comes second is told who has it, and has changed nothing."""

import argparse
import base64
import hashlib
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from recallflow.cli.commands import commands
from recallflow.state import lock
from recallflow.state.directory import RESTORING
from recallflow.state.lock import LOCK

Pipe = Callable[[Path, Sequence[bytes]], list[dict[str, Any]]]
Start = Callable[..., subprocess.Popen[bytes]]
Cli = Callable[..., subprocess.CompletedProcess[str]]

OWNER = {"tenant_id": "acme", "user_id": "ann"}
EVENT = orjson.dumps({"type": "memory", "id": "m", "content": "Tea, please."} | OWNER)
GET = orjson.dumps({"type": "memory.get", "id": "q", "memory_id": "m"} | OWNER)
NOBODY = "127.0.0.1:1"  # the directory is asked for before any broker

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "--bootstrap-servers", NOBODY, "--state-dir"),
    "enrich": ("enrich", "--bootstrap-servers", NOBODY, "--state-dir"),
    "serve": ("serve", "--port", "0", "--state-dir"),
    "pipe": ("pipe", "--state-dir"),
    "mcp": ("mcp", "--state-dir"),
    "remember": ("remember", "tea", "--state-dir"),
    "ask": ("ask", "tea?", "--state-dir"),
    "list": ("list", "--state-dir"),
    "show": ("show", "m", "--state-dir"),
    "forget": ("forget", "m", "--state-dir"),
    "episodes": ("episodes", "--state-dir"),
    "replay": ("replay", "LOG", "--embedded", "--state-dir"),
    "graph status": ("graph", "status", "--state-dir"),
    "graph trace": ("graph", "trace", "tea?", "--state-dir"),
    "graph facts": ("graph", "facts", "--state-dir"),
    "erase": ("erase", "acme", "ann", "--state-dir"),
    "export": ("export", "acme", "ann", "--state-dir"),
    "info": ("state", "info", "--state-dir"),
    "hash": ("state", "hash", "--state-dir"),
    "move": ("state", "move", "--partitions", "0", "CHECKPOINT"),
    "split": ("state", "split", "--into", "other:0", "--"),
    "merge": ("state", "merge", "--into", "TARGET"),
    "verify": ("state", "verify", "--state-dir"),
    "checkpoint": ("state", "checkpoint", "TARGET", "--state-dir"),
    "restore": ("state", "restore", "CHECKPOINT", "--state-dir"),
    "rotate": ("state", "rotate-key", "--to-master-key-file", "KEY", "--state-dir"),
}


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time flies for whoever waits for a lock."""
    seconds = itertools.count()
    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))


def tree(path: Path) -> dict[str, str]:
    """Every file and folder, with what is in it."""
    return {
        str(entry.relative_to(path)): hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else ""
        for entry in sorted(path.rglob("*"))
    }


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, start: Start, pipe: Pipe) -> tuple[Path, int]:
    """A filled directory that another process works on, and that process' id; beside it a log and a checkpoint."""
    folder = tmp_path_factory.mktemp("held")
    (folder / "log.jsonl").write_bytes(EVENT + b"\n")
    (folder / "key").write_bytes(base64.b64encode(bytes(32)))
    pipe(folder / "s", [EVENT])
    copying = start("state", "checkpoint", folder / "copy", "--state-dir", folder / "s")
    copying.communicate()
    engine = start("pipe", "--state-dir", folder / "s")
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(GET + b"\n")
    engine.stdin.flush()
    assert engine.stdout.readline()
    engine.send_signal(signal.SIGSTOP)  # it holds the lock all the same, and writes no snapshot meanwhile
    return folder, engine.pid


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("_hasty")
def test_a_second_command_is_refused_and_changes_nothing(held: tuple[Path, int], cli: Cli, name: str) -> None:
    folder, holder = held
    places = {"LOG": folder / "log.jsonl", "TARGET": folder / "target", "CHECKPOINT": folder / "copy"}
    places["KEY"] = folder / "key"
    before = tree(folder / "s")
    second = cli(*(places.get(word, word) for word in COMMANDS[name]), folder / "s")
    said = [line for line in second.stderr.splitlines() if " INFO " not in line]
    assert (second.returncode, second.stdout, len(said)) == (1, "", 1), second.stderr
    assert f"is in use by recallflow pipe (process {holder} on " in said[0]
    assert "since 2" in said[0]
    assert tree(folder / "s") == before
    assert not (folder / "target").exists()


def test_every_command_that_opens_a_directory_is_tried() -> None:
    """A new command with --state-dir belongs into the table above."""

    def takers(parser: argparse.ArgumentParser) -> Iterator[str]:
        """The commands at and below this parser that take a state directory."""
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from takers(command)
            elif "--state-dir" in action.option_strings or action.metavar == "FROM":
                yield parser.prog.removeprefix("recallflow ")

    tried = {" ".join(words[: 1 + (words[0] in ("state", "graph"))]) for words in COMMANDS.values()}
    assert set(takers(commands())) - {"doctor"} == tried  # which says who is there, and looks at the rest


def test_the_first_goes_on_after_the_second_was_refused(tmp_path: Path, start: Start, pipe: Pipe) -> None:
    """What the second touched used to keep the first from ever starting again."""
    engine = start("pipe", "--state-dir", tmp_path / "s")
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(EVENT + b"\n" + GET + b"\n")
    engine.stdin.flush()
    assert engine.stdout.readline()
    second = start("replay", tmp_path / "log", "--embedded", "--state-dir", tmp_path / "s")
    (tmp_path / "log").write_bytes(EVENT + b"\n")
    second.communicate()
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    assert [answer["status"] for answer in pipe(tmp_path / "s", [GET])] == ["ok"]


def test_a_folder_that_is_no_state_directory_stays_as_it_was(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_bytes(b"meow")
    for name in ("pipe", "verify", "info", "checkpoint"):
        assert cli(*COMMANDS[name], tmp_path / "photos").returncode == 1
    assert tree(tmp_path / "photos") == {"cat": hashlib.sha256(b"meow").hexdigest()}
    assert "there is no state directory" in cli(*COMMANDS["info"], tmp_path / "none").stderr
    assert not (tmp_path / "none").exists()


def test_a_restore_that_was_killed_is_told_and_done_again(held: tuple[Path, int], tmp_path: Path, cli: Cli) -> None:
    folder, _ = held
    half = tmp_path / "s"
    half.mkdir()
    (half / RESTORING).write_bytes(b"{")
    (half / "p000").mkdir()
    for name in ("pipe", "verify"):
        assert "stopped in the middle: restore it again" in cli(*COMMANDS[name], half).stderr
    assert cli("state", "restore", folder / "copy", "--state-dir", half).returncode == 0
    assert orjson.loads(cli("pipe", "--state-dir", half, stdin=GET + b"\n").stdout)["status"] == "ok"


def test_a_lock_names_no_text_of_a_user(tmp_path: Path, start: Start) -> None:
    told = start("remember", "a secret", "--state-dir", tmp_path / "s")
    assert told.wait() == 0
    note = orjson.loads((tmp_path / "s" / LOCK).read_bytes())
    assert note["command"] == "recallflow remember"
    assert note["pid"] == told.pid
    assert note["pid"] != os.getpid()
