"""Paths from seed memories along edges, and the score of each reached memory, in the part of the graph around them.

    score = type weight · weight · confidence / hops · fit

of the last edge. For a memory linked to a shared node, the last edge is the one that led to that node from another
node. Without such an edge it is the link itself, with type `shared_node`, weight 1 and confidence 1. `fit` is 1 for
stated edges; the scope defines it for links and similarity.

Each hop extends the paths that first reached a vertex in the previous hop, or reached a shared node with a stronger
edge. The best path is extended, and the second best to vertices on the best, because a path visits no vertex twice. The
best path to a memory counts: by score, then fewer hops, then the key of the vertex before the memory."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from recallflow.operators.graph.reader import Caps, TraversalScope, has_weight, is_form, other_end
from recallflow.queries import HOPS_MAX, HOPS_MIN
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SYMMETRIC, NodeKey
from recallflow.stepped import spend

Vertex: TypeAlias = int | NodeKey
Adjacency: TypeAlias = dict[Vertex, dict[Vertex, dict[str, Edge | None]]]
"""Vertex → neighbour → edge type → edge; None for a link, whose type is empty."""
OPENING_COST = 10  # work units per vertex, in addition to its reads


class Neighbourhood:
    """The part of a graph within 1 to 3 hops of a few vertices, in the order of discovery, loaded for one query.

    A vertex is a memory, identified by its `seq`, or a shared node, identified by its key. Memory → shared node →
    memory is one hop, as is an edge between two memories or between two shared nodes. An edge between a memory and a
    shared node (`conditional_on` to `time:morning`) counts like a link.

    A vertex is open if its edges and links were loaded; for a shared node with many memories, only the links preferred
    by the query. A vertex stays closed at a limit, if it is archived, or if it is a `type:…` node, which describes the
    form of a memory and not its subject; an initial one is opened. Edges that do not hold are loaded for traces and the
    explorer, but nothing is loaded behind them."""

    def __init__(self, scope: TraversalScope, begin: Collection[Vertex], hops: int) -> None:
        self.out: Adjacency = {}  # each edge and link at its source; all vertices are keys
        self.into: Adjacency = {}  # each edge and link at its target; all vertices are keys
        self.opened: dict[Vertex, NodeKey] = {}  # the key of each open vertex
        self.closed: dict[Vertex, str] = {}  # the reason why a vertex is closed, other than a limit
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
"""The grounds of a connection: derived (author, episode, names in a text, similarity), a link given with a memory
(topics, tags, category, project, entities), or a stated edge."""

Seeds: TypeAlias = Mapping[int, str]
"""`seq` → id of the initial memories, best first."""


class Way(NamedTuple):
    """A path: the vertices from a seed on, and the edges between them (None: a link)."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge | None, ...] = ()

    def to(self, vertex: Vertex, edge: Edge | None) -> "Way":
        return Way((*self.vertices, vertex), (*self.edges, edge))


class ReachedMemory(NamedTuple):
    seq: int
    score: float  # the score, including `fit`
    fit: float  # 0 if only derived connections lead there
    hops: int
    seed: str  # the id of the first memory of the path
    node: NodeKey  # the vertex before the memory
    edge: Edge | None  # the edge of the score (None: a link)
    way: Way  # the whole path

    @property
    def order(self) -> tuple[float, int, str]:
        """The sort key, best path first."""
        return -self.score, self.hops, str(self.node)


class WalkStep(NamedTuple):
    """An edge (None: a link) that the walk examined, with the outcome. `score` is set for an edge to a memory."""

    source: Vertex
    target: Vertex
    edge: Edge | None
    hops: int
    score: float | None
    outcome: str


