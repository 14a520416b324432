"""How near each memory is to the entities that a query is about."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.operators.graph.reader import Bounds, GraphReader, is_live, tells_a_form
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex

HOPS = 3
MEMBERS = 2_000  # memories of one entity, the newest first; what came before counts as not near
# A mode that asks for it pays for it with every query. The entities' own memories and relations come first, so that
# what is left unread is what lies farthest.
BOUNDS = Bounds(opened=16)


def proximity(
    graph: GraphReader, index: OwnerIndex, entities: Sequence[NodeKey], now_ms: int
) -> npt.NDArray[np.floating[Any]]:
    """(n,) in conversation order: 1 / (1 + hops), hops 0 for a memory linked to one of the entities itself; 0 beyond
    three hops, and beyond what the bounds let be read."""
    seqs = index.conversation.facts["seq"]
    near = np.zeros(int(seqs.max(initial=-1)) + 1)
    if entities:
        hops = _Search(graph, BOUNDS.members(len(index)), now_ms).around(entities)
        reached = np.array([*hops.items()], np.int64).reshape(-1, 2)
        reached = reached[reached[:, 0] < len(near)]  # an index of an earlier moment has fewer
        near[reached[:, 0]] = 1 / (1 + reached[:, 1])
    found: npt.NDArray[np.floating[Any]] = near[seqs]
    return found


class _Search:
    """Hops of memories from shared nodes. As in `neighbourhood`, memory → node → memory is one hop, and so is an edge;
    here the way begins with the node."""

    def __init__(self, graph: GraphReader, most_members: int, now_ms: int) -> None:
        self._graph = graph
        self._most_members = most_members
        self._now_ms = now_ms
        self._opened = 0
        self._memories: dict[int, int] = {}
        self._nodes: set[NodeKey] = set()

    def around(self, entities: Sequence[NodeKey]) -> dict[int, int]:
        """Memory (`seq`) → hops."""
        nodes = self._new(entities)
        memories: list[int] = []
        for hop in range(HOPS + 1):
            beyond: list[NodeKey] = []
            for key in nodes:
                if self._opens():
                    others = self._others(key)
                    memories += self._reach(hop, [*self._members(key, hop), *self._seqs(others)])
                    beyond += self._new(others)
            if hop == HOPS:
                break
            further: list[int] = []
            for seq in memories:
                if self._opens() and (links := [key for key, _ in self._graph.links(seq)]):
                    own, *shared = links
                    others = self._others(own)
                    further += self._reach(hop + 1, self._seqs(others))
                    beyond += self._new([*shared, *others])
            nodes, memories = beyond, further
        return self._memories

    def _members(self, key: NodeKey, hop: int) -> list[int]:
        if hop == 0:
            return self._graph.members(key, MEMBERS)
        found = self._graph.members(key, self._most_members + 1)
        return found[: BOUNDS.fan_out] if len(found) <= self._most_members else []

    def _others(self, key: NodeKey) -> list[NodeKey]:
        """What lies behind the edges of a place."""
        edges = [edge for edge in self._graph.edges(key, BOUNDS.fan_out) if is_live(edge, self._now_ms)]
        return [edge.target if edge.source == key else edge.source for edge in edges]

    def _seqs(self, keys: Iterable[NodeKey]) -> list[int]:
        return [seq for key in keys if key.memory for seq in self._graph.members(key, 1)]

    def _reach(self, hop: int, seqs: Iterable[int]) -> list[int]:
        """Those of the memories that were not reached before."""
        new = [seq for seq in dict.fromkeys(seqs) if seq not in self._memories]
        self._memories.update(dict.fromkeys(new, hop))
        return new

    def _new(self, keys: Iterable[NodeKey]) -> list[NodeKey]:
        """Those of the nodes that were not met before and may be followed."""
        new = [key for key in dict.fromkeys(keys) if not key.memory and key not in self._nodes]
        self._nodes.update(new)
        return [key for key in new if not tells_a_form(key) and not self._graph.is_archived(key)]

    def _opens(self) -> bool:
        self._opened += 1
        return self._opened <= BOUNDS.opened
