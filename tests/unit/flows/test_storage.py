"""State directories of engines: full disks, locks, and erased files."""

import argparse
import base64
import errno
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
import rocksdict

from recallflow.cli.commands import commands
from recallflow.errors import PartitionMissing, StateInUse, StorageError
from recallflow.flows import member
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.kafka import MainKafkaFlow
from recallflow.flows.settings import Settings
from recallflow.owner import Owner
from recallflow.state import lock
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.description import RESTORING, describe
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwner, HotOwners
from recallflow.state.lock import LOCK, locked
from recallflow.state.verify import verify
from tests.event_log import hash_of, make_log
from tests.readable import files_with

Cli = Callable[..., subprocess.CompletedProcess[str]]

TWO = Settings(partitions=2)
NO_SPACE = os.strerror(errno.ENOSPC)
OWNERS = [{"tenant_id": "acme", "user_id": f"user{number}"} for number in range(3)]


def event(number: int) -> bytes:
    words = " ".join(f"word{number}-{n}" for n in range(30))
    return orjson.dumps({"type": "message", "id": f"m{number}", "content": words} | OWNERS[number % 3])


def run(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    return process(lines, TWO, state_dir).responses


def filled_partition(state_dir: Path) -> Path:
    with StateDirectory.existing(state_dir) as opened:
        number = next(partition.number for partition in opened.partitions() if partition.applied)
    return state_dir / f"p{number:03d}"


@pytest.mark.parametrize("says", ["appending to file: /s/p000/000012.log", "open a file for lock: /s/p000/LOCK"])
def test_full_disk_is_named_without_harmful_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, says: str
) -> None:
    state_dir = tmp_path / "s"
    run(state_dir, [event(0)])
    for words in (
        ("state", "verify"),
        ("state", "checkpoint", tmp_path / "copy"),
        ("ask", "tea?"),
        ("remember", "Tea."),
    ):
        with monkeypatch.context() as while_full:
            error = OSError(f"IO error: {NO_SPACE}: While {says}: {NO_SPACE}")
            while_full.setattr(rocksdict, "Rdict", Mock(side_effect=error))
            done = cli(*words, "--state-dir", state_dir)
        assert (done.returncode, done.stdout) == (1, "")
        assert "is full" in done.stderr
        assert not [word for word in ("estore", "rebuild", "give-up", "away") if word in done.stderr]
    assert cli("state", "verify", "--state-dir", state_dir).returncode == 0  # once there is space


def test_missing_partition_is_refused_and_not_created(tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    run(state_dir, [event(0)])
    shutil.rmtree(gone := filled_partition(state_dir))
    for _ in range(2):
        with pytest.raises(PartitionMissing, match=f"lost {gone.name}"):
            process([], TWO, state_dir)
        assert not gone.exists()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_damaged_file_is_reported_with_its_partition(tmp_path: Path, cli: Cli, name: str) -> None:
    state_dir = tmp_path / "s"
    run(state_dir, [event(n) for n in range(30)])
    run(state_dir, [])  # moves the writes of the run before into tables
    damaged = sorted(filled_partition(state_dir).glob(name))
    assert damaged
    for file in damaged:
        content = bytearray(file.read_bytes())
        content[: len(content) // 2] = bytes(byte ^ 0x5A for byte in content[: len(content) // 2])
        file.write_bytes(content)
    done = cli("state", "hash", "--state-dir", state_dir)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"recallflow: [^\n]+\n", done.stderr)
    assert re.search(r"p\d\d\d|state partition \d+", done.stderr)
    assert "restore" in done.stderr.lower()
    assert "in use" not in done.stderr


def test_owners_in_memory_stay_within_the_budget(tmp_path: Path) -> None:
    run(tmp_path, [])
    fingerprint, _ = describe(tmp_path)
    with StateDirectory.open(tmp_path, fingerprint) as opened:
        partition = opened.partition(0)
        owners = [Owner("acme", "prod", f"user{number}") for number in range(60)]
        weight = HotOwner(partition, owners[0]).size_bytes()
        hot = HotOwners(10 * weight)
        loaded: list[HotOwner] = []

        def touch(owner: Owner) -> HotOwner:
            found = hot.get(partition, owner)
            if not any(one is found for one in loaded):
                loaded.append(found)
            return found

        for owner in owners:
            assert touch(owner).owner == owner
            assert touch(owners[0]) is touch(owners[0])  # used all the time
            hot.shrink()
            assert hot.total_bytes <= 10 * weight
        assert len(hot._owners) == 10
        assert [one.owner for one in loaded] == owners  # each was loaded once, the first was never dropped
        touch(owners[1])
        assert [one.owner for one in loaded] == [*owners, owners[1]]


def test_owner_stays_in_memory_while_its_batch_is_applied(tmp_path: Path) -> None:
    """Its effects are not committed yet, so an owner that is loaded again would lack them."""
    run(tmp_path, [])
    fingerprint, _ = describe(tmp_path)
    with StateDirectory.open(tmp_path, fingerprint) as opened:
        partition = opened.partition(0)
        hot = HotOwners(1)
        owners = [Owner("acme", "prod", f"user{number}") for number in range(50)]
        held = [hot.get(partition, owner) for owner in owners]
        assert [hot.get(partition, owner) for owner in owners] == held
        hot.shrink()
        assert (len(hot._owners), hot.total_bytes) == (0, 0)


PASSING = StorageError(f"IO error: While open a file: {os.strerror(errno.EMFILE)}")


@pytest.mark.parametrize(
    ("begun", "error", "runs"),
    [
        (True, PASSING, 3),
        (True, OSError(errno.ENFILE, os.strerror(errno.ENFILE)), 3),
        (True, StorageError("Corruption: block checksum mismatch"), 1),
        (False, PASSING, 1),  # a start that fails says why
    ],
)
def test_member_joins_anew_after_an_io_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, error: Exception, runs: int
) -> None:
    count = 0

    def run_once(self: MainKafkaFlow, *_: object) -> None:
        nonlocal count
        count += 1
        self._has_begun = begun
        if count < 3:
            raise error

    monkeypatch.setattr(MainKafkaFlow, "_run", run_once)
    monkeypatch.setattr(member, "REJOIN_PAUSE_S", 0.0)
    with nullcontext() if runs == 3 else pytest.raises(type(error)):
        MainKafkaFlow(Config(state_dir=tmp_path / "s")).run()
    assert count == runs


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
    process([EVENT], TWO, folder / "s")
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
    assert cli(*COMMANDS["info"], tmp_path / "none").returncode == 2
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


