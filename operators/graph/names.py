"""Names, mentions, tags and URNs in a text, found by rule in any language.

A name is a run of capitalised words. Titles, calendar words and function words are not names, and split a run. A single
word is a name only within a sentence, because the first word of a sentence and all words of a heading are capitalised.
Ambiguous words are `doubtful`: they are names if the owner's graph already contains them (`with_known`)."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from typing import NamedTuple

import regex

from recallflow.caching import BoundedCache
from recallflow.language.analysis import TextAnalysis, analyse
from recallflow.language.tables import ENGLISH, LATIN, RUSSIAN, Table
from recallflow.state.entity_names import names_in
from recallflow.state.graph_codec import ENTITY_KIND, node_key

_CACHE_BYTES = 1024 * 1024  # few distinct runs occur often
_NOUN_CHARACTERS = 6  # the shortest word whose ending identifies a noun
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_PLAIN_WORD = re.compile(r"\w+")
_CASED_MAX = 0x1_F000  # no script with case has larger code points


class NamePart(NamedTuple):
    """A possible name in a run of capitalised words. `begins`: a sentence start may explain the capital."""

    name: str
    words: int
    begins: bool


@dataclass(frozen=True, kw_only=True)
class NameWords:
    """A language's words that are not names, and its patterns."""

    no_names: frozenset[str]  # words that are never a name on their own
    grammar: frozenset[str]  # words that split a run
    calendar: frozenset[str]
    ordinary: frozenset[str]
    before_months: frozenset[str]  # words that mark the following word as a month
    table: Table
    any_run: re.Pattern[str]  # finds runs of capitalised words
    ascii_run: re.Pattern[str]  # the same for letters without accents
    parts: BoundedCache[tuple[str, bool], tuple[NamePart, ...]]  # splits a run into possible names


def name_words(text: str, reading: TextAnalysis) -> NameWords:
    """Return the word tables for the language of a text; if the language is uncertain, those with the most matches."""
    if not text.isascii() and _CYRILLIC.search(text):
        return _tables_of(-1)
    if reading.is_certain:
        return _tables_of(reading.language)
    words = {*_PLAIN_WORD.findall(text.lower())}
    return max(map(_tables_of, range(len(LATIN))), key=lambda tables: len(tables.no_names & words))


@cache
def _tables_of(language: int) -> NameWords:
    """Return the tables of a language by its index in `LATIN`; -1 is Russian."""
    table = LATIN[language] if language >= 0 else RUSSIAN
    grammar = table.function_words & table.accented_words
    calendar = (table.time_words & table.accented_words) | table.months.keys() | table.short_months.keys()
    ordinary = (table.common_words & table.accented_words) | table.ordinary_words | table.nouns
    parts = BoundedCache[tuple[str, bool], tuple[NamePart, ...]](
        lambda run: tuple(_Parts(words, *run).found), _CACHE_BYTES
    )
    words = NameWords(
        no_names=grammar | table.titles | calendar | ordinary,
        grammar=grammar,
        calendar=calendar,
        ordinary=ordinary,
        before_months=calendar | ({word.strip() for word in table.before_months} or grammar),
        table=table,
        any_run=_run(rf"(?<!{_INSIDE})[A-Z{UPPER}]", f"A-Z{UPPER}", table),
        # Three times as fast, because the pattern starts with one of a few letters.
        ascii_run=_run(rf"[A-Z](?<!{_INSIDE}.)", "A-Z", table),
        parts=parts,
    )
    return words


def _upper() -> str:
    """Return the non-ASCII letters that start capitalised words, as ranges of a regular expression."""
    codes = (code for code in range(0x80, _CASED_MAX) if unicodedata.category(chr(code)) in ("Lu", "Lt"))
    # Successive codes have the same distance from their index.
    ranges = ([code for _, code in group] for _, group in groupby(enumerate(codes), lambda one: one[1] - one[0]))
    return "".join(f"{chr(found[0])}-{chr(found[-1])}" for found in ranges)


UPPER = _upper()
_INSIDE = r"[\w@#/:.'’-]"  # a letter after one of these does not start a word


