"""Analysis of texts and questions: their language, stems, sentences and dates.

Scripts identify most languages; among those in Latin script, function words, common words and letters do. A word of n
languages counts one nth for each of them. The assumption of the caller decides unclear cases.

A text is analysed in its own language. A question is analysed in its own language, in the languages of the memories of
its owner, and in English, which is assumed for texts of unclear language.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain, islice, pairwise, product
from typing import NamedTuple

import regex

from recallflow.language.scripts import BEYOND_LATIN, UNSPACED, UNSPACED_LETTER, folded, normalised, plain, script_of
from recallflow.language.tables import BY_SCRIPT, ENGLISH, LATIN, Table
from recallflow.language.words import (
    LATIN_WORD,
    ascii_words,
    counts,
    latin_stems,
    pairs,
    runs,
    script_stems,
    stemmer,
    unspaced_table,
)

WHOLE = 420  # weight of a word of one language; sums of integers do not depend on the order
LEAST = 1.2 * WHOLE  # more than one word, which could be a name or a typing error
MARGIN = 1.3  # minimum ratio of the best score to the second


class Detected(NamedTuple):
    """A language in Latin script, by its index in `LATIN`. `sure` means that it was detected, not assumed."""

    number: int
    sure: bool


_CLEAR, _UNCLEAR = ([Detected(number, sure) for number in range(len(LATIN))] for sure in (True, False))


_languages: defaultdict[str, list[int]] = defaultdict(list)
for _number, _table in enumerate(LATIN):
    for _word in _table.function_words | _table.common_words:
        if len(_word) > 1:
            _languages[_word].append(_number)
# The languages of each identifying word, by index in `LATIN`, with the weight of the word.
_TELLING = {word: tuple((number, WHOLE // len(of)) for number in of) for word, of in _languages.items()}
_FOREIGN = frozenset(_TELLING) - ENGLISH.function_words
_ENGLISH_ONLY = frozenset(word for word in ENGLISH.function_words if len(_TELLING[word]) == 1)
_LETTERS = {letter: number for number, table in enumerate(LATIN) for letter in table.letters}
_TELLING_LETTER = re.compile(f"[{''.join(_LETTERS)}]")


def detect(words: Collection[str], lowered: str, assumed: int) -> Detected:
    """Return the language of a text. The fast path covers English with at most one foreign word, such as a name."""
    letters = set() if lowered.isascii() else set(_TELLING_LETTER.findall(lowered))
    foreign = _FOREIGN.intersection(words)
    if not letters and len(foreign) < 2:
        english = len(_ENGLISH_ONLY.intersection(words)) if foreign else not _ENGLISH_ONLY.isdisjoint(words)
        return _CLEAR[0] if english > len(foreign) else _UNCLEAR[assumed]
    scores = [0] * len(LATIN)
    for word in _TELLING.keys() & words:
        for number, weight in _TELLING[word]:
            scores[number] += weight
    for letter in letters:
        scores[_LETTERS[letter]] += WHOLE
    best = max(range(len(scores)), key=scores.__getitem__)
    second = max(score for number, score in enumerate(scores) if number != best)
    sure = scores[best] >= LEAST and scores[best] >= MARGIN * second
    return _CLEAR[best] if sure else _UNCLEAR[assumed]


_LETTER_OF = regex.compile(
    r"(?P<arabic>\p{Arabic})|(?P<cyrillic>\p{Cyrillic})|(?P<devanagari>\p{Devanagari})|(?P<hangul>\p{Hangul})"
    rf"|(?P<unspaced>[{UNSPACED}])|\p{{L}}"
)
_UNSPACED_WEIGHT = 3  # a character is about half a word, a letter a fifth of one


def table_of(text: str, assumed: Sequence[int] = (0,)) -> Table:
    """Return the main language of a question. If its words do not identify one, return the first of `assumed`."""
    text = normalised(text)
    lowered = text.lower()
    if BEYOND_LATIN.search(lowered):
        letters: defaultdict[str, int] = defaultdict(int)
        for found in _LETTER_OF.finditer(text):
            script = found.lastgroup or ""
            letters[script] += _UNSPACED_WEIGHT if script == "unspaced" else 1
        script = max(letters, key=lambda name: letters[name], default="")
        if script == "unspaced":
            return unspaced_table(text)
        if script:
            return BY_SCRIPT[script]
    return LATIN[detect(LATIN_WORD.findall(lowered), lowered, assumed[0]).number]


_CONTEXT = 32  # characters before and after a month's name, enough for any form of the day
_DIGIT = regex.compile(r"\d")
_ISO_DATE = regex.compile(r"\b((?:19|20)\d\d)-(\d\d)-(\d\d)\b", regex.ASCII)
# If the order of a date's numbers is ambiguous, the year alone would be too broad, so it does not match.
_DATE_YEAR = regex.compile(r"(?<!\b\d{1,2}[./-] ?)\b((?:19|20)\d\d)\b(?![./-]\d{1,2}[./-]\d)", regex.ASCII)
_NUMERIC = {
    "dmy": regex.compile(r"\b(?P<day>\d{1,2})[./-] ?(?P<month>\d{1,2})[./-] ?(?P<year>(?:19|20)\d\d)\b", regex.ASCII),
    "ymd": regex.compile(r"\b(?P<year>(?:19|20)\d\d)[./-] ?(?P<month>\d{1,2})[./-] ?(?P<day>\d{1,2})\b", regex.ASCII),
}


@dataclass(frozen=True, slots=True)
class DateMention:
    """A date in a question; absent parts are None. `month` and `day` count from 1."""

    year: int | None
    month: int | None
    day: int | None

    def holds(self, day: date) -> bool:
        """Return whether the day matches this date."""
        parts = (self.year, day.year), (self.month, day.month), (self.day, day.day)
        return all(asked is None or asked == own for asked, own in parts)


def find_dates(text: str, table: Table, at_most: int) -> tuple[DateMention, ...]:
    """Return the distinct dates of a text, at most `at_most`, because each date costs a scan of all memories."""
    if table is not ENGLISH:
        text = plain(text)
    if not table.month.search(text) and not _DIGIT.search(text):
        return ()
    exact = [DateMention(int(y), int(m), int(d)) for y, m, d in _ISO_DATE.findall(text)]
    rest = _ISO_DATE.sub(" ", text)
    if table.numeric:
        numeric = _NUMERIC[table.numeric]
        exact += [DateMention(int(f["year"]), int(f["month"]), int(f["day"])) for f in numeric.finditer(rest)]
        rest = numeric.sub(" ", rest)
    years = dict.fromkeys(int(year) for year in _DATE_YEAR.findall(rest))
    named = ((_month(rest, word, table), word) for word in table.month.finditer(rest))
    months = dict.fromkeys((month, _day(rest, word, table)) for month, word in named if month is not None)
    paired = (DateMention(year, *month) for month, year in product(months, years or [None]))
    found = paired if months else (DateMention(year, None, None) for year in years)
    return tuple(islice(dict.fromkeys([*exact, *islice(found, at_most)]), at_most))


def _month(text: str, word: regex.Match[str], table: Table) -> int | None:
    """Return the month of a word. Short forms need a capital. An ambiguous one needs an adjacent day, a preceding
    word for months, or a capital inside a sentence."""
    lowered, capital = word[0].lower(), word[0][0].isupper()
    if lowered in table.doubtful_months:
        context = text[max(word.start() - _CONTEXT, 0) : word.start()]
        before = context.rstrip()
        within = capital and before[-1:].isalnum()
        dated = _day(text, word, table) if capital else table.day_before.search(context)
        if not (within or before.lower().endswith(table.before_months) or dated):
            return None
    if (number := regex.match(r"\d+", lowered)) is not None:
        return int(number[0]) if 1 <= int(number[0]) <= 12 else None
    found = table.months.get(lowered) or (table.short_months.get(lowered) if capital else None)
    return found or (table.months.get(script_stems[lowered]) if table.endings else None)


def _day(text: str, month: regex.Match[str], table: Table) -> int | None:
    """Return the day next to a month's name: 8 May, May 8th, the 8th of May."""
    before, after = text[max(month.start() - _CONTEXT, 0) : month.start()], text[month.end() : month.end() + _CONTEXT]
    found = table.day_before.search(before) or table.day_after.search(after)
    return int(found[1]) if found and 1 <= int(found[1]) <= 31 else None


