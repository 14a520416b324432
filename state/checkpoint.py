"""Checkpoints: complete copies of a closed state directory. A directory in use raises StateInUse."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recallflow.errors import StateError, StorageError
from recallflow.private_files import make_private_folder, restrict_tree, sync
from recallflow.state.description import DESCRIPTION, RESTORING, Fingerprint, describe, hold
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.files import read_checked, sync_tree, write_checked
from recallflow.state.folders import copy_database, numbers_in, partition_folder, read_secret
from recallflow.state.lock import LOCK, locked

CACHE_BYTES = 1024 * 1024
HELD = "checkpoint.json"  # the partitions of a checkpoint: a directory may have a part of them
DATABASE_LOCK = "LOCK"  # RocksDB's: an opened database has one, its checkpoint has none


def checkpoint(state_dir: Path, target: Path, at_rest: AtRest = UNENCRYPTED) -> None:
    """Copy a closed state directory to `target`, an empty or new folder.

    1. The directory is locked until the end, and its files are cleaned of erased data. 2. RocksDB checkpoints (hard
    links on the same disk) and the small files of flows are written into a temporary folder next to the target. 3. That
    folder is synced and renamed, so a crash leaves no partial target."""
    with StateDirectory.existing(state_dir, CACHE_BYTES, at_rest) as directory:
        directory.check_complete()  # a copy of an incomplete directory would pass for a whole one
        if state_dir.resolve() in target.resolve().parents:
            raise StateError(f"{target} is inside {state_dir}: give a folder that is not lost together with it")
        directory.finish_cleaning()  # the copy must not contain erased data
        with _writing(target), _renamed(target) as new:
            for partition in directory.existing_partitions():
                copy_database(partition, partition_folder(new, partition.number), read_secret(partition.path))
            for file in state_dir.glob("*.json"):
                shutil.copy2(file, new)
            write_checked(new / HELD, {"partitions": directory.existing_numbers()})
            restrict_tree(new)


def restore(source: Path, state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> None:
    """Copy a checkpoint to `state_dir`, an empty or new folder.

    A checkpoint that was opened for verification is still a checkpoint; raise StateInUse while a process has it open.
    The description is renamed into place last: without it, no command opens the folder. The folder itself is not
    renamed, because an empty folder is often a mount point. A restart after a crash begins again."""
    described = describe(source)
    Keyring.opened(described.secret, source, at_rest)  # detects another master key before any write
    _check_whole(source, described.fingerprint)
    here, there = source.resolve(), state_dir.resolve()
    if here in there.parents or there in here.parents:
        raise StateError(f"{state_dir} and {source} lie within each other: give a folder beside the checkpoint")
    if not (state_dir / LOCK).exists():  # otherwise it is a state directory, and the lock's error names its holder
        _check_empty(state_dir)
    with _unused(source), _writing(state_dir):
        make_private_folder(state_dir)
        with locked(state_dir):
            _check_empty(state_dir)
            try:
                _empty(state_dir)
                shutil.copy2(source / DESCRIPTION, state_dir / RESTORING)
                shutil.copytree(source, state_dir, copy_function=_link_or_copy, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns(DESCRIPTION, LOCK, HELD))  # fmt: skip
                with StateDirectory(state_dir, described, at_rest, CACHE_BYTES, lock_wait_s=0) as directory:
                    directory.existing_partitions()
                restrict_tree(state_dir)  # the checkpoint may be older than these permissions
                sync_tree(state_dir)
                (state_dir / RESTORING).rename(state_dir / DESCRIPTION)
                sync(state_dir)
            except BaseException:
                _empty(state_dir)
                raise


def _check_whole(source: Path, fingerprint: Fingerprint) -> None:
    try:
        numbers = read_checked(source / HELD)["partitions"]
    except FileNotFoundError:  # a directory that was copied by other means
        numbers = range(fingerprint.partitions)
    folders = [partition_folder(source, number) for number in numbers]
    if missing := [folder.name for folder in folders if not folder.is_dir()]:
        raise StateError(f"{source} is no whole checkpoint: {', '.join(missing)} missing. Restore another one")


def _unused(source: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a checkpoint that was ever opened. Others may be on read-only media, and nothing changes their files."""
    folders = (partition_folder(source, number) for number in numbers_in(source))
    opened = (source / LOCK).exists() or any((folder / DATABASE_LOCK).exists() for folder in folders)
    return hold(source) if opened else contextlib.nullcontext()


def _check_empty(folder: Path) -> None:
    if folder.is_dir() and (folder / RESTORING).exists():
        return  # a restore that was killed
    if folder.exists() and (not folder.is_dir() or any(entry.name != LOCK for entry in folder.iterdir())):
        raise StateError(f"{folder} is not empty: give an empty or new folder")


@contextlib.contextmanager
def _renamed(target: Path) -> Iterator[Path]:
    """Yield a new folder, which becomes the target at the end or is removed on failure."""
    _check_empty(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield new
        sync_tree(new)
        new.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Convert system errors about the disk into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error}") from error


def _link_or_copy(source: str, target: str) -> None:
    """Link a table file, which RocksDB never changes, and copy any other file."""
    if source.endswith(".sst"):
        with contextlib.suppress(OSError):  # another disk, or one without links
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _empty(folder: Path) -> None:
    """Remove all files but the lock. The marker of a restore is removed last, so that it survives a crash."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == RESTORING):
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
