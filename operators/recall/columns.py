"""The semantic signal: a weighted sum of columns, each with one value per memory.

All arrays are in conversation order (see `Conversation`), with one position per live memory. z() is the z-score over
the owner's memories, so that one set of weights serves all owners and embedders. OWN, WINDOW, NEAR and EPISODE are the
BM25 scores of `words.py`, as s/(s + 5) or a logarithm of s.

| column | value |
|---|---|
| dense | z(cosine); I and my replace participants' names in the question before it is embedded |
| word, word_before | late interaction (`words.py`) with the memory, and with it and the four before it |
| reply | z(cosine) of the next memory in its episode, which is often a reply |
| own, near, episode | logarithms of OWN, NEAR, EPISODE |
| window | WINDOW/(WINDOW + 5) |
| around | the sum of `own` over two memories on each side in its episode, plus the sum over four |
| phrase | adjacent question words that are adjacent in the memory, by idf (`phrase_column`) |
| answers | 0.1·z(cosine) + OWN/(OWN + 5) of the previous memory, if it is another author's question |
| borrowed | how far `own` of the previous memory, another author's question, exceeds its own; less for long texts |
| length | logarithm of the number of words, minus its mean |
| speaker, speaker_asks | 1 if it belongs to the only participant asked about; 1 if it also ends in a question |
| speaker_of_two | `speaker` in chats between two people, who mostly write about themselves |
| subject | 1 if the question names several participants and the memory belongs to the first |
| assistant | 1 if an assistant wrote it in a user's chat |
| date, when | fit to a date in the question; 1 if the question asks when and the memory names a time |
| opens | 1 for the first message of the episode |

`people.py` attributes memories to participants. A memory outside any episode (a fact without a session) has the
column's mean in `answers`, `borrowed`, `around` and `opens`, which is neutral."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from recallflow.embedder import TextVectors
from recallflow.language.analysis import DateMention
from recallflow.operators.recall import people, words
from recallflow.operators.recall.partial_columns import AnyColumn, EpisodeColumn, NeighbourColumn, SparseColumn
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.ranking_input import DAY_MS
from recallflow.operators.recall.weights import Weights
from recallflow.operators.recall.words import bm25_scores, logarithm, phrase_column, saturated
from recallflow.state.arrays import Column, Ints, Mask, Positions
from recallflow.state.index import OwnerIndex, cached_per_index
from recallflow.state.rows import ENDS_ASKING, TELLS_TIME

DENSE_IN_BASE = 0.1
AROUND = (2, 4)  # positions
COSINE_STAND_IN = 0.5  # weight of the cosine in place of late interaction, to select memories for late interaction
NEAR_DAYS = 2
BRIEF = 10  # words of an answer that is understood only with its question
SAME_DATE = 2.0  # maximum of the date column
NEAR_DATE = 1.5
# The bound of late interaction, the costliest part of a large owner's signal. For more memories than `CUT_ABOVE`, it is
# computed for the `CUT_BEST` best permitted memories by the other columns; the rest have the mean, 0. For every kind of
# chat, the answers were verified to equal those without the bound.
CUT_ABOVE, CUT_BEST = 2_000, 200


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a question, and the weights of their sum."""

    values: Mapping[str, AnyColumn]  # (n,) by column name
    weights: Weights  # a number per column, or (n,) per column if memories are of several kinds
    complete: bool = True  # whether the columns are independent of the permitted memories
    partial_sum: tuple[int, Column] | None = None  # the number of the first columns, and their sum, if known
    # mean and deviation of the columns of z-scores
    standards: Mapping[str, words.ZScores] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.values.values())

    def values_or(self, name: str, positions: Positions, absent: float) -> Column:
        """Return a column's values at these positions, or `absent` without such a column."""
        column = self.values.get(name)
        return np.full(len(positions), absent) if column is None else column.take(positions)

    def unscaled(self, name: str, positions: Positions) -> Column:
        """Return a column's values before the z-score at these positions, or 0 without such a column."""
        standard = self.standards.get(name)
        if standard is None:
            return np.zeros(len(positions))
        return standard.mean + standard.deviation * standard.scores.take(positions)

    def score(self) -> Column:
        """Return the weighted sum (n,), in log-odds of being evidence."""
        if self.complete and not isinstance(next(iter(self.weights.values())), np.ndarray):
            weights = np.array([self.weights[name] for name in self.values], np.float64)
            summed: Column = weights @ np.array([np.asarray(column) for column in self.values.values()])
            return summed
        count, known = self.partial_sum or (0, np.zeros(len(next(iter(self.values.values())))))
        total: Column = known.copy()
        for name, column in islice(self.values.items(), count, None):
            if isinstance(column, np.ndarray):
                total += self.weights[name] * column
            else:
                column.add_to(total, self.weights[name])
        return total

    def weighted_values(self, name: str, positions: Positions) -> Iterator[tuple[float, float]]:
        """Return a column's weight and value at each of these positions."""
        weight = self.weights[name]
        weights = weight.take(positions).tolist() if isinstance(weight, np.ndarray) else repeat(weight, len(positions))
        return zip(weights, self.values[name].take(positions).tolist(), strict=True)


