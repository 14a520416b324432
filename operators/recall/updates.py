"""Current statements: finds which of the best memories a later one updates, and derives the order.

"My number is 555 1000." and "My new number is 555 2000." answer the same question; only the second one is true now.
Each pair of an older and a newer memory is compared, and a logistic regression (`python -m benchmarks.updates --fit`)
gives the probability that the newer one updates the older one. Its features are: similarity to each other and to the
question; cues of change, end, correction, return and addition in the newer one; differing numbers; author and subject.
A statement about another person never updates one about the writer.

The result depends on the present memories and on nothing stored. It is therefore correct as of any moment, after a
replay, and after a deletion."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.language.statements import CUES, Cue, StatementReading
from recallflow.operators.recall.update_weights import BIAS, WEIGHTS
from recallflow.queries import Mode
from recallflow.state.arrays import Column, Ints, Mask

BEST = 12  # memories to compare
FOLLOWED = 4  # the best of these, whose next message is compared too: a correction often says little more than "not"
UPDATED_AMONG_MANY, MANY = 0.7, 100  # above `MANY` memories of one person, similarity by chance is more frequent
UPDATED_IN_CHATS = 0.9  # with several participants: a later statement rarely replaces another participant's
KEYWORD = 1  # words of a question that is a mere keyword, and asks for no certain value
WORDS_MAX = 24  # of a statement that updates or is updated: long texts are similar by chance
CHANGE_ASKED = 2.0  # log-odds of a change of the requested attribute: the fit has few such cases
RELATED = 0.25  # minimum similarity, or share of words, of statements without a common attribute
TYPICAL = 12  # memories: with fewer, words count as they would among this many
USUAL_PAIRS, USUAL_MEAN, USUAL_DEVIATION = 30, 0.15, 0.15
SAME_SENTENCE = 0.5  # share of the words of the longer statement
LISTED, LISTED_SHARE = 3, 0.5  # a statement is part of a list if this many have at least this share in common with it
COUNTED: Sequence[Cue] = ("change", "ended", "corrected", "restored", "added", "others")
# the other modes define the role of time themselves
MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})
UPDATED = 0.5  # minimum probability: more likely than not


def _bits(*cues: Cue) -> int:
    """Return the bit mask of kinds of cue in `StatementReading.cues`."""
    return sum(1 << CUES.index(cue) for cue in cues)


_AMENDS, _CHANGED, _RESTORED, _ADDED = _bits("ended", "corrected"), _bits("change"), _bits("restored"), _bits("added")
Features = npt.NDArray[np.float64]


class Replacement(NamedTuple):
    """The memory that updates another, by rank or by position, and the probability of the update."""

    by: int
    probability: float


class UpdateCandidates(NamedTuple):
    """Memories to compare for updates, best first."""

    statements: Sequence[StatementReading]  # their analysed texts
    author: Ints  # the author of each, (n,)
    position: Ints  # the position of each in the conversation, (n,)
    order: Ints  # the rank of each by age, (n,), ascending with time
    signal: Column  # the log-odds of each, (n,)


class Pairs(NamedTuple):
    """Pairs of an older memory and a newer one that may update it, with their features."""

    older: npt.NDArray[np.int64]  # ranks, (pairs,)
    newer: npt.NDArray[np.int64]  # ranks, (pairs,)
    values: dict[str, Features]  # by name of the feature (pairs,)


def probabilities(question: StatementReading, candidates: UpdateCandidates) -> Column:
    """Return (n, n): the probability that the column's memory updates the row's; 0 unless it is newer."""
    probability = np.zeros((len(candidates.statements), len(candidates.statements)))
    older, newer, values = features(question, candidates)
    if len(older):
        terms = np.array([values[name] for name in WEIGHTS])
        logit = BIAS + CHANGE_ASKED * values["changes_asked"] + _WEIGHTS @ terms
        probability[older, newer] = 1 / (1 + np.exp(-logit))
    return probability


def features(question: StatementReading, candidates: UpdateCandidates) -> Pairs:
    """Return the pairs in which the newer memory may update the older one, if they are related. It may not if one of
    them is long, if it names another person, or if it is compatible with the older one."""
    compared = _Compared(question, candidates.statements)
    related = compared.is_related & (candidates.order[:, None] < candidates.order)
    if not related.any():
        return _NO_PAIRS
    lengths = compared.common.diagonal()
    brief = lengths <= WORDS_MAX
    excluded = compared.names_other(strangers_only=True) | compared.is_compatible(lengths)
    pairs = np.argwhere(related & brief[:, None] & brief & ~excluded)
    return _features(compared, candidates, pairs) if len(pairs) else _NO_PAIRS


class _Compared:
    """Statements, n of them, compared with each other and with the question. Words are those of all.

    Attributes:
        alike: (n, n), cosines of their vectors.
        fits: (n,), cosines with the vector of the question.
        holds: (n, words), 1 if a statement holds the word, else 0.
        root_rarity: (n, words), the square root of the word's rarity if a statement holds it, else 0.
        is_asked: (words,), whether the question holds the word.
        share: (n, n), the share of words in common, by rarity, in the statement with fewer words.
        common: (n, n), the number of words in common.
        attributes: (n, n), the bits of the attributes that both statements may give.
        is_related: (n, n), whether two may be about a common attribute.
    """

    def __init__(self, question: StatementReading, statements: Sequence[StatementReading]) -> None:
        self.question, self.statements = question, statements
        readings = [*statements, question]
        vectors = np.concatenate([one.vector for one in readings], dtype=np.float64).reshape(len(readings), -1)
        cosines = vectors @ vectors.T
        self.alike, self.fits = cosines[:-1, :-1], cosines[:-1, -1]
        self.holds, worths, self.is_asked = _words(readings)
        self.root_rarity = self.holds * worths
        shared = self.root_rarity @ self.root_rarity.T
        sums = np.maximum(shared.diagonal(), 1e-9)
        self.share = shared / np.minimum(sums[:, None], sums)
        self.common = self.holds @ self.holds.T
        own = np.array([one.attributes for one in statements])
        self.attributes = own[:, None] & own
        self.is_related: Mask = (self.alike >= RELATED) | (self.share >= RELATED) | (self.attributes != 0)

    def names_other(self, *, strangers_only: bool = False) -> Mask:
        """Return (n, n): whether the column's statement names a person that neither the row's nor the question names.
        With `strangers_only`, statements that refer to their writer are left out."""
        found = np.zeros(self.common.shape, np.bool_)
        for newer, one in enumerate(self.statements):
            if one.persons and not (strangers_only and one.is_own):
                others = one.persons - self.question.persons
                found[:, newer] = [bool(others - older.persons) for older in self.statements]
        return found

    @cached_property
    def numbers_differ(self) -> Mask:
        """Return (n, n): whether both statements contain numbers, and different ones."""
        known: dict[frozenset[str], int] = {frozenset(): 0}
        numbers = np.array([known.setdefault(one.numbers, len(known)) for one in self.statements])
        found: Mask = (numbers[:, None] != numbers) & (numbers[:, None] * numbers > 0)
        return found

    def is_compatible(self, lengths: Features) -> Mask:
        """Return (n, n): whether the column's statement is compatible with the row's, and does not replace it. It is
        compatible in three cases. It repeats the older one or a part of it ("Ana moved" after "Ana moved to Porto"). It
        adds something, without a cue of an end or a correction. It has no cue of a change, and is part of a list
        ("crate 7 is in shelf 3"), or lacks a question word of the older one (for a one-word question, even with a cue),
        or shares too few words with it to be the same sentence with another value."""
        cues = np.array([one.cues for one in self.statements])
        amends, is_plain = cues & _AMENDS != 0, cues & (_AMENDS | _CHANGED | _RESTORED) == 0
        other, own = lengths[:, None], lengths
        repeats = (self.common == own) & ((self.common == other) | ~(amends | (cues & _RESTORED != 0)))
        differ = self.numbers_differ | (self.attributes & self.question.attributes != 0)
        unlike = (self.common < SAME_SENTENCE * np.maximum(other, own)) & ~differ
        # A statement is listed if several have as many words in common with it.
        listed = (self.common >= LISTED_SHARE * np.minimum(other, own)).sum(axis=0) > LISTED
        asked = self.holds[:, self.is_asked]
        lacks = asked @ (1 - asked).T > 0
        is_distinguished = (is_plain | (len(self.question.words) <= KEYWORD)) & lacks & ~differ
        found: Mask = repeats | ((cues & _ADDED != 0) & ~amends) | (is_plain & (unlike | listed)) | is_distinguished
        return found


def _features(compared: _Compared, candidates: UpdateCandidates, pairs: npt.NDArray[np.int64]) -> Pairs:
    """Return the features of pairs, (pairs, 2)."""
    older, newer = pairs.T
    pair, statements, question = (older, newer), compared.statements, compared.question
    own = np.array([one.is_own for one in statements], np.float64)
    question_words = {None, *question.words.tolist()}
    has_other_name = np.array([one.name not in question_words for one in statements]) * (1 - own)
    has_cue = (np.array([one.cues for one in statements]) >> _COUNTED[:, None] & 1).astype(np.float64)
    cue = dict(zip(COUNTED, has_cue, strict=True))  # (statements,) each
    others = cue["others"] * (1 - own)
    apart = ~np.eye(len(statements), dtype=np.bool_)
    # Mean and deviation of the similarity of different statements, with a prior for few statements.
    alike, prior_pairs = compared.alike[apart], USUAL_PAIRS
    mean = float((alike.sum() + prior_pairs * USUAL_MEAN) / (len(alike) + prior_pairs))
    variance = (((alike - mean) ** 2).sum() + prior_pairs * USUAL_DEVIATION**2) / (len(alike) + prior_pairs)
    spread = float(variance**0.5) + 0.05
    rarity_unasked = compared.root_rarity[:, ~compared.is_asked]
    fits, changes = compared.fits, np.maximum(cue["change"], cue["ended"])
    common = compared.attributes[pair]
    pair_values = {
        "alike": compared.alike[pair],
        "fits": np.minimum(fits[older], fits[newer]),
        "shared": compared.share[pair],
        "nearest": (1.0 / (1 + (-np.where(apart, compared.alike, -9)).argsort(1).argsort(1)))[pair],
        "attribute": (common != 0) * 1.0,
        "asked": (common & question.attributes != 0) * 1.0,
    }
    values = {
        **{name: pair_values[name] for name in ("alike", "nearest", "shared", "attribute")},
        **{name: cue[name][newer] for name in ("change", "ended", "corrected", "restored")},
        **{f"changes_{name}": changes[newer] * values for name, values in pair_values.items()},
        **{f"{name}_shared": cue[name][newer] * pair_values["shared"] for name in ("corrected", "restored")},
        "alike_spread": (pair_values["alike"] - mean) / spread,
        "shared_unasked": np.minimum((rarity_unasked @ rarity_unasked.T)[pair], 10.0) / 5,
        "fits_least": pair_values["fits"],
        "older_fits": fits[older],
        "newer_fits": fits[newer],
        "added": (cue["added"] * (1 - np.maximum(cue["ended"], cue["corrected"])))[newer],
        "older_changes": changes[older],
        "person": compared.names_other()[pair] * 1.0,
        "others": np.maximum(others[newer] - others[older], 0),
        "name": np.maximum(has_other_name[newer] - has_other_name[older], 0),
        "own": own[newer],
        "numbers_differ": compared.numbers_differ[pair] * 1.0,
        "attribute_asked": pair_values["asked"],
        "asked_fits": pair_values["asked"] * pair_values["fits"],
    }
    return Pairs(older, newer, _of_order(values, candidates, older, newer))


def _of_order(
    values: dict[str, Features], candidates: UpdateCandidates, older: Ints, newer: Ints
) -> dict[str, Features]:
    """Return the features, and those of authors, ranks, positions and the signal."""
    author, position, signal = candidates.author, candidates.position, candidates.signal
    older_rank, newer_rank = 1.0 / (older + 1), 1.0 / (newer + 1)
    same_author, follows = author[older] == author[newer], (position[older] + 1 == position[newer]) * 1.0
    return values | {
        "same_author": same_author * 1.0,
        "other_author_own": ~same_author * values["own"],
        "older_rank": older_rank,
        "newer_rank": newer_rank,
        "ranks": older_rank * newer_rank,
        "older_behind": np.minimum(signal.max() - signal[older], 8.0) / 8,
        "signals_apart": np.clip(signal[older] - signal[newer], -8.0, 8.0) / 8,
        "numbers_shared": values["numbers_differ"] * values["shared"],
        "rank_nearest": older_rank * values["nearest"],
        "asked_ranks": values["attribute_asked"] * older_rank * newer_rank,
        "follows": follows,
        "follows_corrected": follows * values["corrected"],
        "follows_shared": follows * values["shared"],
    }


_NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), {})
_WEIGHTS = np.array([*WEIGHTS.values()])
_COUNTED = np.array([CUES.index(name) for name in COUNTED])


def _words(readings: Sequence[StatementReading]) -> tuple[Features, Features, npt.NDArray[np.bool_]]:
    """Return the words of the statements, compared with each other and with the question, the last of `readings`:
    (statements, words), 1 if a statement holds the word, else 0; (words,), the square root of each word's rarity among
    the statements; (words,), whether the question holds the word."""
    words = np.concatenate([one.words for one in readings])
    order = words.argsort()
    sorted_words = words[order]
    number = np.zeros(len(words), np.int64)
    number[order[1:]] = (sorted_words[1:] != sorted_words[:-1]).cumsum()
    holds = np.zeros((len(readings), int(number.max(initial=-1)) + 1))
    holds[np.repeat(np.arange(len(readings)), [len(one.words) for one in readings]), number] = 1
    is_asked, holds = holds[-1] > 0, holds[:-1]
    holders = np.maximum(holds.sum(axis=0), 1)
    return holds, np.sqrt(np.log((max(len(holds), TYPICAL) + 1) / holders)), is_asked


def min_probability(memories: int, *, one_person: bool) -> float:
    """Return the minimum probability of an update. `one_person`: whether one person wrote, alone or to an assistant."""
    if not one_person:
        return UPDATED_IN_CHATS
    return UPDATED_AMONG_MANY if memories > MANY else UPDATED


def find_replacements(ranks: Sequence[int], likely: Column) -> dict[int, Replacement]:
    """Return, by the rank of a memory, the memory that most probably updates it, if the probability suffices.
    `likely` are the probabilities for these ranks, as `probabilities` returns them."""
    by, probability = likely.argmax(axis=1).tolist(), likely.max(axis=1).tolist()
    return {
        rank: Replacement(ranks[by[at]], probability[at]) for at, rank in enumerate(ranks) if probability[at] >= UPDATED
    }


def reordered(ranks: Sequence[int], likely: Column, count: int, *, about_past: bool) -> list[int]:
    """Return `count` ranks in their new order. A memory moves directly before the first that it updates or, for a
    question about the past, directly before the first that updates it."""
    order = [*range(count)]
    pairs = [(ranks[older], ranks[newer]) for older, newer in np.argwhere(likely >= UPDATED).tolist()]
    for _ in ranks:  # each pass settles one more rank; the pairs follow time, so that there is no cycle
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


def score_gains(scores: Column, order: Sequence[int]) -> Column:
    """Return what to add to each memory's score, in the old order, so that scores do not rise along the new order."""
    before = scores[order]
    gains = np.empty(len(scores))
    gains[order] = np.maximum.accumulate(before[::-1])[::-1] - before
    return gains
