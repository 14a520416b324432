"""BM25 of each memory, and of each memory and its neighbours as one text.

The formula is Lucene's: idf = ln(1 + (n - df + 0.5) / (df + 0.5)), and a word's part is
idf · tf / (tf + k1·(1 - b + b·len/avg)), with k1 = 1.2 and b = 0.3. sq(b) = b / (b + 5) squashes a score to 0..1.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.state.arrays import Column, Places
from recallflow.state.index import Conversation, Lengths, OwnerIndex

K1, B = 1.2, 0.3
SQUASH = 5.0
NOWHERE: Places = np.zeros(0, np.int64)
_AT_ONCE = 1 << 20  # counts, of some words in all texts that hold any


def bm25_columns(index: OwnerIndex, stems: Sequence[str]) -> dict[int, Column]:
    """sq(BM25), (n,) in conversation order, of the texts of each reach: a memory and so many places to both sides of it
    in its episode. A word that is asked for twice counts twice."""
    conversation, lengths, times = index.conversation, index.lengths, Counter(stems)
    held = [live(conversation, index.words.occurrences(stem)) for stem in times]  # places, word by word
    near = _near(conversation, held)
    places: Places = near.nonzero()[0]
    before: Places = near.cumsum() - near  # how many of `places` are before a place
    scores = {reach: np.zeros(len(places)) for reach in lengths}
    weights, width = np.array([*times.values()], np.float64), len(places) + 1
    at_once = max(_AT_ONCE // width, 1)
    for start in range(0, len(held), at_once):
        some = held[start : start + at_once]
        rows = np.repeat(np.arange(len(some)) * width + 1, [len(where) for where in some])
        rows += before.take(np.concatenate(some))
        # How often each word stands before each of `places`, (words, width).
        up_to = np.bincount(rows, minlength=len(some) * width).reshape(-1, width).cumsum(axis=1)
        for reach, bounds in conversation.windows.items():
            low, high = (before.take(bound.take(places)) for bound in bounds)
            counts = up_to.take(high, axis=1) - up_to.take(low, axis=1)
            scores[reach] += bm25(counts, weights[start : start + at_once], lengths[reach], places)
    columns: dict[int, Column] = {reach: np.zeros(conversation.size) for reach in lengths}
    for reach, score in scores.items():
        columns[reach][places] = score / (score + SQUASH)
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


def _near(conversation: Conversation, held: Sequence[Places]) -> npt.NDArray[np.bool_]:
    """(n + 1,) whether the widest text around a place holds any of some words; no other has a score."""
    low, high = conversation.windows[max(conversation.windows)]
    holding, size = np.concatenate([NOWHERE, *held]), conversation.size + 1
    # Where windows begin less where they have ended by then is how many there are.
    begun = np.bincount(low.take(holding), minlength=size) - np.bincount(high.take(holding), minlength=size)
    near: npt.NDArray[np.bool_] = begun.cumsum() > 0
    return near
