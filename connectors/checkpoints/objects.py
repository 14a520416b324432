"""Store of named objects. An object is complete or absent. Calls wait while the store is unavailable."""

import contextlib
import errno
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from recallflow.errors import CheckpointError, UsageError
from recallflow.private_files import FOLDER_MODE, make_private_folder, open_private
from recallflow.process import TimeLimit

SCHEMES = ("s3", "gs", "file")
ONE_PUT = "allow_delayed_open=true"  # option of pyarrow: a small object is sent atomically with one request


class Location(NamedTuple):
    """Address of a store. `root` is bucket and prefix, or a folder. `shown` is the URL for messages."""

    filesystem: fs.FileSystem
    root: str
    shown: str


def locate(url: str) -> Location:
    """Return the location of a URL. Raise UsageError with every wrong part, OSError if no region is found."""
    scheme, colon, rest = url.partition(":")
    if ":" in rest.rpartition("@")[0] and scheme != "file":
        raise UsageError(
            "URL of checkpoints: credentials: must not be in the URL, where logs and other users see them; set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets around a host that is no IPv6 address
        raise UsageError(f"URL of checkpoints: host: {error}") from None
    shown = f"{parts.scheme}:{'//' if rest.startswith('//') else ''}{parts.netloc}{parts.path}" if colon else url
    if problems := [*_problems(parts)]:
        raise UsageError(f"URL of checkpoints ({shown}): {'; '.join(problems)}")
    if parts.scheme == "file":
        return Location(fs.LocalFileSystem(), str(Path(unquote(parts.path)).absolute()), shown)
    full_url = f"{url}{'&' if parts.query else '?'}{ONE_PUT}" if parts.scheme == "s3" else url
    try:
        filesystem, root = fs.FileSystem.from_uri(full_url)
    except pa.ArrowInvalid as error:
        raise UsageError(f"URL of checkpoints ({shown}): options: {error}") from None
    return Location(filesystem, root.rstrip("/"), shown)


def _problems(parts: SplitResult) -> list[str]:
    if parts.scheme not in SCHEMES:
        problem = f"{parts.scheme} is none of" if parts.scheme else "is missing: give one of"
        return [f"scheme: {problem} {', '.join(SCHEMES)}; a folder is file:///mnt/backups"]
    problems = []
    if parts.scheme == "file":
        if parts.netloc:
            problems.append(f"host: {parts.netloc}: a folder has none; its path follows file://")
        if not parts.path:
            problems.append("path: is missing: name a folder")
        if parts.query:
            problems.append("options: a folder takes none")
    elif not parts.netloc.rpartition("@")[2]:
        problems.append("bucket: is missing")
    if parts.fragment:
        problems.append("fragment: # has no meaning here")
    return problems


PAUSE_S = 1.0  # pause between attempts; pyarrow retries on its own before each failure
# Errors of an unavailable or overloaded service, which end by themselves. Other errors do not.
TEMPORARY = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT|HTTP status 5\d\d"
    r"|[Uu]navailable|UNAVAILABLE|DEADLINE_EXCEEDED"
)


class FolderMissing(OSError):
    """Error: a checkpoint folder that existed at the start is missing. It may return, as a mounted disk does."""


_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def retry(stopping: threading.Event, patience_s: float, shown: str, action: str, call: Callable[[], _T]) -> _T:
    """Return the result of a call, which is repeated during an outage. Raise CheckpointError or FileNotFoundError."""
    patience = TimeLimit(patience_s)
    has_warned = False
    while True:
        if stopping.is_set():
            raise CheckpointError(f"{shown}: the process stopped before it could {action}")
        try:
            return call()
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = " ".join(str(error).split())
            if not (isinstance(error, FolderMissing) or TEMPORARY.search(reason)):
                raise CheckpointError(f"{shown}: cannot {action}: {reason}") from None
            if patience.poll_expired():
                raise CheckpointError(f"{shown}: could not {action} {patience}: {reason}") from None
            if not has_warned:
                _log.warning("%s is unavailable: %s; waiting for it", shown, reason)
            has_warned = True
        stopping.wait(PAUSE_S)


class ListedObject(NamedTuple):
    """Entry of a listing. `changed_ns` is the write time by the store's clock."""

    size: int
    changed_ns: int


