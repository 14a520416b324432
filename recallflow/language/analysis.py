"""Analysis of texts and questions: their language, stems, sentences and dates.

The script of a text identifies most languages. Languages in Latin script are identified by function words, common words
and letters; a word of n languages adds 1/n to the score of each. The caller passes the language to assume if none is
identified.

A text is analysed in its own language. A question is analysed in its own language, in the languages of the memories of
its owner, and in English, because English is assumed for texts of unclear language."""

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
    has_meaning,
    latin_stems,
    pairs,
    runs,
    script_stems,
    stemmer,
    unspaced_table,
)

WORD = 420  # weight of a word of one language; an integer, so that a sum does not depend on the order of words
SCORE_MIN = 1.2 * WORD  # more than one word: a single one could be a name or a typing error
MARGIN = 1.3  # minimum ratio of the best score to the second
_CONTEXT = 32  # characters examined before and after a month's name: enough for any form of the day
_DIGIT = regex.compile(r"\d")
_ISO_DATE = regex.compile(r"\b((?:19|20)\d\d)-(\d\d)-(\d\d)\b", regex.ASCII)
# No match in a date whose order of numbers is ambiguous: the whole year would be too broad.
_DATE_YEAR = regex.compile(r"(?<!\b\d{1,2}[./-] ?)\b((?:19|20)\d\d)\b(?![./-]\d{1,2}[./-]\d)", regex.ASCII)
_NUMERIC = {
    "dmy": regex.compile(r"\b(?P<day>\d{1,2})[./-] ?(?P<month>\d{1,2})[./-] ?(?P<year>(?:19|20)\d\d)\b", regex.ASCII),
    "ymd": regex.compile(r"\b(?P<year>(?:19|20)\d\d)[./-] ?(?P<month>\d{1,2})[./-] ?(?P<day>\d{1,2})\b", regex.ASCII),
}
_LETTER_OF = regex.compile(
    r"(?P<arabic>\p{Arabic})|(?P<cyrillic>\p{Cyrillic})|(?P<devanagari>\p{Devanagari})|(?P<hangul>\p{Hangul})"
    rf"|(?P<unspaced>[{UNSPACED}])|\p{{L}}"
)
_UNSPACED_WEIGHT = 3  # in letters: a character of these scripts is about half a word, a letter a fifth of a word


class DetectedLanguage(NamedTuple):
    """A language in Latin script, by its index in `LATIN`. `is_certain`: it was identified by words, not assumed."""

    number: int
    is_certain: bool


_CERTAIN, _ASSUMED = ([DetectedLanguage(at, certain) for at in range(len(LATIN))] for certain in (True, False))
_languages: defaultdict[str, list[int]] = defaultdict(list)
for _number, _table in enumerate(LATIN):
    for _word in _table.function_words | _table.common_words:
        if len(_word) > 1:
            _languages[_word].append(_number)
