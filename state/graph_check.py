"""The check that an owner's graph hangs together: no edge dangles, no node is left over, both ends list the same."""

from collections.abc import Iterator, Mapping

import orjson

from recallflow.state import graph_codec as codec
from recallflow.state import keys
from recallflow.state.encryption import Keyring
from recallflow.state.entity_names import (
    CASELESS_NAMES_MAX,
    JOINED_NAMES_MAX,
    NameJoin,
    decode_joined,
    decode_names,
    names_of,
)

# What each table is called, and the bytes of its keys behind the table's letter.
TABLES = {
    keys.NODE: ("graph nodes", 16),
    keys.MEMBER: ("graph members", 24),
    keys.LINKS: ("graph links", 8),
    keys.EDGE: ("graph edges", 16),
    keys.ADJACENCY: ("adjacency", 24),
    keys.SIMILAR: ("similar memories", 8),
    keys.SUPERSEDED: ("superseded memories", 8),
    keys.JOINED: ("names joined", 16),
    keys.CASELESS: ("names without case", 0),
    keys.UNSYNCED: ("memories out of step", 8),
    keys.PAST_LINKS: ("past graph links", 12),
    keys.PAST_MEMBER: ("past graph members", 24),
    keys.PAST_EDGE: ("past graph edges", 33),
    keys.PAST_ADJACENCY: ("past adjacency", 24),
    keys.PAST_SIMILAR: ("past similar memories", 24),
    keys.PAST_NODE: ("past graph nodes", 24),
    keys.PAST_JOINED: ("names once joined", 24),
}


