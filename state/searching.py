"""Looks for pieces of text in every byte of every file of a folder: as the file has them, and in the records of a
database, which compresses them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from recallflow.state.database_files import Records, log_records, table_records
from recallflow.state.traces import forms_of

CHUNK_BYTES = 4 * 1024 * 1024
RECORDS_AT_ONCE = 256

Numbers = set[int]  # of pieces


class RecordFilter(NamedTuple):
    """Functions about a database's records: whether a record is another person's, by its key and decrypted value; and
    the decryption of a value, if its key outlives the person."""

    is_others: Callable[[bytes, bytes], bool] = lambda _, __: False
    opened: Callable[[bytes, bytes], bytes] = lambda _, value: value


class Pieces:
    """The pieces to search for, in all their encodings at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        numbered = {form: number for number, piece in enumerate(pieces) for form in forms_of(piece)}
        self._numbers = [*numbered.values()]
        from ahocorasick_rs import BytesAhoCorasick  # every command reads this module, and one searches

        self._find = BytesAhoCorasick([*numbered]).find_matches_as_indexes
        self._overlap_bytes = max(map(len, numbered), default=1) - 1

    def within(self, data: bytes) -> Numbers:
        """Return the pieces contained in some bytes."""
        return {self._numbers[found] for found, _, _ in self._find(data, overlapping=True)}

    def along(self, parts: Iterable[bytes]) -> Numbers:
        """Return the pieces contained in bytes that arrive in parts, including matches across parts."""
        found, before = Numbers(), b""
        for part in parts:
            data = before + part
            found |= self.within(data)
            before = data[-self._overlap_bytes :] if self._overlap_bytes else b""
        return found


@dataclass(slots=True)
class Findings:
    """The result of a search.

    Attributes:
        sizes: The bytes of each searched file.
        found: The pieces found, by file.
        others: Pieces that occur in other users' records, and prove nothing.
        unread: Tables that RocksDB cannot read; only their raw bytes were searched.
    """

    sizes: dict[Path, int] = field(default_factory=dict)
    found: dict[Path, Numbers] = field(default_factory=dict)
    others: Numbers = field(default_factory=set)
    unread: set[Path] = field(default_factory=set)

    def telling(self) -> dict[Path, int]:
        """Return the number of conclusive pieces in each file with any."""
        left = {path: len(numbers - self.others) for path, numbers in self.found.items()}
        return {path: count for path, count in sorted(left.items()) if count}


def search_folder(folder: Path, pieces: Pieces, known: RecordFilter, findings: Findings) -> None:
    """Search every file below a folder. A file that disappears during the search, such as a merged table, is ignored;
    the files that replace it are searched."""
    searched = set[Path]()
    while left := [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in searched]:
        for path in left:
            searched.add(path)
            try:
                _search_file(path, pieces, known, findings)
            except FileNotFoundError:
                findings.found.pop(path, None)


def _search_file(path: Path, pieces: Pieces, known: RecordFilter, findings: Findings) -> None:
    found = pieces.along(_chunks(path))
    findings.sizes[path] = path.stat().st_size
    try:
        if path.suffix == ".sst":
            found |= _search_records(table_records(path), pieces, known, findings)
        elif path.suffix == ".log":
            found |= _search_records(log_records(path), pieces, known, findings)
    except Exception:  # noqa: BLE001 - rocksdict raises bare Exception
        path.stat()  # it may be gone
        findings.unread.add(path)
    if found:
        findings.found[path] = found


def _search_records(records: Records, pieces: Pieces, known: RecordFilter, findings: Findings) -> Numbers:
    found = Numbers()
    for of_others, values in _batched(records, known):
        numbers = pieces.within(b"\0".join(values))
        if of_others:
            findings.others |= numbers
        else:
            found |= numbers
    return found


def _batched(records: Records, known: RecordFilter) -> Iterator[tuple[bool, list[bytes]]]:
    """Yield the values of other users, and all further values, in batches. A search costs time per call, not per
    byte."""
    while batch := [*islice(records, RECORDS_AT_ONCE)]:
        by_whose: dict[bool, list[bytes]] = {}
        for key, value in batch:
            opened = known.opened(key, value)
            by_whose.setdefault(known.is_others(key, opened), []).append(opened)
        yield from by_whose.items()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