def _run(first: str, upper: str, table: Table) -> re.Pattern[str]:
    rest = r"(?:[\w'’-]*\w)?"
    blank = r"[ \u00a0]{1,2}"
    within = f"(?:(?:{'|'.join(sorted(table.within_names))}){blank}){{0,2}}" if table.within_names else ""
    no_address = r"(?![\w@]|[./:]\w)"
    return re.compile(rf"{first}{rest}(?:\.?{blank}{within}[{upper}]{rest})*{no_address}")


class _Word(NamedTuple):
    text: str
    lowered: str
    is_inflected: bool  # it has an ending after an apostrophe, and no further word belongs to the name
    dotted: bool


def _words(run: str) -> Iterator[_Word]:
    for given in run.split():
        word = given.removesuffix(".")
        stem, apostrophe, rest = word.replace("’", "'").rpartition("'")
        is_inflected = bool(apostrophe) and rest.islower()
        name = stem if is_inflected else word
        yield _Word(name, name.lower(), is_inflected, word != given)


class _Parts:
    """The splitting of a run, word by word. `begins`: the next word starts a sentence."""

    def __init__(self, tables: NameWords, run: str, begins: bool) -> None:
        self._tables, self._begins = tables, begins
        self._part: list[str] = []  # the words of the current part
        self._within: list[str] = []  # lower-case words, which belong to the part if it continues
        self.found: list[NamePart] = []
        words = [*_words(run)]
        self._heading = any(word.lowered in tables.grammar and not word.text.islower() for word in words[1:])
        for at, word in enumerate(words):
            self._take(word, leads=at == 0 and not begins, last=at == len(words) - 1)
        self._cut()

    def _take(self, word: _Word, leads: bool, last: bool) -> None:
        """Process a word. `leads`: it is the first of a run within a sentence."""
        tables, table, lowered = self._tables, self._tables.table, word.lowered
        is_title = lowered in table.titles and (word.dotted or len(word.text) > 1)
        if word.text.islower():
            self._within += [word.text] if self._part else []
        elif len(word.text) == 1 and not is_title:
            if not word.dotted:  # an initial continues the name, as in George W. Bush
                self._cut()
            return
        elif self._within:  # Rio de Janeiro
            self._append(word)
        elif is_title or (word.is_inflected and len(word.text) < 3) or lowered in tables.calendar:
            self._cut()
        elif lowered in tables.grammar:
            # The article belongs to the name in Los Angeles and La Paz, but not in English.
            if leads and not (table is ENGLISH or last or word.is_inflected or self._heading):
                self._append(word)
            else:
                self._cut(joined=lowered in table.conjunctions)
        elif lowered in tables.ordinary and (self._heading or not (self._part or leads) or lowered in table.nouns):
            self._cut()
        else:
            self._append(word)
        if word.dotted and not is_title:
            self._cut()
            self._begins = True

    def _append(self, word: _Word) -> None:
        self._part += [*self._within, word.text]
        self._within = []
        if word.is_inflected:
            self._cut()

    def _cut(self, joined: bool = False) -> None:
        """End the current part. `joined`: a conjunction follows, so the part is an element of a list."""
        if self._part:
            self.found.append(NamePart(" ".join(self._part), len(self._part), self._begins and not joined))
        self._part, self._within = [], []
        self._begins = False


READ_CHARACTERS = 20_000  # the searched beginning of a text
NAMES_MAX = 16  # names per kind
DOUBTFUL_MAX = 32  # names to look up in the graph
NAME_CHARACTERS = 80


class TextNames(NamedTuple):
    """The names in a text, in its spelling. `doubtful` ones are names only if the graph contains them."""

    entities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    urns: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


def read_names(text: str, reading: TextAnalysis | None = None) -> TextNames:
    """Return the names in a text. `reading` identifies its language, and is computed if missing."""
    text = text[:READ_CHARACTERS]
    names, doubtful = list[str](), list[str]()
    if text.isascii() or _CASED.search(text):
        names, doubtful = _Names(text, name_words(text, analyse(text) if reading is None else reading)).read()
    mentions = _MENTION.findall(text) if "@" in text else []
    entities = _distinct([*mentions, *names])
    tags = _distinct(_TAG.findall(text)) if "#" in text else ()
    urns = _distinct(_urns(text)) if ":" in text or "/" in text else ()
    return TextNames(entities, tags, urns, _distinct(doubtful, DOUBTFUL_MAX) if doubtful else ())