def compute(
    index: OwnerIndex, question: Question, query: TextVectors, weights: Weights, permitted: Positions | None = None
) -> Columns:
    """Return all columns that `weights` names. `query` holds the vectors of the question and of its tokens. By default
    all positions are `permitted`."""
    conversation = index.conversation
    columns: dict[str, AnyColumn] = {**fact_columns(index, question)}
    words.spend_scan(index)
    dense, *mean_and_deviation = _dense(index, query)
    cosines = words.ZScores(dense, *mean_and_deviation)
    columns |= {"dense": dense, "reply": NeighbourColumn(dense, conversation.has_successor, 1)}
    columns |= _words(index, question, dense, weights)
    words.spend_scan(index)
    complete = conversation.size <= CUT_ABOVE
    columns = {name: column for name, column in columns.items() if name in weights}
    if complete:  # dense arrays are fastest for few memories
        columns = {name: np.asarray(column) for name, column in columns.items()}
    found = Columns(columns, weights, complete)
    chosen = np.arange(conversation.size) if complete or permitted is None else permitted
    # late interaction for the best memories by the other columns and the cosine
    if not complete and len(chosen) > CUT_BEST:
        found = replace(found, partial_sum=(len(found.values), found.score()))
        late_weight = sum(weights.get(name, 0.0) for name in words.NAMES)
        score = -found.score() - COSINE_STAND_IN * late_weight * dense
        if len(chosen) < len(score):
            score = score[chosen]
        chosen = np.sort(chosen[np.argpartition(score, CUT_BEST)[:CUT_BEST]])
    values = words.columns(index, words.units(index, question, query), chosen)
    wanted = {name: standard.scores for name, standard in values.items() if name in weights}
    standards = {name: standard for name, standard in ({"dense": cosines} | values).items() if name in weights}
    return Columns({**found.values, **wanted}, weights, complete, found.partial_sum, standards)


def _words(index: OwnerIndex, question: Question, dense: Column, wanted: Container[str]) -> dict[str, AnyColumn]:
    """Return the columns of the question's literal words. Columns for one kind of chat are computed only if `wanted`
    holds them."""
    conversation = index.conversation
    scores, size = bm25_scores(index, question.stems, frozenset(question.stems_without_names)), conversation.size
    own, is_in_episode = SparseColumn(scores.positions, logarithm(scores.own), size), in_episode(index)
    columns: dict[str, AnyColumn] = {
        "own": own,
        "window": SparseColumn(scores.positions, saturated(scores.window), size),
        "near": SparseColumn(scores.positions, logarithm(scores.near), size),
        "episode": EpisodeColumn(logarithm(scores.episode), conversation.episode_ordinal),
    }
    if "around" in wanted:
        columns["around"] = people.impute(conversation.neighbourhood_sums(np.asarray(own), AROUND), is_in_episode)
    columns["phrase"] = phrase_column(index, question.stems, scores.worth)
    if "answers" in wanted:
        base = DENSE_IN_BASE * dense
        base[scores.positions] += saturated(scores.own)
        answers = NeighbourColumn(base, index.answers_question, -1)
        columns["answers"] = answers if is_in_episode is None else people.impute(np.asarray(answers), is_in_episode)
    if "borrowed" in wanted:
        # A long message to an assistant does not depend on the words of the previous one.
        own_values = np.asarray(own)
        excess = np.maximum(conversation.before(own_values) - own_values, 0.0)
        borrowed = np.where(index.answers_question, _brevity(index) * excess, 0.0)
        columns["borrowed"] = people.impute(borrowed, is_in_episode)
    return columns


