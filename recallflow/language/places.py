"""Positions of words with given stems in a text, by the analysis that finds the stems."""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import NamedTuple, Self

import regex

from recallflow.language.analysis import TURKISH, lower_case, stem_of
from recallflow.language.scripts import BEYOND_LATIN, normalised
from recallflow.language.words import LATIN_WORD, ascii_blanked, has_meaning, latin_stems, pairs, runs, unspaced_table

# A grapheme cluster; or a run of ASCII, without the last letter if other characters follow, which may be its accents.
_CLUSTER = regex.compile(r"[\x00-\x7f]+(?![^\x00-\x7f])|\X")
# The first two limits bound a search to a tenth of a second.
WORDS_MOST = 8_000  # searched distinct words in Latin script, over all texts of a search
CHARACTERS_MOST = 10_000  # searched characters of each text in other scripts
INDEXED_CHARACTERS = 4_000  # longest text whose stems are stored with their positions
_start = itemgetter(1)


class StemMatch(NamedTuple):
    """A word in a text, by its range of characters. In a script without spaces, `stem` is the word itself."""

    stem: str
    start: int
    end: int


def find_stems(texts: Sequence[str], wanted: Sequence[Collection[str]], language: int) -> list[list[StemMatch]]:
    """Return, for each text, its words with one of its `wanted` stems, in text order. `language` is the index in
    `LATIN` of the language in which words in Latin script were analysed."""
    plain = [text.lower() if text.isascii() and language != TURKISH else "" for text in texts]
    found = [[] if low else _find(text, of, language) for low, text, of in zip(plain, texts, wanted, strict=True)]
    ends = [*accumulate(len(low) + 1 for low in plain)]
    # ASCII texts are joined for one search, because most words occur in several texts.
    for stem, start, end in _in_ascii("\n".join(plain), {*chain(*wanted)}, language):
        number = bisect_right(ends, start)
        if stem in wanted[number]:
            begin = ends[number] - len(plain[number]) - 1
            found[number].append(StemMatch(stem, start - begin, end - begin))
    return found


class StemPositions(NamedTuple):
    """The stems of a text's words in text order, with the spans of the words.

    Attributes:
        numbers: one character per word; its code is the number of the word's stem.
        spans: start and end of each word, in one sequence."""

    numbers: str
    spans: Sequence[int]

    @classmethod
    def of(cls, text: str, language: int, number: Callable[[str], int | None]) -> Self | None:
        """Return the words whose stem has a number. Return None for a text that must be searched instead: a long,
        Turkish or non-ASCII text, or one with a stem number beyond Unicode. `language` is as in `find_stems`."""
        if language == TURKISH or not text.isascii() or len(text) > INDEXED_CHARACTERS:
            return None
        blanked, stems, end = ascii_blanked(text), latin_stems[language], 0
        numbers, spans = list[str](), array("H")
        for word in blanked.split():
            start = blanked.find(word, end)
            end = start + len(word)
            if (stem := stems[word]) and (code := number(stem)) is not None:
                if code > sys.maxunicode:
                    return None
                numbers.append(chr(code))
                spans.append(start)
                spans.append(end)
        return cls("".join(numbers), spans)

    def find(self, wanted: Mapping[str, str]) -> dict[str, list[tuple[int, int]]]:
        """Return the spans of words with a wanted stem, by stem, in order. `wanted` maps characters to stems."""
        found = list[tuple[int, str]]()
        for character, stem in wanted.items():
            at = self.numbers.find(character)
            while at >= 0:
                found.append((at, stem))
                at = self.numbers.find(character, at + 1)
        by_stem: dict[str, list[tuple[int, int]]] = {}
        for at, stem in sorted(found):
            by_stem.setdefault(stem, []).append((self.spans[2 * at], self.spans[2 * at + 1]))
        return by_stem


def _in_ascii(lowered: str, wanted: Collection[str], language: int) -> list[tuple[str, int, int]]:
    """Return the stem and span of each word of an ASCII text with a wanted stem, in text order."""
    blanked = f" {ascii_blanked(lowered)} "
    found = []
    for word, stem in _with_stem(blanked.split(), wanted, language).items():
        whole_word, length = f" {word} ", len(word)
        start = blanked.find(whole_word)
        while start >= 0:
            found.append((stem, start, start + length))
            start = blanked.find(whole_word, start + length + 1)
    return sorted(found, key=_start)


