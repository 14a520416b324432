"""The search for texts of a person in all files of a folder: in the raw bytes, and in the records of database files,
which are compressed."""

import base64
import hashlib
import heapq
import json
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from rocksdict import AccessType, Options, Rdict, ReadOptions

from recallflow.errors import StorageError
from recallflow.state.graph_codec import NODE_KINDS

MIN_PIECE_BYTES = 8  # a shorter string may occur by chance
PIECE_BYTES = 16  # texts are searched for in pieces, because a file may contain only parts of a text
MAX_PIECES = 10_000  # per search
# Fields whose values do not identify a person.
_IMPERSONAL_FIELDS = frozenset(("type", "environment", "tenant_id", "layer", "role", "kind", "model", "outcome",
                                "vectors", "links", "valid_from", "valid_to", "until", "timestamp"))  # fmt: skip
# Values of the system's vocabulary.
_SYSTEM_WORDS = NODE_KINDS | {"evidence", "relation", "archived", "same_as", "similar_to", "supersedes", "contradicts"}
_FIELDS_WITH_USER_KEYS = frozenset(("metadata", "properties"))
_POSITION = re.compile(r"[\w.-]+:\d+:\d+")  # a log position: generated ids of other users may start with it
_WORD = re.compile(rf"\S{{1,{PIECE_BYTES}}}\s*")


class Traces:
    """Texts of a person as UTF-8 pieces: all of them or, beyond a limit, a deterministic sample."""

    def __init__(self, limit: int = MAX_PIECES) -> None:
        self._limit = limit
        self._sample: list[tuple[int, bytes]] = []  # a heap: the entry to evict next is first
        self._pieces: set[bytes] = set()
        self.left_out = 0  # pieces beyond the sample; repeated pieces are counted each time

    def add(self, record: Mapping[str, Any]) -> None:
        for piece in chain.from_iterable(map(pieces_of, _texts_of(record))):
            if piece in self._pieces:
                continue
            order = -int.from_bytes(hashlib.blake2b(piece, digest_size=8).digest(), "big")
            heapq.heappush(self._sample, (order, piece))
            self._pieces.add(piece)
            if len(self._sample) > self._limit:
                _, evicted = heapq.heappop(self._sample)
                self._pieces.remove(evicted)
                self.left_out += 1

    def pieces(self) -> list[bytes]:
        return sorted(self._pieces)


def _texts_of(value: Any, *, user_keys: bool = False) -> Iterator[str]:
    """Yield the texts of a record that may identify the person. `user_keys`: its keys may as well."""
    match value:
        case str() if value not in _SYSTEM_WORDS and _POSITION.fullmatch(value) is None:
            yield value
        case dict():
            for name, one in value.items():
                if user_keys and name not in _SYSTEM_WORDS:
                    yield name
                if user_keys or not (name in _IMPERSONAL_FIELDS or name.endswith("_at")):
                    yield from _texts_of(one, user_keys=user_keys or name in _FIELDS_WITH_USER_KEYS)
        case list():
            for one in value:
                yield from _texts_of(one, user_keys=user_keys)


def pieces_of(text: str) -> Iterator[bytes]:
    """Yield a text in pieces of whole words, or of parts of longer words. A text too short to identify has none."""
    whole = text.encode()
    if len(whole) < 2 * PIECE_BYTES:
        if len(whole) >= MIN_PIECE_BYTES:
            yield whole
        return
    start = 0
    for word in _WORD.finditer(text):
        piece = text[start : word.end()].strip().encode()
        if len(piece) >= PIECE_BYTES:
            yield piece
            start = word.end()
    last = text[-PIECE_BYTES:].strip().encode()
    if start < len(text) and len(last) >= MIN_PIECE_BYTES:
        yield last


def forms_of(piece: bytes) -> set[bytes]:
    """Return the forms of a piece in files: plain, JSON, UTF-16, and base64 at any alignment."""
    text = piece.decode()
    forms = {piece, orjson.dumps(text)[1:-1], json.dumps(text).encode()[1:-1]}
    forms |= {text.encode("utf-16-le"), text.encode("utf-16-be")}
    return forms | {_in_base64(piece, prefix_bytes) for prefix_bytes in range(3)}


