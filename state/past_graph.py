"""One owner's memory graph at an earlier time, with the links, edges and archive marks of that time.

An index of that time has the versions of memories, and the episodes. A link exists if the version in the index created
it. A statement of an edge counts if it was ingested by that time and not yet replaced, or if it was replaced by an edit
after the version in the index. Replaced and deleted statements are in tables of their own (`operators/graph/past.py`).
Names and descriptions of nodes are the current ones. Deleted memories have no history."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import orjson

from recallflow.fields import EPOCH_MS_MAX
from recallflow.state import graph_codec as codec
from recallflow.state import keys
from recallflow.state.entity_names import AliasJoin, PastUnions, Unions, decode_all_joins
from recallflow.state.graph import Edge, Node, OwnerGraph, edge_of, similar_edge
from recallflow.state.index import OwnerIndex
from recallflow.state.partition import Partition
from recallflow.state.rows import Entry

READ_FACTOR = 16  # links or edges that are read per requested one, because some did not exist at that time


class _ListedEdge(NamedTuple):
    """An edge in the adjacency list of `end`. `row`: None if the edge did not exist at that time."""

    number: int
    name: bytes
    row: codec.EdgeRow | None
    end: codec.NodeKey


class PastGraph(OwnerGraph):
    """The graph of events ingested by `known_by_ms` that happened by `happened_by_ms` (None: all), over `index`."""

    has_own_episodes = False  # whether the episodes of the index differ from those of the stored links

    def __init__(
        self, partition: Partition, owner: bytes, index: OwnerIndex, known_by_ms: int | None, happened_by_ms: int | None
    ) -> None:
        super().__init__(partition, owner)
        self._index = index
        self._known_ms = EPOCH_MS_MAX if known_by_ms is None else known_by_ms
        self._happened_ms = EPOCH_MS_MAX if happened_by_ms is None else happened_by_ms
        happened = index.facts["created_ms"] <= self._happened_ms
        self._newest = int(index.facts["seq"].max(initial=-1, where=happened))
        self._links: dict[tuple[int, int], list[tuple[codec.NodeKey, str]]] = {}
        self._episode_keys = {} if known_by_ms is None and not self.has_own_episodes else _episode_nodes(index)
        self._episode_numbers = {key: number for number, key in self._episode_keys.items()}

    def node(self, key: codec.NodeKey) -> Node | None:
        if key.memory:
            exists = self._seq(key) is not None
        else:
            name_keys = self._name_keys(key)
            exists = any(self._row(one) is not None for one in name_keys)
            exists = exists and bool(len(name_keys) > 1 or self.members(key, 1) or self._explicit_edges(key, 1))
        return super().node(key) if exists else None

    def entities(self) -> Iterator[codec.NodeKey]:
        yield from super().entities()
        for _, value in self._scan(keys.PAST_NODE):
            _, stored = orjson.loads(value)
            if stored is not None and not (key := codec.NodeKey(*stored[0])).memory:
                yield self._canonical(key)

    def members(self, key: codec.NodeKey, limit: int) -> list[int]:
        if key.memory:
            return super().members(key, limit)
        candidates: Iterable[int]
        if (number := self._episode_numbers.get(key)) is not None:
            facts = self._index.conversation.facts
            own, candidates = key, sorted({*facts["seq"][facts["episode"] == number].tolist()}, reverse=True)
        else:
            own, candidates = self._canonical(key), self._ever_linked(key, limit)
        return [*islice((seq for seq in candidates if any(node == own for node, _ in self.links(seq))), limit)]

    def links(self, seq: int) -> list[tuple[codec.NodeKey, str]]:
        slot = self._slot(seq)
        return [] if slot is None else self._links_of(seq, int(self._index.facts["version"][slot]))

    def unions(self) -> Unions:
        if self._unions is None:
            self._unions = PastUnions(self._join_candidates(), self._alias_joins)
        return self._unions

    def has_stated_edges(self) -> bool:
        """Return whether any edge other than similarity exists or existed."""
        return super().has_stated_edges() or next(self._scan(keys.PAST_ADJACENCY), None) is not None

    def _supersessions_in_force(self, seq: int, supersessions: Iterable[codec.Superseded]) -> list[codec.Superseded]:
        """Return the supersessions in force at that time. Those with `needs_edge` are read from their edges."""
        stored, known_ms = [*supersessions], self._known_ms
        from_edges = dict.fromkeys(one.by for one in stored if one.needs_edge)  # ordered
        known = (one for one in stored if one.ingested_ms <= known_ms)
        current = (one for one in known if one.until_ms is None or one.until_ms > known_ms)
        in_force = [one for one in current if one.by not in from_edges]
        in_force += [one for by_id in from_edges if (one := self._supersession_by(seq, by_id)) is not None]
        return [one for one in in_force if one.applies_at(self._happened_ms)]

    def _supersession_by(self, seq: int, by: str) -> codec.Superseded | None:
        """Return the supersession of a memory by another, if the edge between them hid the memory at that time."""
        links = self._partition.read(keys.links(self._owner, seq), codec.LinksRow.decode)
        if links is None:
            return None
        target = codec.NodeKey(links.id, memory=True)
        edge = next(self._rows_of(self._name_between(codec.NodeKey(by, memory=True), target, codec.SUPERSEDES)), None)
        if edge is None or not edge.hides_target:
            return None
        from_ms = edge.current.valid_from_ms
        return codec.Superseded(by, edge.ingested_ms, edge.ends_ms, from_ms, stated_ms=edge.stated_ms)

    def _row(self, key: codec.NodeKey) -> codec.NodeRow | None:
        row_of_time, past_row = super()._row(key), None
        for _, value in self._partition.scan(keys.past_nodes(self._owner, self.name(key))):
            until_ms, stored = orjson.loads(value)
            row = None if stored is None else codec.NodeRow(codec.NodeKey(*stored[0]), *stored[1:])
            if until_ms > self._known_ms:
                row_of_time = row if row is None or row_of_time is None else row_of_time._replace(archived=row.archived)
                break
            past_row = row or past_row
        # The version of that time may be linked to a node that an edit removed: its last record applies. A memory's
        # record is only an archive mark, which does not apply after its end.
        return row_of_time if key.memory else row_of_time or past_row

    def _seq(self, key: codec.NodeKey) -> int | None:
        seq = super()._seq(key)
        return None if seq is None or self._slot(seq) is None else seq

    def _slot(self, seq: int) -> int | None:
        """Return the slot of a memory that is in the index and had happened, or None."""
        slot = self._index.slot(seq)
        return None if slot is None or self._index.facts["created_ms"][slot] > self._happened_ms else slot

    def _linked(self, table: bytes, node: bytes) -> Iterator[int]:
        """Yield the `seq` of the memories linked to a node in a table, newest first."""
        first, end = keys.members_from(self._owner, table, node, self._newest)
        return (keys.reversed_sequence(key) for key, _ in self._partition.scan_range(first, end))

    def _ever_linked(self, key: codec.NodeKey, limit: int) -> Iterable[int]:
        """Return the `seq` of memories of which any version is linked to the node, newest first, up to a read limit."""
        if self._newest < 0:
            return []
        tables, name_keys = (keys.MEMBER, keys.PAST_MEMBER), self.unions().names(key)
        linked = (self._linked(table, self.name(one)) for table in tables for one in name_keys)
        return dict.fromkeys(islice(heapq.merge(*linked, reverse=True), READ_FACTOR * limit))

    def _links_of(self, seq: int, version: int) -> list[tuple[codec.NodeKey, str]]:
        if (seq, version) not in self._links:
            self._links[seq, version] = [*self._read_links(seq, version)]
        return self._links[seq, version]

    def _read_links(self, seq: int, version: int) -> Iterator[tuple[codec.NodeKey, str]]:
        slot = self._slot(seq)
        row = None if slot is None else self._links_row(seq, version)
        if row is None:
            return
        yield codec.NodeKey(row.id, memory=True), codec.SELF_ROLE
        shared: dict[codec.NodeKey, str] = {}
        for text, role in row.links.items():
            if role != codec.EPISODE_KIND or not self._episode_keys:
                shared.setdefault(self._canonical(codec.NodeKey(text)), role)
        yield from shared.items()
        episode = self._episode_keys.get(int(self._index.facts["episode"][slot]))
        if episode is not None:
            yield episode, codec.EPISODE_KIND

    def _links_row(self, seq: int, version: int) -> codec.LinksRow | None:
        """Return the graph contributions of a version. Equal ones of several versions are stored under the last one."""
        end = keys.after(keys.past_links_of(self._owner, seq))
        past = next(self._partition.scan_range(keys.past_links(self._owner, seq, version), end), None)
        stored = self._partition.get(keys.links(self._owner, seq)) if past is None else past[1]
        return None if stored is None else codec.LinksRow.decode(stored)

    def _explicit_edges(self, key: codec.NodeKey, limit: int) -> list[Edge]:
        name_keys = self._name_keys(key)
        listed = heapq.merge(*map(self._listed_edges, name_keys), key=lambda one: one.number, reverse=True)
        enough = limit if key.memory else limit + sum(map(self.unions().join_count, name_keys))
        found: dict[bytes, Edge] = {}
        for _, name, row, own in islice(listed, READ_FACTOR * limit):
            if row is not None and name not in found and (past := self._edge_row(name, row)) is not None:
                edge = edge_of(past, own)
                if self._happened(edge):
                    found[name] = edge
            if len(found) == enough:
                break
        return self._between_entities(found.values())[:limit]

    def _alias_joins(self, candidates: Iterable[AliasJoin]) -> Iterable[AliasJoin]:
        """Return the candidates in force at that time, in order of number."""
        by_number = sorted(candidates, key=lambda one: one.number)
        return (one for one in by_number if self._join_edge(*one) is not None)

    def _join_candidates(self) -> Iterator[AliasJoin]:
        """Yield the joins of all times, possibly repeatedly."""
        for name, joins in decode_all_joins(value for _, value in self._scan(keys.JOINED)):
            yield from (AliasJoin(name, other, number) for other, number, leads in joins if leads)
        for key, value in self._scan(keys.PAST_JOINED):
            source, target = orjson.loads(value)
            yield AliasJoin(source, target, keys.sequence(key))

    def _join_edge(self, source: str, target: str, number: int) -> Edge | None:
        """Return the edge of this number, if it joined two names at that time."""
        ends = codec.NodeKey(source), codec.NodeKey(target)
        rows = self._rows_of(self._name_between(*ends, codec.SAME_AS))
        row = next((one for one in rows if one.number == number), None)
        edge = edge_of(row, ends[0]) if row is not None and row.joins_entities else None
        return edge if edge is not None and self._happened(edge) else None

    def _edge_names(self, last: bytes) -> Iterator[bytes]:
        current, past = (self._names_after(table, last) for table in (keys.EDGE, keys.PAST_EDGE))
        return (name for name, _ in groupby(heapq.merge(current, past)))

    def _stored_edge(self, name: bytes) -> tuple[int, Edge] | None:
        found = ((row.number, edge_of(row, row.source)) for row in self._rows_of(name))
        return next((one for one in found if self._happened(one[1])), None)

    def _rows_of(self, name: bytes) -> Iterator[codec.EdgeRow]:
        """Yield the rows of an edge's name at that time: that of a current edge, then those of deleted ones."""
        row = self._partition.read(keys.edge(self._owner, name), codec.EdgeRow.decode)
        rows = [row if row is not None and row.added_ms <= self._known_ms else None]
        for _, value in self._partition.scan_back(keys.past_edge_of(self._owner, name, None) + codec.LIFE):
            rows.append(self._past_life(*orjson.loads(value)))
        yield from (past for row in rows if row is not None and (past := self._edge_row(name, row)) is not None)

    def _happened(self, edge: Edge) -> bool:
        """Return whether an edge applies at that time: from its start of validity, or else from its event time."""
        return (edge.stated_ms if edge.valid_from_ms is None else edge.valid_from_ms) <= self._happened_ms

    def _listed_edges(self, key: codec.NodeKey) -> Iterator[_ListedEdge]:
        """Yield current and deleted edges of a node, the newest first."""
        node = self.name(key)

        def current() -> Iterator[_ListedEdge]:
            for stored, name in self._partition.scan(keys.adjacency_of(self._owner, node)):
                row = self._partition.read(keys.edge(self._owner, name), codec.EdgeRow.decode)
                existed = row is not None and row.added_ms <= self._known_ms
                yield _ListedEdge(keys.reversed_sequence(stored), name, row if existed else None, key)

        def past() -> Iterator[_ListedEdge]:
            for stored, value in self._partition.scan(keys.past_adjacency_of(self._owner, node)):
                until_ms, name, life = orjson.loads(value)
                row = self._past_life(until_ms, life)
                yield _ListedEdge(keys.reversed_sequence(stored), bytes.fromhex(name), row, key)

        return heapq.merge(current(), past(), key=lambda one: one.number, reverse=True)

    def _past_life(self, until_ms: int, stored: list[Any]) -> codec.EdgeRow | None:
        """Return the row (without its statements) of a deleted edge, if the edge existed at that time."""
        life = codec.Life.of(stored)
        # An index by event time may have a memory's version before the edit that removed the statements.
        existed = life.added_ms <= self._known_ms and (self._known_ms < until_ms or self._happened_ms < EPOCH_MS_MAX)
        return codec.EdgeRow(*life[:4], added_ms=life.added_ms) if existed else None

    def _edge_row(self, name: bytes, row: codec.EdgeRow) -> codec.EdgeRow | None:
        """Return the row of an edge at that time, from current statements and those replaced or withdrawn since."""
        parts: dict[tuple[bytes, int | None], Any] = {
            (codec.RELATION if one.relation else codec.EVIDENCE, one.seq): one for one in row.statements
        }
        parts[codec.GIVEN, None], parts[codec.OVERRIDE, None] = row.given, row.archived
        replaced = set()
        for key, value in self._partition.scan(keys.past_edges(self._owner, name)):
            part, seq = keys.edge_part(key)
            until_ms, content = orjson.loads(value)
            is_later = until_ms > self._known_ms or (part == codec.RELATION and self._is_later(seq, keys.sequence(key)))
            if part != codec.LIFE and is_later and (part, seq) not in replaced:
                replaced.add((part, seq))
                parts[part, seq] = codec.edge_part(part, content)
        given, archived = parts.pop((codec.GIVEN, None)), parts.pop((codec.OVERRIDE, None))
        known = [one for one in parts.values() if one.ingested_ms <= self._known_ms]
        statements = sorted(known, key=lambda one: (one.seq, one.relation))
        if given is not None:
            has_reason = given.is_unconditional or any(not one.relation for one in statements)
            given = given if has_reason and given.ingested_ms <= self._known_ms else None
        if given is None and not statements:
            return None
        return row._replace(given=given, statements=tuple(statements), archived=archived)

    def _is_later(self, seq: int | None, change: int) -> bool:
        """For a memory edited since, return whether the change came after the version of that time."""
        slot = None if seq is None else self._index.slot(seq)
        if seq is None or slot is None:
            return False
        version = int(self._index.facts["version"][slot])
        entry = self._partition.read(keys.past_entry(self._owner, seq, version), Entry.decode)
        return entry is not None and entry.change < change

    def _similar(self, key: codec.NodeKey, seq: int | None) -> list[Edge]:
        if seq is None:
            return []
        current = self._partition.read(keys.similar(self._owner, seq), codec.decode_neighbours)
        near = {one.seq: one for one in current or ()}
        replaced = set()
        for _, value in self._partition.scan(keys.past_similar_of(self._owner, seq)):
            until_ms, content = orjson.loads(value)
            one = codec.StoredNeighbour(*content)
            if until_ms > self._known_ms and one.seq not in replaced:
                replaced.add(one.seq)
                near[one.seq] = one
        known = [one for one in near.values() if one.ingested_ms <= self._known_ms and self._slot(one.seq) is not None]
        return [similar_edge(key, one) for one in sorted(known, key=lambda one: (-one.weight, -one.seq))]


