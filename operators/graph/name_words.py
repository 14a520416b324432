"""Which capitalised words are names: what a language's table says of titles, calendar, grammar, and ordinary words."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from recallflow.caching import Kept
from recallflow.language import LATIN, RUSSIAN, Reading, Table

_KEPT_BYTES = 1024 * 1024  # a few contractions and names are most runs
_NOUN_CHARACTERS = 6  # of the shortest word that tells by its ending that it is a noun
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_WORD = re.compile(r"\w+")
_CASED = 0x1_F000  # no script with case lies beyond


class Part(NamedTuple):
    """A part of a run of capitalised words that may be a name. `begins`: it begins a sentence, which may be all the
    reason for its capital."""

    name: str
    words: int
    begins: bool


@dataclass(frozen=True, kw_only=True)
class NameWords:
    """What one language knows of words that are no names. `no_names`: alone, none of them is one. `grammar`: those that
    part a run. `dating`: before a month, they say that it is one. `any_run` finds runs of capitalised words,
    `ascii_run` those of letters without accents; `parts` says what may be a name in one."""

    no_names: frozenset[str]
    grammar: frozenset[str]
    calendar: frozenset[str]
    months: frozenset[str]
    titles: frozenset[str]
    ordinary: frozenset[str]
    dating: frozenset[str]
    english: bool
    table: Table
    any_run: re.Pattern[str]
    ascii_run: re.Pattern[str]
    parts: Kept[tuple[str, bool], tuple[Part, ...]]

    def unbent(self, name: str) -> Iterator[str]:
        """What a name may be called, without what hangs on to it."""
        return (name.removesuffix(ending) for ending in self.table.name_endings if name.endswith(ending))

    def is_noun(self, word: str, before: str) -> bool:
        """Whether a word is rather a noun than a name, by what stands before it, or how it ends."""
        table = self.table
        return before in table.determiners or (len(word) >= _NOUN_CHARACTERS and word.endswith(table.noun_endings))


def name_words(text: str, reading: Reading) -> NameWords:
    """What is known of the words of a text, in its own language. Where it does not tell that: in the one that knows the
    most of its words."""
    if not text.isascii() and _CYRILLIC.search(text):
        return _of(-1)
    if reading.sure:
        return _of(reading.language)
    words = {*_WORD.findall(text.lower())}
    return max(map(_of, range(len(LATIN))), key=lambda known: len(known.no_names & words))


@cache
def _of(language: int) -> NameWords:
    """By its place in `LATIN`; Russian is -1."""
    table = LATIN[language] if language >= 0 else RUSSIAN
    grammar = table.function_words & table.written
    calendar = (table.time_words & table.written) | table.months.keys() | table.short_months.keys()
    ordinary = (table.common_words & table.written) | table.ordinary_words | table.nouns
    parts: Kept[tuple[str, bool], tuple[Part, ...]] = Kept(lambda run: tuple(_Parts(words, *run).found), _KEPT_BYTES)
    words = NameWords(
        no_names=grammar | table.titles | calendar | ordinary,
        grammar=grammar,
        calendar=calendar,
        months=frozenset(table.months),
        titles=table.titles,
        ordinary=ordinary,
        dating=calendar | ({word.strip() for word in table.before_months} or grammar),
        english=language == 0,
        table=table,
        any_run=_run(rf"(?<!{_INSIDE})[A-Z{UPPER}]", f"A-Z{UPPER}", table),
        # Three times as fast: a pattern that begins with one of a few letters is searched for by them.
        ascii_run=_run(rf"[A-Z](?<!{_INSIDE}.)", "A-Z", table),
        parts=parts,
    )
    return words


# ---------------------------------------------------------------------- patterns


def _upper() -> str:
    """Every letter that begins a capitalised word and is not of ASCII, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for code in range(0x80, _CASED):
        if unicodedata.category(chr(code)) not in ("Lu", "Lt"):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


UPPER = _upper()
_INSIDE = r"[\w@#/:.'’-]"  # before a letter: it begins no word


def _run(first: str, upper: str, table: Table) -> re.Pattern[str]:
    rest = r"(?:[\w'’-]*\w)?"
    blank = r"[ \u00a0]{1,2}"
    within = f"(?:(?:{'|'.join(sorted(table.within_names))}){blank}){{0,2}}" if table.within_names else ""
    no_address = r"(?![\w@]|[./:]\w)"
    return re.compile(rf"{first}{rest}(?:\.?{blank}{within}[{upper}]{rest})*{no_address}")


# ---------------------------------------------------------------------- a run of capitalised words


class _Word(NamedTuple):
    text: str
    lowered: str
    bent: bool  # by an apostrophe: the name ends with it
    dotted: bool


def _words(run: str) -> Iterator[_Word]:
    for given in run.split():
        word = given.removesuffix(".")
        stem, apostrophe, rest = word.replace("’", "'").rpartition("'")
        bent = bool(apostrophe) and rest.islower()
        yield _Word(stem if bent else word, (stem if bent else word).lower(), bent, word != given)


class _Parts:
    """Parts a run, word after word. `begins`: the next word begins a sentence."""

    def __init__(self, known: NameWords, run: str, begins: bool) -> None:
        self._known = known
        self._begins = begins
        self._held: list[str] = []
        self._within: list[str] = []  # words in small letters, kept if the name goes on
        self.found: list[Part] = []
        words = [*_words(run)]
        self._heading = any(word.lowered in known.grammar and not word.text.islower() for word in words[1:])
        for at, word in enumerate(words):
            self._take(word, leads=at == 0 and not begins, last=at == len(words) - 1)
        self._cut()

    def _take(self, word: _Word, leads: bool, last: bool) -> None:
        """Takes a word. `leads`: it is the first of a run inside a sentence."""
        known, lowered = self._known, word.lowered
        is_title = lowered in known.titles and (word.dotted or len(word.text) > 1)
        if word.text.islower():
            self._within += [word.text] if self._held else []
        elif len(word.text) == 1 and not is_title:
            if not word.dotted:  # George W. Bush goes on
                self._cut()
            return
        elif self._within:  # Rio de Janeiro
            self._hold(word)
        elif is_title or (word.bent and len(word.text) < 3) or lowered in known.calendar:
            self._cut()
        elif lowered in known.grammar:
            # Los Angeles, La Paz; of English names nobody misses "The".
            if leads and not (known.english or last or word.bent or self._heading):
                self._hold(word)
            else:
                self._cut(joined=lowered in known.table.joining)
        elif lowered in known.ordinary and (self._heading or not (self._held or leads) or lowered in known.table.nouns):
            self._cut()
        else:
            self._hold(word)
        if word.dotted and not is_title:
            self._cut()
            self._begins = True

    def _hold(self, word: _Word) -> None:
        self._held += [*self._within, word.text]
        self._within = []
        if word.bent:
            self._cut()

    def _cut(self, joined: bool = False) -> None:
        """Ends the part at hand; one that the next is joined to is one of a list."""
        if self._held:
            self.found.append(Part(" ".join(self._held), len(self._held), self._begins and not joined))
        self._held, self._within = [], []
        self._begins = False
