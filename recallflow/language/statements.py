"""What a statement tells beside its words: whether something changed, ended or was corrected, of whom it is, and which
numbers and names it gives.

The cues of each language stand in `cues/*.toml`: lists of words and phrases, plain data that a native can correct.
"""

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple, get_args

import numpy as np
import regex

from recallflow.language.scripts import plain
from recallflow.language.word_vectors import Matrix, WordRows, word_vectors
from recallflow.language.words import words

Cue = Literal["change", "ended", "corrected", "restored", "added", "past", "others", "own"]
CUES: tuple[Cue, ...] = get_args(Cue)
_FOLDER = resources.files("recallflow.language") / "cues"
_NUMBER = regex.compile(r"\d[\d.,:/-]*\d|\d")
_CAPITALISED = regex.compile(r"\p{Lu}[\p{L}'’-]*")
_SENTENCE_START = regex.compile(r"(?:^|[.!?…:]\s*)[\W_]*$")
# English nouns for persons; those of other languages are read as their translations.
_PERSONS = """
mother mum mom mummy father dad daddy parent parents sister brother sibling twin daughter son child children kid kids
baby husband wife spouse partner fiance fiancee boyfriend girlfriend ex grandmother grandma granny nan grandfather
grandpa grandad aunt auntie uncle cousin nephew niece stepmother stepfather stepdad stepmum stepson stepdaughter
stepbrother stepsister relative relatives family friend friends buddy mate pal neighbour neighbor neighbours neighbors
flatmate roommate housemate colleague colleagues coworker boss manager supervisor employee teacher pupil student
classmate landlord landlady tenant guest client customer patient doctor dentist nurse trainer coach woman man girl boy
lady guy guys people person someone somebody
"""
_WITHIN_WORDS = ("zh", "ja", "ko")  # no blanks between words; Korean words carry particles
_JOINING = " 的の"
_POSSESSED_WITHIN = 3  # words from "my" to the person whose it tells


class Statement(NamedTuple):
    """A statement, read.

    Attributes:
        vector: (dimension,) sum of its word vectors, of length 1; zeros where no word is known.
        rows: rows of `word_vectors` of its words.
        cues: the kinds of cue that it holds.
        persons: rows of the nouns for persons that it holds.
        names: capitalised words inside its sentences, in lower case.
        numbers: numbers as written.
        is_own: it speaks of the writer: "I", or "my" before anything but a person.
    """

    vector: Matrix
    rows: frozenset[int]
    cues: frozenset[Cue]
    persons: frozenset[int]
    names: frozenset[str]
    numbers: frozenset[str]
    is_own: bool

    @property
    def is_of_another(self) -> bool:
        """Whether it speaks of somebody else than the writer."""
        return not self.is_own and bool(self.persons or self.names or "others" in self.cues)


class _Cues:
    """The cues of one language, by the words that they begin with, or as strings where words have no blanks."""

    def __init__(self, code: str) -> None:
        listed: dict[Cue, list[str]] = tomllib.loads((_FOLDER / f"{code}.toml").read_text("utf-8"))
        self._within = code in _WITHIN_WORDS
        self._strings = [(plain(phrase), cue) for cue in CUES for phrase in listed[cue]]
        self._by_first: defaultdict[str, list[tuple[tuple[str, ...], Cue]]] = defaultdict(list)
        for string, cue in self._strings:
            if phrase := tuple(words(string)):
                self._by_first[phrase[0]].append((phrase, cue))

    def found(self, lowered: str, read: Sequence[str]) -> list[tuple[Cue, int]]:
        """Return each cue of a text with the number of its first word, or without blanks between words with the number of
        the character behind it."""
        if self._within:
            found = ((cue, lowered.find(string), len(string)) for string, cue in self._strings)
            return [(cue, at + length) for cue, at, length in found if at >= 0]
        return [
            (cue, at)
            for at, word in enumerate(read)
            if word in self._by_first
            for phrase, cue in self._by_first[word]
            if len(phrase) == 1 or tuple(read[at : at + len(phrase)]) == phrase
        ]


@cache
def _cues(code: str) -> _Cues:
    return _Cues(code)


@cache
def _person_rows() -> frozenset[int]:
    return frozenset(row for word in _PERSONS.split() for row in word_vectors().rows_of_english(word))


def read_statement(text: str) -> Statement:
    """Read a statement, or a question."""
    vectors = word_vectors()
    read = vectors.read(text)
    lowered = plain(text)
    cues = _cues(read.table.code).found(lowered, read.words)
    persons = _person_rows()
    at_person = [at for at, rows in enumerate(read.rows) if not persons.isdisjoint(rows)]
    rows = [row for of in read.rows for row in of]
    (total,) = vectors.summed([rows])
    length = float(np.linalg.norm(total))
    own = [at for cue, at in cues if cue == "own"]
    return Statement(
        total / length if length else total,
        frozenset(rows),
        frozenset(cue for cue, _ in cues),
        persons.intersection(rows),
        frozenset(_names(text)),
        frozenset(_NUMBER.findall(text)),
        _is_own(lowered, read, own, at_person),
    )


def _is_own(lowered: str, read: WordRows, own: Sequence[int], at_person: Sequence[int]) -> bool:
    """Return whether any first-person word stands before something else than a person."""
    if read.table.code in _WITHIN_WORDS:
        # `own` counts characters here.
        persons = tuple(read.words[at] for at in at_person)
        return any(not (persons and lowered[at:].lstrip(_JOINING).startswith(persons)) for at in own)
    return any(not any(0 <= person - at <= _POSSESSED_WITHIN for person in at_person) for at in own)


def _names(text: str) -> list[str]:
    return [
        found[0].lower()
        for found in _CAPITALISED.finditer(text)
        if len(found[0]) > 1 and not _SENTENCE_START.search(text, 0, found.start())
    ]
