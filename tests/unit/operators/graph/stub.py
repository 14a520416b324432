"""A small memory graph that answers like a reader of the stored graph."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from recallflow.operators.graph.paths import Walk
from recallflow.operators.graph.reader import TraversalScope
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_codec import SELF_ROLE, SYMMETRIC, NodeKey

NOW_MS = 1_000


def key(text: str) -> NodeKey:
    """`m1`, `m2`, … are memories; everything else is a shared node."""
    return NodeKey(text, memory=text[:1] == "m" and text[1:].isdecimal())


def edge(source: str, kind: str, target: str, **fields: Any) -> Edge:
    """An edge that holds, with weight and confidence 1, unless said otherwise."""
    told: dict[str, Any] = {
        "weight": 1.0, "confidence": 1.0, "evidence": [], "expires_ms": None, "archived": False, "ingested_ms": 0,
        "properties": {},
    }  # fmt: skip
    return Edge(source=key(source), target=key(target), type=kind, **told | fields)


class StubGraph(OwnerGraph):
    """The graph of memories `m0`, `m1`, …, numbered by `seq`. Links to entities are read from texts, others are
    given."""

    def __init__(
        self, links: dict[str, list[str]], edges: Iterable[Edge] = (), archived: Iterable[str] = (), urns: Any = None
    ) -> None:
        self.archived = set(archived)
        self.urns: dict[str, str] = urns or {}
        self.read: list[NodeKey | int] = []  # what was asked for links, members or edges
        self._links = {int(memory[1:]): [key(text) for text in nodes] for memory, nodes in links.items()}
        self._members: dict[NodeKey, list[int]] = defaultdict(list)
        for seq in sorted(self._links, reverse=True):
            for node in self._links[seq]:
                self._members[node].append(seq)
        self._edges: dict[NodeKey, list[Edge]] = defaultdict(list)
        for one in edges:
            self._edges[one.source].append(one)
            if one.target != one.source:
                turned = one.type in SYMMETRIC
                self._edges[one.target].append(one._replace(source=one.target, target=one.source) if turned else one)

    def node(self, key: NodeKey) -> Node | None:
        known = int(key.text[1:]) in self._links if key.memory else key in self._members or key in self._edges
        if not known:
            return None
        kind, _, name = ("memory", "", key.text) if key.memory else key.text.partition(":")
        return Node(key, kind, name, self.urns.get(key.text), key.text in self.archived, {})

    def is_archived(self, key: NodeKey) -> bool:
        return key.text in self.archived

    def members(self, key: NodeKey, limit: int) -> list[int]:
        self.read.append(key)
        if key.memory:
            seq = int(key.text[1:])
            return [seq][:limit] if seq in self._links else []
        return self._members[key][:limit]

    def links(self, seq: int) -> list[tuple[NodeKey, str]]:
        self.read.append(seq)
        own = (NodeKey(f"m{seq}", memory=True), SELF_ROLE)
        return (
            [own, *((node, "mention" if node.text.startswith("entity:") else "tag") for node in self._links[seq])]
            if seq in self._links
            else []
        )

    def edges(self, key: NodeKey, limit: int) -> list[Edge]:
        self.read.append(key)
        return self._edges[key][:limit]

    def find(self, text: str) -> NodeKey | None:
        named = key(text)
        return named if self.node(named) is not None else None

    def by_urn(self, urn: str) -> list[NodeKey]:
        return [key(text) for text, own in self.urns.items() if own == urn]

    def nodes(self) -> Iterator[Node]:
        memories = (NodeKey(f"m{seq}", memory=True) for seq in self._links)
        shared = dict.fromkeys(node for node in (*self._members, *self._edges) if not node.memory)
        yield from (node for node in map(self.node, (*memories, *shared)) if node is not None)

    def all_edges(self) -> Iterator[Edge]:
        for node_key, edges in self._edges.items():
            yield from (one for one in edges if one.source == node_key)


def scope(graph: StubGraph, **fields: Any) -> TraversalScope:
    given: dict[str, Any] = {"now_ms": NOW_MS}
    return TraversalScope(graph, **given | fields)


def walk(graph: StubGraph, *begin: str, hops: int = 1, **fields: Any) -> Walk:
    return Walk(scope(graph, **fields), {int(memory_id[1:]): memory_id for memory_id in begin}, hops)