class GraphCheck:
    """The check of one owner's graph: each record is decoded in order, and references are compared at the end."""

    def __init__(self, keyring: Keyring, owner: bytes) -> None:
        self._keyring = keyring
        self._owner = owner
        self._nodes: dict[bytes, codec.NodeRow] = {}
        self._members: dict[tuple[bytes, int], str] = {}
        self._links: dict[int, codec.LinksRow] = {}
        self._edges: dict[bytes, codec.EdgeRow] = {}
        self._adjacent: dict[tuple[bytes, int], bytes] = {}
        self._similar: dict[int, list[codec.StoredNeighbour]] = {}
        self._superseded: dict[int, list[codec.Superseded]] = {}
        self._unsynced: dict[int, codec.Unsynced] = {}
        self._joined: dict[bytes, tuple[str, list[NameJoin]]] = {}
        self._past: dict[int, list[codec.LinksRow]] = {}  # what replaced versions brought in
        self._past_members: set[tuple[bytes, int]] = set()
        self._past_neighbours: set[tuple[int, int, int]] = set()
        self._lives: set[tuple[bytes, int]] = set()
        self._past_adjacent: set[tuple[bytes, int]] = set()
        self._past_joined: set[tuple[bytes, int]] = set()
        self._caseless: list[str] = []

    def add(self, table: bytes, rest: bytes, value: bytes) -> None:
        match table:
            case keys.NODE:
                self._nodes[rest] = codec.NodeRow.decode(value)
            case keys.MEMBER:
                self._members[rest[:16], keys.reversed_sequence(rest)], _ = codec.decode_member(value)
            case keys.LINKS:
                self._links[keys.sequence(rest)] = codec.LinksRow.decode(value)
            case keys.EDGE:
                self._edges[rest] = codec.EdgeRow.decode(value)
            case keys.ADJACENCY:
                self._adjacent[rest[:16], keys.reversed_sequence(rest)] = value
            case keys.SIMILAR:
                self._similar[keys.sequence(rest)] = codec.decode_neighbours(value)
            case keys.SUPERSEDED:
                self._superseded[keys.sequence(rest)] = codec.decode_superseded(value)
            case keys.JOINED:
                self._joined[rest] = decode_joined(value)
            case keys.CASELESS:
                self._caseless = decode_names(value)
            case keys.UNSYNCED:
                self._unsynced[keys.sequence(rest)] = codec.Unsynced.decode(value)
            case _:
                self._add_past(table, rest, value)

    def _add_past(self, table: bytes, rest: bytes, value: bytes) -> None:
        match table:
            case keys.PAST_LINKS:
                self._past.setdefault(keys.sequence(rest[:8]), []).append(codec.LinksRow.decode(value))
            case keys.PAST_MEMBER:
                self._past_members.add((rest[:16], keys.reversed_sequence(rest)))
            case keys.PAST_SIMILAR:
                seq, other, change = (keys.sequence(rest[at : at + 8]) for at in (0, 8, 16))
                self._past_neighbours.add((seq, other, change))
            case keys.PAST_ADJACENCY:
                self._past_adjacent.add((rest[:16], keys.reversed_sequence(rest)))
            case keys.PAST_JOINED:
                self._past_joined.add((rest[:16], keys.sequence(rest)))
            case keys.PAST_EDGE if keys.edge_part(rest)[0] == codec.LIFE:
                life = codec.Life.of(orjson.loads(value)[1])
                self._lives |= {(self._name(end), life.number) for end in (life.source, life.target)}
            case _:
                orjson.loads(value)

    @property
    def edges(self) -> int:
        return len(self._edges)

    def problems(self, remembered: Mapping[int, bytes]) -> Iterator[str]:
        """Yield all inconsistencies. `remembered` maps places to names of current memories. An unsynced memory may lack
        anything; remains of a memory forgotten while unsynced count as remembered."""
        names = {seq: self._keyring.name(self._owner, marker.id) for seq, marker in self._unsynced.items()}
        self._memories = {**names, **remembered}
        self._ends = {*self._memories.values(), *self._nodes}
        yield from self._of_links()
        yield from self._of_nodes()
        yield from self._of_edges()
        yield from self._of_similar()
        yield from self._of_superseded()
        yield from self._of_joined()
        yield from self._of_past()
        yield from self._of_caseless()

    def _of_links(self) -> Iterator[str]:
        linked = {
            (self._name(codec.NodeKey(key)), seq): role
            for seq, row in self._links.items()
            for key, role in row.links.items()
        }
        for node, seq in sorted({place for place, _ in linked.items() ^ self._members.items()}):
            yield f"node {node.hex()} and memory {seq}: do not say the same of their link"
        for seq in sorted(self._links.keys() - self._memories.keys()):
            yield f"links of memory {seq}: it is not remembered"
        for seq in sorted(self._memories.keys() - self._links.keys() - self._unsynced.keys()):
            yield f"memory {seq}: is not in the graph"

    def _of_nodes(self) -> Iterator[str]:
        led_to = {node for node, _ in (*self._members, *self._adjacent)}
        memories = {*self._memories.values()}
        for name, row in self._nodes.items():
            if self._name(row.key) != name:
                yield f"node {name.hex()}: says it is another"
            if name not in (memories if row.key.memory else led_to):
                yield f"node {name.hex()}: nothing leads to it"
            if row.described_by is not None and (name, row.described_by) not in self._members:
                yield f"node {name.hex()}: is described by memory {row.described_by}, which is not linked to it"
        for name in sorted({node for node, _ in self._members} - self._nodes.keys()):
            yield f"links to node {name.hex()}: it is missing"

    def _of_edges(self) -> Iterator[str]:
        ends = {
            (self._name(end), row.number): name for name, row in self._edges.items() for end in (row.source, row.target)
        }
        for node, number in sorted({place for place, _ in ends.items() ^ self._adjacent.items()}):
            yield f"node {node.hex()}: does not agree with edge number {number} that it is an end of it"
        for name, row in self._edges.items():
            source, target = self._name(row.source), self._name(row.target)
            if self._keyring.edge(self._owner, source, target, row.type) != name:
                yield f"edge {name.hex()}: says it is another"
            if not {source, target} <= self._ends:
                yield f"edge {name.hex()}: leads to nothing"
            if row.given is None and not row.statements:
                yield f"edge {name.hex()}: nothing states it"
            yield from self._of_evidence(name, row)

    def _of_evidence(self, name: bytes, row: codec.EdgeRow) -> Iterator[str]:
        for statement in row.statements:
            links = self._links.get(statement.seq)
            known = links is not None and name.hex() in (links.relations if statement.relation else links.evidence)
            if not known:
                yield f"edge {name.hex()}: memory {statement.seq} does not know that it is evidence of it"

    def _of_similar(self) -> Iterator[str]:
        pairs = {(seq, one.seq): (one.weight, one.archived) for seq, found in self._similar.items() for one in found}
        for seq, other in sorted(pairs):
            if pairs.get((other, seq)) != pairs[seq, other] or seq == other:
                yield f"memories {seq} and {other}: are not similar both ways"
            if seq not in self._memories:
                yield f"similar memories of {seq}: it is not remembered"
        for seq, found in self._similar.items():
            if found != sorted(found, key=lambda one: (-one.weight, -one.seq)):
                yield f"similar memories of {seq}: are not in order"

    def _of_superseded(self) -> Iterator[str]:
        stand = {(self._name(row.target), row.source.text) for row in self._edges.values() if row.hides}
        stored = {
            (self._memories.get(seq, b""), one.by)
            for seq, found in self._superseded.items()
            for one in found
            if one.until_ms is None
        }
        for name, _ in sorted(stand ^ stored):
            yield f"memory {name.hex()}: by what it is superseded is not what its edges say"

    def _of_joined(self) -> Iterator[str]:
        """Yield inconsistencies of joins. An edge above the limit of names joins nothing."""
        edges = {(row.source.text, row.target.text, row.number) for row in self._edges.values() if row.joins}
        names = dict(self._joined.values())
        for name, (own, joined) in self._joined.items():
            if self._name(codec.NodeKey(own)) != name:
                yield f"names joined to {name.hex()}: says it is another"
            for one in joined:
                ends = (own, one.other) if one.leads else (one.other, own)
                if (*ends, one.number) not in edges:
                    yield f"names joined to {name.hex()}: no edge of number {one.number} joins them"
                if NameJoin(own, one.number, not one.leads) not in names.get(one.other, []):
                    yield f"names joined to {name.hex()}: edge number {one.number} joins one end only"
            if len(names_of(own, lambda key: names.get(key, []))) > JOINED_NAMES_MAX:
                yield f"names joined to {name.hex()}: more than {JOINED_NAMES_MAX}"

    def _of_past(self) -> Iterator[str]:
        seqs = {*self._past, *(seq for _, seq in self._past_members), *(seq for seq, _, _ in self._past_neighbours)}
        for seq in sorted(seqs - self._memories.keys()):
            yield f"past of memory {seq}: it is not remembered"
        linked = {
            (self._name(codec.NodeKey(key)), seq)
            for seq, rows in self._past.items()
            for row in rows
            for key in row.links
        }
        for node, seq in sorted(self._past_members - linked):
            yield f"node {node.hex()} and memory {seq}: do not say the same of a past link"
        for seq, other, change in sorted(self._past_neighbours):
            if (other, seq, change) not in self._past_neighbours:
                yield f"memories {seq} and {other}: were not similar both ways"
        for node, number in sorted(self._lives ^ self._past_adjacent):
            yield f"node {node.hex()}: does not agree with past edge number {number} that it was an end of it"
        for node, number in sorted(self._past_joined - self._lives - self._adjacent.keys()):
            yield f"node {node.hex()}: nothing is left of edge number {number}, which joined it to another once"

    def _of_caseless(self) -> Iterator[str]:
        for name in self._caseless:
            if self._name(codec.NodeKey(codec.node_key(codec.ENTITY_KIND, name))) not in self._nodes:
                yield "names without case: one has no node"
        if len({*self._caseless}) < len(self._caseless) or len(self._caseless) > CASELESS_NAMES_MAX:
            yield "names without case: too many"

    def _name(self, key: codec.NodeKey) -> bytes:
        named = self._keyring.name if key.memory else self._keyring.node
        return named(self._owner, key.text)