def _in_base64(piece: bytes, prefix_bytes: int) -> bytes:
    """Return the base64 characters that depend on the piece alone, after some unknown bytes."""
    encoded = base64.b64encode(bytes(prefix_bytes) + piece)
    return encoded[-(-prefix_bytes * 8 // 6) : (prefix_bytes + len(piece)) * 8 // 6]


CHUNK_BYTES = 4 * 1024 * 1024
RECORDS_AT_ONCE = 256

PieceNumbers = set[int]
Records = Iterator[tuple[bytes, bytes]]


class RecordFilter(NamedTuple):
    """Callbacks on a record's key and value. `is_others`: whether a record, with its plain value, belongs to another
    person. `decrypt`: the plain value if its encryption key still exists, or else the stored value."""

    is_others: Callable[[bytes, bytes], bool] = lambda _, __: False
    decrypt: Callable[[bytes, bytes], bytes] = lambda _, value: value


class Pieces:
    """The pieces to search for, in all their encodings at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        numbered = {form: number for number, piece in enumerate(pieces) for form in forms_of(piece)}
        self._numbers = [*numbered.values()]
        from ahocorasick_rs import BytesAhoCorasick  # imported here: every command loads this module

        self._find = BytesAhoCorasick([*numbered]).find_matches_as_indexes
        self._overlap_bytes = max(map(len, numbered), default=1) - 1

    def find_in(self, data: bytes) -> PieceNumbers:
        return {self._numbers[found] for found, _, _ in self._find(data, overlapping=True)}

    def find_in_stream(self, parts: Iterable[bytes]) -> PieceNumbers:
        """Return the pieces contained in bytes that arrive in parts, including matches across parts."""
        found, before = PieceNumbers(), b""
        for part in parts:
            data = before + part
            found |= self.find_in(data)
            before = data[-self._overlap_bytes :] if self._overlap_bytes else b""
        return found


@dataclass(slots=True)
class Findings:
    sizes: dict[Path, int] = field(default_factory=dict)  # the bytes of each searched file
    found: dict[Path, PieceNumbers] = field(default_factory=dict)  # the pieces found, by file
    others: PieceNumbers = field(default_factory=set)  # inconclusive pieces: they occur in other users' records
    unread: set[Path] = field(default_factory=set)  # tables that RocksDB cannot read; only raw bytes were searched

    def conclusive(self) -> dict[Path, int]:
        """Return the number of conclusive pieces in each file with any."""
        counts = {path: len(numbers - self.others) for path, numbers in self.found.items()}
        return {path: count for path, count in sorted(counts.items()) if count}


def search_folder(folder: Path, pieces: Pieces, record_filter: RecordFilter, findings: Findings) -> None:
    """Search every file below a folder, and files that are created meanwhile: compaction replaces table files."""
    searched = set[Path]()
    while remaining := [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in searched]:
        for path in remaining:
            searched.add(path)
            try:
                _search_file(path, pieces, record_filter, findings)
            except FileNotFoundError:
                findings.found.pop(path, None)


def _search_file(path: Path, pieces: Pieces, record_filter: RecordFilter, findings: Findings) -> None:
    with path.open("rb") as file:
        found = pieces.find_in_stream(iter(partial(file.read, CHUNK_BYTES), b""))
    findings.sizes[path] = path.stat().st_size
    try:
        if path.suffix == ".sst":
            found |= _search_records(table_records(path), pieces, record_filter, findings)
        elif path.suffix == ".log":
            found |= _search_records(log_records(path), pieces, record_filter, findings)
    except Exception:  # noqa: BLE001 - rocksdict raises bare Exception
        path.stat()  # raises FileNotFoundError if the file has been deleted
        findings.unread.add(path)
    if found:
        findings.found[path] = found


def _search_records(records: Records, pieces: Pieces, record_filter: RecordFilter, findings: Findings) -> PieceNumbers:
    """Return the pieces in the person's records. They are searched in batches: a search takes time per call."""
    found = PieceNumbers()
    while batch := [*islice(records, RECORDS_AT_ONCE)]:
        own, others = list[bytes](), list[bytes]()
        for key, value in batch:
            plain = record_filter.decrypt(key, value)
            (others if record_filter.is_others(key, plain) else own).append(plain)
        found |= pieces.find_in(b"\0".join(own))
        findings.others |= pieces.find_in(b"\0".join(others))
    return found


_BLOCK_BYTES = 32 * 1024  # of a log: record fragments do not cross block boundaries
_FRAGMENT = struct.Struct("<IHB")  # checksum, length, kind
# Kinds of fragments. Those from 5 on also have the number of the log.
_LOG_NUMBER_BYTES, _FIRST_NUMBERED_KIND = 4, 5
_COMPLETE, _FIRST, _LAST = (1, 5), (2, 6), (4, 8)
_BATCH_HEAD_BYTES = 12
# Number of strings by record tag of a batch. recallflow uses no column families, so their tags do not occur.
_STRINGS = {0x0: 1, 0x1: 2, 0x2: 2, 0x3: 1, 0x7: 1, 0xD: 0, 0xF: 2}


def table_records(path: Path) -> Records:
    """Yield the records of a table file (`*.sst`), read through a database of this file alone. Raise StorageError."""
    with tempfile.TemporaryDirectory(prefix="recallflow-") as folder:
        (Path(folder) / path.name).symlink_to(path.resolve())
        Rdict.repair(folder, Options(raw_mode=True))
        database: Any = Rdict(folder, Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            if not database.live_files():
                raise StorageError(f"{path} cannot be read by RocksDB: restore a checkpoint")
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
    """Return all records of a log file (`*.log`), also deleted ones. Unknown contents are a record without a key."""
    return chain.from_iterable(map(_records_of_batch, _batches(path)))


def _batches(path: Path) -> Iterator[bytes]:
    parts: list[bytes] = []
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            for kind, fragment in _fragments(block):
                if kind in (*_COMPLETE, *_FIRST):
                    parts = []
                parts.append(fragment)
                if kind in (*_COMPLETE, *_LAST):
                    yield b"".join(parts)
                    parts = []
    if parts:
        yield b"".join(parts)


def _fragments(block: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _FRAGMENT.size <= len(block):
        _, length, kind = _FRAGMENT.unpack_from(block, at)
        at += _FRAGMENT.size + (_LOG_NUMBER_BYTES if kind >= _FIRST_NUMBERED_KIND else 0)
        if kind == 0:  # preallocated space
            return
        yield kind, block[at : at + length]
        at += length


def _records_of_batch(batch: bytes) -> Records:
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
