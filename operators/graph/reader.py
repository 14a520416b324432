"""What is read of an owner's graph for one query, and how much of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from recallflow.state.graph import Edge, Node
from recallflow.state.graph_codec import NodeKey


class GraphReader(Protocol):
    """What is read of an owner's graph (see `OwnerGraph`)."""

    def node(self, key: NodeKey) -> Node | None: ...

    def is_archived(self, key: NodeKey) -> bool: ...

    def members(self, key: NodeKey, limit: int) -> list[int]: ...

    def links(self, seq: int) -> list[tuple[NodeKey, str]]: ...

    def edges(self, key: NodeKey, limit: int) -> list[Edge]: ...

    def find(self, text: str) -> NodeKey | None: ...

    def by_urn(self, urn: str) -> list[NodeKey]: ...


class ReadOnce:
    """A graph as one query reads it: what it asks for again, it is told again. Nobody changes what is told."""

    def __init__(self, graph: GraphReader) -> None:
        self.node: Callable[[NodeKey], Node | None] = cache(graph.node)
        self.is_archived: Callable[[NodeKey], bool] = cache(graph.is_archived)
        self.members: Callable[[NodeKey, int], list[int]] = cache(graph.members)
        self.links: Callable[[int], list[tuple[NodeKey, str]]] = cache(graph.links)
        self.edges: Callable[[NodeKey, int], list[Edge]] = cache(graph.edges)
        self.find: Callable[[str], NodeKey | None] = cache(graph.find)
        self.by_urn: Callable[[str], list[NodeKey]] = cache(graph.by_urn)


@dataclass(frozen=True, slots=True)
class Bounds:
    """`fan_out`: links, and edges, followed from one place, the newest first. `visited`: places met in all. `opened`:
    places whose links and edges are read, the nearest first, among them those of the best seed. A node is followed
    while no more memories are linked to it than `few`, or than a `share` of all memories, but never with more than
    `many`."""

    fan_out: int = 24
    visited: int = 512
    opened: int = 48
    few: int = 8
    share: float = 0.1
    many: int = 100

    def members(self, memories: int) -> int:
        """The most memories of a node that is followed, out of all the owner's."""
        return max(self.few, min(int(self.share * memories), self.many))


class Caps(NamedTuple):
    """Where a bound was reached: `fan_out`, places that had more links or edges than were followed; `common`, nodes not
    followed because too much is linked to them; and the hop (from 1) at which there were too many places, if any."""

    fan_out: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    visited_at_hop: int | None = None

    def told(self) -> dict[str, Any]:
        """For a response: only what was reached, and of long lists how many."""
        cut = {"fan_out": len(self.fan_out), "common": len(self.common), "visited_at_hop": self.visited_at_hop}
        return {name: value for name, value in cut.items() if value}

    def named(self) -> dict[str, Any]:
        """The same, with the names."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}


def tells_a_form(key: NodeKey) -> bool:
    """Whether a node says nothing of what its memories are about."""
    return not key.memory and key.text.startswith("type:")


def is_live(edge: Edge, now_ms: int) -> bool:
    """Whether an edge holds at the asking time."""
    return not edge.archived and (edge.expires_ms is None or now_ms < edge.expires_ms)
