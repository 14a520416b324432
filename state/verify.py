"""The check that what is stored hangs together. It does not work beside a running process: that is StateInUse."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from recallflow.errors import StateError, StateInUse
from recallflow.owner import state_partition
from recallflow.state import graph_check, keys
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import Fingerprint, StateDirectory, partition_folder
from recallflow.state.graph_check import GraphCheck
from recallflow.state.partition import Counts, Partition
from recallflow.state.rows import CategorySummary, Current, Entry, Episode, EpisodeMark, Head, MemoryRow, Vectors
from recallflow.state.segment import Segment
from recallflow.state.usage import Usage

# Each table of an owner: what it is called, and the bytes of a key behind the table's letter.
TABLES = {
    keys.HEAD: ("owners", 0),
    keys.CURRENT: ("ids", 16),
    keys.ROW: ("rows", 20),
    keys.ENTRY: ("entries", 8),
    keys.VECTORS: ("vectors", 8),
    keys.PAST_ENTRY: ("past entries", 12),
    keys.PAST_VECTORS: ("past vectors", 12),
    keys.SEGMENT: ("segments", 16),
    keys.REACH: ("reaches of segments", 0),
    keys.RENEWED: ("renewed memories", 8),
    keys.EPISODE: ("episodes", 24),
    keys.EPISODE_LOG: ("episode marks", 8),
    keys.CATEGORY_SUMMARY: ("category summaries", 24),
    keys.EVENT_ID: ("event ids", 16),
    keys.USAGE: ("usage", 8),
    keys.SESSION: ("sessions", 16),
    keys.ASKED: ("latest queries", 0),
    **graph_check.TABLES,
}
_UNDECODABLE = (ValueError, TypeError, KeyError, IndexError, ArithmeticError)


@dataclass(slots=True)
class Report:
    """What a state directory holds, and all that is wrong with it. `partitions` are those that were read: one that
    never got an event has no folder."""

    partitions: int = 0
    records: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def verify(state_dir: Path) -> Report:
    """Reads and decodes every record of every table, and checks that they agree. Goes on after each problem; raises
    StateError only where nothing can be read at all: no description, or another process has the directory."""
    report = Report()
    with StateDirectory.existing(state_dir, CACHE_BYTES) as directory:
        for number in range(directory.fingerprint.partitions):
            if partition_folder(state_dir, number).is_dir():
                _verify_partition(directory, number, report)
    return report


def _verify_partition(directory: StateDirectory, number: int, report: Report) -> None:
    try:
        partition = directory.partition(number)
        report.partitions += 1
        before = report.records.copy()
        for owner, records in groupby(partition.everything(), lambda record: _owner_of(record[0])):
            check = _own_problems if owner is None else _OwnerCheck(directory.fingerprint, owner).problems
            report.problems.extend(f"p{number:03d}: {found}" for found in check(partition, records, report.records))
        read = Counts(*(report.records[table] - before[table] for table in ("owners", "entries")))
        if read != partition.counts:
            report.problems.append(f"p{number:03d}: says it holds {partition.counts}, and holds {read}")
    except StateInUse:
        raise
    except StateError as error:
        report.problems.append(f"p{number:03d}: {error}")
    except _UNDECODABLE as error:  # its own records are read when it is opened
        report.problems.append(f"p{number:03d}: cannot be opened: {error}")


def _owner_of(key: bytes) -> bytes | None:
    return keys.split(key)[0] if key.startswith(keys.OWNERS) else None


def _own_problems(partition: Partition, records: Iterator[tuple[bytes, bytes]], counts: Counter[str]) -> Iterator[str]:
    """What is wrong with a partition's own records: format, positions, outbox."""
    applied = {partition.keyring.name(b"", source): offset for source, offset in partition.applied.items()}
    for key, value in records:
        try:
            if key.startswith(keys.OUTBOX) and len(key) == 25:
                counts["outbox"] += 1
                orjson.loads(value)
                if keys.sequence(key) > applied.get(key[1:17], keys.sequence(key)):
                    yield f"outbox {key.hex()}: ahead of the applied position of its source"
            elif key.startswith(keys.EFFECTS) and len(key) == 25:
                counts["marked queries"] += 1
            elif key.startswith(keys.WORK) and len(key) == 1 + keys.OWNER_BYTES:
                counts["events in steps"] += 1
                orjson.loads(value)
            elif key.startswith(keys.APPLIED):
                counts["positions"] += 1
                if int(value) < 0:
                    yield f"applied position of {key[len(keys.APPLIED) :].decode()} is {int(value)}"
            elif key not in (keys.FORMAT, keys.COUNTS):
                yield f"{key.hex()}: a key of no table"
        except _UNDECODABLE as error:
            yield f"{key.hex()}: cannot be decoded: {error}"


