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
from collections.abc import Mapping, Sequence
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
COUNTED: Sequence[Cue] = ("change", "ended", "corrected", "restored", "added", "others")
MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})  # the others say themselves how time counts
UPDATED = 0.5  # the least probability: more likely than not
BOOST = "update"


def _bits(*cues: Cue) -> int:
    """Return the bits of kinds of cue in `StatementReading.cues`."""
    return sum(1 << CUES.index(cue) for cue in cues)


_AMENDS, _CHANGED, _RESTORED, _ADDED = _bits("ended", "corrected"), _bits("change"), _bits("restored"), _bits("added")

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


class Pairs(NamedTuple):
    """Pairs of an older and a newer memory of which the newer one may update the older one, and their features.

    Attributes:
        older: ranks, (pairs,).
        newer: ranks, (pairs,).
        values: by name of the feature (pairs,).
    """

    older: npt.NDArray[np.int64]
    newer: npt.NDArray[np.int64]
    values: dict[str, Features]


def probabilities(question: StatementReading, told: Told) -> Column:
    """Return (n, n): how probable it is that the memory of the column updates that of the row; 0 where it is older."""
    likely = np.zeros((len(told.statements), len(told.statements)))
    older, newer, values = features(question, told)
    if len(older):
        terms = np.array([values[name] for name in WEIGHTS])
        logit = BIAS + CHANGE_ASKED * values["changes_asked"] + _WEIGHTS @ terms
        likely[older, newer] = 1 / (1 + np.exp(-logit))
    return likely


def features(question: StatementReading, told: Told) -> Pairs:
    """Return the pairs of memories of which the newer one may update the older one. Of most answers few are related,
    and none may: they are looked at one by one before their features are worked out."""
    compared = _Compared.of(question, told.statements)
    related = np.argwhere(compared.is_related & (told.order[:, None] < told.order)).tolist()
    pairs = [pair for pair in related if compared.may_update(*pair)]
    return _features(compared, told, np.array(pairs)) if pairs else _NO_PAIRS


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
        listed: whether a statement is one of a list, by number, as far as that was asked.
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
    listed: dict[int, bool]

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
        return cls(question, statements, alike, cosines[:-1, -1], holds, held, is_asked, share, common, is_related, {})

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
        if newer not in self.listed:
            own = self.common[newer][newer]
            alike = [row[newer] >= LISTED_SHARE * min(row[at], own) for at, row in enumerate(self.common)]
            self.listed[newer] = sum(alike) > LISTED
        return self.listed[newer]


