"""Copies of a state directory that are whole or not there, and the check that what is stored hangs together.

None of it works beside a running process: RocksDB's LOCK is taken on every state partition, and where another process
holds one, that is StateInUse.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from recallflow.errors import StateError, StateInUse, StorageError
from recallflow.owner import state_partition
from recallflow.state import keys
from recallflow.state.directory import DESCRIPTION, RECOVERY, Fingerprint, StateDirectory, describe
from recallflow.state.files import write_whole
from recallflow.state.partition import Partition
from recallflow.state.rows import Current, Entry, Episode, Head, MemoryRow, Vectors

CACHE_BYTES = 1024 * 1024
LOCK = "LOCK"  # RocksDB's: a database that was opened has one, a checkpoint of it has none

# ---------------------------------------------------------------------- checkpoint


def checkpoint(state_dir: Path, target: Path) -> None:
    """Copies a state directory that is not in use to `target`, an empty or new folder.

    1. All state partitions are opened, and so locked until the end: nothing moves while it is copied.
    2. Everything is written into a folder beside the target: RocksDB checkpoints (hard links where the disk is the
       same), the recovery store, and the small files that flows keep.
    3. That folder is synced and renamed: a crash leaves no target, never half of one.
    """
    fingerprint, _ = describe(state_dir)
    if not any((state_dir / RECOVERY).glob("*.sqlite3")):
        raise StateError(
            f"{state_dir} has no recovery store ({RECOVERY}/), and a checkpoint without one could not be run on: "
            "mend it first (recallflow state rebuild --give-up-unanswered)"
        )
    if state_dir.resolve() in target.resolve().parents:
        raise StateError(f"{target} is inside {state_dir}: give a folder that is not lost together with it")
    with (
        StateDirectory.open(state_dir, fingerprint, CACHE_BYTES) as directory,
        _writing(target),
        _renamed(target) as new,
    ):
        for partition in directory.partitions():
            _copy_database(partition, partition_folder(new, partition.number))
        (new / RECOVERY).mkdir()
        for file in (state_dir / RECOVERY).glob("*.sqlite3"):
            _copy_sqlite(file, new / RECOVERY / file.name)
        for file in state_dir.glob("*.json"):
            shutil.copy(file, new)


def restore(source: Path, state_dir: Path) -> None:
    """Makes `state_dir`, an empty or new folder, what the checkpoint was; the checkpoint stays as it is.

    The description comes last, and without it no command takes the folder for a state directory. It is not renamed
    into place, as an empty folder is often a disk that was mounted there.
    """
    fingerprint, secret = describe(source)
    _check_checkpoint(source, fingerprint)
    _check_empty(state_dir)
    with _writing(state_dir):
        try:
            shutil.copytree(source, state_dir, copy_function=_link_or_copy, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns(DESCRIPTION))  # fmt: skip
            with StateDirectory(state_dir, fingerprint, secret, CACHE_BYTES, lock_wait_s=0) as directory:
                directory.partitions()
            _sync(state_dir)
            write_whole(state_dir / DESCRIPTION, (source / DESCRIPTION).read_bytes())
        except BaseException:
            _empty(state_dir)
            raise


def partition_folder(path: Path, number: int) -> Path:
    """Where a state directory has the database of a state partition."""
    return path / f"p{number:03d}"


def _check_checkpoint(source: Path, fingerprint: Fingerprint) -> None:
    folders = [partition_folder(source, number) for number in range(fingerprint.partitions)]
    if missing := [folder.name for folder in (*folders, source / RECOVERY) if not folder.is_dir()]:
        raise StateError(f"{source} is no whole checkpoint: {', '.join(missing)} missing. Restore another one")
    if any((folder / LOCK).exists() for folder in folders):
        # Its files may be changing: a copy would open, and be wrong.
        raise StateError(f"{source} is a state directory and no checkpoint: make one (recallflow state checkpoint)")


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StateError(f"{folder} is not empty: give an empty or new folder")


@contextlib.contextmanager
def _renamed(target: Path) -> Iterator[Path]:
    """A folder that is the target in the end, or gone."""
    _check_empty(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield new
        _sync(new)
        new.rename(target)
        _sync_one(target.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """What the system says about a disk, as an error of ours."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"cannot write {target}: {error}") from error


def _copy_database(partition: Partition, folder: Path) -> None:
    try:
        partition.checkpoint(folder)
    except Exception as error:  # rocksdict raises bare Exception
        raise StorageError(f"state partition {partition.number} could not be copied to {folder}: {error}") from error


def _copy_sqlite(source: Path, target: Path) -> None:
    # Not as a file: what was committed last may still be in the write-ahead log beside it.
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _link_or_copy(source: str, target: str) -> None:
    """RocksDB never changes a table file, so both directories can have it; all other files become copies."""
    if source.endswith(".sst"):
        with contextlib.suppress(OSError):  # another disk, or one without links
            os.link(source, target)
            return
    shutil.copy(source, target)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# ---------------------------------------------------------------------- verify

