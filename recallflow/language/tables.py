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
from importlib import resources
from typing import Any, Literal, get_args

import regex

from recallflow.language.scripts import folded, normalised

Intent = Literal["temporal", "entity", "preference", "procedural", "summary", "factual"]
Pattern = regex.Pattern[str]

_FOLDER = resources.files("recallflow.language") / "tables"  # maybe of a wheel that is imported as it is
_NEVER = regex.compile(r"(?!)")
_ANY_LETTERS = r"[^\W\d_]+"


@dataclass(frozen=True, slots=True)
class Table:
    """One language. Words are in lower case; those of `function_words` with accents and without. `written`: those, and
    the words of time and common ones, with their accents only."""

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
    time_phrases: Pattern
    months: Mapping[str, int]
    short_months: Mapping[str, int]
    doubtful_months: frozenset[str]
    before_months: tuple[str, ...]
    month: Pattern
    day_before: Pattern
    day_after: Pattern
    numeric: str
    when: Pattern
    first_person: Pattern
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
    decides: Pattern
    intents: Mapping[Intent, Pattern]

    @classmethod
    def load(cls, code: str) -> "Table":
        """Reads the language's file."""
        given: dict[str, Any] = tomllib.loads((_FOLDER / f"{code}.toml").read_text("utf-8"))
        english, blanks = code == "en", given.get("blanks", True)

        def words(name: str) -> list[str]:
            listed: str = given.get(name, "")
            return listed.split()

        def pattern(patterns: Iterable[str]) -> Pattern:
            joined = "|".join(patterns)
            whole = rf"(?<!\w)(?:{joined})(?!\w)" if blanks else f"(?:{joined})"
            return regex.compile(whole if english else folded(whole), regex.IGNORECASE) if joined else _NEVER

        def beside(name: str) -> Pattern:
            return regex.compile(given[name]) if name in given else _NEVER

        def months(name: str) -> dict[str, int]:
            return {form: at for at, forms in enumerate(given.get(name, ()), 1) for form in _spellings(forms.split())}

        return cls(
            code=code,
            name=given["name"],
            stemmer=given.get("stemmer"),
            blanks=blanks,
            letters=given.get("letters", ""),
            function_words=_spellings(words("function_words")),
            common_words=_spellings(words("common_words")),
            particles=given.get("particles", ""),
            whole_words=frozenset(words("whole_words")),
            alone=frozenset(words("alone")),
            endings=_longest_first(words("endings")),
            weak_endings=_longest_first(words("weak_endings")),
            time_words=_spellings(words("time_words")),
            time_phrases=pattern(given.get("time_phrases", ())),
            months=months("months"),
            short_months=months("short_months"),
            doubtful_months=frozenset(words("doubtful_months")),
            before_months=tuple(f" {word}" for word in words("before_months")),
            month=regex.compile(given.get("month", _ANY_LETTERS)),
            day_before=beside("day_before"),
            day_after=beside("day_after"),
            numeric=given.get("numeric", ""),
            when=pattern(given["when"]),
            first_person=pattern(given["first_person"]),
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
            decides=pattern(given["decides"]),
            intents={intent: pattern(given["intents"].get(intent, ())) for intent in get_args(Intent)},
        )


def _spellings(words: Iterable[str]) -> frozenset[str]:
    """Each word as it stands, and as it stands without accents."""
    given = [normalised(word).lower() for word in words]
    return frozenset([*given, *map(folded, given)])


def _longest_first(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words), key=lambda word: (-len(word), word)))


# In this order they are numbered in what is stored: new ones go to the end, eight at most.
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
