"""All data of a state partition about a person as plain records, for a data-protection request.

Left out are index copies of other records (segments, adjacency), and unreadable hashes, which are counted. The graph is
in `state/person_graph.py`."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any

from recallflow.state import keys
from recallflow.state.partition import Partition
from recallflow.state.rows import (
    CategorySummaryRow,
    Entry,
    EpisodeMark,
    EpisodeRow,
    EpisodeSummaryRow,
    Made,
    MemoryRow,
    OwnerHead,
    Vectors,
)
from recallflow.state.usage import Usage, decode_seqs

Fields = dict[str, Any]
Shown = Iterator[tuple[str, Fields]]  # type of record, and its fields

# Tables with copies of other records, and tables of hashes only, by the counted content.
REPEATING = frozenset((keys.SEGMENT, keys.REACH, keys.RENEWED))
HASHES = {keys.CURRENT: "memory_ids", keys.EVENT_ID: "event_ids"}
_QUERY_ID_BYTES = 8
_KEPT = 10_000  # ids and names that are looked up again and again
_COLUMNS = [column.name for column in fields(MemoryRow)]


class Person:
    """One owner, whose records are read."""

    def __init__(self, partition: Partition, owner: bytes, *, vectors: bool) -> None:
        """`vectors`: told whole, and not only by model and size."""
        self.partition, self.owner = partition, owner
        self._vectors = vectors
        self.memory_id = lru_cache(_KEPT)(self._memory_id)
        self._sessions: dict[bytes, str] = {}

    def records(self) -> Shown:
        """Yield all records except the graph's. An owner with queries only has none."""
        stored = self.partition.get(keys.head(self.owner))
        if stored is None:
            return
        yield "owner", _head(stored)
        yield from self._memories()
        for table, (kind, show) in READERS.items():
            for key, value in self.scan(table):
                yield kind, show(self, key, value)
        yield "hashes", dict(self._hashes())

    def scan(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of one of the owner's tables."""
        return self.partition.scan(keys.table(self.owner, table))

    def session_id(self, name: bytes) -> str | None:
        """Return the session of a hash, if a memory belongs to it."""
        return self._sessions.get(name)

    def _memory_id(self, seq: int) -> str | None:
        """Return the id of a current memory by its number."""
        stored = self.partition.get(keys.entry(self.owner, seq))
        return None if stored is None else Entry.decode(stored).id

    def _memories(self) -> Shown:
        """Yield every version of every memory, in the order of ingestion."""
        name = self.partition.keyring.name
        for _, stored in self.scan(keys.ENTRY):
            entry = Entry.decode(stored)
            if entry.session_id is not None and len(self._sessions) < _KEPT:
                self._sessions[name(self.owner, entry.session_id)] = entry.session_id
            for _, value in self.partition.scan(keys.rows(self.owner, name(self.owner, entry.id))):
                row = MemoryRow.decode(value)
                shown = {column: getattr(row, column) for column in _COLUMNS}
                is_current = row.version == entry.version
                shown |= {"current": is_current, "episode": entry.episode}
                yield "memory", shown | self._indexed(row, entry if is_current else None)

    def _indexed(self, row: MemoryRow, entry: Entry | None) -> Fields:
        """Yield the index data of a version: stems and vectors. `entry` is that of a current version."""
        place = keys.vectors(self.owner, row.seq)
        if entry is None:
            place = keys.past_vectors(self.owner, row.seq, row.version)
            stored = self.partition.get(keys.past_entry(self.owner, row.seq, row.version))
            entry = None if stored is None else Entry.decode(stored)
        stems = None if entry is None else entry.stems
        return {"stems": stems, "vectors": self._vector_fields(place)}

    def _vector_fields(self, key: bytes) -> Fields | None:
        """Return the vectors with their model and counts."""
        stored = self.partition.get(key)
        if stored is None:
            return None
        found = Vectors.decode(stored)
        shown: Fields = {"model": found.model, "dimension": found.matrix.shape[1], "passages": len(found.matrix)}
        shown["tokens"] = len(found.tokens)
        if self._vectors:
            shown |= {"values": found.matrix.tolist(), "token_values": found.tokens.tolist()}
        return shown

    def _hashes(self) -> Iterator[tuple[str, int]]:
        """Yield the number of stored hashes by kind, for data of which only hashes are stored."""
        for table, what in HASHES.items():
            yield what, sum(1 for _ in self.scan(table))
        yield "query_ids", len(self.partition.get(keys.asked(self.owner)) or b"") // _QUERY_ID_BYTES


def _head(stored: bytes) -> Fields:
    head = OwnerHead.decode(stored)
    return {
        "memories": head.held.memories,
        "memories_so_far": head.next_seq,
        "events_so_far": head.next_change,
        "latest_ms": head.clock_ms,
    }


def _usage(person: Person, key: bytes, value: bytes) -> Fields:
    seq = keys.sequence(key)
    return {"memory_id": person.memory_id(seq), "seq": seq} | Usage.decode(value)._asdict()


def _session(person: Person, key: bytes, value: bytes) -> Fields:
    returned = decode_seqs(value).tolist()
    session_id = person.session_id(keys.split(key)[2])
    return {"session_id": session_id, "returned": [*map(person.memory_id, returned)]}


def _made(person: Person, key: bytes, value: bytes) -> Fields:
    seq, made = keys.sequence(key), Made.decode(value)
    found = {"memories": [*map(person.memory_id, made.memories)], "ended": [*map(person.memory_id, made.ended)]}
    return {"memory_id": person.memory_id(seq), "seq": seq, "summaries": made.summaries} | found


def _mark(_: Person, __: bytes, value: bytes) -> Fields:
    mark = EpisodeMark.decode(value)
    return mark._asdict() | {"opened": None if mark.opened is None else mark.opened._asdict()}


def _category_summary(person: Person, _: bytes, value: bytes) -> Fields:
    found = CategorySummaryRow.decode(value)
    return found._asdict() | {"sources": [*map(person.memory_id, found.sources)]}


# The reader of each further table: type of record, and function.
READERS: dict[bytes, tuple[str, Callable[[Person, bytes, bytes], Fields]]] = {
    keys.USAGE: ("usage", _usage),
    keys.SESSION: ("session", _session),
    keys.EPISODE: ("episode", lambda _, __, value: EpisodeRow.decode(value)._asdict()),
    keys.EPISODE_LOG: ("episode_mark", _mark),
    keys.EPISODE_SUMMARY: ("episode_summary", lambda _, __, value: EpisodeSummaryRow.decode(value)._asdict()),
    keys.CATEGORY_SUMMARY: ("category_summary", _category_summary),
    keys.MADE: ("made", _made),
}