_CASED = regex.compile(r"[\p{Lu}\p{Ll}\p{Lt}]")
_BEYOND_ASCII = re.compile(f"[{UPPER}]")
# The rest of a list of names.
_LIST = re.compile(rf"(?:, ?[A-Z{UPPER}][\w'’-]*(?: [A-Z{UPPER}][\w'’-]*)?)*,? ([\w&]+) [A-Z{UPPER}]")
# Characters between the end of a sentence and the first word of the next.
_OPENING = " \t\u00a0\"'“”„«»‘’()[]{}*_-–—>#¿¡"
_ENDS = frozenset(".!?…。！？:;\n\r")
_LOOK_BACK = 12
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_LAST_WORD = re.compile(r"(\w+)\W*\Z")
_MENTION = re.compile(r"(?<![a-zA-Z0-9_.+@/-])@(\w+(?:[.-]\w+)*)")  # excludes e-mail addresses
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


class _Names:
    def __init__(self, text: str, words: NameWords) -> None:
        self._text, self._words = text, words
        self._names: list[str] = []
        self._doubtful: list[str] = []

    def read(self) -> tuple[list[str], list[str]]:
        text, words = self._text, self._words
        if text.islower() or text.isupper():  # case carries no information
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
                self._doubtful.append(name)  # some names are ordinary words, such as Will or April
        elif len(name) <= NAME_CHARACTERS:
            table = words.table
            is_noun = len(lowered) >= _NOUN_CHARACTERS and lowered.endswith(table.noun_endings)
            # In languages that capitalise nouns, a determiner before the word or its ending marks it as a noun.
            if table.determiners and (is_noun or self._before(match.start()) in table.determiners):
                self._doubtful.append(name)
            elif begins and not self._is_listed(match.end()):
                endings = filter(name.endswith, words.table.name_endings)
                self._doubtful += [name, *map(name.removesuffix, endings)]
            else:
                self._names.append(name)

    def _is_dated(self, lowered: str, match: re.Match[str]) -> bool:
        """Return whether a calendar word is part of a date, or can only be a calendar word."""
        words = self._words
        if lowered not in words.calendar:
            return False
        before, after = self._before(match.start()), self._text[match.end() : match.end() + 2].strip()
        if lowered not in words.table.months or before in words.before_months:
            return True
        return before.isdecimal() or after.isdecimal()

    def _is_listed(self, end: int) -> bool:
        """Return whether a list of names continues here."""
        if self._text[end : end + 1] not in (",", " "):
            return False
        found = _LIST.match(self._text, end)
        return found is not None and found[1].lower() in self._words.table.conjunctions

    def _before(self, start: int) -> str:
        """Return the previous word in lower case."""
        found = _LAST_WORD.search(self._text, max(0, start - 24), start)
        return found[1].lower() if found else ""


def _plain_words(text: str, words: NameWords) -> Iterator[str]:
    """Yield possible names in a text without case: uncommon words, and pairs of adjacent ones."""
    found = islice(_WORD.finditer(text), 2 * DOUBTFUL_MAX)
    plain = (match[0].lower().removesuffix("'s").removesuffix("’s") for match in found)
    uncommon = [word if word not in words.no_names and len(word) > 2 else "" for word in plain]
    for word, after in zip(uncommon, [*uncommon[1:], ""], strict=True):
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
    return tuple(islice(dict.fromkeys(names), at_most))


def with_known(names: TextNames, is_known: Callable[[str], bool], text: str, caseless: Sequence[str]) -> TextNames:
    """Return the names of a text with known ones added, up to a limit. `is_known` looks up the node key of a doubtful
    name. `caseless` are the owner's names in scripts without case; the text is searched for them too."""
    found: list[str] = []
    for name in names.doubtful:
        # A part of a longer known name is not a separate name.
        if not any(name in longer for longer in found) and is_known(node_key(ENTITY_KIND, name)):
            found.append(name)
    if caseless:
        occurring = [*names_in(text[:READ_CHARACTERS], caseless)]
        found += [name for name in occurring if not any(name in other and name != other for other in occurring)]
    entities = tuple(dict.fromkeys([*names.entities, *found]))[:NAMES_MAX]
    return names._replace(entities=entities, doubtful=()) if found else names
