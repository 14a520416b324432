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

from recallflow.language.statements import StatementReading
from recallflow.language.word_vectors import word_vectors
from recallflow.operators.recall.update_weights import BIAS, WEIGHTS
from recallflow.queries import Mode
from recallflow.state.arrays import Column

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
CUES = ("change", "ended", "corrected", "restored", "added", "others")
MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})  # the others say themselves how time counts
UPDATED = 0.5  # the least probability: more likely than not
BOOST = "update"

Features = npt.NDArray[np.float64]


class Replacement(NamedTuple):
    """The memory that updates another, by rank or by place, and how probable that is."""

    by: int
    probability: float


class Candidate(NamedTuple):
    """A memory of which to tell whether it is updated: its statement, who wrote it, its place in the conversation, when
    it came (event time and number), and the log-odds of the signal."""

    statement: StatementReading
    author: int
    place: int
    order: tuple[int, int]
    signal: float


def probabilities(question: StatementReading, told: Sequence[Candidate]) -> Column:
    """Return (n, n): how probable it is that the memory of the column updates that of the row; 0 where it is older."""
    values = features(question, told)
    logit = BIAS + CHANGE_ASKED * values["changes_asked"]
    for name, weight in WEIGHTS.items():
        logit += weight * values[name]
    return np.where(values["open"], 1 / (1 + np.exp(-logit)), 0.0)


def features(question: StatementReading, told: Sequence[Candidate]) -> dict[str, Features]:
    """Return by name (n, n), or (n, 1) of the older memory, or (n,) of the newer one: the older memory in the row, the
    newer one in the column; best first. "open": whether the newer one may update the older one at all."""
    statements = [one.statement for one in told]
    n, apart = len(told), ~np.eye(len(told), dtype=np.bool_)
    author, place = np.array([one.author for one in told]), np.array([one.place for one in told])
    order = np.empty(n, np.int64)
    order[sorted(range(n), key=lambda at: told[at].order)] = np.arange(n)
    known = _unit(word_vectors().summed([one.rows for one in (*statements, question)])).astype(np.float64)
    alike, fits = known[:n] @ known[:n].T, known[:n] @ known[n]
    held, unasked = _held(question, statements)
    shared = held @ held.T  # words in common, by rarity
    sums = np.maximum(np.diag(shared), 1e-9)
    share = shared / np.minimum(sums[:, None], sums)
    signal = np.array([one.signal for one in told])
    size = np.array([len(one.words) for one in statements])
    rank = 1.0 / np.arange(1, n + 1)
    mean, spread = _spread(alike, apart)
    cue = {name: np.array([name in one.cues for one in statements], np.float64) for name in CUES}
    strange, own = _strange(question, statements), np.array([one.is_own for one in statements], np.float64)
    kinds = {one.numbers: kind for kind, one in enumerate(statements, 1) if one.numbers}
    number = np.array([kinds.get(one.numbers, 0) for one in statements])
    differ = ((number[:, None] != number) & (number[:, None] > 0) & (number > 0)) * 1.0
    changes = np.maximum(cue["change"], cue["ended"])
    nearest = 1.0 / (1 + (-np.where(apart, alike, -9)).argsort(1).argsort(1))
    least = np.minimum(fits[:, None], fits)
    others = cue["others"] * (1 - own)
    named = np.array([bool(one.name) and one.name not in question.words for one in statements]) * (1 - own)
    tells = np.array([one.attributes for one in statements])
    together = tells[:, None] & tells
    attribute = (together != 0) * 1.0
    asked = ((together & question.attributes) != 0) * 1.0
    follows = (place[:, None] + 1 == place) * 1.0
    return {
        "open": (order[:, None] < order)
        & ((alike >= RELATED) | (share >= RELATED) | (together != 0))
        & ((size[:, None] <= WORDS_MOST) & (size <= WORDS_MOST))
        & ~(strange & (own == 0))
        & ~_is_beside(cue, held, held - unasked, differ + asked, keyword=len(question.words) <= KEYWORD),
        "alike": alike,
        "alike_spread": (alike - mean) / spread,
        "nearest": nearest,
        "shared": share,
        "shared_unasked": np.minimum(unasked @ unasked.T, 10.0) / 5,
        "fits_least": least,
        "older_fits": fits[:, None],
        "newer_fits": fits,
        **_of_cues(
            cue,
            changes,
            {
                "alike": alike,
                "fits": least,
                "shared": share,
                "nearest": nearest,
                "attribute": attribute,
                "asked": asked,
            },
        ),
        "same_author": (author[:, None] == author) * 1.0,
        "other_author_own": (author[:, None] != author) * own,
        "person": strange * 1.0,
        "others": np.maximum(others - others[:, None], 0),
        "name": np.maximum(named - named[:, None], 0),
        "own": own,
        "numbers_differ": differ,
        "older_rank": rank[:, None],
        "newer_rank": rank,
        "ranks": rank[:, None] * rank,
        "older_behind": np.minimum(signal.max() - signal, 8.0)[:, None] / 8,
        "signals_apart": np.clip(signal[:, None] - signal, -8.0, 8.0) / 8,
        "numbers_shared": differ * share,
        "rank_nearest": rank[:, None] * nearest,
        "attribute": attribute,
        "attribute_asked": asked,
        "asked_fits": asked * least,
        "asked_ranks": asked * rank[:, None] * rank,
        "follows": follows,
        "follows_corrected": follows * cue["corrected"],
        "follows_shared": follows * share,
    }


