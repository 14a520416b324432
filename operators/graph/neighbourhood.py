"""The part of a memory graph around a few vertices, loaded for one query into plain dictionaries, within bounds.

A vertex is a memory, named by its `seq`, or a node that memories share, named by its key. Hops count from the vertices
that a query begins with: memory → shared node → memory is one hop, an edge between two memories is one, and so is an
edge between two shared nodes. An edge between a memory and a shared node (`conditional_on` to `time:morning`) counts
like a link.

A vertex is open if its edges and links were loaded; of a shared node with many memories, links to those that the
question prefers. A bound may keep it from that, or that it is archived, or that it is `type:…`, which says what form a
memory has and not what it is about.

Edges that do not hold are loaded too, since a trace and an explorer show them, but nothing is loaded behind them.
"""

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from recallflow.operators.graph.reader import Caps, Scope, is_form, other_end
from recallflow.queries import HOPS_MAX, HOPS_MIN
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SYMMETRIC, NodeKey
from recallflow.stepped import spend

Vertex: TypeAlias = int | NodeKey
Adjacency: TypeAlias = dict[Vertex, dict[Vertex, dict[str, Edge | None]]]
"""Vertex → neighbour → what joins them, by type: an edge, or None for a link, whose type is empty."""


OPENING_COST = 10  # of one vertex, beside the records that are read of it


class Neighbourhood:
    """What lies within 1 to 3 hops of the vertices to begin with, in the order in which it was found. A form to begin
    with is opened.

    `out` and `into` have every vertex as a key, and hold each edge and link once, at its source and at its target.
    `opened` has the key of each open vertex, `closed` says why a vertex is not open where no bound is the reason.
    """

    def __init__(self, scope: Scope, begin: Collection[Vertex], hops: int) -> None:
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
        # In each hop memories are opened first, and then the shared nodes, those that these memories led to among them.
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
        """Each neighbour, whatever the direction, with the edge to it, or None for a link."""
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
        """Adds the edges of a vertex and what they lead to. Only what edges that hold lead to is to be opened."""
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
        """Adds a vertex, if it is new, and puts it into the queue of those to open; returns whether there was room."""
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
        """As many links or edges of a vertex as the fan-out allows."""
        if len(found) > self._bounds.fan_out and str(own) not in self.caps.fan_out[-1:]:
            self.caps.fan_out.append(str(own))
        return found[: self._bounds.fan_out]

    def _may_read(self) -> bool:
        self._reads += 1
        spend(OPENING_COST)
        return self._fits(self._reads <= self._bounds.opened)

    def _fits(self, fits: bool) -> bool:
        """The same, having noted the hop at which a bound was reached first."""
        if not fits and self.caps.visited_at_hop is None:
            self.caps.visited_at_hop = self._hop
        return fits
