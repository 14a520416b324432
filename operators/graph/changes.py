"""Changes of one event to its owner's graph. The event's reads include them, and they are staged or dropped as a whole.

This module reads and writes records of nodes, links, names and edges; `write.py` decides which ones to change."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import orjson

from recallflow.errors import InvalidRecord
from recallflow.limits import DESCRIBERS_MAX, SUPERSEDED_MAX
from recallflow.operators.graph.past import GraphHistory, Nodes
from recallflow.state import entity_names, keys
from recallflow.state import graph_codec as codec
from recallflow.state.entity_names import NameJoin
from recallflow.state.graph_codec import EdgeRow, LinksRow, NodeDescription, NodeKey, NodeRow
from recallflow.state.hot_graph import StagedGraphChanges
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition

_EDGE_NUMBERS = 2**16  # per event; a Kafka record has no room for more edges
# The length of the prefix that the keys of a node share: owner, table and node name.
_SHARED_BYTES = keys.TABLE_BYTES + keys.NAME_BYTES


class Link(NamedTuple):
    """The membership of a memory in a node, with the node's name and the memory's description of it."""

    key: str
    kind: str
    name: str
    role: str
    description: NodeDescription | None = None
    is_urn: bool = False  # the name is a URN


def _first_description(members: Iterable[tuple[bytes, bytes]]) -> tuple[int, NodeDescription] | None:
    described = ((stored, codec.decode_member(value)[1]) for stored, value in members)
    return next(((keys.reversed_sequence(stored), found) for stored, found in described if found is not None), None)


class GraphChanges(GraphHistory):
    """The graph changes of one event. `edge_limit` is the owner's largest number of edges; None for no limit."""

    def __init__(
        self, partition: Partition, hot: HotOwner, event_number: int, ingested_ms: int, edge_limit: int | None = None
    ) -> None:
        super().__init__(partition, hot, event_number, ingested_ms)
        self.edge_limit = edge_limit
        self._description_lost: Nodes = {}  # nodes whose describing memory is no longer linked

    # ------------------------------------------------------------------ synonyms, and names without case

    def names_of(self, key: NodeKey) -> list[NodeKey]:
        """Return the nodes of an entity and its synonyms; only the node itself for other kinds."""
        return [*map(NodeKey, entity_names.names_of(key.text, self._joined))] if codec.is_entity(key) else [key]

    def join_names(self, row: EdgeRow, joins: bool) -> None:
        """Join the ends of a `same_as` edge as synonyms, if these are not too many; separate them if not `joins`."""
        if row.type != codec.SAME_AS or not (codec.is_entity(row.source) and codec.is_entity(row.target)):
            return
        if not joins:
            self.keep_joined(row.source, row.target, row.number)
        source, target = row.source.text, row.target.text
        of_source = NameJoin(target, row.number, True)
        if joins == (of_source in self._joined(source)):
            return
        if joins:
            names = {*entity_names.names_of(source, self._joined), *entity_names.names_of(target, self._joined)}
            if len(names) > entity_names.JOINED_NAMES_MAX:
                return
        for key, join in ((source, of_source), (target, NameJoin(source, row.number, False))):
            joined = [other for other in self._joined(key) if other.number != row.number]
            joined += [join] if joins else []
            stored = entity_names.encode_joins(key, joined) if joined else None
            self.put(keys.joined(self._owner, self.name(NodeKey(key))), stored)
            self.staged.joined[key] = joined

    def _joined(self, key: str) -> list[NameJoin]:
        stored = self.get(keys.joined(self._owner, self.name(NodeKey(key))))
        return [] if stored is None else entity_names.decode_joins(stored)[1]

    def caseless_names(self) -> list[str]:
        """Return the names of entities in scripts without case. Texts are searched for them."""
        staged = self.staged.caseless
        return self.hot_graph.caseless() if staged is None else staged

    def add_caseless_name(self, key: str) -> None:
        """Add a new entity's name to the caseless names, if its script has no case and there is room."""
        name, names = _name_in(key), self.caseless_names()
        if entity_names.is_caseless(name) and len(names) < entity_names.CASELESS_NAMES_MAX:
            self._put_caseless([*names, name])

    def remove_caseless_names(self, removed: Iterable[NodeKey]) -> None:
        names = {_name_in(key.text) for key in removed if codec.is_entity(key) and not key.text.isascii()}
        if names and not names.isdisjoint(before := self.caseless_names()):
            self._put_caseless([name for name in before if name not in names])

    def _put_caseless(self, names: list[str]) -> None:
        self.put(keys.caseless(self._owner), orjson.dumps(names) if names else None)
        self.staged.caseless = names

    # ------------------------------------------------------------------ edges, stored at both ends

    def edge_name(self, source: NodeKey, target: NodeKey, kind: str) -> bytes:
        """Return the name of an edge in storage keys. An edge of a symmetric type has the same name from both ends."""
        first, second = sorted((source, target)) if kind in codec.SYMMETRIC else (source, target)
        return self._partition.keyring.edge(self._owner, self.name(first), self.name(second), kind)

    def new_edge(self, source: NodeKey, target: NodeKey, kind: str) -> EdgeRow:
        """Return a new edge without statements. The caller stores it."""
        number = self._event_number * _EDGE_NUMBERS + self.staged.edge_numbers
        self.staged.edge_numbers += 1
        first, second = sorted((source, target)) if kind in codec.SYMMETRIC else (source, target)
        return EdgeRow(first, second, kind, number, added_ms=self.ingested_ms)

    def add_edge(self, name: bytes, row: EdgeRow) -> None:
        """Write a new edge, at both ends."""
        for end in (row.source, row.target):
            self.put(keys.adjacency(self._owner, self.name(end), row.number), name)
        self.staged.edge_count_delta += 1
        self.put_edge(name, row)

    def put_edge(self, name: bytes, row: EdgeRow) -> None:
        """Write an edge, and keep its replaced statements."""
        before = self.edge(name)
        if before is not None:
            self.keep_parts(name, before, row)
        self.put(keys.edge(self._owner, name), codec.encode_row(row))
        self._supersede(row, hides=row.hides_target)
        self.join_names(row, joins=row.joins_entities)

    def remove_edge(self, name: bytes, row: EdgeRow) -> None:
        """Delete an edge at both ends. Its statements stay in the history, except statements of forgotten memories."""
        self.keep_parts(name, row, None)
        self._delete_edge(name, row)
        if self.keep_if_stated(name):
            self.keep_life(name, row)
        else:
            self.forget_traces(codec.Life.of_row(row))

    def erase_edge(self, name: bytes, row: EdgeRow) -> None:
        """Delete an edge with its history."""
        self._delete_edge(name, row)
        self.forget_edge(name)
        self.forget_traces(codec.Life.of_row(row))

    def edge_names_at(self, key: NodeKey, at_most: int | None = None) -> list[bytes]:
        """Return the names of edges that earlier events have stored at a node, optionally limited."""
        stored = self._partition.scan(keys.adjacency_of(self._owner, self.name(key)))
        return [name for _, name in islice(stored, at_most)]

    def edges_at(self, key: NodeKey, at_most: int | None = None) -> Iterator[tuple[bytes, EdgeRow]]:
        """Yield names and records of those edges that still exist."""
        for name in self.edge_names_at(key, at_most):
            if (row := self.edge(name)) is not None:
                yield name, row

    def _delete_edge(self, name: bytes, row: EdgeRow) -> None:
        """Delete an edge's current records, and its effects on synonyms and superseded memories."""
        self.put(keys.edge(self._owner, name), None)
        self.staged.edge_count_delta -= 1
        for end in (row.source, row.target):
            self.put(keys.adjacency(self._owner, self.name(end), row.number), None)
            if not end.memory:
                self.detach(end)
        self._supersede(row, hides=False)
        self.join_names(row, joins=False)

    def _supersede(self, row: EdgeRow, hides: bool) -> None:
        """Store at the target of a `supersedes` edge whether the source hides it."""
        is_superseding = row.type == codec.SUPERSEDES and row.source.memory and row.target.memory
        seq = self.seq(row.target.text) if is_superseding else None
        if seq is None:
            return
        stored = self.superseding(seq)
        before = next((one for one in stored if one.by == row.source.text and one.until_ms is None), None)
        ingested_ms = self.ingested_ms
        after = None
        if hides:
            times_ms = row.ends_ms, row.current.valid_from_ms
            after = codec.Superseded(row.source.text, ingested_ms, *times_ms, stated_ms=row.stated_ms)
        if before is not None and after is not None and before._replace(ingested_ms=ingested_ms) == after:
            return
        others = [one for one in stored if one != before]
        if before is not None:
            others.append(before._replace(until_ms=ingested_ms))
        past = [one for one in others if one.until_ms is not None][-SUPERSEDED_MAX:]
        current = [one for one in others if one.until_ms is None]
        if after is not None and len(current) == SUPERSEDED_MAX:
            problem = f"{SUPERSEDED_MAX} memories supersede {row.target} already: archive the edge of one of them"
            raise InvalidRecord.of("invalid_event", problem, "edges")
        self.put_superseding(seq, [*past, *current, *([] if after is None else [after])])

    # ------------------------------------------------------------------ nodes

    def has_room(self) -> bool:
        return self.edge_limit is None or self._hot.counts.edges + self.staged.edge_count_delta < self.edge_limit

    def node(self, key: NodeKey) -> NodeRow | None:
        """Return the record of a node. A memory has one only while it is archived."""
        stored = self.get(keys.node(self._owner, self.name(key)))
        return None if stored is None else NodeRow.decode(stored)

    def put_node(self, key: NodeKey, row: NodeRow | None) -> None:
        self.put(keys.node(self._owner, self.name(key)), None if row is None else codec.encode_row(row))

    def ensure_node(self, key: str, kind: str, name: str, is_urn: bool = False) -> bytes:
        """Create a node other than a memory, if it is missing. Return its name in storage keys."""
        stored_name = self._existing_name(key)
        if stored_name is not None:
            return stored_name
        stored_name = self._hot.stored_graph.name(NodeKey(key))
        node = keys.node(self._owner, stored_name)
        if self.hot_graph.has_all_nodes or self.get(node) is None:
            self.put(node, codec.encode_row(NodeRow(NodeKey(key), kind, name, name if is_urn else None)))
            if kind == codec.ENTITY_KIND and not key.isascii():
                self.add_caseless_name(key)
        self.staged.nodes[key] = stored_name
        return stored_name

    def has_node(self, key: str) -> bool:
        """Return whether a node other than a memory exists."""
        if self._existing_name(key) is not None:
            return True
        if key in self.staged.nodes or key in self.hot_graph.absent or self.hot_graph.has_all_nodes:
            return False
        stored = keys.node(self._owner, self._hot.stored_graph.name(NodeKey(key)))
        if self.get(stored) is not None:
            return True
        if stored not in self.staged.effects:
            self.hot_graph.absent.add(key)
        return False

    def similar_names(self, key: str) -> list[str]:
        """Return keys of earlier entities, except synonyms, whose name contains this name or is a part of it."""
        synonyms = {name.text for name in self._hot.stored_graph.unions().names(NodeKey(key))}
        return [other for other in self.hot_graph.names().similar(key) if other not in synonyms]

    def is_superseded(self, seq: int) -> bool:
        return any(one.until_ms is None for one in self.superseding(seq))

    def forget_memory(self, key: NodeKey, seq: int) -> None:
        """Delete the stored state of a memory as a node: its archive mark, and the memories that supersede it."""
        if self.node(key) is not None:
            self.put_node(key, None)
        if self.get(keys.superseded(self._owner, seq)) is not None:
            self.put_superseding(seq, [])

    # ------------------------------------------------------------------ links

    def links(self, seq: int) -> LinksRow | None:
        """Return the graph contributions of a memory; None if it is not in the graph."""
        stored = self.get(keys.links(self._owner, seq))
        return None if stored is None else LinksRow.decode(stored)

    def put_links(self, seq: int, row: LinksRow | None) -> None:
        self.put(keys.links(self._owner, seq), None if row is None else row.encode())
        self.staged.sketches[seq] = row.sketch if row is not None else b""

    def link(self, seq: int, links: Iterable[Link]) -> None:
        (prefix, suffix), effects = keys.member_key_parts(self._owner, seq), self.staged.effects
        staged, stored = self.staged.nodes, self.hot_graph.nodes
        for key, kind, name, role, description, is_urn in links:
            node = None if key in staged else stored.get(key)
            node = node or self.ensure_node(key, kind, name, is_urn)
            effects[prefix + node + suffix] = codec.encode_member(role, description)
            if description is not None:
                self._describe(NodeKey(key), seq, description)

    def relink(self, seq: int, link: Link) -> None:
        """Update an existing link with another role or description."""
        key, node = NodeKey(link.key), self.name(NodeKey(link.key))
        member, value = keys.member(self._owner, node, seq), codec.encode_member(link.role, link.description)
        if self.get(member) == value:
            return
        self.put(member, value)
        if link.description is not None:
            self._describe(key, seq, link.description)
        else:
            self._remove_description(key, seq)

    def unlink(self, seq: int, key: str, keep: bool = False) -> None:
        """Delete the link of a memory to a node. `keep`: it stays in the history."""
        node = NodeKey(key)
        self.put(keys.member(self._owner, self.name(node), seq), None)
        self.detach(node)
        self._remove_description(node, seq)
        if keep:
            self._put_kept(keys.past_member(self._owner, self.name(node), seq), b"")

    def members(self, key: str, at_most: int | None = None) -> list[int]:
        """Return the memories linked to a node by earlier events, newest first, optionally limited."""
        prefix = keys.members(self._owner, self.name(NodeKey(key)))
        if at_most is not None:
            return [*map(keys.reversed_sequence, self._partition.first_keys(prefix, at_most))]
        return [keys.reversed_sequence(member) for member, _ in self._partition.scan(prefix)]

    def _describe(self, key: NodeKey, seq: int, description: NodeDescription) -> None:
        row = self.node(key)
        if row is not None and row.described_by in (None, seq):
            self.put_node(key, row.describe(description, seq))

    def _remove_description(self, key: NodeKey, seq: int) -> None:
        row = self.node(key)
        if row is not None and row.described_by == seq:
            self._description_lost[self.name(key)] = key

    def neighbours(self, seq: int) -> list[codec.StoredNeighbour]:
        """Return the similar memories of a memory, closest first."""
        stored = self.get(keys.similar(self._owner, seq))
        return codec.decode_neighbours(stored) if stored else []

    def put_neighbours(self, seq: int, neighbours: list[codec.StoredNeighbour]) -> None:
        self.put(keys.similar(self._owner, seq), codec.encode_row(neighbours) if neighbours else None)

    def unsynced(self) -> dict[int, codec.Unsynced]:
        """Return the memories whose graph write failed, by sequence number."""
        if not self.hot_graph.unsynced and not self.staged.unsynced:
            return {}
        now = {**self.hot_graph.unsynced, **self.staged.unsynced}
        return {seq: marker for seq, marker in now.items() if marker is not None}

    def put_unsynced(self, seq: int, marker: codec.Unsynced | None) -> None:
        """Store the marker of a memory whose graph write failed; None deletes it."""
        self.put(keys.unsynced(self._owner, seq), None if marker is None else codec.encode_row(marker))
        self.staged.unsynced[seq] = marker

    def prune(self) -> None:
        """Delete unreachable nodes. A node whose describing memory is no longer linked to it gets the description of
        the oldest linked memory that has one."""
        if not (self._detached or self._description_lost):
            return
        owner, partition, effects = self._owner, self._partition, self.staged.effects
        added: dict[bytes, list[tuple[bytes, bytes]]] = {}  # records that the event added, by prefix of the node
        for stored, value in effects.items():
            if value is not None:
                added.setdefault(stored[:_SHARED_BYTES], []).append((stored, value))

        def is_reachable(name: bytes) -> bool:
            return any(
                prefix in added or any(stored not in effects for stored, _ in partition.scan(prefix))
                for prefix in (keys.members(owner, name), keys.adjacency_of(owner, name))
            )

        def oldest_description(name: bytes) -> tuple[int | None, NodeDescription | None]:
            prefix = keys.members(owner, name)
            stored = (member for member in partition.scan_back(prefix) if member[0] not in effects)
            members = (sorted(added.get(prefix, []), reverse=True), islice(stored, DESCRIBERS_MAX))
            found = [one for one in map(_first_description, members) if one is not None]
            return min(found, key=lambda one: one[0], default=(None, None))

        orphans = {name for name in self._detached if not is_reachable(name)}
        for name in orphans:
            effects[keys.node(owner, name)] = None
            self.staged.nodes[self._detached[name].text] = None
        for name in self._description_lost.keys() - orphans:
            if (row := self.get(keys.node(owner, name))) is not None:
                seq, description = oldest_description(name)
                self.put(keys.node(owner, name), codec.encode_row(NodeRow.decode(row).describe(description, seq)))
        removed = [self._detached[name] for name in orphans]
        for key in removed:
            before = partition.get(keys.node(owner, self.name(key)))
            self.keep_orphan(key, None if before is None else NodeRow.decode(before))
        self.remove_caseless_names(removed)
        self._detached, self._description_lost = {}, {}

    def restore(self, staged: StagedGraphChanges | None) -> None:
        self.staged = staged or StagedGraphChanges()
        self.forgetting = None
        self._detached, self._description_lost = {}, {}

    def publish(self) -> None:
        self.hot_graph.publish(self.staged)
        self._hot.stored_graph.publish(self.staged.superseded, self.staged.joined)


def _name_in(key: str) -> str:
    return key.partition(":")[2]
