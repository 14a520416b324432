"""How near each memory is to the entities that a query is about."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.operators.graph.reader import Scope, is_form, other_end
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex

HOPS = 3
MEMBERS = 2_000  # memories of one entity, the newest first; those before them do not count as near
# A mode that asks for nearness pays for it with every query. The entities' own memories and relations are read first,
# so that what lies farthest is not.
OPENED = 16


def proximity(scope: Scope, index: OwnerIndex, entities: Sequence[NodeKey]) -> npt.NDArray[np.floating[Any]]:
    """(n,) in conversation order: 1 / (1 + hops), hops 0 for a memory linked to one of the entities itself; 0 beyond
    three hops, and beyond what the bounds let be read."""
    seqs = index.conversation.facts["seq"]
    near = np.zeros(int(seqs.max(initial=-1)) + 1)
    for seq, hops in _Search(scope).hops(entities).items():
        if seq < len(near):  # an index of an earlier moment has fewer
            near[seq] = 1 / (1 + hops)
    found: npt.NDArray[np.floating[Any]] = near[seqs]
    return found


class _Search:
    """Counts hops as `neighbourhood` does. Here a path begins with a shared node, and only its length matters."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._graph = scope, scope.graph
        self._reads = 0
        self._hops: dict[int, int] = {}
        self._nodes: set[NodeKey] = set()

    def hops(self, entities: Sequence[NodeKey]) -> dict[int, int]:
        """Memory (`seq`) → hops."""
        memories: list[int] = []
        nodes: list[NodeKey] = []
        self._add_nodes(entities, nodes)
        for hop in range(HOPS + 1):
            next_memories: list[int] = []
            next_nodes: list[NodeKey] = []
            for key in nodes:
                if self._may_read():
                    self._add_memories(hop, self._members(key, hop), memories)
                    self._add_edges(hop, key, memories, next_nodes)
            for seq in memories if hop < HOPS else ():
                if self._may_read() and (links := self._graph.links(seq)):
                    self._add_nodes([key for key, _ in links], next_nodes)
                    self._add_edges(hop + 1, links[0][0], next_memories, next_nodes)
            memories, nodes = next_memories, next_nodes
        return self._hops

    def _members(self, key: NodeKey, hop: int) -> list[int]:
        if hop == 0:
            return self._graph.members(key, MEMBERS)
        return self._scope.linked(key)[: self._scope.bounds.fan_out]

    def _add_edges(self, hop: int, own: NodeKey, memories: list[int], nodes: list[NodeKey]) -> None:
        """Adds what the edges of a vertex lead to."""
        edges = self._graph.edges(own, self._scope.bounds.fan_out)
        others = [other_end(edge, own) for edge in edges if self._scope.holds(edge)]
        self._add_memories(hop, [seq for key in others if key.memory for seq in self._graph.members(key, 1)], memories)
        self._add_nodes(others, nodes)

    def _add_memories(self, hop: int, found: Iterable[int], memories: list[int]) -> None:
        for seq in found:
            if seq not in self._hops:
                self._hops[seq] = hop
                memories.append(seq)

    def _add_nodes(self, found: Iterable[NodeKey], nodes: list[NodeKey]) -> None:
        """Adds the shared nodes among what was found, if paths may go through them."""
        for key in found:
            if not key.memory and key not in self._nodes:
                self._nodes.add(key)
                if not is_form(key) and not self._graph.is_archived(key):
                    nodes.append(key)

    def _may_read(self) -> bool:
        self._reads += 1
        return self._reads <= OPENED
