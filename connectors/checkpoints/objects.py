"""Object store by name. An object is complete or absent, and an unavailable store is waited for."""

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
from recallflow.process import OUTAGE_S, TimeLimit

SCHEMES = ("s3", "gs", "file")
ONE_PUT = "allow_delayed_open=true"  # a small object is sent atomically with one request


class Location(NamedTuple):
    """Address of a store. `root` is bucket and prefix, or folder. `shown` is the URL for messages."""

    filesystem: fs.FileSystem
    root: str
    shown: str


def locate(url: str) -> Location:
    """Return the location of a URL. Raise UsageError with every wrong part, and OSError of the region request."""
    scheme, colon, rest = url.partition(":")
    if ":" in rest.rpartition("@")[0] and scheme != "file":
        raise UsageError(
            "URL of checkpoints: credentials: they do not belong in it, where logs and other users see them; set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        )
    parts = urlsplit(url)
    shown = f"{parts.scheme}:{'//' if rest.startswith('//') else ''}{parts.netloc}{parts.path}" if colon else url
    if problems := [*_problems(parts)]:
        raise UsageError(f"URL of checkpoints ({shown}): {'; '.join(problems)}")
    if parts.scheme == "file":
        return Location(fs.LocalFileSystem(), str(Path(unquote(parts.path)).absolute()), shown)
    asked = f"{url}{'&' if parts.query else '?'}{ONE_PUT}" if parts.scheme == "s3" else url
    try:
        filesystem, root = fs.FileSystem.from_uri(asked)
    except pa.ArrowInvalid as error:
        raise UsageError(f"URL of checkpoints ({shown}): options: {error}") from None
    return Location(filesystem, root.rstrip("/"), shown)


def _problems(parts: SplitResult) -> list[str]:
    if parts.scheme not in SCHEMES:
        named = f"{parts.scheme} is none" if parts.scheme else "is missing"
        return [f"scheme: {named} of {', '.join(SCHEMES)}; a folder is file:///mnt/backups"]
    found = []
    if parts.scheme == "file":
        if parts.netloc:
            found.append(f"host: {parts.netloc}: a folder has none, and begins behind file://")
        if not parts.path:
            found.append("path: is missing: name a folder")
        if parts.query:
            found.append("options: a folder takes none")
    elif not parts.netloc.rpartition("@")[2]:
        found.append("bucket: is missing")
    if parts.fragment:
        found.append("fragment: # has no meaning here")
    return found


PAUSE_S = 1.0  # pause between attempts; pyarrow retries on its own before each failure
# Errors of an unavailable or overloaded service. Other errors do not pass by waiting.
PASSING = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT|HTTP status 5\d\d"
    r"|[Uu]navailable|UNAVAILABLE|DEADLINE_EXCEEDED"
)


class StoreAway(OSError):
    """Error: a checkpoint folder that existed at the start is missing. It may return, as a mounted disk may."""


_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def retry(stopping: threading.Event, patience_s: float, shown: str, what: str, call: Callable[[], _T]) -> _T:
    """Return the result of a store call, with retries until `stopping` is set. Raise CheckpointError, and
    FileNotFoundError unchanged."""
    patience = TimeLimit(patience_s)
    waits = False
    while True:
        if stopping.is_set():
            raise CheckpointError(f"{shown}: stopped before it could {what}")
        try:
            return call()
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = " ".join(str(error).split())
            if not (isinstance(error, StoreAway) or PASSING.search(reason)):
                raise CheckpointError(f"{shown}: cannot {what}: {reason}") from None
            if patience.poll_expired():
                raise CheckpointError(f"{shown}: could not {what} {patience}: {reason}") from None
            if not waits:
                _log.warning("%s is unavailable: %s; waiting for it", shown, reason)
            waits = True
        stopping.wait(PAUSE_S)


class ListedObject(NamedTuple):
    """Entry of a listing. `changed_ns` is the write time by the store's clock."""

    size: int
    changed_ns: int


class Objects:
    """Objects of a store, for any thread. Calls raise CheckpointError; `get` raises FileNotFoundError for a missing
    object."""

    def __init__(
        self, location: Location, stopping: threading.Event, patience_s: float = OUTAGE_S, *, create: bool = False
    ) -> None:
        """`create` makes the folder of a local store, which is unavailable while that folder is missing. Raise
        UsageError where the bucket is missing, or the folder cannot be used."""
        self.shown, self._filesystem, self._root = location.shown, location.filesystem, location.root
        self._is_local = isinstance(location.filesystem, fs.LocalFileSystem)
        self._stopping, self._patience_s = stopping, patience_s
        self._expected = self._mounted = False  # whether the folder was made here, and whether it is a mount point
        if self._is_local:
            self._open_folder(Path(location.root), create=create)
        else:
            bucket = location.root.partition("/")[0]
            (info,) = self._patiently("ask for the bucket", lambda: self._filesystem.get_file_info([bucket]))
            if info.type == fs.FileType.NotFound:  # a listing would look like that of an empty bucket
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
        """Store data. A few MiB are one request to a service. In a folder, a file gets its name after it is written."""
        self._patiently(f"write {name}", lambda: self._put(f"{self._root}/{name}", data))

    def get(self, name: str, size_max: int) -> bytes:
        """Return an object; of a larger one, `size_max` bytes."""

        def read() -> bytes:
            with self._filesystem.open_input_file(f"{self._root}/{name}") as file:
                found: bytes = file.read(size_max)
            return found

        return self._patiently(f"read {name}", read)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._patiently(f"delete {name}", lambda: self._filesystem.delete_file(f"{self._root}/{name}"))

    def listing(self, folder: str) -> dict[str, ListedObject]:
        """Return the objects directly below a folder, by the last part of their names."""
        files = (info for info in self._list(folder) if info.type == fs.FileType.File)
        return {info.base_name: ListedObject(info.size, info.mtime_ns) for info in files}

    def folders(self) -> list[str]:
        """Return the folders directly below the root."""
        return sorted(info.base_name for info in self._list("") if info.type == fs.FileType.Directory)

    def _list(self, folder: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(f"{self._root}/{folder}".rstrip("/"), allow_not_found=True)
        # A folder that is created or removed at this moment may still fail to list.
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

    def _patiently(self, what: str, call: Callable[[], _T]) -> _T:
        return retry(self._stopping, self._patience_s, self.shown, what, lambda: self._reached(call))

    def _reached(self, call: Callable[[], _T]) -> _T:
        """Call, unless the folder is away. It is not recreated, as it would be on the disk below the mount."""
        self._check_there()
        try:
            return call()
        except FileNotFoundError:
            self._check_there()
            raise

    def _check_there(self) -> None:
        """Raise StoreAway if the folder is missing."""
        if self._expected and not os.path.isdir(self._root):  # noqa: PTH112 - that of Path may raise
            raise StoreAway(f"the folder {self._root} is missing")
        if self._mounted and not os.path.ismount(self._root):
            raise StoreAway(f"nothing is mounted at {self._root}")
