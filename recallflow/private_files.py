"""Files and folders readable by their owner alone, regardless of the umask.

RocksDB creates files by the umask. A command sets `UMASK` for itself; an embedding program keeps its umask, so its
files are protected by the private folder around them.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

FOLDER_MODE, FILE_MODE = 0o700, 0o600
UMASK = 0o077
OTHERS = 0o077  # permission bits of the group and of everybody else


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Existing folders keep their permissions."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(FOLDER_MODE, exist_ok=True)
    if not folder.is_dir():
        folder.mkdir()  # raises the system's error for a file of this name


def open_private(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a binary file to write (`wb`) or to append to (`ab`). An existing file keeps its permissions."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | {"wb": os.O_TRUNC, "ab": os.O_APPEND}[mode]
    return os.fdopen(os.open(path, flags, FILE_MODE), mode)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def restrict(path: Path) -> None:
    """Remove the permissions of others from one of our files or folders. Another user's file is unchanged."""
    with contextlib.suppress(PermissionError):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS)


def restrict_tree(folder: Path) -> None:
    """Remove the permissions of others from a folder and its contents."""
    for path in (folder, *folder.rglob("*")):
        restrict(path)


def find_exposed_paths(folder: Path) -> list[Path]:
    """Return the folder and the entries in it that other users of the machine may read or change. If the folder belongs
    to another user, such as a mounted disk, only its entries are checked."""
    status = folder.stat()
    if not status.st_mode & OTHERS:
        return []
    found = [path for path in sorted(folder.iterdir()) if path.lstat().st_mode & OTHERS]
    return [folder, *found] if status.st_uid == os.geteuid() else found
