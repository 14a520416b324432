"""The semantic signal: a weighted sum of columns, each one value per memory.

All arrays are in conversation order (see `Conversation`), one place per live memory. z() is the z-score over the
owner's memories, so that one set of weights serves owners and embedders alike; sq(BM25) is that of `bm25.py`;
base = 0.1·z(cosine) + sq(BM25).

| column | what |
|---|---|
| dense | z(cosine); participants' names in the question stand as I and my before it is embedded |
| word, word_before | late interaction (`words.py`) with the memory, and with it and the four before it |
| window | sq(BM25) of the memory and the two to each side of it in its episode, as one text |
| answers | base of the memory before, where that holds a question |
| speaker, speaker_asks | the question names exactly one participant and it is theirs; and it ends in a question |
| subject | the question names several, and it is by the one it names first |
| date, when | it fits a date in the question; the question asks when, and it tells a time |
| opens | first message of the episode |
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.embedder import TextVectors
from recallflow.operators.recall import words
from recallflow.operators.recall.bm25 import Column, Places, bm25_columns
from recallflow.operators.recall.dates import date_column
from recallflow.operators.recall.question import Question
from recallflow.state.index import WINDOW, Facts, OwnerIndex
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME

DENSE_IN_BASE = 0.1
STANDS_IN = 0.5  # of what late interaction weighs: the cosine's part in choosing what to work it out for


class Cut(NamedTuple):
    """Late interaction is what a large owner's signal costs most. Of an owner with more than `above` memories it is
    worked out for the `best` of the permitted ones by the other columns, and stands at its mean, 0, for the rest."""

    above: int
    best: int


CUT = Cut(above=2_000, best=200)  # benchmarks/candidate_cut.py: answers are those of all columns everywhere


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

    def contributions(self, places: Places) -> Column:
        """What each column adds to the scores at these places, (columns, places)."""
        parts = [self.weights[name] * column.take(places) for name, column in self.values.items()]
        return np.array(parts).reshape(len(parts), len(places))


def compute(
    index: OwnerIndex,
    question: Question,
    query: TextVectors,
    weights: Mapping[str, float],
    permitted: Places | None = None,
    cut: Cut = CUT,
) -> Columns:
    """All columns that `weights` names. `query`: of the question's own words. `permitted`: places that may be in the
    answer (default: all)."""
    conversation = index.conversation
    columns = _told(index, question)
    dense = _dense(index, query)
    lexical = bm25_columns(index, question.stems)
    columns |= {"dense": dense, "window": lexical[WINDOW]}
    base = DENSE_IN_BASE * dense + lexical[0]
    asked = (conversation.facts["flags"] & HAS_QUESTION) != 0
    columns["answers"] = conversation.before(np.where(asked, base, 0.0))
    found = Columns({name: column for name, column in columns.items() if name in weights}, weights)
    chosen = _worked_out(found, dense, np.arange(conversation.size) if permitted is None else permitted, cut)
    values = words.columns(index, words.units(index, question, query), chosen)
    wanted = {name: column for name, column in values.items() if name in weights}
    return replace(found, values=found.values | wanted, complete=conversation.size <= cut.above)


def _worked_out(found: Columns, dense: Column, permitted: Places, cut: Cut) -> Places:
    """The places that late interaction is worked out for, rising."""
    if len(dense) <= cut.above:
        return np.arange(len(dense))
    if len(permitted) <= cut.best:
        return permitted
    late = sum(found.weights.get(name, 0.0) for name in words.NAMES)
    score = (found.score() + STANDS_IN * late * dense)[permitted]
    return np.sort(permitted[np.argpartition(-score, cut.best)[: cut.best]])


# ---------------------------------------------------------------------- vectors


def _dense(index: OwnerIndex, query: TextVectors) -> Column:
    """Z-scores of the cosines over the memories that have a vector; the others stand at the mean."""
    cosines, slots = index.vectors.cosines(query.vector)
    column, there = np.zeros(index.conversation.size), np.zeros(index.conversation.size, np.bool_)
    places = index.conversation.places.take(slots)
    column[places], there[places] = cosines, True
    # Summed up by place: rows stand in another order where the index was loaded anew, and sums of floats would differ.
    inside = column[there]
    column[there] = words.standard(inside, inside)
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


def _speaker(index: OwnerIndex, facts: Facts, question: Question) -> npt.NDArray[np.bool_] | None:
    """Whose messages the question is about: the one participant it names; or, where it names none and says I, the one
    user of a chat with an assistant."""
    if len(question.named) == 1:
        mask: npt.NDArray[np.bool_] = facts["author"] == index.names.known(question.named[0])
        return mask
    if question.named or not question.first_person:
        return None
    users = facts["role"] == index.names.known("user")
    return users if len(np.unique(facts["author"][users])) == 1 and not users.all() else None