class _Path(NamedTuple):
    way: Way
    second: Way | None = None  # another path to the vertex, with another second-last vertex
    edge: Edge | None = None  # the edge that led from another node to this shared node
    grounds: int = 0  # the grounds of the last connection (see `Walk._grounds`)

    @property
    def strength(self) -> tuple[float, int]:
        """The sort key of paths to a shared node: strength, then better grounds."""
        return strength(self.edge), self.grounds

    def avoiding(self, vertex: Vertex) -> Way | None:
        """Return the better of both paths that does not visit a vertex."""
        if vertex not in self.way.vertices:
            return self.way
        return self.second if self.second is not None and vertex not in self.second.vertices else None

    def merged(self, other: "_Path", better: bool) -> "_Path":
        """Return this path with another path to the same vertex, the better one first."""
        if better:
            return other._replace(second=self.way)
        if self.second is None and self.way.vertices[-2] != other.way.vertices[-2]:
            return self._replace(second=other.way)
        return self


def strength(edge: Edge | None) -> float:
    """Return type weight · weight · confidence. Links and types without a weight have the weight of `shared_node`."""
    if edge is None:
        return TYPE_WEIGHTS[SHARED_NODE]
    return TYPE_WEIGHTS.get(edge.type, TYPE_WEIGHTS[SHARED_NODE]) * edge.weight * edge.confidence


class Walk:
    """The traversal from the seeds. `best` is the best path to each memory within 1 to 3 hops, by `seq`, including
    seeds reached from other seeds. Examined edges are appended to `steps`, unless that is None."""

    def __init__(self, scope: TraversalScope, seeds: Seeds, hops: int, steps: list[WalkStep] | None = None) -> None:
        self.scope, self.seeds, self._steps = scope, seeds, steps
        self.around = Neighbourhood(scope, seeds.keys(), hops)
        self.best: dict[int, ReachedMemory] = {}
        self._ids: Mapping[Any, str] = seeds
        # Strength / hops of the paths extended from a node, by grounds. Better grounds may score more with less
        # strength.
        self._strongest: dict[tuple[NodeKey, int], float] = {}
        memories = {seq: _Path(Way((seq,))) for seq in seeds}
        nodes: dict[NodeKey, _Path] = {}
        for hop in range(1, self.around.hops + 1):
            memories, nodes = self._run_hop(hop, memories, nodes)

    def _run_hop(
        self, hops: int, memories: dict[int, _Path], nodes: dict[NodeKey, _Path]
    ) -> tuple[dict[int, _Path], dict[NodeKey, _Path]]:
        """Extend the paths of the previous hop. Return the paths to new memories, best first, and the paths to nodes
        reached by an edge from another node."""
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
        """Extend the path to a vertex to each neighbour. New paths go into `memories` and `nodes`."""
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
                    found = ReachedMemory(other, score, fit, hops, self._ids[before.vertices[0]], node, by, way)
                    outcome = self._keep(found, _Path(way), memories)
                else:
                    outcome = "followed"
                    from_node = edge if isinstance(vertex, NodeKey) else None
                    longer = _Path(before.to(other, edge), None, from_node, self._grounds(vertex, other, edge))
                    known = nodes.get(other)
                    nodes[other] = known.merged(longer, longer.strength > known.strength) if known else longer
            if self._steps is not None:
                self._steps.append(WalkStep(vertex, other, edge, hops, score, outcome))

    def _grounds(self, vertex: Vertex, other: Vertex, edge: Edge | None) -> int:
        """Return the grounds of a connection: an edge, or a link with a memory at one end."""
        if edge is not None:
            return STATED if edge.is_stated else WORKED_OUT
        given = False
        if isinstance(vertex, int) and isinstance(other, NodeKey):
            given = self.scope.is_given(vertex, other)
        elif isinstance(other, int) and isinstance(vertex, NodeKey):
            given = self.scope.is_given(other, vertex)
        return GIVEN if given else WORKED_OUT

    def _refusal(self, other: Vertex, edge: Edge | None) -> str | None:
        """Return the reason why no path may use an edge or reach its end."""
        if edge is not None and not self.scope.holds(edge):
            if not has_weight(edge):
                return "edge without weight"
            return "archived edge" if edge.archived else "edge of another time"
        if isinstance(other, NodeKey):
            return self.around.closed.get(other)
        return None if self.scope.allowed(other) else "not permitted"

    def _keep(self, found: ReachedMemory, path: _Path, memories: dict[int, _Path]) -> str:
        """Keep the best path to a memory. Paths of the hop that first reached it are extended, unless it is a seed."""
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


