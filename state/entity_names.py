"""Names of entities: groups of names that `same_as` edges join, names in scripts without case, and similar names."""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import regex

from recallflow.language.scripts import UNSPACED
from recallflow.state.graph_codec import ENTITY_KIND, NodeKey, node_key

JOINED_NAMES_MAX = 64  # names of one entity: further edges join nothing
CASELESS_NAMES_MAX = 256  # names of an owner: each text is searched for each of them
SIMILAR_NAMES_MAX = 10_000  # names of an owner: with more, none are compared, because reading them takes too long
_NAME_BYTES = 300
_URN = node_key(ENTITY_KIND, "urn:")
_COMMON_WORD_NAMES = 100  # a word in more names than this is not distinctive
_MIN_CASELESS_CHARACTERS = 2  # a single character is part of many words


class NameJoin(NamedTuple):
    """A `same_as` edge of a name, as stored with this name."""

    other: str  # the name at the other end
    number: int  # of the edge
    leads: bool  # whether the other end is the edge's target


class AliasJoin(NamedTuple):
    """A `same_as` edge from one name to another, with its number."""

    source: str
    target: str
    number: int


def encode_joins(name: str, joins: Sequence[NameJoin]) -> bytes:
    return orjson.dumps([name, [tuple(join) for join in joins]])


def decode_joins(data: bytes) -> tuple[str, list[NameJoin]]:
    name, joins = orjson.loads(data)
    return name, [NameJoin(*join) for join in joins]


def decode_all_joins(stored: Iterable[bytes]) -> list[tuple[str, list[Any]]]:
    """Return names and their joins as JSON lists: all are read at the first query, and few become `NameJoin`s."""
    found: list[tuple[str, list[Any]]] = orjson.loads(b"[%b]" % b",".join(stored))
    return found


def names_of(key: str, joins_of: Callable[[str], Sequence[NameJoin]]) -> list[str]:
    """Return all names of a name's entity, the main one first."""
    found = {key: joins_of(key)}
    pending = [*found[key]]
    while pending:
        other = pending.pop().other
        if other not in found:
            found[other] = joins_of(other)
            pending += found[other]
    return sorted(found, key=lambda name: _order(name, found[name])) if len(found) > 1 else [key]


def _order(name: str, joins: Iterable[NameJoin]) -> tuple[bool, int, bool, str]:
    """Return a sort key: URNs after names, then by number and direction of the name's first edge."""
    # Only in a damaged state, a name of a group has no joins.
    number, is_target = min(((one.number, not one.leads) for one in joins), default=(0, True))
    return name.startswith(_URN), number, is_target, name


class Unions:
    """The groups of an owner's names that `same_as` edges connect. Each is computed on first use.

    All directly or indirectly connected names are one entity. Its main name is the source of the first edge; a URN only
    if there is no other name. When the statement of an edge is withdrawn, the group splits there."""

    def __init__(self, stored: Iterable[bytes]) -> None:
        self._joined: dict[str, Sequence[Any]] = dict(decode_all_joins(stored))  # joins by name
        self._names: dict[str, tuple[NodeKey, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._joined)

    def names(self, key: NodeKey) -> tuple[NodeKey, ...]:
        """Return all names of a node's entity, the main one first; often only the node itself."""
        if key.memory or key.text not in self._joined:
            return (key,)
        if key.text not in self._names:
            joined = names_of(key.text, lambda name: [NameJoin(*one) for one in self._joined.get(name, ())])
            names = tuple(map(NodeKey, joined))
            self._names |= {name.text: names for name in names}
        return self._names[key.text]

    def join_count(self, key: NodeKey) -> int:
        """Return the number of `same_as` edges that join this name of a node to others."""
        return 0 if key.memory else len(self._joined.get(key.text, ()))

    def publish(self, changed: Mapping[str, Sequence[NameJoin]]) -> None:
        """Apply the changed joins of names. An empty list removes those of a name."""
        if changed:
            self._names.clear()
        for name, joins in changed.items():
            self._joined.pop(name, None)
            if joins:
                self._joined[name] = list(joins)

    def size_bytes(self) -> int:
        return _NAME_BYTES * (len(self._joined) + len(self._names))


class PastUnions(Unions):
    """The groups of an owner's names at an earlier time. To find out whether an edge existed takes several reads, which
    are made at the first use of a name of its group."""

    def __init__(
        self, candidates: Iterable[AliasJoin], in_force: Callable[[Iterable[AliasJoin]], Iterable[AliasJoin]]
    ) -> None:
        """`candidates` are the joins of all times; `in_force` selects those of the earlier time, in order of number."""
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

    def join_count(self, key: NodeKey) -> int:
        self._read(key)
        return super().join_count(key)

    def _read(self, key: NodeKey) -> None:
        """Compute the group of a name."""
        if key.memory or key.text not in self._unread:
            return
        connected, pending = {key.text}, [key.text]
        while pending:
            ends = {end for one in self._unread[pending.pop()] for end in (one.source, one.target)} - connected
            connected |= ends
            pending += ends
        joined: dict[str, list[NameJoin]] = {}
        for source, target, number in self._in_force({one for name in connected for one in self._unread[name]}):
            names = {name for end in (source, target) for name in names_of(end, lambda key: joined.get(key, []))}
            if len(names) <= JOINED_NAMES_MAX:
                joined.setdefault(source, []).append(NameJoin(target, number, leads=True))
                joined.setdefault(target, []).append(NameJoin(source, number, leads=False))
        self._joined |= joined
        for name in connected:
            del self._unread[name]


_CASELESS_LETTER = regex.compile(r"\p{Lo}")
_UNSPACED_CHARACTER = regex.compile(rf"[{UNSPACED}]")  # of scripts without blanks between words
_HANGUL = regex.compile(r"\p{Hangul}")
_WORD_CHARACTER = regex.compile(r"[\p{L}\p{M}\p{N}]")


def is_caseless(name: str) -> bool:
    """Return whether a name is of a script without case, so that texts must be searched for it."""
    is_long_enough = len(name) >= _MIN_CASELESS_CHARACTERS
    return not name.isascii() and is_long_enough and _CASELESS_LETTER.search(name) is not None


def names_in(text: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the names that occur in a text as words of their own."""
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    text = text.casefold()
    return (name for name in names if name in text and _is_separate(text, name))


def _is_separate(text: str, name: str) -> bool:
    """Return whether a name occurs as a word, if its script has blanks. In Korean, particles may follow the name."""
    if _UNSPACED_CHARACTER.search(name):
        return True
    may_have_suffix = _HANGUL.search(name) is not None
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        starts_word = not _WORD_CHARACTER.match(text[start - 1 : start])
        if starts_word and (may_have_suffix or not _WORD_CHARACTER.match(text[end : end + 1])):
            return True
        start = text.find(name, start + 1)
    return False


class EntityNames:
    """The keys of an owner's entities (`entity:…`), by the words of the name."""

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

    def similar(self, key: str) -> list[str]:
        """Return the keys of other entities that have all words of this name, or no other words."""
        own, found = {*_words(key)}, set[str]()
        for word in own:
            if len(with_word := self._by_word.get(word, set())) <= _COMMON_WORD_NAMES:
                found |= with_word
        return sorted(other for other in found - {key} if (words := {*_words(other)}) <= own or own <= words)

    def size_bytes(self) -> int:
        return _NAME_BYTES * self._count


def _words(key: str) -> list[str]:
    return key.partition(":")[2].replace("-", " ").split()
