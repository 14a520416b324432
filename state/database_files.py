"""The records in each file of a RocksDB, including deleted ones that are still present."""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Options, Rdict, ReadOptions

from recallflow.errors import StorageError

Records = Iterator[tuple[bytes, bytes]]

_BLOCK_BYTES = 32 * 1024  # of a log: fragments of records do not cross block boundaries
_FRAGMENT = struct.Struct("<IHB")  # checksum, length, kind
_NUMBER_BYTES = 4  # the log's number, in fragments of the kinds from `_NUMBERED` on
_NUMBERED = 5
_WHOLE, _FIRST, _LAST = (1, 5), (2, 6), (4, 8)
_BATCH_HEAD_BYTES = 12
# Number of strings by record tag of a batch. Tags with a column family are not written.
_STRINGS = {0x0: 1, 0x1: 2, 0x2: 2, 0x3: 1, 0x7: 1, 0xD: 0, 0xF: 2}


def table_records(path: Path) -> Records:
    """Yield the records of a table file (`*.sst`), read through a database of this file alone.

    Raises:
        StorageError: RocksDB cannot read the file as a table.
    """
    with tempfile.TemporaryDirectory(prefix="recallflow-") as folder:
        (Path(folder) / path.name).symlink_to(path.resolve())
        Rdict.repair(folder, _options())
        database: Any = Rdict(folder, _options(), access_type=AccessType.read_only())
        try:
            if not database.live_files():
                raise StorageError(f"{path} is no table that RocksDB can read")
            options: Any = ReadOptions()
            options.fill_cache(False)
            cursor = database.iter(options)
            cursor.seek_to_first()
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            cursor.status()
        finally:
            database.close()


def log_records(path: Path) -> Records:
    """Yield the records of a log file (`*.log`) in order, including later deleted ones. Other contents are yielded
    whole, under an empty key."""
    for batch in _batches(path):
        yield from _written(batch)


def _options() -> Options:
    return Options(raw_mode=True)


def _batches(path: Path) -> Iterator[bytes]:
    """Yield the reassembled batches of a log."""
    parts: list[bytes] = []
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            for kind, fragment in _fragments(block):
                if kind in (*_WHOLE, *_FIRST):
                    parts = []
                parts.append(fragment)
                if kind in (*_WHOLE, *_LAST):
                    yield b"".join(parts)
                    parts = []
    if parts:
        yield b"".join(parts)


def _fragments(block: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _FRAGMENT.size <= len(block):
        _, length, kind = _FRAGMENT.unpack_from(block, at)
        at += _FRAGMENT.size + (_NUMBER_BYTES if kind >= _NUMBERED else 0)
        if kind == 0:  # preallocated space
            return
        yield kind, block[at : at + length]
        at += length


def _written(batch: bytes) -> Records:
    at = _BATCH_HEAD_BYTES
    while at < len(batch):
        count = _STRINGS.get(batch[at])
        if count is None:
            yield b"", batch[at:]
            return
        at += 1
        strings = []
        for _ in range(count):
            length, at = _varint(batch, at)
            strings.append(batch[at : at + length])
            at += length
        yield (strings[0], b"".join(strings)) if strings else (b"", b"")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte), and its end."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return number, at
