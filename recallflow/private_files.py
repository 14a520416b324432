"""Files and folders for their owner alone, whatever the umask.

RocksDB creates files by the umask: a command sets `UMASK` for itself, and a program that uses
recallflow keeps its own, so that its files lie in folders that nobody else can enter.
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
    """Create a folder and its missing parents. A folder that is there keeps its permissions."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(FOLDER_MODE, exist_ok=True)
    if not folder.is_dir():
        folder.mkdir()  # which raises the system's own error about what has the name


def open_private(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a binary file to write (`wb`) or to append to (`ab`). A file that is there keeps its permissions."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | {"wb": os.O_TRUNC, "ab": os.O_APPEND}[mode]
    return os.fdopen(os.open(path, flags, FILE_MODE), mode)


def restrict(path: Path) -> None:
    """Take the permissions of others from one file or folder that is ours. Those of another user's stay."""
    with contextlib.suppress(PermissionError):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS)


def restrict_tree(folder: Path) -> None:
    """Take the permissions of others from a folder and all that is in it."""
    for path in (folder, *folder.rglob("*")):
        restrict(path)


def open_to_others(folder: Path) -> list[Path]:
    """Return the folder, or those of its entries, that other users of the machine may read or change. A mounted disk
    may belong to another user, who shares it with us: then its entries count alone."""
    status = folder.stat()
    if not status.st_mode & OTHERS:
        return []
    found = [path for path in sorted(folder.iterdir()) if path.lstat().st_mode & OTHERS]
    return [folder, *found] if status.st_uid == os.geteuid() else found
