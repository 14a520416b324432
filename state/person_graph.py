"""A person's graph data, current and historical, as plain records."""

from functools import lru_cache
from typing import Any

import orjson

from recallflow.state import keys
from recallflow.state.caseless import decode_names
from recallflow.state.graph_codec import (
    EdgeRow,
    LinksRow,
    NodeKey,
    NodeRow,
    Unsynced,
    decode_member,
    decode_neighbours,
    decode_superseded,
)
from recallflow.state.past_edge import LIFE, Life, edge_part
from recallflow.state.person import Fields, Person, Shown
from recallflow.state.unions import decode_joined

REPEATING = frozenset((keys.ADJACENCY, keys.PAST_ADJACENCY))  # tables that say of a node what its edges say
_PARTS = {b"r": "relation", b"e": "evidence", b"g": "given", b"o": "archived", b"x": "life"}
_KEPT = 10_000


class PersonGraph:
    """The graph of one owner, whose records are read. Tables: what each is shown as is in `records`."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self._node = lru_cache(_KEPT)(self._read_node)
        self._edge = lru_cache(_KEPT)(self._read_edge)

    def records(self) -> Shown:
        """Yield every record of the graph."""
        scan, memory_id = self._person.scan, self._person.memory_id
        for _, value in scan(keys.NODE):
            yield "node", _node_fields(NodeRow.decode(value))
        for key, value in scan(keys.MEMBER):
            role, description = decode_member(value)
            shown = {
                "node": self._node(_middle(key)),
                "memory_id": memory_id(keys.reversed_sequence(key)),
                "role": role,
            }
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
        """Yield the history of the graph."""
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
        said = edge_part(part, stored)
        content = said._asdict() if hasattr(said, "_asdict") else said
        if part == LIFE:
            content = content | {"source": str(said.source), "target": str(said.target)}
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
    """Return the hash of the name at the start of a grouped table's key."""
    return keys.split(key)[2][: keys.NAME_BYTES]


def _node_fields(row: NodeRow) -> Fields:
    return row._asdict() | {"key": str(row.key)}


def _edge_fields(row: EdgeRow) -> Fields:
    shown = row._asdict() | {"source": str(row.source), "target": str(row.target)}
    said = [one._asdict() for one in row.statements]
    return shown | {"given": None if row.given is None else row.given._asdict(), "statements": said}
