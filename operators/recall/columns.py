"""The semantic signal: a weighted sum of columns, each one value per memory.

All arrays are in conversation order (see `Conversation`), one place per live memory. z() is the z-score over the
owner's memories, so that one set of weights serves owners and embedders alike; sq(b) = b / (b + 5) squashes a BM25
score; base = 0.1·z(cosine) + sq(BM25).

| column | what |
|---|---|
| dense | z(cosine); participants' names in the question stand as I and my before it is embedded |
| word, word_before, word_around | late interaction (`words.py`) with the memory, it and the four before, it and ±2 |
| window_2, window_4 | sq(BM25) of the memory and the ±2, ±4 around it in its episode, as one text |
| bigram | sq(Σ ln(1 + n/df)) over neighbouring stems of the question that the memory holds |
| answers | base of the memory before, where that holds a question |
| back_2 | base of the memory before that |
| speaker, speaker_asks | the question names exactly one participant and it is theirs; and it ends in a question |
| subject | the question names several, and it is by the one it names first |
| date, when | it fits a date in the question; the question asks when, and it tells a time |
| opens | first message of the episode |

BM25 follows Lucene: idf = ln(1 + (n - df + 0.5) / (df + 0.5)), and a term's part is
idf · tf / (tf + k1·(1 - b + b·len/avg)), with k1 = 1.2 and b = 0.3.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.embedder import TextVectors
from recallflow.operators.recall import words
from recallflow.operators.recall.dates import date_column
from recallflow.operators.recall.question import Question
from recallflow.state.index import Conversation, OwnerIndex
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME

Column = npt.NDArray[np.floating[Any]]
Places = npt.NDArray[np.int64]

K1, B = 1.2, 0.3
SQUASH = 5.0
DENSE_IN_BASE = 0.1
RARE = 128  # a word that fewer than one memory in so many holds is not worth a look at all of them
# Late interaction is what a large owner's signal costs most. Above so many memories it is worked out for the permitted
# ones that fit best by the other columns, and stands at its mean, 0, for the rest.
ALL_WORDS = 2_000
CUT = 400
STANDS_IN = 0.5  # of what late interaction weighs: the cosine's part in choosing what to work it out for


@dataclass(frozen=True, slots=True)
class Columns:
    """Column name → (n,) values, and what they sum up to. `complete`: whether they are the same whatever is
    permitted."""

    values: dict[str, Column]
    weights: Mapping[str, float]
    complete: bool = True

    def score(self) -> Column:
        """(n,) weighted sum, in log-odds of being evidence."""
        total: Column = np.zeros(len(next(iter(self.values.values()))))
        for name, column in self.values.items():
            total += self.weights[name] * column
        return total

    def contributions(self, place: int) -> dict[str, float]:
        """What each column adds to one memory's score."""
        return {name: float(self.weights[name] * column[place]) for name, column in self.values.items()}


def compute(
    index: OwnerIndex,
    question: Question,
    query: TextVectors,
    weights: Mapping[str, float],
    permitted: Places | None = None,
) -> Columns:
    """All columns that `weights` names. `query`: of the question's own words. `permitted`: places that may be in the
    answer (default: all)."""
    conversation = index.conversation
    columns = _told(index, question)
    dense = _dense(index, query)
    lexical, windows = _lexical_columns(index, question)
    columns |= windows | {"dense": dense, "bigram": _bigram_column(index, question)}
    base = DENSE_IN_BASE * dense + lexical
    asked = (conversation.facts["flags"] & HAS_QUESTION) != 0
    columns["answers"] = conversation.back(np.where(asked, base, 0.0), 1)
    columns["back_2"] = conversation.back(base, 2)
    found = Columns({name: column for name, column in columns.items() if name in weights}, weights)
    return _with_words(index, question, query, found, dense, permitted)


def _with_words(
    index: OwnerIndex,
    question: Question,
    query: TextVectors,
    found: Columns,
    dense: Column,
    permitted: Places | None,
) -> Columns:
    size = index.conversation.size
    units = words.units(index, question, query)
    if size <= ALL_WORDS:
        worked_out = np.arange(size)
    else:
        late = sum(found.weights.get(name, 0.0) for name in words.NAMES)
        score = found.score() + STANDS_IN * late * dense
        among = np.arange(size) if permitted is None else permitted
        worked_out = among[np.argpartition(-score[among], CUT)[:CUT]] if len(among) > CUT else among
    values = words.columns(index, units, np.sort(worked_out))
    wanted = {name: column for name, column in values.items() if name in found.weights}
    return replace(found, values=found.values | wanted, complete=size <= ALL_WORDS)


