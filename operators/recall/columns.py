"""The semantic signal: a weighted sum of columns, each one value per memory.

All arrays are in conversation order (see `Conversation`), one place per live memory. z() is the z-score over the
owner's memories, so that one set of weights serves every embedder; sq(b) = b / (b + 5) squashes a BM25 score;
base = 0.1·z(cosine) + sq(BM25).

BM25 follows Lucene: idf = ln(1 + (n - df + 0.5) / (df + 0.5)), and a term's part is
idf · tf / (tf + k1·(1 - b + b·len/avg)), with k1 = 1.2 and b = 0.3.

The weights come from a softmax regression on LoCoMo's development conversations (benchmarks/fit_weights.py), rounded;
only their ratios count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix
from recallflow.operators.recall.question import DateMention, Question
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME

Column = npt.NDArray[np.floating[Any]]

K1, B = 1.2, 0.3
SQUASH = 5.0
DENSE_IN_BASE = 0.1
NEAR_DAYS = 2
SAME_WORD = 0.9999  # spelling similarity of a word with itself, but for rounding

# For embedders that know meaning, and for those that know spelling only.
SEMANTIC_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.19,
        "sentence": 0.39,
        "word": 0.19,
        "lexical": -2.6,
        "window_2": 4.4,
        "window_4": 3.8,
        "bigram": 1.2,
        "episode": 1.8,
        "back_2": 0.76,
        "answers": 2.0,
        "speaker": 2.7,
        "speaker_asks": -0.65,
        "date": 4.2,
        "when": 2.3,
        "opens": 0.8,
    }
)
SPELLING_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.26,
        "word": 0.24,
        "lexical": -1.5,
        "window_2": 5.4,
        "window_4": 6.4,
        "bigram": 1.1,
        "episode": 0.21,
        "back_2": 0.71,
        "answers": 2.5,
        "speaker": 2.8,
        "speaker_asks": -0.7,
        "date": 4.4,
        "when": 2.3,
        "opens": 0.9,
    }
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Column name → (n,) values, and what they sum up to."""

    values: dict[str, Column]
    weights: Mapping[str, float]

    def score(self) -> Column:
        """(n,) weighted sum, in log-odds of being evidence."""
        names = [*self.values]
        total: Column = np.array([self.weights[n] for n in names]) @ np.stack([self.values[n] for n in names])
        return total

    def contributions(self, place: int) -> dict[str, float]:
        """What each column adds to one memory's score."""
        return {name: float(self.weights[name] * column[place]) for name, column in self.values.items()}


def compute(index: OwnerIndex, question: Question, query: Matrix, weights: Mapping[str, float]) -> Columns:
    """All columns that `weights` names. `query`: (dimension,) L2-normalised, of the question's own words."""
    conversation, facts = index.conversation, index.conversation.facts
    columns = _vector_columns(index, query, "sentence" in weights)
    lexical, windows = _lexical_columns(index, question)
    columns |= windows | {"lexical": lexical}
    columns["word"] = _z(_word_column(index, question))
    columns["bigram"] = _bigram_column(index, question)
    base = DENSE_IN_BASE * columns["dense"] + lexical
    asked = (facts["flags"] & HAS_QUESTION) != 0
    columns["answers"] = conversation.back(np.where(asked, base, 0.0), 1)
    columns["back_2"] = conversation.back(base, 2)
    columns["episode"] = conversation.best(base)
    columns["opens"] = conversation.opens * 1.0
    if (speaker := _speaker(index, facts, question)) is not None:
        columns["speaker"] = speaker * 1.0
        columns["speaker_asks"] = (speaker & ((facts["flags"] & ENDS_ASKING) != 0)) * 1.0
    if question.dates:
        columns["date"] = date_column(facts["created_ms"], question.dates)
    if question.asks_when:
        columns["when"] = ((facts["flags"] & TELLS_TIME) != 0) * 1.0
    return Columns({name: column for name, column in columns.items() if name in weights}, weights)


# ---------------------------------------------------------------------- vectors


def _vector_columns(index: OwnerIndex, query: Matrix, with_sentences: bool) -> dict[str, Column]:
    slots = index.conversation.slots
    dense = np.full(len(index.ids), np.nan)
    cosines, rows = index.vectors.cosines(query)
    dense[rows] = cosines
    columns = {"dense": _z(dense[slots])}
    if with_sentences:
        best = np.full(len(index.ids), -np.inf)
        cosines, rows = index.sentences.cosines(query)
        np.maximum.at(best, rows, cosines)
        columns["sentence"] = _z(np.where(np.isfinite(best), best, dense)[slots])
    return columns


