"""The index and graph of an owner's memories of some projects (scoped memories), for senders who may read no others.

An edge exists if a scoped memory states it. If an event gave an edge its values, they apply if the event names a scoped
memory as evidence, or if both ends are scoped memories; the properties of the event are left out. Nodes have the names
and descriptions that scoped memories give them. Archive marks apply regardless of their origin."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from recallflow.errors import DecryptionFailed
from recallflow.state import graph_codec as codec
from recallflow.state import keys
from recallflow.state.entity_names import AliasJoin
from recallflow.state.graph import Edge
from recallflow.state.index import OwnerIndex
from recallflow.state.past_graph import READ_FACTOR, PastGraph, VersionGraph
from recallflow.state.rows import EpisodeRow, MemoryRow


@dataclass(slots=True)
class ScopedIndex:
    """An index of scoped memories. Its episodes are computed from these memories only."""

    index: OwnerIndex
    gap_ms: int  # the inactivity gap between episodes
    sessions: dict[str | None, list[EpisodeRow]] = field(default_factory=dict)  # episodes in order of time

    def __post_init__(self) -> None:
        for episode in sorted(self.index.episodes(), key=lambda one: (one.start_ms, one.last_ms, one.number)):
            self.sessions.setdefault(episode.session_id, []).append(episode)

    def holds(self, project_id: str | None) -> bool:
        """Return whether a project belongs to the scope."""
        return self.index.projects is not None and project_id in self.index.projects


MAX_MEMBERS = 100  # newest memories of a node; the oldest of them gives its name
MAX_READ = 4  # of these memories, until one contains the name
NEWEST = 1_000  # memories whose links are read to list entities


class ScopedGraph(PastGraph):
    """The graph of the memories of an index (see `PastGraph`)."""

    has_own_episodes = True

    def entities(self) -> Iterator[codec.NodeKey]:
        """Yield the nodes that the newest memories are linked to, possibly repeatedly."""
        seqs = {*self._index.conversation.facts["seq"].tolist()}
        for seq in sorted(seqs, reverse=True)[:NEWEST]:
            yield from (key for key, _ in self.links(seq)[1:])

    def _edge_row(self, name: bytes, row: codec.EdgeRow) -> codec.EdgeRow | None:
        if any(end.memory and self._seq(end) is None for end in (row.source, row.target)):
            return None
        if (unscoped := super()._edge_row(name, row)) is None:
            return None
        statements = tuple(one for one in unscoped.statements if self._slot(one.seq) is not None)
        gives_values = (row.source.memory and row.target.memory) or any(not one.relation for one in statements)
        given = _without_properties(unscoped.given, statements) if unscoped.given is not None and gives_values else None
        return None if given is None and not statements else unscoped._replace(given=given, statements=statements)

    def _explicit_edges(self, key: codec.NodeKey, limit: int) -> list[Edge]:
        """Return edges by ingestion, newest first; the order of numbers would reveal statements of other memories."""
        edges = super()._explicit_edges(key, limit)
        return sorted(edges, key=lambda edge: (-edge.ingested_ms, edge.type, str(edge.source), str(edge.target)))

    def _alias_joins(self, candidates: Iterable[AliasJoin]) -> Iterable[AliasJoin]:
        """Return the candidates that scoped memories state, numbered in order of their ingestion."""
        found: dict[tuple[str, str], int] = {}
        for source, target, number in candidates:
            if (edge := self._join_edge(source, target, number)) is not None:
                found[source, target] = min(edge.ingested_ms, found.get((source, target), edge.ingested_ms))
        ordered = sorted(found, key=lambda ends: (found[ends], ends))
        return (AliasJoin(*ends, number) for number, ends in enumerate(ordered))

    def _supersessions_in_force(self, seq: int, supersessions: Iterable[codec.Superseded]) -> list[codec.Superseded]:
        """Return the supersessions of a memory by edges that scoped memories state."""
        if self._slot(seq) is None:
            return []
        ids = dict.fromkeys(one.by for one in supersessions)
        found = (self._supersession_by(seq, by_id) for by_id in ids)
        return [one for one in found if one is not None and one.applies_at(self._happened_ms)]

    def _row(self, key: codec.NodeKey) -> codec.NodeRow | None:
        row = super()._row(key)
        if key.memory or key.text.partition(":")[0] != codec.EPISODE_KIND:
            return row
        # The episodes of scoped memories are computed, and have no stored node.
        if (number := self._episode_numbers.get(key)) is None or (episode := self._index.episode(number)) is None:
            return None
        return row or codec.NodeRow(key, codec.EPISODE_KIND, episode.id)

    def _visible_row(self, key: codec.NodeKey) -> codec.NodeRow | None:
        row = self._row(key)
        if row is None or key.memory:
            return row
        name = self._name_in_memories(key)
        renamed = row._replace(name=name, urn=name if row.urn == row.name else None)
        return renamed.describe(self._description(key), None)

    def _description(self, key: codec.NodeKey) -> codec.NodeDescription | None:
        """Return the first description of a node by a scoped memory."""
        if not key.text.startswith(f"{codec.ENTITY_KIND}:"):
            return None
        first, end = keys.members_from(self._owner, keys.MEMBER, self.name(key), self._newest)
        found = None
        for examined, (stored, value) in enumerate(self._partition.scan_range(first, end)):
            if examined == READ_FACTOR * MAX_MEMBERS:
                break
            if self._slot(keys.reversed_sequence(stored)) is not None:
                found = codec.decode_member(value)[1] or found
        return found

    def _name_in_memories(self, key: codec.NodeKey) -> str:
        """Return a node's name as scoped memories spell it, or case-folded if none of the read ones contains it."""
        for seq in sorted(PastGraph.members(self, key, MAX_MEMBERS))[:MAX_READ]:
            if (row := self._memory(seq)) is not None and (name := _name_in(row, key)) is not None:
                return name
        return key.text.partition(":")[2]

    def _memory(self, seq: int) -> MemoryRow | None:
        if (slot := self._slot(seq)) is None:
            return None
        name = self._partition.keyring.name(self._owner, self._index.ids[slot])
        try:
            key = keys.row(self._owner, name, int(self._index.facts["version"][slot]))
            return self._partition.read(key, MemoryRow.decode)
        except DecryptionFailed:
            return None


