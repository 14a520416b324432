"""Scores of memories by the question's words: BM25, and late interaction of words or tokens.

BM25 is computed of each memory, of each memory and its neighbours as one text, and of each episode as one text. The
formula is Lucene's: idf = ln(1 + (n - df + 0.5) / (df + 0.5)), and a word contributes idf · tf / (tf + k1·(1 - b +
b·len/avg)), with k1 = 1.2. A score s enters the signal as s / (s + 5), which saturates for long questions, or as ln(1 +
2.2·s), which does not.

| text | extent | b | enters the signal as |
|---|---|---|---|
| OWN | a memory | 0.75 | both |
| WINDOW | a memory and two on each side in its episode | 0.3 | s / (s + 5) |
| NEAR | the same, without participants' names | 0.75 | ln(1 + 2.2·s) |
| EPISODE | all its episode | 0.75 | ln(1 + 2.2·s) |

Late interaction compares each unit of a question with every unit of a memory, and takes the closest one. Units are the
tokens of a model with token vectors, compared by inner product, or else words, compared by spelling. The words that
answer a question are often a message or two away from its words. A memory's neighbours in its episode therefore
contribute at 0.95 of their value. With m(u, p) for the closeness of unit u to the memory at position p, a column is the
z-score of the weighted mean over the units of:

    word          m(u, p)
    word_before   the maximum of m(u, p) and 0.95·m(u, q) for q up to 4 before p"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix, TextVectors
from recallflow.operators.recall.partial_columns import AnyColumn, SparseColumn
from recallflow.operators.recall.question import Question
from recallflow.state.arrays import Column, Ints, Positions
from recallflow.state.index import NEIGHBOURS, Lengths, OwnerIndex
from recallflow.state.lexical import distinct
from recallflow.stepped import spend

K1 = 1.2
LENIENT_B, B = 0.3, 0.75
SQUASH = 5.0
NO_POSITIONS: Positions = np.zeros(0, np.int64)
COUNTS_PER_READ = 1_000  # counts with the same cost as reading a record
_AT_ONCE = 1 << 19  # counts per batch: of as many words as fit, each in all texts with a score


class Scores(NamedTuple):
    """BM25 scores by text."""

    positions: Positions  # positions of `own`, `window` and `near`, ascending; the scores are 0 elsewhere
    own: Column
    window: Column
    near: Column
    episode: Column  # one score per episode
    worth: float  # the sum of the idf of the question's distinct words among memories


def saturated(scores: Column) -> Column:
    """Map scores to 0 to 1."""
    return scores / (scores + SQUASH)


def logarithm(scores: Column) -> Column:
    """Map scores to 0 and above."""
    found: Column = np.log1p((K1 + 1) * scores)
    return found


def bm25_scores(index: OwnerIndex, stems: Sequence[str], stems_without_names: Collection[str]) -> Scores:
    """Return BM25 of each text. A repeated question word counts repeatedly in a window. `stems_without_names` are
    those that belong to no participant's name."""
    conversation, times = index.conversation, Counter(stems)
    distinct_stems = sorted(times, key=lambda stem: stem not in stems_without_names)  # names last: `near` excludes them
    occurrences = [index.stem_occurrences[stem] for stem in distinct_stems]
    positions_of = [found.positions for found in occurrences]
    near = conversation.near(np.concatenate([NO_POSITIONS, *positions_of]), NEIGHBOURS)  # no other position has a score
    positions: Positions = near.nonzero()[0]
    before = np.zeros(conversation.size + 1, np.int64)  # number of `positions` before each position
    near.cumsum(out=before[1:])
    repeats = np.array([times[stem] for stem in distinct_stems], np.float64)
    nameless_count = sum(stem in stems_without_names for stem in distinct_stems)
    rarities = idf([found.memory_count for found in occurrences], conversation.size)
    width = len(positions) + 1
    own_lengths, window_lengths = index.lengths[0], index.lengths[NEIGHBOURS]
    norm, norm_near = _norms(own_lengths, positions), _norms(window_lengths, positions)
    norm_window = _norms(window_lengths, positions, LENIENT_B)
    low, high = (before.take(bound) for bound in conversation.window(NEIGHBOURS, positions))
    episodes = distinct(conversation.episode_ordinal.take(positions))
    norm_episode = _norms(index.episode_lengths, episodes)
    begin, end = (before.take(bound.take(episodes)) for bound in (conversation.starts, conversation.ends))
    own, window, nameless_window = np.zeros((3, len(positions)))
    of_episodes = np.zeros(len(conversation.starts))
    words_per_part = max(_AT_ONCE // width, 1)
    for start in range(0, len(positions_of), words_per_part):
        part, in_part = positions_of[start : start + words_per_part], slice(start, start + words_per_part)
        rows = np.repeat(np.arange(len(part)) * width + 1, [len(where) for where in part])
        rows += before.take(np.concatenate(part))
        counts = np.bincount(rows, minlength=len(part) * width)
        # Occurrences of each word up to and including each of `positions`, (words, positions).
        up_to = counts.cumsum(dtype=np.int32).reshape(-1, width)
        own += bm25(counts.reshape(-1, width)[:, 1:], rarities[in_part], norm)
        around = up_to.take(high, axis=1) - up_to.take(low, axis=1)
        rarities_around = idf(_holders(around), conversation.size)
        window += bm25(around, repeats[in_part] * rarities_around, norm_window)
        nameless_in_part = max(nameless_count - start, 0)
        nameless_window += bm25(around[:nameless_in_part], rarities_around[:nameless_in_part], norm_near)
        together = up_to.take(end, axis=1) - up_to.take(begin, axis=1)
        of_episodes[episodes] += bm25(together, idf(_holders(together), len(of_episodes)), norm_episode)
        spend(len(part) * width // COUNTS_PER_READ)
    return Scores(positions, own, window, nameless_window, of_episodes, float(rarities.sum()))


def _holders(counts: npt.NDArray[np.int32]) -> list[int]:
    """Return the document frequency of each word. `counts` are (words, texts)."""
    return [int(np.count_nonzero(row)) for row in counts > 0]


def _norms(lengths: Lengths, texts: Ints, b: float = B) -> Column:
    """Return the length norm of each text, k1·(1 - b + b·len/avg)."""
    norms: Column = lengths.words.take(texts)
    norms *= K1 * b / lengths.mean
    norms += K1 * (1 - b)
    return norms


def bm25(counts: npt.NDArray[np.integer[Any]], worths: Column, norms: Column) -> Column:
    """Return BM25 of texts. `counts` are (words, texts). `worths` are the idf of each word, times its repetitions in
    the question."""
    parts = counts + norms
    scores: Column = worths @ np.divide(counts, parts, out=parts)
    return scores


def phrase_column(index: OwnerIndex, stems: Sequence[str], worth: float = 1.0) -> SparseColumn:
    """Return (n,) Σ ln(1 + n / df) / worth over the question's adjacent pairs of stems that are adjacent in the memory.
    A `worth` of 0 counts as 1."""
    conversation = index.conversation
    slots = (distinct(index.words.adjacent(*pair)) for pair in dict.fromkeys(pairwise(stems)))
    found = [holding for holding in map(conversation.live_positions, slots) if len(holding)]
    positions = distinct(np.sort(np.concatenate([NO_POSITIONS, *found])))
    values = np.zeros(len(positions))
    for holding in found:
        values[positions.searchsorted(holding)] += np.log1p(conversation.size / len(holding)) / (worth or 1.0)
    return SparseColumn(positions, values, conversation.size)


def term_counts(held: Sequence[Positions], positions: Positions, size: int) -> Ints:
    """Return term frequencies at each of `positions`, (words, positions). `held` are positions of occurrences, by word.
    `size` is the number of all positions."""
    width, number = len(positions) + 1, np.full(size, len(positions))  # the last column collects all other positions
    number[positions] = np.arange(len(positions))
    rows = np.repeat(np.arange(len(held)) * width, [*map(len, held)])
    rows += number.take(np.concatenate([NO_POSITIONS, *held]))
    counts = np.bincount(rows, minlength=len(held) * width).reshape(len(held), width)
    return counts.take(number.take(positions), axis=1)  # `positions` may repeat a position


def idf(document_frequencies: npt.ArrayLike, texts: int) -> Column:
    holders = np.asarray(document_frequencies, np.float64)
    return np.log1p((texts - holders + 0.5) / (holders + 0.5))


MEMORIES_PER_READ = 100  # memories whose columns cost as much as reading a record
NAMES = ("word", "word_before")
BEFORE = 4  # positions: a power of 2
LENT = 0.95
SAMPLE_BLOCKS, SAMPLE_BLOCK = 128, 8  # sampled positions for mean and deviation of a large owner


class ZScores(NamedTuple):
    """Z-scores with their mean and deviation, which restore the original values."""

    scores: AnyColumn
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Units:
    weights: Column  # (units,), with the sum 1
    stems: tuple[str, ...] = ()  # the units, if `tokens` is None
    tokens: Matrix | None = None  # (units, dimension) vectors of length 1

    def closest(self, index: OwnerIndex, positions: Positions) -> Matrix:
        """Return the closeness of each unit to each memory, (units, positions), 0 to 1."""
        slots = index.conversation.slots[positions]
        if self.tokens is not None:
            return index.tokens.closest(self.tokens, slots, self.weights)
        return index.words.closest(self.stems, slots, self.weights)


def spend_scan(index: OwnerIndex) -> None:
    """Spend the cost of computing a few columns over all of an owner's memories (see `stepped`)."""
    spend(index.conversation.size // MEMORIES_PER_READ)


def units(index: OwnerIndex, question: Question, query: TextVectors) -> Units:
    """Return the question's tokens, weighted by vector length, if memories have comparable tokens. Otherwise return its
    stems without participants' names, weighted by idf."""
    if compares_tokens(index, query):
        lengths = np.linalg.norm(query.tokens, axis=1).astype(np.float64)
        heavy = lengths > 0
        tokens = query.tokens[heavy] / lengths[heavy, np.newaxis].astype(np.float32)
        return Units(_shares(lengths[heavy]), tokens=tokens)
    stems = tuple(dict.fromkeys(question.stems_without_names))
    return Units(
        _shares(idf([index.stem_occurrences[stem].memory_count for stem in stems], index.conversation.size)), stems
    )


def compares_tokens(index: OwnerIndex, query: TextVectors) -> bool:
    """Return whether question and memories have comparable token vectors."""
    return bool(query.tokens.shape[1]) and query.tokens.shape[1] == index.tokens.dimension


def _shares(weights: Column) -> Column:
    total = weights.sum()
    return weights / total if total > 0 else weights


def columns(index: OwnerIndex, units: Units, positions: Positions) -> dict[str, ZScores]:
    """Return the columns, (n,) each: z-scores at `positions` (ascending), 0 elsewhere. Mean and deviation are over all
    positions if `positions` holds all, else over an evenly spread sample."""
    size = index.conversation.size
    if not len(units.weights) or not size:
        return {name: ZScores(SparseColumn(positions[:0], np.zeros(0), size), 0.0, 0.0) for name in NAMES}
    if len(positions) == size:
        values = _values(index, units, positions)
        return {name: ZScores(*z_scores(column, column)) for name, column in zip(NAMES, values, strict=True)}
    sample = sample_positions(size)
    is_computed = np.zeros(size, np.bool_)
    is_computed[positions] = is_computed[sample] = True
    computed = is_computed.nonzero()[0]
    values = _values(index, units, computed)
    values_at, sampled = (values.take(np.searchsorted(computed, those), axis=1) for those in (positions, sample))
    standards = {}
    for name, column, sampled_column in zip(NAMES, values_at, sampled, strict=True):
        scores, mean, deviation = z_scores(column, sampled_column)
        standards[name] = ZScores(SparseColumn(positions, scores, size), mean, deviation)
    return standards


def z_scores(values: Column, sample: Column) -> tuple[Column, float, float]:
    """Return z-scores by the mean and deviation of a sample, with these two."""
    if not len(sample):
        return values, 0.0, 0.0
    mean = float(sample.sum()) / len(sample)
    apart = sample - mean
    deviation = math.sqrt(float(apart @ apart) / len(sample)) + 1e-6
    scores = apart if values is sample else values - mean
    scores /= deviation
    return scores, mean, deviation


@lru_cache(256)
def sample_positions(size: int) -> Positions:
    """Return positions in blocks, evenly spread. Positions of a block share their neighbours."""
    if size <= SAMPLE_BLOCKS * SAMPLE_BLOCK:
        return np.arange(size)
    firsts = np.linspace(0, size - SAMPLE_BLOCK, SAMPLE_BLOCKS).astype(np.int64)
    return np.unique(firsts[:, np.newaxis] + np.arange(SAMPLE_BLOCK))


def _values(index: OwnerIndex, units: Units, positions: Positions) -> Column:
    """Return the columns at `positions` before the z-score, (2, len(positions))."""
    conversation = index.conversation
    needed = positions
    if len(positions) < conversation.size:  # with all contributing predecessors, ascending
        is_needed = np.zeros(conversation.size, np.bool_)
        for step in range(BEFORE + 1):
            is_needed[np.maximum(positions - step, 0)] = True
        needed = np.flatnonzero(is_needed)
    closest = units.closest(index, needed)
    # Whether the entry of `needed` before each one is its predecessor in the episode, and contributes to it.
    joined = conversation.has_predecessor.take(needed)
    if len(needed) < conversation.size:
        joined[1:] &= needed[1:] - needed[:-1] == 1
    lent = np.zeros_like(closest)
    np.multiply(closest[:, :-1], joined[1:], out=lent[:, 1:])
    reach = 1
    while reach < BEFORE:  # doubles the reach: combines the maximum of each range with that of the range before it
        np.maximum(lent[:, reach:], lent[:, :-reach] * joined[reach:], out=lent[:, reach:])
        joined[reach:] &= joined[:-reach]
        reach *= 2
    lent *= np.float32(LENT)
    at = slice(None) if len(needed) == len(positions) else np.searchsorted(needed, positions)
    weights = units.weights.astype(np.float32)
    return np.array([(weights @ found)[at] for found in (closest, np.maximum(closest, lent))], np.float64)
