"""Paths from seed memories along the edges, and the score of each memory that one of them reaches.

    score = type weight · weight · confidence / hops · fit

of the last edge. Where a memory is linked to a shared node, the last edge is the one that led from another node to that
node; without such an edge it is the link itself, of type `shared_node` and with weight and confidence 1. `fit` is 1
for an edge that somebody stated, whatever it leads to. Links and likeness count as the scope has it.

Each hop extends the paths that reached a vertex in the hop before, at first or, at a shared node, with a stronger edge.
Of several the best is extended, and the next best to what the best has passed, as no path passes a vertex twice. Of all
paths to a memory the best counts: by score, then by fewer hops, then by the key of the vertex before the memory.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from recallflow.operators.graph.neighbourhood import Neighbourhood, Vertex
from recallflow.operators.graph.reader import Scope, has_weight
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import NodeKey
from recallflow.stepped import spend

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

WORKED_OUT, GIVEN, STATED = range(3)
"""What joins two vertices: nobody's word (who said it, in which episode, names in its text, likeness), a link that a
memory was given (topics, tags, a category, a project, entities), or a stated edge."""

Seeds: TypeAlias = Mapping[int, str]
"""`seq` → id of the memories that paths begin with, best first."""


class Way(NamedTuple):
    """The vertices from a seed on, and between each two of them the edge that joins them (None: a link)."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge | None, ...] = ()

    def to(self, vertex: Vertex, edge: Edge | None) -> "Way":
        """The way with one more vertex."""
        return Way((*self.vertices, vertex), (*self.edges, edge))


class Reached(NamedTuple):
    """A memory at the end of a path: `seed` is the id of where the path begins, `node` the vertex before the memory,
    and `edge` the one that gives the score (None: a link). `way`: the whole path. `score` has `fit` in it; where that
    is 0, nobody's word leads there."""

    seq: int
    score: float
    fit: float
    hops: int
    seed: str
    node: NodeKey
    edge: Edge | None
    way: Way

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
    """The way from a seed to a vertex. `second`: another way to that one, through another last but one. `edge`: the one
    that led to it, if it is a shared node, from another node. `grounds`: on what it led there (see `Walk._grounds`)."""

    way: Way
    second: Way | None = None
    edge: Edge | None = None
    grounds: int = 0

    @property
    def strength(self) -> tuple[float, int]:
        """Orders paths to a shared node: of equal strength, the one on better grounds is the better."""
        return strength(self.edge), self.grounds

    def avoiding(self, vertex: Vertex) -> Way | None:
        """The better of both ways that does not pass a vertex."""
        if vertex not in self.way.vertices:
            return self.way
        return self.second if self.second is not None and vertex not in self.second.vertices else None

    def merged(self, other: "_Path", better: bool) -> "_Path":
        """With another path to the same vertex, which goes first if it is better."""
        if better:
            return other._replace(second=self.way)
        if self.second is None and self.way.vertices[-2] != other.way.vertices[-2]:
            return self._replace(second=other.way)
        return self


def strength(edge: Edge | None) -> float:
    """Type weight · weight · confidence; a link, and a type without a weight, have the weight of `shared_node`."""
    if edge is None:
        return TYPE_WEIGHTS[SHARED_NODE]
    return TYPE_WEIGHTS.get(edge.type, TYPE_WEIGHTS[SHARED_NODE]) * edge.weight * edge.confidence


