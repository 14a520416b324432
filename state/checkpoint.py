"""Checkpoints: copies of all partitions of a closed state directory. A directory in use raises StateInUse."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recallflow.errors import StateError
from recallflow.private_files import make_private_folder, restrict_tree, sync
from recallflow.state.description import DESCRIPTION, RESTORING, Fingerprint, describe, hold
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.files import read_checked, storage_errors, sync_tree, write_checked
from recallflow.state.folders import copy_database, numbers_in, partition_folder, read_secret
from recallflow.state.lock import LOCK, locked

CONTENTS = "checkpoint.json"  # numbers of the partitions in a checkpoint: a directory may have only some
DATABASE_LOCK = "LOCK"  # RocksDB creates it at the first opening of a database or of its checkpoint


def checkpoint(state_dir: Path, target: Path, at_rest: AtRest = UNENCRYPTED) -> None:
    """Copy a closed state directory to `target`, an empty or new folder.

    1. Lock the directory until the end, and clean its files of erased data.
    2. Write RocksDB checkpoints (hard links on the same disk) and the JSON files into a temporary folder.
    3. Sync and rename that folder, so that a crash leaves no partial target."""
    with StateDirectory.existing(state_dir, at_rest) as directory:
        directory.check_complete()  # a copy would hide that a partition is lost
        if state_dir.resolve() in target.resolve().parents:
            raise StateError(f"{target} is inside {state_dir}, and would be lost with it: give a folder outside")
        directory.finish_cleaning()  # the copy must not contain erased data
        with storage_errors(target), _new_folder(target) as new:
            for partition in directory.existing_partitions():
                copy_database(partition, partition_folder(new, partition.number), read_secret(partition.path))
            for file in state_dir.glob("*.json"):
                shutil.copy2(file, new)
            write_checked(new / CONTENTS, {"partitions": directory.existing_numbers()})
            restrict_tree(new)


def restore(source: Path, state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> None:
    """Copy a checkpoint to `state_dir`, an empty or new folder.

    Raise StateInUse while a process has the checkpoint open. The description is renamed into place last, because no
    command opens a folder without it. The folder itself is not renamed, because it may be a mount point. After a crash,
    the next call starts again with an empty folder."""
    described = describe(source)
    Keyring.opened(described.secret, source, at_rest)  # detects another master key before any write
    _check_partitions(source, described.fingerprint)
    from_path, to_path = source.resolve(), state_dir.resolve()
    if from_path in to_path.parents or to_path in from_path.parents:
        raise StateError(f"of {state_dir} and {source}, one is inside the other: give a folder beside the checkpoint")
    if not (state_dir / LOCK).exists():  # a directory with a lock may be in use: then `locked` names its user
        _check_empty(state_dir)
    with _lock_opened(source), storage_errors(state_dir):
        make_private_folder(state_dir)
        with locked(state_dir):
            _check_empty(state_dir)
            try:
                _clear(state_dir)
                shutil.copy2(source / DESCRIPTION, state_dir / RESTORING)
                shutil.copytree(source, state_dir, copy_function=_link_or_copy, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns(DESCRIPTION, LOCK, CONTENTS))  # fmt: skip
                with StateDirectory(state_dir, described, at_rest) as directory:
                    directory.existing_partitions()
                restrict_tree(state_dir)  # an older version may have written the checkpoint with other permissions
                sync_tree(state_dir)
                (state_dir / RESTORING).rename(state_dir / DESCRIPTION)
                sync(state_dir)
            except BaseException:
                _clear(state_dir)
                raise


def _check_partitions(source: Path, fingerprint: Fingerprint) -> None:
    try:
        numbers = read_checked(source / CONTENTS)["partitions"]
    except FileNotFoundError:  # a copy of a directory by other means than `checkpoint`
        numbers = range(fingerprint.partitions)
    folders = [partition_folder(source, number) for number in numbers]
    if missing := [folder.name for folder in folders if not folder.is_dir()]:
        raise StateError(f"the checkpoint {source} lacks {', '.join(missing)}: restore another one")


def _lock_opened(source: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a checkpoint that a process has opened before. Others need no lock, and may be on read-only media."""
    folders = (partition_folder(source, number) for number in numbers_in(source))
    opened = (source / LOCK).exists() or any((folder / DATABASE_LOCK).exists() for folder in folders)
    return hold(source) if opened else contextlib.nullcontext()


def _check_empty(folder: Path) -> None:
    if folder.is_dir() and (folder / RESTORING).exists():
        return  # files of an interrupted restore
    if folder.exists() and (not folder.is_dir() or any(entry.name != LOCK for entry in folder.iterdir())):
        raise StateError(f"{folder} is not empty: give an empty or new folder")


@contextlib.contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder. At the end of the block it is renamed to the target; on failure it is removed."""
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


def _link_or_copy(source: str, target: str) -> None:
    """Link a table file, which RocksDB never changes, and copy any other file."""
    if source.endswith(".sst"):
        with contextlib.suppress(OSError):  # the target is on another disk, or its file system has no links
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _clear(folder: Path) -> None:
    """Remove all files but the lock. The marker `RESTORING` is removed last, so that it survives a crash."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == RESTORING):
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
