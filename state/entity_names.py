"""Which of an owner's entities have names that are part of each other, word for word: `Ana` and `Ana García`."""

from collections.abc import Iterable

NAMES_MOST = 10_000  # of an owner with more, none are known: to read them all would take too long
_COMMON = 100  # a word in more names than this is not distinctive
_NAME_BYTES = 300


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
    """Return the words of the name in an entity's key."""
    return key.partition(":")[2].replace("-", " ").split()
