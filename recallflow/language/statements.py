"""Reading of statements: changes, ends and corrections, their subjects, and their numbers.

The cues of each language are in `cues/*.toml`: lists of words and phrases, which a native speaker can correct.
"""

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
_WITHIN_WORDS = ("zh", "ja", "ko")  # no blanks between words; Korean words carry particles
_JOINING = " 的の"
_SOMEBODY = -1  # a person indicated by a cue, without a row
_WORDS_BYTES = 4 * 1024 * 1024
_NO_VECTOR = np.zeros(0, np.float32)


class StatementReading(NamedTuple):
    """Features of a statement or a question, of about 1,000 bytes.

    Attributes:
        words: identities of its distinct words in lower case and without accents, ascending.
        vector: sum of its words' vectors, normalised to length 1; zeros if no word has a vector.
        attributes: bits of its words for personal attributes, such as a place of residence.
        cues: kinds of its cues, as bits in the order of `CUES`.
        persons: rows of its nouns for persons; `_SOMEBODY` for another cue of a person.
        name: identity of its first word if that is probably a name: an unknown word with a capital.
        numbers: numbers as written.
        is_own: whether it refers to the writer: "I", or "my" before a noun that is not a person.
    """

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
    """Return 64 bits that no other word has."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


_identities = BoundedCache(identity, _WORDS_BYTES)


class _Cues:
    """Cues of one language, by their first words, or as strings in a language without spaces."""

    def __init__(self, code: str) -> None:
        listed = tomllib.loads((_FOLDER / f"{code}.toml").read_text("utf-8"))
        self.within_words = code in _WITHIN_WORDS
        self._strings = [(plain(phrase), cue) for cue in CUES for phrase in listed[cue]]
        self.others = [string for string, cue in self._strings if cue == "others"]
        self._by_first: defaultdict[str, list[tuple[list[str], Cue]]] = defaultdict(list)
        for string, cue in self._strings:
            if phrase := words(string):
                self._by_first[phrase[0]].append((phrase, cue))

    def found(self, lowered: str, read: Sequence[str]) -> list[tuple[Cue, int]]:
        """Return each cue of a text with the index of its first word. In a language without spaces, the index is that
        of the character after the cue."""
        if self.within_words:
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
    """Read a batch of statements or questions. Their vectors are summed together."""
    vectors, rows, found = word_vectors(), list[tuple[int, ...]](), list[StatementReading]()
    for text in texts:
        read, of = _read(text)
        found.append(read)
        rows.append(of)
    sums = vectors.summed(rows)
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    units = np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)
    return [read._replace(vector=unit.copy()) for read, unit in zip(found, units, strict=True)]


def _read(text: str) -> tuple[StatementReading, tuple[int, ...]]:
    """Read a statement, without its vector; return the rows of its words in `word_vectors` as well."""
    vectors = word_vectors()
    read, lowered = vectors.read(text), plain(text)
    known = _cues(read.table.code)
    cues = known.found(lowered, read.words)
    rows = tuple(row for of in read.rows for row in of)
    marks = reduce(or_, map(vectors.marks.__getitem__, rows), 0)
    persons = frozenset(row for row in rows if vectors.marks[row] & PERSON) if marks & PERSON else frozenset[int]()
    at_person = [at for at, found in enumerate(read.rows) if persons and not persons.isdisjoint(found)]
    own = [at for cue, at in cues if cue == "own"]
    if known.within_words:
        # `own` counts characters here.
        strings = [string for string in known.others if string in lowered]
        persons = persons | ({_SOMEBODY} if strings else set())
        whose = (*strings, *(read.words[at] for at in at_person))
        is_own = any(not (whose and lowered[at:].lstrip(_JOINING).startswith(whose)) for at in own)
    else:
        is_own = any(not any(0 <= person - at <= _POSSESSED_WITHIN for person in at_person) for at in own)
    kinds = reduce(or_, (1 << CUES.index(cue) for cue, _ in cues), 0)
    numbers = frozenset(_NUMBER.findall(text))
    once = {*map(_identities.__getitem__, read.words)}
    identities = np.fromiter(once, np.uint64, len(once))
    identities.sort()
    name = _name(text, read)
    return StatementReading(identities, _NO_VECTOR, marks & ~PERSON, kinds, persons, name, numbers, is_own), rows


def _name(text: str, read: WordRows) -> int | None:
    """Return the first unknown word, where it has a capital and at most a short word is before it."""
    for word, rows in [*zip(read.words, read.rows, strict=True)][:2]:
        if not rows and len(word) > 2 and word not in read.table.function_words:
            begin = text[: len(word) + 4]
            return _identities[word] if word.capitalize() in begin and word not in begin else None
    return None