EXPANSION_K = 5
STRENGTH = 0.5  # the boost of an edge with score 1


class Related(NamedTuple):
    """A memory that the graph adds, with the path to it."""

    seq: int
    id: str
    score: float
    why: dict[str, Any]


class Expansion(NamedTuple):
    items: tuple[Related, ...]  # the added memories, best first
    considered: int  # the number of reached memories
    caps: Caps
    worked_out: int = 0  # the number of memories reached only over derived links, which are not added


def expand(walk: Walk, limit: int = EXPANSION_K, besides: Collection[int] = ()) -> Expansion:
    """Return the memories with the best relation to a walk's seeds, except those in `besides` (by `seq`)."""
    reached = [found for found in walk.best.values() if found.seq not in walk.seeds and found.seq not in besides]
    others = [found for found in reached if found.fit > 0]
    items: list[Related] = []
    for found in sorted(others, key=lambda found: _order(walk.scope, found)):
        if len(items) == limit:
            break
        if (own := walk.scope.own_key(found.seq)) is not None:
            items.append(Related(found.seq, own.text, found.score, _why(found, own, walk.scope)))
    return Expansion(tuple(items), len(reached), walk.around.caps, len(reached) - len(others))


def boosts(walk: Walk, limit: int) -> dict[int, float]:
    """Return the strength, 0 to 1, of the best edge to each of a walk's seeds and nearest neighbours, by `seq`.

    strength = min(1, 0.5 · type weight · weight · confidence / hops) of the best edge that leads to a memory from
    another candidate: 0.75 for caused_by, 0.5 for similar_to, 0.125 for shared_node, with weight and confidence 1.

    `limit` is the largest number of neighbours."""
    candidates = set(walk.seeds)
    for found in sorted(walk.best.values(), key=lambda found: (found.hops, *_order(walk.scope, found))):
        if len(candidates) == len(walk.seeds) + limit:
            break
        if found.seq not in walk.seeds and walk.scope.own_key(found.seq) is not None:
            candidates.add(found.seq)
    return {seq: min(1.0, STRENGTH * found.score) for seq, found in walk.best.items() if seq in candidates}


def _order(scope: TraversalScope, found: ReachedMemory) -> tuple[float, int, float, str, int]:
    """Return the sort key: score, hops, preference of the query, key of the previous vertex, newest first."""
    score, hops, node = found.order
    return score, hops, -scope.prefer(found.seq), node, -found.seq


def _why(found: ReachedMemory, own: NodeKey, scope: TraversalScope) -> dict[str, Any]:
    """Return the path to an expanded memory: the edge of the score, and every step from the seed."""
    edge, way = found.edge, found.way
    source, target = (edge.source, edge.target) if edge else (found.node, own)
    keys = [str(scope.graph.links(one)[0][0] if isinstance(one, int) else one) for one in way.vertices]
    steps = zip(pairwise(keys), way.edges, strict=True)
    return {
        "reason": "graph_expansion",
        "from": found.seed,
        "node": str(found.node),
        "edge_type": edge.type if edge else SHARED_NODE,
        "hops": found.hops,
        "fit": round(found.fit, 6),
        "edge": {"source": str(source), "target": str(target), **edge_values(edge)},
        "path": [{"source": one, "target": other, **edge_values(edge)} for (one, other), edge in steps],
    }


def edge_values(edge: Edge | None) -> dict[str, Any]:
    """Return type, weight and confidence of an edge; None is a link."""
    if edge is None:
        return {"type": SHARED_NODE, "weight": 1.0, "confidence": 1.0}
    return {"type": edge.type, "weight": edge.weight, "confidence": edge.confidence}
