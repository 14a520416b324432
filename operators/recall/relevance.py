"""Relevance of each memory, and the probability that the memories hold an answer.

The signal compares an owner's memories with each other, so that its best memory may still be unrelated to the question.
The values here are absolute: a feature depends on the question and on one memory with its neighbours. `relevance`
therefore depends neither on k nor on other parameters of the query. Other memories influence it only by document
frequencies, participants' names and the kind of chat. `answerable` uses the features of the best memories, and the
number of candidates.

A content word of the question, other than a participant's name, has a rarity in nats. The prior grows with the word's
length. Memories that hold the word lower it, from the second one on.

    rarity   min(4 + letters / 2, 7.5, -ln((holders - 1) / (memories + 20)))

| feature of a memory | value |
|---|---|
| covered | the share of the question's rarity in the words that the memory holds |
| around | the same of the memory and two on each side in its episode, as one text |
| match | its BM25 / the question's rarity, with rarity for idf, k1 = 1.2, b = 0.75 and a mean length of 30 words |
| alike, lent | late interaction (`words.py`) of tokens with it, and with it and the four before it; 0 without tokens |
| cosine | of the question's vector and the memory's |
| said | 1 if it belongs to the participant the question is about, -1 if not, 0 if the question names none |
| dated | fit of its time to a date in the question, 0 to 1 |
| length, user | ln(1 + words); 1 for a user's message to an assistant |

For a long text, `covered`, `match` and `length` are those of its best passage: the highest `covered`, then the highest
`match`. Unrelated passages of the text therefore do not lower its relevance.

A logit is Σ weight · feature · setting. Settings are properties of the question and its owner that change the weight of
a feature. The probability is 1 / (1 + exp(-logit)). The weights differ by the basis of comparison (`Basis`) and by the
participants (`Talk`): several people, a user and an assistant, one person (notes), or a script whose words are read as
pairs of characters, which match by chance. They come from logistic regression over stores of 1 to 1,000 memories; half
of the questions have no answer in them (`benchmarks/answerable.py`)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from recallflow.operators.recall.columns import SAME_DATE, Columns
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.relevance_weights import ANSWERABLE, GROUNDS, RELEVANCE, Basis, Ground, Table, Talk
from recallflow.operators.recall.weights import chat_of, is_notes
from recallflow.operators.recall.words import K1, term_counts
from recallflow.state.arrays import Column, Floats, Ints, Mask, Positions, Selection, ranges
from recallflow.state.index import NEIGHBOURS, OwnerIndex

BASE_RARITY, RARITY_PER_LETTER, RARITY_MAX = 4.0, 0.5, 7.5  # nats
PRIOR_MEMORIES = 20  # added to the number of memories, so that few memories do not make a word common
SEVERAL_PEOPLE = 3  # authors of memories
MATCH_B, MEAN_LENGTH = 0.75, 30.0
NEAREST = 50  # memories that `answerable` uses
JOINT_FACTOR_MAX = 6.0  # see `answerable`; a smaller factor costs AUC (docs/internals/decisions/11)
LIKELY = 0.5  # probability of an answer: from this one on there is no warning
UNANSWERABLE = 0.2  # probability of an answer: below this one the warning `nothing_relevant` is given
SEVERAL_WORDS = 3  # with as many question words, a relevant memory would hold one of them
TWO_WORDS = 2  # with as many question words, a relevant memory would hold one, or a similar spelling
SIMILAR_SPELLING = 0.4
UNRELATED_COSINE = 0.15  # cosine of unrelated texts, for models that separate them
JOINT_MEMORIES = 5  # memories that may hold the answer jointly
FEATURES = ("one", "covered", "around", "match", "alike", "lent", "cosine", "said", "dated", "length", "user")
# Features of the nearest memories: the maximum of each; the features of the nearest one; the share of the question's
# rarity that the best few cover jointly; the share that no memory holds; and 1 if neither they nor their neighbours
# hold a word of the question.
HIGHEST = ("covered", "around", "match", "alike", "lent", "cosine", "said", "dated")
FIRST = ("covered", "match", "lent", "cosine")
EVIDENCE = ("one", *HIGHEST, *(f"first {name}" for name in FIRST), "together", "unheard", "apart")
# Settings by which the weight of a feature differs: several people in the chat; the question's number of words, their
# rarity, and 1 without any; the number of memories, and its inverse.
SETTINGS = ("one", "several", "words", "rarity", "wordless", "memories", "few")


def _matrices(table: Table, features: Sequence[str]) -> dict[Ground, Floats]:
    """Return the weights of each ground, (settings, features)."""
    found = np.zeros((len(GROUNDS), len(SETTINGS), len(features)))
    for name, weights in table.items():
        feature, _, setting = name.partition(" · ")
        found[:, SETTINGS.index(setting or "one"), features.index(feature)] = weights
    return dict(zip(GROUNDS, found, strict=True))


_RELEVANCE, _ANSWERABLE = _matrices(RELEVANCE, FEATURES), _matrices(ANSWERABLE, EVIDENCE)
_HIGHEST, _FIRST = ([FEATURES.index(name) for name in names] for names in (HIGHEST, FIRST))


class RelevanceFeatures(NamedTuple):
    values: Floats  # (features, memories) in the order of `FEATURES`
    holds: Mask  # which memory holds which stem, (stems, memories)

    def of(self, name: str) -> Column:
        column: Column = self.values[FEATURES.index(name)]
        return column

    def only(self, some: slice) -> "RelevanceFeatures":
        return RelevanceFeatures(self.values[:, some], self.holds[:, some])


class Judge:
    """Computes relevance for one question and one owner.

    Attributes:
        ground: selects the weights.
        stems: the stems of the question's content words, other than participants' names.
        rarities: the rarity of each stem; `shares` are its shares of the question's rarity.
        holding: the position of each occurrence, by stem.
        settings: in the order of `SETTINGS`.
    """

    def __init__(self, index: OwnerIndex, question: Question, columns: Columns, basis: Basis, permitted: int) -> None:
        """`permitted` is the number of memories that may be in the answer."""
        occurrences = {stem: index.stem_occurrences[stem] for stem in question.stems_without_names}
        memories = index.conversation.size
        self.index, self.columns, self.stems = index, columns, [*occurrences]
        self.rarities = np.array([rarity(stem, found.memory_count, memories) for stem, found in occurrences.items()])
        self.holding = [found.positions for found in occurrences.values()]
        settings = {
            "one": 1.0,
            "several": float(np.count_nonzero(index.conversation.authors >= 0) >= SEVERAL_PEOPLE),
            "words": len(occurrences) / 10,
            "rarity": self.rarities.sum() / 50,
            "wordless": float(not occurrences),
            "memories": math.log(max(permitted, 1)) / 7,
            "few": 1 / max(permitted, 1),
        }
        self.settings = np.array([settings[name] for name in SETTINGS])
        self.shares: Floats = self.rarities / max(settings["rarity"] * 50, 1e-9)
        if basis in ("static", "contextual") and not index.tokens.dimension:
            basis = "words"  # the weights for these vectors require token vectors
        self.ground: Ground = basis, talk_of(index, question)

    def features(self, positions: Positions) -> RelevanceFeatures:
        conversation, columns = self.index.conversation, self.columns
        counts, around = self._counts(positions)
        words = self.index.words.lengths()[conversation.slots[positions]]
        held, length = self._best_passages(positions, counts, words)
        covered, match = self._covered(held, length)
        # For spelling, late interaction depends on the owner's other memories, and is not absolute.
        by_token = float(self.ground[0] in ("static", "contextual"))
        users = conversation.facts["role"][positions] == self.index.names.number_of("user")
        values = {
            "one": np.ones(len(positions)),
            "covered": covered,
            "around": self.shares @ around,
            "match": match,
            "alike": by_token * columns.unscaled("word", positions),
            "lent": by_token * columns.unscaled("word_before", positions),
            "cosine": columns.unscaled("dense", positions),
            "said": 2 * columns.values_or("speaker", positions, absent=0.5) - 1,
            "dated": columns.values_or("date", positions, absent=0.0) / SAME_DATE,
            "length": np.log1p(length),
            "user": users * 1.0,
        }
        return RelevanceFeatures(np.array([values[name] for name in FEATURES]), counts > 0)

    def _covered(self, counts: Ints, words: Ints) -> tuple[Column, Column]:
        """Return `covered` and `match` of texts. `counts` are term frequencies, (stems, texts). `words` are the lengths
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
        covered, match = self._covered(part_counts, length)
        memory_of = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((-match, -covered, memory_of))
        best = order[np.cumsum(sizes) - sizes]
        counts, words = counts.copy(), words.copy()
        counts[:, has_parts], words[has_parts] = part_counts[:, best], length[best]
        return counts, words

    def _counts(self, positions: Positions) -> tuple[Ints, Mask]:
        """Return term frequencies at each position, and whether it or a neighbour holds each stem, both (stems,
        positions)."""
        conversation = self.index.conversation
        low, high = conversation.window(NEIGHBOURS, positions)
        is_near = np.zeros(conversation.size, np.bool_)
        is_near[ranges(low, high - low)] = True
        (near,) = is_near.nonzero()
        counts = term_counts(self.holding, near, conversation.size)
        up_to = np.zeros((len(counts), len(near) + 1), np.int64)
        counts.cumsum(axis=1, out=up_to[:, 1:])
        first = near.searchsorted(low)
        around = up_to.take(first + (high - low), axis=1) > up_to.take(first, axis=1)
        return counts.take(near.searchsorted(positions), axis=1), around

    def evidence(self, nearest: RelevanceFeatures) -> Floats:
        """Return the evidence for `answerable`, in the order of `EVIDENCE`. `nearest` are features of the best memories
        by signal, the best first."""
        best = np.argsort(-nearest.of("covered"), kind="stable")[:JOINT_MEMORIES]
        unheard = np.array([not len(held) for held in self.holding], np.bool_)
        values = nearest.values
        rest = [self.shares @ nearest.holds[:, best].any(axis=1), self.shares @ unheard, not nearest.of("around").any()]
        return np.concatenate(
            [[1.0], values.take(_HIGHEST, axis=0).max(axis=1), values.take(_FIRST, axis=0)[:, 0], rest]
        )

    def relevance(self, features: RelevanceFeatures) -> Column:
        """Return each memory's probability of being evidence for the question."""
        return probability(self.settings @ _RELEVANCE[self.ground] @ features.values)

    def at(self, positions: Positions) -> Column:
        return self.relevance(self.features(positions))

    def is_unanswerable(self, nearest: RelevanceFeatures, answerable: float) -> bool:
        """Return whether to warn that most likely no memory answers. That is so if the probability of an answer is very
        low. It is also so if the probability is below one half and all of the following hold: the question has at least
        two words; no word occurs near the best memories; no participant whom the question names wrote any of these; and
        no memory is similar in vector or spelling. A question of a single word is often answered in other words."""
        if not self.holding or answerable < UNANSWERABLE:
            return bool(self.holding)
        basis, count = self.ground[0], len(self.holding)
        if answerable >= LIKELY or count < TWO_WORDS or nearest.of("around").any() or (nearest.of("said") > 0).any():
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
        likely = float(probability(self.settings @ _ANSWERABLE[self.ground] @ self.evidence(nearest)))
        return min(max(likely, highest), JOINT_FACTOR_MAX * highest)


class Judged(NamedTuple):
    judge: Judge  # computes the relevance of further memories
    answerable: float | None  # the probability of an answer; None in the mode `recency`
    relevance: Column  # of each ranked memory
    is_unanswerable: bool = False  # whether to warn that most likely no memory answers

    def only(self, chosen: Selection) -> "Judged":
        return self._replace(relevance=self.relevance[chosen])


def talk_of(index: OwnerIndex, question: Question) -> Talk:
    """Return the participants' class by the question's script and the memories' authors."""
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