def _find(text: str, wanted: Collection[str], language: int) -> list[StemMatch]:
    lowered = lower_case(normalised(text), language)
    if text.isascii() or not BEYOND_LATIN.search(lowered):
        found = _in_latin(lowered, _with_stem(LATIN_WORD.findall(lowered), wanted, language))
    else:
        beginning = lowered
        if len(lowered) > CHARACTERS_MOST:  # cut at a space, so that the last word is complete
            space = lowered.rfind(" ", 0, CHARACTERS_MOST)
            beginning = lowered[: CHARACTERS_MOST if space < 0 else space]
        found = _merged(_in_any(beginning, wanted, language), lowered)
    # If normalisation changed the text, the ranges are mapped back to the original characters.
    return found if normalised(text) == text and len(lowered) == len(text) else _mapped(text, lowered, found, language)


def _with_stem(words: Sequence[str], wanted: Collection[str], language: int) -> dict[str, str]:
    """Return the stem of each word with a wanted stem, among the first WORDS_MOST distinct words."""
    distinct: Collection[str] = {*words}
    if len(distinct) > WORDS_MOST:
        distinct = [*islice(dict.fromkeys(words), WORDS_MOST)]
    stems = map(latin_stems[language].__getitem__, distinct)
    return {word: stem for word, stem in zip(distinct, stems, strict=True) if stem in wanted}


def _in_latin(lowered: str, words: Mapping[str, str]) -> list[StemMatch]:
    """Return the occurrences of whole words with their stems. To search for few words is faster than to split."""
    found: list[StemMatch] = []
    for word, stem in words.items():
        start = lowered.find(word)
        while start >= 0:
            end = start + len(word)
            if not (_is_word_character(lowered[start - 1 : start]) or _is_word_character(lowered[end : end + 1])):
                found.append(StemMatch(stem, start, end))
            start = lowered.find(word, end)
    return sorted(found, key=_start) if len(found) > 1 else found


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def _in_any(lowered: str, wanted: Collection[str], language: int) -> Iterator[tuple[StemMatch, bool]]:
    """Yield each word with a wanted stem, and whether its script has no spaces."""
    table = unspaced_table(lowered)
    for run, unspaced, start in runs(lowered):
        if unspaced:
            for pair, at in pairs(run, table):
                if pair in wanted:
                    yield StemMatch(pair, start + at, start + at + len(pair)), True
                    continue
                for number, character in enumerate(pair):  # a single wanted character matches in every word
                    if character in wanted:
                        yield StemMatch(character, start + at + number, start + at + number + 1), True
        elif has_meaning(run) and (stem := stem_of(run, False, language)) in wanted:
            yield StemMatch(stem, start, start + len(run)), False


def _merged(matches: Iterator[tuple[StemMatch, bool]], lowered: str) -> list[StemMatch]:
    """Merge overlapping pairs of characters into one word."""
    merged: list[StemMatch] = []
    was_unspaced = False
    for match, unspaced in matches:
        if was_unspaced and unspaced and match.start < merged[-1].end:
            start, end = merged[-1].start, max(merged[-1].end, match.end)
            merged[-1] = StemMatch(lowered[start:end], start, end)
        else:
            merged.append(match)
        was_unspaced = unspaced
    return merged


def _mapped(text: str, lowered: str, found: list[StemMatch], language: int) -> list[StemMatch]:
    """Return the ranges in the original text; an empty list if its characters cannot be aligned with `lowered`."""
    origins: list[tuple[int, int]] = []
    for cluster in _CLUSTER.finditer(text):
        start, end = cluster.span()
        if cluster[0].isascii():
            origins += [(at, at + 1) for at in range(start, end)]
        else:
            origins += [(start, end)] * len(lower_case(normalised(cluster[0]), language))
    if len(origins) != len(lowered):
        return []
    return [StemMatch(stem, origins[start][0], origins[end - 1][1]) for stem, start, end in found]
