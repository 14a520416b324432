"""All data of a state partition about a person as plain records, for a data-protection request.

Left out are index copies of other records (segments, adjacency), and unreadable hashes, which are counted."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any

import orjson

from recallflow.state import keys
from recallflow.state.entity_names import decode_joined, decode_names
from recallflow.state.graph_codec import (
    LIFE,
    EdgeRow,
    Life,
    LinksRow,
    NodeKey,
    NodeRow,
    Unsynced,
    decode_member,
    decode_neighbours,
    decode_superseded,
    edge_part,
)
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
REPEATING = frozenset((keys.SEGMENT, keys.REACH, keys.RENEWED, keys.ADJACENCY, keys.PAST_ADJACENCY))
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
        return self.partition.scan(keys.table(self.owner, table))

    def session_id(self, name: bytes) -> str | None:
        """Return the session of a hash, if a memory belongs to it."""
        return self._sessions.get(name)

    def _memory_id(self, seq: int) -> str | None:
        stored = self.partition.get(keys.entry(self.owner, seq))
        return None if stored is None else Entry.decode(stored).id

    def _memories(self) -> Shown:
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


_PARTS = {b"r": "relation", b"e": "evidence", b"g": "given", b"o": "archived", b"x": "life"}


class PersonGraph:
    """The graph of one owner, current and historical."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self._node = lru_cache(_KEPT)(self._read_node)
        self._edge = lru_cache(_KEPT)(self._read_edge)

    def records(self) -> Shown:
        scan, memory_id = self._person.scan, self._person.memory_id
        for _, value in scan(keys.NODE):
            yield "node", _node_fields(NodeRow.decode(value))
        for key, value in scan(keys.MEMBER):
            role, description = decode_member(value)
            member_id = memory_id(keys.reversed_sequence(key))
            shown = {"node": self._node(_middle(key)), "memory_id": member_id, "role": role}
            yield "node_member", shown | {"description": None if description is None else description._asdict()}
        for _, value in scan(keys.LINKS):
            yield "memory_links", self._links(LinksRow.decode(value))
        for _, value in scan(keys.EDGE):
            yield "edge", _edge_fields(EdgeRow.decode(value))
        for key, value in scan(keys.SIMILAR):
            near = [one._asdict() for one in decode_neighbours(value)]
            yield "similar", {"memory_id": memory_id(keys.sequence(key)), "near": near}
        for key, value in scan(keys.SUPERSEDED):
            by = [one._asdict() for one in decode_superseded(value)]
            yield "superseded", {"memory_id": memory_id(keys.sequence(key)), "by": by}
        for _, value in scan(keys.JOINED):
            own, joined = decode_joined(value)
            yield "names_joined", {"name": own, "to": [one._asdict() for one in joined]}
        for _, value in scan(keys.CASELESS):
            yield "names", {"names": decode_names(value)}
        for _, value in scan(keys.UNSYNCED):
            yield "graph_not_written", Unsynced.decode(value)._asdict()
        yield from self._past()

    def _past(self) -> Shown:
        scan, memory_id = self._person.scan, self._person.memory_id
        for key, value in scan(keys.PAST_LINKS):
            seq, version = keys.seq_and_version(key)
            yield "past_memory_links", self._links(LinksRow.decode(value)) | {"seq": seq, "version": version}
        for key, _ in scan(keys.PAST_MEMBER):
            seq = keys.reversed_sequence(key)
            yield "past_node_member", {"node": self._node(_middle(key)), "memory_id": memory_id(seq)}
        for key, value in scan(keys.PAST_EDGE):
            yield "past_edge", self._past_edge(key, *orjson.loads(value))
        for key, value in scan(keys.PAST_SIMILAR):
            until_ms, (_, other, weight, ingested_ms, archived) = orjson.loads(value)
            shown = {"memory_id": memory_id(keys.sequence(key[:-16])), "id": other, "weight": weight}
            yield "past_similar", shown | {"ingested_ms": ingested_ms, "archived": archived, "until_ms": until_ms}
        for key, value in scan(keys.PAST_NODE):
            until_ms, stored = orjson.loads(value)
            row = {"key": self._node(_middle(key))}
            if stored is not None:
                row = _node_fields(NodeRow(NodeKey(*stored[0]), *stored[1:]))
            yield "past_node", row | {"until_ms": until_ms}
        for _, value in scan(keys.PAST_JOINED):
            yield "names_once_joined", {"names": orjson.loads(value)}

    def _past_edge(self, key: bytes, until_ms: int, stored: Any) -> Fields:
        part, seq = keys.edge_part(key)
        decoded = edge_part(part, stored)
        content = decoded._asdict() if hasattr(decoded, "_asdict") else decoded
        if part == LIFE:
            content = content | {"source": str(decoded.source), "target": str(decoded.target)}
        by = None if seq is None else self._person.memory_id(seq)
        return {"edge": self._edge(_middle(key)), "by": by, _PARTS[part]: content, "until_ms": until_ms}

    def _links(self, row: LinksRow) -> Fields:
        edges = {
            name: [self._edge(bytes.fromhex(one)) for one in getattr(row, name)] for name in ("relations", "evidence")
        }
        return {"id": row.id, "links": row.links} | edges

    def _read_node(self, name: bytes) -> str | None:
        """Return the name of a node by the hash of its stored name; a memory's comes from its links."""
        partition, owner = self._person.partition, self._person.owner
        stored = partition.get(keys.node(owner, name))
        if stored is not None:
            return str(NodeRow.decode(stored).key)
        past = (orjson.loads(value)[1] for _, value in partition.scan(keys.past_nodes(owner, name)))
        return next((str(NodeKey(*row[0])) for row in past if row is not None), None)

    def _read_edge(self, name: bytes) -> Fields | None:
        """Return the ends and the type of a current or past edge."""
        partition, owner = self._person.partition, self._person.owner
        stored = partition.get(keys.edge(owner, name))
        found: EdgeRow | Life | None = None if stored is None else EdgeRow.decode(stored)
        if found is None:
            lives = partition.scan(keys.past_edge_of(owner, name, None) + LIFE)
            found = next((Life.of(orjson.loads(value)[1]) for _, value in lives), None)
        return None if found is None else {"source": str(found.source), "target": str(found.target), "type": found.type}


def _middle(key: bytes) -> bytes:
    return keys.split(key)[2][: keys.NAME_BYTES]


def _node_fields(row: NodeRow) -> Fields:
    return row._asdict() | {"key": str(row.key)}


def _edge_fields(row: EdgeRow) -> Fields:
    shown = row._asdict() | {"source": str(row.source), "target": str(row.target)}
    statements = [one._asdict() for one in row.statements]
    return shown | {"given": None if row.given is None else row.given._asdict(), "statements": statements}