class ScopedVersionGraph(ScopedGraph, VersionGraph):
    """The graph of all versions in an index of scoped memories."""


def _without_properties(given: codec.GivenEdge, statements: tuple[Any, ...]) -> codec.GivenEdge:
    """Return the values of an edge given by an event, without its properties, with the times of the statements."""
    ingested_ms = min((one.ingested_ms for one in statements), default=given.ingested_ms)
    stated_ms = min((one.stated_ms for one in statements), default=given.stated_ms)
    return given._replace(properties={}, ingested_ms=ingested_ms, stated_ms=stated_ms)


def _name_in(row: MemoryRow, key: codec.NodeKey) -> str | None:
    """Return a node's name as spelt in a memory's fields or text, or None."""
    kind, _, folded = key.text.partition(":")
    names = [row.name, row.category, row.project_id, row.kind, *row.tags, *row.topics]
    for entity in row.entities:
        names += [entity["name"], entity.get("urn"), *entity.get("aliases", ())]
    for relation in row.relations:
        names += [relation["source"], relation["target"]]
    for name in names:
        if name is not None and codec.node_key(kind, name) == key.text:
            return str(name)
    words = r"\s+".join(map(re.escape, folded.split()))
    matches = re.finditer(rf"(?<!\w){words}(?!\w)", row.content, re.IGNORECASE) if words else ()
    spellings = [match[0] for match in matches]
    return next((text for text in spellings if not text.islower()), next(iter(spellings), None))