def _z(values: Column) -> Column:
    """Z-score over the memories that have a value; the others stand at the mean."""
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values))
    some = values[known]
    scored = (values - some.mean()) / (some.std() + 1e-6)
    return np.where(known, scored, 0.0)


# ---------------------------------------------------------------------- words


def _lexical_columns(index: OwnerIndex, question: Question) -> tuple[Column, dict[str, Column]]:
    """sq(BM25) of each memory, and of the ±2 and ±4 memories around it in its episode taken as one text."""
    conversation = index.conversation
    counts = index.words.counts(question.stems)[:, conversation.slots]
    counts = counts[counts.any(axis=1)]
    lengths = index.words.lengths()[conversation.slots].astype(np.float64)
    windows = {
        f"window_{reach}": squashed_bm25(_window_sums(counts, *bounds), _window_sums(lengths, *bounds))
        for reach, bounds in conversation.windows.items()
    }
    return squashed_bm25(counts, lengths), windows


def _window_sums(values: Column, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> Column:
    """Sums of values[..., low:high) along the last axis."""
    totals = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=totals[..., 1:])
    sums: Column = totals.take(high, axis=-1)
    sums -= totals.take(low, axis=-1)
    return sums


def squashed_bm25(counts: Column, lengths: Column) -> Column:
    """counts: (terms, n) occurrences, lengths: (n,) words → (n,) sq(BM25)."""
    if not counts.size:
        return np.zeros(len(lengths))
    idf = _idf(np.count_nonzero(counts, axis=1), len(lengths))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
    scores = idf @ (counts / (counts + norm))
    squashed: Column = scores / (scores + SQUASH)
    return squashed


def _idf(document_frequency: npt.NDArray[Any], documents: int) -> Column:
    idf: Column = np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))
    return idf


def _word_column(index: OwnerIndex, question: Question) -> Column:
    """Σ idf · similarity of each question word to its closest word in the memory."""
    words = list(dict.fromkeys(question.bare_stems))
    if not words:
        return np.zeros(index.conversation.size)
    slots = index.conversation.slots
    closest = index.words.closest(words)[:, slots]
    frequency = np.count_nonzero(closest > SAME_WORD, axis=1)
    column: Column = _idf(frequency, len(slots)) @ closest
    return column


def _bigram_column(index: OwnerIndex, question: Question) -> Column:
    """sq(Σ ln(1 + n/df)) over pairs of neighbouring words that the memory shares with the question."""
    slots = index.conversation.slots
    pairs = list(dict.fromkeys(zip(question.bare_stems, question.bare_stems[1:], strict=False)))
    if not pairs:
        return np.zeros(len(slots))
    held = index.words.pairs(pairs)[:, slots]
    frequency = held.sum(axis=1)
    rarity = np.log1p(np.divide(len(slots), frequency, out=np.zeros(len(pairs)), where=frequency > 0))
    found = rarity @ held
    column: Column = found / (found + SQUASH)
    return column


# ---------------------------------------------------------------------- who and when


def _speaker(index: OwnerIndex, facts: npt.NDArray[Any], question: Question) -> npt.NDArray[np.bool_] | None:
    """Whose messages the question is about: the one participant it names; or, where it names none and says I, the one
    user of a chat with an assistant."""
    if len(question.named) == 1:
        mask: npt.NDArray[np.bool_] = facts["author"] == index.names.known(question.named[0])
        return mask
    if question.named or not question.first_person:
        return None
    users = facts["role"] == index.names.known("user")
    return users if len(np.unique(facts["author"][users])) == 1 and not users.all() else None


def date_column(created_ms: npt.NDArray[np.int64], dates: tuple[DateMention, ...]) -> Column:
    """How well each event time (UTC) fits the best of the dates: 2 for the month and within 2 days, 1 for the month,
    0.3 for a year alone."""
    days = created_ms.astype("datetime64[ms]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    best = np.zeros(len(created_ms))
    for date in dates:
        fits = np.ones(len(created_ms), np.bool_) if date.year is None else year == date.year
        if date.month is None:
            best = np.maximum(best, 0.3 * fits)
            continue
        fits &= month == date.month
        near = fits & (np.abs(day - date.day) <= NEAR_DAYS) if date.day is not None else np.zeros_like(fits)
        best = np.maximum(best, 1.0 * fits + near)
    return best