# State built with another analysis contains other stems. Change this name whenever stems, flags, spelling features or
# the hash embedder's words change for any text.
ANALYSIS = "unicode-2"

TURKISH = next(number for number, table in enumerate(LATIN) if table.code == "tr")
_TIME_WORDS = ENGLISH.time_words
_YEAR = re.compile(r"(?:19|20)\d\d")
_DATE = re.compile(r"\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b")
_ASKS = re.compile("[?？؟]")
_CLOSED = "\"'”’»」』)）.。!！ \t\r\n"
# A sentence ends at its mark if a space follows; in scripts without spaces, at the mark.
# The pattern starts with the mark, so the search skips from mark to mark. A lookbehind would run at each character.
_SENTENCE_END = re.compile(r"[.!?…؟۔।॥]\s+|[。！？｡．](?![。！？｡．」』）】”’])\s*|\n+")


class TextAnalysis(NamedTuple):
    """Analysis of a text. `stems` are the stems of its content words in order, repeats included. `asks` means that it
    contains a question, `ends_asking` that it ends in one, `tells_time` that it contains a time expression. `language`
    is the index in `LATIN` for words in Latin script; `sure` means that it was detected, not assumed."""

    stems: list[str]
    asks: bool
    ends_asking: bool
    tells_time: bool
    language: int
    sure: bool