class Objects:
    """Objects of a store, for any thread. Calls raise CheckpointError; `get` also raises FileNotFoundError."""

    def __init__(self, location: Location, stopping: threading.Event, patience_s: float, *, create: bool) -> None:
        """`create` makes the folder of a local store; from then on the store is unavailable while that folder is
        missing. Raise UsageError if the bucket is missing, or the folder cannot be used."""
        self.shown, self._filesystem, self._root = location.shown, location.filesystem, location.root
        self._is_local = isinstance(location.filesystem, fs.LocalFileSystem)
        self._stopping, self._patience_s = stopping, patience_s
        self._must_exist = self._is_mount_point = False  # of the local folder; set once it is made here
        if self._is_local:
            self._open_folder(Path(location.root), create=create)
        else:
            bucket = location.root.partition("/")[0]
            (info,) = self._retry("find the bucket", lambda: self._filesystem.get_file_info([bucket]))
            if info.type == fs.FileType.NotFound:  # its listing would look like that of an empty bucket
                raise UsageError(f"URL of checkpoints ({self.shown}): bucket: {bucket} does not exist")

    def _open_folder(self, folder: Path, *, create: bool) -> None:
        """Check the folder of a local store. With `create`, make it and write a file to it."""
        if os.path.exists(folder) and not os.path.isdir(folder):  # noqa: PTH110, PTH112 - Path's methods may raise
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
            problem = f"path: cannot write to {folder} ({error.strerror}): name a folder that this user may write to"
            raise UsageError(f"URL of checkpoints ({self.shown}): {problem}") from None
        self._must_exist, self._is_mount_point = True, os.path.ismount(folder)

    def put(self, name: str, data: bytes) -> None:
        """Store data atomically: in one request for up to a few MiB; in a folder, by renaming a written file."""
        self._retry(f"write {name}", lambda: self._put(f"{self._root}/{name}", data))

    def get(self, name: str, size_max: int) -> bytes:
        """Return an object, or the first `size_max` bytes of a larger one."""

        def read() -> bytes:
            with self._filesystem.open_input_file(f"{self._root}/{name}") as file:
                data: bytes = file.read(size_max)
            return data

        return self._retry(f"read {name}", read)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._retry(f"delete {name}", lambda: self._filesystem.delete_file(f"{self._root}/{name}"))

    def listing(self, folder: str) -> dict[str, ListedObject]:
        """Return the objects directly below a folder, by the last part of their names."""
        files = (info for info in self._list(folder) if info.type == fs.FileType.File)
        return {info.base_name: ListedObject(info.size, info.mtime_ns) for info in files}

    def folders(self) -> list[str]:
        """Return the folders directly below the root."""
        return sorted(info.base_name for info in self._list("") if info.type == fs.FileType.Directory)

    def _list(self, folder: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(f"{self._root}/{folder}".rstrip("/"), allow_not_found=True)
        # In spite of `allow_not_found`, the listing of a folder that is created or removed at this moment may fail.
        with contextlib.suppress(FileNotFoundError):
            return list(self._retry(f"list {folder or 'folders'}", lambda: self._filesystem.get_file_info(selector)))
        return []

    def _put(self, path: str, data: bytes) -> None:
        if not self._is_local:
            with self._filesystem.open_output_stream(path) as stream:
                stream.write(data)
            return
        folder, _, name = path.rpartition("/")
        new = f"{folder}/new-{uuid.uuid4().hex}"
        root = Path(self._root)
        if not self._must_exist:
            make_private_folder(root)
        below = Path(folder).relative_to(root)
        for level in [*reversed(below.parents), below][1:]:
            (root / level).mkdir(FOLDER_MODE, exist_ok=True)
        with open_private(Path(new), "wb") as file:
            file.write(data)
        self._filesystem.move(new, f"{folder}/{name}")

    def _retry(self, action: str, call: Callable[[], _T]) -> _T:
        return retry(self._stopping, self._patience_s, self.shown, action, lambda: self._call_if_mounted(call))

    def _call_if_mounted(self, call: Callable[[], _T]) -> _T:
        """Call, unless the folder is missing. A new one could be on the disk below the mount, so none is created."""
        self._check_folder()
        try:
            return call()
        except FileNotFoundError:
            self._check_folder()
            raise

    def _check_folder(self) -> None:
        if self._must_exist and not os.path.isdir(self._root):  # noqa: PTH112 - Path's method may raise
            raise FolderMissing(f"the folder {self._root} is missing")
        if self._is_mount_point and not os.path.ismount(self._root):
            raise FolderMissing(f"nothing is mounted at {self._root}")
