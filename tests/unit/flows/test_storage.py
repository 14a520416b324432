"""Full disks, lost or damaged files, and owners that do not fit in memory."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pytest

from recallflow.errors import PartitionMissing, StorageError
from recallflow.flows import member
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.kafka import MainKafkaFlow
from recallflow.flows.settings import Settings
from recallflow.owner import Owner
from recallflow.state import database
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwner, HotOwners
from tests.event_log import CACHE_BYTES

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
    with StateDirectory.existing(state_dir, CACHE_BYTES) as opened:
        number = next(partition.number for partition in opened.partitions() if partition.applied)
    return state_dir / f"p{number:03d}"


def full_for_rocksdb(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(f"IO error: {NO_SPACE}: While {what}: {NO_SPACE}")

    monkeypatch.setattr(database, "Rdict", refuse)


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
            full_for_rocksdb(while_full, says)
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
    with StateDirectory.open(tmp_path, fingerprint, CACHE_BYTES) as opened:
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
        assert len(hot) == 10
        assert [one.owner for one in loaded] == owners  # each was loaded once, the first was never dropped
        touch(owners[1])
        assert [one.owner for one in loaded] == [*owners, owners[1]]


def test_owner_stays_in_memory_while_its_batch_is_applied(tmp_path: Path) -> None:
    """Its effects are not committed yet, so an owner that is loaded again would lack them."""
    run(tmp_path, [])
    fingerprint, _ = describe(tmp_path)
    with StateDirectory.open(tmp_path, fingerprint, CACHE_BYTES) as opened:
        partition = opened.partition(0)
        hot = HotOwners(1)
        owners = [Owner("acme", "prod", f"user{number}") for number in range(50)]
        held = [hot.get(partition, owner) for owner in owners]
        assert [hot.get(partition, owner) for owner in owners] == held
        hot.shrink()
        assert (len(hot), hot.total_bytes) == (0, 0)


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
    monkeypatch.setattr(member, "REJOIN_S", 0.0)
    with nullcontext() if runs == 3 else pytest.raises(type(error)):
        MainKafkaFlow(Config(state_dir=tmp_path / "s")).run()
    assert count == runs
