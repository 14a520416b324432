"""One process at a time holds a state directory; a second one is refused by name, and changes nothing."""

import argparse
import base64
import hashlib
import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from recallflow.cli.commands import commands
from recallflow.errors import StateInUse
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state import lock
from recallflow.state.checkpoint import checkpoint
from recallflow.state.description import RESTORING, describe
from recallflow.state.directory import StateDirectory
from recallflow.state.lock import LOCK, locked
from tests.event_log import CACHE_BYTES

Cli = Callable[..., subprocess.CompletedProcess[str]]

OWNER = {"tenant_id": "acme", "user_id": "ann"}
EVENT = orjson.dumps({"type": "memory", "id": "m", "content": "Tea, please."} | OWNER)
GET = orjson.dumps({"type": "memory.get", "id": "q", "memory_id": "m"} | OWNER)
NOBODY = "127.0.0.1:1"  # the directory is locked before a broker is contacted

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "--bootstrap-servers", NOBODY, "--state-dir"),
    "enrich": ("enrich", "--bootstrap-servers", NOBODY, "--state-dir"),
    "serve": ("serve", "--port", "0", "--state-dir"), "pipe": ("pipe", "--state-dir"), "mcp": ("mcp", "--state-dir"),
    "remember": ("remember", "tea", "--state-dir"), "ask": ("ask", "tea?", "--state-dir"),
    "list": ("list", "--state-dir"), "show": ("show", "m", "--state-dir"), "forget": ("forget", "m", "--state-dir"),
    "episodes": ("episodes", "--state-dir"), "replay": ("replay", "LOG", "--embedded", "--state-dir"),
    "graph status": ("graph", "status", "--state-dir"), "graph trace": ("graph", "trace", "tea?", "--state-dir"),
    "graph facts": ("graph", "facts", "--state-dir"), "erase": ("erase", "acme", "ann", "--state-dir"),
    "export": ("export", "acme", "ann", "--state-dir"), "info": ("state", "info", "--state-dir"),
    "hash": ("state", "hash", "--state-dir"), "move": ("state", "move", "--partitions", "0", "CHECKPOINT"),
    "split": ("state", "split", "--into", "other:0", "--"), "merge": ("state", "merge", "--into", "TARGET"),
    "verify": ("state", "verify", "--state-dir"), "checkpoint": ("state", "checkpoint", "TARGET", "--state-dir"),
    "restore": ("state", "restore", "CHECKPOINT", "--state-dir"),
    "rotate": ("state", "rotate-key", "--to-master-key-file", "KEY", "--state-dir"),
}  # fmt: skip


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the wait for a lock end at once."""
    seconds = itertools.count()
    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None))


def tree(path: Path) -> dict[str, str]:
    """Return every file and folder, with a hash of its content."""
    return {
        str(entry.relative_to(path)): hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else ""
        for entry in sorted(path.rglob("*"))
    }


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a log, a key, a checkpoint, and a directory that another thread holds."""
    folder = tmp_path_factory.mktemp("held")
    (folder / "log.jsonl").write_bytes(EVENT + b"\n")
    (folder / "key").write_bytes(base64.b64encode(bytes(32)))
    process([EVENT], Settings(partitions=2), folder / "s")
    checkpoint(folder / "s", folder / "copy")
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        lock.command.set("recallflow pipe")
        with locked(folder / "s"):
            holds.set()
            ends.wait()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert holds.wait(30)
        yield folder
        ends.set()
    holding.result()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("_hasty")
def test_second_command_is_refused_and_changes_nothing(held: Path, cli: Cli, name: str) -> None:
    folder = held
    places = {"LOG": folder / "log.jsonl", "TARGET": folder / "target", "CHECKPOINT": folder / "copy"}
    places["KEY"] = folder / "key"
    before = tree(folder / "s")
    second = cli(*(places.get(word, word) for word in COMMANDS[name]), folder / "s")
    said = [line for line in second.stderr.splitlines() if " INFO " not in line]
    assert (second.returncode, second.stdout, len(said)) == (1, "", 1), second.stderr
    assert f"is in use by recallflow pipe (process {os.getpid()} on " in said[0]
    assert "since 2" in said[0]
    assert tree(folder / "s") == before
    assert not (folder / "target").exists()


def test_every_command_that_opens_a_directory_is_tried() -> None:
    """A new command with --state-dir belongs in the table above."""

    def takers(parser: argparse.ArgumentParser) -> Iterator[str]:
        """Yield the commands at and below this parser that take a state directory."""
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from takers(command)
            elif "--state-dir" in action.option_strings or action.metavar == "FROM":
                yield parser.prog.removeprefix("recallflow ")

    tried = {" ".join(words[: 1 + (words[0] in ("state", "graph"))]) for words in COMMANDS.values()}
    assert set(takers(commands())) - {"doctor"} == tried  # which reports the holder


def test_folder_that_is_no_state_directory_stays_unchanged(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_bytes(b"meow")
    for name in ("pipe", "verify", "info", "checkpoint"):
        assert cli(*COMMANDS[name], tmp_path / "photos").returncode == 1
    assert tree(tmp_path / "photos") == {"cat": hashlib.sha256(b"meow").hexdigest()}
    assert cli(*COMMANDS["info"], tmp_path / "none").returncode == 1
    assert not (tmp_path / "none").exists()


def test_interrupted_restore_is_refused_until_it_is_repeated(held: Path, tmp_path: Path, cli: Cli) -> None:
    half = tmp_path / "s"
    half.mkdir()
    (half / RESTORING).write_bytes(b"{")
    (half / "p000").mkdir()
    for name in ("pipe", "verify"):
        assert "restore it again" in cli(*COMMANDS[name], half).stderr
    assert cli("state", "restore", held / "copy", "--state-dir", half).returncode == 0
    assert orjson.loads(cli("pipe", "--state-dir", half, stdin=GET + b"\n").stdout)["status"] == "ok"


def test_lock_contains_no_text_of_a_user(tmp_path: Path, cli: Cli) -> None:
    assert cli("remember", "a secret", "--state-dir", tmp_path / "s").returncode == 0
    note = orjson.loads((tmp_path / "s" / LOCK).read_bytes())
    assert (note["command"], note["pid"]) == ("recallflow remember", os.getpid())


def test_open_partition_cannot_be_opened_again(tmp_path: Path) -> None:
    process([EVENT], Settings(partitions=2), tmp_path / "s")
    fingerprint, _ = describe(tmp_path / "s")
    with StateDirectory.open(tmp_path / "s", fingerprint, CACHE_BYTES) as first:
        first.partition(1)
        with StateDirectory.open(tmp_path / "s", fingerprint, CACHE_BYTES, lock_wait_s=0) as second:
            second.partition(0)
            with pytest.raises(StateInUse, match="p001"):
                second.partition(1)
    with StateDirectory.open(tmp_path / "s", fingerprint, CACHE_BYTES, lock_wait_s=0) as third:
        assert len(third.partitions()) == 2


def test_lock_of_an_ended_thread_refuses_later_threads(tmp_path: Path) -> None:
    held = locked(tmp_path)
    with ThreadPoolExecutor(1) as first:
        first.submit(held.__enter__).result()
    for _ in range(4):  # threads use numbers of ended ones again
        with ThreadPoolExecutor(1) as later, pytest.raises(StateInUse):
            later.submit(locked(tmp_path, 0).__enter__).result()
    held.__exit__(None, None, None)
