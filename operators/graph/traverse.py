"""From seed memories along the edges: which memories are reached, how, and with what score.

A memory's score is that of the edge that reached it: edge_type_weight · weight · confidence / max(1, hops). Reached
through a shared node, that edge is the link, of type `shared_node` with weight and confidence 1; where the node itself
was come to by an edge from another node, it is that edge.

A place is left by the path that came to it with the fewest hops, of several by the best (the next best leads to places
on that path); no path comes to a place twice. Of all paths to a memory the best counts: by score, then the one with
fewer hops, then by the key of the node it comes from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from recallflow.operators.graph.neighbourhood import Neighbourhood, Place
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import NodeKey

SHARED_NODE = "shared_node"
ON_THE_PATH = "already on the path"
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


class Reached(NamedTuple):
    """A memory that was reached: from which seed, out of which node, by which edge (None: it is linked to the node)."""

    seq: int
    score: float
    hops: int
    seed: int
    node: NodeKey
    edge: Edge | None

    @property
    def order(self) -> tuple[float, int, str]:
        """Smaller is better."""
        return -self.score, self.hops, str(self.node)


class Step(NamedTuple):
    """An edge (None: a link) that was looked at, and what came of it. `score` where it reached a memory."""

    source: Place
    target: Place
    edge: Edge | None
    hops: int
    score: float | None
    outcome: str


Watch = Callable[[Step], None]


@dataclass(frozen=True, slots=True)
class _Path:
    """How a place was come to: the places on the way, itself last; a second way that comes from another place, for
    those on the first; and the edge that a shared node was come to by."""

    places: tuple[Place, ...]
    second: tuple[Place, ...] | None = None
    carried: Edge | None = None

    def beside(self, come: tuple[Place, ...], better: bool) -> "_Path":
        """With another way that was found."""
        if better:
            return replace(self, places=come, second=self.places)
        if self.second is None and self.places[-2] != come[-2]:
            return replace(self, second=come)
        return self

    def avoiding(self, place: Place) -> tuple[Place, ...] | None:
        """The way to go on to a place."""
        return next((places for places in (self.places, self.second) if places and place not in places), None)


def strength(edge: Edge | None) -> float:
    """Type weight · weight · confidence; of a link, the type weight of `shared_node`, as of every type without one."""
    if edge is None:
        return TYPE_WEIGHTS[SHARED_NODE]
    return TYPE_WEIGHTS.get(edge.type, TYPE_WEIGHTS[SHARED_NODE]) * edge.weight * edge.confidence


def traverse(
    around: Neighbourhood,
    seeds: Sequence[int],
    hops: int,
    holds: Callable[[Edge], bool],
    allowed: Callable[[int], bool],
    watch: Watch | None = None,
) -> dict[int, Reached]:
    """Every allowed memory within `hops` by edges that hold, by `seq`; a seed too, where another one reaches it.
    `watch` is told of each edge that is looked at."""
    walk = _Walk(around, frozenset(seeds), holds, allowed, watch)
    memories = {seq: _Path((seq,)) for seq in seeds}
    nodes: dict[NodeKey, _Path] = {}
    for hop in range(1, hops + 1):
        memories, nodes = walk.hop(hop, memories, nodes)
    return walk.best


class _Walk:
    def __init__(
        self,
        around: Neighbourhood,
        seeds: frozenset[int],
        holds: Callable[[Edge], bool],
        allowed: Callable[[int], bool],
        watch: Watch | None,
    ) -> None:
        self.best: dict[int, Reached] = {}
        self._around = around
        self._seeds = seeds
        self._holds = holds
        self._allowed = allowed
        self._watch = watch
        self._left: dict[NodeKey, float] = {}  # the best strength / hops that a node was left with

    def hop(
        self, hops: int, memories: dict[int, _Path], nodes: dict[NodeKey, _Path]
    ) -> tuple[dict[int, _Path], dict[NodeKey, _Path]]:
        """Leaves the places reached so far; the ones reached by that, best first."""
        near = dict(nodes)
        paths: dict[int, _Path] = {}
        beyond: dict[NodeKey, _Path] = {}
        for seq, path in memories.items():
            if not self._around.is_open(seq):
                continue
            for other, edge in self._around.around(seq):
                if isinstance(other, int):
                    self._offer(hops, other, edge, path, paths)
                else:
                    self._enter(hops, other, edge, None, path, near)
        for key, path in near.items():
            value = strength(path.carried) / hops
            if not self._around.is_open(key) or value <= self._left.get(key, 0.0):
                continue
            self._left[key] = value
            for other, edge in self._around.around(key):
                if isinstance(other, int):
                    self._offer(hops, other, edge, path, paths)
                else:
                    self._enter(hops, other, edge, edge, path, beyond)
        return dict(sorted(paths.items(), key=lambda item: self.best[item[0]].order)), beyond

    def _enter(
        self,
        hops: int,
        key: NodeKey,
        edge: Edge | None,
        carried: Edge | None,
        path: _Path,
        entered: dict[NodeKey, _Path],
    ) -> None:
        """Comes to a shared node, which is left in this hop or, across an edge between nodes, in the next."""
        came_from = path.places[-1]
        outcome = self._refusal(edge, key)
        if outcome is None and (places := path.avoiding(key)) is not None:
            outcome = "followed"
            come = (*places, key)
            known = entered.get(key)
            if known is None:
                entered[key] = _Path(come, None, carried)
            else:
                better = strength(carried) > strength(known.carried)
                entered[key] = replace(known.beside(come, better), carried=carried if better else known.carried)
        if self._watch is not None:
            self._watch(Step(came_from, key, edge, hops, None, outcome or ON_THE_PATH))

    def _offer(self, hops: int, seq: int, edge: Edge | None, path: _Path, paths: dict[int, _Path]) -> None:
        """Reaches a memory."""
        left, score = path.places[-1], None
        outcome = self._refusal(edge, None)
        if outcome is None and not self._allowed(seq):
            outcome = "not permitted"
        if outcome is None and (places := path.avoiding(seq)) is not None:
            reaching = edge or path.carried
            score = strength(reaching) / max(1, hops)
            found = Reached(seq, score, hops, self._seed(places), self._around.key(left), reaching)
            outcome = self._keep(found, places, paths)
        if self._watch is not None:
            self._watch(Step(left, seq, edge, hops, score, outcome or ON_THE_PATH))

    def _keep(self, found: Reached, places: tuple[Place, ...], paths: dict[int, _Path]) -> str:
        before, come = self.best.get(found.seq), (*places, found.seq)
        better = before is None or found.order < before.order
        if before is None and found.seq not in self._seeds:
            paths[found.seq] = _Path(come)
        elif found.seq in paths:
            paths[found.seq] = paths[found.seq].beside(come, better)
        if better:
            self.best[found.seq] = found
            return "reached a seed" if found.seq in self._seeds else "reached"
        return "another path is better"

    def _refusal(self, edge: Edge | None, key: NodeKey | None) -> str | None:
        """Why an edge, or the node behind it, is not followed."""
        if edge is not None and not self._holds(edge):
            return "archived edge" if edge.archived else "edge of another time"
        return None if key is None else self._around.closed(key)

    @staticmethod
    def _seed(places: tuple[Place, ...]) -> int:
        seed = places[0]
        if not isinstance(seed, int):
            raise TypeError("paths begin with memories")
        return seed
