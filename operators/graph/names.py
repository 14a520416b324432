"""What a text names: names, mentions, tags and URNs, read by rule in any language.

A name in a text is a run of capitalised words. Titles, words of the calendar and of grammar are none, and part a run. A
single word counts only inside a sentence: at the beginning of one every word is capitalised, and so is every word of a
heading. What the capitals do not tell is `doubtful`: it is a name if the owner's graph has it already (`known.py`).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import regex

from recallflow.language import Reading, read
from recallflow.operators.graph.name_words import UPPER, NameWords, name_words

READ_CHARACTERS = 20_000  # a pasted document is about what its beginning names
NAMES_MAX = 16  # of each kind: a text that names more is a list
DOUBTFUL_MAX = 32  # looked up in the graph
NAME_CHARACTERS = 80


class Named(NamedTuple):
    """What a text names, in its own spelling. `doubtful`: what it names if that is known."""

    entities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    urns: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


def read_names(text: str, reading: Reading | None = None) -> Named:
    """What a text names. `reading`: its own, which tells the language; made unless it is given."""
    text = text[:READ_CHARACTERS]
    names: Sequence[str] = ()
    doubtful: Sequence[str] = ()
    if text.isascii() or _CASED.search(text):
        words = name_words(text, read(text) if reading is None else reading)
        names, doubtful = _Names(text, words).read()
    mentions = _MENTION.findall(text) if "@" in text else []
    entities = _distinct([*mentions, *names])
    tags = _distinct(_TAG.findall(text)) if "#" in text else ()
    urns = _distinct(_urns(text)) if ":" in text or "/" in text else ()
    return Named(entities, tags, urns, _distinct(doubtful, DOUBTFUL_MAX) if doubtful else ())


# ---------------------------------------------------------------------- patterns

_CASED = regex.compile(r"[\p{Lu}\p{Ll}\p{Lt}]")
_BEYOND_ASCII = re.compile(f"[{UPPER}]")
# The rest of a list of names.
_LIST = re.compile(rf"(?:, ?[A-Z{UPPER}][\w'’-]*(?: [A-Z{UPPER}][\w'’-]*)?)*,? ([\w&]+) [A-Z{UPPER}]")
# What may stand between the end of a sentence and its first word.
_OPENING = " \t\u00a0\"'“”„«»‘’()[]{}*_-–—>#¿¡"
_ENDS = frozenset(".!?…。！？:;\n\r")
_LOOK_BACK = 12
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_LAST_WORD = re.compile(r"(\w+)\W*\Z")
_MENTION = re.compile(r"(?<![a-zA-Z0-9_.+@/-])@(\w+(?:[.-]\w+)*)")  # no part of an address
_TAG = re.compile(r"(?<![a-zA-Z0-9_&#/])#(\w*[^\W\d_]\w*(?:-\w+)*)")
_URN = re.compile(r"\burn:[a-z0-9][a-z0-9-]{0,31}:[^\s\"'<>()\[\]{}]*[^\s\"'<>()\[\]{}.,;:!?…。！？]", re.IGNORECASE)
_REPOSITORY = re.compile(
    r"(?<![\w.-])((?:github\.com|gitlab\.com|bitbucket\.org|codeberg\.org)/[\w.-]+/[\w.-]*[\w-])", re.IGNORECASE
)


def _urns(text: str) -> Iterator[str]:
    if ":" in text:
        yield from _URN.findall(text)
    if "/" in text:
        yield from (found.removesuffix(".git") for found in _REPOSITORY.findall(text))


# ---------------------------------------------------------------------- names


class _Names:
    """Finds the names of one text, and what is doubtful."""

    def __init__(self, text: str, words: NameWords) -> None:
        self._text, self._words = text, words
        self._names: list[str] = []
        self._doubtful: list[str] = []

    def read(self) -> tuple[list[str], list[str]]:
        """The names, and what is one only if it is known."""
        text, words = self._text, self._words
        if text.islower() or text.isupper():  # capitals tell nothing here
            self._doubtful += _plain_words(text, words)
        else:
            plain = text.isascii() or not _BEYOND_ASCII.search(text)
            for match in (words.ascii_run if plain else words.any_run).finditer(text):
                found = match[0]
                if found.isalpha():  # most are a single word
                    if len(found) > 1:
                        self._take_single(found, match, _begins_sentence(text, match.start()))
                else:
                    self._take_run(match)
        return self._names, self._doubtful

    def _take_run(self, match: re.Match[str]) -> None:
        begins = _begins_sentence(self._text, match.start())
        for part in self._words.parts[match[0], begins]:
            if part.words == 1:
                self._take_single(part.name, match, part.begins)
            elif len(part.name) <= NAME_CHARACTERS:
                self._names.append(part.name)

    def _take_single(self, name: str, match: re.Match[str], begins: bool) -> None:
        words, lowered = self._words, name.lower()
        if lowered in words.no_names:
            if not begins and not self._is_dated(lowered, match):
                self._doubtful.append(name)  # people are called Will, or April
        elif len(name) <= NAME_CHARACTERS:
            if words.table.determiners and self._is_noun(lowered, match.start()):
                self._doubtful.append(name)
            elif begins and not self._is_listed(match.end()):
                self._doubtful += [name, *words.unbent(name)]
            else:
                self._names.append(name)

    def _is_dated(self, lowered: str, match: re.Match[str]) -> bool:
        """Whether a word of the calendar stands in a date, or can only be of the calendar."""
        words = self._words
        if lowered not in words.calendar:
            return False
        before, after = self._before(match.start()), self._text[match.end() : match.end() + 2].strip()
        return lowered not in words.months or before in words.dating or before.isdecimal() or after.isdecimal()

    def _is_listed(self, end: int) -> bool:
        """Whether a list of names goes on here."""
        if self._text[end : end + 1] not in (",", " "):
            return False
        found = _LIST.match(self._text, end)
        return found is not None and found[1].lower() in self._words.table.joining

    def _is_noun(self, lowered: str, start: int) -> bool:
        """Whether a word is rather a noun than a name, in a language that writes all nouns with a capital."""
        return self._words.is_noun(lowered, self._before(start))

    def _before(self, start: int) -> str:
        """The word before, in small letters."""
        found = _LAST_WORD.search(self._text, max(0, start - 24), start)
        return found[1].lower() if found else ""


def _plain_words(text: str, words: NameWords) -> Iterator[str]:
    """What may be names in a text whose words are all written alike: those that are no ordinary ones, and each two of
    them side by side."""
    found = islice(_WORD.finditer(text), 2 * DOUBTFUL_MAX)
    plain = (match[0].lower().removesuffix("'s").removesuffix("’s") for match in found)
    telling = [word if word not in words.no_names and len(word) > 2 else "" for word in plain]
    for word, after in zip(telling, [*telling[1:], ""], strict=True):
        if word and after:
            yield f"{word} {after}"
        if word:
            yield word


def _begins_sentence(text: str, start: int) -> bool:
    if start > 1 and text[start - 1] == " " and text[start - 2].isalnum():
        return False
    before = text[max(0, start - _LOOK_BACK) : start].rstrip(_OPENING)
    return not before or before[-1] in _ENDS or unicodedata.category(before[-1]) == "So"


def _distinct(names: Iterable[str], at_most: int = NAMES_MAX) -> tuple[str, ...]:
    """In order, each spelling of a name once, not too many."""
    return tuple(islice(dict.fromkeys(names), at_most))
