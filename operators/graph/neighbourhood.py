"""The part of the memory graph around a few memories, loaded for one query and bounded.

A place is a memory (its `seq`) or what memories have in common (a `NodeKey`). Hops count from the memories begun with:
memory → shared node → memory is one hop, a direct edge between memories is one, an edge between two shared nodes is one
of its own. An edge between a memory and a shared node (such as `conditional_on` to `time:morning`) is like a link.

What is dead at the asking time (archived or expired) is loaded, so that a trace can show it, but leads nowhere. Neither
does a node that a large share of all memories is linked to, such as the participants of a chat between two: sharing it
hardly tells two memories from any two others. Nor does `type:…`, which says what form a memory has and not what it is
about.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import networkx as nx

from recallflow.operators.graph.reader import Bounds, Caps, GraphReader, tells_a_form
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SELF_ROLE, SYMMETRIC, NodeKey

ARCHIVED, COMMON, FORM = "archived node", "node too common", "node of a form"

Place = int | NodeKey
Graph: TypeAlias = nx.MultiDiGraph


@dataclass(slots=True)
class Neighbourhood:
    """`graph`: places as nodes. Attributes: `open`, whether what leads on from the place was read; where not, and no
    bound is the reason, `closed` says why; of an open memory `key` (its NodeKey). Of an edge `edge`, an `Edge`; None
    where a memory is linked to a node."""

    graph: Graph
    caps: Caps
    _out: dict[Place, Any] = field(init=False)
    _in: dict[Place, Any] = field(init=False)

    def __post_init__(self) -> None:
        # The plain dictionaries: networkx' own views take longer to look through than the stored graph takes to read.
        self._out = dict(self.graph.adjacency())
        self._in = dict(nx.reverse_view(self.graph).adjacency())

    def around(self, place: Place) -> Iterator[tuple[Place, Edge | None]]:
        """The places one link or edge away, whatever its direction, in the order they were loaded."""
        for others in (self._out[place], self._in[place]):
            for other, edges in others.items():
                for attributes in edges.values():
                    yield other, attributes["edge"]

    def memories(self) -> list[int]:
        return [place for place in self.graph if isinstance(place, int)]

    def edges(self) -> list[Edge]:
        return [edge for _, _, edge in self.graph.edges(data="edge") if edge is not None]

    def links(self) -> list[tuple[int, NodeKey]]:
        """Memory and node of each link."""
        return [(seq, key) for seq, key, edge in self.graph.edges(data="edge") if edge is None]

    def is_open(self, place: Place) -> bool:
        """Whether paths may go on from a place: nothing bounded it, and it is neither archived nor too common."""
        return bool(self.graph.nodes[place]["open"])

    def key(self, place: Place) -> NodeKey:
        """What an open place is called."""
        key: NodeKey = self.graph.nodes[place]["key"] if isinstance(place, int) else place
        return key

    def closed(self, place: Place) -> str | None:
        """Why no path may go on from a place that is not open, beside bounds."""
        reason: str | None = self.graph.nodes[place].get("closed")
        return reason


def load(
    graph: GraphReader,
    seeds: Sequence[Place],
    hops: int,
    *,
    memories: int,
    follow: Callable[[Edge], bool],
    allowed: Callable[[int], bool] = lambda _: True,
    bounds: Bounds,
) -> Neighbourhood:
    """What is within `hops` of the seeds, by edges that `follow` lets pass and through memories that are `allowed`.
    `memories`: how many the owner has. A shared node that is a seed is followed even if it is common."""
    return _Loader(graph, bounds, bounds.members(memories), follow, allowed).load(seeds, hops)


class _Loader:
    def __init__(
        self,
        graph: GraphReader,
        bounds: Bounds,
        most_members: int,
        follow: Callable[[Edge], bool],
        allowed: Callable[[int], bool],
    ) -> None:
        self._stored = graph
        self._bounds = bounds
        self._most_members = most_members
        self._follow = follow
        self._allowed = allowed
        self._graph = Graph()
        self._opened = 0
        self._hop = 1
        self._full_at: int | None = None
        self._cut: list[str] = []
        self._common: list[str] = []
        self._seqs: dict[NodeKey, int | None] = {}
        self._begun: set[Place] = set()
        self._sought: set[NodeKey] = set()

    def load(self, seeds: Sequence[Place], hops: int) -> Neighbourhood:
        memories: list[int] = []
        nodes: list[NodeKey] = []
        for seed in seeds:
            if isinstance(seed, int):
                self._meets_memory(seed, memories)
            else:
                self._meets_node(seed, nodes)
        self._sought = set(nodes)
        for self._hop in range(1, hops + 1):
            near = [*nodes]
            next_memories: list[int] = []
            next_nodes: list[NodeKey] = []
            for seq in memories:
                self._leave_memory(seq, near, next_memories)
            for key in near:
                self._leave_node(key, next_memories, next_nodes)
            memories, nodes = next_memories, next_nodes
        return Neighbourhood(self._graph, Caps(tuple(self._cut), tuple(self._common), self._full_at))

    def _leave_memory(self, seq: int, near: list[NodeKey], memories: list[int]) -> None:
        if not self._opens() or not (links := self._stored.links(seq)):
            return
        own = next(key for key, role in links if role == SELF_ROLE)
        if self._stored.is_archived(own):
            self._graph.nodes[seq]["closed"] = ARCHIVED
            return
        self._graph.nodes[seq].update(open=True, key=own)
        for key in self._bounded(own, [key for key, _ in links if key != own]):
            if self._meets_node(key, near):
                self._graph.add_edge(seq, key, key="", edge=None)
        for edge in self._edges(own):
            other = edge.target if edge.source == own else edge.source
            self._join(seq, own, other, edge, memories, near)

    def _leave_node(self, key: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        if not self._opens():
            return
        closed = self._closed(key)
        members = [] if closed else self._stored.members(key, max(self._most_members, self._bounds.fan_out) + 1)
        if len(members) > self._most_members and key not in self._sought:
            closed = COMMON
            self._common.append(str(key))
        if closed is not None:
            self._graph.nodes[key]["closed"] = closed
            return
        self._graph.nodes[key]["open"] = True
        for seq in self._bounded(key, members):
            if self._meets_memory(seq, memories):
                self._graph.add_edge(seq, key, key="", edge=None)
        for edge in self._edges(key):
            other = edge.target if edge.source == key else edge.source
            self._join(key, key, other, edge, memories, nodes)

    def _closed(self, key: NodeKey) -> str | None:
        """Why a shared node leads nowhere, as far as it alone can tell."""
        if self._stored.is_archived(key):
            return ARCHIVED
        return FORM if tells_a_form(key) and key not in self._sought else None

    def _join(
        self, place: Place, own: NodeKey, other: NodeKey, edge: Edge, memories: list[int], nodes: list[NodeKey]
    ) -> None:
        """Loads an edge and what it leads to. Where it does not hold, what it leads to is not gone on from."""
        held = self._follow(edge)
        met: Place | None = other
        if other.memory:
            met = self._seq(other)
            known = met is not None and self._meets_memory(met, memories if held else None)
        else:
            known = self._meets_node(other, nodes if held else None)
        ends = (place, met) if edge.source == own else (met, place)
        if known and not (edge.type in SYMMETRIC and self._graph.has_edge(*reversed(ends), key=edge.type)):
            self._graph.add_edge(*ends, key=edge.type, edge=edge)

    def _edges(self, key: NodeKey) -> Iterable[Edge]:
        return self._bounded(key, self._stored.edges(key, self._bounds.fan_out + 1))

    def _bounded(self, key: NodeKey, found: list[Any]) -> list[Any]:
        if len(found) > self._bounds.fan_out and (not self._cut or self._cut[-1] != str(key)):
            self._cut.append(str(key))
        return found[: self._bounds.fan_out]

    # ------------------------------------------------------------------ meeting places

    def _meets_memory(self, seq: int, ahead: list[int] | None) -> bool:
        """Takes a memory in, if there is room, and puts it among those ahead, where it is not yet."""
        if seq not in self._graph:
            if not self._has_room():
                return False
            self._graph.add_node(seq, open=False)
        if ahead is not None and seq not in self._begun and self._allowed(seq):
            self._begun.add(seq)
            ahead.append(seq)
        return True

    def _meets_node(self, key: NodeKey, ahead: list[NodeKey] | None) -> bool:
        if key not in self._graph:
            if not self._has_room():
                return False
            self._graph.add_node(key, open=False)
        if ahead is not None and key not in self._begun:
            self._begun.add(key)
            ahead.append(key)
        return True

    def _seq(self, key: NodeKey) -> int | None:
        if key not in self._seqs:
            self._seqs[key] = next(iter(self._stored.members(key, 1)), None)
        return self._seqs[key]

    def _has_room(self) -> bool:
        return self._within(len(self._graph) < self._bounds.visited)

    def _opens(self) -> bool:
        self._opened += 1
        return self._within(self._opened <= self._bounds.opened)

    def _within(self, room: bool) -> bool:
        if not room and self._full_at is None:
            self._full_at = self._hop
        return room