def read(text: str, assumed: int = 0) -> TextAnalysis:
    """Analyse a text. If its language is unclear, use the language `assumed`, an index in `LATIN`."""
    if text.isascii():
        lowered, words = text.lower(), ascii_words(text)
    else:
        text = normalised(text)
        lowered = text.lower()
        if BEYOND_LATIN.search(lowered):
            return _read_any(text, lowered, assumed)
        words = LATIN_WORD.findall(lowered)
    asks = "?" in text
    ends = asks and text.rstrip().endswith("?")
    language, sure = detect(words, lowered, assumed)
    if language == TURKISH:
        words = LATIN_WORD.findall(lower_case(text, language))
    stems = [*filter(None, map(latin_stems[language].__getitem__, words))]
    tells = _tells_time(lowered, stems, [LATIN[language]]) if language else _tells_english_time(lowered, words)
    return TextAnalysis(stems, asks, ends, tells, language, sure)


def _read_any(text: str, lowered: str, assumed: int) -> TextAnalysis:
    """Analyse a text that contains scripts other than Latin."""
    spaced = [run for run, unspaced, _ in runs(lowered) if not unspaced and len(run) > 1]
    language, sure = detect(spaced, lowered, assumed)
    stems = [found for word, unspaced in _split(text, language) if (found := stem_of(word, unspaced, language))]
    scripts = {script_of(word) for word in spaced}
    own = [BY_SCRIPT[script] for script in sorted(scripts & BY_SCRIPT.keys())]
    if UNSPACED_LETTER.search(lowered):
        own.append(unspaced_table(text))
    tables = [*own, LATIN[language]] if "latin" in scripts else own
    ending = text.rstrip(_CLOSED)
    ends = ending.endswith(("?", "？", "؟", *(word for table in own for word in table.asks)))
    asks = ends or _ASKS.search(text) is not None
    # A text in another script says nothing about the language of the owner's texts in Latin script.
    return TextAnalysis(stems, asks, ends, _tells_time(lowered, stems, tables), language, sure and "latin" in scripts)


def lower_case(text: str, language: int) -> str:
    """Return a normalised text in the lower case of its language."""
    return (text.replace("I", "ı") if language == TURKISH else text).lower()


def _split(text: str, language: int) -> Iterable[tuple[str, bool]]:
    """Yield each word of a text in any script, and whether its script has no spaces."""
    lowered = lower_case(text, language)
    table = unspaced_table(lowered)
    for run, unspaced, _ in runs(lowered):
        if unspaced:
            for pair, _ in pairs(run, table):
                yield pair, True
        elif counts(run):
            yield run, False


