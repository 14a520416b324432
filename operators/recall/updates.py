"""What is true now: which of the best memories a later one updates, and the order that follows.

"My number is 555 1000." and "My new number is 555 2000." answer the same question; the second one is true now. Of the
best memories each pair is looked at, the older and the newer one, and a logistic regression (`python -m
benchmarks.updates --fit`) gives the probability that the newer one updates the older one. Its features: how much the
two are alike and answer the question; cues of change, end, correction, return and addition in the newer one; numbers
that differ; who speaks, and of whom. A statement about another person never updates one about the writer.

The result depends on the memories that stand and on nothing stored: it is right as of any moment, after a replay, and
after a memory was forgotten.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
    """Return the pairs of memories of which the newer one may update the older one."""
    statements = told.statements
    read = [*statements, question]
    vectors = np.concatenate([one.vector for one in read]).reshape(len(read), -1).astype(np.float64)
    cosines = vectors @ vectors.T
    alike, fits = cosines[:-1, :-1], cosines[:-1, -1]
    holds, worths, is_asked = _words(read)
    held = holds * worths
    shared = held @ held.T  # words in common, by rarity
    sums = np.maximum(shared.diagonal(), 1e-9)
    share = shared / np.minimum(sums[:, None], sums)
    tells = np.array([one.attributes for one in statements])
    together = tells[:, None] & tells
    is_short = np.array([len(one.words) <= WORDS_MOST for one in statements])
    may_update = (alike >= RELATED) | (share >= RELATED) | (together != 0)
    may_update &= (told.order[:, None] < told.order) & is_short[:, None] & is_short
    if not may_update.any():
        return _NO_PAIRS
    own = np.array([one.is_own for one in statements], np.float64)
    strange = _strange(question, statements)
    kinds = {one.numbers: kind for kind, one in enumerate(statements, 1) if one.numbers}
    number = np.array([kinds.get(one.numbers, 0) for one in statements])
    differ = (number[:, None] != number) & (number[:, None] > 0) & (number > 0)
    asked = (together & question.attributes) != 0
    cue = _cues(statements)
    may_update &= ~(strange & (own == 0))
    keyword = len(question.words) <= KEYWORD
    may_update &= ~_is_beside(cue, holds, holds[:, is_asked], differ | asked, keyword=keyword)
    older, newer = may_update.nonzero()
    if not len(older):
        return _NO_PAIRS
    pair = older, newer
    known = {None, *question.words.tolist()}
    named = np.array([one.name not in known for one in statements]) * (1 - own)
    others = cue["others"] * (1 - own)
    author, place, signal = told.author, told.place, told.signal
    apart = ~np.eye(len(statements), dtype=np.bool_)
    mean, spread = _spread(alike, apart)
    nearest = (1.0 / (1 + (-np.where(apart, alike, -9)).argsort(1).argsort(1)))[pair]
    unasked = held[:, ~is_asked]
    unasked_shared = np.minimum((unasked @ unasked.T)[pair], 10.0) / 5
    alike, share = alike[pair], share[pair]
    older_rank, newer_rank = 1.0 / (older + 1), 1.0 / (newer + 1)
    least = np.minimum(fits[older], fits[newer])
    follows = (place[older] + 1 == place[newer]) * 1.0
    same_author = author[older] == author[newer]
    numbers_differ = differ[pair] * 1.0
    attribute, attribute_asked = (together[pair] != 0) * 1.0, asked[pair] * 1.0
    changes = np.maximum(cue["change"], cue["ended"])
    newer_cue = {name: of[newer] for name, of in cue.items()}
    compared = {
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
        **_of_cues(newer_cue, changes[older], changes[newer], compared),
        "same_author": same_author * 1.0,
        "other_author_own": ~same_author * own[newer],
        "person": strange[pair] * 1.0,
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


def _is_beside(
    cue: Mapping[str, Features],
    holds: Features,
    asked: Features,
    differ: npt.NDArray[np.bool_],
    *,
    keyword: bool,
) -> npt.NDArray[np.bool_]:
    """Return (n, n): whether the newer statement stands beside the older one.

    It says the same, or less; or it adds something, and speaks of no end or correction; or it has no cue at all, and
    is one of a list ("crate 7 is in shelf 3"), or lacks a word of the question that the older one has, or has too few
    words in common with it to be the same sentence with another value.

    Args:
        cue: by name (n,).
        holds: (n, words), 1 where a statement holds the word, else 0.
        asked: as `holds`, of the question's words alone.
        differ: (n, n), whether numbers differ, or both are about what the question asks for.
        keyword: whether the question is a single word, and asks for nothing else.
    """
    amends = cue["ended"] + cue["corrected"] > 0
    sizes, common = holds.sum(axis=1), holds @ holds.T
    says_less = (common == sizes) & ~amends & (cue["restored"] == 0)  # "Ana moved" after "Ana moved to Porto"
    same = (common == sizes) & (common == sizes[:, None])
    alike = common >= LISTED_SHARE * np.minimum(sizes[:, None], sizes)
    plain = ~amends & (cue["change"] + cue["restored"] == 0)
    other = (common < SAME_SENTENCE * np.maximum(sizes[:, None], sizes)) & ~differ
    answers_less = asked.sum(axis=1)[:, None] > asked @ asked.T  # the newer one lacks a word
    listed = alike.sum(axis=0) > LISTED
    found: npt.NDArray[np.bool_] = (
        same
        | says_less
        | ((cue["added"] > 0) & ~amends)
        | (plain & (listed | other))
        | ((plain | keyword) & answers_less & ~differ)
    )
    return found


def _strange(question: StatementReading, statements: Sequence[StatementReading]) -> npt.NDArray[np.bool_]:
    """Return (n, n): whether the newer statement speaks of a person of whom neither the older one nor the question
    does."""
    strange = np.zeros((len(statements), len(statements)), np.bool_)
    for newer, statement in enumerate(statements):
        if persons := statement.persons - question.persons:
            strange[:, newer] = [bool(persons - one.persons) for one in statements]
    return strange


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


def _cues(statements: Sequence[StatementReading]) -> dict[str, Features]:
    """Return whether each statement holds each kind of cue, by kind (statements,)."""
    held = (np.array([one.cues for one in statements]) >> _COUNTED[:, None] & 1).astype(np.float64)
    return dict(zip(COUNTED, held, strict=True))


def _spread(alike: Features, apart: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return mean and deviation of the likeness of different statements; of few, they are near the usual ones."""
    others = alike[apart]
    count, usual = len(others) + USUAL_PAIRS, USUAL_PAIRS
    mean = (others.sum() + usual * USUAL_MEAN) / count
    variance = (((others - mean) ** 2).sum() + usual * USUAL_DEVIATION**2) / count
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
