"""Names of entities: groups joined by `same_as` edges, names in scripts without case, and names contained in others."""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import regex

from recallflow.language import UNSPACED
from recallflow.state.graph_codec import ENTITY_KIND, NodeKey, node_key

JOINED_NAMES_MAX = 64  # of one entity: a further edge joins nothing
CASELESS_NAMES_MAX = 256  # of an owner: each text is searched for each of them
NAMES_MOST = 10_000  # of an owner with more, no contained names are known: to read them all would take too long
_NAME_BYTES = 300
_URN = node_key(ENTITY_KIND, "urn:")
_COMMON = 100  # a word in more names than this is not distinctive
_LEAST_CHARACTERS = 2  # of a caseless name: a single one is part of many words


class NameJoin(NamedTuple):
    """A name that an edge joins another to: the edge's number, and whether it leads to that name."""

    other: str
    number: int
    leads: bool


class AliasJoin(NamedTuple):
    """A `same_as` edge from one name to another, with its number."""

    source: str
    target: str
    number: int


JoinedOf = Callable[[str], Sequence[NameJoin]]


def encode_joined(own: str, joined: Sequence[NameJoin]) -> bytes:
    return orjson.dumps([own, [tuple(one) for one in joined]])


def decode_joined(data: bytes) -> tuple[str, list[NameJoin]]:
    own, joined = orjson.loads(data)
    return own, [NameJoin(*one) for one in joined]


def decode_all_joined(stored: Iterable[bytes]) -> list[tuple[str, list[Any]]]:
    """Return names and their joins as in JSON: most are never asked for, and all are read for the first question."""
    found: list[tuple[str, list[Any]]] = orjson.loads(b"[%b]" % b",".join(stored))
    return found


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
    """The groups of an owner's names that `same_as` edges connect, computed on first use.

    Each name has a record of directly connected names. All directly or indirectly connected names are one entity. Its
    main name is the first source of such an edge; a URN only if there is no other name. When a memory's statement is
    withdrawn, its edge is removed, and the group splits there."""

    def __init__(self, stored: Iterable[bytes]) -> None:
        self._joined: dict[str, Sequence[Any]] = dict(decode_all_joined(stored))
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


class PastUnions(Unions):
    """The groups of an owner's names at an earlier time.

    A group is computed on the first use of one of its names, because each join takes several reads."""

    def __init__(
        self, candidates: Iterable[AliasJoin], in_force: Callable[[Iterable[AliasJoin]], Iterable[AliasJoin]]
    ) -> None:
        """`candidates` are the joins of all times; `in_force` returns those of that time, in order."""
        super().__init__(())
        self._in_force = in_force
        self._unread: defaultdict[str, list[AliasJoin]] = defaultdict(list)
        for one in candidates:
            self._unread[one.source].append(one)
            self._unread[one.target].append(one)

    def __bool__(self) -> bool:
        return bool(self._joined or self._unread)

    def names(self, key: NodeKey) -> tuple[NodeKey, ...]:
        self._read(key)
        return super().names(key)

    def joins(self, key: NodeKey) -> int:
        self._read(key)
        return super().joins(key)

    def _read(self, key: NodeKey) -> None:
        """Compute the group of a name."""
        if key.memory or key.text not in self._unread:
            return
        connected, left = {key.text}, [key.text]
        while left:
            ends = {end for one in self._unread[left.pop()] for end in (one.source, one.target)} - connected
            connected |= ends
            left += ends
        joined: dict[str, list[NameJoin]] = {}
        for source, target, number in self._in_force({one for name in connected for one in self._unread[name]}):
            names = {name for end in (source, target) for name in names_of(end, lambda key: joined.get(key, []))}
            if len(names) <= JOINED_NAMES_MAX:
                joined.setdefault(source, []).append(NameJoin(target, number, leads=True))
                joined.setdefault(target, []).append(NameJoin(source, number, leads=False))
        self._joined |= joined
        for name in connected:
            del self._unread[name]


_CASELESS = regex.compile(r"\p{Lo}")
_ANYWHERE = regex.compile(rf"[{UNSPACED}]")
_HANGUL = regex.compile(r"\p{Hangul}")
_WITHIN = regex.compile(r"[\p{L}\p{M}\p{N}]")


def is_caseless(name: str) -> bool:
    """Return whether a name is of a script without case, so that texts must be searched for it."""
    return not name.isascii() and len(name) >= _LEAST_CHARACTERS and _CASELESS.search(name) is not None


def encode_names(names: list[str]) -> bytes:
    return orjson.dumps(names)


def decode_names(data: bytes) -> list[str]:
    names: list[str] = orjson.loads(data)
    return names


def names_in(text: str, names: Iterable[str]) -> Iterator[str]:
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    text = text.casefold()
    return (name for name in names if name in text and _is_separate(text, name))


def _is_separate(text: str, name: str) -> bool:
    """Return whether a name is a separate word. Scripts without blanks have no words; in Korean, particles follow a
    name."""
    if _ANYWHERE.search(name):
        return True
    may_go_on = _HANGUL.search(name) is not None
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        begins = not _WITHIN.match(text[start - 1 : start])
        if begins and (may_go_on or not _WITHIN.match(text[end : end + 1])):
            return True
        start = text.find(name, start + 1)
    return False


class EntityNames:
    """The keys of an owner's entities, by the words in them."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._by_word: dict[str, set[str]] = {}
        self._count = 0
        for key in keys:
            self.put(key)

    def put(self, key: str) -> None:
        words = _words(key)
        if words and key not in self._by_word.setdefault(words[0], set()):
            self._count += 1
            for word in words:
                self._by_word.setdefault(word, set()).add(key)

    def remove(self, key: str) -> None:
        words = _words(key)
        if words and key in self._by_word.get(words[0], ()):
            self._count -= 1
            for word in {*words}:
                self._by_word[word].discard(key)
                if not self._by_word[word]:
                    del self._by_word[word]

    def alike(self, key: str) -> list[str]:
        """Return the keys of other entities whose name contains this one's words, or is contained in them."""
        own = {*_words(key)}
        found = {other for word in own if len(with_it := self._by_word.get(word, ())) <= _COMMON for other in with_it}
        return sorted(other for other in found - {key} if (words := {*_words(other)}) <= own or own <= words)

    def size_bytes(self) -> int:
        return _NAME_BYTES * self._count


def _words(key: str) -> list[str]:
    return key.partition(":")[2].replace("-", " ").split()
