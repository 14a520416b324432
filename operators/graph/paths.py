"""Paths from seed memories along the edges: which memories they reach, and with what score.

A memory's score is that of the edge that reached it: type weight · weight · confidence / hops. A memory reached through
a shared node has the edge by which the path came to that node from another node; where it came from a memory, the score
is that of a link, which has the type `shared_node` and weight and confidence 1.

A path goes on from a vertex if it came there with the fewest hops, and if it is the best of those; the next best goes
on to the vertices that the best one has passed. No path comes to a vertex twice. Of all paths to a memory the best
counts: by score, then by fewer hops, then by the key of the vertex before the memory.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from recallflow.operators.graph.neighbourhood import Neighbourhood, Vertex
from recallflow.operators.graph.reader import Scope
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import NodeKey

SHARED_NODE = "shared_node"
TYPE_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "caused_by": 1.5,
        "contradicts": 1.3,
        "supersedes": 1.2,
        "similar_to": 1.0,
        "depends_on": 0.9,
        "prefers_over": 0.8,
        "specializes": 0.7,
        "conditional_on": 0.6,
        SHARED_NODE: 0.25,
    }
)

Seeds: TypeAlias = Mapping[int, str]
"""`seq` → id of the memories that paths begin with, best first."""


class Reached(NamedTuple):
    """A memory at the end of a path: `seed` is the id of where the path begins, `node` the vertex before the memory,
    and `edge` the one that gives the score (None: a link)."""

    seq: int
    score: float
    hops: int
    seed: str
    node: NodeKey
    edge: Edge | None

    @property
    def order(self) -> tuple[float, int, str]:
        """Sorts the best path first."""
        return -self.score, self.hops, str(self.node)


class Step(NamedTuple):
    """An edge (None: a link) that was looked at, and the outcome. `score` is given where it leads to a memory."""

    source: Vertex
    target: Vertex
    edge: Edge | None
    hops: int
    score: float | None
    outcome: str


class _Path(NamedTuple):
    """The vertices on the way to the last of them. `second`: another way to it, through another last but one. `edge`:
    the one by which a shared node was reached from another node."""

    vertices: tuple[Vertex, ...]
    second: tuple[Vertex, ...] | None = None
    edge: Edge | None = None

    def avoiding(self, vertex: Vertex) -> tuple[Vertex, ...] | None:
        """The better of the ways that do not pass a vertex."""
        if vertex not in self.vertices:
            return self.vertices
        return self.second if self.second is not None and vertex not in self.second else None

    def merged(self, other: "_Path", better: bool) -> "_Path":
        """With another path to the same vertex, which goes first if it is better."""
        if better:
            return other._replace(second=self.vertices)
        if self.second is None and self.vertices[-2] != other.vertices[-2]:
            return self._replace(second=other.vertices)
        return self


def strength(edge: Edge | None) -> float:
    """Type weight · weight · confidence; a link, and a type without a weight, have the weight of `shared_node`."""
    if edge is None:
        return TYPE_WEIGHTS[SHARED_NODE]
    return TYPE_WEIGHTS.get(edge.type, TYPE_WEIGHTS[SHARED_NODE]) * edge.weight * edge.confidence


class Walk:
    """The best path to each memory within 1 to 3 hops of the seeds is in `best`, by `seq`; seeds that other seeds reach
    are there too. Each edge that is looked at is appended to `steps`, unless that is None."""

    def __init__(self, scope: Scope, seeds: Seeds, hops: int, steps: list[Step] | None = None) -> None:
        self.scope, self.seeds, self._steps = scope, seeds, steps
        self.around = Neighbourhood(scope, seeds.keys(), hops)
        self.best: dict[int, Reached] = {}
        self._ids: Mapping[Any, str] = seeds
        self._strongest: dict[NodeKey, float] = {}  # of the paths that went on from a node: strength / hops
        memories = {seq: _Path((seq,)) for seq in seeds}
        nodes: dict[NodeKey, _Path] = {}
        for hop in range(1, self.around.hops + 1):
            memories, nodes = self._advance(hop, memories, nodes)

    def _advance(
        self, hops: int, memories: dict[int, _Path], nodes: dict[NodeKey, _Path]
    ) -> tuple[dict[int, _Path], dict[NodeKey, _Path]]:
        """Goes on from the vertices reached so far. Returns the memories newly reached, best first, and the nodes that
        an edge from another node led to."""
        found: dict[int, _Path] = {}
        beyond: dict[NodeKey, _Path] = {}
        for seq, path in memories.items():
            if seq in self.around.opened:
                self._go_on(hops, seq, path, found, nodes)
        for key, path in nodes.items():
            value = strength(path.edge) / hops
            if key in self.around.opened and value > self._strongest.get(key, 0.0):
                self._strongest[key] = value
                self._go_on(hops, key, path, found, beyond)
        return dict(sorted(found.items(), key=lambda item: self.best[item[0]].order)), beyond

    def _go_on(
        self, hops: int, vertex: Vertex, path: _Path, memories: dict[int, _Path], nodes: dict[NodeKey, _Path]
    ) -> None:
        """Goes from a vertex along each of its edges: to `memories`, and to `nodes` that paths go on from."""
        for other, edge in self.around.around(vertex):
            score = None
            outcome = self._refusal(other, edge)
            if outcome is None:
                way = path.avoiding(other)
                if way is None:
                    outcome = "already on the path"
                elif isinstance(other, int):
                    by = edge or path.edge
                    score = strength(by) / hops
                    found = Reached(other, score, hops, self._ids[way[0]], self.around.opened[vertex], by)
                    outcome = self._keep(found, _Path((*way, other)), memories)
                else:
                    outcome = "followed"
                    come = _Path((*way, other), edge=edge if isinstance(vertex, NodeKey) else None)
                    known = nodes.get(other)
                    better = known is None or strength(come.edge) > strength(known.edge)
                    nodes[other] = come if known is None else known.merged(come, better)
            if self._steps is not None:
                self._steps.append(Step(vertex, other, edge, hops, score, outcome))

    def _refusal(self, other: Vertex, edge: Edge | None) -> str | None:
        """Why no path may go along an edge, or to what it leads to."""
        if edge is not None and not self.scope.holds(edge):
            return "archived edge" if edge.archived else "edge of another time"
        if isinstance(other, NodeKey):
            return self.around.closed.get(other)
        return None if self.scope.allowed(other) else "not permitted"

    def _keep(self, found: Reached, come: _Path, memories: dict[int, _Path]) -> str:
        """Keeps the best path to a memory. Paths go on from it, unless it is a seed, after the hop that reached it
        first."""
        before = self.best.get(found.seq)
        better = before is None or found.order < before.order
        if before is None and found.seq not in self.seeds:
            memories[found.seq] = come
        elif found.seq in memories:
            memories[found.seq] = memories[found.seq].merged(come, better)
        if not better:
            return "another path is better"
        self.best[found.seq] = found
        return "reached a seed" if found.seq in self.seeds else "reached"