def _dense(index: OwnerIndex, query: TextVectors) -> tuple[Column, float, float]:
    """Return z-scores of the cosines over the memories with a vector, and their mean and deviation. Other memories have
    the mean."""
    cosines, slots = index.vectors.cosines(query.vector)
    column, positions = np.zeros(index.conversation.size), index.conversation.positions.take(slots)
    column[positions] = cosines
    # Summed in conversation order. The order of rows changes when the index is loaded again, and float sums would
    # differ.
    if len(positions) == len(column):
        return words.z_scores(column, column)
    with_vectors = np.sort(positions)
    column[with_vectors], mean, deviation = words.z_scores(compared := column[with_vectors], compared)
    return column, mean, deviation


def fact_columns(index: OwnerIndex, question: Question) -> dict[str, Column]:
    """Return the columns of memories' stored facts that the question uses. They need neither words nor vectors."""
    facts, columns = index.conversation.facts, dict[str, Column](_columns_of_all_questions(index))
    if len(subjects := people.subjects_of(index, question)) == 1:
        written = people.written_by(index, *subjects) if question.named else people.written_by(index, "user", "role")
        speaker = columns["speaker"] = people.attribution(index, written, *subjects)
        columns["speaker_of_two"] = speaker * index.is_chat_of_two
        columns["speaker_asks"] = speaker * ((facts["flags"] & ENDS_ASKING) != 0)
    if len(question.named) > 1:
        first = question.named[0]
        columns["subject"] = people.attribution(index, people.written_by(index, first), first)
    if question.dates:
        days, day_of = _days(index)
        columns["date"] = date_column(days, question.dates).take(day_of)
    if question.asks_when:
        columns["when"] = ((facts["flags"] & TELLS_TIME) != 0) * 1.0
    return columns


@cached_per_index
def _days(index: OwnerIndex) -> tuple[Ints, Ints]:
    """Return the starts of all days (UTC, epoch ms) with memories, and the index of each position's day."""
    return np.unique(index.conversation.facts["created_ms"] // DAY_MS * DAY_MS, return_inverse=True)


@cached_per_index
def _columns_of_all_questions(index: OwnerIndex) -> Mapping[str, Column]:
    return {
        "opens": people.impute(index.conversation.starts_episode * 1.0, in_episode(index)),
        "length": index.log_lengths,
        "assistant": index.is_assistant_chat * (index.conversation.facts["role"] == index.names.number_of("assistant")),
    }


@cached_per_index
def in_episode(index: OwnerIndex) -> Mask | None:
    """Return a mask (n,) of the memories in an episode; None if all are."""
    found: Mask = index.conversation.facts["episode"] >= 0
    return None if found.all() else found


@cached_per_index
def _brevity(index: OwnerIndex) -> Column:
    """Return (n,) 1 for each text of up to `BRIEF` words, and less for longer ones."""
    return np.minimum(BRIEF / np.maximum(index.lengths[0].words, 1), 1.0)


def date_column(created_ms: npt.NDArray[np.int64], dates: tuple[DateMention, ...]) -> Column:
    """Return how well each event time (UTC) fits the best of the dates: 2 for the day, 1.5 within 2 days of it in its
    month (people often write about a day soon after it), 1 for the month, 0.3 for a year alone."""
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
