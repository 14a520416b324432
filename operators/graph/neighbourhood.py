"""The part of a memory graph around a few vertices, loaded for one query into dictionaries, within limits.

A vertex is a memory, identified by its `seq`, or a shared node, identified by its key. Hops count from the initial
vertices: memory → shared node → memory is one hop, as is an edge between two memories or between two shared nodes. An
edge between a memory and a shared node (`conditional_on` to `time:morning`) counts like a link.

A vertex is open if its edges and links were loaded; for a shared node with many memories, only the links preferred by
the query. A vertex stays closed at a limit, if it is archived, or if it is a `type:…` node, which describes the form of
a memory and not its subject.

Edges that do not hold are loaded for traces and the explorer, but nothing is loaded behind them."""

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from recallflow.operators.graph.reader import Caps, TraversalScope, is_form, other_end
from recallflow.queries import HOPS_MAX, HOPS_MIN
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SYMMETRIC, NodeKey
from recallflow.stepped import spend

Vertex: TypeAlias = int | NodeKey
Adjacency: TypeAlias = dict[Vertex, dict[Vertex, dict[str, Edge | None]]]
"""Vertex → neighbour → edge type → edge; None for a link, whose type is empty."""


OPENING_COST = 10  # work units per vertex, in addition to its reads


class Neighbourhood:
    """The vertices within 1 to 3 hops of the initial ones, in the order of discovery. An initial `type:…` node is
    opened.

    Attributes:
        out: Each edge and link at its source. All vertices are keys.
        into: Each edge and link at its target. All vertices are keys.
        opened: The key of each open vertex.
        closed: The reason why a vertex is closed, other than a limit.
    """

    def __init__(self, scope: TraversalScope, begin: Collection[Vertex], hops: int) -> None:
        self.out: Adjacency = {}
        self.into: Adjacency = {}
        self.opened: dict[Vertex, NodeKey] = {}
        self.closed: dict[Vertex, str] = {}
        self.caps = Caps()
        self.hops = min(max(hops, HOPS_MIN), HOPS_MAX)
        self._scope, self._graph, self._bounds = scope, scope.graph, scope.bounds
        self._begin = frozenset(begin)
        self._queued: set[Vertex] = set()
        self._reads = 0
        self._hop = HOPS_MIN
        # Each hop opens memories first, then shared nodes, including those found from these memories.
        memories: list[int] = []
        nodes: list[NodeKey] = []
        for vertex in begin:
            self._add(vertex, memories if isinstance(vertex, int) else nodes)
        for hop in range(1, self.hops + 1):
            self._hop = hop
            next_memories: list[int] = []
            next_nodes: list[NodeKey] = []
            for seq in memories:
                self._open_memory(seq, next_memories, nodes)
            for key in nodes:
                self._open_node(key, next_memories, next_nodes)
            memories, nodes = next_memories, next_nodes

    def around(self, vertex: Vertex) -> Iterator[tuple[Vertex, Edge | None]]:
        """Yield each neighbour in either direction, with the edge; None for a link."""
        for adjacency in (self.out, self.into):
            for other, joined in adjacency[vertex].items():
                for edge in joined.values():
                    yield other, edge

    # ------------------------------------------------------------------ loading

    def _open_memory(self, seq: int, memories: list[int], nodes: list[NodeKey]) -> None:
        if not self._may_read() or not (links := self._graph.links(seq)):
            return
        own, *shared = [key for key, _ in links]
        if self._graph.is_archived(own):
            self.closed[seq] = "archived node"
            return
        self.opened[seq] = own
        for key in self._first(own, shared):
            if self._add(key, nodes):
                self._join(seq, key, "", None)
        self._add_edges(seq, own, memories, nodes)

    def _open_node(self, key: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        if not self._may_read():
            return
        if self._graph.is_archived(key):
            self.closed[key] = "archived node"
            return
        if is_form(key) and key not in self._begin:
            self.closed[key] = "node of a form"
            return
        self.opened[key] = key
        for seq in self._first(key, self._scope.linked(key)):
            if self._add(seq, memories):
                self._join(seq, key, "", None)
        self._add_edges(key, key, memories, nodes)

    def _add_edges(self, vertex: Vertex, own: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        """Add the edges of a vertex and their ends. Only ends of edges that hold are opened later."""
        for edge in self._first(own, self._graph.edges(own, self._bounds.fan_out + 1)):
            other = other_end(edge, own)
            queue: list[Any] = memories if other.memory else nodes
            found: list[Vertex] = [*self._graph.members(other, 1)] if other.memory else [other]
            for end in found:
                if self._add(end, queue if self._scope.holds(edge) else None):
                    source, target = (vertex, end) if edge.source == own else (end, vertex)
                    if edge.type not in SYMMETRIC or edge.type not in self.out[target].get(source, ()):
                        self._join(source, target, edge.type, edge)

    def _join(self, source: Vertex, target: Vertex, kind: str, edge: Edge | None) -> None:
        joined = self.out[source].setdefault(target, {})
        joined[kind] = edge
        self.into[target][source] = joined

    def _add(self, vertex: Vertex, queue: list[Any] | None) -> bool:
        """Add a vertex if it is new, and queue it for opening. Return whether there was room."""
        if vertex not in self.out:
            if not self._fits(len(self.out) < self._bounds.visited):
                return False
            self.out[vertex], self.into[vertex] = {}, {}
        if queue is None or vertex in self._queued or (isinstance(vertex, int) and not self._scope.allowed(vertex)):
            return True
        self._queued.add(vertex)
        queue.append(vertex)
        return True

    def _first(self, own: NodeKey, found: list[Any]) -> list[Any]:
        """Return the links or edges of a vertex within the fan-out limit."""
        if len(found) > self._bounds.fan_out and str(own) not in self.caps.fan_out[-1:]:
            self.caps.fan_out.append(str(own))
        return found[: self._bounds.fan_out]

    def _may_read(self) -> bool:
        self._reads += 1
        spend(OPENING_COST)
        return self._fits(self._reads <= self._bounds.opened)

    def _fits(self, fits: bool) -> bool:
        """Return `fits`, and note the hop at which a limit was reached first."""
        if not fits and self.caps.visited_at_hop is None:
            self.caps.visited_at_hop = self._hop
        return fits
