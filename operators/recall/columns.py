"""The semantic signal: a weighted sum of columns, each one value per memory.

All arrays are in conversation order (see `Conversation`), one place per live memory. z() is the z-score over the
owner's memories, so that one set of weights serves owners and embedders alike; OWN, WINDOW, NEAR and EPISODE are BM25
of the texts of `bm25.py`, s/(s + 5) or a logarithm of it.

| column | what |
|---|---|
| dense | z(cosine); participants' names in the question stand as I and my before it is embedded |
| word, word_before | late interaction (`words.py`) with the memory, and with it and the four before it |
| reply | z(cosine) of the memory after it in its episode, which takes up what it says |
| own, near, episode | logarithms of OWN, NEAR, EPISODE |
| window | WINDOW/(WINDOW + 5) |
| around | the sum of `own` over the two to each side of it in its episode, and again over the four |
| phrase | neighbouring words of the question that are neighbours in it (`phrase_column`), by what its words are worth |
| answers | 0.1·z(cosine) + OWN/(OWN + 5) of the memory before, if another asks there |
| borrowed | what `own` of the memory before is above its own, if another asks there; less if it has many words |
| length | logarithm of how many words it has, less its mean |
| speaker, speaker_asks | the question names exactly one participant and it is theirs; and it ends in a question |
| speaker_of_two | the question names one and it is theirs, in chats between just two people, who tell of themselves |
| subject | the question names several, and it is by the one it names first |
| assistant | an assistant said it, not the person whose chat it is |
| date, when | it fits a date in the question; the question asks when, and the memory names a time |
| opens | first message of the episode |

Whose a memory is, `people.py` tells. What a memory outside any episode (a fact of no session) cannot have, `answers`,
`borrowed`, `around` and `opens`, stands at its mean: it counts neither for nor against it.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.embedder import TextVectors
from recallflow.language import DateMention
from recallflow.operators.recall import people, words
from recallflow.operators.recall.bm25 import bm25_scores, logarithm, phrase_column, squashed
from recallflow.operators.recall.partial_columns import AnyColumn, ByEpisode, Neighbouring, Scattered, add_weighted
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.scene import DAY_MS
from recallflow.operators.recall.weights import Weights
from recallflow.state.arrays import Column, Ints, Mask, Places
from recallflow.state.index import OwnerIndex, of_memories
from recallflow.state.rows import ENDS_ASKING, TELLS_TIME

DENSE_IN_BASE = 0.1
AROUND = (2, 4)  # places
STANDS_IN = 0.5  # of what late interaction weighs: the cosine's part in choosing what to work it out for
NEAR_DAYS = 2
BRIEF = 10  # words of an answer that rests on the question alone
SAME_DATE = 2.0  # what the date column is at most
NEAR_DATE = 1.5


class Cut(NamedTuple):
    """Late interaction is what a large owner's signal costs most. Of an owner with more than `above` memories it is
    worked out for the `best` of the permitted ones by the other columns, and stands at its mean, 0, for the rest."""

    above: int
    best: int


CUT = Cut(above=2_000, best=200)  # in every kind of chat, answers are those of all columns


@dataclass(frozen=True, slots=True)
class Columns:
    """Column name → (n,) values, and the weights of their sum: a number each, or (n,) each where memories are of
    several kinds. `complete`: whether they are the same whatever is permitted; `first`: the number of the first
    columns, and their sum, where that is known; `standards`: what the z-scores among them were made with."""

    values: Mapping[str, AnyColumn]
    weights: Weights
    complete: bool = True
    first: tuple[int, Column] | None = None
    standards: Mapping[str, words.Standard] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.values.values())

    def one(self, name: str, places: Places, absent: float) -> Column:
        """A column's values at these places; `absent` where there is no such column."""
        column = self.values.get(name)
        return np.full(len(places), absent) if column is None else column.take(places)

    def absolute(self, name: str, places: Places) -> Column:
        """What a column of z-scores was made of, at these places; 0 where there is no such column."""
        made = self.standards.get(name)
        if made is None:
            return np.zeros(len(places))
        found: Column = made.mean + made.deviation * made.scores.take(places)
        return found

    def score(self) -> Column:
        """(n,) weighted sum, in log-odds of being evidence."""
        if self.complete and not isinstance(next(iter(self.weights.values())), np.ndarray):
            weights = np.array([self.weights[name] for name in self.values], np.float64)
            summed: Column = weights @ np.array([np.asarray(column) for column in self.values.values()])
            return summed
        count, known = self.first or (0, np.zeros(len(next(iter(self.values.values())))))
        total: Column = known.copy()
        for name, column in islice(self.values.items(), count, None):
            add_weighted(total, column, self.weights[name])
        return total

    def contributions(self, places: Places) -> Column:
        """What each column adds to the scores at these places, (columns, places)."""
        return np.array([[weight * value for weight, value in self.at(name, places)] for name in self.values])

    def at(self, name: str, places: Places) -> Iterator[tuple[float, float]]:
        """What a column weighs at each of these places, and its value there."""
        weight = self.weights[name]
        weights = weight.take(places).tolist() if isinstance(weight, np.ndarray) else repeat(weight, len(places))
        return zip(weights, self.values[name].take(places).tolist(), strict=True)