class _Slot(NamedTuple):
    """What an index entry says of other records."""

    name: bytes
    version: int
    episode: int


class _OwnerCheck:
    """One owner's records: each is decoded as it comes, and what they say of each other is compared at the end."""

    def __init__(self, settings: Fingerprint, owner: bytes) -> None:
        self._settings = settings
        self._owner = owner
        self._head: Head | None = None
        self._currents: dict[bytes, Current] = {}
        self._versions: dict[bytes, set[int]] = {}
        self._entries: dict[int, _Slot] = {}
        self._vectors: set[int] = set()
        self._past: dict[tuple[int, int], bytes] = {}
        self._episodes: dict[int, Episode] = {}
        self._segments: dict[bytes, dict[int, int]] = {}
        self._renewed: set[int] = set()

    def problems(
        self, partition: Partition, records: Iterator[tuple[bytes, bytes]], counts: Counter[str]
    ) -> Iterator[str]:
        """Everything that is wrong, with the owner's key: no name and no text of a user."""
        self._number, self._keyring = partition.number, partition.keyring
        self._graph = GraphCheck(self._keyring, self._owner)
        who = f"owner {self._owner.hex()}"
        for key, value in records:
            _, table, rest = keys.split(key)
            name, size = TABLES.get(table, ("", -1))
            if len(rest) != size:
                yield f"{key.hex()}: a key of no table"
                continue
            counts[name] += 1
            try:
                found = list(self._take(table, rest, value))
            except _UNDECODABLE as error:
                found = [f"cannot be decoded: {error}"]
            yield from (f"{who}, {name} {rest.hex()}: {problem}" for problem in found)
        yield from (f"{who}: {problem}" for problem in self._disagreements())

    # ------------------------------------------------------------------ one record

    def _take(self, table: bytes, rest: bytes, value: bytes) -> Iterator[str]:
        match table:
            case keys.HEAD:
                yield from self._take_head(value)
            case keys.CURRENT:
                self._currents[rest] = Current.decode(value)
            case keys.ROW:
                yield from self._take_row(rest, MemoryRow.decode(value))
            case keys.ENTRY:
                yield from self._take_entry(rest, Entry.decode(value))
            case keys.VECTORS:
                self._vectors.add(keys.sequence(rest))
                yield from self._take_vectors(value)
            case keys.PAST_ENTRY:
                yield from self._take_past(rest, Entry.decode(value))
            case keys.PAST_VECTORS:
                yield from self._take_vectors(value)
            case keys.SEGMENT:
                yield from self._take_segment(rest, value)
            case keys.REACH:
                orjson.loads(value)
            case keys.RENEWED:
                self._renewed.add(keys.sequence(rest))
            case keys.EPISODE_LOG:
                if EpisodeMark.decode(value).change != keys.sequence(rest):
                    yield f"says it is of change {EpisodeMark.decode(value).change}"
            case keys.CATEGORY_SUMMARY:
                CategorySummary.decode(value)
            case keys.USAGE:
                Usage.decode(value)
            case keys.EPISODE:
                yield from self._take_episode(rest, Episode.decode(value))
            case keys.EVENT_ID:
                bytes.fromhex(value.decode())
            case _ if table in graph_check.TABLES:
                self._graph.add(table, rest, value)

    def _take_head(self, value: bytes) -> Iterator[str]:
        self._head = Head.decode(value)
        owner = self._head.owner
        if self._keyring.owner(owner) != self._owner:
            yield "names an owner of another key"
        if state_partition(owner.tenant_id, owner.user_id, self._settings.partitions) != self._number:
            yield "belongs to another state partition"

    def _take_row(self, rest: bytes, row: MemoryRow) -> Iterator[str]:
        name, version = rest[:16], int.from_bytes(rest[16:], "big")
        self._versions.setdefault(name, set()).add(version)
        if self._keyring.name(self._owner, row.id) != name or row.version != version:
            yield f"says it is version {row.version} of another memory"

    def _take_entry(self, rest: bytes, entry: Entry) -> Iterator[str]:
        seq = keys.sequence(rest)
        self._entries[seq] = _Slot(self._keyring.name(self._owner, entry.id), entry.version, entry.episode)
        if entry.seq != seq:
            yield f"says it is entry {entry.seq}"

    def _take_past(self, rest: bytes, entry: Entry) -> Iterator[str]:
        self._past[keys.seq_and_version(rest)] = self._keyring.name(self._owner, entry.id)
        if (entry.seq, entry.version) != keys.seq_and_version(rest):
            yield f"says it is version {entry.version} of entry {entry.seq}"

    def _take_vectors(self, value: bytes) -> Iterator[str]:
        stored = Vectors.decode(value)
        rows, dimension = stored.matrix.shape
        if dimension != self._settings.dimension or not rows:
            yield f"{rows} of dimension {dimension}, not of {self._settings.dimension}"
        if len(stored.encode()) != len(value):
            yield f"{len(value) - len(stored.encode())} bytes too many"
        if not np.isfinite(stored.matrix).all():
            yield "not all numbers are finite"

    def _take_segment(self, rest: bytes, value: bytes) -> Iterator[str]:
        segment = Segment.decode(value, self._settings.embedder, self._settings.dimension)
        if segment is None:
            yield "does not fit: it is made again at the owner's next question"
        else:
            self._segments[rest] = segment.versions()

    def _take_episode(self, rest: bytes, episode: Episode) -> Iterator[str]:
        self._episodes[keys.sequence(rest)] = episode
        session = self._keyring.name(self._owner, episode.session_id or "")
        if episode.number != keys.sequence(rest) or session != rest[:16]:
            yield f"says it is episode {episode.number} of another session"
        if episode.last_ms < episode.start_ms:
            yield "ends before it starts"

    # ------------------------------------------------------------------ all records

    def _disagreements(self) -> Iterator[str]:
        for name, current in self._currents.items():
            yield from (f"id {name.hex()}: {problem}" for problem in self._of_id(name, current))
        for name in self._versions.keys() - self._currents.keys():
            yield f"rows of {name.hex()}: no id leads to them"
        for seq, slot in self._entries.items():
            yield from (f"entry {seq}: {problem}" for problem in self._of_entry(seq, slot))
        for seq in sorted(self._vectors - self._entries.keys()):
            yield f"vectors {seq}: of no entry"
        for (seq, version), name in self._past.items():
            if version not in self._versions.get(name, set()):
                yield f"past entry {seq} of version {version}: of no row"
        for number, episode in self._episodes.items():
            if episode.merged_into is not None and episode.merged_into not in self._episodes:
                yield f"episode {number}: was taken in by {episode.merged_into}, which is missing"
        for stretch, packed in self._segments.items():
            yield from (f"segment {stretch.hex()}: {problem}" for problem in self._of_segment(stretch, packed))
        remembered = {slot.seq: name for name, slot in self._currents.items() if not slot.forgotten}
        yield from self._graph.problems(remembered)
        yield from self._of_head()

    def _of_id(self, name: bytes, current: Current) -> Iterator[str]:
        versions, slot = self._versions.get(name, set()), self._entries.get(current.seq)
        if current.forgotten:
            if versions or (slot is not None and slot.name == name):
                yield "is forgotten, and something is left of it"
            return
        if missing := sorted(set(range(current.version + 1)) - versions):
            yield f"row of version {', '.join(map(str, missing))} missing"
        if newer := sorted(versions - set(range(current.version + 1))):
            yield f"row of version {', '.join(map(str, newer))} is newer than the current one"
        if slot is None or slot.name != name:
            yield f"entry {current.seq} missing"
        elif slot.version != current.version:
            yield f"entry {current.seq} is of version {slot.version}, not {current.version}"

    def _of_entry(self, seq: int, slot: _Slot) -> Iterator[str]:
        current = self._currents.get(slot.name)
        if current is None or current.seq != seq:
            yield "no id leads to it"
        if slot.episode >= 0 and slot.episode not in self._episodes:
            yield f"episode {slot.episode} missing"

    def _of_segment(self, stretch: bytes, packed: Mapping[int, int]) -> Iterator[str]:
        first, end = keys.sequence(stretch[:8]), keys.sequence(stretch)
        stored = {seq: slot.version for seq, slot in self._entries.items() if first <= seq < end}
        differing = sorted({seq for seq, _ in stored.items() ^ packed.items()} - self._renewed)
        if differing:
            yield f"does not say the same as the entries of {', '.join(map(str, differing[:3]))}"

    def _of_head(self) -> Iterator[str]:
        """An owner of whom only event ids are kept has no head."""
        seqs = {current.seq for current in self._currents.values()} | self._entries.keys() | self._episodes.keys()
        if self._head is None:
            if seqs or self._versions:
                yield "has memories and no head"
        elif seqs and max(seqs) >= self._head.next_seq:
            yield f"next sequence number is {self._head.next_seq}, and {max(seqs)} is taken"
