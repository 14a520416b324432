"""Files on their way to the store, of which only those pieces travel that it lacks."""

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from recallflow.connectors.checkpoints.manifest import PIECE_BYTES, File
from recallflow.connectors.checkpoints.objects import Objects
from recallflow.connectors.checkpoints.parallel import in_parallel
from recallflow.errors import CheckpointError

UNCHANGING = ".sst"  # RocksDB never writes to a table a second time, and its checkpoints link the same file


class Identity(NamedTuple):
    """Of a file on this disk."""

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
    """One save. `has`: objects that the store has and a generation names, by SHA-256; those that are sent come to it.
    `hashed`: what the save before knew of tables: those that are still the same are not read again."""

    def __init__(self, objects: Objects, folder: str, save: str, has: dict[str, str], hashed: Hashed) -> None:
        self.hashed: Hashed = {}
        self.sent_bytes = self.sent_objects = 0
        self._objects = objects
        self._folder = folder
        self._save = save
        self._has = has
        self._before = hashed
        self._claiming = threading.Lock()

    def send(self, paths: Iterable[Path]) -> tuple[File, ...]:
        """Pieces of all files, a few at a time. Raises CheckpointError where a file cannot be read."""
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
            files.append(File(path.name, identity.size, tuple(self._has[digest] for digest in digests)))
        return tuple(files)

    def _known(self, identity: Identity) -> list[str] | None:
        digests = self._before.get(identity)
        return digests if digests is not None and all(digest in self._has for digest in digests) else None

    def _send(self, piece: Piece) -> str:
        """Sends a piece that the store lacks. Returns its SHA-256."""
        data = _read(piece)
        digest = hashlib.sha256(data).hexdigest()
        with self._claiming:
            if digest in self._has:  # or it is on its way: what is the same is sent once
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
