"""Objects of a store by name: each is there whole or not at all, and a store that is away is waited for."""

import contextlib
import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyarrow import fs

from recallflow.connectors.checkpoints.location import Location
from recallflow.connectors.checkpoints.waiting import StoreAway, Waiting
from recallflow.errors import CheckpointError, UsageError
from recallflow.private_files import FOLDER_MODE, make_private_folder, open_private

_T = TypeVar("_T")


class Listed(NamedTuple):
    """What a listing says of an object. `changed_ns`: when it was written, by the store's own clock."""

    size: int
    changed_ns: int


class Objects:
    """All calls raise CheckpointError; `get` raises FileNotFoundError for an object that is not there.
    Safe to call from several threads."""

    def __init__(self, location: Location, waiting: Waiting, *, create: bool = False) -> None:
        """`create`: make the folder of a local store, and count the store as away while that folder is missing.
        Raises UsageError where the bucket is missing, or the folder cannot be used."""
        self.shown = location.shown
        self._filesystem = location.filesystem
        self._root = location.root
        self._is_local = isinstance(location.filesystem, fs.LocalFileSystem)
        self._waiting = waiting
        self._expected = self._mounted = False  # of the folder: it was made here, and is a mount point
        if self._is_local:
            self._open_folder(Path(location.root), create=create)
        else:
            bucket = location.root.partition("/")[0]
            (info,) = self._patiently("ask for the bucket", lambda: self._filesystem.get_file_info([bucket]))
            if info.type == fs.FileType.NotFound:  # a listing would take it for an empty one
                raise UsageError(f"URL of checkpoints ({self.shown}): bucket: there is none of the name {bucket}")

    def _open_folder(self, folder: Path, *, create: bool) -> None:
        """Check the folder of a local store. With `create`, make it and write a file to it."""
        if os.path.exists(folder) and not os.path.isdir(folder):  # noqa: PTH110, PTH112 - those of Path may raise
            raise UsageError(f"URL of checkpoints ({self.shown}): path: {folder} is not a folder: name a folder")
        if not create:
            return
        try:
            make_private_folder(folder)
            probe = folder / f"new-{uuid.uuid4().hex}"
            open_private(probe, "wb").close()
            probe.unlink()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CheckpointError(f"{self.shown}: cannot write: {error}") from None
            raise UsageError(
                f"URL of checkpoints ({self.shown}): path: cannot write to {folder} ({error.strerror}): name a folder "
                "that this user may write to"
            ) from None
        self._expected, self._mounted = True, os.path.ismount(folder)

    def put(self, name: str, data: bytes) -> None:
        """Data of a few MiB is one request to a service. In a folder it gets its name once it is written."""
        self._patiently(f"write {name}", lambda: self._put(f"{self._root}/{name}", data))

    def get(self, name: str, size_max: int) -> bytes:
        """An object; of a larger one so many bytes."""
        return self._patiently(f"read {name}", lambda: self._get(f"{self._root}/{name}", size_max))

    def delete(self, name: str) -> None:
        """Where it is not there, nothing happens."""
        with contextlib.suppress(FileNotFoundError):
            self._patiently(f"delete {name}", lambda: self._filesystem.delete_file(f"{self._root}/{name}"))

    def listing(self, folder: str) -> dict[str, Listed]:
        """The objects right below a folder, by the last part of their names."""
        found = self._list(folder)
        return {info.base_name: Listed(info.size, info.mtime_ns) for info in found if info.type == fs.FileType.File}

    def folders(self) -> list[str]:
        """Those right below the root."""
        return sorted(info.base_name for info in self._list("") if info.type == fs.FileType.Directory)

    def _list(self, folder: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(f"{self._root}/{folder}".rstrip("/"), allow_not_found=True)
        # A folder that is created or removed at this moment may fail to list even so.
        with contextlib.suppress(FileNotFoundError):
            return list(self._patiently(f"list {folder or 'it'}", lambda: self._filesystem.get_file_info(selector)))
        return []

    def _put(self, path: str, data: bytes) -> None:
        if not self._is_local:
            with self._filesystem.open_output_stream(path) as stream:
                stream.write(data)
            return
        folder, _, name = path.rpartition("/")
        new = f"{folder}/new-{uuid.uuid4().hex}"
        root = Path(self._root)
        if not self._expected:
            make_private_folder(root)
        below = Path(folder).relative_to(root)
        for level in [*reversed(below.parents), below][1:]:
            (root / level).mkdir(FOLDER_MODE, exist_ok=True)
        with open_private(Path(new), "wb") as file:
            file.write(data)
        self._filesystem.move(new, f"{folder}/{name}")

    def _get(self, path: str, size_max: int) -> bytes:
        with self._filesystem.open_input_file(path) as file:
            found: bytes = file.read(size_max)
        return found

    def _patiently(self, what: str, call: Callable[[], _T]) -> _T:
        return self._waiting.until_done(self.shown, what, lambda: self._reached(call))

    def _reached(self, call: Callable[[], _T]) -> _T:
        """Call, unless the folder is away. A missing one is not made anew: it would be on the disk below the mount."""
        self._check_there()
        try:
            return call()
        except FileNotFoundError:
            self._check_there()
            raise

    def _check_there(self) -> None:
        """Raises StoreAway."""
        if self._expected and not os.path.isdir(self._root):  # noqa: PTH112 - that of Path may raise
            raise StoreAway(f"the folder {self._root} is missing")
        if self._mounted and not os.path.ismount(self._root):
            raise StoreAway(f"nothing is mounted at {self._root}")
