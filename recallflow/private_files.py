"""Files and folders readable by their owner alone, regardless of the umask.

RocksDB creates files with the permissions of the umask. A command sets `UMASK` for itself. A program with an embedded
engine keeps its own umask: there, the private folder protects the files in it."""

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
        folder.mkdir()  # a file has this name: raise the system's error


def open_private(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a binary file to write (`wb`) or to append to (`ab`). An existing file keeps its permissions."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | {"wb": os.O_TRUNC, "ab": os.O_APPEND}[mode]
    return os.fdopen(os.open(path, flags, FILE_MODE), mode)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def restrict(path: Path) -> None:
    """Remove all permissions of other users from a file or folder of ours. A file of another user stays unchanged."""
    with contextlib.suppress(PermissionError):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS)


def restrict_tree(folder: Path) -> None:
    """Call `restrict` for a folder and all its contents."""
    for path in (folder, *folder.rglob("*")):
        restrict(path)


def find_exposed_paths(folder: Path) -> list[Path]:
    """Return the folder and its entries, as far as other users of the machine may read or change them. A folder of
    another user, such as a mounted disk, is not returned itself. The entries of a private folder are protected."""
    status = folder.stat()
    if not status.st_mode & OTHERS:
        return []
    exposed = [path for path in sorted(folder.iterdir()) if path.lstat().st_mode & OTHERS]
    return [folder, *exposed] if status.st_uid == os.geteuid() else exposed
