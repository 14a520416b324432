"""How near each memory is to the entities that a query is about."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.operators.graph.reader import Bounds, GraphReader, is_form, is_live, other_end
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex

HOPS = 3
MEMBERS = 2_000  # memories of one entity, the newest first; those before them do not count as near
# A mode that asks for nearness pays for it with every query. The entities' own memories and relations are read first,
# so that what lies farthest is left unread.
BOUNDS = Bounds(opened=16)


def proximity(
    graph: GraphReader, index: OwnerIndex, entities: Sequence[NodeKey], now_ms: int
) -> npt.NDArray[np.floating[Any]]:
    """(n,) in conversation order: 1 / (1 + hops), hops 0 for a memory linked to one of the entities itself; 0 beyond
    three hops, and beyond what the bounds let be read."""
    seqs = index.conversation.facts["seq"]
    near = np.zeros(int(seqs.max(initial=-1)) + 1)
    for seq, hops in _Search(graph, BOUNDS.members(len(index)), now_ms).hops(entities).items():
        if seq < len(near):  # an index of an earlier moment has fewer
            near[seq] = 1 / (1 + hops)
    found: npt.NDArray[np.floating[Any]] = near[seqs]
    return found


class _Search:
    """Counts hops as `neighbourhood` does; here a path begins with a shared node, and its length alone matters."""

    def __init__(self, graph: GraphReader, most_members: int, now_ms: int) -> None:
        self._graph, self._most_members, self._now_ms = graph, most_members, now_ms
        self._reads = 0
        self._hops: dict[int, int] = {}
        self._nodes: set[NodeKey] = set()

    def hops(self, entities: Sequence[NodeKey]) -> dict[int, int]:
        """Memory (`seq`) → hops."""
        nodes = self._new(entities)
        memories: list[int] = []
        for hop in range(HOPS + 1):
            beyond: list[NodeKey] = []
            for key in nodes:
                if self._may_read():
                    others = self._neighbours(key)
                    memories += self._reach(hop, [*self._members(key, hop), *self._seqs(others)])
                    beyond += self._new(others)
            if hop == HOPS:
                break
            further: list[int] = []
            for seq in memories:
                if self._may_read() and (links := [key for key, _ in self._graph.links(seq)]):
                    own, *shared = links
                    others = self._neighbours(own)
                    further += self._reach(hop + 1, self._seqs(others))
                    beyond += self._new([*shared, *others])
            nodes, memories = beyond, further
        return self._hops

    def _members(self, key: NodeKey, hop: int) -> list[int]:
        if hop == 0:
            return self._graph.members(key, MEMBERS)
        found = self._graph.members(key, self._most_members + 1)
        return found[: BOUNDS.fan_out] if len(found) <= self._most_members else []

    def _neighbours(self, key: NodeKey) -> list[NodeKey]:
        edges = self._graph.edges(key, BOUNDS.fan_out)
        return [other_end(edge, key) for edge in edges if is_live(edge, self._now_ms)]

    def _seqs(self, keys: Iterable[NodeKey]) -> list[int]:
        return [seq for key in keys if key.memory for seq in self._graph.members(key, 1)]

    def _reach(self, hop: int, seqs: Iterable[int]) -> list[int]:
        """The memories that are reached for the first time."""
        new = [seq for seq in dict.fromkeys(seqs) if seq not in self._hops]
        self._hops.update(dict.fromkeys(new, hop))
        return new

    def _new(self, keys: Iterable[NodeKey]) -> list[NodeKey]:
        """The shared nodes that are found for the first time, and lead on."""
        new = [key for key in dict.fromkeys(keys) if not key.memory and key not in self._nodes]
        self._nodes.update(new)
        return [key for key in new if not is_form(key) and not self._graph.is_archived(key)]

    def _may_read(self) -> bool:
        self._reads += 1
        return self._reads <= BOUNDS.opened
