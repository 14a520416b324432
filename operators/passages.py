"""Passages of a long text, for embedding, comparison and display.

A passage has about 80 words at most and ends at the end of a sentence. It starts with the last sentence of the previous
passage, if that is short. A short text is one passage. The number of passages is limited, so those of a very long text
are longer. Words depend on the script: in scripts without blanks, a character counts as half a word."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import regex

from recallflow.language import UNSPACED, sentence_ends

WORDS = 80
MOST = 32  # passages per memory; limits the cost of embedding and storage
SHARED_WORDS = 20  # the longest overlap with the previous passage
_SENTENCE_WORDS = 40  # a longer sentence is cut into parts of `SHARED_WORDS`
_RUN = 64  # the longest word in characters; longer runs count as several

_HALF = 2  # half words per word
_SINGLE = rf"{UNSPACED}\u3001-\u303f\uff01-\uff65"
_SINGLES = regex.compile(f"[{_SINGLE}]")
_ANY_WORD = regex.compile(rf"[{_SINGLE}]|[^\s{_SINGLE}]{{1,{_RUN}}}")


class Passage(NamedTuple):
    """Characters [start, end) of a text. Characters before `own` overlap with the previous passage."""

    start: int
    own: int
    end: int


def passages(text: str) -> list[Passage]:
    """Return the passages of a text, in order. Together they contain all but blanks."""
    if _is_short(text):
        return [Passage(0, 0, len(text))]
    parts = _parts(text)
    total = sum(part.size for part in parts)
    count = min(MOST, -(-total // (WORDS * _HALF)))
    # A part belongs to the passage of its middle. So passages have similar lengths, and none is empty, because a part
    # is shorter than half of the shortest passage.
    before, numbered = 0, []
    for part in parts:
        numbered.append((min((2 * before + part.size) * count // (2 * total), count - 1), part))
        before += part.size
    groups = [[part for _, part in group] for _, group in groupby(numbered, key=lambda one: one[0])]
    lent = [None, *(last if last.size <= SHARED_WORDS * _HALF else None for *_, last in groups[:-1])]
    found = []
    for group, shared in zip(groups, lent, strict=True):
        own, end = group[0].start, group[-1].end
        start = own if shared is None else shared.start
        shown = text[start:end]
        start += len(shown) - len(shown.lstrip())
        found.append(Passage(start, own, start + len(shown.strip())))
    return found


def own_texts(text: str, among: Sequence[Passage]) -> list[str]:
    """Return the text without overlaps, one part per passage."""
    starts = [0, *(passage.own for passage in among[1:]), len(text)]
    return [text[start:end] for start, end in pairwise(starts)]


class _Part(NamedTuple):
    """A sentence, or a part of a long one, with trailing blanks; `size` in half words."""

    start: int
    end: int
    size: int


def _is_short(text: str) -> bool:
    if len(text) < WORDS * _HALF or (text.isascii() and len(text.split()) + len(text) // _RUN <= WORDS):
        return True
    return _size(text) <= WORDS * _HALF


def _size(text: str) -> int:
    if text.isascii():
        words = text.split()
        # Blanks separate words, and a long run without blanks counts as several words.
        more = (
            0 if len(text) <= _RUN or max(map(len, words)) <= _RUN else sum((len(word) - 1) // _RUN for word in words)
        )
        return _HALF * (len(words) + more)
    return _HALF * len(_ANY_WORD.findall(text)) - len(_SINGLES.findall(text))


def _parts(text: str) -> list[_Part]:
    found: list[_Part] = []
    for start, end in pairwise([0, *sentence_ends(text)]):
        size = _size(text[start:end])
        if size <= _SENTENCE_WORDS * _HALF:
            found.append(_Part(start, end, size))
        else:
            found += _cut(text, start, end)
    return found


def _cut(text: str, start: int, end: int) -> list[_Part]:
    """Split a long sentence into parts of some words."""
    found: list[_Part] = []
    size = 0
    has_singles = _SINGLES.search(text, start, end) is not None  # most texts have none, and many words
    for word in _ANY_WORD.finditer(text, start, end):
        worth = 1 if has_singles and _SINGLES.match(word[0]) else _HALF
        if size + worth > SHARED_WORDS * _HALF:
            found.append(_Part(start, word.start(), size))
            start, size = word.start(), 0
        size += worth
    return [*found, _Part(start, end, size)]