# ---------------------------------------------------------------------- vectors


def _dense(index: OwnerIndex, query: TextVectors) -> Column:
    """Z-scores of the cosines over the memories that have a vector; the others stand at the mean."""
    cosines, slots = index.vectors.cosines(query.vector)
    column = np.zeros(index.conversation.size)
    cosines = cosines.astype(np.float64)
    column[index.conversation.places.take(slots)] = words.standard(cosines, cosines)
    return column


# ---------------------------------------------------------------------- stems


def _lexical_columns(index: OwnerIndex, question: Question) -> tuple[Column, dict[str, Column]]:
    """sq(BM25) of each memory, and of the ±2 and ±4 memories around it in its episode taken as one text."""
    conversation = index.conversation
    lengths = index.words.lengths()[conversation.slots].astype(np.float64)
    totals = np.concatenate([[0.0], np.cumsum(lengths)])
    own = Bm25(lengths)
    windows = {reach: Bm25(totals.take(high) - totals.take(low)) for reach, (low, high) in conversation.windows.items()}
    for stem, times in Counter(question.stems).items():
        places = live(conversation, index.words.occurrences(stem))
        own.add(places, places + 1, times)
        for reach, window in windows.items():
            low, high = conversation.windows[reach]
            # What a memory holds, all have around them that are around it.
            window.add(low.take(places), high.take(places), times)
    return own.squashed(), {f"window_{reach}": window.squashed() for reach, window in windows.items()}


def live(conversation: Conversation, slots: npt.NDArray[np.integer[Any]]) -> Places:
    """The places of slots, without those of removed memories."""
    places = conversation.places.take(slots)
    return places[places >= 0] if len(conversation.places) > conversation.size else places


class Bm25:
    """BM25 of texts of these lengths, (n,) words, word by word."""

    def __init__(self, lengths: Column) -> None:
        self._size = len(lengths)
        mean = max(float(lengths.sum()) / max(self._size, 1), 1e-9)
        self._norms = lengths * (K1 * B / mean) + K1 * (1 - B)
        self._scores = np.zeros(self._size)

    def add(self, low: Places, high: Places, times: int) -> None:
        """A word that is asked for so many times. Each of its occurrences is in all texts [low, high)."""
        if not len(low):
            return
        if len(low) * RARE < self._size:
            spread = low + np.arange(int((high - low).max()))[:, np.newaxis]
            held, counts = np.unique(spread[spread < high], return_counts=True)
            self._scores[held] += self._part(counts, self._norms[held], len(held), times)
        else:
            # Where ranges begin less where they have ended by then is how many there are.
            changes = np.bincount(low, minlength=self._size + 1) - np.bincount(high, minlength=self._size + 1)
            counts = np.cumsum(changes)[:-1]
            self._scores += self._part(counts, self._norms, int(np.count_nonzero(counts)), times)

    def _part(self, counts: Places, norms: Column, held: int, times: int) -> Column:
        part: Column = counts / (counts + norms)
        part *= times * words.idf(held, self._size)
        return part

    def squashed(self) -> Column:
        """sq() of the scores, (n,)."""
        squashed: Column = self._scores / (self._scores + SQUASH)
        return squashed


def _bigram_column(index: OwnerIndex, question: Question) -> Column:
    """sq(Σ ln(1 + n/df)) over pairs of neighbouring words that the memory shares with the question."""
    conversation = index.conversation
    found = np.zeros(conversation.size)
    for pair in dict.fromkeys(zip(question.bare_stems, question.bare_stems[1:], strict=False)):
        held = np.unique(live(conversation, index.words.occurrences_of_pair(*pair)))
        found[held] += np.log1p(conversation.size / max(len(held), 1))
    column: Column = found / (found + SQUASH)
    return column


# ---------------------------------------------------------------------- who, when, and where it stands


def _told(index: OwnerIndex, question: Question) -> dict[str, Column]:
    """The columns that rest on what is told with a memory, as far as the question asks for them."""
    facts = index.conversation.facts
    columns: dict[str, Column] = {"opens": index.conversation.opens * 1.0}
    if (speaker := _speaker(index, facts, question)) is not None:
        columns["speaker"] = speaker * 1.0
        columns["speaker_asks"] = (speaker & ((facts["flags"] & ENDS_ASKING) != 0)) * 1.0
    if len(question.named) > 1:
        columns["subject"] = (facts["author"] == index.names.known(question.named[0])) * 1.0
    if question.dates:
        columns["date"] = date_column(facts["created_ms"], question.dates)
    if question.asks_when:
        columns["when"] = ((facts["flags"] & TELLS_TIME) != 0) * 1.0
    return columns


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