def _of_cues(cue: Mapping[str, Features], changes: Features, pairs: Mapping[str, Features]) -> dict[str, Features]:
    """Return the cues of the newer statement, and a change beside each figure of the pair."""
    return {
        "change": cue["change"],
        "ended": cue["ended"],
        "corrected": cue["corrected"],
        "restored": cue["restored"],
        "added": cue["added"] * (1 - np.maximum(cue["ended"], cue["corrected"])),
        "older_changes": changes[:, None],
        **{f"changes_{name}": changes * values for name, values in pairs.items()},
        "corrected_shared": cue["corrected"] * pairs["shared"],
        "restored_shared": cue["restored"] * pairs["shared"],
    }


def _is_beside(
    cue: Mapping[str, Features], held: Features, asked: Features, differ: Features, *, keyword: bool
) -> npt.NDArray[np.bool_]:
    """Return (n, n): whether the newer statement stands beside the older one: it says the same, or less; it adds
    something, and speaks of no end or correction; or it has no cue at all, and is one of a list ("crate 7 is in shelf
    3"), or lacks a word of the question that the older one has, or has too few words in common with it to be the same
    sentence with another value. `asked`: as `held`, of the question's words alone; `differ`: above 0 where numbers
    differ, or where both are about what the question asks for; `keyword`: the question is a single word, and asks for
    nothing else."""
    amends = cue["ended"] + cue["corrected"] > 0
    words = (held > 0) * 1.0
    sizes, common = words.sum(axis=1), words @ words.T
    says_less = (common == sizes) & ~amends & (cue["restored"] == 0)  # "Ana moved" after "Ana moved to Porto"
    same = (common == sizes) & (common == sizes[:, None])
    alike = common >= LISTED_SHARE * np.minimum(sizes[:, None], sizes)
    plain = ~amends & (cue["change"] + cue["restored"] == 0)
    other = (common < SAME_SENTENCE * np.maximum(sizes[:, None], sizes)) & (differ == 0)
    answers_less = ((asked > 0) * 1.0) @ (1 - words).T > 0
    listed = alike.sum(axis=0) > LISTED
    found: npt.NDArray[np.bool_] = (
        same
        | says_less
        | ((cue["added"] > 0) & ~amends)
        | (plain & (listed | other))
        | ((plain | keyword) & answers_less & (differ == 0))
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


def _held(question: StatementReading, statements: Sequence[StatementReading]) -> tuple[Features, Features]:
    """Return (statements, words): the square root of each word's rarity among the statements where one holds it; and
    the same without the question's words."""
    holders: dict[str, list[int]] = {}
    for at, one in enumerate(statements):
        for word in one.words:
            holders.setdefault(word, []).append(at)
    held = np.zeros((len(statements), len(holders)))
    for number, of in enumerate(holders.values()):
        held[of, number] = np.sqrt(np.log((max(len(statements), TYPICAL) + 1) / len(of)))
    asked = np.array([word in question.words for word in holders], np.bool_)
    return held, np.where(asked, 0.0, held)


def _unit(sums: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    units: npt.NDArray[np.float32] = np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)
    return units


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
