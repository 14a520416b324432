"""What one query may read of an owner's stored graph, and how much of it."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache

from recallflow.graphs import Mark
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey

GIVEN_ROLES = frozenset({"category", "topic", "tag", "repo", "entity"})


def read_once(graph: OwnerGraph) -> OwnerGraph:
    """The graph as one query reads it: each record once. Callers must not change what it returns."""
    reader = copy(graph)
    for name in ("node", "is_archived", "members", "links", "edges", "find", "by_urn"):
        setattr(reader, name, cache(getattr(graph, name)))
    return reader


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one query loads. `fan_out`: links, and edges, of one vertex. `linked`: memories of a shared node that
    are looked at for these links, the newest, beside those that fit the question best. `visited`: vertices. `opened`:
    vertices whose links and edges are read, the nearest first, the best seed's before the others'."""

    fan_out: int = 24
    linked: int = 100
    visited: int = 512
    opened: int = 48


@dataclass(slots=True)
class Caps:
    """The bounds that were reached. `fan_out`: vertices with more links or edges than were loaded. `visited_at_hop`:
    the hop (from 1) at which `visited` or `opened` was reached, if any."""

    fan_out: list[str] = field(default_factory=list)
    visited_at_hop: int | None = None

    def counts(self) -> dict[str, int]:
        """The bounds reached, with how many vertices reached each."""
        reached = {"fan_out": len(self.fan_out), "visited_at_hop": self.visited_at_hop}
        return {name: value for name, value in reached.items() if value}


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a graph that one query may walk through: memories that are `allowed` (by `seq`), and edges that hold
    at `now_ms` (epoch ms; None: at any time).

    `prefer` orders memories, the highest first, where scores are equal or not all can be taken. `best`: those of a
    shared node's memories that fit the question best of all. `fit`: what a path to a memory counts that no stated edge
    leads to, 0 to 1, by whether it was given links or all was worked out."""

    graph: OwnerGraph
    now_ms: int | None = None
    allowed: Callable[[int], bool] = lambda _: True
    prefer: Callable[[int], float] = lambda _: 0.0
    best: Callable[[NodeKey], Sequence[int]] = lambda _: ()
    fit: Callable[[int, bool], float] = lambda _, __: 1.0
    bounds: Bounds = Bounds()

    def linked(self, key: NodeKey) -> list[int]:
        """The memories of a shared node that paths go to, the preferred first; of a common one those looked at."""
        found = self.graph.members(key, self.bounds.linked)
        if len(found) == self.bounds.linked:
            found = [*dict.fromkeys([*found, *self.best(key)])]
        return sorted(found, key=lambda seq: (-self.prefer(seq), -seq))

    def is_given(self, seq: int, key: NodeKey) -> bool:
        """Whether a memory's link to a node was given with it."""
        return any(node == key and role in GIVEN_ROLES for node, role in self.graph.links(seq))

    def holds(self, edge: Edge) -> bool:
        """Whether a path may go along an edge. One without weight leads nowhere."""
        if not has_weight(edge):
            return False
        return self.now_ms is None or is_live(edge, self.now_ms)

    def own_key(self, seq: int) -> NodeKey | None:
        """A memory's own key; None where the memory is archived or not in the graph."""
        links = self.graph.links(seq)
        return links[0][0] if links and not self.graph.is_archived(links[0][0]) else None


def is_form(key: NodeKey) -> bool:
    """Whether a node (`type:…`) says what form a memory has, and not what it is about."""
    return not key.memory and key.text.startswith("type:")


def has_weight(edge: Edge) -> bool:
    """Whether an edge counts for anything."""
    return edge.weight > 0 and edge.confidence > 0


def is_live(edge: Edge, now_ms: int) -> bool:
    """Whether an edge counts at a time (epoch ms)."""
    return has_weight(edge) and not marks(edge, now_ms)


def marks(edge: Edge, now_ms: int) -> list[Mark]:
    """Why an edge does not hold at a time (epoch ms), where it does not."""
    found: list[Mark] = ["archived"] if edge.archived else []
    if edge.valid_from_ms is not None and now_ms < edge.valid_from_ms:
        found.append("not_yet_valid")
    if any(end is not None and now_ms >= end for end in (edge.valid_to_ms, edge.expires_ms)):
        found.append("expired")
    return found


def other_end(edge: Edge, key: NodeKey) -> NodeKey:
    """The end of an edge that is not `key`; `key` itself where the edge leads back to it."""
    return edge.target if edge.source == key else edge.source
