"""BM25 of each memory, and of each memory and its neighbours taken as one text.

Follows Lucene: idf = ln(1 + (n - df + 0.5) / (df + 0.5)), and a word's part is
idf · tf / (tf + k1·(1 - b + b·len/avg)), with k1 = 1.2 and b = 0.3. sq(b) = b / (b + 5) squashes a score to 0..1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.state.index import Conversation, Lengths, OwnerIndex

Column = npt.NDArray[np.floating[Any]]
Places = npt.NDArray[np.int64]

K1, B = 1.2, 0.3
SQUASH = 5.0
NOWHERE: Places = np.zeros(0, np.int64)
_AT_ONCE = 1 << 20  # counts, of some words in all texts that hold any


def bm25_columns(index: OwnerIndex, stems: Sequence[str]) -> dict[int, Column]:
    """sq(BM25), (n,) in conversation order, of the texts of each reach: a memory and so many places to both sides of it
    in its episode. A word that is asked for twice counts twice."""
    conversation, lengths = index.conversation, index.lengths
    times = Counter(stems)
    held = [live(conversation, index.words.occurrences(stem)) for stem in times]
    near = Near(conversation, held)
    scores = {reach: np.zeros(len(near.places)) for reach in lengths}
    weights = np.array([*times.values()], np.float64)
    at_once = max(_AT_ONCE // max(len(near.places), 1), 1)
    for start in range(0, len(held), at_once):
        some = slice(start, start + at_once)
        for reach, counts in near.counts(held[some]):
            scores[reach] += bm25(counts, weights[some], lengths[reach], near.places)
    columns: dict[int, Column] = {}
    for reach, score in scores.items():
        columns[reach] = np.zeros(conversation.size)
        columns[reach][near.places] = score / (score + SQUASH)
    return columns


def bm25(counts: Places, times: Column, lengths: Lengths, places: Places) -> Column:
    """BM25 of the texts at `places`, among all of these lengths. `counts`: (words, len(places)), of all texts that hold
    any of the words; `times`: (words,) how often each is asked for."""
    norms = lengths.words.take(places)
    norms *= K1 * B / lengths.mean
    norms += K1 * (1 - B)
    parts = counts / (counts + norms)
    scores: Column = times * idf(np.count_nonzero(counts, axis=1), len(lengths.words)) @ parts
    return scores


def idf(held: npt.ArrayLike, texts: int) -> Column:
    """Of words that so many of the texts hold."""
    holding = np.asarray(held, np.float64)
    return np.log1p((texts - holding + 0.5) / (holding + 0.5))


def live(conversation: Conversation, slots: npt.NDArray[np.integer[Any]]) -> Places:
    """The places of slots, without those of removed memories."""
    places = conversation.places.take(slots)
    return places[places >= 0] if len(conversation.places) > conversation.size else places


class Near:
    """The `places` of all texts that hold any of some words, rising; no other has a score."""

    def __init__(self, conversation: Conversation, held: Sequence[Places]) -> None:
        """`held`: the place of each of a word's occurrences, word by word."""
        windows, size = conversation.windows, conversation.size + 1
        low, high = windows[max(windows)]
        holding = np.concatenate([NOWHERE, *held])
        # Where windows begin less where they have ended by then is how many there are.
        begun = np.bincount(low.take(holding), minlength=size) - np.bincount(high.take(holding), minlength=size)
        within = begun.cumsum() > 0
        self.places: Places = within.nonzero()[0]
        self._before: Places = within.cumsum()  # how many of `places` are before a place
        self._before -= within
        self._windows = windows

    def counts(self, held: Sequence[Places]) -> Iterator[tuple[int, Places]]:
        """For each reach, how often each word is in the text of each of `places`: (words, places)."""
        width = len(self.places) + 1
        rows = np.repeat(np.arange(len(held)) * width + 1, [len(places) for places in held])
        rows += self._before.take(np.concatenate(held))
        up_to = np.bincount(rows, minlength=len(held) * width).reshape(-1, width).cumsum(axis=1)
        for reach, bounds in self._windows.items():
            low, high = (self._before.take(bound.take(self.places)) for bound in bounds)
            yield reach, up_to.take(high, axis=1) - up_to.take(low, axis=1)
