"""The mode `episode`: whole conversations, the most relevant first, each in the order it was said.

| factor | of an episode |
|---|---|
| relevance | the relevance of the memory that fits best of all, times the episode's share of all evidence |
| mentions | n / (1 + n), where n of its members mention entities that are asked for or named |

An episode's share is exp(odds - log Σ exp(odds of all)), where odds = log Σ exp(signal) over its members, the log-odds
that any of them is evidence, plus a quarter of the z-score of the cosine between question and centroid, 0 where no
member has a vector yet. Centroids alone find too little: on LoCoMo (hash embedder) the best three episodes hold some
evidence for .49 of the questions, by their members for .90.

A memory's score is its episode's: in between, and among equal episodes, the event time decides. A memory outside any
episode is one of its own.
"""

from typing import NamedTuple

import numpy as np

from recallflow.operators.recall.people import filled
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.state.arrays import Column, Ints, Mask, Places

SPREAD = 3  # episodes that share the room, where the best do not fit whole
CENTROID_WEIGHT = 0.25
BEST = 50  # memories by the signal, among which the most relevant one is looked for
NAMED = 0.2  # of what mentions weigh, where no entity is given
MENTIONED = 1.0  # the nearness of a memory that mentions an entity itself


class _Episodes(NamedTuple):
    """The episodes that have members which may be in the answer: `members`, their places in conversation order; where
    each episode's begin; and how many it has."""

    members: Places
    first: Ints
    sizes: Ints

    def of(self, number: int) -> Places:
        """The members of one of them."""
        return self.members[self.first[number] : self.first[number] + self.sizes[number]]


def episode(scene: Scene) -> Ranking:
    """The memories of the best episodes."""
    found = _grouped(scene)
    factors = {"relevance": _relevance(scene, found), "mentions": _mentions(scene, found)}
    weights = _weights(scene)
    scores: Column = sum((weights[name] * values for name, values in factors.items()), np.zeros(len(found.first)))
    began_ms = scene.fact("created_ms", found.members[found.first])
    order = np.lexsort((found.first, began_ms, -scores))
    answered = _answered(scene, found, order)
    places, own = np.concatenate(answered), np.repeat(order[: len(answered)], [len(one) for one in answered])
    return Ranking(places, scores[own], {name: values[own] for name, values in factors.items()}, weights)


def _weights(scene: Scene) -> dict[str, float]:
    """Entities that are given count whole, those that the question names a little: they are words of it, as the signal
    knows, and participants it names are nothing else."""
    weights, query = dict(scene.tuning.weights), scene.query
    if not query.entity_urns and "mentions" not in (query.weights or {}):
        weights["mentions"] *= 0.0 if scene.question.named else NAMED
    return weights


def _grouped(scene: Scene) -> _Episodes:
    segment = scene.index.conversation.segment[scene.allowed]
    first = np.flatnonzero(np.diff(segment, prepend=-1))
    return _Episodes(scene.allowed, first, np.diff(first, append=len(segment)))


def _relevance(scene: Scene, found: _Episodes) -> Column:
    odds: Column = np.logaddexp.reduceat(scene.semantic[found.members], found.first)
    if scene.vector is not None:
        segments = scene.index.conversation.segment[found.members[found.first]]
        centroids = scene.index.clusters.centroids(segments)
        embedded: Mask = np.linalg.norm(centroids, axis=1) > 0
        if embedded.any():
            cosines = filled(centroids.astype(np.float64) @ scene.vector, embedded)
            known = cosines[embedded]
            odds = odds + CENTROID_WEIGHT * (cosines - known.mean()) / (known.std() + 1e-6)
    relevance: Column = np.exp(odds - np.logaddexp.reduce(odds)) * scene.relevance(scene.best(BEST)).max()
    return relevance


def _mentions(scene: Scene, found: _Episodes) -> Column:
    if scene.proximity is None:
        return np.zeros(len(found.first))
    counts = np.add.reduceat((scene.proximity[found.members] >= MENTIONED) * 1.0, found.first)
    mentions: Column = counts / (1 + counts)
    return mentions


def _answered(scene: Scene, found: _Episodes, order: Ints) -> list[Places]:
    """The places of each answered episode, best first: whole ones as long as there is room. Those that do not fit share
    what is left of it: of their members, those that fit best."""
    tuning = scene.tuning
    room = tuning.most
    best = [found.of(number) for number in order[: tuning.max_episodes or tuning.k].tolist()]
    whole, taken = 0, 0
    while whole < len(best) and taken < tuning.k and taken + len(best[whole]) <= room:
        taken += len(best[whole])
        whole += 1
    if taken >= tuning.k or taken == room:
        return best[:whole]
    rest = best[whole : max(whole + 1, SPREAD)]
    if not rest:
        return best
    every = np.concatenate(rest)
    chosen = np.zeros(scene.index.conversation.size, np.bool_)
    chosen[every[np.argsort(-scene.semantic[every], kind="stable")[: room - taken]]] = True
    return [*best[:whole], *(one[chosen[one]] for one in rest)]
