"""Relevance of each memory, and the probability that the memories hold an answer.

The signal compares an owner's memories with each other, so that its best memory may still be unrelated to the question.
The values here are absolute: a feature depends on the question and on one memory with its neighbours. `relevance`
therefore depends neither on k nor on other parameters of the query. Other memories influence it only by document
frequencies, participants' names and the kind of chat. `answerable` uses the features of the best memories, and the
number of candidates.

A content word of the question, other than a participant's name, has a rarity in nats. Its prior grows with the word's
length. If several memories contain the word, it is lower:

    rarity   min(4 + letters / 2, 7.5, -ln((holders - 1) / (memories + 20)))

| feature of a memory | value |
|---|---|
| coverage | the share of the question's rarity that is in words of the memory |
| window_coverage | the same for the memory and two on each side in its episode, as one text |
| bm25 | BM25 / the question's rarity, with rarity as idf, k1 = 1.2, b = 0.75 and a mean length of 30 words |
| token_match | late interaction (`words.py`) of the question's tokens with the memory's; 0 without tokens |
| window_token_match | the same with the tokens of the memory and the four before it |
| cosine | cosine between the vectors of the question and the memory |
| speaker | 1 if the memory belongs to a participant that the question names, -1 if not; 0 if it names none |
| date | fit of the memory's time to a date in the question, 0 to 1 |
| length, user | ln(1 + words); 1 for a user's message to an assistant |

For a long text, `coverage`, `bm25` and `length` are those of its best passage: the highest `coverage`, then the highest
`bm25`. Unrelated passages of the text therefore do not lower its relevance.

A logit is Σ weight · feature · setting. Settings are properties of the question and its owner that change the weight of
a feature. The probability is 1 / (1 + exp(-logit)). The weights differ by the basis of comparison (`Basis`) and by the
class of chat (`ChatClass`). They come from logistic regression over stores of 1 to 1,000 memories, which have an answer
to half of the questions (`benchmarks/answerable.py`)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from recallflow.operators.recall import relevance_weights as fitted
from recallflow.operators.recall.columns import SAME_DATE, Columns
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.relevance_weights import Basis, ChatClass, WeightKey
from recallflow.operators.recall.weights import chat_of, is_notes
from recallflow.operators.recall.words import K1, term_counts
from recallflow.state.arrays import Column, Floats, Ints, Mask, Positions, Selection, ranges
from recallflow.state.index import NEIGHBOURS, OwnerIndex

BASE_RARITY, RARITY_PER_LETTER, RARITY_MAX = 4.0, 0.5, 7.5  # nats
PRIOR_MEMORIES = 20  # added to the number of memories, so that few memories do not make a word common
SEVERAL_PEOPLE = 3  # authors of memories
MATCH_B, MEAN_LENGTH = 0.75, 30.0
NEAREST = 50  # best memories by signal, which `answerable` uses
JOINT_FACTOR_MAX = 6.0  # see `answerable`; a smaller factor costs AUC (docs/internals/decisions/11)
LIKELY = 0.5  # from this probability of an answer on, there is no warning `nothing_relevant`
UNANSWERABLE = 0.2  # below this probability of an answer, the warning depends on no feature
SEVERAL_WORDS = 3  # to a question of as many words, a relevant memory contains one of them
TWO_WORDS = 2  # to a question of as many words, a relevant memory contains one, or a similar spelling
SIMILAR_SPELLING = 0.4
UNRELATED_COSINE = 0.15  # cosine of unrelated texts, for models that separate them
JOINT_MEMORIES = 5  # memories that may hold the answer jointly
# Features: `constant` is 1; the others are in the table above.
MAXIMA = ("coverage", "window_coverage", "bm25", "token_match", "window_token_match", "cosine", "speaker", "date")
FEATURES = ("constant", *MAXIMA, "length", "user")
# Evidence for `answerable`: the maxima of these features over the nearest memories; features of the nearest one; the
# share of the question's rarity that the best few cover jointly; the share in no memory of the owner; and 1 if neither
# the nearest memories nor their neighbours contain a word of the question.
OF_NEAREST = ("coverage", "bm25", "window_token_match", "cosine")
EVIDENCE = ("constant", *MAXIMA, *(f"nearest {name}" for name in OF_NEAREST), "joint_coverage", "missing", "no_overlap")
# Settings: 1; whether several people write; the number of the question's words, their rarity, and 1 without any; the
# logarithm of the number of memories, and the inverse of this number. All are scaled to about 0 to 1.
SETTINGS = ("constant", "several_people", "word_count", "rarity", "no_words", "memory_count", "inverse_count")


def _matrices(table: fitted.Table, features: Sequence[str]) -> dict[WeightKey, Floats]:
    """Return the weights by key, (settings, features)."""
    found = np.zeros((len(fitted.WEIGHT_KEYS), len(SETTINGS), len(features)))
    for name, weights in table.items():
        feature, _, setting = name.partition(" · ")
        found[:, SETTINGS.index(setting or "constant"), features.index(feature)] = weights
    return dict(zip(fitted.WEIGHT_KEYS, found, strict=True))


_RELEVANCE, _ANSWERABLE = _matrices(fitted.RELEVANCE, FEATURES), _matrices(fitted.ANSWERABLE, EVIDENCE)
_MAXIMUM_ROWS, _NEAREST_ROWS = ([FEATURES.index(name) for name in names] for names in (MAXIMA, OF_NEAREST))


class RelevanceFeatures(NamedTuple):
    values: Floats  # (features, memories) in the order of `FEATURES`
    contains: Mask  # whether each memory contains each stem, (stems, memories)

    def of(self, name: str) -> Column:
        column: Column = self.values[FEATURES.index(name)]
        return column

    def only(self, some: slice) -> "RelevanceFeatures":
        return RelevanceFeatures(self.values[:, some], self.contains[:, some])


class Judge:
    """Computes relevance for one question and one owner.

    Attributes:
        weight_key: selects the weights.
        stems: the stems of the question's content words, other than participants' names.
        rarities: the rarity of each stem; `shares` are their shares of the sum of all.
        occurrences: the positions of each stem's occurrences, in the order of `stems`.
        settings: in the order of `SETTINGS`.
    """

    def __init__(self, index: OwnerIndex, question: Question, columns: Columns, basis: Basis, permitted: int) -> None:
        """`permitted` is the number of memories that may be in the answer."""
        occurrences = {stem: index.stem_occurrences[stem] for stem in question.stems_without_names}
        memories = index.conversation.size
        self.index, self.columns, self.stems = index, columns, [*occurrences]
        self.rarities = np.array([rarity(stem, found.memory_count, memories) for stem, found in occurrences.items()])
        self.occurrences = [found.positions for found in occurrences.values()]
        settings = {
            "constant": 1.0,
            "several_people": float(np.count_nonzero(index.conversation.authors >= 0) >= SEVERAL_PEOPLE),
            "word_count": len(occurrences) / 10,
            "rarity": self.rarities.sum() / 50,
            "no_words": float(not occurrences),
            "memory_count": math.log(max(permitted, 1)) / 7,
            "inverse_count": 1 / max(permitted, 1),
        }
        self.settings = np.array([settings[name] for name in SETTINGS])
        self.shares: Floats = self.rarities / max(settings["rarity"] * 50, 1e-9)
        if basis in ("static", "contextual") and not index.tokens.dimension:
            basis = "words"  # the weights for these vectors require token vectors
        self.weight_key: WeightKey = basis, chat_class_of(index, question)

    def features(self, positions: Positions) -> RelevanceFeatures:
        conversation, columns = self.index.conversation, self.columns
        counts, in_window = self._counts(positions)
        words = self.index.words.lengths()[conversation.slots[positions]]
        passage_counts, length = self._best_passages(positions, counts, words)
        coverage, bm25 = self._coverage_and_bm25(passage_counts, length)
        # For spelling, late interaction depends on the owner's other memories, and is not absolute.
        by_token = float(self.weight_key[0] in ("static", "contextual"))
        users = conversation.facts["role"][positions] == self.index.names.number_of("user")
        values = {
            "constant": np.ones(len(positions)),
            "coverage": coverage,
            "window_coverage": self.shares @ in_window,
            "bm25": bm25,
            "token_match": by_token * columns.unscaled("word", positions),
            "window_token_match": by_token * columns.unscaled("word_before", positions),
            "cosine": columns.unscaled("dense", positions),
            "speaker": 2 * columns.values_or("speaker", positions, absent=0.5) - 1,
            "date": columns.values_or("date", positions, absent=0.0) / SAME_DATE,
            "length": np.log1p(length),
            "user": users * 1.0,
        }
        return RelevanceFeatures(np.array([values[name] for name in FEATURES]), counts > 0)

    def _coverage_and_bm25(self, counts: Ints, words: Ints) -> tuple[Column, Column]:
        """Return `coverage` and `bm25` of texts. `counts` are term frequencies, (stems, texts). `words` are the lengths
        of the texts."""
        norms = K1 * (1 - MATCH_B + MATCH_B * words / MEAN_LENGTH)
        return self.shares @ (counts > 0), self.shares @ (counts * (K1 + 1) / (counts + norms))

    def _best_passages(self, positions: Positions, counts: Ints, words: Ints) -> tuple[Ints, Ints]:
        """Return term frequencies and length of the best passage at each position. `counts` and `words` are those of
        the whole texts."""
        index = self.index
        slots = index.conversation.slots[positions]
        if not index.words.has_parts or not len(self.rarities):
            return counts, words
        parts = index.words.parts()
        has_parts = parts.counts(slots) > 1
        if not has_parts.any():
            return counts, words
        sizes = parts.counts(slots[has_parts])
        part_numbers = ranges(parts.firsts[slots[has_parts]], sizes)
        positions_of = [index.words.part_occurrences(stem) for stem in self.stems]
        part_counts, length = term_counts(positions_of, part_numbers, len(parts.starts)), parts.lengths[part_numbers]
        coverage, bm25 = self._coverage_and_bm25(part_counts, length)
        memory_of = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((-bm25, -coverage, memory_of))
        best = order[np.cumsum(sizes) - sizes]
        counts, words = counts.copy(), words.copy()
        counts[:, has_parts], words[has_parts] = part_counts[:, best], length[best]
        return counts, words

    def _counts(self, positions: Positions) -> tuple[Ints, Mask]:
        """Return term frequencies at each position, and whether it or a neighbour contains each stem, both (stems,
        positions)."""
        conversation = self.index.conversation
        low, high = conversation.window(NEIGHBOURS, positions)
        is_near = np.zeros(conversation.size, np.bool_)
        is_near[ranges(low, high - low)] = True
        (near,) = is_near.nonzero()
        counts = term_counts(self.occurrences, near, conversation.size)
        counts_before = np.zeros((len(counts), len(near) + 1), np.int64)
        counts.cumsum(axis=1, out=counts_before[:, 1:])
        first = near.searchsorted(low)
        in_window = counts_before.take(first + (high - low), axis=1) > counts_before.take(first, axis=1)
        return counts.take(near.searchsorted(positions), axis=1), in_window

    def evidence(self, nearest: RelevanceFeatures) -> Floats:
        """Return the evidence for `answerable`, in the order of `EVIDENCE`. `nearest` are features of the best memories
        by signal, the best first."""
        best = np.argsort(-nearest.of("coverage"), kind="stable")[:JOINT_MEMORIES]
        joint_coverage = self.shares @ nearest.contains[:, best].any(axis=1)
        missing = self.shares @ np.array([not len(found) for found in self.occurrences], np.bool_)
        maxima, of_nearest = nearest.values.take(_MAXIMUM_ROWS, axis=0).max(axis=1), nearest.values[_NEAREST_ROWS, 0]
        no_overlap = not nearest.of("window_coverage").any()
        return np.concatenate([[1.0], maxima, of_nearest, [joint_coverage, missing, no_overlap]])

    def relevance(self, features: RelevanceFeatures) -> Column:
        """Return each memory's probability of being evidence for the question."""
        return probability(self.settings @ _RELEVANCE[self.weight_key] @ features.values)

    def relevance_at(self, positions: Positions) -> Column:
        return self.relevance(self.features(positions))

    def is_unanswerable(self, nearest: RelevanceFeatures, answerable: float) -> bool:
        """Return whether to warn that most likely no memory answers. That is so if the probability of an answer is very
        low. It is also so if the probability is below one half and all of the following hold: the question has at least
        two words; no word occurs near the best memories; no participant whom the question names wrote any of these; and
        either no vector is similar or, if spelling or words alone are compared, the question has three or more words
        or no memory has a similar spelling. A question of a single word is often answered in other words."""
        basis, count = self.weight_key[0], len(self.stems)
        if not count or answerable < UNANSWERABLE:
            return count > 0
        is_near = nearest.of("window_coverage").any() or (nearest.of("speaker") > 0).any()
        if answerable >= LIKELY or count < TWO_WORDS or is_near:
            return False
        if basis in ("spelling", "contextual", "blended") and nearest.of("cosine").max(initial=0.0) < UNRELATED_COSINE:
            return True
        by_words = basis in ("spelling", "blended", "words")
        if not by_words or count >= SEVERAL_WORDS:
            return by_words
        closeness = self.index.words.closest(self.stems, np.sort(self.index.conversation.slots), np.ones(count))
        return not (closeness > SIMILAR_SPELLING).any()

    def answerable(self, nearest: RelevanceFeatures, highest: float) -> float:
        """Return the probability that the memories hold an answer. One memory that is evidence is an answer, so the
        probability is at least that of the most relevant one. Several unlikely memories raise it to at most
        `JOINT_FACTOR_MAX` times that value. `highest` is the highest relevance of the nearest memories."""
        likely = float(probability(self.settings @ _ANSWERABLE[self.weight_key] @ self.evidence(nearest)))
        return min(max(likely, highest), JOINT_FACTOR_MAX * highest)


class Judgement(NamedTuple):
    judge: Judge  # computes the relevance of further memories
    answerable: float | None  # the probability of an answer; None in the mode `recency`
    relevance: Column  # of each ranked memory
    is_unanswerable: bool = False  # whether to warn that most likely no memory answers

    def only(self, chosen: Selection) -> "Judgement":
        return self._replace(relevance=self.relevance[chosen])


def chat_class_of(index: OwnerIndex, question: Question) -> ChatClass:
    """Return the class of chat by the question's script and the memories' authors."""
    if not question.table.has_spaces:
        return "unspaced"
    if is_notes(index):  # checked before the assistant, because the signal treats notes as an assistant's chat
        return "notes"
    return "assistant" if chat_of(index) == "assistant" else "people"


def rarity(stem: str, holders: int, memories: int) -> float:
    """Return a stem's rarity in nats."""
    prior = min(BASE_RARITY + RARITY_PER_LETTER * len(stem), RARITY_MAX)
    return prior if holders < 2 else min(prior, -math.log((holders - 1) / (memories + PRIOR_MEMORIES)))


def probability(logit: Column) -> Column:
    return 1 / (1 + np.exp(-logit))
