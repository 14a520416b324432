"""Paths along edges from seed memories, and the score of each memory that a path reaches.

The score of a path is computed from its last edge:

    score = type weight · weight · confidence / hops · fit

A link connects a memory and a shared node. A path that ends with a link has the score of the edge from another node to
this shared node. Without such an edge, the link has the score of an edge of type `shared_node` with weight 1 and
confidence 1. `fit`, 0 to 1, is the memory's relevance to the question: 1 for stated edges, else `TraversalScope.fit`.

Each hop extends the paths to newly reached vertices, and to shared nodes that are reached again over a stronger edge.
The best path to a vertex is extended. A neighbour that is already on it extends the second best instead, because a path
visits no vertex twice. Only the best path to each memory is kept. Paths are ordered by score, then fewer hops, then the
key of the vertex before the memory."""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from recallflow.operators.graph.reader import Caps, TraversalScope, has_weight, is_type_node, other_end
from recallflow.queries import HOPS_MAX, HOPS_MIN
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SYMMETRIC, NodeKey
from recallflow.stepped import spend

Vertex: TypeAlias = int | NodeKey
Adjacency: TypeAlias = dict[Vertex, dict[Vertex, dict[str, Edge | None]]]
"""Vertex → neighbour → edge type → edge; None for a link, whose type is empty."""
OPENING_COST = 10  # work units per vertex, in addition to its reads
EXPANSION_K = 5  # memories that the graph adds
BOOST_FACTOR = 0.5  # the boost of an edge with score 1


