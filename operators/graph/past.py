"""Records of an owner's graph, and the history of removed state (`state/past_graph.py` reads it).

Current records contain the time of their addition. The history keeps only removed or replaced state: links, edge
statements, edges, neighbours and archive marks. The history of a forgotten memory is deleted."""

from collections.abc import Iterable, Iterator
from itertools import chain, takewhile
from sys import maxsize
from typing import Any

import orjson

from recallflow.state import graph_codec as codec
from recallflow.state import keys
from recallflow.state.graph_codec import EdgeRow, Life, LinksRow, NodeKey, NodeRow
from recallflow.state.hot_graph import StagedGraphChanges
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition

# Costs of a deletion, where deleting a link costs 1.
EDGE_WEIGHT = 6  # an edge with both ends
STATED_WEIGHT = 6  # a memory's statement on an edge that has up to 200 statements
VERSION_WEIGHT = 6  # a replaced version, without its links
Nodes = dict[bytes, NodeKey]  # by stored name


class GraphHistory:
    """Records of an owner's graph, including the changes of one event, and the history that the event adds."""

    def __init__(self, partition: Partition, hot: HotOwner, event_number: int, ingested_ms: int) -> None:
        """`event_number` is the event's number among its owner's, `ingested_ms` its ingestion time."""
        self._partition, self._hot = partition, hot
        self._owner = hot.key
        self._event_number = event_number
        self.hot_graph = hot.hot_graph()
        self.staged = StagedGraphChanges()
        self.ingested_ms = ingested_ms
        self.forgetting: int | None = None  # the `seq` of a memory in removal, whose history is not kept
        self._detached: Nodes = {}  # nodes that lost a link or an edge

    def get(self, key: bytes) -> bytes | None:
        return self.staged.get(self._partition, key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a record; None deletes it."""
        self.staged.effects[key] = value

    def seq(self, memory_id: str) -> int | None:
        """Return the sequence number of a memory that existed before this event and still exists."""
        current = self._hot.memory_head(memory_id)
        return None if current is None or current.forgotten else current.seq

    def name(self, key: NodeKey) -> bytes:
        """Return the name of a node in storage keys."""
        return (None if key.memory else self._existing_name(key.text)) or self._hot.stored_graph.name(key)

    def edge(self, name: bytes) -> EdgeRow | None:
        stored = self.get(keys.edge(self._owner, name))
        return None if stored is None else EdgeRow.decode(stored)

    def detach(self, key: NodeKey) -> None:
        """Note that a node lost a link or an edge. `prune` deletes a node without any."""
        self._detached[self.name(key)] = key

    def superseding(self, seq: int) -> list[codec.Superseded]:
        """Return the memories that supersede a memory, or superseded it in the past."""
        stored = self.get(keys.superseded(self._owner, seq))
        return codec.decode_superseded(stored) if stored else []

    def put_superseding(self, seq: int, by: list[codec.Superseded]) -> None:
        self.put(keys.superseded(self._owner, seq), codec.encode_row(by) if by else None)
        self.staged.superseded[seq] = by

    def _existing_name(self, key: str) -> bytes | None:
        """Return the name in storage keys of a node that certainly exists; None for others."""
        return self.staged.nodes[key] if key in self.staged.nodes else self.hot_graph.nodes.get(key)

    def keep_links(self, seq: int, version: int, row: LinksRow) -> None:
        self.put(keys.past_links(self._owner, seq, version), row._replace(sketch=b"").encode())

    def keep_parts(self, name: bytes, before: EdgeRow, after: EdgeRow | None) -> None:
        """Keep the replaced statements of an edge, except statements of a memory in removal."""
        stated = {} if after is None else {(one.seq, one.relation): one for one in after.statements}
        for statement in before.statements:
            if statement.seq == self.forgetting:
                continue
            if stated.get((statement.seq, statement.relation)) != statement:
                part = codec.RELATION if statement.relation else codec.EVIDENCE
                self._keep(name, statement.seq, part, statement)
        if before.given is not None and (after is None or after.given != before.given):
            self._keep(name, None, codec.GIVEN, before.given)
        if after is None or after.archived != before.archived:
            self._keep(name, None, codec.OVERRIDE, before.archived)

    def keep_life(self, name: bytes, row: EdgeRow) -> None:
        """Keep the existence of an edge, at both ends."""
        life = Life.of_row(row)
        self._keep(name, None, codec.LIFE, life)
        stored = orjson.dumps([self.ingested_ms, name.hex(), life], default=tuple)
        for end in (row.source, row.target):
            self._put_kept(keys.past_adjacency(self._owner, self.name(end), row.number), stored)

    def keep_neighbour(self, seq: int, neighbour: codec.StoredNeighbour) -> None:
        """Keep the earlier state of a memory's neighbour, unless a memory is in removal. Later calls within the event
        have no effect."""
        key = keys.past_similar(self._owner, seq, neighbour.seq, self._event_number)
        if self.forgetting is None and self.get(key) is None:
            self.put(key, orjson.dumps([self.ingested_ms, tuple(neighbour)]))

    def keep_node(self, key: NodeKey, row: NodeRow | None) -> None:
        """Keep the earlier state of a node (None for a memory without a record), without its description, because the
        memory that describes it may be forgotten."""
        plain = None if row is None else tuple(row.describe(None, None))
        stored = orjson.dumps([self.ingested_ms, plain], default=tuple)
        self._put_kept(keys.past_node(self._owner, self.name(key), self._event_number), stored)

    def keep_joined(self, source: NodeKey, target: NodeKey, number: int) -> None:
        """Keep that an edge may have joined two names. Whether it did follows from the history of the edge."""
        key = keys.past_joined(self._owner, self.name(source), number)
        self.put(key, orjson.dumps([source.text, target.text]))

    def keep_orphan(self, key: NodeKey, row: NodeRow | None) -> None:
        """Keep a deleted node if an earlier edge or link led to it; otherwise delete its history."""
        name = self.name(key)
        past_links = (keys.past_adjacency_of(self._owner, name), keys.past_members(self._owner, name))
        if all(next(self._existing_keys(prefix), None) is None for prefix in past_links):
            self._delete_prefix(keys.past_nodes(self._owner, name))
        elif row is not None:
            self.keep_node(key, row)

    def _supports_edge(self, key: bytes) -> bool:
        """Return whether an edge existed due to the kept part under this key: a statement, or unconditional values."""
        part, _ = keys.edge_part(key)
        if part == codec.GIVEN:
            return codec.GivenEdge(*orjson.loads(self.get(key) or b"")[1]).is_unconditional
        return part in (codec.RELATION, codec.EVIDENCE)

    def _keep(self, name: bytes, seq: int | None, part: bytes, content: Any) -> None:
        """Keep the earlier state of an edge's part. Later calls within the event have no effect."""
        key = keys.past_edge(self._owner, name, seq, part, self._event_number)
        if self.get(key) is None:
            self._put_kept(key, orjson.dumps([self.ingested_ms, content], default=tuple))

    def _put_kept(self, key: bytes, value: bytes) -> None:
        """Write a record that is searched by key prefix."""
        self.put(key, value)
        kept, group = self.staged.past_keys, key[: keys.GROUP_BYTES]
        kept[group] = (*kept.get(group, ()), key)

    def weigh_history(self, key: NodeKey, seq: int, at_most: int) -> int:
        """Estimate the cost of deleting a memory's history, in links, up to a limit."""
        weight = 0
        for _, value in self._partition.scan(keys.past_links_of(self._owner, seq)):
            weight += _version_weight(LinksRow.decode(value))
            if weight >= at_most:
                return weight
        lives = keys.past_adjacency_of(self._owner, self.name(key))
        weight += EDGE_WEIGHT * len(self._partition.first_keys(lives, at_most // EDGE_WEIGHT))
        return weight + len(self._partition.first_keys(keys.past_similar_of(self._owner, seq), at_most))

    def forget_history(self, key: NodeKey, seq: int) -> None:
        self.thin_history(key, seq, maxsize)
        self._delete_prefix(keys.past_nodes(self._owner, self.name(key)))

    def thin_history(self, key: NodeKey, seq: int, at_most: int) -> None:
        """Delete a part of a memory's history, with a cost of about `at_most` links."""
        costs = chain(self._forget_versions(seq), self._forget_lives(key), self._forget_neighbours(seq))
        while at_most > 0 and (cost := next(costs, 0)):
            at_most -= cost

    def forget_statements(self, name: bytes, seq: int) -> None:
        """Delete a memory's earlier statements on an edge, and the edge's earlier values that had no other evidence."""
        self._delete_prefix(keys.past_edge_of(self._owner, name, seq))
        row = self.edge(name)
        if row is None and not self.keep_if_stated(name):
            return
        self._forget_given(name, row)
        if row is not None:
            life = Life.of_row(row)
        elif lives := [*self._existing_keys(self._parts_of(name, codec.LIFE))]:
            life = Life.of(orjson.loads(self.get(lives[-1]) or b"")[1])
        else:
            return
        # The times of superseding are unknown without the deleted statement, so readers derive them from the edge.
        unknown = codec.Superseded(life.source.text, self.ingested_ms, None, until_ms=self.ingested_ms, needs_edge=True)
        self._put_superseding(life, [unknown])

    def keep_if_stated(self, name: bytes) -> bool:
        """Keep the history of an edge if it contains a statement, otherwise delete it. Return whether it is kept."""
        parts = []
        for key in self._existing_keys(keys.past_edges(self._owner, name)):
            if self._supports_edge(key):
                return True
            parts.append(key)
        self._forget_parts(parts)
        return False

    def forget_edge(self, name: bytes) -> None:
        self._forget_parts(self._existing_keys(keys.past_edges(self._owner, name)))

    def _forget_versions(self, seq: int) -> Iterator[int]:
        """Delete the replaced versions of a memory one by one, and yield the cost of each."""
        for key, value in self._partition.scan(keys.past_links_of(self._owner, seq)):
            row = LinksRow.decode(value)
            for text in row.links:
                node = NodeKey(text)
                self.put(keys.past_member(self._owner, self.name(node), seq), None)
                self.detach(node)
            for name in {*row.relations, *row.evidence}:
                self.forget_statements(bytes.fromhex(name), seq)
            self.put(key, None)
            yield _version_weight(row)

    def _forget_lives(self, key: NodeKey) -> Iterator[int]:
        for stored in self._existing_keys(keys.past_adjacency_of(self._owner, self.name(key))):
            self.forget_edge(bytes.fromhex(orjson.loads(self.get(stored) or b"")[1]))
            yield EDGE_WEIGHT

    def _forget_neighbours(self, seq: int) -> Iterator[int]:
        for stored, value in self._partition.scan(keys.past_similar_of(self._owner, seq)):
            other, change = orjson.loads(value)[1][0], keys.sequence(stored)
            self.put(stored, None)
            self.put(keys.past_similar(self._owner, other, seq, change), None)
            yield 1

    def _forget_given(self, name: bytes, row: EdgeRow | None) -> None:
        """Delete kept values of an edge that depend on evidence, if no memory's statement remains as evidence."""
        values = self._existing_keys(self._parts_of(name, codec.GIVEN))
        conditional = takewhile(lambda key: not self._supports_edge(key), values)
        first = next(conditional, None)
        if first is None or (row is not None and not all(one.relation for one in row.statements)):
            return
        parts = map(keys.edge_part, self._existing_keys(keys.past_edges(self._owner, name)))
        if all(part != codec.EVIDENCE for part, _ in parts):
            self._forget_parts([first, *conditional])

    def _parts_of(self, name: bytes, part: bytes) -> bytes:
        return keys.past_edge_of(self._owner, name, None) + part

    def _forget_parts(self, parts: Iterable[bytes]) -> None:
        for key in parts:
            if keys.edge_part(key)[0] == codec.LIFE:
                life = Life.of(orjson.loads(self.get(key) or b"")[1])
                for end in (life.source, life.target):
                    self.put(keys.past_adjacency(self._owner, self.name(end), life.number), None)
                    if not end.memory:
                        self.detach(end)
                self.forget_traces(life)
            self.put(key, None)

    def forget_traces(self, life: Life) -> None:
        """Delete the record that an edge joined two names, or made a memory supersede another."""
        if life.type == codec.SAME_AS:
            joined = keys.past_joined(self._owner, self.name(life.source), life.number)
            if self.get(joined) is not None:
                self.put(joined, None)
        self._put_superseding(life, [])

    def _put_superseding(self, life: Life, past: list[codec.Superseded]) -> None:
        """Replace the past times at which an edge superseded a memory."""
        is_superseding = life.type == codec.SUPERSEDES and life.source.memory and life.target.memory
        seq = self.seq(life.target.text) if is_superseding else None
        if seq is None:
            return
        before = self.superseding(seq)
        after = [*past, *(one for one in before if one.by != life.source.text or one.until_ms is None)]
        if after != before:
            self.put_superseding(seq, after)

    def _existing_keys(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the existing keys under a prefix of a node or edge. Keys that the event has added come first; they are
        searched by group, because an event may add thousands."""
        staged = self.staged
        group = staged.past_keys.get(prefix[: keys.GROUP_BYTES], ())
        own = (key for key in group if key.startswith(prefix) and staged.effects[key] is not None)
        return chain(own, (key for key, _ in self._partition.scan(prefix) if key not in staged.effects))

    def _delete_prefix(self, prefix: bytes) -> None:
        for key in self._existing_keys(prefix):
            self.put(key, None)


def _version_weight(row: LinksRow) -> int:
    """Return the cost of deleting the links and edges of a replaced version."""
    return VERSION_WEIGHT + len(row.links) + STATED_WEIGHT * (len(row.relations) + len(row.evidence))
