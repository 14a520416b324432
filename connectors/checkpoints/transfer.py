"""Transfers of checkpoint files: several objects at a time."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from recallflow.connectors.checkpoints.manifest import PIECE_BYTES, CheckpointFile, digest_of, pieces_of
from recallflow.connectors.checkpoints.objects import Objects
from recallflow.errors import CheckpointBroken, CheckpointError
from recallflow.private_files import FILE_MODE, make_private_folder

THREADS = 4  # each has a piece in memory

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_parallel(work: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    """Return the results in order. The first error is raised once running transfers have ended."""
    with ThreadPoolExecutor(THREADS, "recallflow-checkpoints") as threads:
        under_way = [threads.submit(work, item) for item in items]
        try:
            return [one.result() for one in under_way]
        except BaseException:
            for one in under_way:
                one.cancel()
            raise


class Fetching:
    """Fetch of one generation. `folder` is that of its objects."""

    def __init__(self, objects: Objects, folder: str, generation: str) -> None:
        self._objects = objects
        self._folder = folder
        self._generation = generation

    def fetch(self, files: Iterable[CheckpointFile], target: Path) -> None:
        """Write files into a new folder and sync them. Raise CheckpointBroken, and OSError where they cannot be
        written."""
        make_private_folder(target)
        kept = [*files]
        for file in kept:
            (target / file.name).touch(FILE_MODE)
        in_parallel(
            lambda part: self._write(target, *part), [(file, *part) for file in kept for part in pieces_of(file)]
        )
        in_parallel(_sync, [*(target / file.name for file in kept), target])

    def problems(self, files: Iterable[CheckpointFile], known: dict[str, str | None]) -> list[str]:
        """Return the problems of each file."""
        found = in_parallel(lambda file: self._problem(file, known), files)
        return [problem for problem in found if problem is not None]

    def _write(self, target: Path, file: CheckpointFile, piece: str, start: int, size: int) -> None:
        data = self._piece(file, piece, size)
        with (target / file.name).open("r+b") as written:
            written.seek(start)
            written.write(data)

    def _problem(self, file: CheckpointFile, known: dict[str, str | None]) -> str | None:
        for piece, _, size in pieces_of(file):
            if piece not in known:
                try:
                    self._piece(file, piece, size)
                    known[piece] = None
                except CheckpointBroken as error:
                    known[piece] = str(error)
            if (problem := known[piece]) is not None:
                return problem
        return None

    def _piece(self, file: CheckpointFile, piece: str, size: int) -> bytes:
        try:
            data = self._objects.get(f"{self._folder}/{piece}", size + 1)
        except FileNotFoundError:
            raise self._broken(file, piece, "is missing") from None
        if len(data) != size:
            raise self._broken(file, piece, f"has {'more' if len(data) > size else len(data)} than {size} bytes")
        if hashlib.sha256(data).hexdigest() != digest_of(piece):
            raise self._broken(file, piece, "is not what was saved: its SHA-256 is another")
        return data

    def _broken(self, file: CheckpointFile, piece: str, what: str) -> CheckpointBroken:
        return CheckpointBroken(f"{self._generation}: file {file.name}: object {self._folder}/{piece} {what}")


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


UNCHANGING = ".sst"  # RocksDB never writes to a table a second time, and its checkpoints link the same file


class Identity(NamedTuple):
    """Identity of a file on this disk."""

    device: int
    inode: int
    size: int
    changed_ns: int


class Piece(NamedTuple):
    path: Path
    start: int
    size: int


Hashed = dict[Identity, list[str]]  # SHA-256 of each piece of tables that the partition's last save read


class Sending:
    """One save. `has` maps SHA-256 to objects that a generation names; sent objects are added. `hashed` are the
    tables of the previous save: unchanged ones are not read again."""

    def __init__(self, objects: Objects, folder: str, save: str, has: dict[str, str], hashed: Hashed) -> None:
        self.hashed: Hashed = {}
        self.sent_bytes = self.sent_objects = 0
        self._objects = objects
        self._folder = folder
        self._save = save
        self._has = has
        self._before = hashed
        self._claiming = threading.Lock()

    def send(self, paths: Iterable[Path]) -> tuple[CheckpointFile, ...]:
        """Send the pieces of all files, several at a time. Raise CheckpointError where a file cannot be read."""
        found = [(path, _identity(path)) for path in paths]
        known = {path: digests for path, identity in found if (digests := self._known(identity)) is not None}
        pieces = [
            Piece(path, start, min(PIECE_BYTES, identity.size - start))
            for path, identity in found
            if path not in known
            for start in range(0, identity.size, PIECE_BYTES)
        ]
        for piece, digest in zip(pieces, in_parallel(self._send, pieces), strict=True):
            known.setdefault(piece.path, []).append(digest)
        files = []
        for path, identity in found:
            digests = known.get(path, [])
            if path.suffix == UNCHANGING:
                self.hashed[identity] = digests
            files.append(CheckpointFile(path.name, identity.size, tuple(self._has[digest] for digest in digests)))
        return tuple(files)

    def _known(self, identity: Identity) -> list[str] | None:
        digests = self._before.get(identity)
        return digests if digests is not None and all(digest in self._has for digest in digests) else None

    def _send(self, piece: Piece) -> str:
        """Send a piece that the store lacks. Return its SHA-256."""
        data = _read(piece)
        digest = hashlib.sha256(data).hexdigest()
        with self._claiming:
            if digest in self._has:  # or it is being sent: equal pieces are sent once
                return digest
            self._has[digest] = f"{digest}-{self._save}"
            self.sent_bytes += len(data)
            self.sent_objects += 1
        self._objects.put(f"{self._folder}/{self._has[digest]}", data)
        return digest


def _identity(path: Path) -> Identity:
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path.name} is a folder")
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be saved: {error}") from error
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(piece: Piece) -> bytes:
    try:
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            data = file.read(piece.size)
    except OSError as error:
        raise CheckpointError(f"{piece.path} cannot be saved: {error}") from error
    if len(data) != piece.size:
        raise CheckpointError(f"{piece.path} cannot be saved: it became shorter meanwhile")
    return data
