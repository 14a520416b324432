"""What the graph adds to an answer: memories behind the ranked ones, or further candidates with boosts for ranking."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recallflow.operators.graph.neighbourhood import Neighbourhood, load
from recallflow.operators.graph.reader import Bounds, Caps, GraphReader, is_live
from recallflow.operators.graph.traverse import SHARED_NODE, Reached, Watch, traverse
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SELF_ROLE, NodeKey

EXPANSION_K = 5
BOUNDS = Bounds()
HOPS_MIN, HOPS_MAX = 1, 3
BOOST = 0.05
BOOST_MOST = 0.10


class Seed(NamedTuple):
    """A memory to begin with."""

    seq: int
    id: str


class Related(NamedTuple):
    """A memory that the graph adds, with the path that led to it."""

    seq: int
    id: str
    score: float
    why: dict[str, Any]


class Expansion(NamedTuple):
    """`items`, best first; how many memories were reached; where a bound was met."""

    items: tuple[Related, ...]
    considered: int
    caps: Caps


class Neighbours(NamedTuple):
    """`joined`: memories to add to the candidates, best first; `boosts`: what edges add to the score of each candidate,
    old or new, by `seq`."""

    joined: tuple[int, ...]
    boosts: Mapping[int, float]
    caps: Caps


class Walked(NamedTuple):
    """What was loaded around some seeds, and which memories are reached from them, by `seq`."""

    around: Neighbourhood
    reached: dict[int, Reached]


@dataclass(frozen=True, slots=True)
class Scope:
    """What of the graph one query may walk: through which memories (by `seq`), out of how many; by edges that hold at
    `now_ms` and had come in by `known_by_ms`. `prefer` orders what the graph holds for equal, the highest first."""

    graph: GraphReader
    memories: int
    now_ms: int
    allowed: Callable[[int], bool]
    prefer: Callable[[int], float] = lambda _: 0.0
    known_by_ms: int | None = None
    bounds: Bounds = BOUNDS
    _walked: dict[tuple[tuple[Seed, ...], int], Walked] = field(default_factory=dict)

    def holds(self, edge: Edge) -> bool:
        """Whether an edge may be followed."""
        return is_live(edge, self.now_ms) and (self.known_by_ms is None or edge.ingested_ms <= self.known_by_ms)

    def walk(self, seeds: Sequence[Seed], hops: int, watch: Watch | None = None) -> Walked:
        """Walks from the seeds, unless it did before and nobody watches."""
        walk = tuple(seeds), min(max(hops, HOPS_MIN), HOPS_MAX)
        if walk not in self._walked or watch is not None:
            self._walked[walk] = self._walk([seed.seq for seed in seeds], walk[1], watch)
        return self._walked[walk]

    def _walk(self, seeds: list[int], hops: int, watch: Watch | None) -> Walked:
        bounds, follow = self.bounds, self.holds
        around = load(
            self.graph, seeds, hops, memories=self.memories, follow=follow, allowed=self.allowed, bounds=bounds
        )
        return Walked(around, traverse(around, seeds, hops, follow, self.allowed, watch))


def expand(
    scope: Scope,
    seeds: Sequence[Seed],
    hops: int,
    limit: int = EXPANSION_K,
    besides: Collection[int] = (),
    watch: Watch | None = None,
) -> Expansion:
    """The memories that the graph relates best to the seeds, without those that are there `besides` (by `seq`)."""
    around, reached = scope.walk(seeds, hops, watch)
    ids = {seed.seq: seed.id for seed in seeds}
    others = [found for found in reached.values() if found.seq not in ids and found.seq not in besides]
    items: list[Related] = []
    for found in sorted(others, key=lambda found: _order(scope, found)):
        if len(items) == limit:
            break
        if (own := _own_key(scope.graph, found.seq)) is not None:
            items.append(Related(found.seq, own.text, found.score, _why(found, ids[found.seed], own)))
    return Expansion(tuple(items), len(others), around.caps)


def neighbours(scope: Scope, seeds: Sequence[Seed], hops: int, limit: int) -> Neighbours:
    """The neighbours of candidates (given best first), depth by depth, and what edges add to scores.

    boost = min(0.10, 0.05 · type weight · weight · confidence / hops), of the best edge that leads to a memory from
    another candidate. With weight and confidence 1, one hop away:

    caused_by 0.075, contradicts 0.065, supersedes 0.060, similar_to 0.050, depends_on 0.045, prefers_over 0.040,
    specializes 0.035, conditional_on 0.030, any other type and shared_node 0.0125

    A ranking's scores span about 1: a boost decides between memories that fit a question about alike, and never
    outvotes the question.
    """
    around, reached = scope.walk(seeds, hops)
    kept = {seed.seq for seed in seeds}
    joined: list[int] = []
    for found in sorted(reached.values(), key=lambda found: (found.hops, *_order(scope, found))):
        if len(joined) == limit:
            break
        if found.seq not in kept and _own_key(scope.graph, found.seq) is not None:
            joined.append(found.seq)
    kept.update(joined)
    boosts = {seq: min(BOOST_MOST, BOOST * found.score) for seq, found in reached.items() if seq in kept}
    return Neighbours(tuple(joined), boosts, around.caps)


def _order(scope: Scope, found: Reached) -> tuple[float, int, float, str, int]:
    """Among equals what the question itself prefers, then the node's key, then the newest."""
    score, hops, node = found.order
    return score, hops, -scope.prefer(found.seq), node, -found.seq


def _own_key(graph: GraphReader, seq: int) -> NodeKey | None:
    """A memory's own node; none where it was taken out of traversal."""
    own = next((key for key, role in graph.links(seq) if role == SELF_ROLE), None)
    return None if own is None or graph.is_archived(own) else own


def _why(found: Reached, seed_id: str, own: NodeKey) -> dict[str, Any]:
    """`why_included` of an expanded memory."""
    edge = found.edge
    told = {
        "source": str(edge.source if edge else found.node),
        "target": str(edge.target if edge else own),
        "type": edge.type if edge else SHARED_NODE,
        "weight": edge.weight if edge else 1.0,
        "confidence": edge.confidence if edge else 1.0,
    }
    return {
        "reason": "graph_expansion",
        "from": seed_id,
        "node": str(found.node),
        "edge_type": told["type"],
        "hops": found.hops,
        "edge": told,
    }