def known(index: OwnerIndex, question: Question) -> Columns:
    """The columns that rest on neither words nor vectors, for what they say: nothing is ranked by them."""
    return Columns(_facts(index, question), {})


def compute(
    index: OwnerIndex,
    question: Question,
    query: TextVectors,
    weights: Weights,
    permitted: Places | None = None,
    cut: Cut = CUT,
) -> Columns:
    """All columns that `weights` names. `query`: of the question's own words. `permitted`: places that may be in the
    answer (default: all)."""
    conversation = index.conversation
    columns: dict[str, AnyColumn] = {**_facts(index, question)}
    words.spend_scan(index)
    dense, *middle = _dense(index, query)
    meaning = words.Standard(dense, *middle)
    columns |= {"dense": dense, "reply": Neighbouring(dense, conversation.goes_on, 1)}
    columns |= _words(index, question, dense, weights)
    words.spend_scan(index)
    complete = conversation.size <= cut.above
    columns = {name: column for name, column in columns.items() if name in weights}
    if complete:  # of few memories, whole columns are the fastest
        columns = {name: np.asarray(column) for name, column in columns.items()}
    found = Columns(columns, weights, complete)
    chosen = np.arange(conversation.size) if complete or permitted is None else permitted
    if not complete and len(chosen) > cut.best:  # the best by the others, with the cosine for late interaction
        found = replace(found, first=(len(found.values), found.score()))
        late = sum(weights.get(name, 0.0) for name in words.NAMES)
        score = -found.score() - STANDS_IN * late * dense
        if len(chosen) < len(score):
            score = score[chosen]
        chosen = np.sort(chosen[np.argpartition(score, cut.best)[: cut.best]])
    values = words.columns(index, words.units(index, question, query), chosen)
    wanted = {name: made.scores for name, made in values.items() if name in weights}
    standards = {name: made for name, made in ({"dense": meaning} | values).items() if name in weights}
    return Columns({**found.values, **wanted}, weights, complete, found.first, standards)


def _words(index: OwnerIndex, question: Question, dense: Column, wanted: Container[str]) -> dict[str, AnyColumn]:
    """The columns that rest on the question's words as they are. What people's chats need, or what an assistant's need,
    is worked out where it is wanted."""
    conversation = index.conversation
    scores, size = bm25_scores(index, question.stems, frozenset(question.bare_stems)), conversation.size
    own, able = Scattered(scores.places, logarithm(scores.own), size), in_episode(index)
    columns: dict[str, AnyColumn] = {
        "own": own,
        "window": Scattered(scores.places, squashed(scores.window), size),
        "near": Scattered(scores.places, logarithm(scores.near), size),
        "episode": ByEpisode(logarithm(scores.episode), conversation.segment),
    }
    if "around" in wanted:
        columns["around"] = people.filled(conversation.around(np.asarray(own), AROUND), able)
    columns["phrase"] = phrase_column(index, question.stems, scores.worth)
    if "answers" in wanted:
        base = DENSE_IN_BASE * dense
        base[scores.places] += squashed(scores.own)
        answers = Neighbouring(base, index.answering, -1)
        columns["answers"] = answers if able is None else people.filled(np.asarray(answers), able)
    if "borrowed" in wanted:
        # Who says much to an assistant says it in words of their own.
        held = np.asarray(own)
        borrowed = np.where(index.answering, _brevity(index) * np.maximum(conversation.before(held) - held, 0.0), 0.0)
        columns["borrowed"] = people.filled(borrowed, able)
    return columns