class Walk:
    """`best`: the best path to each memory within 1 to 3 hops of the seeds, by `seq`; seeds that other seeds reach are
    among them. Each edge that is looked at is appended to `steps`, unless that is None."""

    def __init__(self, scope: Scope, seeds: Seeds, hops: int, steps: list[Step] | None = None) -> None:
        self.scope, self.seeds, self._steps = scope, seeds, steps
        self.around = Neighbourhood(scope, seeds.keys(), hops)
        self.best: dict[int, Reached] = {}
        self._ids: Mapping[Any, str] = seeds
        # Strength / hops of the paths extended from a node, by grounds: on better ones, less strength may score more.
        self._strongest: dict[tuple[NodeKey, int], float] = {}
        memories = {seq: _Path(Way((seq,))) for seq in seeds}
        nodes: dict[NodeKey, _Path] = {}
        for hop in range(1, self.around.hops + 1):
            memories, nodes = self._run_hop(hop, memories, nodes)

    def _run_hop(
        self, hops: int, memories: dict[int, _Path], nodes: dict[NodeKey, _Path]
    ) -> tuple[dict[int, _Path], dict[NodeKey, _Path]]:
        """Extends the paths to what the hop before reached. Returns those to memories that were not reached before,
        best first, and those to nodes that an edge from another node led to."""
        found: dict[int, _Path] = {}
        beyond: dict[NodeKey, _Path] = {}
        for seq, path in memories.items():
            if seq in self.around.opened:
                self._extend(hops, seq, path, found, nodes)
        for key, path in nodes.items():
            value = strength(path.edge) / hops
            before = max(self._strongest.get((key, grounds), 0.0) for grounds in range(path.grounds, STATED + 1))
            if key in self.around.opened and value > before:
                self._strongest[key, path.grounds] = value
                self._extend(hops, key, path, found, beyond)
        return dict(sorted(found.items(), key=lambda item: self.best[item[0]].order)), beyond

    def _extend(
        self, hops: int, vertex: Vertex, path: _Path, memories: dict[int, _Path], nodes: dict[NodeKey, _Path]
    ) -> None:
        """Extends the path to a vertex by each neighbour: to `memories` and `nodes` whose paths are extended next."""
        for other, edge in self.around.around(vertex):
            spend(1)
            score = None
            outcome = self._refusal(other, edge)
            if outcome is None:
                before = path.avoiding(other)
                if before is None:
                    outcome = "already on the path"
                elif isinstance(other, int):
                    by = edge or path.edge
                    grounds = self._grounds(vertex, other, by)
                    if by is None:
                        grounds = min(grounds, self._grounds(before.vertices[-2], vertex, before.edges[-1]))
                    fit = 1.0 if grounds == STATED else self.scope.fit(other, grounds == GIVEN)
                    score = strength(by) / hops * fit
                    way, node = before.to(other, edge), self.around.opened[vertex]
                    found = Reached(other, score, fit, hops, self._ids[before.vertices[0]], node, by, way)
                    outcome = self._keep(found, _Path(way), memories)
                else:
                    outcome = "followed"
                    from_node = edge if isinstance(vertex, NodeKey) else None
                    longer = _Path(before.to(other, edge), None, from_node, self._grounds(vertex, other, edge))
                    known = nodes.get(other)
                    nodes[other] = known.merged(longer, longer.strength > known.strength) if known else longer
            if self._steps is not None:
                self._steps.append(Step(vertex, other, edge, hops, score, outcome))

    def _grounds(self, vertex: Vertex, other: Vertex, edge: Edge | None) -> int:
        """On what a path goes from one vertex to another: by an edge, or by a link, which has a memory at one end."""
        if edge is not None:
            return STATED if edge.is_stated else WORKED_OUT
        given = False
        if isinstance(vertex, int) and isinstance(other, NodeKey):
            given = self.scope.is_given(vertex, other)
        elif isinstance(other, int) and isinstance(vertex, NodeKey):
            given = self.scope.is_given(other, vertex)
        return GIVEN if given else WORKED_OUT

    def _refusal(self, other: Vertex, edge: Edge | None) -> str | None:
        """Why no path may go along an edge, or to what it leads to."""
        if edge is not None and not self.scope.holds(edge):
            if not has_weight(edge):
                return "edge without weight"
            return "archived edge" if edge.archived else "edge of another time"
        if isinstance(other, NodeKey):
            return self.around.closed.get(other)
        return None if self.scope.allowed(other) else "not permitted"

    def _keep(self, found: Reached, path: _Path, memories: dict[int, _Path]) -> str:
        """Keeps the best path to a memory; those of the hop that reached it first are extended, unless it is a seed."""
        before = self.best.get(found.seq)
        better = before is None or found.order < before.order
        if before is None and found.seq not in self.seeds:
            memories[found.seq] = path
        elif found.seq in memories:
            memories[found.seq] = memories[found.seq].merged(path, better)
        if not better:
            return "another path is better"
        self.best[found.seq] = found
        if not found.fit:
            return "worked out alone"
        return "reached a seed" if found.seq in self.seeds else "reached"
