"""Limits and rules of reading an owner's stored graph for one query, and the memories that newer ones supersede."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache

from recallflow.graphs import Mark
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import NodeKey, Superseded

GIVEN_ROLES = frozenset({"category", "topic", "tag", "repo", "entity"})


def read_once(graph: OwnerGraph) -> OwnerGraph:
    """Return the graph with a cache for one query. Callers must not change returned values."""
    reader = copy(graph)
    for name in ("node", "is_archived", "members", "links", "edges", "find", "by_urn"):
        setattr(reader, name, cache(getattr(graph, name)))
    return reader


@dataclass(frozen=True, slots=True)
class LoadBounds:
    """Limits of loading for one query.

    Attributes:
        fan_out: Links, and edges, per vertex.
        linked: The newest memories of a shared node that are considered for its links, in addition to the best matches.
        visited: Vertices.
        opened: Vertices whose links and edges are read, nearest first, and of the best seed first.
    """

    fan_out: int = 24
    linked: int = 100
    visited: int = 512
    opened: int = 48


@dataclass(slots=True)
class Caps:
    """The limits that were reached. `fan_out`: vertices with more links or edges than loaded. `visited_at_hop`: the hop
    (from 1) at which `visited` or `opened` was reached."""

    fan_out: list[str] = field(default_factory=list)
    visited_at_hop: int | None = None

    def counts(self) -> dict[str, int]:
        """Return the reached limits with their counts."""
        reached = {"fan_out": len(self.fan_out), "visited_at_hop": self.visited_at_hop}
        return {name: value for name, value in reached.items() if value}


@dataclass(frozen=True, slots=True)
class TraversalScope:
    """The part of a graph that one query may traverse: `allowed` memories (by `seq`), and edges that hold at `now_ms`
    (epoch ms; None: at any time).

    Attributes:
        prefer: Orders memories of equal score or over a limit, highest first.
        best: Returns a shared node's memories among the best matches of the question.
        fit: Returns the factor, 0 to 1, of a path without a stated edge, for given or derived links.
    """

    graph: OwnerGraph
    now_ms: int | None = None
    allowed: Callable[[int], bool] = lambda _: True
    prefer: Callable[[int], float] = lambda _: 0.0
    best: Callable[[NodeKey], Sequence[int]] = lambda _: ()
    fit: Callable[[int, bool], float] = lambda _, __: 1.0
    bounds: LoadBounds = LoadBounds()

    def linked(self, key: NodeKey) -> list[int]:
        """Return the memories of a shared node that paths may reach, preferred first."""
        found = self.graph.members(key, self.bounds.linked)
        if len(found) == self.bounds.linked:
            found = [*dict.fromkeys([*found, *self.best(key)])]
        return sorted(found, key=lambda seq: (-self.prefer(seq), -seq))

    def is_given(self, seq: int, key: NodeKey) -> bool:
        """Return whether a memory's link to a node was given with the memory."""
        return any(node == key and role in GIVEN_ROLES for node, role in self.graph.links(seq))

    def holds(self, edge: Edge) -> bool:
        """Return whether a path may use an edge. An edge without weight is not used."""
        if not has_weight(edge):
            return False
        return self.now_ms is None or is_live(edge, self.now_ms)

    def own_key(self, seq: int) -> NodeKey | None:
        """Return a memory's key; None if it is archived or not in the graph."""
        links = self.graph.links(seq)
        return links[0][0] if links and not self.graph.is_archived(links[0][0]) else None


def is_form(key: NodeKey) -> bool:
    """Return whether a node (`type:…`) describes the form of a memory, not its subject."""
    return not key.memory and key.text.startswith("type:")


def has_weight(edge: Edge) -> bool:
    """Return whether an edge has weight and confidence above 0."""
    return edge.weight > 0 and edge.confidence > 0


def is_live(edge: Edge, now_ms: int) -> bool:
    """Return whether an edge counts at a time (epoch ms)."""
    return has_weight(edge) and not marks(edge, now_ms)


def marks(edge: Edge, now_ms: int) -> list[Mark]:
    """Return the reasons why an edge does not hold at a time (epoch ms)."""
    found: list[Mark] = ["archived"] if edge.archived else []
    if edge.valid_from_ms is not None and now_ms < edge.valid_from_ms:
        found.append("not_yet_valid")
    if any(end is not None and now_ms >= end for end in (edge.valid_to_ms, edge.expires_ms)):
        found.append("expired")
    return found


def other_end(edge: Edge, key: NodeKey) -> NodeKey:
    """Return the end of an edge that is not `key`; `key` itself for a loop."""
    return edge.target if edge.source == key else edge.source


Refined = Mapping[int, list[Superseded]]


def superseded(graph: OwnerGraph, now_ms: int) -> set[int]:
    """Return the memories (`seq`) that others supersede at `now_ms`. In a cycle of memories that supersede each other,
    the newest by order of arrival stays visible."""
    by: dict[int, list[int]] = {}
    for seq, refinements in graph.superseded().items():
        for one in refinements:
            if one.expires_ms is not None and now_ms >= one.expires_ms:
                continue
            if one.valid_from_ms is not None and now_ms < one.valid_from_ms:
                continue
            if newer := graph.members(NodeKey(one.by, memory=True), 1):
                by.setdefault(seq, []).append(newer[0])
    return by.keys() - _newest_of_circles(by)


def _newest_of_circles(by: Mapping[int, list[int]]) -> set[int]:
    """Return the newest memory of each cycle, unless a memory outside of the cycle supersedes it."""
    if all(seq < newer for seq, found in by.items() for newer in found):
        return set()  # strictly increasing edges have no cycle
    circles = (circle for circle in _components(by) if len(circle) > 1)
    return {newest for circle in circles if circle.issuperset(by[newest := max(circle)])}


def _components(edges: Mapping[int, list[int]]) -> Iterator[set[int]]:
    """Yield the strongly connected components of a graph, by Kosaraju's algorithm in linear time.

    Recall would need networkx (19 MB) for this function only.
    """
    against: dict[int, list[int]] = {}
    for node, others in edges.items():
        for other in others:
            against.setdefault(other, []).append(node)
    reached: set[int] = set()
    finished = [node for root in edges for node in _finished(root, edges, reached)]
    reached = set()
    for root in reversed(finished):
        if component := {*_finished(root, against, reached)}:
            yield component


def _finished(root: int, edges: Mapping[int, list[int]], reached: set[int]) -> Iterator[int]:
    """Yield the nodes first reached from a root in postorder, and add them to `reached`."""
    if root in reached:
        return
    reached.add(root)
    path = [(root, iter(edges.get(root, ())))]
    while path:
        node, others = path[-1]
        following = next((other for other in others if other not in reached), None)
        if following is None:
            path.pop()
            yield node
        else:
            reached.add(following)
            path.append((following, iter(edges.get(following, ()))))
