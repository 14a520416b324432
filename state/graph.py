"""One owner's stored memory graph: nodes, typed edges, and links from memories to nodes.

A memory needs no stored record to be a node. An entity with several names (`state/entity_names.py`) is one node with
all links of its names; the `same_as` edges between its names are not edges of the node. Each end of a symmetric edge
lists it as outgoing.

`operators/graph/write.py` writes the graph. A memory whose graph write failed has no links until the next event of its
owner (see docs/internals/graph.md)."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from recallflow.fields import EPOCH_MS_MIN
from recallflow.state import graph_codec as codec
from recallflow.state import keys
from recallflow.state.entity_names import NameJoin, Unions
from recallflow.state.partition import Partition
from recallflow.state.rows import MemoryHead

_SUPERSEDED_BYTES, _SEQ_BYTES = 400, 150  # estimates of memory per cached item
_MAX_CACHED_SEQS = 10_000


class Node(NamedTuple):
    key: codec.NodeKey
    kind: str  # memory, type, tag, category, topic, repo, entity, episode or condition
    name: str
    urn: str | None
    archived: bool  # whether traversal skips it
    properties: dict[str, Any]
    aliases: tuple[str, ...] = ()  # other names of an entity


class Edge(NamedTuple):
    """A typed edge. Whether it is valid depends on the time of the query."""

    source: codec.NodeKey
    target: codec.NodeKey
    type: str
    weight: float
    confidence: float
    evidence: list[str]  # ids of the memories that state it
    expires_ms: int | None
    archived: bool
    ingested_ms: int  # the ingestion time of the first statement
    properties: dict[str, Any]
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    stated_ms: int = EPOCH_MS_MIN  # the event time of the first statement

    @property
    def is_stated(self) -> bool:
        """Return whether memories or events state the edge. Otherwise it was derived from the similarity of vectors."""
        return self.type != codec.SIMILAR_TO or self.stated_ms != EPOCH_MS_MIN


class OwnerGraph:
    """One owner's graph. The order of all results depends on the log alone."""

    def __init__(self, partition: Partition, owner: bytes) -> None:
        self._partition = partition
        self._owner = owner
        self._superseded: dict[int, list[codec.Superseded]] | None = None
        self._unions: Unions | None = None
        self._has_stated_edges: bool | None = None
        self._seqs: dict[str, int | None] = {}

    def node(self, key: codec.NodeKey) -> Node | None:
        """Return the node, or None. An entity with several names has its main key and name."""
        rows = [row for one in self._name_keys(key) if (row := self._visible_row(one)) is not None]
        if rows:
            return _node(rows)
        return memory_node(key.text) if key.memory and self._seq(key) is not None else None

    def is_archived(self, key: codec.NodeKey) -> bool:
        """Return whether traversal skips the node."""
        rows = map(self._row, self._name_keys(key))
        return any(row is not None and row.archived for row in rows)

    def find(self, text: str) -> codec.NodeKey | None:
        """Return the key of the existing node that a text names, or None."""
        found = (self.node(key) for key in codec.candidate_nodes(text))
        return next((node.key for node in found if node is not None), None)

    def by_urn(self, urn: str) -> list[codec.NodeKey]:
        node = self.node(codec.NodeKey(codec.node_key(codec.ENTITY_KIND, urn)))
        return [] if node is None else [node.key]

    def members(self, key: codec.NodeKey, limit: int) -> list[int]:
        """Return the `seq` of memories linked to the node, newest first; for a memory, its own."""
        if key.memory:
            seq = self._seq(key)
            return [] if seq is None else [seq][:limit]
        found: dict[int, None] = {}
        for name in self.unions().names(key):
            stored = self._partition.first_keys(keys.members(self._owner, self.name(name)), limit)
            found |= dict.fromkeys(map(keys.reversed_sequence, stored))
        return sorted(found, reverse=True)[:limit]

    def links(self, seq: int) -> list[tuple[codec.NodeKey, str]]:
        """Return node and role of each link of a memory, the memory itself first. Empty if it is not in the graph."""
        row = self._partition.read(keys.links(self._owner, seq), codec.LinksRow.decode)
        if row is None:
            return []
        shared: dict[codec.NodeKey, str] = {}
        unions = self.unions()
        for text, role in row.links.items():
            shared.setdefault(unions.names(codec.NodeKey(text))[0], role)
        return [(codec.NodeKey(row.id, memory=True), codec.SELF_ROLE), *shared.items()]

    def edges(self, key: codec.NodeKey, limit: int) -> list[Edge]:
        """Return the node's edges in both directions: similar memories first, then all others, newest first."""
        stated = self._explicit_edges(key, limit)
        pairs = {(edge.source, edge.target) for edge in stated if edge.type == codec.SIMILAR_TO}
        seq = self._seq(key) if key.memory else None
        similar = [edge for edge in self._similar(key, seq) if (edge.source, edge.target) not in pairs]
        return [*similar, *stated][:limit]

    def has_stated_edges(self) -> bool:
        """Return whether any stated edge exists. The result is cached."""
        if self._has_stated_edges is None:
            self._has_stated_edges = next(self._scan(keys.EDGE), None) is not None
        return self._has_stated_edges

    def superseded(self) -> dict[int, list[codec.Superseded]]:
        """Return the supersessions of memories by `seq`. The result is cached, and must not be changed."""
        if self._superseded is None:
            stored = (
                (keys.sequence(key), codec.decode_superseded(value)) for key, value in self._scan(keys.SUPERSEDED)
            )
            in_force = ((seq, self._supersessions_in_force(seq, supersessions)) for seq, supersessions in stored)
            self._superseded = {seq: found for seq, found in in_force if found}
        return self._superseded

    def unions(self) -> Unions:
        """Return the groups of entity names. The result is cached."""
        if self._unions is None:
            self._unions = Unions(value for _, value in self._scan(keys.JOINED))
        return self._unions

    def publish(self, superseded: dict[int, list[codec.Superseded]], joined: Mapping[str, Sequence[NameJoin]]) -> None:
        """Update cached results by the changes of an event (see `StagedGraphChanges`)."""
        self._has_stated_edges = None
        self._seqs.clear()
        if self._unions is not None:
            self._unions.publish(joined)
        if self._superseded is not None:
            for seq, supersessions in superseded.items():
                self._superseded.pop(seq, None)
                if found := self._supersessions_in_force(seq, supersessions):
                    self._superseded[seq] = found

    def size_bytes(self) -> int:
        unions = self._unions.size_bytes() if self._unions is not None else 0
        return _SUPERSEDED_BYTES * len(self._superseded or ()) + _SEQ_BYTES * len(self._seqs) + unions

    def entities(self) -> Iterator[codec.NodeKey]:
        """Yield every node other than memories, possibly repeatedly, in no particular order."""
        for _, value in self._scan(keys.NODE):
            key = codec.NodeRow.decode(value).key
            if not key.memory:
                yield self._canonical(key)

    def nodes(self) -> Iterator[Node]:
        archived = set()
        for _, value in self._scan(keys.NODE):
            row = codec.NodeRow.decode(value)
            if row.key.memory:
                archived.add(row.key.text)
            if self._canonical(row.key) == row.key and (node := self.node(row.key)) is not None:
                yield node
        for memory_id in self._memory_ids():
            if memory_id not in archived:
                yield memory_node(memory_id)

    def all_edges(self) -> Iterator[Edge]:
        """Yield every edge in no particular order, and symmetric ones in both directions."""
        stated_pairs = set()
        # Edges that may be equal once names are replaced by entities, each with its negative number.
        shared: dict[tuple[codec.NodeKey, codec.NodeKey, str], list[tuple[int, Edge]]] = {}
        for _, value in self._scan(keys.EDGE):
            row = codec.EdgeRow.decode(value)
            directions = [(row.source, row.target)]
            if row.type in codec.SYMMETRIC:
                directions.append((row.target, row.source))
            if row.type == codec.SIMILAR_TO:
                stated_pairs.update(directions)
            edges = [self._entity_edge(edge_of(row, source)) for source, _ in directions]
            yield from (edge for edge in edges if edge is not None and not self._is_shared(edge))
            for edge in edges:
                if edge is not None and self._is_shared(edge):
                    shared.setdefault((edge.source, edge.target, edge.type), []).append((-row.number, edge))
        for equal_edges in shared.values():
            yield _merged([edge for _, edge in sorted(equal_edges, key=lambda one: one[0])])
        for key, value in self._scan(keys.LINKS):
            own = codec.NodeKey(codec.LinksRow.decode(value).id, memory=True)
            for edge in self._similar(own, keys.sequence(key)):
                if (edge.source, edge.target) not in stated_pairs:
                    yield edge

    @property
    def store_id(self) -> bytes:
        """Return four bytes that identify the order of `edges_after`, which differs between state directories."""
        return self._partition.keyring.name(self._owner, "")[:4]

    def edges_after(self, last: bytes) -> Iterator[tuple[bytes, Edge | codec.NodeKey | None, int]]:
        """Yield all stated edges after the stored name `last` (empty: all), in a stable order.

        Each item has the stored name, the edge, and the number of name pairs examined. A symmetric edge is yielded
        once. In place of the edge, an item has the entity if both ends are names of one entity, or None if the edge
        did not exist at the time of the graph, or is yielded under another name."""
        for name in self._edge_names(last):
            yield name, *self._examined_edge(name)

    def similar(self, seq: int) -> list[Edge]:
        """Return a memory's similarity edges, without stated ones."""
        links = self.links(seq)
        if not links:
            return []
        key, _ = links[0]
        return [edge for edge in self._similar(key, seq) if not self._is_stated(edge)]

    def _edge_names(self, last: bytes) -> Iterator[bytes]:
        return self._names_after(keys.EDGE, last)

    def _names_after(self, table: bytes, last: bytes) -> Iterator[bytes]:
        """Yield the edge names after `last` in a table's keys, once per record."""
        prefix = keys.table(self._owner, table)
        first = keys.after(prefix + last) if last else prefix
        stored = self._partition.scan_range(first, keys.after(prefix))
        return (key[len(prefix) :][: keys.NAME_BYTES] for key, _ in stored)

    def _stored_edge(self, name: bytes) -> tuple[int, Edge] | None:
        """Return the number and the edge of a stored name, or None."""
        row = self._partition.read(keys.edge(self._owner, name), codec.EdgeRow.decode)
        return None if row is None else (row.number, edge_of(row, row.source))

    def _examined_edge(self, name: bytes) -> tuple[Edge | codec.NodeKey | None, int]:
        """Return the second and third part of an item of `edges_after`. Several stored edges between the same entities
        are returned as one, under the lowest of their names."""
        found = self._stored_edge(name)
        if found is None:
            return None, 1
        edge = self._entity_edge(found[1])
        if edge is None:
            return self._canonical(found[1].source), 1
        if not self._is_shared(edge):
            return edge, 1
        ends = [edge[:2], edge[1::-1]] if edge.type in codec.SYMMETRIC else [edge[:2]]
        unions = self.unions()
        pairs = [(one, other) for a, b in ends for one in unions.names(a) for other in unions.names(b)]
        names = {self._name_between(*pair, edge.type) for pair in pairs}
        equal_edges = {one: numbered for one in names if (numbered := self._stored_edge(one)) is not None}
        if name != min(equal_edges):
            return None, len(pairs)
        newest_first = sorted(equal_edges.values(), key=lambda numbered: -numbered[0])
        merged = _merged([one for _, one in newest_first])
        return merged._replace(source=edge.source, target=edge.target), len(pairs)

    def _is_stated(self, edge: Edge) -> bool:
        """Return whether a derived edge is also stated, in either direction."""
        ends = ((edge.source, edge.target), (edge.target, edge.source))
        return any(self._stored_edge(self._name_between(*pair, edge.type)) is not None for pair in ends)

    def _name_between(self, source: codec.NodeKey, target: codec.NodeKey, kind: str) -> bytes:
        return self._partition.keyring.edge(self._owner, self.name(source), self.name(target), kind)

    def _supersessions_in_force(self, _seq: int, supersessions: Iterable[codec.Superseded]) -> list[codec.Superseded]:
        """Return the current supersessions of a memory. Subclasses return those of another time."""
        return [one for one in supersessions if one.until_ms is None]

    def name(self, key: codec.NodeKey) -> bytes:
        keyring = self._partition.keyring
        return keyring.name(self._owner, key.text) if key.memory else keyring.node(self._owner, key.text)

    def _row(self, key: codec.NodeKey) -> codec.NodeRow | None:
        return self._partition.read(keys.node(self._owner, self.name(key)), codec.NodeRow.decode)

    def _visible_row(self, key: codec.NodeKey) -> codec.NodeRow | None:
        """Return the record of a node, reduced to what the reader may see. Subclasses override it."""
        return self._row(key)

    def _seq(self, key: codec.NodeKey) -> int | None:
        if key.text not in self._seqs:
            if len(self._seqs) == _MAX_CACHED_SEQS:
                self._seqs.clear()
            current = self._partition.read(keys.current(self._owner, self.name(key)), MemoryHead.decode)
            self._seqs[key.text] = None if current is None or current.forgotten else current.seq
        return self._seqs[key.text]

    def _explicit_edges(self, key: codec.NodeKey, limit: int) -> list[Edge]:
        if not self.has_stated_edges():
            return []
        listed: list[tuple[int, bytes, codec.NodeKey]] = []
        for own in self._name_keys(key):
            scanned = self._partition.scan(keys.adjacency_of(self._owner, self.name(own)))
            # Read more, because edges that join the names are not edges of the entity.
            found = islice(scanned, limit if own.memory else limit + self.unions().join_count(own))
            listed += [(-keys.reversed_sequence(stored), name, own) for stored, name in found]
        listed.sort()
        rows = self._partition.get_many([keys.edge(self._owner, name) for _, name, _ in listed])
        edges = [edge_of(codec.EdgeRow.decode(row), own) for row, (_, _, own) in zip(rows, listed, strict=True) if row]
        if self._unions is not None and not self._unions:
            return edges
        merged = self._between_entities(edges)
        # Equal edges are merged only if the owner has joined names, which are read only if there are equal edges.
        return merged[:limit] if len(merged) == len(edges) or self.unions() else edges

    def _between_entities(self, edges: Iterable[Edge]) -> list[Edge]:
        """Replace the ends of edges by their entities, and merge equal edges."""
        shared: dict[tuple[codec.NodeKey, codec.NodeKey, str], list[Edge]] = {}
        for edge in map(self._entity_edge, edges):
            if edge is not None:
                shared.setdefault((edge.source, edge.target, edge.type), []).append(edge)
        return [_merged(equal_edges) for equal_edges in shared.values()]

    def _name_keys(self, key: codec.NodeKey) -> tuple[codec.NodeKey, ...]:
        """Return the key of each name of a node's entity, the main one first. For a memory, unions are not read."""
        return (key,) if key.memory else self.unions().names(key)

    def _canonical(self, key: codec.NodeKey) -> codec.NodeKey:
        """Return the main key of a node: for an entity with several names, that of the main name."""
        return self._name_keys(key)[0]

    def _entity_edge(self, edge: Edge) -> Edge | None:
        """Return an edge with the entities of its ends, or None if both ends are the same entity."""
        source, target = self._canonical(edge.source), self._canonical(edge.target)
        if source == target:
            return None
        return edge if (source, target) == edge[:2] else edge._replace(source=source, target=target)

    def _is_shared(self, edge: Edge) -> bool:
        """Return whether an end has several names, so that several stored edges may be equal."""
        return any(len(self.unions().names(end)) > 1 for end in edge[:2])

    def _similar(self, key: codec.NodeKey, seq: int | None) -> list[Edge]:
        found = None if seq is None else self._partition.read(keys.similar(self._owner, seq), codec.decode_neighbours)
        return [similar_edge(key, neighbour) for neighbour in found or ()]

    def _memory_ids(self) -> Iterator[str]:
        """Yield the ids of the current memories. The graph records of an unsynced memory may be missing or outdated."""
        unsynced = {keys.sequence(key): codec.Unsynced.decode(value).id for key, value in self._scan(keys.UNSYNCED)}
        for key, value in self._scan(keys.LINKS):
            if keys.sequence(key) not in unsynced:
                yield codec.LinksRow.decode(value).id
        for memory_id in unsynced.values():
            if self._seq(codec.NodeKey(memory_id, memory=True)) is not None:
                yield memory_id

    def _scan(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._partition.scan(keys.table(self._owner, table))


def _node(rows: Sequence[codec.NodeRow]) -> Node:
    """Return the node of an entity from the records of its names, the main one first. Descriptions are combined."""
    first = rows[0]
    properties = {field: value for row in reversed(rows) for field, value in (row.properties or {}).items()}
    if len(rows) > 1 and first.urn != first.name:
        properties.pop("name", None)  # only the URN's node has this property; the entity has its own name
    urns = (row.urn for row in rows if row.urn is not None)
    aliases = tuple(row.name for row in rows[1:] if row.urn != row.name)
    archived = any(row.archived for row in rows)
    return Node(first.key, first.kind, first.name, next(urns, None), archived, properties, aliases)


def _merged(edges: Sequence[Edge]) -> Edge:
    """Merge equal edges, newest first: return the strongest of those with the latest expiry, with all evidence."""
    if len(edges) == 1:
        return edges[0]
    best = min(edges, key=lambda one: (one.archived, -(one.expires_ms or math.inf), -one.weight * one.confidence))
    evidence = dict.fromkeys(memory_id for edge in edges for memory_id in edge.evidence)
    return best._replace(evidence=[*evidence], ingested_ms=min(edge.ingested_ms for edge in edges))


def memory_node(memory_id: str) -> Node:
    return Node(codec.NodeKey(memory_id, memory=True), codec.MEMORY_KIND, memory_id, None, False, {})


def edge_of(row: codec.EdgeRow, end: codec.NodeKey) -> Edge:
    """Return the edge of a record as one of its ends lists it: a symmetric edge starts at this end."""
    source, target = row.source, row.target
    if row.type in codec.SYMMETRIC and end == target:
        source, target = target, source
    given = row.given
    stated = [statement.properties or {} for statement in row.statements] + ([given.properties] if given else [])
    return Edge(
        source=source,
        target=target,
        type=row.type,
        weight=row.current.weight,
        confidence=row.current.confidence,
        evidence=list(dict.fromkeys(statement.memory_id for statement in row.statements)),
        expires_ms=given.expires_ms if given else None,
        archived=row.is_archived,
        ingested_ms=row.ingested_ms,
        properties={name: value for properties in stated for name, value in properties.items()},
        valid_from_ms=row.current.valid_from_ms,
        valid_to_ms=row.current.valid_to_ms,
        stated_ms=row.stated_ms,
    )


def similar_edge(source: codec.NodeKey, neighbour: codec.StoredNeighbour) -> Edge:
    target = codec.NodeKey(neighbour.id, memory=True)
    return Edge(
        source, target, codec.SIMILAR_TO, neighbour.weight, 1.0, [], None, neighbour.archived, neighbour.ingested_ms, {}
    )
