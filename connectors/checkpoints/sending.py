"""Files on their way to the store, of which only those pieces travel that it lacks."""

import hashlib
import threading
from pathlib import Path
from typing import NamedTuple

from recallflow.connectors.checkpoints.manifest import PIECE_BYTES, File
from recallflow.connectors.checkpoints.objects import Objects
from recallflow.errors import CheckpointError

UNCHANGING = ".sst"  # RocksDB never writes to a table a second time, and its checkpoints link the same file


class Identity(NamedTuple):
    """Of a file on this disk."""

    device: int
    inode: int
    size: int
    changed_ns: int


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
        self._counting = threading.Lock()

    def send(self, path: Path) -> File:
        """Safe to call from several threads. Raises CheckpointError where the file cannot be read."""
        try:
            status = path.stat()
            identity = Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            digests = self._before.get(identity)
            if digests is None or not all(digest in self._has for digest in digests):
                digests, size = self._read(path)
            else:
                size = status.st_size
        except OSError as error:
            raise CheckpointError(f"{path} cannot be saved: {error}") from error
        if path.suffix == UNCHANGING and size == status.st_size:
            self.hashed[identity] = digests
        return File(path.name, size, tuple(self._has[digest] for digest in digests))

    def _read(self, path: Path) -> tuple[list[str], int]:
        """Sends what the store lacks of a file. Returns the SHA-256 of its pieces, and its size."""
        digests, size = list[str](), 0
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest = hashlib.sha256(piece).hexdigest()
                if digest not in self._has:
                    name = f"{digest}-{self._save}"
                    self._objects.put(f"{self._folder}/{name}", piece)
                    with self._counting:
                        self._has[digest] = name
                        self.sent_bytes += len(piece)
                        self.sent_objects += 1
                digests.append(digest)
                size += len(piece)
        return digests, size
