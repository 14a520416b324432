"""What is true now: which of the best memories a later one updates, and the order that follows.

"My number is 555 1000." and "My new number is 555 2000." answer the same question; the second one is true now. Of the
best memories each pair is looked at, the older and the newer one, and a logistic regression (`python -m
benchmarks.updates --fit`) gives the probability that the newer one updates the older one. Its features: how much the
two are alike and answer the question; cues of change, end, correction, return and addition in the newer one; numbers
that differ; who speaks, and of whom. A statement about another person never updates one about the writer.

The result depends on the memories that stand and on nothing stored: it is right as of any moment, after a replay, and
after a memory was forgotten.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from recallflow.language.statements import CUES, Cue, StatementReading
from recallflow.operators.recall.update_weights import BIAS, WEIGHTS
from recallflow.queries import Mode
from recallflow.state.arrays import Column, Ints

BEST = 12  # memories that are looked at
FOLLOWED = 4  # of these, whose next message is looked at too: a correction often says little else than "not"
UPDATED_AMONG_MANY, MANY = 0.7, 100  # memories of one person: more of them are alike by chance
UPDATED_IN_CHATS = 0.9  # where several talk: what one says after the other is seldom meant to replace it
KEYWORD = 1
WORDS_MOST = 24  # of a statement that updates, or is updated: long texts are alike by chance
CHANGE_ASKED = 2.0  # log-odds of a change of what the question asks for, which few cases of the fit have
RELATED = 0.25  # the least likeness, or share of words, of statements that are about no common attribute
TYPICAL = 12  # memories: words of fewer count as they would among so many
USUAL_PAIRS, USUAL_MEAN, USUAL_DEVIATION = 30, 0.15, 0.15
SAME_SENTENCE = 0.5  # of the words of the longer one
LISTED, LISTED_SHARE = 3, 0.5  # of so many statements with as much in common each is one of a list
MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})  # the others say themselves how time counts
UPDATED = 0.5  # the least probability: more likely than not
BOOST = "update"


def _bits(*cues: Cue) -> int:
    """Return the bits of kinds of cue in `StatementReading.cues`."""
    return sum(1 << CUES.index(cue) for cue in cues)


_AMENDS, _CHANGED, _RESTORED, _ADDED = _bits("ended", "corrected"), _bits("change"), _bits("restored"), _bits("added")
_CHANGED_OR_ENDED = _bits("change", "ended")

Features = npt.NDArray[np.float64]


class Replacement(NamedTuple):
    """The memory that updates another, by rank or by place, and how probable that is."""

    by: int
    probability: float


class Told(NamedTuple):
    """Memories among which updates are looked for, best first.

    Attributes:
        statements: what they say.
        author: who wrote each, (n,).
        place: where each stands in the conversation, (n,).
        order: the rank of each by age, (n,): of a later one it is higher.
        signal: the log-odds of each, (n,).
    """

    statements: Sequence[StatementReading]
    author: Ints
    place: Ints
    order: Ints
    signal: Column


class Pair(NamedTuple):
    """An older and a newer memory, by rank, of which the newer one may update the older one, and their features."""

    older: int
    newer: int
    values: dict[str, float]


def probabilities(question: StatementReading, told: Told) -> Column:
    """Return (n, n): how probable it is that the memory of the column updates that of the row; 0 where it is older."""
    likely = np.zeros((len(told.statements), len(told.statements)))
    for older, newer, values in features(question, told):
        logit = BIAS + CHANGE_ASKED * values["changes_asked"]
        logit += sum(weight * values[name] for name, weight in WEIGHTS.items())
        likely[older, newer] = 1 / (1 + math.exp(-logit))
    return likely


def features(question: StatementReading, told: Told) -> list[Pair]:
    """Return the pairs of memories of which the newer one may update the older one. Most answers have none or a few, so
    that pairs are compared by plain numbers."""
    compared = _Compared.of(question, told.statements)
    related = (compared.is_related & (told.order[:, None] < told.order)).nonzero()
    pairs = [pair for pair in zip(*map(np.ndarray.tolist, related), strict=True) if compared.may_update(*pair)]
    if not pairs:
        return []
    unlike = compared.likeness()
    return [Pair(older, newer, _values(compared, told, unlike, older, newer)) for older, newer in pairs]


class _Likeness(NamedTuple):
    """How much statements are alike each other: (n, n) ranks of the others by cosine, in each row, from 0; (n, n) what
    they share of words that are not asked for, by rarity; mean and deviation of all cosines."""

    ranks: Ints
    unasked: Features
    mean: float
    deviation: float


class _Compared(NamedTuple):
    """Statements, n of them, beside each other and the question, which have some words between them.

    Attributes:
        question: the question.
        statements: the statements.
        alike: (n, n), cosines of their vectors.
        fits: (n,), cosines with the vector of the question.
        holds: (n, words), 1 where a statement holds the word, else 0.
        held: (n, words), the square root of the word's rarity where a statement holds it, else 0.
        is_asked: (words,), whether the question holds the word.
        share: (n, n), the share of words in common, by rarity, in the statement that has less of them.
        common: (n, n), the number of words in common.
        is_related: (n, n), whether two may be about a common attribute.
    """

    question: StatementReading
    statements: Sequence[StatementReading]
    alike: Features
    fits: Features
    holds: Features
    held: Features
    is_asked: npt.NDArray[np.bool_]
    share: Features
    common: list[list[float]]
    is_related: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, question: StatementReading, statements: Sequence[StatementReading]) -> Self:
        read = [*statements, question]
        vectors = np.concatenate([one.vector for one in read], dtype=np.float64).reshape(len(read), -1)
        cosines = vectors @ vectors.T
        alike = cosines[:-1, :-1]
        holds, worths, is_asked = _words(read)
        held = holds * worths
        shared = held @ held.T
        sums = np.maximum(shared.diagonal(), 1e-9)
        share = shared / np.minimum(sums[:, None], sums)
        is_related = (alike >= RELATED) | (share >= RELATED)
        attributes = [one.attributes for one in statements]
        if any(attributes):
            tells = np.array(attributes)
            is_related |= (tells[:, None] & tells) != 0
        common = (holds @ holds.T).tolist()
        return cls(question, statements, alike, cosines[:-1, -1], holds, held, is_asked, share, common, is_related)

    def may_update(self, older: int, newer: int) -> bool:
        """Return whether a newer statement may update an older one that it is related to."""
        if max(self.common[older][older], self.common[newer][newer]) > WORDS_MOST:
            return False
        is_strange = not self.statements[newer].is_own and self.names_other(older, newer)
        return not is_strange and not self._is_beside(older, newer)

    def names_other(self, older: int, newer: int) -> bool:
        """Return whether the newer statement speaks of a person of whom neither the older one nor the question does."""
        persons = self.statements[newer].persons
        return bool(persons and persons - self.question.persons - self.statements[older].persons)

    def numbers_differ(self, older: int, newer: int) -> bool:
        """Return whether both statements give numbers, and not the same ones."""
        before, now = self.statements[older].numbers, self.statements[newer].numbers
        return bool(before and now) and before != now

    def attributes(self, older: int, newer: int) -> int:
        """Return the marks of the attributes that both statements may tell."""
        return self.statements[older].attributes & self.statements[newer].attributes

    def likeness(self) -> _Likeness:
        """Return how much the statements are alike each other."""
        apart = ~np.eye(len(self.statements), dtype=np.bool_)
        ranks = (-np.where(apart, self.alike, -9)).argsort(1).argsort(1)
        unasked = self.held[:, ~self.is_asked]
        return _Likeness(ranks, unasked @ unasked.T, *_spread(self.alike[apart]))

    def _is_beside(self, older: int, newer: int) -> bool:
        """Return whether the newer statement stands beside the older one.

        It says the same, or less; or it adds something, and speaks of no end or correction; or it has no cue at all,
        and is one of a list ("crate 7 is in shelf 3"), or lacks a word of the question that the older one has, or has
        too few words in common with it to be the same sentence with another value.
        """
        cues, is_keyword = self.statements[newer].cues, len(self.question.words) <= KEYWORD
        before, now, both = self.common[older][older], self.common[newer][newer], self.common[older][newer]
        amends = cues & _AMENDS
        if both == now and (both == before or not (amends or cues & _RESTORED)):
            return True  # "Ana moved" after "Ana moved to Porto"
        if cues & _ADDED and not amends:
            return True
        differ = self.numbers_differ(older, newer) or self.attributes(older, newer) & self.question.attributes
        is_plain = not cues & (_AMENDS | _CHANGED | _RESTORED)
        if is_plain and ((both < SAME_SENTENCE * max(before, now) and not differ) or self._is_listed(newer)):
            return True
        if differ or not (is_plain or is_keyword):
            return False
        return bool((self.holds[older] > self.holds[newer])[self.is_asked].any())

    def _is_listed(self, newer: int) -> bool:
        """Return whether a statement is one of several that have as much in common."""
        own = self.common[newer][newer]
        alike = [row[newer] >= LISTED_SHARE * min(row[at], own) for at, row in enumerate(self.common)]
        return sum(alike) > LISTED


def _values(compared: _Compared, told: Told, likeness: _Likeness, older: int, newer: int) -> dict[str, float]:
    """Return the features of a pair, by name."""
    before, now = compared.statements[older], compared.statements[newer]
    alike, share = float(compared.alike[older, newer]), float(compared.share[older, newer])
    nearest = 1.0 / (1 + int(likeness.ranks[older, newer]))
    older_fits, newer_fits = float(compared.fits[older]), float(compared.fits[newer])
    older_signal, newer_signal = float(told.signal[older]), float(told.signal[newer])
    older_rank, newer_rank = 1.0 / (older + 1), 1.0 / (newer + 1)
    least, ranks = min(older_fits, newer_fits), older_rank * newer_rank
    ended, corrected, restored = (float(now.has(cue)) for cue in ("ended", "corrected", "restored"))
    changes, older_changes = (float(one.cues & _CHANGED_OR_ENDED != 0) for one in (now, before))
    common = compared.attributes(older, newer)
    attribute, asked = float(common != 0), float(common & compared.question.attributes != 0)
    follows = float(told.place[older] + 1 == told.place[newer])
    is_same, own = float(told.author[older] == told.author[newer]), float(now.is_own)
    differ = float(compared.numbers_differ(older, newer))
    others = [float(one.has("others") and not one.is_own) for one in (before, now)]
    names = [float(_is_named(one, compared.question)) for one in (before, now)]
    return {
        "alike": alike,
        "alike_spread": (alike - likeness.mean) / likeness.deviation,
        "nearest": nearest,
        "shared": share,
        "shared_unasked": min(float(likeness.unasked[older, newer]), 10.0) / 5,
        "fits_least": least,
        "older_fits": older_fits,
        "newer_fits": newer_fits,
        "change": float(now.has("change")),
        "ended": ended,
        "corrected": corrected,
        "restored": restored,
        "added": float(now.has("added")) * (1 - max(ended, corrected)),
        "older_changes": older_changes,
        "changes_alike": changes * alike,
        "changes_fits": changes * least,
        "changes_shared": changes * share,
        "changes_nearest": changes * nearest,
        "changes_attribute": changes * attribute,
        "changes_asked": changes * asked,
        "corrected_shared": corrected * share,
        "restored_shared": restored * share,
        "same_author": is_same,
        "other_author_own": (1 - is_same) * own,
        "person": float(compared.names_other(older, newer)),
        "others": max(others[1] - others[0], 0.0),
        "name": max(names[1] - names[0], 0.0),
        "own": own,
        "numbers_differ": differ,
        "older_rank": older_rank,
        "newer_rank": newer_rank,
        "ranks": ranks,
        "older_behind": min(float(told.signal.max()) - older_signal, 8.0) / 8,
        "signals_apart": min(max(older_signal - newer_signal, -8.0), 8.0) / 8,
        "numbers_shared": differ * share,
        "rank_nearest": older_rank * nearest,
        "attribute": attribute,
        "attribute_asked": asked,
        "asked_fits": asked * least,
        "asked_ranks": asked * ranks,
        "follows": follows,
        "follows_corrected": follows * corrected,
        "follows_shared": follows * share,
    }


def _is_named(statement: StatementReading, question: StatementReading) -> bool:
    """Return whether a statement begins with a name that the question lacks, and does not speak of the writer."""
    return statement.name is not None and not statement.is_own and statement.name not in question.words.tolist()


def _words(read: Sequence[StatementReading]) -> tuple[Features, Features, npt.NDArray[np.bool_]]:
    """Return what the statements have in common with each other and with the question, which is the last of `read`.

    Returns:
        (statements, words): 1 where a statement holds the word, else 0.
        (words,): the square root of each word's rarity among the statements.
        (words,): whether the question holds the word.
    """
    every = np.concatenate([one.words for one in read])
    order = every.argsort()
    rising = every[order]
    number = np.empty(len(every), np.int64)
    number[order] = np.concatenate([[0], (rising[1:] != rising[:-1]).cumsum()])[: len(every)]
    count = int(number.max(initial=-1)) + 1
    holds = np.zeros((len(read), count))
    holds[np.repeat(np.arange(len(read)), [len(one.words) for one in read]), number] = 1
    is_asked, holds = holds[-1] > 0, holds[:-1]
    holders = np.maximum(holds.sum(axis=0), 1)
    return holds, np.sqrt(np.log((max(len(holds), TYPICAL) + 1) / holders)), is_asked


def _spread(alike: Features) -> tuple[float, float]:
    """Return mean and deviation of the likeness of different statements; of few, they are near the usual ones."""
    count, usual = len(alike) + USUAL_PAIRS, USUAL_PAIRS
    mean = (alike.sum() + usual * USUAL_MEAN) / count
    variance = (((alike - mean) ** 2).sum() + usual * USUAL_DEVIATION**2) / count
    return float(mean), float(variance**0.5) + 0.05


# ---------------------------------------------------------------------- what follows for an answer


def least(memories: int, *, notes: bool) -> float:
    """Return the least probability that counts for an owner of so many memories. `notes`: one person told them all."""
    if not notes:
        return UPDATED_IN_CHATS
    return UPDATED_AMONG_MANY if memories > MANY else UPDATED


def updated(ranks: Sequence[int], likely: Column) -> dict[int, Replacement]:
    """Return by rank the memory that most probably updates it, where one probably does. `likely`: of those ranks."""
    by = likely.argmax(axis=1)
    found = {}
    for at, rank in enumerate(ranks):
        if (probability := float(likely[at, by[at]])) >= UPDATED:
            found[rank] = Replacement(ranks[by[at]], probability)
    return found


def settled(ranks: Sequence[int], likely: Column, count: int, *, about_past: bool) -> list[int]:
    """Return `count` ranks in their new order: a memory directly before the first that it updates, or, of a question
    about the past, directly before the first that updates it."""
    order = [*range(count)]
    pairs = [(ranks[older], ranks[newer]) for older, newer in np.argwhere(likely >= UPDATED).tolist()]
    for _ in ranks:  # each pass settles one more; the pairs follow time, so that there is no circle
        moved = False
        for older, newer in pairs:
            first, second = (older, newer) if about_past else (newer, older)
            if order.index(first) > order.index(second):
                order.remove(first)
                order.insert(order.index(second), first)
                moved = True
        if not moved:
            break
    return order


def lifts(scores: Column, order: Sequence[int]) -> Column:
    """Return what each memory's score gains so that no score rises in the new order; in the old order."""
    gains = np.zeros(len(scores))
    following = -np.inf
    for rank in reversed(order):
        gains[rank] = max(following - float(scores[rank]), 0.0)
        following = float(scores[rank]) + gains[rank]
    return gains
