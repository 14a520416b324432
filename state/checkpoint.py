"""Copies of a state directory that are whole or not there.

No copy is made beside a running process: RocksDB's LOCK is taken on every state partition, and where another process
holds one, that is StateInUse.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recallflow.errors import StateError, StorageError
from recallflow.state.directory import DESCRIPTION, RECOVERY, Fingerprint, StateDirectory, describe
from recallflow.state.files import write_whole
from recallflow.state.partition import Partition

CACHE_BYTES = 1024 * 1024
LOCK = "LOCK"  # RocksDB's: a database that was opened has one, a checkpoint of it has none


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
