"""Late interaction: compares each unit of a question with every unit of a memory, and takes the closest one.

Units are the tokens of a model with token vectors, compared by inner product, or else words, compared by spelling. The
words that answer a question are often a message or two away from its words. A memory's neighbours in its episode
therefore contribute at 0.95 of their value. With m(u, p) for the closeness of unit u to the memory at position p, a
column is the z-score of the weighted mean over the units of:

    word          m(u, p)
    word_before   the maximum of m(u, p) and 0.95·m(u, q) for q up to 4 before p
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Matrix, TextVectors
from recallflow.operators.recall.bm25 import idf
from recallflow.operators.recall.partial_columns import AnyColumn, Scattered
from recallflow.operators.recall.question import Question
from recallflow.state.arrays import Column, Places
from recallflow.state.index import Conversation, OwnerIndex
from recallflow.stepped import spend

MEMORIES_A_READ = 100  # memories whose columns cost as much as reading a record
NAMES = ("word", "word_before")
BEFORE = 4  # positions: a power of 2
LENT = 0.95
SAMPLE_BLOCKS, SAMPLE_BLOCK = 128, 8  # sampled positions for mean and deviation of a large owner


class Standard(NamedTuple):
    """Z-scores with their mean and deviation, which restore the original values."""

    scores: AnyColumn
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Units:
    """A question's units.

    Attributes:
        weights: (units,), with the sum 1.
        stems: the units if there are no token vectors.
        tokens: (units, dimension) unit vectors, or None.
    """

    weights: Column
    stems: tuple[str, ...] = ()
    tokens: Matrix | None = None

    def closest(self, index: OwnerIndex, places: Places) -> Matrix:
        """Return the closeness of each unit to each memory, (units, places), 0 to 1."""
        slots = index.conversation.slots[places]
        if self.tokens is not None:
            return index.tokens.closest(self.tokens, slots, self.weights)
        return index.words.closest(self.stems, slots, self.weights)


def spend_scan(index: OwnerIndex) -> None:
    """Spend the cost of computing a few columns over all of an owner's memories (see `stepped`)."""
    spend(index.conversation.size // MEMORIES_A_READ)


def units(index: OwnerIndex, question: Question, query: TextVectors) -> Units:
    """Return the question's tokens, weighted by vector length, if memories have comparable tokens. Otherwise return its
    stems without participants' names, weighted by idf."""
    if by_token(index, query):
        lengths = np.linalg.norm(query.tokens, axis=1).astype(np.float64)
        heavy = lengths > 0
        tokens = query.tokens[heavy] / lengths[heavy, np.newaxis].astype(np.float32)
        return Units(_shares(lengths[heavy]), tokens=tokens)
    stems = tuple(dict.fromkeys(question.bare_stems))
    return Units(_shares(idf([index.standing[stem].holders for stem in stems], index.conversation.size)), stems)


def by_token(index: OwnerIndex, query: TextVectors) -> bool:
    """Return whether question and memories have comparable token vectors."""
    return bool(query.tokens.shape[1]) and query.tokens.shape[1] == index.tokens.dimension


def _shares(weights: Column) -> Column:
    total = weights.sum()
    shares: Column = weights / total if total > 0 else weights
    return shares


def columns(index: OwnerIndex, units: Units, places: Places) -> dict[str, Standard]:
    """Return the columns, (n,) each: z-scores at `places` (ascending), 0 elsewhere. Mean and deviation are over all
    positions if `places` holds all, else over an evenly spread sample."""
    size = index.conversation.size
    if not len(units.weights) or not size:
        return {name: Standard(Scattered(places[:0], np.zeros(0), size), 0.0, 0.0) for name in NAMES}
    if len(places) == size:
        values = _values(index, units, places)
        return {name: Standard(*standard(column, column)) for name, column in zip(NAMES, values, strict=True)}
    typical = sample(size)
    is_asked = np.zeros(size, np.bool_)
    is_asked[places] = is_asked[typical] = True
    asked = is_asked.nonzero()[0]
    values = _values(index, units, asked)
    at, of_typical = (values.take(np.searchsorted(asked, those), axis=1) for those in (places, typical))
    found = {}
    for name, column, typically in zip(NAMES, at, of_typical, strict=True):
        scores, mean, deviation = standard(column, typically)
        found[name] = Standard(Scattered(places, scores, size), mean, deviation)
    return found


def standard(values: Column, sample: Column) -> tuple[Column, float, float]:
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
def sample(size: int) -> Places:
    """Return positions in blocks, evenly spread. Positions of a block share their neighbours."""
    if size <= SAMPLE_BLOCKS * SAMPLE_BLOCK:
        return np.arange(size)
    firsts = np.linspace(0, size - SAMPLE_BLOCK, SAMPLE_BLOCKS).astype(np.int64)
    return np.unique(firsts[:, np.newaxis] + np.arange(SAMPLE_BLOCK))


def _values(index: OwnerIndex, units: Units, places: Places) -> Column:
    """Return the columns at `places` before the z-score, (2, len(places))."""
    conversation = index.conversation
    needed = _with_neighbours(conversation, places)
    closest = units.closest(index, needed)
    # Whether a position's predecessors contribute: `needed` holds every position between them.
    joined = conversation.follows.take(needed)
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
    at = slice(None) if len(needed) == len(places) else np.searchsorted(needed, places)
    weights = units.weights.astype(np.float32)
    return np.array([(weights @ found)[at] for found in (closest, np.maximum(closest, lent))], np.float64)


def _with_neighbours(conversation: Conversation, places: Places) -> Places:
    """Return the positions and all their contributing predecessors, ascending."""
    if len(places) == conversation.size:
        return places
    needed = np.zeros(conversation.size, np.bool_)
    for step in range(BEFORE + 1):
        needed[np.maximum(places - step, 0)] = True
    return np.flatnonzero(needed)