def stem_of(word: str, unspaced: bool, language: int) -> str:
    """Return the stem of a word; an empty string for a function word."""
    if unspaced:
        return word
    if script_of(word) in ("latin", ""):
        return latin_stems[language][word]
    return script_stems[word]


# ---------------------------------------------------------------------- time


def _tells_english_time(lowered: str, words: list[str]) -> bool:
    return (
        not _TIME_WORDS.isdisjoint(words)
        # Most texts contain no year; this test costs less than a match of each word.
        or (("20" in lowered or "19" in lowered) and any(map(_YEAR.fullmatch, words)))
        or ("this " in lowered and ENGLISH.time_phrases.search(lowered) is not None)
    )


_TIME_STEMS = {
    table.code: frozenset(map(stemmer(table), table.time_words)) - {""}
    for table in (*LATIN, *BY_SCRIPT.values())
    if table.blanks
}


def _tells_time(lowered: str, stems: list[str], tables: list[Table]) -> bool:
    if any(map(_YEAR.fullmatch, stems)) or _DATE.search(lowered):
        return True
    for table in tables:
        if table.blanks and not _TIME_STEMS[table.code].isdisjoint(stems):
            return True
        if not table.blanks and (table.month.search(lowered) or any(word in lowered for word in table.time_words)):
            return True
    return False


# ---------------------------------------------------------------------- questions, names, sentences


def stems(text: str, language: int = 0) -> list[str]:
    """Return the stems of a name or a text. `language` is the index in `LATIN` for words in Latin script."""
    text = normalised(text)
    if text.isascii() or not BEYOND_LATIN.search(text.lower()):
        words = LATIN_WORD.findall(lower_case(text, language))
        return [*filter(None, map(latin_stems[language].__getitem__, words))]
    return [found for word, unspaced in _split(text, language) if (found := stem_of(word, unspaced, language))]


def read_question(text: str, table: Table, languages: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the possible stems of each content word of a question in memories of these languages. The stem in the
    question's own language is first. `languages` are indexes in `LATIN`."""
    own = LATIN.index(table) if table in LATIN else next(iter(languages), 0)
    tried = dict.fromkeys((own, *languages, 0))
    if [*tried] == [0]:
        return [(stem,) for stem in stems(text)]
    text = normalised(text)
    found: list[tuple[str, ...]] = []
    for word, unspaced in _split(text, own):
        if stem := stem_of(word, unspaced, own):
            stemmers = [latin_stems[language] for language in tried] if script_of(word) in ("latin", "") else []
            others = (stem[spelling] for stem in stemmers for spelling in (word, folded(word)))
            found.append(tuple(dict.fromkeys([stem, *filter(None, others)])))
    return found


def name_stem(word: str, table: Table) -> str:
    """Return the part of a word or name that is common to its inflected forms in this language."""
    word = normalised(word).lower()
    if script_of(word) not in ("latin", ""):
        return script_stems[word]
    stem = stemmer(table)(word) if table in LATIN else latin_stems[0][word] or word
    bent = (word[: -len(end)] for end in table.name_endings if word.endswith(end))
    return next(bent, stem) if stem else ""


def sentences(text: str) -> list[str]:
    """Return the text's sentences, stripped; an empty list for a blank text."""
    return [part for start, end in pairwise([0, *sentence_ends(text)]) if (part := text[start:end].strip())]


def sentence_at(text: str, at: int) -> tuple[str, int]:
    """Return the first sentence that ends after a position, and its start; the whole text without one."""
    start = 0
    for end in chain((found.end() for found in _SENTENCE_END.finditer(text)), (len(text),)):
        sentence = text[start:end].strip()
        begin = text.find(sentence, start)
        if sentence and begin + len(sentence) > at:
            return sentence, begin
        start = end
    return text, 0


def sentence_ends(text: str) -> list[int]:
    """Return the end of each sentence, trailing spaces included. The last end is the end of the text."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return ends if ends and ends[-1] == len(text) else [*ends, len(text)]
