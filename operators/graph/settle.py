"""What becomes of nodes that lost a link or an edge.

One that nothing leads to any more goes. Of one whose teller went, the oldest memory that tells anything of it tells.
"""

from collections.abc import Iterable
from itertools import islice

from recallflow.limits import TELLERS_MAX
from recallflow.operators.graph.staged import Staged
from recallflow.state import keys
from recallflow.state.graph_codec import NodeKey, NodeRow, Told, decode_member
from recallflow.state.partition import Partition

Records = Iterable[tuple[bytes, bytes]]


class Settling:
    """Settles what an event staged, with all that came before it committed: scans see committed records only."""

    def __init__(self, partition: Partition, owner: bytes, staged: Staged) -> None:
        self._partition = partition
        self._owner = owner
        self._staged = staged
        # Keys begin with the owners' prefix, the owner and the table: the node's name ends the part they share.
        shared = keys.TABLE_BYTES + keys.NAME_BYTES
        self._fresh: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for key, value in staged.effects.items():
            if value is not None:
                self._fresh.setdefault(key[:shared], []).append((key, value))

    def settle(self, loosened: dict[bytes, NodeKey], untold: dict[bytes, NodeKey]) -> None:
        """`loosened`: nodes that lost a link or an edge; `untold`: those whose teller went. Both by what stands for the
        node in stored keys."""
        gone = {name: key for name, key in loosened.items() if not self._is_led_to(name)}
        for name, key in gone.items():
            self._staged.effects[keys.node(self._owner, name)] = None
            self._staged.known.pop(key.text, None)
            self._staged.gone.add(key.text)
        for name in untold:
            if name not in gone:
                self._retell(name)

    def _is_led_to(self, name: bytes) -> bool:
        """Whether a link or an edge is left at the node."""
        effects = self._staged.effects
        prefixes = keys.members(self._owner, name), keys.adjacency_of(self._owner, name)
        return any(
            prefix in self._fresh or any(key not in effects for key, _ in self._partition.scan(prefix))
            for prefix in prefixes
        )

    def _retell(self, name: bytes) -> None:
        key = keys.node(self._owner, name)
        stored = self._staged.get(self._partition, key)
        if stored is None:
            return
        row, word = NodeRow.decode(stored), self._oldest_word(name)
        self._staged.effects[key] = (row.told(None, None) if word is None else row.told(word[1], word[0])).encode()

    def _oldest_word(self, name: bytes) -> tuple[int, Told] | None:
        """The first memory, by its place, that tells anything of the node; of those that did so before this event, the
        first few are asked."""
        prefix, effects = keys.members(self._owner, name), self._staged.effects
        standing = ((key, value) for key, value in self._partition.scan_back(prefix) if key not in effects)
        stored = islice(standing, TELLERS_MAX)
        added = sorted(self._fresh.get(prefix, []), reverse=True)
        words = (_first_word(added), _first_word(stored))
        return min((word for word in words if word is not None), key=lambda word: word[0], default=None)


def _first_word(members: Records) -> tuple[int, Told] | None:
    for key, value in members:
        _, told = decode_member(value)
        if told is not None:
            return keys.reversed_sequence(key), told
    return None
