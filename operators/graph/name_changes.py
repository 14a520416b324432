"""What one event changes of what an owner's entities are called: which names are one thing, and which are looked for in
texts of scripts without case."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from recallflow.state import caseless, keys, unions
from recallflow.state.graph_codec import SAME_AS, EdgeRow, NodeKey, is_entity
from recallflow.state.unions import Joined

if TYPE_CHECKING:
    from recallflow.operators.graph.changes import Changes


class NameChanges:
    """Reads and writes through the changes of the event."""

    def __init__(self, changes: "Changes", owner: bytes) -> None:
        self._changes = changes
        self._owner = owner

    # ------------------------------------------------------------------ one thing of several names

    def of(self, key: NodeKey) -> list[NodeKey]:
        """All names of what a node stands for."""
        return [NodeKey(name) for name in unions.names_of(key.text, self._joined)] if is_entity(key) else [key]

    def join(self, row: EdgeRow, joins: bool) -> None:
        """Makes the ends of a `same_as` edge one thing, or two again. What would have too many names is none."""
        if row.type != SAME_AS or not (is_entity(row.source) and is_entity(row.target)):
            return
        if not joins:
            self._changes.past.keep_joined(row.source, row.target, row.number)
        source, target = row.source.text, row.target.text
        one = Joined(target, row.number, True)
        if joins == (one in self._joined(source)):
            return
        if joins:
            names = {*unions.names_of(source, self._joined), *unions.names_of(target, self._joined)}
            if len(names) > unions.NAMES_MAX:
                return
        for key, other in ((source, one), (target, Joined(source, row.number, False))):
            rest = [found for found in self._joined(key) if found.number != row.number]
            self._put_joined(key, [*rest, other] if joins else rest)

    def _joined(self, key: str) -> list[Joined]:
        stored = self._changes.get(keys.joined(self._owner, self._changes.name(NodeKey(key))))
        return [] if stored is None else unions.decode_joined(stored)[1]

    def _put_joined(self, key: str, joined: list[Joined]) -> None:
        stored = keys.joined(self._owner, self._changes.name(NodeKey(key)))
        self._changes.put(stored, unions.encode_joined(key, joined) if joined else None)
        self._changes.staged.joined[key] = joined

    # ------------------------------------------------------------------ scripts without case

    def caseless(self) -> list[str]:
        """Names in scripts without case that texts are searched for."""
        staged = self._changes.staged.caseless
        return self._changes.hot_graph.caseless() if staged is None else staged

    def keep(self, key: str) -> None:
        """Lets texts be searched for a new entity's name, if it is in such a script and there is room."""
        name, names = _name(key), self.caseless()
        if caseless.is_caseless(name) and len(names) < caseless.NAMES_MAX:
            self._put_caseless([*names, name])

    def drop(self, gone: Iterable[NodeKey]) -> None:
        """Some of these nodes are no more."""
        names = {_name(key.text) for key in gone if is_entity(key) and not key.text.isascii()}
        if names and not names.isdisjoint(before := self.caseless()):
            self._put_caseless([name for name in before if name not in names])

    def _put_caseless(self, names: list[str]) -> None:
        self._changes.put(keys.caseless(self._owner), caseless.encode_names(names) if names else None)
        self._changes.staged.caseless = names


def _name(key: str) -> str:
    return key.partition(":")[2]