TABLES = {
    keys.HEAD: "owners",
    keys.CURRENT: "ids",
    keys.ROW: "rows",
    keys.ENTRY: "entries",
    keys.VECTORS: "vectors",
    keys.EPISODE: "episodes",
    keys.EVENT_ID: "event ids",
    keys.ADJACENCY: "adjacency",
    keys.USAGE: "usage",
}
# Bytes of a key behind the table's letter.
_REST = {
    keys.HEAD: 0,
    keys.CURRENT: 16,
    keys.ROW: 20,
    keys.ENTRY: 8,
    keys.VECTORS: 8,
    keys.EPISODE: 24,
    keys.EVENT_ID: 16,
    keys.ADJACENCY: 33,
    keys.USAGE: 8,
}
_UNDECODABLE = (ValueError, TypeError, KeyError, IndexError, ArithmeticError)


@dataclass(slots=True)
class Report:
    """What a state directory holds, and all that is wrong with it. `partitions` are those that were read: one that
    never got an event has no folder."""

    partitions: int = 0
    records: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def verify(state_dir: Path) -> Report:
    """Reads and decodes every record of every table, and checks that they agree. Goes on after each problem; raises
    StateError only where nothing can be read at all: no description, or another process has the directory."""
    fingerprint, _ = describe(state_dir)
    report = Report()
    with StateDirectory.open(state_dir, fingerprint, CACHE_BYTES) as directory:
        for number in range(fingerprint.partitions):
            if partition_folder(state_dir, number).is_dir():
                _verify_partition(directory, number, report)
    return report


def _verify_partition(directory: StateDirectory, number: int, report: Report) -> None:
    try:
        partition = directory.partition(number)
        report.partitions += 1
        for owner, records in groupby(partition.everything(), lambda record: _owner_of(record[0])):
            check = _own_problems if owner is None else _OwnerCheck(directory.fingerprint, owner).problems
            report.problems.extend(f"p{number:03d}: {found}" for found in check(partition, records, report.records))
    except StateInUse:
        raise
    except StateError as error:
        report.problems.append(f"p{number:03d}: {error}")
    except _UNDECODABLE as error:  # its own records are read when it is opened
        report.problems.append(f"p{number:03d}: cannot be opened: {error}")


def _owner_of(key: bytes) -> bytes | None:
    return keys.split(key)[0] if key.startswith(keys.OWNERS) else None


def _own_problems(partition: Partition, records: Iterator[tuple[bytes, bytes]], counts: Counter[str]) -> Iterator[str]:
    """What is wrong with a partition's own records: format, clock, positions, outbox."""
    applied = {partition.keyring.name(b"", source): offset for source, offset in partition.applied.items()}
    for key, value in records:
        try:
            if key.startswith(keys.OUTBOX) and len(key) == 25:
                counts["outbox"] += 1
                orjson.loads(value)
                if keys.sequence(key) > applied.get(key[1:17], keys.sequence(key)):
                    yield f"outbox {key.hex()}: ahead of the applied position of its source"
            elif key.startswith(keys.APPLIED):
                counts["positions"] += 1
                if int(value) < 0:
                    yield f"applied position of {key[len(keys.APPLIED) :].decode()} is {int(value)}"
            elif key != keys.FORMAT and not key.startswith(keys.CLOCK):
                yield f"{key.hex()}: a key of no table"
        except _UNDECODABLE as error:
            yield f"{key.hex()}: cannot be decoded: {error}"


class _Slot(NamedTuple):
    """What an index entry says of other records."""

    name: bytes
    version: int
    episode: int


