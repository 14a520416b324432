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
| date, when | it fits a date in the question; the question asks when, and the memory names a time |
| opens | first message of the episode |

Whose a memory is, `people.py` tells. What a memory outside any episode (a fact, say) cannot have, `answers` and
`opens`, stands at its mean: it counts neither for nor against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Kind, TextVectors
from recallflow.language import DateMention
from recallflow.operators.recall import people, words
from recallflow.operators.recall.bm25 import bm25_columns
from recallflow.operators.recall.question import Question
from recallflow.state.arrays import Column, Places
from recallflow.state.index import WINDOW, OwnerIndex
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME

# What the columns weigh, by what the embedder knows. From a softmax regression on LoCoMo's development conversations
# (benchmarks/fit_weights.py), rounded; only their ratios count, and their sum's scale is that of log-odds.
_KINDS: tuple[Kind, ...] = ("spelling", "static", "contextual")
_FITTED = {
    "dense": (0.28, 0.22, -0.07),
    "word": (0.13, 0.29, 0.6),
    "word_before": (0.33, 0.54, 0.81),
    "window": (8.9, 8.45, 6.25),
    "answers": (2.15, 2.2, 1.6),
    "speaker": (2.75, 2.65, 2.65),
    "speaker_asks": (-0.65, -0.55, -0.6),
    "subject": (1.25, 1.25, 1.05),
    "date": (4.55, 4.25, 4.2),
    "when": (2.35, 2.3, 1.95),
    "opens": (1.0, 0.95, 0.75),
}
WEIGHTS: Mapping[Kind, Mapping[str, float]] = MappingProxyType(
    {kind: MappingProxyType({name: fitted[at] for name, fitted in _FITTED.items()}) for at, kind in enumerate(_KINDS)}
)
# What is left to go by without the question's vector.
LEXICAL_WEIGHTS = MappingProxyType({name: weight for name, weight in WEIGHTS["spelling"].items() if name != "dense"})
DENSE_IN_BASE = 0.1
STANDS_IN = 0.5  # of what late interaction weighs: the cosine's part in choosing what to work it out for
NEAR_DAYS = 2


class Cut(NamedTuple):
    """Late interaction is what a large owner's signal costs most. Of an owner with more than `above` memories it is
    worked out for the `best` of the permitted ones by the other columns, and stands at its mean, 0, for the rest."""

    above: int
    best: int


CUT = Cut(above=2_000, best=200)  # benchmarks/candidate_cut.py: answers are those of all columns everywhere


@dataclass(frozen=True, slots=True)
class Columns:
    """Column name → (n,) values, and the weights of their sum. `complete`: whether they are the same whatever is
    permitted; `first`: the first ones, and their sum, where that is known."""

    values: dict[str, Column]
    weights: Mapping[str, float]
    complete: bool = True
    first: tuple[int, Column] | None = None

    def score(self) -> Column:
        """(n,) weighted sum, in log-odds of being evidence."""
        count, known = self.first or (0, np.zeros(len(next(iter(self.values.values())))))
        total: Column = known.copy()
        for name, column in islice(self.values.items(), count, None):
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
    columns = _facts(index, question)
    dense = _dense(index, query)
    lexical = bm25_columns(index, question.stems)
    asked = (conversation.facts["flags"] & HAS_QUESTION) != 0
    columns |= {"dense": dense, "window": lexical[WINDOW]}
    answers = conversation.before(np.where(asked, DENSE_IN_BASE * dense + lexical[0], 0.0))
    columns["answers"] = people.filled(answers, conversation.facts["episode"] >= 0)
    every = np.arange(conversation.size)
    chosen = every if permitted is None else permitted
    found = Columns({name: column for name, column in columns.items() if name in weights}, weights)
    complete = conversation.size <= cut.above
    if complete:
        chosen = every
    elif len(chosen) > cut.best:  # the best by the other columns, with the cosine in place of late interaction
        found = replace(found, first=(len(found.values), found.score()))
        late = sum(weights.get(name, 0.0) for name in words.NAMES)
        score = (found.score() + STANDS_IN * late * dense)[chosen]
        chosen = np.sort(chosen[np.argpartition(-score, cut.best)[: cut.best]])
    values = words.columns(index, words.units(index, question, query), chosen)
    wanted = {name: column for name, column in values.items() if name in weights}
    return Columns(found.values | wanted, weights, complete, found.first)


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


def _facts(index: OwnerIndex, question: Question) -> dict[str, Column]:
    """The columns that rest on what is known of a memory beside its text, as far as the question asks for them."""
    facts = index.conversation.facts
    opens = index.conversation.opens * 1.0
    columns: dict[str, Column] = {"opens": people.filled(opens, facts["episode"] >= 0)}
    if (speaker := _speaker(index, question)) is not None:
        columns["speaker"] = speaker
        columns["speaker_asks"] = speaker * ((facts["flags"] & ENDS_ASKING) != 0)
    if len(question.named) > 1:
        first = question.named[0]
        columns["subject"] = people.theirs(index, people.said_by(index, first), first)
    if question.dates:
        columns["date"] = date_column(facts["created_ms"], question.dates)
    if question.asks_when:
        columns["when"] = ((facts["flags"] & TELLS_TIME) != 0) * 1.0
    return columns


def _speaker(index: OwnerIndex, question: Question) -> Column | None:
    """Whose memories the question is about: those of the one participant it names; or, where it names none and says I,
    of the one user of a chat with an assistant."""
    facts = index.conversation.facts
    if len(question.named) == 1:
        (name,) = question.named
        return people.theirs(index, people.said_by(index, name), name)
    if question.named or not question.first_person:
        return None
    users = facts["role"] == index.names.known("user")
    authors = np.unique(facts["author"][users])
    if len(authors) != 1 or users[facts["author"] >= 0].all():
        return None
    return people.theirs(index, users, index.names.strings[authors[0]])


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
