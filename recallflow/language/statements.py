"""Features of statements: cues of changes, ends and corrections, subjects, and numbers.

The cues of each language are in `cues/*.toml`: lists of words and phrases, which a native speaker can correct."""

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, reduce
from hashlib import blake2b
from importlib import resources
from operator import or_
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import regex

from recallflow.caching import BoundedCache
from recallflow.language.scripts import plain
from recallflow.language.word_vectors import PERSON, WordRows, word_vectors
from recallflow.language.words import words

Cue = Literal["change", "ended", "corrected", "restored", "added", "past", "others", "own"]
CUES: tuple[Cue, ...] = get_args(Cue)
_FOLDER = resources.files("recallflow.language") / "cues"
_NUMBER = regex.compile(r"\d[\d.,:/-]*\d|\d")
_POSSESSED_WITHIN = 3  # maximum number of words from "my" to the person
_SUBSTRING_CUES = ("zh", "ja", "ko")  # no spaces between words; Korean words have particles
_POSSESSIVES = " 的の"
_SOMEBODY = -1  # in place of a row: a person whom only a cue indicates
_WORDS_BYTES = 4 * 1024 * 1024
_NO_VECTOR = np.zeros(0, np.float32)


class StatementReading(NamedTuple):
    """Features of a statement or a question, of about 1,000 bytes.

    Attributes:
        words: identities of its distinct words in lower case and without accents, ascending.
        vector: sum of its words' vectors, normalised to length 1; zeros if no word has a vector.
        attributes: bits of its words for personal attributes, such as a place of residence.
        cues: kinds of its cues, as bits in the order of `CUES`.
        persons: rows of its nouns for persons; also `_SOMEBODY` if another cue indicates a person.
        name: identity of its first or second word if this is probably a name: an unknown word with a capital.
        numbers: numbers as written.
        is_own: whether it refers to the writer: "I", or "my" before a noun that is not a person."""

    words: npt.NDArray[np.uint64]
    vector: npt.NDArray[np.float32]
    attributes: int
    cues: int
    persons: frozenset[int]
    name: int | None
    numbers: frozenset[str]
    is_own: bool

    def has(self, cue: Cue) -> bool:
        """Return whether the text contains a cue of this kind."""
        return bool(self.cues >> CUES.index(cue) & 1)


def identity(word: str) -> int:
    """Return a hash of 64 bits: collisions of words are negligible."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


_identities = BoundedCache(identity, _WORDS_BYTES)


class _Cues:
    """Cues of one language, by their first words, or as strings in a language without spaces."""

    def __init__(self, code: str) -> None:
        listed = tomllib.loads((_FOLDER / f"{code}.toml").read_text("utf-8"))
        self.are_substrings = code in _SUBSTRING_CUES
        self._strings = [(plain(phrase), cue) for cue in CUES for phrase in listed[cue]]
        self.others = [string for string, cue in self._strings if cue == "others"]
        self._by_first: defaultdict[str, list[tuple[list[str], Cue]]] = defaultdict(list)
        for string, cue in self._strings:
            if phrase := words(string):
                self._by_first[phrase[0]].append((phrase, cue))

    def find(self, lowered: str, read: Sequence[str]) -> list[tuple[Cue, int]]:
        """Return each cue of a text with the words `read`, and the index of the cue's first word. If cues are
        substrings, return the index of the character after the cue instead."""
        if self.are_substrings:
            found = ((cue, lowered.find(string), len(string)) for string, cue in self._strings)
            return [(cue, at + length) for cue, at, length in found if at >= 0]
        return [
            (cue, at)
            for at, word in enumerate(read)
            if word in self._by_first
            for phrase, cue in self._by_first[word]
            if len(phrase) == 1 or [*read[at : at + len(phrase)]] == phrase
        ]


_cues = cache(_Cues)


def read_statements(texts: Sequence[str]) -> list[StatementReading]:
    """Return the features of several statements or questions. One operation sums the vectors of all texts."""
    readings = [_read(text) for text in texts]
    sums = word_vectors().sum_rows([rows for _, rows in readings])
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    units = np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)
    return [reading._replace(vector=unit.copy()) for (reading, _), unit in zip(readings, units, strict=True)]


def _read(text: str) -> tuple[StatementReading, tuple[int, ...]]:
    """Return the features of a statement without its vector, and the rows of its words in `word_vectors`."""
    vectors = word_vectors()
    looked_up, lowered = vectors.look_up(text), plain(text)
    language_cues = _cues(looked_up.table.code)
    cues = language_cues.find(lowered, looked_up.words)
    rows = tuple(row for of_word in looked_up.rows for row in of_word)
    marks = reduce(or_, map(vectors.marks.__getitem__, rows), 0)
    persons = frozenset(row for row in rows if vectors.marks[row] & PERSON) if marks & PERSON else frozenset[int]()
    at_person = [at for at, found in enumerate(looked_up.rows) if persons and not persons.isdisjoint(found)]
    own = [at for cue, at in cues if cue == "own"]
    if language_cues.are_substrings:
        # The indexes in `own` are of characters.
        others = [string for string in language_cues.others if string in lowered]
        persons = persons | ({_SOMEBODY} if others else set())
        nouns = (*others, *(looked_up.words[at] for at in at_person))
        is_own = any(not (nouns and lowered[at:].lstrip(_POSSESSIVES).startswith(nouns)) for at in own)
    else:
        is_own = any(not any(0 <= person - at <= _POSSESSED_WITHIN for person in at_person) for at in own)
    kinds = reduce(or_, (1 << CUES.index(cue) for cue, _ in cues), 0)
    numbers = frozenset(_NUMBER.findall(text))
    distinct = {*map(_identities.__getitem__, looked_up.words)}
    identities = np.fromiter(distinct, np.uint64, len(distinct))
    identities.sort()
    name = _name(text, looked_up)
    return StatementReading(identities, _NO_VECTOR, marks & ~PERSON, kinds, persons, name, numbers, is_own), rows


def _name(text: str, looked_up: WordRows) -> int | None:
    """Return the identity of the first unknown word with a meaning among the first two, if it has a capital."""
    for word, rows in [*zip(looked_up.words, looked_up.rows, strict=True)][:2]:
        if not rows and len(word) > 2 and word not in looked_up.table.function_words:
            begin = text[: len(word) + 4]
            return _identities[word] if word.capitalize() in begin and word not in begin else None
    return None