class _OwnerCheck:
    """One owner's records: each is decoded as it comes, and what they say of each other is compared at the end."""

    def __init__(self, settings: Fingerprint, owner: bytes) -> None:
        self._settings = settings
        self._owner = owner
        self._head: Head | None = None
        self._currents: dict[bytes, Current] = {}
        self._versions: dict[bytes, set[int]] = {}
        self._entries: dict[int, _Slot] = {}
        self._vectors: set[int] = set()
        self._episodes: dict[int, Episode] = {}

    def problems(
        self, partition: Partition, records: Iterator[tuple[bytes, bytes]], counts: Counter[str]
    ) -> Iterator[str]:
        """Everything that is wrong, with the owner's key: no name and no text of a user."""
        self._number, self._keyring = partition.number, partition.keyring
        who = f"owner {self._owner.hex()}"
        for key, value in records:
            _, table, rest = keys.split(key)
            if len(rest) != _REST.get(table):
                yield f"{key.hex()}: a key of no table"
                continue
            counts[TABLES[table]] += 1
            try:
                found = list(self._take(table, rest, value))
            except _UNDECODABLE as error:
                found = [f"cannot be decoded: {error}"]
            yield from (f"{who}, {TABLES[table]} {rest.hex()}: {problem}" for problem in found)
        yield from (f"{who}: {problem}" for problem in self._disagreements())

    # ------------------------------------------------------------------ one record

    def _take(self, table: bytes, rest: bytes, value: bytes) -> Iterator[str]:
        match table:
            case keys.HEAD:
                yield from self._take_head(value)
            case keys.CURRENT:
                self._currents[rest] = Current.decode(value)
            case keys.ROW:
                yield from self._take_row(rest, MemoryRow.decode(value))
            case keys.ENTRY:
                yield from self._take_entry(rest, Entry.decode(value))
            case keys.VECTORS:
                yield from self._take_vectors(rest, value)
            case keys.EPISODE:
                yield from self._take_episode(rest, Episode.decode(value))
            case keys.EVENT_ID:
                bytes.fromhex(value.decode())

    def _take_head(self, value: bytes) -> Iterator[str]:
        self._head = Head.decode(value)
        owner = self._head.owner
        if self._keyring.owner(owner) != self._owner:
            yield "names an owner of another key"
        if state_partition(owner.tenant_id, owner.user_id, self._settings.partitions) != self._number:
            yield "belongs to another state partition"

    def _take_row(self, rest: bytes, row: MemoryRow) -> Iterator[str]:
        name, version = rest[:16], int.from_bytes(rest[16:], "big")
        self._versions.setdefault(name, set()).add(version)
        if self._keyring.name(self._owner, row.id) != name or row.version != version:
            yield f"says it is version {row.version} of another memory"

    def _take_entry(self, rest: bytes, entry: Entry) -> Iterator[str]:
        seq = keys.sequence(rest)
        self._entries[seq] = _Slot(self._keyring.name(self._owner, entry.id), entry.version, entry.episode)
        if entry.seq != seq:
            yield f"says it is entry {entry.seq}"

    def _take_vectors(self, rest: bytes, value: bytes) -> Iterator[str]:
        self._vectors.add(keys.sequence(rest))
        stored = Vectors.decode(value)
        rows, dimension = stored.matrix.shape
        if dimension != self._settings.dimension or not rows:
            yield f"{rows} of dimension {dimension}, not of {self._settings.dimension}"
        if len(stored.encode()) != len(value):
            yield f"{len(value) - len(stored.encode())} bytes too many"
        if not np.isfinite(stored.matrix).all():
            yield "not all numbers are finite"

    def _take_episode(self, rest: bytes, episode: Episode) -> Iterator[str]:
        self._episodes[keys.sequence(rest)] = episode
        session = self._keyring.name(self._owner, episode.session_id or "")
        if episode.number != keys.sequence(rest) or session != rest[:16]:
            yield f"says it is episode {episode.number} of another session"
        if episode.last_ms < episode.start_ms:
            yield "ends before it starts"

    # ------------------------------------------------------------------ all records

    def _disagreements(self) -> Iterator[str]:
        for name, current in self._currents.items():
            yield from (f"id {name.hex()}: {problem}" for problem in self._of_id(name, current))
        for name in self._versions.keys() - self._currents.keys():
            yield f"rows of {name.hex()}: no id leads to them"
        for seq, slot in self._entries.items():
            yield from (f"entry {seq}: {problem}" for problem in self._of_entry(seq, slot))
        for seq in sorted(self._vectors - self._entries.keys()):
            yield f"vectors {seq}: of no entry"
        for number, episode in self._episodes.items():
            if episode.merged_into is not None and episode.merged_into not in self._episodes:
                yield f"episode {number}: was taken in by {episode.merged_into}, which is missing"
        yield from self._of_head()

    def _of_id(self, name: bytes, current: Current) -> Iterator[str]:
        versions, slot = self._versions.get(name, set()), self._entries.get(current.seq)
        if current.forgotten:
            if versions or (slot is not None and slot.name == name):
                yield "is forgotten, and something is left of it"
            return
        if missing := sorted(set(range(current.version + 1)) - versions):
            yield f"row of version {', '.join(map(str, missing))} missing"
        if newer := sorted(versions - set(range(current.version + 1))):
            yield f"row of version {', '.join(map(str, newer))} is newer than the current one"
        if slot is None or slot.name != name:
            yield f"entry {current.seq} missing"
        elif slot.version != current.version:
            yield f"entry {current.seq} is of version {slot.version}, not {current.version}"

    def _of_entry(self, seq: int, slot: _Slot) -> Iterator[str]:
        current = self._currents.get(slot.name)
        if current is None or current.seq != seq:
            yield "no id leads to it"
        if slot.episode >= 0 and slot.episode not in self._episodes:
            yield f"episode {slot.episode} missing"

    def _of_head(self) -> Iterator[str]:
        """An owner of whom only event ids are kept has no head."""
        seqs = {current.seq for current in self._currents.values()} | self._entries.keys() | self._episodes.keys()
        if self._head is None:
            if seqs or self._versions:
                yield "has memories and no head"
        elif seqs and max(seqs) >= self._head.next_seq:
            yield f"next sequence number is {self._head.next_seq}, and {max(seqs)} is taken"