def test_open_partition_cannot_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)
    process([EVENT], TWO, tmp_path / "s")
    fingerprint, _ = describe(tmp_path / "s")
    with StateDirectory.open(tmp_path / "s", fingerprint) as first:
        first.partition(1)
        with StateDirectory.open(tmp_path / "s", fingerprint) as second:
            second.partition(0)
            with pytest.raises(StateInUse, match="p001"):
                second.partition(1)
    with StateDirectory.open(tmp_path / "s", fingerprint) as third:
        assert len(third.partitions()) == 2


def test_lock_of_an_ended_thread_refuses_later_threads(tmp_path: Path) -> None:
    held = locked(tmp_path)
    with ThreadPoolExecutor(1) as first:
        first.submit(held.__enter__).result()
    for _ in range(4):  # threads use numbers of ended ones again
        with ThreadPoolExecutor(1) as later, pytest.raises(StateInUse):
            later.submit(locked(tmp_path, 0).__enter__).result()
    held.__exit__(None, None, None)


USER, MARK = "bob-of-leeds", "zanzibarfish"
BROKEN = b"{"


@pytest.fixture(scope="module", params=[21, pytest.param(22, marks=pytest.mark.exhaustive)])
def lines(request: pytest.FixtureRequest) -> list[bytes]:
    """Return a log in which all texts of one user contain a word."""
    renamed = (
        line.replace(b'"user_id":"bob"', f'"user_id":"{USER}"'.encode()) for line in make_log(request.param, 250)
    )
    return [line.replace(b'"content":"', f'"content":"{MARK} '.encode()) if is_of(line) else line for line in renamed]


def is_of(line: bytes) -> bool:
    return f'"user_id":"{USER}"'.encode() in line


def erasure(**fields: Any) -> bytes:
    told = {"type": "user.erase", "tenant_id": "acme", "user_id": USER, "timestamp": "2027-01-01T00:00:00Z"}
    return orjson.dumps(told | fields)


def remembered(state_dir: Path) -> int:
    asked = {"type": "user.stats", "tenant_id": "acme", "user_id": USER}
    (response,) = process([orjson.dumps(asked)], TWO, state_dir).responses
    return int(response["stats"]["memories"])


def files_with_the_user(folder: Path) -> list[str]:
    return files_with(folder, USER, MARK)


def test_erasure_leaves_a_state_without_the_user(lines: list[bytes], tmp_path: Path) -> None:
    process(lines, TWO, tmp_path / "s")
    assert files_with_the_user(tmp_path / "s")
    process([erasure()], TWO, tmp_path / "s")
    assert files_with_the_user(tmp_path / "s") == []
    without = [BROKEN if is_of(line) else line for line in lines]
    process(without, TWO, tmp_path / "without")
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "without")
    assert verify(tmp_path / "s").problems == []
    process([*lines, erasure()], TWO, tmp_path / "new")  # the whole log, into a new directory
    assert hash_of(tmp_path / "new") == hash_of(tmp_path / "without")
    process(lines, TWO, tmp_path / "s")  # and into the same one, without the erasure
    assert (remembered(tmp_path / "s"), files_with_the_user(tmp_path / "s")) == (0, [])


def test_user_returns_after_an_erasure_without_a_past(lines: list[bytes], tmp_path: Path) -> None:
    half = len(lines) // 2
    early = erasure(timestamp="2020-01-01T00:00:00Z")  # all that comes later is later than it
    process([*lines[:half], early, *lines[half:]], TWO, tmp_path / "s")
    before = [BROKEN if is_of(line) else line for line in lines[:half]]
    process([*before, BROKEN, *lines[half:]], TWO, tmp_path / "late")
    assert remembered(tmp_path / "s") == remembered(tmp_path / "late") > 0
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "late")
    assert verify(tmp_path / "s").problems == []


def test_restored_older_checkpoint_is_erased_again(lines: list[bytes], tmp_path: Path) -> None:
    half = len(lines) // 2
    process(lines[:half], TWO, tmp_path / "s")
    checkpoint(tmp_path / "s", tmp_path / "copy")
    rest = [*lines[half:], erasure()]
    process(rest, TWO, tmp_path / "s")
    restore(tmp_path / "copy", tmp_path / "restored")
    process(rest, TWO, tmp_path / "restored")
    assert hash_of(tmp_path / "restored") == hash_of(tmp_path / "s")
    assert files_with_the_user(tmp_path / "restored") == []
    assert files_with_the_user(tmp_path / "copy")


def test_checkpoint_waits_for_clean_files(lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(lines, TWO, tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(StateDirectory, "clean", lambda *_: None)  # as if killed before
        process([erasure()], TWO, tmp_path / "s")
        assert files_with_the_user(tmp_path / "s")
        checkpoint(tmp_path / "s", tmp_path / "copy")
    assert files_with_the_user(tmp_path / "copy") == []