def _features(compared: _Compared, told: Told, pairs: npt.NDArray[np.int64]) -> Pairs:
    """Return the features of pairs, (pairs, 2)."""
    older, newer = pairs.T
    pair, statements, question = (older, newer), compared.statements, compared.question
    each = [*zip(older.tolist(), newer.tolist(), strict=True)]
    own = np.array([one.is_own for one in statements], np.float64)
    known = {None, *question.words.tolist()}
    named = np.array([one.name not in known for one in statements]) * (1 - own)
    cue = _cues(statements)
    others = cue["others"] * (1 - own)
    author, place, signal = told.author, told.place, told.signal
    apart = ~np.eye(len(statements), dtype=np.bool_)
    mean, spread = _spread(compared.alike[apart])
    nearest = (1.0 / (1 + (-np.where(apart, compared.alike, -9)).argsort(1).argsort(1)))[pair]
    unasked = compared.held[:, ~compared.is_asked]
    unasked_shared = np.minimum((unasked @ unasked.T)[pair], 10.0) / 5
    alike, share, fits = compared.alike[pair], compared.share[pair], compared.fits
    older_rank, newer_rank = 1.0 / (older + 1), 1.0 / (newer + 1)
    least = np.minimum(fits[older], fits[newer])
    follows = (place[older] + 1 == place[newer]) * 1.0
    same_author = author[older] == author[newer]
    numbers_differ = np.array([compared.numbers_differ(*one) for one in each], np.float64)
    common = np.array([compared.attributes(*one) for one in each])
    attribute, attribute_asked = (common != 0) * 1.0, (common & question.attributes != 0) * 1.0
    changes = np.maximum(cue["change"], cue["ended"])
    newer_cue = {name: of[newer] for name, of in cue.items()}
    beside = {
        "alike": alike,
        "fits": least,
        "shared": share,
        "nearest": nearest,
        "attribute": attribute,
        "asked": attribute_asked,
    }
    values = {
        "alike": alike,
        "alike_spread": (alike - mean) / spread,
        "nearest": nearest,
        "shared": share,
        "shared_unasked": unasked_shared,
        "fits_least": least,
        "older_fits": fits[older],
        "newer_fits": fits[newer],
        **_of_cues(newer_cue, changes[older], changes[newer], beside),
        "same_author": same_author * 1.0,
        "other_author_own": ~same_author * own[newer],
        "person": np.array([compared.names_other(*one) for one in each], np.float64),
        "others": np.maximum(others[newer] - others[older], 0),
        "name": np.maximum(named[newer] - named[older], 0),
        "own": own[newer],
        "numbers_differ": numbers_differ,
        "older_rank": older_rank,
        "newer_rank": newer_rank,
        "ranks": older_rank * newer_rank,
        "older_behind": np.minimum(signal.max() - signal[older], 8.0) / 8,
        "signals_apart": np.clip(signal[older] - signal[newer], -8.0, 8.0) / 8,
        "numbers_shared": numbers_differ * share,
        "rank_nearest": older_rank * nearest,
        "attribute": attribute,
        "attribute_asked": attribute_asked,
        "asked_fits": attribute_asked * least,
        "asked_ranks": attribute_asked * older_rank * newer_rank,
        "follows": follows,
        "follows_corrected": follows * newer_cue["corrected"],
        "follows_shared": follows * share,
    }
    return Pairs(older, newer, values)


_NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), {})
_WEIGHTS = np.array([*WEIGHTS.values()])
_COUNTED = np.array([CUES.index(name) for name in COUNTED])


def _of_cues(
    newer: Mapping[str, Features], older_changes: Features, changes: Features, pairs: Mapping[str, Features]
) -> dict[str, Features]:
    """Return the cues of the newer statement, and a change beside each figure of the pair."""
    return {
        "change": newer["change"],
        "ended": newer["ended"],
        "corrected": newer["corrected"],
        "restored": newer["restored"],
        "added": newer["added"] * (1 - np.maximum(newer["ended"], newer["corrected"])),
        "older_changes": older_changes,
        **{f"changes_{name}": changes * values for name, values in pairs.items()},
        "corrected_shared": newer["corrected"] * pairs["shared"],
        "restored_shared": newer["restored"] * pairs["shared"],
    }


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
    number = np.zeros(len(every), np.int64)
    number[order[1:]] = (rising[1:] != rising[:-1]).cumsum()
    holds = np.zeros((len(read), int(number.max(initial=-1)) + 1))
    holds[np.repeat(np.arange(len(read)), [len(one.words) for one in read]), number] = 1
    is_asked, holds = holds[-1] > 0, holds[:-1]
    holders = np.maximum(holds.sum(axis=0), 1)
    return holds, np.sqrt(np.log((max(len(holds), TYPICAL) + 1) / holders)), is_asked


def _cues(statements: Sequence[StatementReading]) -> dict[str, Features]:
    """Return whether each statement holds each kind of cue, by kind (statements,)."""
    held = (np.array([one.cues for one in statements]) >> _COUNTED[:, None] & 1).astype(np.float64)
    return dict(zip(COUNTED, held, strict=True))


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
    before, gains, following = scores.tolist(), [0.0] * len(scores), -math.inf
    for rank in reversed(order):
        gains[rank] = max(following - before[rank], 0.0)
        following = before[rank] + gains[rank]
    return np.array(gains)
