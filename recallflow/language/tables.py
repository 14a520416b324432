"""What is known of each language, from `tables/*.toml`: plain data that a native can mend.

    name               what the language is called
    stemmer            the Snowball algorithm, where there is one
    blanks             false where words stand without blanks between them
    letters            letters that tell the language among those in Latin script
    function_words     words that carry grammar, no content, and the words that questions are built with
    common_words       more words that tell the language
    particles          characters that part words in a run without blanks, beside Chinese characters and katakana
    whole_words        words of a script without blanks that hold a function word's characters, and are none
    alone              characters of such a script that carry grammar where they stand alone
    endings            what comes off the end of a word where Snowball knows none; weak ones leave two characters
    time_words         a text with one of them tells a time; time_phrases: patterns of more words
    months             twelve times the forms of a month's name; short_months: those that need a capital;
                       doubtful_months: ordinary words too; before_months: words before one that make it a month
    month              pattern of what may be a month's name; day_before, day_after: of the day beside it
    numeric            the order of numbers in a date: dmy or ymd
    when               patterns of a question for a time
    first_person       patterns of the one who asks; i, my: what stands for a participant's name
    name_endings       what hangs on to a name and is no part of it
    titles             what stands before a name (or behind it) and is no part of it
    and                what joins the last two of a list
    within_names       words that a name may hold in small letters
    ordinary_words     words that often begin a sentence or a heading, and no name
    determiners, noun_endings, nouns
                       where every noun has a capital: what stands before one that is no name, how such nouns end, and
                       more of them
    asks               what a question may end with instead of a question mark
    [intents]          patterns of each intent (operators/recall/intent.py)

Patterns are regular expressions for whole words (anything, without blanks), whatever their case. Those of languages
other than English see a text without accents (`scripts.plain`), and may be written with them.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, Literal, get_args

import regex

from recallflow.language.scripts import folded, normalised

Intent = Literal["temporal", "entity", "preference", "procedural", "summary", "factual"]
Pattern = regex.Pattern[str]

_FOLDER = resources.files("recallflow.language") / "tables"  # maybe of a wheel that is imported as it is
_NEVER = regex.compile(r"(?!)")
_ANY_LETTERS = r"[^\W\d_]+"


@dataclass(frozen=True, eq=False)
class Table:
    """One language. Words are in lower case; those of `function_words` with accents and without. `written`: those, and
    the words of time and common ones, with their accents only. Patterns are compiled on first use: all of them take
    longer than everything else that an import of this module does."""

    code: str
    name: str
    stemmer: str | None
    blanks: bool
    letters: str
    function_words: frozenset[str]
    common_words: frozenset[str]
    particles: str
    whole_words: frozenset[str]
    alone: frozenset[str]
    endings: tuple[str, ...]
    weak_endings: tuple[str, ...]
    time_words: frozenset[str]
    months: Mapping[str, int]
    short_months: Mapping[str, int]
    doubtful_months: frozenset[str]
    before_months: tuple[str, ...]
    numeric: str
    i: str
    my: str
    name_endings: tuple[str, ...]
    written: frozenset[str]
    titles: frozenset[str]
    joining: frozenset[str]
    within_names: frozenset[str]
    ordinary_words: frozenset[str]
    determiners: frozenset[str]
    noun_endings: tuple[str, ...]
    nouns: frozenset[str]
    asks: tuple[str, ...]
    _given: Mapping[str, Any]

    @classmethod
    def load(cls, code: str) -> "Table":
        """Reads the language's file."""
        given: dict[str, Any] = tomllib.loads((_FOLDER / f"{code}.toml").read_text("utf-8"))

        def words(name: str) -> list[str]:
            listed: str = given.get(name, "")
            return listed.split()

        def months(name: str) -> dict[str, int]:
            return {form: at for at, forms in enumerate(given.get(name, ()), 1) for form in _spellings(forms.split())}

        return cls(
            code=code,
            name=given["name"],
            stemmer=given.get("stemmer"),
            blanks=given.get("blanks", True),
            letters=given.get("letters", ""),
            function_words=_spellings(words("function_words")),
            common_words=_spellings(words("common_words")),
            particles=given.get("particles", ""),
            whole_words=frozenset(words("whole_words")),
            alone=frozenset(words("alone")),
            endings=_longest_first(words("endings")),
            weak_endings=_longest_first(words("weak_endings")),
            time_words=_spellings(words("time_words")),
            months=months("months"),
            short_months=months("short_months"),
            doubtful_months=frozenset(words("doubtful_months")),
            before_months=tuple(f" {word}" for word in words("before_months")),
            numeric=given.get("numeric", ""),
            i=given["i"],
            my=given["my"],
            name_endings=tuple(words("name_endings")),
            written=frozenset(
                normalised(word).lower()
                for name in ("function_words", "time_words", "common_words")
                for word in words(name)
            ),
            titles=frozenset(words("titles")),
            joining=frozenset(words("and")),
            within_names=frozenset(words("within_names")),
            ordinary_words=frozenset(words("ordinary_words")),
            determiners=frozenset(words("determiners")),
            noun_endings=tuple(words("noun_endings")),
            nouns=frozenset(words("nouns")),
            asks=tuple(words("asks")),
            _given=given,
        )

    @cached_property
    def time_phrases(self) -> Pattern:
        return self._whole(self._given.get("time_phrases", ()))

    @cached_property
    def month(self) -> Pattern:
        return regex.compile(self._given.get("month", _ANY_LETTERS))

    @cached_property
    def day_before(self) -> Pattern:
        return self._beside("day_before")

    @cached_property
    def day_after(self) -> Pattern:
        return self._beside("day_after")

    @cached_property
    def when(self) -> Pattern:
        return self._whole(self._given["when"])

    @cached_property
    def first_person(self) -> Pattern:
        return self._whole(self._given["first_person"])

    @cached_property
    def decides(self) -> Pattern:
        return self._whole(self._given["decides"])

    @cached_property
    def intents(self) -> Mapping[Intent, Pattern]:
        """Patterns of a question by its intent."""
        return {intent: self._whole(self._given["intents"].get(intent, ())) for intent in get_args(Intent)}

    def _whole(self, patterns: Iterable[str]) -> Pattern:
        """Compile patterns of whole words, case-insensitively."""
        if not (joined := "|".join(patterns)):
            return _NEVER
        whole = rf"(?<!\w)(?:{joined})(?!\w)" if self.blanks else f"(?:{joined})"
        return regex.compile(whole if self.code == "en" else folded(whole), regex.IGNORECASE)

    def _beside(self, name: str) -> Pattern:
        return regex.compile(self._given[name]) if name in self._given else _NEVER


def _spellings(words: Iterable[str]) -> frozenset[str]:
    """Each word as it stands, and as it stands without accents."""
    given = [normalised(word).lower() for word in words]
    return frozenset([*given, *map(folded, given)])


def _longest_first(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words), key=lambda word: (-len(word), word)))


# Order of the stored language numbers: add new ones at the end, eight at most.
LATIN = tuple(map(Table.load, ("en", "de", "fr", "es", "pt", "it", "tr")))
ENGLISH = LATIN[0]
RUSSIAN, ARABIC, HINDI, CHINESE, JAPANESE, KOREAN = map(Table.load, ("ru", "ar", "hi", "zh", "ja", "ko"))
BY_SCRIPT: Mapping[str, Table] = {
    "cyrillic": RUSSIAN,
    "arabic": ARABIC,
    "devanagari": HINDI,
    "hangul": KOREAN,
    "unspaced": CHINESE,
}
EVERY = (*LATIN, RUSSIAN, ARABIC, HINDI, CHINESE, JAPANESE, KOREAN)
