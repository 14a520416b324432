"""The graph as plain dictionaries, by the rules of docs/concepts/graph.md, without records, keys or batches."""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from recallflow.operators.graph.changes import Link
from recallflow.operators.graph.names import read_names, with_known
from recallflow.operators.graph.write import Similarity, links, relations
from recallflow.state.entity_names import is_caseless
from recallflow.state.graph_codec import NODE_KINDS, SAME_AS, SYMMETRIC, NodeDescription, NodeKey, node_key
from recallflow.state.rows import MemoryRow

Ends = tuple[NodeKey, NodeKey, str]

_numbers = count()


@dataclass
class ModelNode:
    kind: str
    name: str
    own_urn: str | None
    description: NodeDescription | None = None
    described_by: int | None = None
    archived: bool = False

    def describe(self, description: NodeDescription, by: int) -> None:
        self.description, self.described_by = description, by
        if description.urn == self.name:
            self.own_urn = self.name


@dataclass
class ModelEdge:
    """`given`: weight, confidence, archived, properties; `relations` and `evidence`: memory id → its statement."""

    given: tuple[float, float, bool, dict[str, Any]] | None = None
    stands: bool = False
    relations: dict[str, tuple[bool, dict[str, Any]]] = field(default_factory=dict)
    evidence: set[str] = field(default_factory=set)
    override: bool | None = None
    number: int = field(default_factory=lambda: next(_numbers))  # in the order they came