class Neighbourhood:
    """The part of a graph within 1 to 3 hops of a few vertices, in the order of discovery, loaded for one query.

    A vertex is a memory, identified by its `seq`, or a shared node, identified by its key. Memory → shared node →
    memory is one hop, as is an edge between two memories or between two shared nodes. An edge between a memory and a
    shared node (`conditional_on` to `time:morning`) counts like a link.

    A vertex is open if its edges and links were loaded. Of a shared node with many memories, only the links that the
    query prefers are loaded. A vertex stays closed at a limit, or if it is archived. A `type:…` node, which describes
    the form of a memory and not its subject, is opened only as an initial vertex. Edges that are not valid at the time
    of the query are loaded for traces and the explorer, but their ends are not opened."""

    def __init__(self, scope: TraversalScope, initial: Collection[Vertex], hops: int) -> None:
        self.out: Adjacency = {}  # each edge and link at its source; all vertices are keys
        self.into: Adjacency = {}  # each edge and link at its target; all vertices are keys
        self.opened: dict[Vertex, NodeKey] = {}  # the key of each open vertex
        self.closed: dict[Vertex, str] = {}  # the reason why a vertex is closed, other than a limit
        self.caps = Caps()
        self.hops = min(max(hops, HOPS_MIN), HOPS_MAX)
        self._scope, self._graph, self._bounds = scope, scope.graph, scope.bounds
        self._initial = frozenset(initial)
        self._queued: set[Vertex] = set()
        self._reads = 0
        self._hop = HOPS_MIN
        # Each hop opens memories first, then shared nodes, including those found from these memories.
        memories: list[int] = []
        nodes: list[NodeKey] = []
        for vertex in initial:
            self._add(vertex, memories if isinstance(vertex, int) else nodes)
        for hop in range(1, self.hops + 1):
            self._hop = hop
            next_memories: list[int] = []
            next_nodes: list[NodeKey] = []
            for vertex in chain[Vertex](memories, nodes):
                self._open(vertex, next_memories, nodes if isinstance(vertex, int) else next_nodes)
            memories, nodes = next_memories, next_nodes

    def neighbours(self, vertex: Vertex) -> Iterator[tuple[Vertex, Edge | None]]:
        """Yield each neighbour in either direction, with the edge; None for a link."""
        for adjacency in (self.out, self.into):
            for other, by_type in adjacency[vertex].items():
                for edge in by_type.values():
                    yield other, edge

    def _open(self, vertex: Vertex, memories: list[int], nodes: list[NodeKey]) -> None:
        """Load the links and edges of a vertex, and queue the vertices that they lead to."""
        if not self._count_read():
            return
        is_memory = isinstance(vertex, int)
        node_keys = [key for key, _ in self._graph.links(vertex)] if isinstance(vertex, int) else [vertex]
        if not node_keys:
            return
        own_key, *shared = node_keys  # the first link of a memory is its own node
        if self._graph.is_archived(own_key):
            self.closed[vertex] = "archived node"
            return
        if is_type_node(own_key) and own_key not in self._initial:
            self.closed[vertex] = "node of a form"
            return
        self.opened[vertex] = own_key
        for other in self._within_fan_out(own_key, shared if is_memory else self._scope.linked(own_key)):
            if self._add(other, nodes if is_memory else memories):
                source, target = (vertex, other) if is_memory else (other, vertex)
                self._connect(source, target, "", None)
        self._add_edges(vertex, own_key, memories, nodes)

    def _add_edges(self, vertex: Vertex, own_key: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        """Add the edges of a vertex and their ends. Only ends of valid edges are opened later."""
        for edge in self._within_fan_out(own_key, self._graph.edges(own_key, self._bounds.fan_out + 1)):
            other = other_end(edge, own_key)
            queue: list[Any] = memories if other.memory else nodes
            ends: list[Vertex] = [*self._graph.members(other, 1)] if other.memory else [other]
            for end in ends:
                if self._add(end, queue if self._scope.is_valid(edge) else None):
                    source, target = (vertex, end) if edge.source == own_key else (end, vertex)
                    if edge.type not in SYMMETRIC or edge.type not in self.out[target].get(source, ()):
                        self._connect(source, target, edge.type, edge)

    def _connect(self, source: Vertex, target: Vertex, kind: str, edge: Edge | None) -> None:
        by_type = self.out[source].setdefault(target, {})
        by_type[kind] = edge
        self.into[target][source] = by_type

    def _add(self, vertex: Vertex, queue: list[Any] | None) -> bool:
        """Add a vertex if it is new, and queue it for opening. Return whether it is within the limit of vertices."""
        if vertex not in self.out:
            if not self._note_limit(len(self.out) < self._bounds.visited):
                return False
            self.out[vertex], self.into[vertex] = {}, {}
        if queue is None or vertex in self._queued or (isinstance(vertex, int) and not self._scope.allowed(vertex)):
            return True
        self._queued.add(vertex)
        queue.append(vertex)
        return True

    def _within_fan_out(self, own_key: NodeKey, found: list[Any]) -> list[Any]:
        """Return the links or edges of a vertex up to the fan-out limit. Note the vertex if there are more."""
        if len(found) > self._bounds.fan_out and str(own_key) not in self.caps.fan_out[-1:]:
            self.caps.fan_out.append(str(own_key))
        return found[: self._bounds.fan_out]

    def _count_read(self) -> bool:
        """Count the opening of a vertex. Return whether it is within the limit."""
        self._reads += 1
        spend(OPENING_COST)
        return self._note_limit(self._reads <= self._bounds.opened)

    def _note_limit(self, is_within: bool) -> bool:
        """Return `is_within`, and note the hop at which a limit was reached first."""
        if not is_within and self.caps.visited_at_hop is None:
            self.caps.visited_at_hop = self._hop
        return is_within


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
DERIVED, ATTACHED, STATED = range(3)
"""The evidence of a connection: derived (author, episode, names in a text, similarity), attached to a memory by its
event (topics, tags, category, project, entities), or a stated edge."""

Seeds: TypeAlias = Mapping[int, str]
"""`seq` → id of the initial memories, best first."""


class Path(NamedTuple):
    """The vertices from a seed on, and the edges between them (None: a link)."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge | None, ...] = ()

    def extended(self, vertex: Vertex, edge: Edge | None) -> "Path":
        return Path((*self.vertices, vertex), (*self.edges, edge))


class ReachedMemory(NamedTuple):
    seq: int
    score: float  # including `fit`
    fit: float  # the relevance to the question, 0 to 1
    hops: int
    seed: str  # the id of the first memory of the path
    node: NodeKey  # the vertex before the memory
    edge: Edge | None  # the scored edge (None: a link)
    path: Path

    @property
    def sort_key(self) -> tuple[float, int, str]:
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


class _BestPaths(NamedTuple):
    """The best path to a vertex, and the best one from a different predecessor."""

    best: Path
    second: Path | None = None
    edge: Edge | None = None  # the edge that led from another node to this shared node
    evidence: int = DERIVED  # of the last connection

    @property
    def strength(self) -> tuple[float, int]:
        """The sort key of paths to a shared node, best last: edge weight, then evidence."""
        return edge_weight(self.edge), self.evidence

    def avoiding(self, vertex: Vertex) -> Path | None:
        """Return the better of the two paths if it avoids a vertex, or else the other one; None if neither does."""
        for path in (self.best, self.second):
            if path is not None and vertex not in path.vertices:
                return path
        return None

    def merged(self, other: "_BestPaths", other_is_better: bool) -> "_BestPaths":
        """Return these paths with another path to the same vertex, the best one first."""
        if other_is_better:
            return other._replace(second=self.best)
        if self.second is None and self.best.vertices[-2] != other.best.vertices[-2]:
            return self._replace(second=other.best)
        return self


def edge_weight(edge: Edge | None) -> float:
    """Return type weight · weight · confidence. Links and types without a weight have the weight of `shared_node`."""
    if edge is None:
        return TYPE_WEIGHTS[SHARED_NODE]
    return TYPE_WEIGHTS.get(edge.type, TYPE_WEIGHTS[SHARED_NODE]) * edge.weight * edge.confidence


class Walk:
    """The traversal from the seeds. `best` is the best path to each memory within 1 to 3 hops, by `seq`, including
    seeds reached from other seeds. Examined edges are appended to `steps`, unless that is None."""

    def __init__(self, scope: TraversalScope, seeds: Seeds, hops: int, steps: list[WalkStep] | None = None) -> None:
        self.scope, self.seeds, self._steps = scope, seeds, steps
        self.neighbourhood = Neighbourhood(scope, seeds.keys(), hops)
        self.best: dict[int, ReachedMemory] = {}
        self._seed_ids: Mapping[Any, str] = seeds
        # The largest edge weight / hops of the paths extended from a node, by evidence. A weaker edge with better
        # evidence is extended too, because its larger `fit` may give a higher score.
        self._strongest: dict[tuple[NodeKey, int], float] = {}
        memories = {seq: _BestPaths(Path((seq,))) for seq in seeds}
        nodes: dict[NodeKey, _BestPaths] = {}
        for hop in range(1, self.neighbourhood.hops + 1):
            memories, nodes = self._run_hop(hop, memories, nodes)

    def _run_hop(
        self, hops: int, memories: dict[int, _BestPaths], nodes: dict[NodeKey, _BestPaths]
    ) -> tuple[dict[int, _BestPaths], dict[NodeKey, _BestPaths]]:
        """Extend the paths of the previous hop. Return the paths to new memories, best first, and the paths to nodes
        reached by an edge from another node."""
        next_memories: dict[int, _BestPaths] = {}
        next_nodes: dict[NodeKey, _BestPaths] = {}
        for seq, paths in memories.items():
            if seq in self.neighbourhood.opened:
                self._extend(hops, seq, paths, next_memories, nodes)
        for key, paths in nodes.items():
            weight = edge_weight(paths.edge) / hops
            strongest = max(self._strongest.get((key, evidence), 0.0) for evidence in range(paths.evidence, STATED + 1))
            if key in self.neighbourhood.opened and weight > strongest:
                self._strongest[key, paths.evidence] = weight
                self._extend(hops, key, paths, next_memories, next_nodes)
        return dict(sorted(next_memories.items(), key=lambda item: self.best[item[0]].sort_key)), next_nodes

    def _extend(
        self,
        hops: int,
        vertex: Vertex,
        paths: _BestPaths,
        memories: dict[int, _BestPaths],
        nodes: dict[NodeKey, _BestPaths],
    ) -> None:
        """Extend the paths to a vertex to each neighbour. New paths go into `memories` and `nodes`."""
        for other, edge in self.neighbourhood.neighbours(vertex):
            spend(1)
            score = None
            outcome = self._refusal(other, edge)
            if outcome is None:
                path = paths.avoiding(other)
                if path is None:
                    outcome = "already on the path"
                elif isinstance(other, int):
                    scored_edge = edge or paths.edge
                    evidence = self._evidence(vertex, other, scored_edge)
                    if scored_edge is None:
                        evidence = min(evidence, self._evidence(path.vertices[-2], vertex, path.edges[-1]))
                    fit = 1.0 if evidence == STATED else self.scope.fit(other, evidence == ATTACHED)
                    score = edge_weight(scored_edge) / hops * fit
                    seed_id, node = self._seed_ids[path.vertices[0]], self.neighbourhood.opened[vertex]
                    extended = path.extended(other, edge)
                    found = ReachedMemory(other, score, fit, hops, seed_id, node, scored_edge, extended)
                    outcome = self._keep(found, memories)
                else:
                    outcome = "followed"
                    node_edge = edge if isinstance(vertex, NodeKey) else None
                    added = _BestPaths(path.extended(other, edge), None, node_edge, self._evidence(vertex, other, edge))
                    before = nodes.get(other)
                    nodes[other] = before.merged(added, added.strength > before.strength) if before else added
            if self._steps is not None:
                self._steps.append(WalkStep(vertex, other, edge, hops, score, outcome))

    def _evidence(self, vertex: Vertex, other: Vertex, edge: Edge | None) -> int:
        """Return the evidence of a connection: an edge, or a link with a memory at one end."""
        if edge is not None:
            return STATED if edge.is_stated else DERIVED
        seq, key = (vertex, other) if isinstance(vertex, int) else (other, vertex)
        if isinstance(seq, int) and isinstance(key, NodeKey) and self.scope.is_attached(seq, key):
            return ATTACHED
        return DERIVED

    def _refusal(self, other: Vertex, edge: Edge | None) -> str | None:
        """Return the reason why no path may use an edge or reach its end; None if a path may."""
        if edge is not None and not self.scope.is_valid(edge):
            if not has_weight(edge):
                return "edge without weight"
            return "archived edge" if edge.archived else "edge of another time"
        if isinstance(other, NodeKey):
            return self.neighbourhood.closed.get(other)
        return None if self.scope.allowed(other) else "not permitted"

    def _keep(self, found: ReachedMemory, memories: dict[int, _BestPaths]) -> str:
        """Keep the best path to a memory, and return the outcome for the trace. Only paths of the hop that first
        reached the memory are extended later; paths to a seed never are."""
        before, paths = self.best.get(found.seq), _BestPaths(found.path)
        is_better = before is None or found.sort_key < before.sort_key
        if before is None and found.seq not in self.seeds:
            memories[found.seq] = paths
        elif found.seq in memories:
            memories[found.seq] = memories[found.seq].merged(paths, is_better)
        if not is_better:
            return "another path is better"
        self.best[found.seq] = found
        if not found.fit:
            return "derived evidence only"
        return "reached a seed" if found.seq in self.seeds else "reached"


class RelatedMemory(NamedTuple):
    """A memory that the graph adds to the ranked ones, with the path to it."""

    seq: int
    id: str
    score: float
    why: dict[str, Any]


class Expansion(NamedTuple):
    items: tuple[RelatedMemory, ...]  # the added memories, best first
    considered: int  # the number of reached memories
    caps: Caps
    derived_only: int = 0  # the number of memories reached over derived connections only, which are not added


def expand(walk: Walk, limit: int = EXPANSION_K, exclude: Collection[int] = ()) -> Expansion:
    """Return the memories with the best paths from a walk's seeds, except those in `exclude` (by `seq`)."""
    reached = [found for found in walk.best.values() if found.seq not in walk.seeds and found.seq not in exclude]
    fitting = [found for found in reached if found.fit > 0]
    items: list[RelatedMemory] = []
    for found in sorted(fitting, key=lambda found: _sort_key(walk.scope, found)):
        if len(items) == limit:
            break
        if (own_key := walk.scope.own_key(found.seq)) is not None:
            items.append(RelatedMemory(found.seq, own_key.text, found.score, _why(found, own_key, walk.scope)))
    return Expansion(tuple(items), len(reached), walk.neighbourhood.caps, len(reached) - len(fitting))


def boosts(walk: Walk, limit: int) -> dict[int, float]:
    """Return the boost of each of a walk's seeds and nearest neighbours, by `seq`: half the score of the best path to
    it, at most 1. `limit` is the largest number of neighbours."""
    candidates = set(walk.seeds)
    for found in sorted(walk.best.values(), key=lambda found: (found.hops, *_sort_key(walk.scope, found))):
        if len(candidates) == len(walk.seeds) + limit:
            break
        if found.seq not in walk.seeds and walk.scope.own_key(found.seq) is not None:
            candidates.add(found.seq)
    return {seq: min(1.0, BOOST_FACTOR * found.score) for seq, found in walk.best.items() if seq in candidates}


def _sort_key(scope: TraversalScope, found: ReachedMemory) -> tuple[float, int, float, str, int]:
    """Return the sort key: score, hops, preference of the query, key of the previous vertex, newest first."""
    negative_score, hops, node = found.sort_key
    return negative_score, hops, -scope.prefer(found.seq), node, -found.seq


def _why(found: ReachedMemory, own_key: NodeKey, scope: TraversalScope) -> dict[str, Any]:
    """Return the path to an added memory for the response: the scored edge, and every step from the seed."""
    edge, path = found.edge, found.path
    source, target = (edge.source, edge.target) if edge else (found.node, own_key)
    keys = [str(scope.graph.links(one)[0][0] if isinstance(one, int) else one) for one in path.vertices]
    steps = zip(pairwise(keys), path.edges, strict=True)
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
    """Return type, weight and confidence of an edge (None: a link) for the response."""
    if edge is None:
        return {"type": SHARED_NODE, "weight": 1.0, "confidence": 1.0}
    return {"type": edge.type, "weight": edge.weight, "confidence": edge.confidence}
