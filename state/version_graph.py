"""One owner's memory graph by all versions that an index holds, for questions that want replaced versions too."""

from itertools import islice

import numpy as np

from recallflow.state.graph_codec import NodeKey
from recallflow.state.past_graph import PastGraph


class VersionGraph(PastGraph):
    """A graph in which a memory has the links of all its versions."""

    def members(self, key: NodeKey, limit: int) -> list[int]:
        """Return the `seq` of memories with a version linked to the node, newest first; for a memory, its own."""
        if key.memory or key in self._episodes:
            return super().members(key, limit)
        own, near = self._called(key), [*self._ever_linked(key, limit)]
        versions = self._versions(near)
        linked = (seq for seq in near if any(self.was_linked(seq, one, own) for one in versions.get(seq, ())))
        return [*islice(linked, limit)]

    def was_linked(self, seq: int, version: int, key: NodeKey) -> bool:
        """Return whether a version was linked to the node."""
        return any(node == key for node, _ in self._links_of(seq, version))

    def _versions(self, seqs: list[int]) -> dict[int, list[int]]:
        """Return the versions in the index of memories, by `seq`."""
        facts = self._index.conversation.facts
        theirs = np.isin(facts["seq"], seqs)
        found: dict[int, list[int]] = {}
        for seq, version in zip(facts["seq"][theirs].tolist(), facts["version"][theirs].tolist(), strict=True):
            found.setdefault(seq, []).append(version)
        return found
