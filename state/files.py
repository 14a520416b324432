"""Small files that are either complete or missing, and system errors of a disk."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE
from pathlib import Path
from typing import Any

import orjson

from recallflow.errors import DiskFull, StateError, StorageError
from recallflow.private_files import open_private, sync

CHECKSUM = "checksum"
MIN_FREE_BYTES = 1024 * 1024  # with less free space, any failed write counts as a full disk
# Messages of system errors: errors of RocksDB have no number.
_DISK_FULL = tuple(map(os.strerror, (ENOSPC, EDQUOT)))
_TEMPORARY = (*_DISK_FULL, *map(os.strerror, (EMFILE, ENFILE, ENOMEM, EIO, EROFS, ESTALE)))


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert system errors of the block, which uses the path, into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot use {error.filename or path}: {error.strerror or error}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file by a synced temporary one. After a crash, either the old or the new file exists."""
    new = path.with_name(path.name + ".new")
    with open_private(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def write_checked(path: Path, fields: Mapping[str, Any]) -> None:
    replace_file(path, orjson.dumps({**fields, CHECKSUM: _checksum(fields)}, option=orjson.OPT_INDENT_2))


def read_checked(path: Path) -> dict[str, Any]:
    """Read the fields of `write_checked`. Raise FileNotFoundError, or StateError if the file is damaged."""
    try:
        fields: dict[str, Any] = orjson.loads(path.read_bytes())
        stored = fields.pop(CHECKSUM, None)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, AttributeError) as error:
        raise StateError(f"{path} cannot be read ({error}): restore a checkpoint") from error
    if stored != _checksum(fields):
        raise StateError(f"{path} cannot be read (its checksum does not match): restore a checkpoint")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def mentions_full_disk(error: BaseException) -> bool:
    return any(message in str(error) for message in _DISK_FULL)


def is_temporary(error: BaseException) -> bool:
    """Return whether the cause of an error may be temporary: too few descriptors, a full disk, or an unavailable
    volume. Stored data is then intact, and the operation can be retried."""
    return isinstance(error, DiskFull) or any(message in str(error) for message in _TEMPORARY)


def raise_if_full(path: Path, error: BaseException) -> None:
    """Raise DiskFull if an error of any library is due to a full disk, which must not look like corruption."""
    if mentions_full_disk(error) or shutil.disk_usage(path).free < MIN_FREE_BYTES:
        raise DiskFull(
            f"the disk of {path} is full ({str(error).strip().splitlines()[0]}): free space and try again. "
            "Nothing is damaged"
        ) from error