def _episode_nodes(index: OwnerIndex) -> dict[int, codec.NodeKey]:
    """Return the node of each episode with memories in the index, by number."""
    numbers = np.unique(index.conversation.facts["episode"]).tolist()
    found = ((number, index.episode(number)) for number in numbers if number >= 0)
    texts = {number: codec.node_key(codec.EPISODE_KIND, one.id) for number, one in found if one is not None}
    return {number: codec.NodeKey(text) for number, text in texts.items()}


class VersionGraph(PastGraph):
    """A graph in which a memory has the links of all its versions in the index."""

    def members(self, key: codec.NodeKey, limit: int) -> list[int]:
        """Return the `seq` of memories with a version linked to the node, newest first; for a memory, its own."""
        if key.memory or key in self._episode_numbers:
            return super().members(key, limit)
        own, candidates = self._canonical(key), [*self._ever_linked(key, limit)]
        versions = self._versions(candidates)
        linked = (seq for seq in candidates if any(self.was_linked(seq, one, own) for one in versions.get(seq, ())))
        return [*islice(linked, limit)]

    def was_linked(self, seq: int, version: int, key: codec.NodeKey) -> bool:
        return any(node == key for node, _ in self._links_of(seq, version))

    def _versions(self, seqs: list[int]) -> dict[int, list[int]]:
        facts = self._index.conversation.facts
        matches = np.isin(facts["seq"], seqs)
        found: dict[int, list[int]] = {}
        for seq, version in zip(facts["seq"][matches].tolist(), facts["version"][matches].tolist(), strict=True):
            found.setdefault(seq, []).append(version)
        return found
