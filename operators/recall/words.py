"""Late interaction: each unit of a question is compared with every unit of a memory, and its closest one counts.

Units are the tokens of a model that gives token vectors, compared by their inner product, or else words, compared by
their spelling. What answers a question often stands a message or two away from the words it asks with, so that a
memory's neighbours in its episode may lend theirs, at 0.95 of their worth. With m(u, p) for how close the unit u comes
in the memory at place p, a column is the mean of these over the units, weighted by what each tells, as a z-score:

    word          m(u, p)
    word_before   the best of m(u, p) and 0.95·m(u, q) for q up to 4 before p
    word_around   the best of m(u, p) and 0.95·m(u, q) for q up to 2 before or behind p
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix, TextVectors
from recallflow.operators.recall.question import Question
from recallflow.state.index import Conversation, OwnerIndex

Column = npt.NDArray[np.floating[Any]]
Places = npt.NDArray[np.int64]

NAMES = ("word", "word_before", "word_around")
BEFORE, AROUND = 4, 2  # places
LENT = 0.95
SAMPLE_BLOCKS, SAMPLE_BLOCK = 128, 8  # places whose mean and deviation stand for a large owner's


@dataclass(frozen=True, slots=True)
class Units:
    """A question's units and what each weighs, (units,), summing up to 1. `tokens`: (units, dimension) unit vectors; or
    else `stems`."""

    weights: Column
    stems: tuple[str, ...] = ()
    tokens: Matrix | None = None

    def closest(self, index: OwnerIndex, places: Places) -> Matrix:
        """How close each comes in each memory, (units, places), 0 to 1."""
        slots = index.conversation.slots[places]
        if self.tokens is not None:
            return index.tokens.closest(self.tokens, slots)
        return index.words.closest(self.stems, slots)


def units(index: OwnerIndex, question: Question, query: TextVectors) -> Units:
    """The question's tokens, weighed by their vectors' lengths, where memories have tokens to compare them with; else
    its stems without participants' names, weighed by their rarity."""
    if query.tokens.shape[1] and query.tokens.shape[1] == index.tokens.dimension:
        lengths = np.linalg.norm(query.tokens, axis=1).astype(np.float64)
        heavy = lengths > 0
        tokens = query.tokens[heavy] / lengths[heavy, np.newaxis].astype(np.float32)
        return Units(_shares(lengths[heavy]), tokens=tokens)
    conversation = index.conversation
    stems = tuple(dict.fromkeys(question.bare_stems))
    rarity = [idf(holders(index, stem), conversation.size) for stem in stems]
    return Units(_shares(np.array(rarity)), stems)


def idf(held: int, memories: int) -> float:
    """Lucene's: ln(1 + (n - df + 0.5) / (df + 0.5))."""
    return math.log(1 + (memories - held + 0.5) / (held + 0.5))


def holders(index: OwnerIndex, stem: str) -> int:
    """How many memories hold the stem."""
    slots = index.words.occurrences(stem)
    first = np.ones(len(slots), np.bool_)
    np.not_equal(slots[1:], slots[:-1], out=first[1:])
    return int(np.count_nonzero(first & (index.conversation.places[slots] >= 0)))


def _shares(weights: Column) -> Column:
    total = weights.sum()
    shares: Column = weights / total if total > 0 else weights
    return shares


def columns(index: OwnerIndex, units: Units, places: Places) -> dict[str, Column]:
    """The three columns, (n,) each: z-scores at `places` (rising), 0 elsewhere. Mean and deviation are over all places
    where all are asked for, else over blocks of them, evenly spread."""
    conversation = index.conversation
    found: dict[str, Column] = {name: np.zeros(conversation.size) for name in NAMES}
    if not len(units.weights) or not conversation.size:
        return found
    typical = places if len(places) == conversation.size else sample(conversation.size)
    asked = places if typical is places else np.union1d(places, typical)
    values = _values(index, units, asked)
    at, of_typical = np.searchsorted(asked, places), np.searchsorted(asked, typical)
    for name, column in values.items():
        found[name][places] = standard(column.take(at), column.take(of_typical))
    return found


def standard(values: Column, sample: Column) -> Column:
    """Z-scores by the mean and deviation of a sample."""
    if not len(sample):
        return values
    mean = sample.sum() / len(sample)
    apart = sample - mean
    scores: Column = (values - mean) / (math.sqrt((apart * apart).sum() / len(sample)) + 1e-6)
    return scores


def sample(size: int) -> Places:
    """Places in blocks, so that neighbours serve each other, evenly spread over all."""
    if size <= SAMPLE_BLOCKS * SAMPLE_BLOCK:
        return np.arange(size)
    firsts = np.linspace(0, size - SAMPLE_BLOCK, SAMPLE_BLOCKS).astype(np.int64)
    return np.unique(firsts[:, np.newaxis] + np.arange(SAMPLE_BLOCK))


def _values(index: OwnerIndex, units: Units, places: Places) -> dict[str, Column]:
    """The columns at `places` before the z-score."""
    conversation = index.conversation
    needed = _with_neighbours(conversation, places)
    closest = units.closest(index, needed)
    weights = units.weights.astype(np.float32)
    segment = conversation.segment[needed]
    lent = {way: np.zeros_like(closest) for way in ("before", "around")}
    for step in range(1, BEFORE + 1):
        # `needed` holds every place between a place and its neighbour, so that positions differ as places do.
        near = (needed[step:] - needed[:-step] == step) & (segment[step:] == segment[:-step])
        earlier = closest[:, :-step] * near
        np.maximum(lent["before"][:, step:], earlier, out=lent["before"][:, step:])
        if step <= AROUND:
            np.maximum(lent["around"][:, step:], earlier, out=lent["around"][:, step:])
            later = closest[:, step:] * near
            np.maximum(lent["around"][:, :-step], later, out=lent["around"][:, :-step])
    at = slice(None) if len(needed) == len(places) else np.searchsorted(needed, places)
    columns = {"word": (weights @ closest)[at]}
    for way, others in lent.items():
        others *= np.float32(LENT)
        columns[f"word_{way}"] = (weights @ np.maximum(closest, others, out=others))[at]
    return {name: column.astype(np.float64) for name, column in columns.items()}


def _with_neighbours(conversation: Conversation, places: Places) -> Places:
    """The places and all that may lend to them, rising."""
    if len(places) == conversation.size:
        return places
    needed = np.zeros(conversation.size + BEFORE, np.bool_)
    for step in range(-BEFORE, AROUND + 1):
        needed[places + step] = True  # what would be before the first lands behind the last
    return np.flatnonzero(needed[: conversation.size])