# Identifying word → its languages, by index in `LATIN`, each with the weight of the word.
_WEIGHTS = {word: tuple((number, WORD // len(of)) for number in of) for word, of in _languages.items()}
_FOREIGN = frozenset(_WEIGHTS) - ENGLISH.function_words
_ENGLISH_ONLY = frozenset(word for word in ENGLISH.function_words if len(_WEIGHTS[word]) == 1)
_LETTERS = {letter: number for number, table in enumerate(LATIN) for letter in table.letters}
_IDENTIFYING_LETTER = re.compile(f"[{''.join(_LETTERS)}]")


def detect(words: Collection[str], lowered: str, assumed: int) -> DetectedLanguage:
    """Return the language of a text. The fast path covers English with at most one foreign word, such as a name."""
    letters = set() if lowered.isascii() else set(_IDENTIFYING_LETTER.findall(lowered))
    foreign = _FOREIGN.intersection(words)
    if not letters and len(foreign) < 2:
        english = len(_ENGLISH_ONLY.intersection(words)) if foreign else not _ENGLISH_ONLY.isdisjoint(words)
        return _CERTAIN[0] if english > len(foreign) else _ASSUMED[assumed]
    scores = [0] * len(LATIN)
    for word in _WEIGHTS.keys() & words:
        for number, weight in _WEIGHTS[word]:
            scores[number] += weight
    for letter in letters:
        scores[_LETTERS[letter]] += WORD
    best = max(range(len(scores)), key=scores.__getitem__)
    second = max(score for number, score in enumerate(scores) if number != best)
    is_certain = scores[best] >= SCORE_MIN and scores[best] >= MARGIN * second
    return _CERTAIN[best] if is_certain else _ASSUMED[assumed]


def has_foreign_word(words: Collection[str]) -> bool:
    """Return whether one of the words is a frequent word of another language and no function word of English."""
    return not _FOREIGN.isdisjoint(words)


def table_of(text: str, assumed: Sequence[int] = (0,)) -> Table:
    """Return the main language of a question; if its words identify none, the first of `assumed`."""
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


@dataclass(frozen=True, slots=True)
class DateMention:
    """A date in a question; absent parts are None. `month` and `day` count from 1."""

    year: int | None
    month: int | None
    day: int | None

    def matches(self, day: date) -> bool:
        """Return whether the day has all parts of this date."""
        parts = (self.year, day.year), (self.month, day.month), (self.day, day.day)
        return all(part is None or part == own for part, own in parts)


def find_dates(text: str, table: Table, at_most: int) -> tuple[DateMention, ...]:
    """Return up to `at_most` distinct dates of a text. The caller scans all memories for each date."""
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
    numbered = ((_month(rest, word, table), word) for word in table.month.finditer(rest))
    months = dict.fromkeys((month, _day(rest, word, table)) for month, word in numbered if month is not None)
    paired = (DateMention(year, *month) for month, year in product(months, years or [None]))
    found = paired if months else (DateMention(year, None, None) for year in years)
    return tuple(islice(dict.fromkeys([*exact, *islice(found, at_most)]), at_most))


def _month(text: str, word: regex.Match[str], table: Table) -> int | None:
    """Return the month that a word names. A short form needs a capital. A word that is not always a month needs an
    adjacent day, a preceding word such as "in", or a capital inside a sentence."""
    lowered, capital = word[0].lower(), word[0][0].isupper()
    if lowered in table.doubtful_months:
        context = text[max(word.start() - _CONTEXT, 0) : word.start()]
        before = context.rstrip()
        inside_sentence = capital and before[-1:].isalnum()
        day = _day(text, word, table) if capital else table.day_before.search(context)
        if not (inside_sentence or before.lower().endswith(table.before_months) or day):
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


# Version of the analysis. Change it whenever stems, flags, spelling features or the hash embedder's words change.
ANALYSIS = "unicode-2"
TURKISH = next(number for number, table in enumerate(LATIN) if table.code == "tr")
_TIME_WORDS = ENGLISH.time_words
_YEAR = re.compile(r"(?:19|20)\d\d")
_DATE = re.compile(r"\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b")
_QUESTION_MARK = re.compile("[?？؟]")
_CLOSING = "\"'”’»」』)）.。!！ \t\r\n"  # characters that may follow the question mark at the end of a text
# A sentence ends at its punctuation mark if a space follows; in scripts without spaces, at any such mark.
# The pattern starts with the mark, so that a search skips from mark to mark: a lookbehind would run at each character.
_SENTENCE_END = re.compile(r"[.!?…؟۔।॥]\s+|[。！？｡．](?![。！？｡．」』）】”’])\s*|\n+")


class TextAnalysis(NamedTuple):
    """Analysis of a text. `stems` are the stems of its content words in order, repeats included. `has_time`: the text
    contains a time expression. `language` is the language of its words in Latin script, as an index in `LATIN`;
    `is_certain`: the language was identified by words, not assumed."""

    stems: list[str]
    has_question: bool
    ends_in_question: bool
    has_time: bool
    language: int
    is_certain: bool


def analyse(text: str, assumed: int = 0) -> TextAnalysis:
    """Analyse a text. `assumed` is the language (an index in `LATIN`) if its words identify none."""
    if text.isascii():
        lowered, words = text.lower(), ascii_words(text)
    else:
        text = normalised(text)
        lowered = text.lower()
        if BEYOND_LATIN.search(lowered):
            return _analyse_other_scripts(text, lowered, assumed)
        words = LATIN_WORD.findall(lowered)
    asks = "?" in text
    ends_asking = asks and text.rstrip().endswith("?")
    language, is_certain = detect(words, lowered, assumed)
    if language == TURKISH:
        words = LATIN_WORD.findall(lower_case(text, language))
    stems = [*filter(None, map(latin_stems[language].__getitem__, words))]
    has_time = _has_time(lowered, stems, [LATIN[language]]) if language else _has_english_time(lowered, words)
    return TextAnalysis(stems, asks, ends_asking, has_time, language, is_certain)


def _analyse_other_scripts(text: str, lowered: str, assumed: int) -> TextAnalysis:
    """Analyse a text that contains scripts other than Latin."""
    spaced = [run for run, unspaced, _ in runs(lowered) if not unspaced and len(run) > 1]
    language, is_certain = detect(spaced, lowered, assumed)
    scripts = {script_of(word) for word in spaced}
    own = [BY_SCRIPT[script] for script in sorted(scripts & BY_SCRIPT.keys())]
    if UNSPACED_LETTER.search(lowered):
        own.append(unspaced_table(text))
    tables = [*own, LATIN[language]] if "latin" in scripts else own
    ends_asking = text.rstrip(_CLOSING).endswith(("?", "？", "؟", *(word for table in own for word in table.asks)))
    asks = ends_asking or _QUESTION_MARK.search(text) is not None
    stems, is_certain = _stems_of_any(text, language), is_certain and "latin" in scripts
    return TextAnalysis(stems, asks, ends_asking, _has_time(lowered, stems, tables), language, is_certain)


def lower_case(text: str, language: int) -> str:
    """Return a normalised text in the lower case of its language."""
    return (text.replace("I", "ı") if language == TURKISH else text).lower()


def _split(text: str, language: int) -> Iterable[tuple[str, bool]]:
    """Yield each word of a text in any scripts, and whether the word's script has no spaces."""
    lowered = lower_case(text, language)
    table = unspaced_table(lowered)
    for run, unspaced, _ in runs(lowered):
        if unspaced:
            for pair, _ in pairs(run, table):
                yield pair, True
        elif has_meaning(run):
            yield run, False


def stem_of(word: str, unspaced: bool, language: int) -> str:
    """Return the stem of a word; an empty string for a function word."""
    if unspaced:
        return word
    if script_of(word) in ("latin", ""):
        return latin_stems[language][word]
    return script_stems[word]


def _has_english_time(lowered: str, words: list[str]) -> bool:
    return (
        not _TIME_WORDS.isdisjoint(words)
        # The test for "20" and "19" excludes most texts faster than a match of each word.
        or (("20" in lowered or "19" in lowered) and any(map(_YEAR.fullmatch, words)))
        or ("this " in lowered and ENGLISH.time_phrases.search(lowered) is not None)
    )


_TIME_STEMS = {
    table.code: frozenset(map(stemmer(table), table.time_words)) - {""}
    for table in (*LATIN, *BY_SCRIPT.values())
    if table.has_spaces
}


def _has_time(lowered: str, stems: list[str], tables: list[Table]) -> bool:
    if any(map(_YEAR.fullmatch, stems)) or _DATE.search(lowered):
        return True
    for table in tables:
        if table.has_spaces and not _TIME_STEMS[table.code].isdisjoint(stems):
            return True
        if not table.has_spaces and (table.month.search(lowered) or any(word in lowered for word in table.time_words)):
            return True
    return False


def stems(text: str, language: int = 0) -> list[str]:
    """Return the stems of a name or a text. `language`: of words in Latin script, as an index in `LATIN`."""
    text = normalised(text)
    if text.isascii() or not BEYOND_LATIN.search(text.lower()):
        words = LATIN_WORD.findall(lower_case(text, language))
        return [*filter(None, map(latin_stems[language].__getitem__, words))]
    return _stems_of_any(text, language)


def _stems_of_any(text: str, language: int) -> list[str]:
    """Return the stems of a normalised text in any scripts."""
    return [stem for word, unspaced in _split(text, language) if (stem := stem_of(word, unspaced, language))]


def read_question(text: str, table: Table, languages: Sequence[int]) -> list[tuple[str, ...]]:
    """Return, for each content word of a question, the stems that it may have in memories. The stem in the question's
    own language is first. `languages` are the languages of the memories, as indexes in `LATIN`."""
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
    without_ending = (word[: -len(end)] for end in table.name_endings if word.endswith(end))
    return next(without_ending, stem) if stem else ""


def sentences(text: str) -> list[str]:
    """Return the text's sentences, stripped; an empty list for a blank text."""
    return [part for start, end in pairwise([0, *sentence_ends(text)]) if (part := text[start:end].strip())]


def sentence_at(text: str, at: int) -> tuple[str, int]:
    """Return the first sentence that ends after a position, and the sentence's start; without one, the whole text."""
    start = 0
    for end in chain((match.end() for match in _SENTENCE_END.finditer(text)), (len(text),)):
        sentence = text[start:end].strip()
        begin = text.find(sentence, start)
        if sentence and begin + len(sentence) > at:
            return sentence, begin
        start = end
    return text, 0


def sentence_ends(text: str) -> list[int]:
    """Return the end of each sentence, trailing spaces included. The last end is the end of the text."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return ends if ends and ends[-1] == len(text) else [*ends, len(text)]
