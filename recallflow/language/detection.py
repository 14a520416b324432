"""Language detection. Scripts identify most languages; among those in Latin script, function words, common words and
letters do.

A word of n languages counts one nth for each of them. The caller's assumption decides unclear cases.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import regex

from recallflow.language.scripts import BEYOND_LATIN, UNSPACED, normalised
from recallflow.language.tables import BY_SCRIPT, ENGLISH, LATIN, Table
from recallflow.language.words import LATIN_WORD, unspaced_table

WHOLE = 420  # weight of a word of one language; sums of integers do not depend on the order
LEAST = 1.2 * WHOLE  # more than one word, which could be a name or a typing error
MARGIN = 1.3  # minimum ratio of the best score to the second


class Detected(NamedTuple):
    """A language in Latin script, by its index in `LATIN`. `sure` means that it was detected, not assumed."""

    number: int
    sure: bool


_CLEAR, _UNCLEAR = ([Detected(number, sure) for number in range(len(LATIN))] for sure in (True, False))


def _telling() -> dict[str, tuple[tuple[int, int], ...]]:
    known: defaultdict[str, list[int]] = defaultdict(list)
    for number, table in enumerate(LATIN):
        for word in table.function_words | table.common_words:
            if len(word) > 1:
                known[word].append(number)
    return {word: tuple((number, WHOLE // len(numbers)) for number in numbers) for word, numbers in known.items()}


_TELLING = _telling()
_FOREIGN = frozenset(_TELLING) - ENGLISH.function_words
_ENGLISH_ONLY = frozenset(word for word in ENGLISH.function_words if len(_TELLING[word]) == 1)
_LETTERS = {letter: number for number, table in enumerate(LATIN) for letter in table.letters}
_TELLING_LETTER = re.compile(f"[{''.join(_LETTERS)}]")


def detect(words: Collection[str], lowered: str, assumed: int) -> Detected:
    """Return the language of a text with these words. The fast path covers most texts: English with at most one foreign
    word, which may be a name."""
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
