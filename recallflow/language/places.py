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
from recallflow.language.words import LATIN_WORD, ascii_blanked, counts, latin_stems, pairs, runs, unspaced_table

# A run of ASCII, up to a letter that may carry a mark; or one grapheme cluster.
_CLUSTER = regex.compile(r"[\x00-\x7f]+(?![^\x00-\x7f])|\X")

# The first two limits bound a search to a tenth of a second.
WORDS_MOST = 8_000  # distinct words in Latin script, over all texts of a search
CHARACTERS_MOST = 10_000  # of each text in other scripts
PLACED_CHARACTERS = 4_000  # of a text whose stems are stored with their positions

_start = itemgetter(1)


class StemMatch(NamedTuple):
    """A word in a text: its stem (without spaces, its characters), and its range of characters."""

    kind: str
    start: int
    end: int


def find_stems(texts: Sequence[str], wanted: Sequence[Collection[str]], language: int) -> list[list[StemMatch]]:
    """Return, for each text, its words with a wanted stem, in text order. `language` is the index in `LATIN` of the
    language in which words in Latin script were analysed."""
    plain = [text.lower() if text.isascii() and language != TURKISH else "" for text in texts]
    found = [[] if low else _find(text, of, language) for low, text, of in zip(plain, texts, wanted, strict=True)]
    ends = [*accumulate(len(low) + 1 for low in plain)]
    for kind, start, end in _in_ascii("\n".join(plain), {*chain(*wanted)}, language):  # joined, as most words recur
        number = bisect_right(ends, start)
        if kind in wanted[number]:
            begin = ends[number] - len(plain[number]) - 1
            found[number].append(StemMatch(kind, start - begin, end - begin))
    return found


class StemPositions(NamedTuple):
    """The stems of a text's words in its order, with the spans of the words.

    Attributes:
        numbers: for each word the character whose code is the number of its stem.
        spans: start and end of each word, one after the other.
    """

    numbers: str
    spans: Sequence[int]

    @classmethod
    def of(cls, text: str, language: int, number: Callable[[str], int | None]) -> Self | None:
        """Return the stems that have a number. Return None for a text that must be searched instead: a long, Turkish or
        non-ASCII text, or one with a stem number beyond Unicode. `language` is as in `find_stems`."""
        if language == TURKISH or not text.isascii() or len(text) > PLACED_CHARACTERS:
            return None
        blanked, stem, end = ascii_blanked(text), latin_stems[language], 0
        numbers, spans = list[str](), array("H")
        for word in blanked.split():
            start = blanked.find(word, end)
            end = start + len(word)
            if (kind := stem[word]) and (own := number(kind)) is not None:
                if own > sys.maxunicode:
                    return None
                numbers.append(chr(own))
                spans.append(start)
                spans.append(end)
        return cls("".join(numbers), spans)

    def find(self, wanted: Mapping[str, str]) -> dict[str, list[tuple[int, int]]]:
        """Return the spans of the words that have a wanted stem, by stem, in text order. `wanted` maps the character of
        a stem's number to the stem."""
        found = list[tuple[int, str]]()
        for character, kind in wanted.items():
            at = self.numbers.find(character)
            while at >= 0:
                found.append((at, kind))
                at = self.numbers.find(character, at + 1)
        places: dict[str, list[tuple[int, int]]] = {}
        for at, kind in sorted(found):
            places.setdefault(kind, []).append((self.spans[2 * at], self.spans[2 * at + 1]))
        return places


def _in_ascii(lowered: str, wanted: Collection[str], language: int) -> list[tuple[str, int, int]]:
    """Return the stem and span of each word of an ASCII text with a wanted stem, in text order."""
    blanked = f" {ascii_blanked(lowered)} "
    found = []
    for word, kind in _having(blanked.split(), wanted, language).items():
        standing, length = f" {word} ", len(word)
        start = blanked.find(standing)
        while start >= 0:
            found.append((kind, start, start + length))
            start = blanked.find(standing, start + length + 1)
    return sorted(found, key=_start)


def _find(text: str, wanted: Collection[str], language: int) -> list[StemMatch]:
    lowered = lower_case(normalised(text), language)
    if text.isascii() or not BEYOND_LATIN.search(lowered):
        found = _in_latin(lowered, _having(LATIN_WORD.findall(lowered), wanted, language))
    else:
        beginning = lowered
        if len(lowered) > CHARACTERS_MOST:  # whole words
            blank = lowered.rfind(" ", 0, CHARACTERS_MOST)
            beginning = lowered[: CHARACTERS_MOST if blank < 0 else blank]
        found = _joined(_in_any(beginning, wanted, language), lowered)
    # If normalisation changed the text, the ranges are mapped back to the original characters.
    return found if normalised(text) == text and len(lowered) == len(text) else _moved(text, lowered, found, language)


def _having(every: Sequence[str], wanted: Collection[str], language: int) -> dict[str, str]:
    """Return the stem of each word with a wanted stem, among the first WORDS_MOST distinct words."""
    stem = latin_stems[language]
    known: Collection[str] = {*every}
    if len(known) > WORDS_MOST:
        known = [*islice(dict.fromkeys(every), WORDS_MOST)]
    return {word: kind for word, kind in zip(known, map(stem.__getitem__, known), strict=True) if kind in wanted}


def _in_latin(lowered: str, words: Mapping[str, str]) -> list[StemMatch]:
    """Return the occurrences of whole words with their stems. To search for few words is faster than to split."""
    found: list[StemMatch] = []
    for word, kind in words.items():
        start = lowered.find(word)
        while start >= 0:
            end = start + len(word)
            if not (_is_of_word(lowered[start - 1 : start]) or _is_of_word(lowered[end : end + 1])):
                found.append(StemMatch(kind, start, end))
            start = lowered.find(word, end)
    return sorted(found, key=_start) if len(found) > 1 else found


def _is_of_word(character: str) -> bool:
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
        elif counts(run) and (stem := stem_of(run, False, language)) in wanted:
            yield StemMatch(stem, start, start + len(run)), False


def _joined(found: Iterator[tuple[StemMatch, bool]], lowered: str) -> list[StemMatch]:
    """Merge overlapping pairs of characters into one word."""
    joined: list[StemMatch] = []
    before = False
    for one, unspaced in found:
        if before and unspaced and one.start < joined[-1].end:
            start, end = joined[-1].start, max(joined[-1].end, one.end)
            joined[-1] = StemMatch(lowered[start:end], start, end)
        else:
            joined.append(one)
        before = unspaced
    return joined


def _moved(text: str, lowered: str, found: list[StemMatch], language: int) -> list[StemMatch]:
    """Return the ranges in the original text; an empty list where its characters cannot be aligned."""
    origins: list[tuple[int, int]] = []
    for cluster in _CLUSTER.finditer(text):
        start, end = cluster.span()
        if cluster[0].isascii():
            origins += [(at, at + 1) for at in range(start, end)]
        else:
            origins += [(start, end)] * len(lower_case(normalised(cluster[0]), language))
    if len(origins) != len(lowered):
        return []
    return [StemMatch(kind, origins[start][0], origins[end - 1][1]) for kind, start, end in found]
