"""The check that all records are readable and consistent. Raise StateInUse for a directory in use."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from recallflow.errors import DecryptionFailed, DiskFull, MasterKeyError, StateError, StateInUse
from recallflow.owner import state_partition
from recallflow.state import files, graph_check, keys, rows
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from recallflow.state.partition import Counts, Partition
from recallflow.state.segment import Segment
from recallflow.state.usage import Usage

# Name of each table of an owner (as reported), and the number of key bytes after the table's letter.
TABLES = {
    keys.HEAD: ("owners", 0),
    keys.CURRENT: ("ids", 16),
    keys.ROW: ("rows", 20),
    keys.ENTRY: ("entries", 8),
    keys.VECTORS: ("vectors", 8),
    keys.PAST_ENTRY: ("past entries", 12),
    keys.PAST_VECTORS: ("past vectors", 12),
    keys.SEGMENT: ("segments", 16),
    keys.SEGMENTS_END: ("reaches of segments", 0),
    keys.STALE: ("renewed memories", 8),
    keys.EPISODE: ("episodes", 24),
    keys.EPISODE_LOG: ("episode marks", 8),
    keys.CATEGORY_SUMMARY: ("category summaries", 24),
    keys.DERIVATIVES: ("derivations", 8),
    keys.EPISODE_SUMMARY: ("episode summaries", 8),
    keys.EVENT_ID: ("event ids", 16),
    keys.USAGE: ("usage", 8),
    keys.SESSION: ("sessions", 16),
    keys.QUERY_IDS: ("latest queries", 0),
    **{table: one[:2] for table, one in graph_check.TABLES.items()},
}
# Name of each other table of a partition, and the possible numbers of key bytes after the table's letter.
PARTITION_TABLES: dict[bytes, tuple[str, tuple[int, ...]]] = {
    keys.OUTBOX: ("outbox", (24,)),
    keys.EFFECTS: ("marked queries", (24,)),
    keys.WORK: ("events in steps", (16,)),
    keys.OWNER_KEYS: ("owners' keys", (16,)),
    keys.USERS: ("users' owners", (32,)),
    keys.ERASED: ("erasures", (16, 32)),
    keys.TENANT_KEYS: ("tenants' keys", (16,)),
    keys.UNCLEANED: ("erasures to clean up", (32,)),
    keys.FORWARDED: ("forwarded records", (16,)),
}
_UNDECODABLE = (ValueError, TypeError, KeyError, IndexError, ArithmeticError)


@dataclass(slots=True)
class Report:
    """The contents of a state directory, and all problems."""

    partitions: int = 0  # number of partitions in this directory that were opened
    records: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def verify(state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> Report:
    """Read and decode every record of every table, and check their consistency. Continue after each problem. Raise
    StateError if nothing can be read: the description is missing, or another process holds the directory."""
    report = Report()
    with StateDirectory.existing(state_dir, at_rest) as directory:
        for number in directory.existing_numbers():
            _verify_partition(directory, number, report)
        found = _directory_problems(directory)  # it opens partitions again, and repeats their problems
        report.problems += [one for one in found if not any(other.endswith(one) for other in report.problems)]
    return report


def _directory_problems(directory: StateDirectory) -> Iterator[str]:
    """Yield damaged small files, and lost folders of state partitions."""
    checks: list[Callable[[], object]] = [
        partial(files.read_checked, path) for path in sorted(directory.path.glob("*.json"))
    ]
    for check in (*checks, directory.check_complete):
        try:
            check()
        except (StateInUse, DiskFull):
            raise
        except (StateError, MasterKeyError) as error:
            yield str(error)


def _verify_partition(directory: StateDirectory, number: int, report: Report) -> None:
    try:
        partition = directory.partition(number)
        report.partitions += 1
        before = report.records.copy()
        for owner, records in groupby(partition.scan_stored(b"", keys.END), lambda record: keys.split(record[0])[0]):
            if owner:
                problems = _OwnerCheck(directory, partition, owner).problems(records, report.records)
            else:
                problems = _own_problems(partition, records, report.records)
            report.problems.extend(f"p{number:03d}: {problem}" for problem in problems)
        counted = Counts(*(report.records[table] - before[table] for table in ("owners", "entries")))
        if counted != partition.counts:
            report.problems.append(f"p{number:03d}: the stored count is {partition.counts}, the records are {counted}")
    except (StateInUse, DiskFull):  # not a problem of stored data
        raise
    except (StateError, MasterKeyError) as error:  # MasterKeyError: of the secret in a moved folder
        report.problems.append(f"p{number:03d}: {error}")
    except _UNDECODABLE as error:  # opening a partition decodes some records
        report.problems.append(f"p{number:03d}: cannot be opened: {error}")


def _own_problems(partition: Partition, records: Iterator[tuple[bytes, bytes]], counts: Counter[str]) -> Iterator[str]:
    """Yield the problems of a partition's records outside of the owners' tables."""
    applied = {partition.keyring.name(b"", source): offset for source, offset in partition.applied.items()}
    for key, stored in records:
        try:
            value = partition.open(key, stored)
            prefix, (name, sizes) = key[:1], PARTITION_TABLES.get(key[:1], ("", ()))
            if len(key) - 1 in sizes:
                counts[name] += 1
                if prefix in (keys.OUTBOX, keys.WORK):
                    orjson.loads(value)
                elif prefix == keys.ERASED:
                    int(value)
                if prefix == keys.OUTBOX and keys.sequence(key) > applied.get(key[1:17], keys.sequence(key)):
                    yield f"outbox {key.hex()}: ahead of the applied position of its source"
            elif key.startswith(keys.APPLIED):
                counts["positions"] += 1
                if int(value) < 0:
                    yield f"applied position of {key[len(keys.APPLIED) :].decode()} is {int(value)}"
            elif key.startswith(keys.SETTLED):
                int(value.partition(b" ")[0])
            elif key not in (keys.FORMAT, keys.COUNTS, keys.COMPLETE, keys.PROGRESS):
                yield f"{key.hex()}: a key of no table"
        except _UNDECODABLE as error:
            yield f"{key.hex()}: cannot be decoded: {error}"
        except DecryptionFailed as error:
            yield f"{key.hex()}: cannot be decrypted: {error}"


class _CheckedEntry(NamedTuple):
    name: bytes
    version: int
    episode: int


class _OwnerCheck:
    """The check of one owner's records: each is decoded in order, and references are compared at the end. Problems
    contain hashes only, no names and texts of the owner."""

    def __init__(self, directory: StateDirectory, partition: Partition, owner: bytes) -> None:
        self._settings = directory.fingerprint
        self._partition, self._owner = partition, owner
        self._name = partial(partition.keyring.name, owner)
        self._graph = graph_check.GraphCheck(partition.keyring, owner)
        self._sources: dict[int, list[str]] = {}  # ids of the sources of derived memories
        self._derived: set[tuple[int, int]] = set()  # `seq` of sources and of the memories derived from them
        # `seq` of a source, category and change of a summary: according to the source, and according to the summary.
        self._derived_summaries: set[tuple[int, str, int]] = set()
        self._summary_sources: set[tuple[int, str, int]] = set()
        self._head: rows.OwnerHead | None = None
        # By name of a memory.
        self._heads: dict[bytes, rows.MemoryHead] = {}
        self._versions: dict[bytes, set[int]] = {}
        self._text_bytes: Counter[bytes] = Counter()  # of all versions of a memory
        # By `seq` (and version).
        self._entries: dict[int, _CheckedEntry] = {}
        self._vectors: set[int] = set()
        self._past: dict[tuple[int, int], bytes] = {}
        self._episodes: dict[int, rows.EpisodeRow] = {}
        self._segments: dict[bytes, Segment] = {}
        self._stale: set[int] = set()  # memories that changed since their segment was packed
        self._summarised: set[int] = set()  # episodes with a stored summary

    def problems(self, records: Iterator[tuple[bytes, bytes]], counts: Counter[str]) -> Iterator[str]:
        """Yield all problems of the owner's records, and count them by table."""
        label = f"owner {self._owner.hex()}"
        if self._partition.keyring.encrypts and not self._partition.has_key(self._owner):
            tables = [TABLES.get(keys.split(key)[1], ("unknown", -1))[0] for key, _ in records]
            counts.update(tables)
            yield f"{label}: its key is lost or cannot be decrypted, so {len(tables)} records are unreadable"
            return
        for key, stored in records:
            _, table, rest = keys.split(key)
            name, size = TABLES.get(table, ("", -1))
            if len(rest) != size:
                yield f"{key.hex()}: a key of no table"
                continue
            counts[name] += 1
            try:
                found = list(self._read(table, rest, self._partition.open(key, stored)))
            except _UNDECODABLE as error:
                found = [f"cannot be decoded: {error}"]
            except DecryptionFailed as error:
                found = [f"cannot be decrypted: {error}"]
            yield from (f"{label}, {name} {rest.hex()}: {problem}" for problem in found)
        yield from (f"{label}: {problem}" for problem in self._disagreements())

    def _read(self, table: bytes, rest: bytes, value: bytes) -> Iterator[str]:
        match table:
            case keys.HEAD:
                yield from self._read_head(rows.OwnerHead.decode(value))
            case keys.CURRENT:
                self._heads[rest] = rows.MemoryHead.decode(value)
            case keys.ROW:
                yield from self._read_row(rest, rows.MemoryRow.decode(value))
            case keys.ENTRY:
                entry, seq = rows.Entry.decode(value), keys.sequence(rest)
                self._entries[seq] = _CheckedEntry(self._name(entry.id), entry.version, entry.episode)
                if entry.seq != seq:
                    yield f"contains entry {entry.seq}"
            case keys.PAST_ENTRY:
                entry = rows.Entry.decode(value)
                self._past[keys.seq_and_version(rest)] = self._name(entry.id)
                if (entry.seq, entry.version) != keys.seq_and_version(rest):
                    yield f"contains version {entry.version} of entry {entry.seq}"
            case keys.VECTORS | keys.PAST_VECTORS:
                if table == keys.VECTORS:
                    self._vectors.add(keys.sequence(rest))
                yield from self._read_vectors(value)
            case keys.SEGMENT:
                segment = Segment.decode(value, self._settings.embedder, self._settings.dimension)
                if segment is None:
                    yield "is damaged or of another version: the owner's next query rebuilds it"
                else:
                    self._segments[rest] = segment
            case keys.STALE:
                self._stale.add(keys.sequence(rest))
            case keys.EPISODE_LOG:
                if (change := rows.EpisodeLogEntry.decode(value).change) != keys.sequence(rest):
                    yield f"contains change {change}"
            case keys.EPISODE:
                yield from self._read_episode(rest, rows.EpisodeRow.decode(value))
            case keys.EPISODE_SUMMARY:
                number = rows.EpisodeSummaryRow.decode(value).number
                self._summarised.add(keys.sequence(rest))
                if number != keys.sequence(rest):
                    yield f"contains the summary of episode {number}"
            case keys.DERIVATIVES:
                source, derived = keys.sequence(rest), rows.Derivatives.decode(value)
                self._derived |= {(source, seq) for seq in (*derived.memories, *derived.ended)}
                self._derived_summaries |= {(source, *summary) for summary in derived.summaries}
            case keys.CATEGORY_SUMMARY:
                row = rows.CategorySummaryRow.decode(value)
                self._summary_sources |= {(source, row.category, row.change) for source in row.sources}
            case keys.SEGMENTS_END:
                orjson.loads(value)
            case keys.USAGE:
                Usage.decode(value)
            case keys.EVENT_ID:
                bytes.fromhex(value.decode())
            case _ if table in graph_check.TABLES:
                self._graph.add(table, rest, value)

    def _read_head(self, head: rows.OwnerHead) -> Iterator[str]:
        self._head = head
        if self._partition.keyring.owner(head.owner) != self._owner:
            yield "contains the name of an owner with another key"
        number = state_partition(head.owner.tenant_id, head.owner.user_id, self._settings.partitions)
        if number != self._partition.number:
            yield "belongs to another state partition"

    def _read_row(self, rest: bytes, row: rows.MemoryRow) -> Iterator[str]:
        name, version = rest[:16], int.from_bytes(rest[16:], "big")
        self._versions.setdefault(name, set()).add(version)
        self._text_bytes[name] += len(row.content.encode())
        if (source := row.derived_from) is not None:
            self._sources[row.seq] = [one["memory_id"] for one in (source, *source.get("others", []))]
        if self._name(row.id) != name or row.version != version:
            yield f"contains version {row.version}, or another memory"

    def _read_vectors(self, value: bytes) -> Iterator[str]:
        stored = rows.Vectors.decode(value)
        passages, dimension = stored.matrix.shape
        if dimension != self._settings.dimension or not passages:
            yield f"has {passages} vectors of dimension {dimension}, not of {self._settings.dimension}"
        if excess := len(value) - len(stored.encode()):
            yield f"has {excess} bytes too many"
        if not np.isfinite(stored.matrix).all():
            yield "has numbers that are not finite"

    def _read_episode(self, rest: bytes, episode: rows.EpisodeRow) -> Iterator[str]:
        self._episodes[keys.sequence(rest)] = episode
        if episode.number != keys.sequence(rest) or self._name(episode.session_id or "") != rest[:16]:
            yield f"contains episode {episode.number}, or one of another session"
        if episode.last_ms < episode.start_ms:
            yield "ends before it starts"

    def _disagreements(self) -> Iterator[str]:
        for name, head in self._heads.items():
            yield from (f"id {name.hex()}: {problem}" for problem in self._of_id(name, head))
        for name in self._versions.keys() - self._heads.keys():
            yield f"rows of {name.hex()}: the id is missing"
        for seq, entry in self._entries.items():
            current = self._heads.get(entry.name)
            if current is None or current.seq != seq:
                yield f"entry {seq}: its id is missing, or has another number"
            if entry.episode >= 0 and entry.episode not in self._episodes:
                yield f"entry {seq}: episode {entry.episode} missing"
        for seq in sorted(self._vectors - self._entries.keys()):
            yield f"vectors {seq}: the entry is missing"
        for (seq, version), name in self._past.items():
            if version not in self._versions.get(name, set()):
                yield f"past entry {seq} of version {version}: the row is missing"
        for number, episode in self._episodes.items():
            if episode.merged_into is not None and episode.merged_into not in self._episodes:
                yield f"episode {number}: it was merged into {episode.merged_into}, which is missing"
        summarised = {number for number, episode in self._episodes.items() if episode.summarised}
        for number in sorted(summarised ^ self._summarised):
            yield f"episode {number}: it has a summary without a mark, or a mark without a summary"
        yield from self._of_segments()
        yield from self._of_derivations()
        yield from self._graph.problems({one.seq: name for name, one in self._heads.items() if not one.forgotten})
        yield from self._of_head()

    def _of_id(self, name: bytes, head: rows.MemoryHead) -> Iterator[str]:
        versions, entry = self._versions.get(name, set()), self._entries.get(head.seq)
        if head.forgotten:
            if versions or (entry is not None and entry.name == name):
                yield "the memory is deleted, but some of its records remain"
            return
        expected = set(range(head.version + 1))
        if missing := sorted(expected - versions):
            yield f"row of version {', '.join(map(str, missing))} missing"
        if newer := sorted(versions - expected):
            yield f"row of version {', '.join(map(str, newer))} is newer than the current one"
        if entry is None or entry.name != name:
            yield f"entry {head.seq} missing"
        elif entry.version != head.version:
            yield f"entry {head.seq} is of version {entry.version}, not {head.version}"
        if versions == expected and head.text_bytes != self._text_bytes[name]:
            yield f"the stored size of its texts is {head.text_bytes} bytes, and they have {self._text_bytes[name]}"

    def _of_derivations(self) -> Iterator[str]:
        seq_of = {name: head.seq for name, head in self._heads.items() if not head.forgotten}
        pairs = {(seq_of.get(self._name(source)), seq) for seq, sources in self._sources.items() for source in sources}
        for source, seq in sorted(pairs ^ self._derived, key=repr):
            yield f"memory {seq} was derived from memory {source}, by the record of only one of them"
        for source, _, change in sorted(self._summary_sources ^ self._derived_summaries):
            yield f"memory {source}: it and the category summary of change {change} disagree whether it is a source"

    def _of_segments(self) -> Iterator[str]:
        for span, segment in self._segments.items():
            first = keys.sequence(span[:8])
            stored = {seq: entry.version for seq, entry in self._entries.items() if first <= seq < segment.end}
            differing = sorted({seq for seq, _ in stored.items() ^ segment.versions().items()} - self._stale)
            if differing:
                yield f"segment {span.hex()}: it differs from the entries of {', '.join(map(str, differing[:3]))}"

    def _of_head(self) -> Iterator[str]:
        seqs = {head.seq for head in self._heads.values()} | self._entries.keys() | self._episodes.keys()
        if self._head is None:
            if seqs or self._versions:
                yield "it has memories, but no head"
            return
        if seqs and max(seqs) >= self._head.next_seq:
            yield f"next sequence number is {self._head.next_seq}, and {max(seqs)} is taken"
        text_bytes = sum(head.text_bytes for head in self._heads.values())
        counts = rows.OwnerCounts(len(self._entries), text_bytes, self._graph.edges)
        if counts != self._head.counts:
            yield f"the stored count is {self._head.counts}, the records are {counts}"
