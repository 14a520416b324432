"""The folder of one state partition: RocksDB's files, and the secret of its keys if it differs from the directory's. A
folder contains all that its partition needs, and can move between directories.

Folders appear and disappear atomically: an arriving folder is prepared next to its final path and renamed; a leaving
one is renamed before its removal. Leftovers of a crash are removed when the directory is opened."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Options, Rdict

from recallflow.errors import StateError, StorageError
from recallflow.private_files import sync
from recallflow.state import keys
from recallflow.state.encryption import StoredSecret
from recallflow.state.files import raise_if_full, read_checked, sync_tree, write_checked
from recallflow.state.partition import Partition

OWN_KEY_FILE = "secret.json"  # in a folder with another secret than its directory's
MOVING = "moving.json"  # in a folder whose copy in another directory is about to replace it
_RDICT_OPTIONS = "rocksdict-config.json"
RELEASED = "elsewhere.json"  # in a folder whose partition another member has taken over
_NUMBERED = "p[0-9][0-9][0-9]"
_ARRIVING, _REMOVED = ".new", ".gone"  # suffixes of folders that are being prepared or removed
_INCOMPLETE_CHECKPOINT = f"{_ARRIVING}.tmp"  # RocksDB's name


def partition_folder(path: Path, number: int) -> Path:
    return path / f"p{number:03d}"


def numbers_in(path: Path) -> list[int]:
    """Return the partitions with a folder in a state directory or its copy."""
    return sorted(int(folder.name[1:]) for folder in path.glob(_NUMBERED) if folder.is_dir())


def unreleased_numbers(path: Path) -> list[int]:
    """Return the partitions that no other member has taken over."""
    return [number for number in numbers_in(path) if released_since_ms(partition_folder(path, number)) is None]


def format_partitions(numbers: Iterable[int]) -> str:
    return ", ".join(f"p{number:03d}" for number in sorted(numbers))


def arriving_folder(path: Path, number: int) -> Path:
    """Return the path of the folder in which a state partition is prepared. Remove what an earlier attempt left."""
    folder = partition_folder(path, number)
    arriving = folder.with_name(folder.name + _ARRIVING)
    shutil.rmtree(arriving, ignore_errors=True)
    return arriving


def read_secret(folder: Path) -> StoredSecret | None:
    """Return the secret in a partition's folder, or None if it uses the directory's. Raise StorageError."""
    try:
        return StoredSecret.of(read_checked(folder / OWN_KEY_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{folder / OWN_KEY_FILE} cannot be read ({error}): restore a checkpoint") from error


def write_secret(folder: Path, secret: StoredSecret) -> None:
    write_checked(folder / OWN_KEY_FILE, secret.fields())


def copy_partition(partition: Partition, folder: Path) -> None:
    """Copy all commits of a partition to a new folder. Any directory of the same settings and master key may use the
    copy. Any thread may call it. Table files are hard links on the same disk, and nothing is synced. If the partition
    has not been cleaned (`Partition.clean`), the copy may contain erased data. Raise StorageError."""
    if folder.exists():
        raise StorageError(f"{folder} already exists: copy the state partition to a new folder")
    copy_database(partition, folder, partition.keyring.stored)


def copy_database(partition: Partition, folder: Path, secret: StoredSecret | None) -> None:
    """Copy all commits of a partition, and a secret. Raise StorageError; then no folder remains."""
    try:
        partition.checkpoint(folder)
        if secret is not None:
            write_secret(folder, secret)
    except Exception as error:  # rocksdict raises bare Exception
        shutil.rmtree(folder, ignore_errors=True)
        raise_if_full(folder.parent, error)
        raise StorageError(f"state partition {partition.number} could not be copied to {folder}: {error}") from error


def put_folder(path: Path, number: int, source: Path) -> None:
    """Move `source`, on the same disk, to a partition's folder, and remove the previous folder. A crash leaves the old
    folder, the new one, or none, if it happens between the two renames. Raise OSError."""
    folder = partition_folder(path, number)
    sync_tree(source)
    removed = _set_aside(folder)
    source.rename(folder)
    sync(path)
    shutil.rmtree(removed, ignore_errors=True)


def remove_folder(path: Path, number: int) -> None:
    removed = _set_aside(partition_folder(path, number))
    sync(path)
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(path: Path) -> None:
    for ending in (_ARRIVING, _INCOMPLETE_CHECKPOINT, _REMOVED):
        for folder in path.glob(_NUMBERED + ending):
            shutil.rmtree(folder, ignore_errors=True)


def mark_moving(folder: Path, target: Path) -> None:
    """Mark a folder whose copy moves to another directory: it must not be opened any more."""
    write_checked(folder / MOVING, {"to": str(target.resolve())})


def move_target(folder: Path) -> Path | None:
    """Return the target of a marked folder, or None without a mark. Raise StateError."""
    try:
        return Path(read_checked(folder / MOVING)["to"])
    except FileNotFoundError:
        return None


def mark_released(folder: Path, now_ms: int) -> None:
    """Mark a folder whose partition another member has taken over: its data may be outdated, and must not be read."""
    write_checked(folder / RELEASED, {"since_ms": now_ms})


def unmark_released(folder: Path) -> None:
    (folder / RELEASED).unlink(missing_ok=True)


def released_since_ms(folder: Path) -> int | None:
    """Return the time of `mark_released` (epoch ms), or None without a mark. Raise StateError."""
    try:
        return int(read_checked(folder / RELEASED)["since_ms"])
    except FileNotFoundError:
        return None


def check_openable(folder: Path) -> None:
    """Raise StateError for a folder that is being moved to another directory, and StorageError for one without its
    CURRENT file: RocksDB would treat it as new, and delete its files."""
    if (target := move_target(folder)) is not None:
        raise StateError(
            f"the move of {folder} to {target} was interrupted and may be complete: repeat it with `recallflow state "
            "move`"
        )
    if not (folder / "CURRENT").exists() and (any(folder.glob("*.sst")) or any(folder.glob("*.log"))):
        raise StorageError(f"cannot open {folder}: its CURRENT file is missing; restore a checkpoint")


def _set_aside(folder: Path) -> Path:
    removed = folder.with_name(folder.name + _REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    if folder.exists():
        folder.rename(removed)
    return removed


def unpurged_owners(path: Path, partitions: int) -> int:
    """Return the number of erased owners whose data may still be in a closed directory's files. Raise StorageError."""
    owners = 0
    for folder in (partition_folder(path, number) for number in range(partitions)):
        if (folder / "CURRENT").exists():
            with _readable_copy(folder) as copy:
                try:
                    db = Rdict(str(copy), Options(raw_mode=True), access_type=AccessType.read_only())
                except Exception as error:
                    raise StorageError(f"cannot open {folder}: {error}") from error
                with closing(db):
                    found: Iterator[Any] = iter(db.keys(from_key=keys.UNCLEANED))
                    owners += sum(1 for _ in takewhile(lambda key: key.startswith(keys.UNCLEANED), found))
    return owners


@contextmanager
def _readable_copy(folder: Path) -> Iterator[Path]:
    """Yield a writable folder with links to the files of this one, because opening a RocksDB writes into its folder."""
    with tempfile.TemporaryDirectory(prefix="recallflow-") as temporary:
        copy = Path(temporary)
        for file in folder.iterdir():
            if file.name == _RDICT_OPTIONS:  # rocksdict rewrites this file
                shutil.copyfile(file, copy / file.name)
            else:
                (copy / file.name).symlink_to(file.resolve())
        yield copy
