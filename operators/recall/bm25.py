"""BM25 of each memory, of each memory and its neighbours as one text, and of each episode as one text.

The formula is Lucene's: idf = ln(1 + (n - df + 0.5) / (df + 0.5)), and a word's part is
idf · tf / (tf + k1·(1 - b + b·len/avg)), with k1 = 1.2. A score s stands as s / (s + 5), which is all but spent on a
long question, or as ln(1 + 2.2·s), which never is.

| text | of | b | stands as |
|---|---|---|---|
| OWN | a memory | 0.75 | both |
| WINDOW | a memory and the two to each side of it in its episode | 0.3 | s / (s + 5) |
| NEAR | the same, without participants' names | 0.75 | ln(1 + 2.2·s) |
| EPISODE | all its episode | 0.75 | ln(1 + 2.2·s) |
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.state.arrays import Column, Floats, Ints, Mask, Places
from recallflow.state.index import WINDOW, Lengths, OwnerIndex, of_memories
from recallflow.state.lexical import distinct
from recallflow.stepped import spend

K1 = 1.2
LENIENT_B, B = 0.3, 0.75
SQUASH = 5.0
NOWHERE: Places = np.zeros(0, np.int64)
COUNTS_A_READ = 1_000  # counts that cost as much as to read a record
_AT_ONCE = 1 << 19  # counts, of some words in all texts that hold any


class Scores(NamedTuple):
    """(n,) BM25 in conversation order, by the text that is scored; and what the question's words are worth together:
    the sum of their idf among memories, each counted once."""

    own: Column
    window: Column
    near: Column
    episode: Column
    worth: float


def squashed(scores: Column) -> Column:
    """0 to 1."""
    found: Column = scores / (scores + SQUASH)
    return found


def logarithm(scores: Column) -> Column:
    """0 and above."""
    found: Column = np.log1p((K1 + 1) * scores)
    return found


def bm25_scores(index: OwnerIndex, stems: Sequence[str], bare: Collection[str]) -> Scores:
    """BM25 of each text. `bare`: the stems that are of no participant's name. In a window, a word that is asked for
    twice counts twice."""
    conversation, norms, times = index.conversation, norms_of(index), Counter(stems)
    standing = [index.standing[stem] for stem in times]
    held = [found.places for found in standing]
    near = _near(conversation.windows[WINDOW], held, conversation.size)
    places: Places = near.nonzero()[0]
    before: Places = near.cumsum() - near  # how many of `places` are before a place
    asked = np.array([*times.values()], np.float64)
    nameless = np.array([stem in bare for stem in times], np.float64)
    rarities = idf([found.holders for found in standing], conversation.size)
    width = len(places) + 1
    found = np.zeros((3, len(places)))
    of_episodes = np.zeros(len(conversation.starts))
    episodes = distinct(conversation.segment.take(places))
    at_once = max(_AT_ONCE // width, 1)
    for start in range(0, len(held), at_once):
        some, these = held[start : start + at_once], slice(start, start + at_once)
        rows = np.repeat(np.arange(len(some)) * width + 1, [len(where) for where in some])
        rows += before.take(np.concatenate(some))
        # How often each word stands at each of `places`, (words, places), and how often before it.
        alone = np.bincount(rows, minlength=len(some) * width).reshape(-1, width).astype(np.float64)
        up_to = alone.cumsum(axis=1)
        low, high = (before.take(bound.take(places)) for bound in conversation.windows[WINDOW])
        around = up_to.take(high, axis=1) - up_to.take(low, axis=1)
        rarities_around = idf((around > 0).sum(axis=1), conversation.size)
        found[0] += bm25(alone[:, 1:], rarities[these], norms.own.take(places))
        found[1] += bm25(around, asked[these] * rarities_around, norms.window.take(places))
        found[2] += bm25(around, nameless[these] * rarities_around, norms.near.take(places))
        low, high = (before.take(bound.take(episodes)) for bound in (conversation.starts, conversation.ends))
        together = up_to.take(high, axis=1) - up_to.take(low, axis=1)
        rarities_together = idf((together > 0).sum(axis=1), len(of_episodes))
        of_episodes[episodes] += bm25(together, rarities_together, norms.episode.take(episodes))
        spend(len(some) * width // COUNTS_A_READ)
    own, window, nameless_window = np.zeros((3, conversation.size))
    for column, score in zip((own, window, nameless_window), found, strict=True):
        column[places] = score
    return Scores(own, window, nameless_window, of_episodes.take(conversation.segment), float(rarities.sum()))


class Norms(NamedTuple):
    """What counts of words are compared with, k1·(1 - b + b·len/avg) of each text: (n,), and of each episode."""

    own: Column
    window: Column
    near: Column
    episode: Column


@of_memories
def norms_of(index: OwnerIndex) -> Norms:
    """Return the norms of all texts of an owner."""
    own, around = index.lengths[0], index.lengths[WINDOW]
    return Norms(_norms(own), _norms(around, LENIENT_B), _norms(around), _norms(index.episode_lengths))


def _norms(lengths: Lengths, b: float = B) -> Column:
    return lengths.words * (K1 * b / lengths.mean) + K1 * (1 - b)


def bm25(counts: Floats, worths: Column, norms: Column) -> Column:
    """BM25 of texts. `counts`: (words, texts); `worths`: (words,) the idf of each among such texts, as often as it
    counts; `norms`: (texts,)."""
    scores: Column = worths @ (counts / (counts + norms))
    return scores


def phrase_column(index: OwnerIndex, stems: Sequence[str]) -> Column:
    """(n,) Σ ln(1 + n / memories that hold it), over the pairs of neighbouring stems of the question that stand side by
    side in the memory."""
    conversation = index.conversation
    column = np.zeros(conversation.size)
    for pair in dict.fromkeys(pairwise(stems)):
        holding = conversation.living(distinct(index.words.adjoining(*pair)))
        if len(holding):
            column[holding] += np.log1p(conversation.size / len(holding))
    return column


def counted(held: Sequence[Places], places: Places, size: int) -> Ints:
    """How often each word stands at each of `places`, (words, places), out of `size` places. `held`: the place of each
    of its occurrences."""
    width, number = len(places) + 1, np.full(size, len(places))  # the last one stands for all other places
    number[places] = np.arange(len(places))
    rows = np.repeat(np.arange(len(held)) * width, [*map(len, held)])
    rows += number.take(np.concatenate([NOWHERE, *held]))
    counts = np.bincount(rows, minlength=len(held) * width).reshape(len(held), width)
    found: Ints = counts.take(number.take(places), axis=1)  # a place may be there several times
    return found


def idf(held: npt.ArrayLike, texts: int) -> Column:
    """Of words that so many of the texts hold."""
    holding = np.asarray(held, np.float64)
    return np.log1p((texts - holding + 0.5) / (holding + 0.5))


def _near(windows: tuple[Places, Places], held: Sequence[Places], size: int) -> Mask:
    """(size + 1,) whether the window around a place holds any of some words; no other has a score."""
    low, high = windows
    holding = np.concatenate([NOWHERE, *held])
    # Where windows begin less where they have ended by then is how many there are.
    begun = np.bincount(low.take(holding), minlength=size + 1) - np.bincount(high.take(holding), minlength=size + 1)
    near: Mask = begun.cumsum() > 0
    return near
