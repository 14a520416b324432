"""Language tables, loaded from `tables/*.toml`: plain data that a native speaker can correct.

    name               name of the language
    stemmer            Snowball algorithm, if one exists
    blanks             false if words are not separated by spaces
    letters            letters that identify the language among the languages in Latin script
    function_words     words of grammar without content, and the words that form questions
    common_words       other words that identify the language
    particles          characters that separate words in a run without spaces, next to Chinese characters and katakana
    whole_words        content words that contain a function word's characters, in a script without spaces
    alone              characters that are function words if no content word is next to them, in a script without spaces
    endings            suffixes to remove where Snowball has no stemmer; weak_endings: only if two characters remain
    time_words         words that are a time expression; time_phrases: patterns of several words
    months             forms of each month's name, twelve lists; short_months: forms that need a capital;
                       doubtful_months: forms that are ordinary words too; before_months: words that precede a month
    month              pattern of a possible month name; day_before, day_after: patterns of the adjacent day
    numeric            order of the numbers in a date: dmy or ymd
    when               patterns of a question about a time
    first_person       patterns that refer to the writer; i, my: pronouns that replace the writer's name
    name_endings       suffixes to strip from a name
    titles             titles before or after a name
    and                conjunctions before the last item of a list
    within_names       lower-case words that may be part of a name
    ordinary_words     words that often start a sentence or a heading, and are not names
    determiners, noun_endings, nouns
                       for languages that capitalise nouns: words before a common noun, suffixes of common nouns, and
                       further common nouns
    asks               words that may end a question instead of a question mark; decides: patterns of a decision
    [intents]          patterns of each intent (operators/recall/question.py)

Patterns are case-insensitive regular expressions. They match whole words, or any substring in a script without spaces.
In languages other than English they are matched against text without accents (`scripts.plain`); accents in a pattern
are removed as well."""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import resources
from typing import Literal, get_args

import regex

from recallflow.language.scripts import folded, normalised

Intent = Literal["temporal", "entity", "preference", "procedural", "summary", "factual"]
Pattern = regex.Pattern[str]
_FOLDER = resources.files("recallflow.language") / "tables"  # may be inside a zipped wheel
_NEVER = r"(?!)"
_ANY_LETTERS = r"[^\W\d_]+"


def _word_pattern(name: str) -> "cached_property[Pattern]":
    return cached_property(lambda table: table._whole(table._toml.get(name, ())))


def _raw_pattern(name: str, default: str) -> "cached_property[Pattern]":
    return cached_property(lambda table: regex.compile(table._toml.get(name, default)))


class Table:
    """Table of one language. Words are in lower case. `function_words` contains each word with and without accents.
    `accented_words` are function words, time words and common words with their accents only. Patterns are compiled on
    first use, because compilation would dominate the import time of this module."""

    def __init__(self, code: str) -> None:
        """Read the language's file."""
        self._toml = toml = tomllib.loads((_FOLDER / f"{code}.toml").read_text("utf-8"))

        def words(name: str) -> list[str]:
            listed: str = toml.get(name, "")
            return listed.split()

        def months(name: str) -> Mapping[str, int]:
            return {form: at for at, forms in enumerate(toml.get(name, ()), 1) for form in _spellings(forms.split())}

        accented = [*words("function_words"), *words("time_words"), *words("common_words")]
        self.code = code
        self.name: str = toml["name"]
        self.stemmer: str | None = toml.get("stemmer")
        self.has_spaces: bool = toml.get("blanks", True)
        self.letters: str = toml.get("letters", "")
        self.function_words = _spellings(words("function_words"))
        self.common_words = _spellings(words("common_words"))
        self.time_words = _spellings(words("time_words"))
        self.accented_words = frozenset(normalised(word).lower() for word in accented)
        self.particles: str = toml.get("particles", "")
        self.whole_words, self.alone = frozenset(words("whole_words")), frozenset(words("alone"))
        self.endings, self.weak_endings = _longest_first(words("endings")), _longest_first(words("weak_endings"))
        self.months, self.short_months = months("months"), months("short_months")
        self.doubtful_months = frozenset(words("doubtful_months"))
        self.before_months = tuple(f" {word}" for word in words("before_months"))
        self.numeric: str = toml.get("numeric", "")
        self.i: str = toml.get("i", "")
        self.my: str = toml.get("my", "")
        self.titles, self.conjunctions = frozenset(words("titles")), frozenset(words("and"))
        self.within_names, self.name_endings = frozenset(words("within_names")), tuple(words("name_endings"))
        self.ordinary_words, self.determiners = frozenset(words("ordinary_words")), frozenset(words("determiners"))
        self.nouns, self.noun_endings = frozenset(words("nouns")), tuple(words("noun_endings"))
        self.asks = tuple(words("asks"))

    time_phrases = _word_pattern("time_phrases")
    when = _word_pattern("when")
    first_person = _word_pattern("first_person")
    decides = _word_pattern("decides")
    month = _raw_pattern("month", _ANY_LETTERS)
    day_before = _raw_pattern("day_before", _NEVER)
    day_after = _raw_pattern("day_after", _NEVER)

    @cached_property
    def intents(self) -> Mapping[Intent, Pattern]:
        """Patterns of questions by intent."""
        return {intent: self._whole(self._toml["intents"].get(intent, ())) for intent in get_args(Intent)}

    def _whole(self, patterns: Iterable[str]) -> Pattern:
        """Compile patterns of whole words, case-insensitively."""
        if not (joined := "|".join(patterns)):
            return regex.compile(_NEVER)
        whole = rf"(?<!\w)(?:{joined})(?!\w)" if self.has_spaces else f"(?:{joined})"
        return regex.compile(whole if self.code == "en" else folded(whole), regex.IGNORECASE)


def _spellings(words: Iterable[str]) -> frozenset[str]:
    """Return each word with and without its accents."""
    spellings = [normalised(word).lower() for word in words]
    return frozenset([*spellings, *map(folded, spellings)])


def _longest_first(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words), key=lambda word: (-len(word), word)))


# State files store the index in LATIN in three bits: append only, at most eight.
LATIN = tuple(map(Table, ("en", "de", "fr", "es", "pt", "it", "tr")))
ENGLISH = LATIN[0]
RUSSIAN, ARABIC, HINDI, CHINESE, JAPANESE, KOREAN = map(Table, ("ru", "ar", "hi", "zh", "ja", "ko"))
BY_SCRIPT: Mapping[str, Table] = {
    "cyrillic": RUSSIAN, "arabic": ARABIC, "devanagari": HINDI, "hangul": KOREAN, "unspaced": CHINESE,
}  # fmt: skip
EVERY = (*LATIN, RUSSIAN, ARABIC, HINDI, CHINESE, JAPANESE, KOREAN)
