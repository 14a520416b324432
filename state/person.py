"""All data of a state partition about an owner as plain records, for a data-protection request.

Copies of other records (segments, adjacency) are left out. Data of which only hashes are stored is counted."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import orjson

from recallflow.state import graph_codec as codec
from recallflow.state import keys, rows
from recallflow.state.entity_names import decode_joins
from recallflow.state.partition import Partition
from recallflow.state.usage import Usage, decode_seqs

Fields = dict[str, Any]
Records = Iterator[tuple[str, Fields]]  # type of record, and its fields

# Tables with copies of other records; and tables of hashes only, with the name of their count.
REPEATING = frozenset((keys.SEGMENT, keys.SEGMENTS_END, keys.STALE, keys.ADJACENCY, keys.PAST_ADJACENCY))
HASHES = {keys.CURRENT: "memory_ids", keys.EVENT_ID: "event_ids"}
_QUERY_ID_BYTES = 8
_MAX_CACHED = 10_000  # ids and names, which are looked up repeatedly


class Person:
    """Reader of one owner's records. `vectors`: include their numbers, not only model and size."""

    def __init__(self, partition: Partition, owner: bytes, *, vectors: bool) -> None:
        self.partition, self.owner = partition, owner
        self._vectors = vectors
        self.memory_id = lru_cache(_MAX_CACHED)(self._memory_id)
        self.node = lru_cache(_MAX_CACHED)(self._node)
        self.edge = lru_cache(_MAX_CACHED)(self._edge)
        self.sessions: dict[bytes, str] = {}  # sessions of memories by hash

    def records(self) -> Records:
        """Yield all records; none of an owner without memories."""
        stored = self.partition.get(keys.head(self.owner))
        if stored is None:
            return
        yield "owner", _head(stored)
        yield from self._memories()
        yield from self._read(READERS)
        hashes = {kind: sum(1 for _ in self._scan(table)) for table, kind in HASHES.items()}
        query_ids = self.partition.get(keys.query_ids(self.owner)) or b""
        yield "hashes", hashes | {"query_ids": len(query_ids) // _QUERY_ID_BYTES}
        yield from self._read(GRAPH_READERS)

    def links(self, row: codec.LinksRow) -> Fields:
        """Return a memory's contributions to the graph, with the ends of its edges."""
        relations, evidence = (
            [self.edge(bytes.fromhex(one)) for one in found] for found in (row.relations, row.evidence)
        )
        return {"id": row.id, "links": row.links, "relations": relations, "evidence": evidence}

    def _scan(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.partition.scan(keys.table(self.owner, table))

    def _read(self, readers: "Readers") -> Records:
        for table, (kind, show) in readers.items():
            for key, value in self._scan(table):
                yield kind, show(self, key, value)

    def _memory_id(self, seq: int) -> str | None:
        entry = self.partition.read(keys.entry(self.owner, seq), rows.Entry.decode)
        return None if entry is None else entry.id

    def _node(self, name: bytes) -> str | None:
        """Return the key of the node with a stored name, from its current or past record."""
        if (node := self.partition.read(keys.node(self.owner, name), codec.NodeRow.decode)) is not None:
            return str(node.key)
        past = (orjson.loads(value)[1] for _, value in self.partition.scan(keys.past_nodes(self.owner, name)))
        return next((str(codec.NodeKey(*row[0])) for row in past if row is not None), None)

    def _edge(self, name: bytes) -> Fields | None:
        """Return the ends and the type of a current or past edge."""
        found: codec.EdgeRow | codec.Life | None
        found = self.partition.read(keys.edge(self.owner, name), codec.EdgeRow.decode)
        if found is None:
            lives = self.partition.scan(keys.past_edge_of(self.owner, name, None) + codec.LIFE)
            found = next((codec.Life.of(orjson.loads(value)[1]) for _, value in lives), None)
        return None if found is None else {"source": str(found.source), "target": str(found.target), "type": found.type}

    def _memories(self) -> Records:
        name = self.partition.keyring.name
        for _, stored in self._scan(keys.ENTRY):
            entry = rows.Entry.decode(stored)
            if entry.session_id is not None and len(self.sessions) < _MAX_CACHED:
                self.sessions[name(self.owner, entry.session_id)] = entry.session_id
            for _, value in self.partition.scan(keys.rows(self.owner, name(self.owner, entry.id))):
                row = rows.MemoryRow.decode(value)
                is_current = row.version == entry.version
                columns = asdict(row) | {"current": is_current, "episode": entry.episode}
                yield "memory", columns | self._indexed(row, entry if is_current else None)

    def _indexed(self, row: rows.MemoryRow, entry: rows.Entry | None) -> Fields:
        """Return the index data of a version: stems and vectors. `entry` is None for a past version."""
        vectors_key = keys.vectors(self.owner, row.seq)
        if entry is None:
            vectors_key = keys.past_vectors(self.owner, row.seq, row.version)
            entry = self.partition.read(keys.past_entry(self.owner, row.seq, row.version), rows.Entry.decode)
        stems = None if entry is None else entry.stems
        return {"stems": stems, "vectors": self._vector_fields(vectors_key)}

    def _vector_fields(self, key: bytes) -> Fields | None:
        found = self.partition.read(key, rows.Vectors.decode)
        if found is None:
            return None
        passages, dimension = found.matrix.shape
        shown = {"model": found.model, "dimension": dimension, "passages": passages, "tokens": len(found.tokens)}
        values = {"values": found.matrix.tolist(), "token_values": found.tokens.tolist()} if self._vectors else {}
        return shown | values


def _head(stored: bytes) -> Fields:
    head = rows.OwnerHead.decode(stored)
    counts = {"memories": head.counts.memories, "memories_so_far": head.next_seq, "events_so_far": head.next_change}
    return counts | {"latest_ms": head.clock_ms}


def _usage(person: Person, key: bytes, value: bytes) -> Fields:
    seq = keys.sequence(key)
    return {"memory_id": person.memory_id(seq), "seq": seq} | Usage.decode(value)._asdict()


def _session(person: Person, key: bytes, value: bytes) -> Fields:
    returned = decode_seqs(value).tolist()
    return {"session_id": person.sessions.get(keys.split(key)[2]), "returned": [*map(person.memory_id, returned)]}


def _made(person: Person, key: bytes, value: bytes) -> Fields:
    seq, made = keys.sequence(key), rows.Derivatives.decode(value)
    found = {"memories": [*map(person.memory_id, made.memories)], "ended": [*map(person.memory_id, made.ended)]}
    return {"memory_id": person.memory_id(seq), "seq": seq, "summaries": made.summaries} | found


def _category_summary(person: Person, _: bytes, value: bytes) -> Fields:
    found = rows.CategorySummaryRow.decode(value)
    return found._asdict() | {"sources": [*map(person.memory_id, found.sources)]}


def _member(person: Person, key: bytes, value: bytes) -> Fields:
    role, description = codec.decode_member(value)
    member_id = person.memory_id(keys.reversed_sequence(key))
    shown = {"node": person.node(_name_in(key)), "memory_id": member_id, "role": role}
    return shown | {"description": _shown(description)}


def _decoded(decode: Callable[[bytes], Any]) -> "Reader":
    """Return the reader of a table whose records show their fields."""
    return lambda _, __, value: _shown(decode(value))


def _of_memory(name: str, decode: Callable[[bytes], Iterable[Any]]) -> "Reader":
    """Return the reader of a table with several rows per memory."""
    return lambda person, key, value: {"memory_id": person.memory_id(keys.sequence(key)), name: _shown(decode(value))}


def _joined(_: Person, __: bytes, value: bytes) -> Fields:
    own, joined = decode_joins(value)
    return {"name": own, "to": _shown(joined)}


def _past_links(person: Person, key: bytes, value: bytes) -> Fields:
    seq, version = keys.seq_and_version(key)
    return person.links(codec.LinksRow.decode(value)) | {"seq": seq, "version": version}


def _past_member(person: Person, key: bytes, _: bytes) -> Fields:
    return {"node": person.node(_name_in(key)), "memory_id": person.memory_id(keys.reversed_sequence(key))}


def _past_edge(person: Person, key: bytes, value: bytes) -> Fields:
    (part, seq), (until_ms, stored) = keys.edge_part(key), orjson.loads(value)
    content, by = _shown(codec.edge_part(part, stored)), None if seq is None else person.memory_id(seq)
    return {"edge": person.edge(_name_in(key)), "by": by, _PARTS[part]: content, "until_ms": until_ms}


def _past_similar(person: Person, key: bytes, value: bytes) -> Fields:
    until_ms, (_, other, weight, ingested_ms, archived) = orjson.loads(value)
    shown = {"memory_id": person.memory_id(keys.sequence(key[:-16])), "id": other, "weight": weight}
    return shown | {"ingested_ms": ingested_ms, "archived": archived, "until_ms": until_ms}


def _past_node(person: Person, key: bytes, value: bytes) -> Fields:
    until_ms, stored = orjson.loads(value)
    row = None if stored is None else codec.NodeRow(codec.NodeKey(*stored[0]), *stored[1:])
    shown = {"key": person.node(_name_in(key))} if row is None else _shown(row)
    return {**shown, "until_ms": until_ms}


def _shown(value: Any) -> Any:
    """Return a record and the records in it as dictionaries. A node's key becomes its text form."""
    if isinstance(value, codec.NodeKey):
        return str(value)
    if hasattr(value, "_asdict"):
        return {name: _shown(part) for name, part in value._asdict().items()}
    has_records = isinstance(value, list | tuple) and any(hasattr(part, "_asdict") for part in value)
    return [*map(_shown, value)] if has_records else value


def _name_in(key: bytes) -> bytes:
    """Return the name that follows the table's letter in a key."""
    return keys.split(key)[2][: keys.NAME_BYTES]


_PARTS = {b"r": "relation", b"e": "evidence", b"g": "given", b"o": "archived", b"x": "life"}

Reader = Callable[[Person, bytes, bytes], Fields]
Readers = dict[bytes, tuple[str, Reader]]  # type of record, and function, by table
READERS: Readers = {
    keys.USAGE: ("usage", _usage),
    keys.SESSION: ("session", _session),
    keys.EPISODE: ("episode", _decoded(rows.EpisodeRow.decode)),
    keys.EPISODE_LOG: ("episode_mark", _decoded(rows.EpisodeLogEntry.decode)),
    keys.EPISODE_SUMMARY: ("episode_summary", _decoded(rows.EpisodeSummaryRow.decode)),
    keys.CATEGORY_SUMMARY: ("category_summary", _category_summary),
    keys.DERIVATIVES: ("made", _made),
}
GRAPH_READERS: Readers = {
    keys.NODE: ("node", _decoded(codec.NodeRow.decode)),
    keys.MEMBER: ("node_member", _member),
    keys.LINKS: ("memory_links", lambda person, _, value: person.links(codec.LinksRow.decode(value))),
    keys.EDGE: ("edge", _decoded(codec.EdgeRow.decode)),
    keys.SIMILAR: ("similar", _of_memory("near", codec.decode_neighbours)),
    keys.SUPERSEDED: ("superseded", _of_memory("by", codec.decode_superseded)),
    keys.JOINED: ("names_joined", _joined),
    keys.CASELESS: ("names", lambda _, __, value: {"names": orjson.loads(value)}),
    keys.UNSYNCED: ("graph_not_written", _decoded(codec.Unsynced.decode)),
    keys.PAST_LINKS: ("past_memory_links", _past_links),
    keys.PAST_MEMBER: ("past_node_member", _past_member),
    keys.PAST_EDGE: ("past_edge", _past_edge),
    keys.PAST_SIMILAR: ("past_similar", _past_similar),
    keys.PAST_NODE: ("past_node", _past_node),
    keys.PAST_JOINED: ("names_once_joined", lambda _, __, value: {"names": orjson.loads(value)}),
}
