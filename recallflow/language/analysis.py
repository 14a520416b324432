"""Analysis of texts and questions.

A text is analysed in its own language. A question is analysed in its own language, in the languages of the owner's
memories, and in English, which is assumed for texts of unclear language.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from recallflow.language import stemming
from recallflow.language.detection import detect
from recallflow.language.scripts import BEYOND_LATIN, UNSPACED_LETTER, folded, normalised, script_of
from recallflow.language.tables import BY_SCRIPT, ENGLISH, LATIN, Table
from recallflow.language.words import LATIN_WORD, ascii_words, counts, pairs, runs, unspaced_table

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


class Reading(NamedTuple):
    """Analysis of a text. `stems` are the stems of its content words in order, repeats included. `asks` means that it
    contains a question, `ends_asking` that it ends in one, `tells_time` that it contains a time expression. `language`
    is the index in `LATIN` for words in Latin script; `sure` means that it was detected, not assumed."""

    stems: list[str]
    asks: bool
    ends_asking: bool
    tells_time: bool
    language: int
    sure: bool


def read(text: str, assumed: int = 0) -> Reading:
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
        words = LATIN_WORD.findall(_lowered(text, language))
    stems = [*filter(None, map(stemming.latin[language].__getitem__, words))]
    tells = _tells_time(lowered, stems, [LATIN[language]]) if language else _tells_english_time(lowered, words)
    return Reading(stems, asks, ends, tells, language, sure)


def _read_any(text: str, lowered: str, assumed: int) -> Reading:
    """Analyse a text that contains scripts other than Latin."""
    spaced = [run for run, unspaced in runs(lowered) if not unspaced and len(run) > 1]
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
    return Reading(stems, asks, ends, _tells_time(lowered, stems, tables), language, sure and "latin" in scripts)


def _lowered(text: str, language: int) -> str:
    return (text.replace("I", "ı") if language == TURKISH else text).lower()


def _split(text: str, language: int) -> Iterable[tuple[str, bool]]:
    """Yield each word of a text in any script, and whether its script has no spaces."""
    lowered = _lowered(text, language)
    table = unspaced_table(lowered)
    for run, unspaced in runs(lowered):
        if unspaced:
            for pair in pairs(run, table):
                yield pair, True
        elif counts(run):
            yield run, False


def stem_of(word: str, unspaced: bool, language: int) -> str:
    """Return the stem of a word; an empty string for a function word."""
    if unspaced:
        return word
    if script_of(word) in ("latin", ""):
        return stemming.latin[language][word]
    return stemming.of_script[word]


# ---------------------------------------------------------------------- time


def _tells_english_time(lowered: str, words: list[str]) -> bool:
    return (
        not _TIME_WORDS.isdisjoint(words)
        # Most texts contain no year; this test costs less than a match of each word.
        or (("20" in lowered or "19" in lowered) and any(map(_YEAR.fullmatch, words)))
        or ("this " in lowered and ENGLISH.time_phrases.search(lowered) is not None)
    )


def _time_stems(table: Table) -> frozenset[str]:
    if table in LATIN:
        return frozenset(map(stemming.latin[LATIN.index(table)].__getitem__, table.time_words))
    return frozenset(map(stemming.of_script.__getitem__, table.time_words))


_TIME_STEMS = {table.code: _time_stems(table) - {""} for table in (*LATIN, *BY_SCRIPT.values()) if table.blanks}


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
        words = LATIN_WORD.findall(_lowered(text, language))
        return [*filter(None, map(stemming.latin[language].__getitem__, words))]
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
            others = _others(word, [*tried]) if script_of(word) in ("latin", "") else ()
            found.append(tuple(dict.fromkeys((stem, *others))))
    return found


def _others(word: str, tried: Sequence[int]) -> Iterable[str]:
    for language in tried:
        for spelling in (word, folded(word)):
            if stem := stemming.latin[language][spelling]:
                yield stem


def name_stem(word: str, table: Table) -> str:
    """Return the part of a word or name that is common to its inflected forms in this language."""
    word = normalised(word).lower()
    if script_of(word) not in ("latin", ""):
        return stemming.of_script[word]
    stem = stemming.latin[LATIN.index(table)][word] if table in LATIN else stemming.latin[0][word] or word
    bent = (word[: -len(end)] for end in table.name_endings if word.endswith(end))
    return next(bent, stem) if stem else ""


def sentences(text: str) -> list[str]:
    """Return the text's sentences, stripped; an empty list for a blank text."""
    return [part for start, end in pairwise([0, *sentence_ends(text)]) if (part := text[start:end].strip())]


def sentence_at(text: str, at: int) -> tuple[str, int]:
    """Return the first sentence that ends after a position, stripped, and its start; the whole text if there is
    none."""
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
