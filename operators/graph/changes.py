"""What one event changes of its owner's graph: read through, and staged or dropped as a whole.

Nodes and links are read and written as records (edges: `edge_changes.py`); `write.py` knows what they mean. Every
record is read as the event leaves it so far. After a removal, `prune` deletes the nodes that nothing leads to any more.
"""

from collections.abc import Iterable

from recallflow.operators.graph import orphans
from recallflow.operators.graph.edge_changes import EdgeChanges
from recallflow.operators.graph.extract import Link
from recallflow.operators.graph.name_changes import NameChanges
from recallflow.operators.graph.past import Past
from recallflow.state import keys
from recallflow.state.graph_codec import (
    ENTITY_KIND,
    Description,
    LinksRow,
    Neighbour,
    NodeKey,
    NodeRow,
    Unsynced,
    decode_neighbours,
    decode_superseded,
    encode_member,
    encode_rows,
)
from recallflow.state.hot_graph import Staged
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition


class Changes:
    """One event's changes. `change` numbers the event among its owner's; `ingested_ms`: when it came in. `forgetting`:
    the `seq` of the memory that is being forgotten, of which nothing is kept for questions about then. `edges_most`:
    how many edges the owner may have, None for any number."""

    def __init__(
        self, partition: Partition, hot: HotOwner, change: int, ingested_ms: int, edges_most: int | None = None
    ) -> None:
        self._partition = partition
        self._hot = hot
        self._owner = hot.key
        self.hot_graph = hot.hot_graph()
        self.staged = Staged()
        self._change = change
        self.ingested_ms = ingested_ms
        self.edges_most = edges_most
        self.forgetting: int | None = None
        self._detached: orphans.Nodes = {}  # nodes that lost a link or an edge
        self._undescribed: orphans.Nodes = {}  # nodes whose describing memory lost its link

    @property
    def edges(self) -> EdgeChanges:
        """What the event changes of edges. Made for each use: kept, it would be a cycle, which only Python's collector
        frees, for every event."""
        return EdgeChanges(self, self._partition, self._owner, self._change)

    @property
    def past(self) -> Past:
        """What the event leaves as it was. Made for each use, as `edges`."""
        return Past(self, self._partition, self._owner, self._change)

    @property
    def names(self) -> NameChanges:
        """What the event changes of what entities are called. Made for each use, as `edges` is."""
        return NameChanges(self, self._owner)

    def get(self, key: bytes) -> bytes | None:
        """A record as the event leaves it so far."""
        return self.staged.get(self._partition, key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Writes a record; None deletes it."""
        self.staged.effects[key] = value

    def seq(self, memory_id: str) -> int | None:
        """The sequence number of a memory that was remembered before this event, and still is."""
        current = self._hot.current(memory_id)
        return None if current is None or current.forgotten else current.seq

    def has_room(self) -> bool:
        """Whether the owner may have one more edge."""
        return self.edges_most is None or self._hot.held.edges + self.staged.more_edges < self.edges_most

    # ------------------------------------------------------------------ nodes

    def name(self, key: NodeKey) -> bytes:
        """What stands for a node in stored keys."""
        return (None if key.memory else self._known(key.text)) or self._hot.graph.name(key)

    def node(self, key: NodeKey) -> NodeRow | None:
        """A node's record; a memory has one only while it is archived."""
        stored = self.get(keys.node(self._owner, self.name(key)))
        return None if stored is None else NodeRow.decode(stored)

    def put_node(self, row: NodeRow) -> None:
        self.put(keys.node(self._owner, self.name(row.key)), row.encode())

    def remove_node(self, key: NodeKey) -> None:
        self.put(keys.node(self._owner, self.name(key)), None)

    def ensure_node(self, key: str, kind: str, name: str, is_urn: bool = False) -> bytes:
        """Creates a node that is no memory, if it is missing. Returns what stands for it in stored keys."""
        known = self._known(key)
        if known is not None:
            return known
        found = self._hot.graph.name(NodeKey(key))
        stored = keys.node(self._owner, found)
        if self.hot_graph.has_all_nodes or self.get(stored) is None:
            self.put(stored, NodeRow(NodeKey(key), kind, name, name if is_urn else None).encode())
            if kind == ENTITY_KIND and not key.isascii():
                self.names.keep(key)
        self.staged.nodes[key] = found
        return found

    def has_node(self, key: str) -> bool:
        """Whether a node that is no memory is there."""
        if self._known(key) is not None:
            return True
        if key in self.staged.nodes or key in self.hot_graph.absent or self.hot_graph.has_all_nodes:
            return False
        stored = keys.node(self._owner, self._hot.graph.name(NodeKey(key)))
        if self.get(stored) is not None:
            return True
        if stored not in self.staged.effects:
            self.hot_graph.absent.add(key)
        return False

    def alike(self, key: str) -> list[str]:
        """Keys of entities that earlier events left whose names the name of this one is part of, or that are part of
        it; none that is known to be the same."""
        same = {name.text for name in self._hot.graph.unions().names(NodeKey(key))}
        return [other for other in self.hot_graph.names().alike(key) if other not in same]

    def is_superseded(self, seq: int) -> bool:
        """Whether a memory is superseded by another."""
        stored = self.get(keys.superseded(self._owner, seq))
        return stored is not None and any(one.until_ms is None for one in decode_superseded(stored))

    def forget_memory(self, key: NodeKey, seq: int) -> None:
        """Takes away what is stored of a memory as a node: that it is archived, and by what it is superseded."""
        if self.node(key) is not None:
            self.remove_node(key)
        if self.get(keys.superseded(self._owner, seq)) is not None:
            self.put(keys.superseded(self._owner, seq), None)
            self.staged.superseded[seq] = []

    def detach(self, key: NodeKey) -> None:
        """A node lost a link or an edge: `prune` deletes it where that was the last."""
        self._detached[self.name(key)] = key

    def _known(self, key: str) -> bytes | None:
        """What stands for a node that is surely stored; None of others."""
        return self.staged.nodes[key] if key in self.staged.nodes else self.hot_graph.nodes.get(key)

    # ------------------------------------------------------------------ links

    def links(self, seq: int) -> LinksRow | None:
        """What a memory brought into the graph; None where it is not in it."""
        stored = self.get(keys.links(self._owner, seq))
        return None if stored is None else LinksRow.decode(stored)

    def put_links(self, seq: int, row: LinksRow | None) -> None:
        """Writes what a memory brought into the graph; None deletes it."""
        self.put(keys.links(self._owner, seq), None if row is None else row.encode())
        self.staged.sketches[seq] = row.sketch if row is not None else b""

    def link(self, seq: int, links: Iterable[Link]) -> None:
        """Links a memory to nodes that it was not linked to."""
        (before, behind), effects = keys.member_of(self._owner, seq), self.staged.effects
        staged, stored = self.staged.nodes, self.hot_graph.nodes
        for key, kind, name, role, description, is_urn in links:
            node = None if key in staged else stored.get(key)
            node = node or self.ensure_node(key, kind, name, is_urn)
            effects[before + node + behind] = encode_member(role, description)
            if description is not None:
                self._describe(NodeKey(key), seq, description)

    def relink(self, seq: int, link: Link) -> None:
        """The same link once more, in another role or with another word on the node."""
        key, node = NodeKey(link.key), self.name(NodeKey(link.key))
        member, value = keys.member(self._owner, node, seq), encode_member(link.role, link.description)
        if self.get(member) == value:
            return
        self.put(member, value)
        if link.description is not None:
            self._describe(key, seq, link.description)
        else:
            self._lose_description(key, seq)

    def unlink(self, seq: int, key: str) -> None:
        """Takes a memory's link to a node away."""
        node = NodeKey(key)
        self.put(keys.member(self._owner, self.name(node), seq), None)
        self.detach(node)
        self._lose_description(node, seq)

    def members(self, key: str, at_most: int | None = None) -> list[int]:
        """So many of the memories linked to a node by earlier events, or all, the newest first."""
        prefix = keys.members(self._owner, self.name(NodeKey(key)))
        if at_most is not None:
            return [*map(keys.reversed_sequence, self._partition.first_keys(prefix, at_most))]
        return [keys.reversed_sequence(member) for member, _ in self._partition.scan(prefix)]

    def _describe(self, key: NodeKey, seq: int, description: Description) -> None:
        row = self.node(key)
        if row is not None and row.described_by in (None, seq):
            self.put_node(row.describe(description, seq))

    def _lose_description(self, key: NodeKey, seq: int) -> None:
        row = self.node(key)
        if row is not None and row.described_by == seq:
            self._undescribed[self.name(key)] = key

    # ------------------------------------------------------------------ similar memories

    def neighbours(self, seq: int) -> list[Neighbour]:
        """A memory's similar ones, the closest first."""
        stored = self.get(keys.similar(self._owner, seq))
        return decode_neighbours(stored) if stored else []

    def put_neighbours(self, seq: int, neighbours: list[Neighbour]) -> None:
        """Writes a memory's similar ones, the closest first."""
        self.put(keys.similar(self._owner, seq), encode_rows(neighbours) if neighbours else None)

    # ------------------------------------------------------------------ memories out of step

    def unsynced(self) -> dict[int, Unsynced]:
        """The memories whose graph is still to be written, by their sequence number."""
        if not self.hot_graph.unsynced and not self.staged.unsynced:
            return {}
        now = {**self.hot_graph.unsynced, **self.staged.unsynced}
        return {seq: marker for seq, marker in now.items() if marker is not None}

    def put_unsynced(self, seq: int, marker: Unsynced | None) -> None:
        """Marks a memory whose graph is still to be written; None takes the mark away."""
        self.put(keys.unsynced(self._owner, seq), None if marker is None else marker.encode())
        self.staged.unsynced[seq] = marker

    # ------------------------------------------------------------------ end

    def prune(self) -> None:
        """Deletes the nodes that nothing leads to any more, and looks for the next description of those that lost
        theirs."""
        if self._detached or self._undescribed:
            gone = orphans.prune(self._partition, self._owner, self.staged, self._detached, self._undescribed)
            for key in gone:
                stored = self._partition.get(keys.node(self._owner, self.name(key)))
                self.past.keep_orphan(key, None if stored is None else NodeRow.decode(stored))
            self.names.drop(gone)
            self._detached, self._undescribed = {}, {}

    def drop(self, staged: Staged | None) -> None:
        """Goes back to what was staged before; None is nothing."""
        self.staged = staged or Staged()
        self.forgetting = None
        self._detached, self._undescribed = {}, {}

    def publish(self) -> None:
        """Takes what was staged into the owner's memory."""
        self.hot_graph.publish(self.staged)
        self._hot.graph.publish(self.staged.superseded, self.staged.joined)
