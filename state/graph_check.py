"""The check of an owner's graph: records must match their keys, and references must exist in both directions."""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from recallflow.state import entity_names, keys
from recallflow.state import graph_codec as codec
from recallflow.state.encryption import Keyring


class CheckedTable(NamedTuple):
    name: str
    rest_bytes: int  # the length of a key after the table's letter
    decode_rest: Callable[[bytes], Any] = bytes  # of that part of a key
    decode: Callable[[bytes], Any] = bytes  # of a value


def _node_and_number(rest: bytes) -> tuple[bytes, int]:
    return rest[:16], keys.reversed_sequence(rest)


_PAST_NEIGHBOUR = struct.Struct(">QQQ")  # `seq` of a memory and of its former neighbour, and the change
TABLES = {
    keys.NODE: CheckedTable("graph nodes", 16, bytes, codec.NodeRow.decode),
    keys.MEMBER: CheckedTable("graph members", 24, _node_and_number, lambda value: codec.decode_member(value)[0]),
    keys.LINKS: CheckedTable("graph links", 8, keys.sequence, codec.LinksRow.decode),
    keys.EDGE: CheckedTable("graph edges", 16, bytes, codec.EdgeRow.decode),
    keys.ADJACENCY: CheckedTable("adjacency", 24, _node_and_number),
    keys.SIMILAR: CheckedTable("similar memories", 8, keys.sequence, codec.decode_neighbours),
    keys.SUPERSEDED: CheckedTable("superseded memories", 8, keys.sequence, codec.decode_superseded),
    keys.JOINED: CheckedTable("names joined", 16, bytes, entity_names.decode_joins),
    keys.CASELESS: CheckedTable("names without case", 0, bytes, orjson.loads),
    keys.UNSYNCED: CheckedTable("memories out of step", 8, keys.sequence, codec.Unsynced.decode),
    keys.PAST_LINKS: CheckedTable("past graph links", 12, keys.seq_and_version, codec.LinksRow.decode),
    keys.PAST_MEMBER: CheckedTable("past graph members", 24, _node_and_number),
    keys.PAST_EDGE: CheckedTable("past graph edges", 33, bytes, orjson.loads),
    keys.PAST_ADJACENCY: CheckedTable("past adjacency", 24, _node_and_number),
    keys.PAST_SIMILAR: CheckedTable("past similar memories", 24, _PAST_NEIGHBOUR.unpack),
    keys.PAST_NODE: CheckedTable("past graph nodes", 24, bytes, orjson.loads),
    keys.PAST_JOINED: CheckedTable("names once joined", 24, lambda key: (key[:16], keys.sequence(key))),
}