def _dense(index: OwnerIndex, query: TextVectors) -> tuple[Column, float, float]:
    """Z-scores of the cosines over the memories that have a vector, and their mean and deviation; the others stand at
    the mean."""
    cosines, slots = index.vectors.cosines(query.vector)
    column, places = np.zeros(index.conversation.size), index.conversation.places.take(slots)
    column[places] = cosines
    # Summed up by place: rows stand in another order where the index was loaded anew, and sums of floats would differ.
    if len(places) == len(column):
        return words.standard(column, column)
    there = np.sort(places)
    column[there], mean, deviation = words.standard(inside := column[there], inside)
    return column, mean, deviation


# ---------------------------------------------------------------------- who, when, and where it stands


def _facts(index: OwnerIndex, question: Question) -> dict[str, Column]:
    """The columns that rest on what is known of a memory beside its text, as far as the question asks for them."""
    facts, columns = index.conversation.facts, dict[str, Column](_same_of_all_questions(index))
    if (speaker := _speaker(index, question)) is not None:
        columns["speaker"] = speaker
        columns["speaker_of_two"] = speaker * index.of_two
        columns["speaker_asks"] = speaker * ((facts["flags"] & ENDS_ASKING) != 0)
    if len(question.named) > 1:
        first = question.named[0]
        columns["subject"] = people.theirs(index, people.said_by(index, first), first)
    if question.dates:
        days, of = _days(index)
        columns["date"] = date_column(days, question.dates).take(of)
    if question.asks_when:
        columns["when"] = ((facts["flags"] & TELLS_TIME) != 0) * 1.0
    return columns


@of_memories
def _days(index: OwnerIndex) -> tuple[Ints, Ints]:
    """Return the beginnings of the days (UTC, epoch ms) that memories are of, and which of them each place's is."""
    return np.unique(index.conversation.facts["created_ms"] // DAY_MS * DAY_MS, return_inverse=True)


@of_memories
def _same_of_all_questions(index: OwnerIndex) -> Mapping[str, Column]:
    return {
        "opens": people.filled(index.conversation.opens * 1.0, in_episode(index)),
        "length": index.log_lengths,
        "assistant": index.with_assistant * (index.conversation.facts["role"] == index.names.known("assistant")),
    }


@of_memories
def in_episode(index: OwnerIndex) -> Mask | None:
    """(n,) whether each place's memory is in an episode; None where all are."""
    found: Mask = index.conversation.facts["episode"] >= 0
    return None if found.all() else found


@of_memories
def _brevity(index: OwnerIndex) -> Column:
    """(n,) how near each place's text is to be brief: 1 where it is."""
    found: Column = np.minimum(BRIEF / np.maximum(index.lengths[0].words, 1), 1.0)
    return found


def _speaker(index: OwnerIndex, question: Question) -> Column | None:
    """Whose memories the question is about, where it is about one's alone."""
    about = people.asked_about(index, question)
    if len(about) != 1:
        return None
    (name,) = about
    said = people.said_by(index, name) if question.named else people.users(index)
    return people.theirs(index, said, name)


def date_column(created_ms: npt.NDArray[np.int64], dates: tuple[DateMention, ...]) -> Column:
    """How well each event time (UTC) fits the best of the dates: 2 for the day, 1.5 for the month and within 2 days,
    which is when people tell of a day, 1 for the month, 0.3 for a year alone."""
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
        fit = 1.0 * fits
        if date.day is not None:
            apart = np.abs(day - date.day)
            fit[fits & (apart <= NEAR_DAYS)] = NEAR_DATE
            fit[fits & (apart == 0)] = SAME_DATE
        best = np.maximum(best, fit)
    return best
