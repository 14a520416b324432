"""Groups of entity names that `same_as` edges connect.

Each name has a record of directly connected names. All directly or indirectly connected names are one entity. Its main
name is the first source of such an edge; a URN only if there is no other name. When a memory's statement is withdrawn,
its edge is removed, and the group splits there."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from recallflow.state.graph_codec import ENTITY_KIND, NodeKey, node_key

NAMES_MAX = 64  # of one thing: an edge that would make it more joins nothing
_URN = node_key(ENTITY_KIND, "urn:")
_NAME_BYTES = 300


class NameJoin(NamedTuple):
    """A name that an edge joins another to: the edge's number, and whether it leads to that name."""

    other: str
    number: int
    leads: bool


JoinedOf = Callable[[str], Sequence[NameJoin]]


def encode_joined(own: str, joined: Sequence[NameJoin]) -> bytes:
    """Encode a name's record."""
    return orjson.dumps([own, [tuple(one) for one in joined]])


def decode_joined(data: bytes) -> tuple[str, list[NameJoin]]:
    """Decode a name's record."""
    own, joined = orjson.loads(data)
    return own, [NameJoin(*one) for one in joined]


def names_of(key: str, joined_of: JoinedOf) -> list[str]:
    """Return all names of a name's entity, the main one first."""
    found = {key: joined_of(key)}
    left = [*found[key]]
    while left:
        other = left.pop().other
        if other not in found:
            found[other] = joined_of(other)
            left += found[other]
    return sorted(found, key=lambda name: _order(name, found[name])) if len(found) > 1 else [key]


def _order(name: str, joined: Iterable[NameJoin]) -> tuple[bool, int, bool, str]:
    """Return a sort key: URNs after names, then by the first edge of a name and its direction."""
    # None are joined at one end only, unless the state is damaged.
    number, is_led_to = min(((one.number, not one.leads) for one in joined), default=(0, True))
    return name.startswith(_URN), number, is_led_to, name


class Unions:
    """The name groups of an owner, in memory. They are computed on first use, and cached."""

    def __init__(self, stored: Iterable[bytes]) -> None:
        # As JSON has them: most are never asked for, and all are read for the first question.
        self._joined: dict[str, Sequence[Any]] = dict(orjson.loads(b"[%b]" % b",".join(stored)))
        self._names: dict[str, tuple[NodeKey, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._joined)

    def names(self, key: NodeKey) -> tuple[NodeKey, ...]:
        """Return all names of a node's entity, the main one first; often only the node itself."""
        if key.memory or key.text not in self._joined:
            return (key,)
        if key.text not in self._names:
            names = tuple(NodeKey(text) for text in names_of(key.text, self._joined_to))
            self._names |= {name.text: names for name in names}
        return self._names[key.text]

    def _joined_to(self, name: str) -> list[NameJoin]:
        return [NameJoin(*one) for one in self._joined.get(name, ())]

    def joins(self, key: NodeKey) -> int:
        """Return the number of edges that join a name to others."""
        return 0 if key.memory else len(self._joined.get(key.text, ()))

    def publish(self, changed: Mapping[str, Sequence[NameJoin]]) -> None:
        """Apply the changes of an event. An empty list removes a name's connections."""
        if changed:
            self._names.clear()
        for key, joined in changed.items():
            self._joined.pop(key, None)
            if joined:
                self._joined[key] = list(joined)

    def size_bytes(self) -> int:
        return _NAME_BYTES * (len(self._joined) + len(self._names))