@dataclass
class Model:
    limits: Similarity
    rows: dict[str, MemoryRow] = field(default_factory=dict)
    vectors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    links: dict[str, dict[str, Link]] = field(default_factory=dict)
    nodes: dict[str, ModelNode] = field(default_factory=dict)
    edges: dict[Ends, ModelEdge] = field(default_factory=dict)
    similar: dict[str, dict[str, float]] = field(default_factory=dict)
    archived_pairs: set[frozenset[str]] = field(default_factory=set)
    archived_memories: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    seq: int = 0

    def remember(self, memory_id: str, vector: list[float], **fields: Any) -> None:
        if memory_id in self.rows or memory_id in self.forgotten:
            return
        self.rows[memory_id] = MemoryRow(
            id=memory_id, seq=self.seq, version=0, change=0, created_ms=0, ingested_ms=0, **{"kind": "fact"} | fields
        )
        self.seq += 1
        self._put(memory_id, vector)

    def update(self, memory_id: str, vector: list[float] | None, **fields: Any) -> None:
        row = self.rows.get(memory_id)
        if row is None or replace(row, **fields) == row:
            return
        self.rows[memory_id] = replace(row, **fields)
        self._put(memory_id, vector)

    def forget(self, memory_ids: list[str]) -> None:
        for memory_id in memory_ids:
            if memory_id not in self.rows:
                continue
            self.forgotten.add(memory_id)
            for key in [*self.links[memory_id]]:
                self._unlink(memory_id, key)
            self._withdraw(memory_id)
            own = NodeKey(memory_id, memory=True)
            self.edges = {ends: edge for ends, edge in self.edges.items() if own not in ends[:2]}
            self._part(memory_id)
            self.archived_memories.discard(memory_id)
            del self.rows[memory_id], self.links[memory_id]
            self.vectors.pop(memory_id, None)
        self._settle()

    def _put(self, memory_id: str, vector: list[float] | None) -> None:
        row, before = self.rows[memory_id], self.links.get(memory_id, {})
        wanted = links(
            row, None, with_known(read_names(row.content), self.nodes.__contains__, row.content, self._caseless())
        )
        self.links[memory_id] = dict(before)
        for key, link in wanted.items():
            node = self.nodes.setdefault(key, ModelNode(link.kind, link.name, link.name if link.is_urn else None))
            self.links[memory_id][key] = link
            if link.description is not None and node.described_by in (None, row.seq):
                node.describe(link.description, row.seq)
            elif link.description is None and node.described_by == row.seq:
                node.description = None
        for key in before.keys() - wanted.keys():
            self._unlink(memory_id, key)
        self.links[memory_id] = {key: self.links[memory_id][key] for key in wanted}
        stated = {}
        for relation in relations(row):
            ends = _ends(relation.source, relation.target, relation.type)
            stated[ends] = (relation.statement.archived, relation.statement.properties or {})
        for ends, said in stated.items():
            self.edges.setdefault(ends, ModelEdge()).relations[memory_id] = said
        for ends, edge in self.edges.items():
            if ends not in stated:
                edge.relations.pop(memory_id, None)
        if vector is not None:
            for edge in self.edges.values():
                edge.evidence.discard(memory_id)
            self._part(memory_id)
            row64 = np.array(vector, np.float64)
            self.vectors[memory_id] = (row64 / np.linalg.norm(row64)).astype(np.float32)
            self._find_similar(memory_id)
        self._settle()

    def _caseless(self) -> list[str]:
        names = [key.partition(":")[2] for key, node in self.nodes.items() if node.kind == "entity"]
        return [name for name in names if is_caseless(name)]

    def _unlink(self, memory_id: str, key: str) -> None:
        del self.links[memory_id][key]
        if self.nodes[key].described_by == self.rows[memory_id].seq:
            self.nodes[key].description = None

    def _withdraw(self, memory_id: str) -> None:
        for edge in self.edges.values():
            edge.relations.pop(memory_id, None)
            edge.evidence.discard(memory_id)

    def _find_similar(self, memory_id: str) -> None:
        own = self.vectors[memory_id].astype(np.float64)
        found = [
            (round(float(np.sum(own * vector.astype(np.float64))), 4), self.rows[other].seq, other)
            for other, vector in self.vectors.items()
            if other != memory_id
        ]
        close = sorted((one for one in found if one[0] >= self.limits.threshold), reverse=True)[: self.limits.max_k]
        mine = self.similar.setdefault(memory_id, {})
        for weight, _, other in close:
            if len(mine) == self.limits.max_per_memory:
                break
            theirs = self.similar.setdefault(other, {})
            if len(theirs) >= self.limits.max_per_memory:
                weakest = min(theirs, key=lambda one: (theirs[one], self.rows[one].seq))
                if weight <= theirs[weakest]:
                    continue
                self._part_pair(other, weakest)
            mine[other] = theirs[memory_id] = weight

    def _part(self, memory_id: str) -> None:
        for other in [*self.similar.get(memory_id, {})]:
            self._part_pair(memory_id, other)

    def _part_pair(self, one: str, other: str) -> None:
        del self.similar[one][other], self.similar[other][one]
        self.archived_pairs.discard(frozenset((one, other)))

    def relate(self, source: str, target: str, kind: str, weight: float, archived: bool, evidence: str | None) -> None:
        ends = [self._end(text, kind == "conditional_on" and text == target) for text in (source, target)]
        if ends[0] is None or ends[1] is None or ends[0][0] == ends[1][0]:
            return
        for end in ends:
            if end is not None and not end[0].memory:
                self.nodes.setdefault(end[0].text, ModelNode(end[1], end[2], None))
        edge = self.edges.setdefault(_ends(ends[0][0], ends[1][0], kind), ModelEdge())
        known = evidence in self.rows
        properties = dict(edge.given[3]) if edge.given else {}
        if evidence is not None and not known:
            properties["evidence"] = evidence
        if evidence is not None and known:
            edge.evidence.add(evidence)
        else:
            edge.stands = True
        edge.given = (weight, 1.0, archived, properties)
        edge.override = None

    def _end(self, text: str, condition: bool) -> tuple[NodeKey, str, str] | None:
        if (memory_id := self._memory(text)) is not None:
            return NodeKey(memory_id, memory=True), "memory", memory_id
        kind, _, name = text.partition(":")
        if kind == "memory":
            return None
        key = node_key(kind, name)
        if kind in ("entity", "condition"):
            return NodeKey(key), kind, name
        if key in self.nodes:
            return NodeKey(key), self.nodes[key].kind, text
        return (NodeKey(key), "condition", text) if condition and name and kind not in NODE_KINDS else None

    def _memory(self, text: str) -> str | None:
        """The memory that a text names: no text that begins like a node's key, unless it says that it is a memory."""
        kind, _, name = text.partition(":")
        memory_id = name if kind == "memory" else text
        return memory_id if memory_id in self.rows and kind not in NODE_KINDS else None

    def archive_node(self, text: str, archived: bool) -> None:
        if (memory_id := self._memory(text)) is not None:
            (self.archived_memories.add if archived else self.archived_memories.discard)(memory_id)
        elif text in self.nodes:
            for name in self.names(text):
                self.nodes[name].archived = archived

    def archive_edge(self, source: str, target: str, kind: str, archived: bool) -> None:
        one, other = self._memory(source), self._memory(target)
        ends = [NodeKey(found or text, memory=found is not None) for text, found in ((source, one), (target, other))]
        edge = self.edges.get(_ends(ends[0], ends[1], kind))
        if edge is not None and self.is_archived(edge) != archived:
            edge.override = archived
        if kind == "similar_to" and one and other and other in self.similar.get(one, {}):
            pair = frozenset((one, other))
            (self.archived_pairs.add if archived else self.archived_pairs.discard)(pair)

    @staticmethod
    def is_archived(edge: ModelEdge) -> bool:
        if edge.override is not None:
            return edge.override
        return edge.given[2] if edge.given else all(archived for archived, _ in edge.relations.values())

    def names(self, key: str) -> list[str]:
        """Return all names united with a name: URNs last, then by the first edge, source before target."""
        joining = sorted(
            (edge.number, source.text, target.text)
            for (source, target, kind), edge in self.edges.items()
            if kind == SAME_AS and not self.is_archived(edge)
            if all(not end.memory and end.text.startswith("entity:") for end in (source, target))
        )
        named = {key}
        while more := {end for _, *ends in joining if named & {*ends} for end in ends} - named:
            named |= more
        order = list(dict.fromkeys(end for _, *ends in joining for end in ends if end in named)) or [key]
        return sorted(order, key=lambda name: name.startswith("entity:urn:"))

    def called(self, key: NodeKey) -> NodeKey:
        return key if key.memory else NodeKey(self.names(key.text)[0])

    def _settle(self) -> None:
        for ends, edge in [*self.edges.items()]:
            if not edge.stands and not edge.evidence:
                edge.given = None
            if edge.given is None and not edge.relations:
                del self.edges[ends]
        led_to = {key for found in self.links.values() for key in found}
        led_to |= {end.text for ends in self.edges for end in ends[:2] if not end.memory}
        self.nodes = {key: node for key, node in self.nodes.items() if key in led_to}
        for key, node in self.nodes.items():
            if node.described_by is not None and node.description is None:
                words = [(self.rows[m].seq, found[key].description) for m, found in self.links.items() if key in found]
                told = sorted((seq, word) for seq, word in words if word is not None)[:1]
                node.described_by = None
                for seq, word in told:
                    node.describe(word, seq)


def _ends(source: NodeKey, target: NodeKey, kind: str) -> Ends:
    first, second = sorted((source, target)) if kind in SYMMETRIC else (source, target)
    return first, second, kind
