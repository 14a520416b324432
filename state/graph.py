"""One owner's memory graph, as it is stored: nodes, typed edges, and links from memories to nodes.

A node's key is a `NodeKey`: `NodeKey("m1", memory=True)` for the memory `m1`, `NodeKey("tag:tea")` for what memories
have in common. A memory whose id is `tag:tea` is another node than the tag: keys compare, hash and are stored apart.

A memory needs no record to be a node: it is one as long as it is remembered. An edge of a symmetric type (`similar_to`,
`contradicts`) holds in both directions: each of its ends lists it as leaving that end, and `all_edges` has it twice.

What is written here comes from `operators/graph/write.py`. Readers see what is committed; a query commits first. Where
a memory's graph could not be written it has no links until the next event of its owner (see docs/graph.md).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from recallflow.state import keys
from recallflow.state.graph_codec import (
    ENTITY_KIND,
    MEMORY_KIND,
    SELF_ROLE,
    SIMILAR_TO,
    SYMMETRIC,
    EdgeRow,
    LinksRow,
    Neighbour,
    NodeKey,
    NodeRow,
    Superseded,
    Unsynced,
    decode_neighbours,
    decode_superseded,
    node_key,
    nodes_called,
)
from recallflow.state.partition import Partition
from recallflow.state.rows import Current

_SUPERSEDED_BYTES = 400
_SEQ_BYTES = 150
_SEQS_MOST = 10_000


class Node(NamedTuple):
    """A node. `kind`: memory, type, tag, category, topic, repo, entity, episode or condition. Traversal passes over an
    archived one."""

    key: NodeKey
    kind: str
    name: str
    urn: str | None
    archived: bool
    properties: dict[str, Any]


class Edge(NamedTuple):
    """A typed edge. `evidence`: ids of the memories that state it. `ingested_ms`: when it was first stated. Whether it
    has expired is a question of the asking time."""

    source: NodeKey
    target: NodeKey
    type: str
    weight: float
    confidence: float
    evidence: list[str]
    expires_ms: int | None
    archived: bool
    ingested_ms: int
    properties: dict[str, Any]


class OwnerGraph:
    """One owner's graph. Orders do not depend on the state directory: equal logs give equal lists, cut or whole."""

    def __init__(self, partition: Partition, owner: bytes) -> None:
        self._partition = partition
        self._owner = owner
        self._superseded: dict[int, list[Superseded]] | None = None
        self._has_stated: bool | None = None
        self._seqs: dict[str, int | None] = {}

    # ------------------------------------------------------------------ nodes

    def node(self, key: NodeKey) -> Node | None:
        """The node, or None where there is none (any more)."""
        row = self._row(key)
        if row is not None:
            return _node(row)
        return _memory_node(key.text) if key.memory and self._seq(key) is not None else None

    def is_archived(self, key: NodeKey) -> bool:
        """Whether traversal is to pass over the node."""
        row = self._row(key)
        return row is not None and row.archived

    def find(self, text: str) -> NodeKey | None:
        """What of what is there a text names: a memory or a node; None where it names neither."""
        return next((key for key in nodes_called(text) if self.node(key) is not None), None)

    def by_urn(self, urn: str) -> list[NodeKey]:
        """The nodes that stand for a URN: its own, and that of the name that was given with it."""
        node = self.node(NodeKey(node_key(ENTITY_KIND, urn)))
        if node is None:
            return []
        named = NodeKey(node_key(ENTITY_KIND, node.properties.get("name", urn)))
        return [node.key] if named == node.key or self.node(named) is None else [node.key, named]

    def members(self, key: NodeKey, limit: int) -> list[int]:
        """The `seq` of memories linked to the node, newest first; of a memory, its own."""
        if key.memory:
            seq = self._seq(key)
            return [] if seq is None else [seq][:limit]
        found = self._partition.first_keys(keys.members(self._owner, self.name(key)), limit)
        return [keys.reversed_sequence(stored) for stored in found]

    def links(self, seq: int) -> list[tuple[NodeKey, str]]:
        """Node and role of each link of a memory, itself first; none where it is not in the graph."""
        stored = self._partition.get(keys.links(self._owner, seq))
        if stored is None:
            return []
        row = LinksRow.decode(stored)
        own = (NodeKey(row.id, memory=True), SELF_ROLE)
        return [own, *((NodeKey(text), role) for text, role in row.links.items())]

    # ------------------------------------------------------------------ edges

    def edges(self, key: NodeKey, limit: int) -> list[Edge]:
        """Edges out of the node and into it: similar memories, the closest first, then all others, the newest first."""
        stated = self._stated(key, limit)
        pairs = {(edge.source, edge.target) for edge in stated if edge.type == SIMILAR_TO}
        seq = self._seq(key) if key.memory else None
        similar = [edge for edge in self._similar(key, seq) if (edge.source, edge.target) not in pairs]
        return [*similar, *stated][:limit]

    def has_stated(self) -> bool:
        """Whether there is any edge beside those between similar memories. Kept between calls."""
        if self._has_stated is None:
            self._has_stated = next(self._scan(keys.EDGE), None) is not None
        return self._has_stated

    def superseded(self) -> dict[int, list[Superseded]]:
        """`seq` of each superseded memory → by which memories. Kept between calls; not to be changed."""
        if self._superseded is None:
            self._superseded = {
                keys.sequence(key): decode_superseded(value) for key, value in self._scan(keys.SUPERSEDED)
            }
        return self._superseded

    def publish(self, superseded: dict[int, list[Superseded]]) -> None:
        """Takes in what an event changed; an empty list means that nothing supersedes the memory now."""
        self._has_stated = None
        self._seqs.clear()
        if self._superseded is not None:
            for seq, by in superseded.items():
                self._superseded.pop(seq, None)
                if by:
                    self._superseded[seq] = by

    def size_bytes(self) -> int:
        """What is kept between calls."""
        return _SUPERSEDED_BYTES * len(self._superseded or ()) + _SEQ_BYTES * len(self._seqs)

    # ------------------------------------------------------------------ everything

    def nodes(self) -> Iterator[Node]:
        """Every node, in no particular order."""
        archived = set()
        for _, value in self._scan(keys.NODE):
            row = NodeRow.decode(value)
            if row.key.memory:
                archived.add(row.key.text)
            yield _node(row)
        for memory_id in self._memory_ids():
            if memory_id not in archived:
                yield _memory_node(memory_id)

    def all_edges(self) -> Iterator[Edge]:
        """Every edge, in no particular order; one of a symmetric type in both directions."""
        pairs = set()
        for _, value in self._scan(keys.EDGE):
            row = EdgeRow.decode(value)
            directions = [(row.source, row.target)]
            if row.type in SYMMETRIC:
                directions.append((row.target, row.source))
            if row.type == SIMILAR_TO:
                pairs.update(directions)
            yield from (_edge(row, source) for source, _ in directions)
        for key, value in self._scan(keys.LINKS):
            own = NodeKey(LinksRow.decode(value).id, memory=True)
            for edge in self._similar(own, keys.sequence(key)):
                if (edge.source, edge.target) not in pairs:
                    yield edge

    # ------------------------------------------------------------------ parts

    def name(self, key: NodeKey) -> bytes:
        """What stands for the node in stored keys."""
        keyring = self._partition.keyring
        return keyring.name(self._owner, key.text) if key.memory else keyring.node(self._owner, key.text)

    def _row(self, key: NodeKey) -> NodeRow | None:
        stored = self._partition.get(keys.node(self._owner, self.name(key)))
        return None if stored is None else NodeRow.decode(stored)

    def _seq(self, key: NodeKey) -> int | None:
        """The sequence number of a remembered memory. Kept between calls."""
        if key.text not in self._seqs:
            if len(self._seqs) == _SEQS_MOST:
                self._seqs.clear()
            stored = self._partition.get(keys.current(self._owner, self.name(key)))
            current = None if stored is None else Current.decode(stored)
            self._seqs[key.text] = None if current is None or current.forgotten else current.seq
        return self._seqs[key.text]

    def _stated(self, key: NodeKey, limit: int) -> list[Edge]:
        if not self.has_stated():
            return []
        found = islice(self._partition.scan(keys.adjacency_of(self._owner, self.name(key))), limit)
        stored = self._partition.get_many([keys.edge(self._owner, name) for _, name in found])
        return [_edge(EdgeRow.decode(value), key) for value in stored if value is not None]

    def _similar(self, key: NodeKey, seq: int | None) -> list[Edge]:
        stored = None if seq is None else self._partition.get(keys.similar(self._owner, seq))
        return [_similar_edge(key, neighbour) for neighbour in decode_neighbours(stored)] if stored else []

    def _memory_ids(self) -> Iterator[str]:
        """Ids of the remembered memories; what is stored of one that is out of step may be missing, or too much."""
        unsynced = {keys.sequence(key): Unsynced.decode(value).id for key, value in self._scan(keys.UNSYNCED)}
        for key, value in self._scan(keys.LINKS):
            if keys.sequence(key) not in unsynced:
                yield LinksRow.decode(value).id
        for memory_id in unsynced.values():
            if self._seq(NodeKey(memory_id, memory=True)) is not None:
                yield memory_id

    def _scan(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._partition.scan(keys.table(self._owner, table))


def _node(row: NodeRow) -> Node:
    return Node(row.key, row.kind, row.name, row.urn, row.archived, row.properties or {})


def _memory_node(memory_id: str) -> Node:
    return Node(NodeKey(memory_id, memory=True), MEMORY_KIND, memory_id, None, False, {})


def _edge(row: EdgeRow, seen_from: NodeKey) -> Edge:
    """The edge as one of its ends lists it."""
    source, target = row.source, row.target
    if row.type in SYMMETRIC and seen_from == target:
        source, target = target, source
    given = row.given
    stated = [statement.properties or {} for statement in row.statements] + ([given.properties] if given else [])
    return Edge(
        source=source,
        target=target,
        type=row.type,
        weight=row.word.weight,
        confidence=row.word.confidence,
        evidence=list(dict.fromkeys(statement.memory_id for statement in row.statements)),
        expires_ms=given.expires_ms if given else None,
        archived=row.is_archived,
        ingested_ms=row.ingested_ms,
        properties={name: value for properties in stated for name, value in properties.items()},
    )


def _similar_edge(source: NodeKey, neighbour: Neighbour) -> Edge:
    target = NodeKey(neighbour.id, memory=True)
    return Edge(
        source, target, SIMILAR_TO, neighbour.weight, 1.0, [], None, neighbour.archived, neighbour.ingested_ms, {}
    )
