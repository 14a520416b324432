"""What the graph adds to an answer: memories behind the ranked ones, or boosts for the ranking."""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from recallflow.operators.graph.paths import SHARED_NODE, Reached, Walk, Way
from recallflow.operators.graph.reader import Caps, Scope
from recallflow.state.graph_codec import NodeKey

EXPANSION_K = 5
STRENGTH = 0.5  # of an edge whose score is 1


class Related(NamedTuple):
    """A memory that the graph adds, and why: the path to it."""

    seq: int
    id: str
    score: float
    why: dict[str, Any]


class Expansion(NamedTuple):
    """`items`: what the graph adds, best first. `considered`: how many memories were reached; `worked_out`: those of
    them that nobody's word leads to, and which are not added for that."""

    items: tuple[Related, ...]
    considered: int
    caps: Caps
    worked_out: int = 0


def expand(walk: Walk, limit: int = EXPANSION_K, besides: Collection[int] = ()) -> Expansion:
    """The memories that the graph relates best to a walk's seeds, without those answered `besides` (by `seq`)."""
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
    """Return the strength, 0 to 1, of the best edge to each of a walk's seeds and nearest neighbours; by `seq`.

    strength = min(1, 0.5 · type weight · weight · confidence / hops), of the best edge that leads to a memory from
    another candidate. With weight and confidence 1, one hop away:

    caused_by 0.75, contradicts 0.65, supersedes 0.60, similar_to 0.50, depends_on 0.45, prefers_over 0.40,
    specializes 0.35, conditional_on 0.30, any other type and shared_node 0.125

    Args:
        limit: how many neighbours count at most.
    """
    candidates = set(walk.seeds)
    for found in sorted(walk.best.values(), key=lambda found: (found.hops, *_order(walk.scope, found))):
        if len(candidates) == len(walk.seeds) + limit:
            break
        if found.seq not in walk.seeds and walk.scope.own_key(found.seq) is not None:
            candidates.add(found.seq)
    return {seq: min(1.0, STRENGTH * found.score) for seq, found in walk.best.items() if seq in candidates}


def _order(scope: Scope, found: Reached) -> tuple[float, int, float, str, int]:
    """Sorts by score, hops, what the question prefers, the key of the vertex before, and the newest first."""
    score, hops, node = found.order
    return score, hops, -scope.prefer(found.seq), node, -found.seq


def _why(found: Reached, own: NodeKey, scope: Scope) -> dict[str, Any]:
    """The path to an expanded memory: the edge that gives the score, and every step from the seed on."""
    edge = found.edge
    kind = edge.type if edge else SHARED_NODE
    return {
        "reason": "graph_expansion",
        "from": found.seed,
        "node": str(found.node),
        "edge_type": kind,
        "hops": found.hops,
        "fit": round(found.fit, 6),
        "edge": {
            "source": str(edge.source if edge else found.node),
            "target": str(edge.target if edge else own),
            "type": kind,
            "weight": edge.weight if edge else 1.0,
            "confidence": edge.confidence if edge else 1.0,
        },
        "path": [*_steps(found.way, scope)],
    }


def _steps(way: Way, scope: Scope) -> Iterator[dict[str, Any]]:
    """Each step of a way, in the order in which it is gone."""
    keys = [str(scope.graph.links(one)[0][0] if isinstance(one, int) else one) for one in way.vertices]
    for (source, target), edge in zip(pairwise(keys), way.edges, strict=True):
        yield {
            "source": source,
            "target": target,
            "type": edge.type if edge else SHARED_NODE,
            "weight": edge.weight if edge else 1.0,
            "confidence": edge.confidence if edge else 1.0,
        }