class GraphCheck:
    """The check of one owner's graph. `add` decodes each record, and `problems` compares them."""

    def __init__(self, keyring: Keyring, owner: bytes) -> None:
        self._keyring = keyring
        self._owner = owner
        self._records: dict[bytes, dict[Any, Any]] = {table: {} for table in TABLES}  # by table and decoded key
        self._nodes: dict[bytes, codec.NodeRow] = self._records[keys.NODE]
        self._members: dict[tuple[bytes, int], str] = self._records[keys.MEMBER]
        self._links: dict[int, codec.LinksRow] = self._records[keys.LINKS]
        self._edges: dict[bytes, codec.EdgeRow] = self._records[keys.EDGE]
        self._adjacent: dict[tuple[bytes, int], bytes] = self._records[keys.ADJACENCY]
        self._similar: dict[int, list[codec.StoredNeighbour]] = self._records[keys.SIMILAR]
        self._unsynced: dict[int, codec.Unsynced] = self._records[keys.UNSYNCED]
        self._past_ends: set[tuple[bytes, int]] = set()  # ends and numbers of deleted edges

    def add(self, table: bytes, rest: bytes, value: bytes) -> None:
        """Decode and keep a record. `rest` is its key after the table's letter."""
        decoded = self._records[table][TABLES[table].decode_rest(rest)] = TABLES[table].decode(value)
        if table == keys.PAST_EDGE and keys.edge_part(rest)[0] == codec.LIFE:
            life = codec.Life.of(decoded[1])
            self._past_ends |= {(self._name(end), life.number) for end in (life.source, life.target)}

    @property
    def edges(self) -> int:
        return len(self._edges)

    def problems(self, memories: Mapping[int, bytes]) -> Iterator[str]:
        """Yield all inconsistencies. `memories` are the names of current memories by `seq`. An unsynced memory may lack
        any records, or have records although it is deleted."""
        names = {seq: self._keyring.name(self._owner, marker.id) for seq, marker in self._unsynced.items()}
        self._memories = {**names, **memories}
        self._ends = {*self._memories.values(), *self._nodes}
        checks = (self._of_links, self._of_nodes, self._of_edges, self._of_similar, self._of_superseded,
                  self._of_joined, self._of_past, self._of_caseless)  # fmt: skip
        for check in checks:
            yield from check()

    def _of_links(self) -> Iterator[str]:
        linked = {
            (self._name(codec.NodeKey(key)), seq): role
            for seq, row in self._links.items()
            for key, role in row.links.items()
        }
        for node, seq in sorted({ends for ends, _ in linked.items() ^ self._members.items()}):
            yield f"node {node.hex()} and memory {seq}: their records of a link differ"
        for seq in sorted(self._links.keys() - self._memories.keys()):
            yield f"links of memory {seq}: the memory does not exist"
        for seq in sorted(self._memories.keys() - self._links.keys() - self._unsynced.keys()):
            yield f"memory {seq}: it is not in the graph"

    def _of_nodes(self) -> Iterator[str]:
        connected = {node for node, _ in (*self._members, *self._adjacent)}
        memories = {*self._memories.values()}
        for name, row in self._nodes.items():
            if self._name(row.key) != name:
                yield f"node {name.hex()}: its content does not match its key"
            if name not in (memories if row.key.memory else connected):
                yield f"node {name.hex()}: it has no links and no edges"
            if row.described_by is not None and (name, row.described_by) not in self._members:
                yield f"node {name.hex()}: it is described by memory {row.described_by}, which is not linked to it"
        for name in sorted({node for node, _ in self._members} - self._nodes.keys()):
            yield f"links to node {name.hex()}: the node is missing"

    def _of_edges(self) -> Iterator[str]:
        ends = {
            (self._name(end), row.number): name for name, row in self._edges.items() for end in (row.source, row.target)
        }
        for node, number in sorted({end for end, _ in ends.items() ^ self._adjacent.items()}):
            yield f"node {node.hex()}: its adjacency list differs from edge number {number}"
        for name, row in self._edges.items():
            source, target = self._name(row.source), self._name(row.target)
            if self._keyring.edge(self._owner, source, target, row.type) != name:
                yield f"edge {name.hex()}: its content does not match its key"
            if not {source, target} <= self._ends:
                yield f"edge {name.hex()}: an end does not exist"
            if row.given is None and not row.statements:
                yield f"edge {name.hex()}: it has no statement"
            for statement in row.statements:
                links = self._links.get(statement.seq)
                if links is None or name.hex() not in (links.relations if statement.relation else links.evidence):
                    yield f"edge {name.hex()}: the links of memory {statement.seq} lack it as evidence"

    def _of_similar(self) -> Iterator[str]:
        pairs = {(seq, one.seq): (one.weight, one.archived) for seq, found in self._similar.items() for one in found}
        for seq, other in sorted(pairs):
            if pairs.get((other, seq)) != pairs[seq, other] or seq == other:
                yield f"memories {seq} and {other}: their similarity is stored at one of them only"
            if seq not in self._memories:
                yield f"similar memories of {seq}: the memory does not exist"
        for seq, found in self._similar.items():
            if found != sorted(found, key=lambda one: (-one.weight, -one.seq)):
                yield f"similar memories of {seq}: they are not in order"

    def _of_superseded(self) -> Iterator[str]:
        in_force = {(self._name(row.target), row.source.text) for row in self._edges.values() if row.hides_target}
        stored = {
            (self._memories.get(seq, b""), one.by)
            for seq, found in self._records[keys.SUPERSEDED].items()
            for one in found
            if one.until_ms is None
        }
        for name, _ in sorted(in_force ^ stored):
            yield f"memory {name.hex()}: its supersessions differ from those of its edges"

    def _of_joined(self) -> Iterator[str]:
        """Yield inconsistencies of joined names. An edge beyond `JOINED_NAMES_MAX` has no such records."""
        edges = {(row.source.text, row.target.text, row.number) for row in self._edges.values() if row.joins_entities}
        records: dict[bytes, tuple[str, list[entity_names.NameJoin]]] = self._records[keys.JOINED]
        joins_of = dict(records.values())
        for name, (own, joins) in records.items():
            if self._name(codec.NodeKey(own)) != name:
                yield f"names joined to {name.hex()}: the content does not match the key"
            for join in joins:
                ends = (own, join.other) if join.leads else (join.other, own)
                if (*ends, join.number) not in edges:
                    yield f"names joined to {name.hex()}: edge number {join.number} does not exist"
                if entity_names.NameJoin(own, join.number, not join.leads) not in joins_of.get(join.other, []):
                    yield f"names joined to {name.hex()}: edge number {join.number} is stored at one end only"
            if len(entity_names.names_of(own, lambda key: joins_of.get(key, []))) > entity_names.JOINED_NAMES_MAX:
                yield f"names joined to {name.hex()}: more than {entity_names.JOINED_NAMES_MAX}"

    def _of_past(self) -> Iterator[str]:
        links: dict[tuple[int, int], codec.LinksRow] = self._records[keys.PAST_LINKS]
        members, neighbours = self._records[keys.PAST_MEMBER].keys(), self._records[keys.PAST_SIMILAR].keys()
        seqs = {seq for seq, _ in links} | {seq for _, seq in members} | {seq for seq, _, _ in neighbours}
        for seq in sorted(seqs - self._memories.keys()):
            yield f"past records of memory {seq}: the memory does not exist"
        linked = {(self._name(codec.NodeKey(key)), seq) for (seq, _), row in links.items() for key in row.links}
        for node, seq in sorted(members - linked):
            yield f"node {node.hex()} and memory {seq}: their records of a past link differ"
        for seq, other, change in sorted(neighbours):
            if (other, seq, change) not in neighbours:
                yield f"memories {seq} and {other}: their past similarity is stored at one of them only"
        for node, number in sorted(self._past_ends ^ self._records[keys.PAST_ADJACENCY].keys()):
            yield f"node {node.hex()}: its past adjacency list differs from past edge number {number}"
        for node, number in sorted(self._records[keys.PAST_JOINED].keys() - self._past_ends - self._adjacent.keys()):
            yield f"node {node.hex()}: the record of edge number {number}, which joined its name to another, is missing"

    def _of_caseless(self) -> Iterator[str]:
        names: list[str] = self._records[keys.CASELESS].get(b"", [])
        for name in names:
            if self._name(codec.NodeKey(codec.node_key(codec.ENTITY_KIND, name))) not in self._nodes:
                yield "names without case: a name has no node"
        if len({*names}) < len(names) or len(names) > entity_names.CASELESS_NAMES_MAX:
            yield "names without case: they repeat, or are too many"

    def _name(self, key: codec.NodeKey) -> bytes:
        named = self._keyring.name if key.memory else self._keyring.node
        return named(self._owner, key.text)
